//! Checks a kernel: outputs and gradients against those of its float64 twin, at a small size.

use regard_kernels::{
    AttentionOptions, Error, Mechanism, Role, Storage, View, mechanism::Combination, random::bits, support::SupportKind,
};
use serde::{Deserialize, Serialize};

use super::{
    Sizes,
    decode::decoder,
    inputs::{Tensor, Tensors},
    layer::beside_kernels,
    on_device::other_device,
    operator::Problem,
};

/// Largest difference that passes, relative to the largest element of a tensor.
///
/// The gradient of a parameter is a sum over tokens of terms of either sign. Where they happen to cancel, their roundings
/// do not: it is then measured against the largest element that such a sum has under other signs of the terms.
const BOUND: f64 = 1e-5;

/// The same on other devices than the CPU, whose functions and orders of sums are their own.
const DEVICE_BOUND: f64 = 5e-5;

/// Values of the twin below this are 0 up to its own rounding.
const VANISHING: f64 = 1e-12;
/// Choices of signs under which a sum that cancels is computed again: one of them may cancel as well, hardly all.
const SIGNS: u64 = 4;
/// Tokens per block if a layout fixes the number of blocks.
const BLOCK: usize = 8;

/// The largest difference that passes on the chosen device.
pub fn bound() -> f64 {
    if other_device().is_some() { DEVICE_BOUND } else { BOUND }
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Whether kernel and twin agree.
    pub passed: bool,
    /// Largest difference, relative to the largest element of its tensor; `None` if not finite.
    pub error: Option<f64>,
    /// The tensor that differs most.
    pub tensor: String,
}

impl Check {
    /// Result for differences by tensor.
    fn of(differences: impl IntoIterator<Item = (String, f64)>, bound: f64) -> Self {
        // NaN must not count as a small difference.
        let named = differences.into_iter().map(|(name, x)| (name, if x.is_nan() { f64::INFINITY } else { x }));
        let (tensor, error) =
            named.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_else(|| ("nothing".into(), f64::INFINITY));
        Self { passed: error <= bound, error: error.is_finite().then_some(error), tensor }
    }

    /// The worse of two.
    fn worse(self, other: Self) -> Self {
        let rank = |check: &Self| check.error.unwrap_or(f64::INFINITY);
        if rank(&other) > rank(&self) { other } else { self }
    }

    /// As a table cell or the end of a sentence: `ok, 2.1e-7` or `wrong, grad of k by 3.0e-2`.
    pub fn words(&self) -> String {
        match (self.passed, self.error) {
            (true, error) => format!("ok, {:.1e}", error.unwrap_or(0.0)),
            (false, Some(error)) => format!("wrong, {} by {error:.1e}", self.tensor),
            (false, None) => format!("wrong, {} is not finite", self.tensor),
        }
    }
}

/// Runs the mechanism of `options` on `tokens` tokens with heads of `head_width` channels against its float64 twin, forward
/// and backward.
///
/// # Errors
/// Options that do not fit each other or the sizes.
pub fn check(options: &AttentionOptions, tokens: usize, head_width: usize, seed: u64) -> Result<Check, Error> {
    each(options, |options| {
        let options = small(options, tokens, head_width)?;
        let sizes = sizes(&options, tokens, head_width);
        let problem = Problem::new(&options, sizes, &mut Tensors::new(seed))?;
        match other_device() {
            // Routed heads are no operator there; their kernel has been held against its twin.
            Some(device) if options.mechanism == Mechanism::Moa => {
                let pairs = beside_kernels(&options, sizes, seed, &device)?;
                Ok(Check::of(pairs.map(|(name, seen, want)| (name.into(), apart(&seen, &want))), bound()))
            }
            Some(device) => Ok(beside_twin(&problem, problem.on(&options, &device)?.both(), bound())),
            None => Ok(beside_twin(&problem, problem.both(), bound())),
        }
    })
}

