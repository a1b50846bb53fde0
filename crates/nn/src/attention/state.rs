//! State of a layer: that of decoding token by token, and buffers.

use burn::module::RunningState;
use burn::tensor::{Device, Tensor, TensorData};
use regard_kernels::{Decode, Error, Mask};

use crate::{
    blocks::Context,
    ops::{Host, Inputs},
};

/// What a layer keeps of the previous tokens.
#[derive(Debug)]
pub struct DecodeState {
    decoder: Box<dyn Decode>,
    position: usize,
}

impl DecodeState {
    pub(crate) fn new(decoder: Box<dyn Decode>) -> Self {
        Self { decoder, position: 0 }
    }

    /// Tokens taken so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Bytes that the state holds now.
    pub fn bytes(&self) -> usize {
        self.decoder.bytes()
    }

    /// Whether `tokens` more tokens fit into the state.
    ///
    /// # Errors
    /// Tokens beyond the block layout of the support; other states take any number.
    pub fn check(&self, tokens: usize) -> Result<(), Error> {
        self.decoder.check(tokens)
    }

    /// Batch row `i` continues from the state of row `rows[i]`; see [`Decode::reorder`].
    ///
    /// # Panics
    /// If a row does not exist.
    pub fn reorder(&mut self, rows: &[usize]) {
        self.decoder.reorder(rows);
    }

    /// The output, of `shape`, for the next token, whose inputs are in the order of the operator.
    pub(crate) fn step<const D: usize>(&mut self, inputs: &Inputs, shape: [usize; D], device: &Device) -> Tensor<D> {
        let host: Vec<Host> = inputs.iter().map(|(_, input)| input.into()).collect();
        let views: Vec<_> = host.iter().map(Host::view).collect();
        let mut out = vec![0.0; shape.iter().product()];
        self.decoder.step(&views, &mut out);
        self.position += 1;
        Tensor::from_data(TensorData::new(out, shape), device)
    }

    /// The heads' outputs `[B,1,H,D]` for the next token, of values as wide as its queries.
    pub(crate) fn step_heads(&mut self, inputs: &Inputs) -> Tensor<4> {
        let q = inputs.tensor::<4>("q");
        self.step(inputs, q.dims(), &q.device())
    }

    /// The same `[B,N,H,D]` for the next `N` tokens. On a fresh state the tokens attend to each other in one call, by `whole`
    /// under `mask`, and are then added to the state.
    pub(crate) fn advance(
        &mut self,
        inputs: &Inputs,
        mask: &Mask,
        whole: impl FnOnce(&Mask, &Context) -> Tensor<4>,
    ) -> Tensor<4> {
        let tokens = inputs.tensor::<4>("q").dims()[1];
        if tokens == 1 {
            return self.step_heads(inputs);
        }
        if self.position > 0 {
            let each = (0..tokens).map(|token| self.step_heads(&inputs.token(token)));
            return Tensor::cat(each.collect(), 1);
        }
        let out = whole(mask, &Context::evaluation());
        let host: Vec<(bool, Host)> =
            inputs.iter().map(|(name, input)| (Inputs::is_data(name), input.into())).collect();
        let mut unused = vec![0.0; out.dims()[0] * out.dims()[2] * out.dims()[3]];
        for token in 0..tokens {
            let row = |(data, input): &(bool, Host)| data.then(|| token_of(input, token, tokens));
            let rows: Vec<Option<Host>> = host.iter().map(row).collect();
            // Parameters are the same for every token.
            let views: Vec<_> =
                rows.iter().zip(&host).map(|(row, (_, whole))| row.as_ref().unwrap_or(whole).view()).collect();
            self.decoder.absorb(&views, &mut unused);
        }
        self.position = tokens;
        out
    }
}

/// Row `token` of every batch row of an input that has a row for each of `tokens` tokens.
fn token_of(input: &Host, token: usize, tokens: usize) -> Host {
    let width: usize = input.shape[2..].iter().product();
    let rows = input.data.chunks_exact(tokens * width).flat_map(|row| &row[token * width..][..width]);
    let mut shape = input.shape.clone();
    shape[1] = 1;
    Host { data: rows.copied().collect(), shape }
}

/// Sets a buffer immediately: [`RunningState`] alone lags one update behind.
pub(crate) fn set<const D: usize>(buffer: &RunningState<Tensor<D>>, value: Tensor<D>) {
    let device = buffer.value().device();
    buffer.update(value.to_device(&device));
    buffer.value_sync();
}
