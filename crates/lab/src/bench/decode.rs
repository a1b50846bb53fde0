//! One token of incremental decoding after a given context.

use std::time::Instant;

use regard_kernels::{AttentionOptions, Decode, Error, InputSpec, Operator, Role, Storage, View};

use super::{
    Sizes,
    inputs::{Tensor, Tensors, specs},
    operator::call,
    workload::{Run, Trouble, Workload, require_finite},
};

/// Number of distinct tokens, used cyclically.
const TOKENS: usize = 16;
/// Maximum tokens per run: the decode state must not grow much.
const MOST: usize = 64;
/// Target milliseconds per run: clocks are inaccurate below a microsecond.
const RUN: f64 = 1.0;

/// A decoder that has seen its context.
pub(super) struct Decoding {
    state: Box<dyn Decode>,
    tokens: Vec<Vec<Tensor>>,
    out: Vec<f32>,
    /// Tokens processed, including the context.
    taken: usize,
    /// Tokens per run.
    each: usize,
    /// State size in bytes after the context.
    bytes: u64,
}

/// A fresh decode state of the operator of `options`, with keys and values in `storage` format.
///
/// # Errors
/// Options without a decode state.
pub(super) fn decoder(
    operator: &dyn Operator,
    options: &AttentionOptions,
    storage: Storage,
) -> Result<Box<dyn Decode>, Error> {
    if !options.causal {
        return Err(Error::option("causal", false, "true: only causal attention decodes token by token"));
    }
    operator.decoder(storage).ok_or_else(|| options.no_decoder("mechanism"))
}

impl Decoding {
    /// Processes `sizes.length` tokens as context, before at most `runs` runs.
    ///
    /// # Errors
    /// Options without a state, or that do not fit the sizes.
    pub fn new(
        options: &AttentionOptions,
        sizes: Sizes,
        storage: Storage,
        runs: usize,
        seed: u64,
    ) -> Result<Self, Error> {
        let operator = options.operator(call(options))?;
        let state = decoder(operator.as_ref(), options, storage)?;
        // Per-position priors must cover everything that may be decoded, including two tokens of the first measurement.
        let length = sizes.length + 2 + MOST * runs;
        let of_length = |length: usize| specs(options, &*operator, Sizes { length, ..sizes });
        let (whole, one) = (of_length(length), of_length(1));
        let mut parameters = Tensors::new(seed);
        let mut tokens = Vec::with_capacity(TOKENS);
        for n in 0..TOKENS {
            let mut own = Tensors::new(seed.wrapping_add(n as u64));
            let input = |(whole, one): (&InputSpec, &InputSpec)| match one.role {
                Role::Data { .. } => own.input(one),
                _ => parameters.input(whole),
            };
            tokens.push(whole.iter().zip(&one).map(input).collect::<Result<Vec<Tensor>, _>>()?);
        }
        // The output shape of a token follows from the shapes of a full sequence.
        let shapes: Vec<&[usize]> = whole.iter().map(|spec| spec.shape.as_slice()).collect();
        let out = operator.out_shape(&shapes)?.iter().product::<usize>() / length;
        let mut decoding = Self { state, tokens, out: vec![f32::NAN; out], taken: 0, each: 1, bytes: 0 };
        for _ in 0..sizes.length {
            let token = views(&decoding.tokens[decoding.taken % TOKENS]);
            decoding.state.absorb(&token, &mut decoding.out);
            decoding.taken += 1;
        }
        decoding.bytes = decoding.state.bytes() as u64;
        Ok(decoding)
    }

    /// Milliseconds of each of the next `count` tokens.
    fn take(&mut self, count: usize) -> f64 {
        let start = Instant::now();
        for _ in 0..count {
            let token = views(&self.tokens[self.taken % TOKENS]);
            self.state.step(&token, &mut self.out);
            self.taken += 1;
        }
        start.elapsed().as_secs_f64() * 1e3 / count as f64
    }
}

fn views(token: &[Tensor]) -> Vec<View<'_, f32>> {
    token.iter().map(Tensor::view).collect()
}

impl Workload for Decoding {
    fn run(&mut self, first: bool) -> Result<Run, Trouble> {
        if first {
            self.out.fill(f32::NAN);
            self.take(1);
            require_finite(&self.out, "the output")?;
            let time = self.take(1).max(1e-6);
            self.each = ((RUN / time) as usize).clamp(1, MOST);
        }
        let time = self.take(self.each);
        Ok(Run { times: vec![time], bytes: vec![Some(self.bytes)] })
    }
}