/// Runs the decoder of `options` over `tokens` tokens one by one; the twin sees all at once.
///
/// # Errors
/// Options without a decode state, or that do not fit each other or the sizes.
pub(super) fn check_decoding(
    options: &AttentionOptions,
    tokens: usize,
    head_width: usize,
    seed: u64,
) -> Result<Check, Error> {
    let options = small(options, tokens, head_width)?;
    let sizes = sizes(&options, tokens, head_width);
    let problem = Problem::new(&options, sizes, &mut Tensors::new(seed))?;
    let mut state = decoder(problem.operator.as_ref(), &options, Storage::F32)?;
    let mut out = vec![f32::NAN; problem.grad_out.data.len()];
    for (at, out) in out.chunks_exact_mut(problem.grad_out.data.len() / sizes.length).enumerate() {
        let token: Vec<Tensor> =
            problem.inputs.iter().zip(&problem.specs).map(|(tensor, spec)| token_of(tensor, spec.role, at)).collect();
        state.step(&token.iter().map(Tensor::view).collect::<Vec<_>>(), out);
    }
    let want = problem.operator.reference(&doubles(&problem.inputs).iter().map(Double::view).collect::<Vec<_>>(), None);
    Ok(Check::of([("out".into(), apart(&out, &want.out))], BOUND))
}

/// Token `at` of an input of one batch row; parameters are passed whole.
fn token_of(tensor: &Tensor, role: Role, at: usize) -> Tensor {
    let Role::Data { axis } = role else { return tensor.clone() };
    let mut shape = tensor.shape.clone();
    let width = tensor.data.len() / shape[axis];
    shape[axis] = 1;
    Tensor { data: tensor.data[at * width..(at + 1) * width].into(), shape }
}

/// Checks the parts of options that no single operator covers: gated Scatterbrain exists only as a layer, which
/// combines the outputs of two.
fn each(options: &AttentionOptions, check: impl Fn(&AttentionOptions) -> Result<Check, Error>) -> Result<Check, Error> {
    let gated = options.scatterbrain.combination == Combination::Gated;
    if options.mechanism != Mechanism::Scatterbrain || !gated {
        return check(options);
    }
    let part = |mechanism| check(&AttentionOptions { mechanism, ..options.clone() });
    Ok(part(Mechanism::Sparse)?.worse(part(Mechanism::Performer)?))
}

/// The options for a short sequence: budget replaced by sizes, small blocks for a given layout.
fn small(options: &AttentionOptions, tokens: usize, head_width: usize) -> Result<AttentionOptions, Error> {
    let mut options = options.within_budget(tokens, tokens, head_width)?;
    if options.uses_support() && options.support.kind == SupportKind::Block {
        options.support.block = BLOCK;
    }
    Ok(options)
}

/// One batch row; as many tokens as a block layout has, if there is one.
fn sizes(options: &AttentionOptions, tokens: usize, head_width: usize) -> Sizes {
    let layout = options.support.layout.as_ref().filter(|_| options.uses_support());
    let blocks = layout.filter(|_| options.support.kind == SupportKind::Block).map(Vec::len);
    // The last block is partial.
    let length = blocks.map_or(tokens, |blocks| (blocks * BLOCK).saturating_sub(3).max(1));
    Sizes { length, batch: 1, heads: options.heads, head_width, threads: 0 }
}

/// Compares output and gradients with the twin.
fn beside_twin(problem: &Problem, (out, grads): (Vec<f32>, Vec<Option<Vec<f32>>>), bound: f64) -> Check {
    let Problem { operator, specs, inputs, grad_out } = problem;
    let (wide, wide_grad) = (doubles(inputs), double(grad_out));
    let views: Vec<View<f64>> = wide.iter().map(Double::view).collect();
    let twin = operator.reference(&views, Some(&wide_grad.data));
    let of_gradient = |(at, grad): (usize, &Option<Vec<f32>>)| {
        let want = &twin.grads[at];
        let mut difference = grad.as_ref().map_or(f64::INFINITY, |grad| apart(grad, want));
        if specs[at].role == Role::Parameter
            && difference > bound
            && difference.is_finite()
            && largest(want) > VANISHING
        {
            let terms = (0..SIGNS).map(|draw| largest(&under_signs(problem, &views, draw)[at])).fold(0.0, f64::max);
            difference *= (largest(want) / terms).min(1.0);
        }
        (format!("gradient of {}", specs[at].name), difference)
    };
    let learned = grads.iter().enumerate().filter(|(at, _)| specs[*at].role != Role::Constant);
    Check::of(std::iter::once(("output".into(), apart(&out, &twin.out))).chain(learned.map(of_gradient)), bound)
}

