//! One head: softmax beside another mechanism with the same queries, keys and values.

use std::sync::Arc;

use regard_kernels::{AttentionOptions, Call, InputSizes, Layout, Mask, Mechanism, Operator, View, inputs::Fill};

/// Queries, keys and values of one causal head, `[N,D]` each.
#[derive(Clone, Debug)]
pub struct Head {
    /// Tokens `N`.
    pub tokens: usize,
    /// Width `D`.
    pub width: usize,
    /// Queries, keys, values.
    pub qkv: [Vec<f32>; 3],
}

/// What a mechanism makes of a head.
#[derive(Clone, Debug)]
pub struct Attended {
    /// The mechanism with its variant.
    pub label: String,
    /// Sizes of its support and features, as words; empty if it has none.
    pub sizes: String,
    /// Output of the kernel, `[N,D]`.
    pub out: Vec<f32>,
    operator: Arc<dyn Operator>,
    inputs: Vec<(Vec<f64>, Vec<usize>)>,
}

/// Softmax and a mechanism in numbers.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Softmax.
    pub softmax: Attended,
    /// The mechanism.
    pub other: Attended,
    /// Weights `[N,N]` of both, from their float64 twins.
    pub weights: [Vec<f64>; 2],
    /// Mean entropy of the rows of both, in nats.
    pub entropy: [f64; 2],
    /// `|out - exact| / |exact|` of the kernels' outputs, in Frobenius norms.
    pub error: f64,
    /// The same of the weights.
    pub weights_error: f64,
    /// Share of softmax's weight on the keys that the mechanism sees exactly, for mechanisms with a support.
    pub on_support: Option<f64>,
}

impl Head {
    /// The output of causal attention with these options; its `budget` is one for `N x N` entries. Parameters that
    /// a model would have learned are their defaults, random ones are drawn from `seed`.
    ///
    /// # Errors
    /// Options that do not fit together or a budget that is too small, and mechanisms that need tensors which this
    /// model does not have.
    pub fn attend(&self, options: &AttentionOptions, seed: u64) -> Result<Attended, String> {
        let words = |error: regard_kernels::Error| error.to_string();
        let (n, d) = (self.tokens, self.width);
        let mut options = AttentionOptions { heads: 1, key_value_heads: None, causal: true, ..options.clone() };
        options = options.within_budget(n, n, d).map_err(words)?;
        let operator = options.operator(Call { mask: Mask::causal(), ..Call::default() }).map_err(words)?;
        let sizes = InputSizes::new(Layout::HeadFirst, 1, n, 1, d);
        let mut inputs = Vec::new();
        for spec in options.inputs(&*operator, &sizes) {
            let place = ["q", "k", "v"].iter().position(|name| *name == spec.name);
            let own =
                place.map(|place| &self.qkv[place]).filter(|own| own.len() == spec.shape.iter().product::<usize>());
            let numbers: Vec<f64> = match own {
                Some(own) => own.iter().map(|x| f64::from(*x)).collect(),
                None if spec.fill == Fill::Given => {
                    return Err(format!("{} needs '{}', which this model does not have", options.label(), spec.name));
                }
                None => spec.numbers(seed).map_err(words)?.unwrap_or_default(),
            };
            inputs.push((numbers, spec.shape));
        }
        let shapes: Vec<&[usize]> = inputs.iter().map(|(_, shape)| &shape[..]).collect();
        let count = operator.out_shape(&shapes).map_err(words)?.iter().product();
        let narrow: Vec<Vec<f32>> = inputs.iter().map(|(data, _)| data.iter().map(|x| *x as f32).collect()).collect();
        let views: Vec<_> = narrow.iter().zip(&shapes).map(|(data, shape)| View::new(&data[..], shape)).collect();
        let mut out = vec![0.0; count];
        operator.forward(&views, &mut out);
        Ok(Attended { label: options.label(), sizes: options.sizes(), out, operator, inputs })
    }

    /// Softmax beside the mechanism of `options`.
    ///
    /// # Errors
    /// As for [`Head::attend`].
    pub fn compare(&self, options: &AttentionOptions, seed: u64) -> Result<Comparison, String> {
        let softmax = self.attend(&AttentionOptions::default(), seed)?;
        let other = self.attend(options, seed)?;
        let weights = [softmax.weights(), other.weights()];
        let on_support = options.uses_support().then(|| {
            // The same support alone: its weights are above zero where it is.
            let alone = AttentionOptions { mechanism: Mechanism::Sparse, budget: None, ..other.options() };
            let seen = self.attend(&alone, seed)?.weights();
            let mass = weights[0].iter().zip(&seen).filter(|(_, seen)| **seen > 0.0).map(|(weight, _)| weight);
            Ok::<f64, String>(mass.sum::<f64>() / self.tokens as f64)
        });
        Ok(Comparison {
            entropy: [0, 1].map(|i| entropy(&weights[i], self.tokens)),
            error: relative_error(&wide(&other.out), &wide(&softmax.out)),
            weights_error: relative_error(&weights[1], &weights[0]),
            on_support: on_support.transpose()?,
            softmax,
            other,
            weights,
        })
    }

    /// Relative error of the output beside softmax's.
    ///
    /// # Errors
    /// As for [`Head::attend`].
    pub fn error(&self, options: &AttentionOptions, seed: u64) -> Result<f64, String> {
        let exact = self.attend(&AttentionOptions::default(), seed)?.out;
        Ok(relative_error(&wide(&self.attend(options, seed)?.out), &wide(&exact)))
    }
}

