//! Methods that approximate an attention matrix, all within one budget.

use std::{fmt, str::FromStr, sync::Arc};

use regard_kernels::{
    AttentionOptions, Call, Error, InputSizes, InputSpec, Layout, Mask, Mechanism, Operator, Scatterbrain, View,
    features::FeatureKind,
    mechanism::Combination,
    reference::scatterbrain::{log_features, support},
    support::SupportKind,
};
use serde::Serialize;

use super::{
    dense::Dense,
    head::Head,
    oracle::{keep_in_rows, robust_pca, truncate_to_rank},
};

/// Iterations of robust PCA on one matrix: the entries kept within a budget are stable long before the last digits
/// converge.
const ROBUST_PCA_ROUNDS: usize = 300;

/// A method that approximates an attention matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// The matrix itself.
    Softmax,
    /// Oracle: the largest entries of each row.
    TopK,
    /// Oracle: the largest singular values.
    Svd,
    /// Oracle: robust PCA, with the rank and the number of entries of Scatterbrain.
    RobustPca,
    /// Keys within a radius.
    Local,
    /// Clusters of SMYRF.
    Smyrf,
    /// Chunks of Reformer, where queries are the keys.
    Lsh,
    /// Random features.
    Performer,
    /// Exact within a radius, features outside.
    ScatterbrainLocal,
    /// Exact in clusters of SMYRF, features outside.
    #[serde(rename = "scatterbrain-smyrf")]
    Scatterbrain,
    /// The same, features summed over the clusters too.
    #[serde(rename = "naive-smyrf")]
    Naive,
}

impl Method {
    /// All of them, oracles first.
    pub const ALL: [Self; 11] = [
        Self::Softmax,
        Self::TopK,
        Self::Svd,
        Self::RobustPca,
        Self::Local,
        Self::Smyrf,
        Self::Lsh,
        Self::Performer,
        Self::ScatterbrainLocal,
        Self::Scatterbrain,
        Self::Naive,
    ];

    /// Its name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Softmax => "softmax",
            Self::TopK => "top-k",
            Self::Svd => "svd",
            Self::RobustPca => "robust-pca",
            Self::Local => "local",
            Self::Smyrf => "smyrf",
            Self::Lsh => "lsh",
            Self::Performer => "performer",
            Self::ScatterbrainLocal => "scatterbrain-local",
            Self::Scatterbrain => "scatterbrain-smyrf",
            Self::Naive => "naive-smyrf",
        }
    }

    /// Whether it needs the whole matrix, and so saves no time or memory.
    pub fn is_oracle(self) -> bool {
        matches!(self, Self::TopK | Self::Svd | Self::RobustPca)
    }

    /// Whether it is random, so that draws differ.
    pub fn is_drawn(self) -> bool {
        !self.is_oracle() && !matches!(self, Self::Softmax | Self::Local)
    }

    /// Options of the kernel, not yet sized by the budget in `base`; those of Scatterbrain for robust PCA, none for other
    /// oracles.
    pub fn options(self, base: &AttentionOptions) -> Option<AttentionOptions> {
        let (mechanism, kind) = match self {
            Self::TopK | Self::Svd => return None,
            Self::Softmax => (Mechanism::Softmax, SupportKind::Local),
            Self::Local => (Mechanism::Sparse, SupportKind::Local),
            Self::Smyrf => (Mechanism::Sparse, SupportKind::Smyrf),
            Self::Lsh => (Mechanism::Sparse, SupportKind::Lsh),
            Self::Performer => (Mechanism::Performer, SupportKind::Local),
            Self::ScatterbrainLocal => (Mechanism::Scatterbrain, SupportKind::Local),
            Self::Scatterbrain | Self::Naive | Self::RobustPca => (Mechanism::Scatterbrain, SupportKind::Smyrf),
        };
        let mut options = AttentionOptions { mechanism, heads: 1, key_value_heads: None, ..base.clone() };
        options.support.kind = kind;
        options.scatterbrain.combination =
            if self == Self::Naive { Combination::Naive } else { Combination::Corrected };
        Some(options)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Method {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|method| method.name() == name)
            .ok_or_else(|| Error::option("method", format!("'{name}'"), Self::ALL.map(Self::name).join(", ")))
    }
}

