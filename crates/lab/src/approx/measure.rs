//! Errors of every method on every head.

use rayon::prelude::*;
use regard_kernels::{AttentionOptions, Error, random::substream, sparse_share_for_entropy};
use regard_metrics::Correlation;
use regard_report::{Cell, Sample};
use serde::Serialize;

use super::{
    cost::{Cost, cost},
    dense::Dense,
    entries::{EntryErrors, Tally},
    head::Head,
    method::{Estimator, Method},
};

/// A measurement plan.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// The matrices, grouped.
    pub heads: &'a [Head],
    /// The methods, in the order of the tables.
    pub methods: &'a [Method],
    /// Budget, split, and further options of the methods.
    pub options: &'a AttentionOptions,
    /// Splits the budget by the mean row entropy of each matrix instead of by `scatterbrain.sparse_share`.
    pub split_by_entropy: bool,
    /// Random draws of each method on each matrix, at least 1.
    pub draws: usize,
    /// Seed of the draws.
    pub seed: u64,
}

/// Mean over matrices, of each the mean over its random draws; over the draws where there is one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// Its standard error; `None` for a single value.
    pub standard_error: Option<f64>,
    /// Number of values.
    pub count: usize,
}

impl Mean {
    /// Mean of the finite values; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().filter(|x| x.is_finite()).collect();
        let sample = Sample::of(&values);
        let standard_error = sample.variance_of_mean().map(f64::sqrt);
        (!values.is_empty()).then_some(Self { mean: sample.mean, standard_error, count: sample.count })
    }
}

/// With its standard error.
impl From<Mean> for Cell {
    fn from(mean: Mean) -> Self {
        Self::Estimate { mean: mean.mean, deviation: mean.standard_error }
    }
}

/// One method on one matrix, all draws together.
#[derive(Clone, Debug, Serialize)]
pub struct MatrixErrors {
    /// The method.
    pub method: Method,
    /// Relative Frobenius errors of the normalised matrix `A`, one per draw.
    pub matrix: Vec<f64>,
    /// Relative Frobenius errors of `A V`.
    pub output: Vec<f64>,
    /// Relative Frobenius errors of `exp(tau q.k)`, the subject of theorem 1; none for robust PCA.
    pub unnormalised: Vec<f64>,
}

/// One matrix.
#[derive(Clone, Debug, Serialize)]
pub struct Matrix {
    /// The group.
    pub group: String,
    /// Mean entropy of its rows in nats.
    pub entropy: f64,
    /// Fraction of the budget for the support.
    pub sparse_share: f64,
    /// Errors by method.
    pub errors: Vec<MatrixErrors>,
}

/// One method over a group of matrices.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The group.
    pub group: String,
    /// The method.
    pub method: Method,
    /// Sizes on the first matrix of the group, as text.
    pub sizes: String,
    /// Mean row entropy of the matrices.
    pub entropy: f64,
    /// Relative Frobenius error of `A`.
    pub matrix: Option<Mean>,
    /// Relative Frobenius error of `A V`.
    pub output: Option<Mean>,
    /// Relative Frobenius error of `exp(tau q.k)`.
    pub unnormalised: Option<Mean>,
    /// Time and memory of the kernel on the first matrix of the group; none for oracles.
    pub cost: Option<Cost>,
}

/// How the errors of two methods are correlated across matrices.
#[derive(Clone, Debug, Serialize)]
pub struct Related {
    /// The sparse one.
    pub sparse: Method,
    /// The low-rank one.
    pub low_rank: Method,
    /// Number of matrices.
    pub matrices: usize,
    /// Sparse and low-rank error of each matrix.
    pub pairs: Vec<(f64, f64)>,
    /// The measures; `None` for fewer than three matrices.
    pub correlation: Option<Correlation>,
}

/// All results.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Every matrix.
    pub matrices: Vec<Matrix>,
    /// Every group and method.
    pub rows: Vec<Row>,
    /// Correlations of sparse and low-rank errors.
    pub related: Vec<Related>,
    /// Errors of single entries against `tau q.k`, by group.
    pub entries: Vec<EntryErrors>,
}