impl Attended {
    /// Its weights `[N,N]`, from the float64 twin.
    pub fn weights(&self) -> Vec<f64> {
        let views: Vec<_> = self.inputs.iter().map(|(data, shape)| View::new(&data[..], &shape[..])).collect();
        let matrices = self.operator.weights(&views, 0, 0);
        matrices.first().map_or_else(Vec::new, |matrix| (0..matrix.queries).flat_map(|i| matrix.row(i)).collect())
    }

    /// Its options, with the sizes that the budget gave.
    fn options(&self) -> AttentionOptions {
        self.operator.attention().map(|(options, _)| options.clone()).unwrap_or_default()
    }
}

/// Mean of `-sum_j w_ij ln w_ij` over rows of `columns`.
fn entropy(weights: &[f64], columns: usize) -> f64 {
    let terms = weights.iter().filter(|w| **w > 0.0).map(|w| -w * w.ln());
    terms.sum::<f64>() / (weights.len() / columns.max(1)).max(1) as f64
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

/// `|seen - exact| / |exact|`; the norm itself if the exact one is 0.
fn relative_error(seen: &[f64], exact: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut seen.iter().zip(exact).map(|(a, b)| a - b));
    let size = norm(&mut exact.iter().copied());
    if size > 0.0 { difference / size } else { difference }
}

#[cfg(test)]
mod tests {
    use regard_kernels::{mechanism::Fraction, support::SupportKind};

    use super::*;

    fn head(tokens: usize) -> Head {
        let width = 8;
        let draw = |salt: usize| (0..tokens * width).map(|i| ((i * 7 + salt) as f32 * 0.37).sin()).collect();
        Head { tokens, width, qkv: [draw(1), draw(2), draw(3)] }
    }

    fn options(mechanism: Mechanism, kind: SupportKind) -> AttentionOptions {
        let mut options = AttentionOptions { mechanism, ..AttentionOptions::default() };
        options.support.kind = kind;
        options
    }

    #[test]
    fn weights_give_the_output_of_the_kernel() {
        let head = head(20);
        for options in [
            options(Mechanism::Softmax, SupportKind::Local),
            options(Mechanism::Gaussian, SupportKind::Local),
            options(Mechanism::Cosine, SupportKind::Local),
            options(Mechanism::Linear, SupportKind::Local),
            AttentionOptions {
                budget: Some(Fraction::new(0.5).unwrap()),
                ..options(Mechanism::Performer, SupportKind::Local)
            },
            AttentionOptions {
                budget: Some(Fraction::new(0.5).unwrap()),
                ..options(Mechanism::Scatterbrain, SupportKind::Local)
            },
            AttentionOptions {
                budget: Some(Fraction::new(0.5).unwrap()),
                ..options(Mechanism::Sparse, SupportKind::Smyrf)
            },
        ] {
            let compared = head.compare(&options, 3).unwrap();
            let weights = &compared.weights[1];
            for i in 0..20 {
                let sum: f64 = weights[i * 20..][..20].iter().sum();
                // A cluster may hold no key that is not still to come.
                let alone = sum == 0.0 && compared.other.label == "smyrf";
                assert!(alone || (sum - 1.0).abs() < 1e-9, "{} row {i}: {sum}", compared.other.label);
                for c in 0..8 {
                    let value = |j: usize| f64::from(head.qkv[2][j * 8 + c]);
                    let want: f64 = (0..20).map(|j| weights[i * 20 + j] * value(j)).sum();
                    let seen = f64::from(compared.other.out[i * 8 + c]);
                    assert!((seen - want).abs() < 1e-4, "{} ({i}, {c}): {seen}, {want}", compared.other.label);
                }
            }
        }
    }

    #[test]
    fn the_whole_budget_is_softmax_and_mass_grows_with_the_radius() {
        let head = head(32);
        let local = |budget: f64| {
            let budget = Some(Fraction::new(budget).unwrap());
            head.compare(&AttentionOptions { budget, ..options(Mechanism::Sparse, SupportKind::Local) }, 0).unwrap()
        };
        let whole = local(1.0);
        assert!(whole.error < 1e-6 && whole.weights_error < 1e-12);
        assert!((whole.on_support.unwrap() - 1.0).abs() < 1e-9);
        assert!((whole.entropy[0] - whole.entropy[1]).abs() < 1e-12);
        let [few, more] = [0.1, 0.4].map(local);
        assert_eq!((&few.other.sizes[..], &more.other.sizes[..]), ("radius 2", "radius 11"));
        assert!(few.on_support.unwrap() < more.on_support.unwrap() && more.on_support.unwrap() < 1.0);
        assert!(few.error > more.error && more.error > 0.0);
        assert_eq!(head.error(&options(Mechanism::Softmax, SupportKind::Local), 0).unwrap(), 0.0);
    }

    #[test]
    fn entropy_of_equal_weights_is_the_log_of_their_number() {
        assert!((entropy(&[0.25, 0.25, 0.25, 0.25, 1.0, 0.0, 0.0, 0.0], 4) - 0.5 * 4f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn what_a_head_does_not_have_is_named() {
        let error = head(8).attend(&options(Mechanism::Fastformer, SupportKind::Local), 0).unwrap_err();
        assert!(error.contains("fastformer needs 'w_"), "{error}");
        let error = head(8).attend(&options(Mechanism::Mgk, SupportKind::Local), 0).unwrap_err();
        assert!(error.contains("mgk needs 'k'"), "{error}");
        let budget = Some(Fraction::new(0.01).unwrap());
        let small = AttentionOptions { budget, ..options(Mechanism::Sparse, SupportKind::Local) };
        assert!(head(8).attend(&small, 0).unwrap_err().starts_with("budget is 0.01"));
    }
}