/// A method applied to one head: its sizes and its random draws.
#[derive(Clone, Debug)]
pub struct Estimator<'a> {
    method: Method,
    head: &'a Head,
    /// Sized; those of Scatterbrain for robust PCA.
    options: Option<AttentionOptions>,
    /// Entries per row.
    budget: f64,
    /// Seed of the draws.
    key: u64,
}

/// The approximation of a matrix.
#[derive(Clone, Debug)]
pub struct Estimate {
    /// The weights `A [N,S]`: rows of a mechanism sum to 1, those of an oracle only approximately.
    pub weights: Dense,
    /// Log estimates of `exp(tau q.k)`, negative infinity for 0; none for oracles.
    pub logs: Option<Dense>,
}

impl<'a> Estimator<'a> {
    /// `base` holds the budget, the split and the options of the method.
    ///
    /// # Errors
    /// A budget too small, options that do not fit each other, LSH if keys differ from queries.
    pub fn new(method: Method, head: &'a Head, base: &AttentionOptions, key: u64) -> Result<Self, Error> {
        let (n, s, d) = (head.queries.rows, head.keys.rows, head.queries.columns);
        if method == Method::Lsh && !head.shares_keys() {
            return Err(Error::option("method", "'lsh'", "another: with LSH the queries are the keys"));
        }
        let base = AttentionOptions { causal: head.causal, window: None, ..base.clone() };
        let options = method.options(&base).map(|options| options.within_budget(n, s, d)).transpose()?;
        if let Some(options) = &options {
            options.check()?;
        }
        let budget = base.budget.map_or(s as f64, |budget| budget.value() * s as f64 * (1.0 + 1e-12));
        Ok(Self { method, head, options, budget, key })
    }

    /// Sizes as text.
    pub fn sizes(&self) -> String {
        let share = self.budget.floor();
        match (self.method, &self.options) {
            (Method::TopK, _) => format!("{share} a row"),
            (Method::Svd, _) => format!("rank {share}"),
            (Method::RobustPca, Some(_)) => format!("{} a row, rank {}", self.entries(), self.rank()),
            (_, Some(options)) => options.sizes(),
            _ => String::new(),
        }
    }

    /// Features per row.
    fn rank(&self) -> usize {
        self.options.as_ref().map_or(0, |options| options.features.count(self.head.queries.columns))
    }

    /// Entries of the support per row, within the budget.
    fn entries(&self) -> usize {
        let options = self.options.as_ref();
        options.map_or(0, |options| (options.scatterbrain.sparse_share * self.budget).floor() as usize)
    }

    /// The estimate of `exact`, the weights of the head. `None` if an oracle did not converge.
    pub fn estimate(&self, exact: &Dense) -> Option<Estimate> {
        let oracle = |weights| Some(Estimate { weights, logs: None });
        match self.method {
            Method::TopK => oracle(keep_in_rows(exact, self.budget as usize)),
            Method::Svd => oracle(truncate_to_rank(exact, self.budget as usize)?),
            Method::RobustPca => {
                oracle(robust_pca(exact, ROBUST_PCA_ROUNDS)?.within(self.rank(), self.entries() * exact.rows)?)
            }
            _ => {
                let logs = self.logs();
                Some(Estimate { weights: logs.softmax(), logs: Some(logs) })
            }
        }
    }

    /// Logarithms of the estimates of `exp(tau q.k)`, as in the float64 twin.
    fn logs(&self) -> Dense {
        let options = self.options.as_ref().expect("a mechanism has options");
        if self.method == Method::Softmax {
            return self.head.logits();
        }
        let inputs = self.inputs();
        let views: Vec<View<f64>> = inputs.iter().map(|(_, data, shape)| View::new(data, shape)).collect();
        let operator = Scatterbrain {
            layout: Layout::HeadFirst,
            mask: self.mask(),
            scale: Some(self.head.scale),
            support: options.uses_support().then(|| options.support.clone()),
            features: options.uses_features().then_some(options.features.kind),
            naive: self.method == Method::Naive,
        };
        let on_support = support(&operator, &views);
        let keys = if self.method == Method::Lsh { unit_rows(&self.head.keys) } else { self.head.keys.clone() };
        let exact = self.head.logits_with(&keys);
        let projection = inputs.iter().find(|(name, ..)| *name == "projection").map_or(&[][..], |(_, data, _)| data);
        let features = operator.features.map(|kind| self.log_kernel(kind, projection, &keys));
        Dense::from_fn(exact.rows, exact.columns, |i, j| {
            let at = i * exact.columns + j;
            let low_rank = features.as_ref().filter(|_| self.head.sees(i, j)).map(|logs| logs.data[at]);
            match (on_support[at], low_rank) {
                (true, Some(low_rank)) if operator.naive => log_add(exact.data[at], low_rank),
                (true, _) => exact.data[at],
                (false, low_rank) => low_rank.unwrap_or(f64::NEG_INFINITY),
            }
        })
    }