/// Gradients of the twin with the gradient of each token's output negated or not, at random: sums of the same terms
/// under other signs, since gradients are linear in that of the output.
fn under_signs(problem: &Problem, views: &[View<f64>], draw: u64) -> Vec<Vec<f64>> {
    let mut grad_out = double(&problem.grad_out).data;
    // Token first, in one batch row.
    let width = grad_out.len() / problem.grad_out.shape[1];
    for (token, row) in grad_out.chunks_exact_mut(width).enumerate() {
        if bits(draw, token as u32) & 1 == 1 {
            row.iter_mut().for_each(|x| *x = -*x);
        }
    }
    problem.operator.reference(views, Some(&grad_out)).grads
}

/// Largest magnitude.
fn largest(numbers: &[f64]) -> f64 {
    numbers.iter().fold(0.0f64, |most, x| most.max(x.abs()))
}

/// Largest difference relative to the largest element of `want`; infinite if the sizes differ.
fn apart(seen: &[f32], want: &[f64]) -> f64 {
    if seen.len() != want.len() {
        return f64::INFINITY;
    }
    let scale = largest(want);
    // A vanishing gradient, as that of a single component's prior, leaves only rounding errors.
    let scale = if scale < VANISHING { 1.0 } else { scale };
    let most = seen.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).abs());
    most.fold(0.0f64, |most, x| if x.is_nan() { f64::INFINITY } else { most.max(x) }) / scale
}

/// A tensor in double precision.
struct Double {
    data: Vec<f64>,
    shape: Vec<usize>,
}

impl Double {
    fn view(&self) -> View<'_, f64> {
        View::new(&self.data, &self.shape)
    }
}

fn double(tensor: &Tensor) -> Double {
    Double { data: tensor.data.iter().map(|x| f64::from(*x)).collect(), shape: tensor.shape.clone() }
}