/// Measures every method on every matrix. Results, except times, depend only on the plan, not on the number of threads.
///
/// # Errors
/// A budget too small for a method, options that do not fit.
pub fn measure(plan: &Plan, done: &(dyn Fn() + Sync)) -> Result<Measured, Error> {
    let mut groups: Vec<&str> = plan.heads.iter().map(|head| head.group.as_str()).collect();
    groups.dedup();
    // Option errors are the same for all heads of a size: detect them before starting.
    for head in plan.heads {
        let base = plan.base(head, 0.5);
        plan.methods.iter().try_for_each(|method| Estimator::new(*method, head, &base, 0).map(drop))?;
    }
    let tallies: Vec<Tally> = groups
        .iter()
        .map(|group| Tally::over(plan.heads.iter().filter(|head| head.group == *group), plan.methods))
        .collect();
    let measured: Vec<(Matrix, Tally)> = plan
        .heads
        .par_iter()
        .enumerate()
        .map(|(number, head)| {
            let group = groups.iter().position(|group| *group == head.group).expect("a group of the list");
            let matrix = one(plan, number, head, tallies[group].clone());
            done();
            matrix
        })
        .collect::<Result<_, _>>()?;
    let mut entries = tallies;
    for (matrix, tally) in &measured {
        let group = groups.iter().position(|group| *group == matrix.group).expect("a group of the list");
        entries[group].add(tally);
    }
    let matrices: Vec<Matrix> = measured.into_iter().map(|(matrix, _)| matrix).collect();
    let mut rows = Vec::new();
    for group in &groups {
        let head = plan.heads.iter().find(|head| head.group == *group).expect("a head of every group");
        let own: Vec<&Matrix> = matrices.iter().filter(|matrix| matrix.group == *group).collect();
        for (n, &method) in plan.methods.iter().enumerate() {
            let estimator = Estimator::new(method, head, &plan.base(head, own[0].sparse_share), plan.seed)?;
            let mean = |part: fn(&MatrixErrors) -> &Vec<f64>| match own[..] {
                [one] => Mean::of(part(&one.errors[n]).iter().copied()),
                // Draws of one matrix are no further matrices.
                _ => Mean::of(
                    own.iter()
                        .filter_map(|matrix| Mean::of(part(&matrix.errors[n]).iter().copied()).map(|mean| mean.mean)),
                ),
            };
            rows.push(Row {
                group: (*group).to_owned(),
                method,
                sizes: estimator.sizes(),
                entropy: own.iter().map(|matrix| matrix.entropy).sum::<f64>() / own.len() as f64,
                matrix: mean(|errors| &errors.matrix),
                output: mean(|errors| &errors.output),
                unnormalised: mean(|errors| &errors.unnormalised),
                cost: cost(&estimator)?,
            });
        }
    }
    let related = [(Method::Smyrf, Method::Performer), (Method::TopK, Method::Svd)];
    let related = related.into_iter().filter_map(|(sparse, low_rank)| relate(&matrices, sparse, low_rank));
    let entries = groups.iter().zip(entries).filter_map(|(group, tally)| tally.errors(group));
    Ok(Measured { related: related.collect(), entries: entries.collect(), matrices, rows })
}

impl Plan<'_> {
    /// Options with the split of the budget filled in.
    fn base(&self, head: &Head, sparse_share: f64) -> AttentionOptions {
        let mut base = AttentionOptions { causal: head.causal, ..self.options.clone() };
        if self.split_by_entropy {
            base.scatterbrain.sparse_share = sparse_share;
        }
        base
    }
}

/// All methods on one matrix.
fn one(plan: &Plan, number: usize, head: &Head, mut tally: Tally) -> Result<(Matrix, Tally), Error> {
    let logits = head.logits();
    let exact = logits.softmax();
    let output = exact.product(&head.values, false);
    let entropy = exact.mean_row_entropy();
    let share = if plan.split_by_entropy {
        sparse_share_for_entropy(entropy, head.keys.rows)
    } else {
        plan.options.scatterbrain.sparse_share
    };
    let base = plan.base(head, share);
    // The largest entry is 1: relative errors are those of exp(tau q.k) itself.
    let top = logits.data.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let plain = logits.map(|x| (x - top).exp());
    let mut errors = Vec::new();
    for &method in plan.methods {
        let mut own = MatrixErrors { method, matrix: Vec::new(), output: Vec::new(), unnormalised: Vec::new() };
        let draws = if method.is_drawn() { plan.draws as u64 } else { 1 };
        for draw in 0..draws {
            // Methods share draws: Scatterbrain has the same clusters as SMYRF if their sizes are equal.
            let key = substream(substream(plan.seed, number as u64), draw);
            let estimator = Estimator::new(method, head, &base, key)?;
            let Some(estimate) = estimator.estimate(&exact) else { continue };
            own.matrix.push(estimate.weights.relative_error(&exact));
            own.output.push(estimate.weights.product(&head.values, false).relative_error(&output));
            match (estimate.logs, method) {
                (Some(logs), _) => {
                    own.unnormalised.push(logs.map(|x| (x - top).exp()).relative_error(&plain));
                    tally.take(method, &logits, &logs);
                }
                (None, Method::TopK | Method::Svd) => {
                    own.unnormalised
                        .extend(estimator.estimate(&plain).map(|e| Dense::relative_error(&e.weights, &plain)));
                }
                (None, _) => {}
            }
        }
        errors.push(own);
    }
    Ok((Matrix { group: head.group.clone(), entropy, sparse_share: share, errors }, tally))
}

/// The errors of two methods, if both were measured.
fn relate(matrices: &[Matrix], sparse: Method, low_rank: Method) -> Option<Related> {
    let error = |matrix: &Matrix, method| {
        let errors = matrix.errors.iter().find(|errors| errors.method == method)?;
        Mean::of(errors.matrix.iter().copied()).map(|mean| mean.mean)
    };
    let pairs: Vec<(f64, f64)> =
        matrices.iter().filter_map(|matrix| error(matrix, sparse).zip(error(matrix, low_rank))).collect();
    if pairs.is_empty() {
        return None;
    }
    Some(Related { sparse, low_rank, matrices: pairs.len(), correlation: Correlation::of(&pairs), pairs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_have_standard_errors() {
        let mean = Mean::of([1.0, 3.0, f64::NAN, 5.0]).unwrap();
        assert_eq!((mean.mean, mean.count), (3.0, 3));
        assert!((mean.standard_error.unwrap() - 2.0 / 3f64.sqrt()).abs() < 1e-15);
        assert_eq!(Mean::of([2.0]).unwrap().standard_error, None);
        assert_eq!(Mean::of([f64::INFINITY]), None);
    }
}