    /// `ln phi(q_i).phi(k_j)` of all pairs.
    fn log_kernel(&self, kind: FeatureKind, projection: &[f64], keys: &Dense) -> Dense {
        let logs = |x: &Dense| {
            let features: Vec<Vec<f64>> =
                (0..x.rows).map(|t| log_features(kind, projection, self.head.scale, x.row(t))).collect();
            let tops: Vec<f64> =
                features.iter().map(|row| row.iter().copied().fold(f64::NEG_INFINITY, f64::max)).collect();
            let scaled = Dense::from_fn(x.rows, features[0].len(), |t, a| (features[t][a] - tops[t]).exp());
            (features, tops, scaled)
        };
        let ((logs_q, tops_q, q), (logs_k, tops_k, k)) = (logs(&self.head.queries), logs(keys));
        let product = q.product(&k, true);
        Dense::from_fn(product.rows, product.columns, |i, j| {
            let scaled = product.data[i * product.columns + j];
            if scaled > 1e-280 {
                return scaled.ln() + tops_q[i] + tops_k[j];
            }
            // Features whose largest terms do not coincide: sum them in log space.
            let sums: Vec<f64> = logs_q[i].iter().zip(&logs_k[j]).map(|(a, b)| a + b).collect();
            let top = sums.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            top + sums.iter().map(|x| (x - top).exp()).sum::<f64>().ln()
        })
    }

    /// The kernel for tensors `[1,1,N,D]`; none for oracles.
    pub fn operator(&self) -> Option<Result<Arc<dyn Operator>, Error>> {
        let options = self.options.as_ref().filter(|_| !self.method.is_oracle())?;
        let scale = Some(self.head.scale);
        Some(options.operator(Call { layout: Layout::HeadFirst, mask: self.mask(), scale, ..Call::default() }))
    }

    /// Inputs of the kernel and of the twin, by name, in order; none for oracles.
    fn inputs(&self) -> Vec<(&'static str, Vec<f64>, Vec<usize>)> {
        let (Some(options), Some(Ok(operator))) = (&self.options, self.operator()) else { return Vec::new() };
        let (queries, keys) = (&self.head.queries, &self.head.keys);
        let sizes = InputSizes {
            keys: keys.rows,
            value_width: self.head.values.columns,
            ..InputSizes::new(Layout::HeadFirst, 1, queries.rows, 1, queries.columns)
        };
        let input = |spec: InputSpec| {
            let data = match spec.name {
                "q" => Some(queries.data.clone()),
                "k" => Some(keys.data.clone()),
                "v" => Some(self.head.values.data.clone()),
                _ => spec.numbers_under(self.key).expect("sizes within a budget"),
            };
            (spec.name, data.expect("tokens and draws are all there is"), spec.shape)
        };
        options.inputs(&*operator, &sizes).into_iter().map(input).collect()
    }

    /// Inputs of the kernel and of the twin, in order.
    pub fn tensors(&self) -> Vec<(Vec<f64>, Vec<usize>)> {
        self.inputs().into_iter().map(|(_, data, shape)| (data, shape)).collect()
    }

    fn mask(&self) -> Mask {
        if self.head.causal { Mask::causal() } else { Mask::none() }
    }
}

/// Rows normalised to unit norm; zero rows stay zero.
fn unit_rows(matrix: &Dense) -> Dense {
    let norms: Vec<f64> = (0..matrix.rows).map(|i| matrix.row(i).iter().map(|x| x * x).sum::<f64>().sqrt()).collect();
    Dense::from_fn(matrix.rows, matrix.columns, |i, j| if norms[i] > 0.0 { matrix.row(i)[j] / norms[i] } else { 0.0 })
}