fn doubles(tensors: &[Tensor]) -> Vec<Double> {
    tensors.iter().map(double).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use regard_kernels::{Operator, Reference, Saved, mechanism::KeyDesign};

    use super::*;

    /// An operator with one number of its output or of a gradient a little off, or a whole gradient by a factor.
    #[derive(Debug)]
    struct Off {
        right: Arc<dyn Operator>,
        output: f32,
        gradient: f32,
        scaled: Option<(&'static str, f32)>,
    }

    impl Operator for Off {
        fn inputs(&self) -> Vec<&'static str> {
            self.right.inputs()
        }

        fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
            self.right.out_shape(shapes)
        }

        fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
            let saved = self.right.forward(inputs, out);
            out[5] += self.output;
            saved
        }

        fn backward(
            &self,
            inputs: &[View<f32>],
            out: &[f32],
            saved: &Saved,
            grad_out: &[f32],
            wanted: &[bool],
        ) -> Vec<Option<Vec<f32>>> {
            let mut grads = self.right.backward(inputs, out, saved, grad_out, wanted);
            grads[1].as_mut().unwrap()[3] += self.gradient;
            if let Some((name, factor)) = self.scaled {
                let at = self.inputs().iter().position(|one| *one == name).unwrap();
                grads[at].as_mut().unwrap().iter_mut().for_each(|x| *x *= factor);
            }
            grads
        }

        fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
            self.right.reference(inputs, grad_out)
        }
    }

    fn judged(output: f32, gradient: f32) -> Check {
        let options = AttentionOptions::default();
        let problem = Problem::new(&options, sizes(&options, 9, 4), &mut Tensors::new(1)).unwrap();
        let operator = Arc::new(Off { right: problem.operator.clone(), output, gradient, scaled: None });
        let problem = Problem { operator, ..problem };
        beside_twin(&problem, problem.both(), BOUND)
    }

    #[test]
    fn one_wrong_number_is_seen_wherever_it_is() {
        let right = judged(0.0, 0.0);
        assert!(right.passed && right.words().starts_with("ok, "), "{right:?}");
        let output = judged(0.01, 0.0);
        assert!(!output.passed && output.words().starts_with("wrong, output by "), "{output:?}");
        let gradient = judged(0.0, 0.01);
        assert!(!gradient.passed && gradient.words().starts_with("wrong, gradient of k by "), "{gradient:?}");
        let nan = judged(f32::NAN, 0.0);
        assert!(!nan.passed && nan.words().contains("not finite"), "{nan:?}");
    }

    /// A mixture with shifted keys: its components differ little, and the terms of its prior's gradient cancel.
    fn shifted(mechanism: Mechanism, heads: usize, causal: bool) -> AttentionOptions {
        let mut options = AttentionOptions { mechanism, heads, causal, ..AttentionOptions::default() };
        options.keys.design = KeyDesign::Shifted;
        options
    }

    #[test]
    fn a_gradient_off_by_a_thousandth_is_seen_even_where_its_terms_cancel() {
        for (heads, seed) in (1..=2).flat_map(|heads| (1..=8).map(move |seed| (heads, seed))) {
            for (mechanism, causal) in
                [Mechanism::Mlk, Mechanism::Mgk].into_iter().flat_map(|m| [(m, false), (m, true)])
            {
                let options = shifted(mechanism, heads, causal);
                let at = format!("{mechanism}, {heads} heads, seed {seed}, causal {causal}");
                let of = |scaled| {
                    let problem = Problem::new(&options, sizes(&options, 150, 64), &mut Tensors::new(seed)).unwrap();
                    let operator =
                        Arc::new(Off { right: problem.operator.clone(), output: 0.0, gradient: 0.0, scaled });
                    let problem = Problem { operator, ..problem };
                    beside_twin(&problem, problem.both(), BOUND)
                };
                let right = of(None);
                assert!(right.passed, "{at}: {}", right.words());
                for name in ["log_prior", "shift"] {
                    let wrong = of(Some((name, 1.001)));
                    let what = format!("wrong, gradient of {name} by ");
                    let words = wrong.words();
                    assert!(words.starts_with(&what), "{at}, {name}: {words}");
                }
            }
        }
    }

    #[test]
    fn every_mechanism_agrees_with_its_twin() {
        for &mechanism in Mechanism::ALL {
            for (heads, causal) in [(2, false), (8, true)] {
                let options = AttentionOptions { mechanism, heads, causal, ..AttentionOptions::default() };
                let check = check(&options, 70, 24, 3).unwrap();
                assert!(check.passed, "{mechanism}, causal {causal}: {}", check.words());
            }
        }
        let mut gated = AttentionOptions { mechanism: Mechanism::Scatterbrain, ..AttentionOptions::default() };
        gated.scatterbrain.combination = Combination::Gated;
        assert!(check(&gated, 70, 24, 3).unwrap().passed);
    }

    #[test]
    fn decoders_agree_with_the_whole_causal_form() {
        for &mechanism in Mechanism::ALL {
            let options = AttentionOptions { mechanism, heads: 2, causal: true, ..AttentionOptions::default() };
            let check = check_decoding(&options, 40, 8, 3).unwrap();
            assert!(check.passed, "{mechanism}: {}", check.words());
        }
        let mut smyrf = AttentionOptions { mechanism: Mechanism::Sparse, causal: true, ..AttentionOptions::default() };
        smyrf.support.kind = SupportKind::Smyrf;
        let error = check_decoding(&smyrf, 40, 8, 3).unwrap_err().to_string();
        assert!(error.contains("is smyrf") && error.contains("depends on all tokens"), "{error}");
        for mechanism in [Mechanism::Sparse, Mechanism::Scatterbrain] {
            let mut block = AttentionOptions { mechanism, heads: 2, causal: true, ..AttentionOptions::default() };
            (block.support.kind, block.support.block) = (SupportKind::Block, 9);
            block.support.layout = Some(["100000", "110000", "001000", "101100", "010100"].map(String::from).to_vec());
            let check = check_decoding(&block, 40, 8, 3).unwrap();
            assert!(check.passed, "{mechanism}: {}", check.words());
        }
    }
}