/// `ln(e^x + e^y)`.
fn log_add(x: f64, y: f64) -> f64 {
    let top = x.max(y);
    if top.is_finite() { top + ((x - top).exp() + (y - top).exp()).ln() } else { top }
}

#[cfg(test)]
mod tests {
    use regard_kernels::{mechanism::Fraction, reference::scatterbrain::matrix};

    use super::*;
    use crate::approx::process::Process;

    fn base() -> AttentionOptions {
        AttentionOptions { budget: Some(Fraction::new(0.25).unwrap()), ..AttentionOptions::default() }
    }

    fn head(scale: f64, causal: bool) -> Head {
        let process = Process { tokens: 48, width: 8, clusters: 6, spread: 0.4, seed: 1 };
        Head { causal, ..process.head(scale, 0) }
    }

    /// Weights equal those of the twin, at high temperature and at one so low that feature products underflow.
    #[test]
    fn estimates_are_those_of_the_twin() {
        let methods = Method::ALL.into_iter().filter(|method| !method.is_oracle() && *method != Method::Softmax);
        for method in methods {
            for (scale, causal) in [(1.0, false), (3.0, true), (900.0, false)] {
                if method == Method::Lsh && causal {
                    continue;
                }
                let head = head(scale, causal);
                let estimator = Estimator::new(method, &head, &base(), 7).unwrap();
                let options = estimator.options.clone().unwrap();
                let twin = Scatterbrain {
                    layout: Layout::HeadFirst,
                    mask: estimator.mask(),
                    scale: Some(scale),
                    support: options.uses_support().then(|| options.support.clone()),
                    features: options.uses_features().then_some(options.features.kind),
                    naive: method == Method::Naive,
                };
                let tensors = estimator.tensors();
                let views: Vec<_> = tensors.iter().map(|(data, shape)| View::new(data, shape)).collect();
                let want = Dense::new(48, 48, matrix(&twin, &views));
                let seen = estimator.estimate(&head.logits().softmax()).unwrap().weights;
                let error = seen.zip(&want, |x, y| (x - y).abs()).data.into_iter().fold(0.0, f64::max);
                assert!(error < 1e-10, "{method} at {scale}: {error:e}");
            }
        }
    }

    #[test]
    fn kernels_give_the_output_of_the_estimate() {
        let head = head(2.0, false);
        for method in Method::ALL.into_iter().filter(|method| !method.is_oracle()) {
            let estimator = Estimator::new(method, &head, &base(), 7).unwrap();
            let tensors = estimator.tensors();
            let data: Vec<Vec<f32>> =
                tensors.iter().map(|(data, _)| data.iter().map(|x| *x as f32).collect()).collect();
            let views: Vec<_> = data.iter().zip(&tensors).map(|(data, (_, shape))| View::new(data, shape)).collect();
            let mut out = vec![f32::NAN; 48 * 8];
            estimator.operator().unwrap().unwrap().forward(&views, &mut out);
            let weights = estimator.estimate(&head.logits().softmax()).unwrap().weights;
            let seen = Dense::new(48, 8, out.into_iter().map(f64::from).collect());
            let error = seen.relative_error(&weights.product(&head.values, false));
            assert!(error < 1e-4, "{method}: {error:e}");
        }
    }

    #[test]
    fn budgets_are_spent_alike() {
        let head = head(2.0, false);
        let sizes = |method| Estimator::new(method, &head, &base(), 7).unwrap().sizes();
        assert_eq!(sizes(Method::TopK), "12 a row");
        assert_eq!(sizes(Method::Svd), "rank 12");
        // 9 entries and 3 features: hyperbolic ones come in pairs.
        assert_eq!(sizes(Method::RobustPca), "9 a row, rank 2");
        assert_eq!(sizes(Method::Scatterbrain), "2 rounds, clusters of 4, 1 rows");
        assert_eq!(sizes(Method::Performer), "6 rows");
        let other = Head { keys: head.values.clone(), ..head.clone() };
        assert!(Estimator::new(Method::Lsh, &other, &base(), 7).is_err());
        assert!("smurf".parse::<Method>().is_err());
        assert!(Method::ALL.iter().all(|method| method.name().parse::<Method>().unwrap() == *method));
    }
}
