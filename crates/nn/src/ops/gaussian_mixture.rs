//! The Gaussian kernel and the mixture of Gaussian keys.

use burn::tensor::{Tensor, TensorData};
use regard_kernels::{
    self as kernels, AttentionOptions, Call, Layout, Mask, View,
    mechanism::{Inference, Score},
};

use super::{
    Operand, apply,
    composed::{Visible, drop_weights, head_first, real_keys, real_queries, repeat_heads, uses_kernel},
};

/// Keys of a mixture.
#[derive(Clone, Debug)]
pub struct MixtureKeys {
    /// `[B,S,M,Hk,D]`; `[B,S,1,Hk,D]` where `shift` makes the components.
    pub k: Tensor<5>,
    /// `[Hk,M,D]`: key `r` is `k + shift_r`.
    pub shift: Option<Tensor<3>>,
    /// Variances `[M]`.
    pub variance: Tensor<1>,
    /// Absent in hard inference.
    pub log_prior: Option<LogPrior>,
}

/// Logarithm of the prior of a mixture.
#[derive(Clone, Debug)]
pub enum LogPrior {
    /// `[H,M]`.
    Tied(Tensor<2>),
    /// `[H,M,S]`.
    PerPosition(Tensor<3>),
}

impl LogPrior {
    fn per_position(self) -> Tensor<3> {
        match self {
            Self::Tied(prior) => prior.unsqueeze_dim(2),
            Self::PerPosition(prior) => prior,
        }
    }
}

/// `softmax_j(score_ij) v_j` with `score_ij = LSE_r (log_prior_r - |q_i - k_jr|^2 / (2 s_r))`, or its variants by
/// `options`, for `q [B,N,H,D]`, `v [B,S,Hk,Dv]`: `[B,N,H,Dv]` (arXiv 2110.08678, equation 10).
///
/// # Panics
/// Shapes that do not fit each other, the options or the mask.
pub fn gaussian_mixture(
    q: Tensor<4>,
    keys: MixtureKeys,
    v: Tensor<4>,
    options: &AttentionOptions,
    call: Call,
) -> Tensor<4> {
    if !uses_kernel(&q.device()) {
        return composed(q, keys, v, options, call);
    }
    let k = match keys.shift {
        Some(_) => Operand::from(keys.k.squeeze_dim::<4>(2)),
        None => keys.k.into(),
    };
    let mut inputs: Vec<Operand> = vec![q.into(), k, v.into(), keys.variance.into()];
    inputs.extend(keys.log_prior.map(|prior| match prior {
        LogPrior::Tied(prior) => prior.into(),
        LogPrior::PerPosition(prior) => Operand::from(prior),
    }));
    inputs.extend(keys.shift.map(Operand::from));
    apply(options.operator(call).unwrap_or_else(|error| panic!("{error}")), &inputs)
}

fn composed(q: Tensor<4>, keys: MixtureKeys, v: Tensor<4>, options: &AttentionOptions, call: Call) -> Tensor<4> {
    let device = q.device();
    let [batch, n, heads, _] = q.dims();
    let s = v.dims()[1];
    let keys = MixtureKeys { k: real_keys(keys.k, &call.mask), ..keys };
    let (q, v) = (real_queries(q, &call.mask), real_keys(v, &call.mask));
    let logits = component_logits(q, keys, options.mixture.score);
    let scores = match options.mixture.inference {
        Inference::Hard => logits.max_dim(2),
        Inference::Soft | Inference::SoftEm => log_sum_exp(logits),
    };
    let weights = Visible::new(&call.mask, batch, n, s, &device).softmax(scores.squeeze_dim(2));
    head_first(drop_weights(weights, call.dropout).matmul(repeat_heads(head_first(v), heads)))
}

/// `l_ijr`, `[B,H,M,N,S]`.
fn component_logits(q: Tensor<4>, keys: MixtureKeys, score: Score) -> Tensor<5> {
    let heads = q.dims()[2];
    let MixtureKeys { k, shift, variance, log_prior } = keys;
    let k = match shift {
        Some(shift) => shifted_keys(k.squeeze_dim(2), shift),
        None => k,
    };
    let components = k.dims()[2];
    // [B,S,M,Hk,D] to [B,H,M,S,D].
    let k = repeat_heads(k.permute([0, 3, 2, 1, 4]), heads);
    let q = head_first(q).unsqueeze_dim::<5>(2);
    let products = q.clone().matmul(k.clone().transpose());
    let variance = variance.reshape([1, 1, components, 1, 1]);
    let logits = match score {
        Score::Dot => products / variance,
        Score::Gaussian => {
            let norms = q.square().sum_dim(4) + k.square().sum_dim(4).transpose();
            (products.mul_scalar(2.0) - norms) / variance.mul_scalar(2.0)
        }
    };
    match log_prior {
        Some(prior) => logits + prior.per_position().unsqueeze_dim::<4>(2).unsqueeze_dim(0),
        None => logits,
    }
}

fn log_sum_exp(logits: Tensor<5>) -> Tensor<5> {
    let most = logits.clone().detach().max_dim(2);
    (logits - most.clone()).exp().sum_dim(2).log() + most
}

/// `k [B,S,Hk,D]` and `shift [Hk,M,D]`, added up: `[B,S,M,Hk,D]`.
pub fn shifted_keys(k: Tensor<4>, shift: Tensor<3>) -> Tensor<5> {
    k.unsqueeze_dim::<5>(2) + shift.swap_dims(0, 1).unsqueeze_dim::<4>(0).unsqueeze_dim(0)
}

/// The prior after one step of soft-EM (arXiv 2110.08678, section 2.3): `pi_jr = mean_i rho_ijr` over all visible pairs
/// of real queries in all rows, with `rho = softmax_r l`. `prior [H,M,P]` is a probability over at least as many
/// positions as there are keys, whose logarithm is in `keys`; positions without a visible pair keep theirs. Not
/// differentiable.
///
/// # Panics
/// Hard inference, or a prior tied over positions.
pub fn prior_after(
    prior: Tensor<3>,
    q: Tensor<4>,
    keys: MixtureKeys,
    v: Tensor<4>,
    mask: &Mask,
    options: &AttentionOptions,
) -> Tensor<3> {
    let (prior, q, keys, v) =
        (prior.without_autodiff(), q.without_autodiff(), keys.without_autodiff(), v.without_autodiff());
    let [heads, components, _] = prior.dims();
    let keys_count = v.dims()[1];
    let after = match uses_kernel(&q.device()) {
        true => kernel_prior(q, keys, v, mask, options),
        false => {
            let old = prior.clone().narrow(2, 0, keys_count);
            composed_prior(old, q, keys, mask, options.mixture.score)
        }
    };
    prior.slice_assign([0..heads, 0..components, 0..keys_count], after)
}

fn kernel_prior(q: Tensor<4>, keys: MixtureKeys, v: Tensor<4>, mask: &Mask, options: &AttentionOptions) -> Tensor<3> {
    let device = q.device();
    let kernel = kernels::GaussianMixture {
        layout: Layout::TokenFirst,
        mask: mask.clone(),
        score: options.mixture.score,
        shifted: keys.shift.is_some(),
        ..Default::default()
    };
    let prior = keys.log_prior.expect("soft inference").per_position();
    let shape = prior.dims();
    let mut inputs = vec![q.into_data()];
    inputs.push(match keys.shift {
        Some(_) => keys.k.squeeze_dim::<4>(2).into_data(),
        None => keys.k.into_data(),
    });
    inputs.extend([v.into_data(), keys.variance.into_data(), prior.into_data()]);
    inputs.extend(keys.shift.map(Tensor::into_data));
    let views: Vec<_> =
        inputs.iter().map(|input| View::new(input.as_slice::<f32>().expect("f32"), input.shape().as_slice())).collect();
    Tensor::from_data(TensorData::new(kernel.responsibilities(&views), shape), &device)
}

/// Queries whose responsibilities are computed at a time: bounds memory by `B H M S` times this.
const QUERY_TILE: usize = 32;

fn composed_prior(old: Tensor<3>, q: Tensor<4>, keys: MixtureKeys, mask: &Mask, score: Score) -> Tensor<3> {
    let device = q.device();
    let [batch, n, _, _] = q.dims();
    let [heads, components, s] = old.dims();
    let keys = MixtureKeys { k: real_keys(keys.k, mask), ..keys };
    let q = real_queries(q, mask);
    let mut sums = Tensor::<3>::zeros([heads, components, s], &device);
    for from in (0..n).step_by(QUERY_TILE) {
        let count = QUERY_TILE.min(n - from);
        let logits = component_logits(q.clone().narrow(1, from, count), keys.clone(), score);
        let most = logits.clone().max_dim(2);
        let numerators = (logits - most).exp();
        let rho = numerators.clone() / numerators.sum_dim(2);
        let seen = pairs(mask, batch, n, s, from..from + count);
        let seen = Tensor::<1>::from_floats(seen.as_slice(), &device).reshape([batch, 1, 1, count, s]);
        sums = sums + (rho * seen).sum_dims_squeeze::<3, usize>(&[0, 3]);
    }
    let mut counts = vec![0f32; s];
    for (index, seen) in pairs(mask, batch, n, s, 0..n).iter().enumerate() {
        counts[index % s] += seen;
    }
    let counts = Tensor::<1>::from_floats(counts.as_slice(), &device).reshape([1, 1, s]);
    let unseen = counts.clone().equal_scalar(0).expand([heads, components, s]);
    (sums / counts.clamp_min(1.0)).mask_where(unseen, old)
}

/// 1 for every pair `[B, queries, S]` of a real query and a key it sees.
fn pairs(mask: &Mask, batch: usize, n: usize, s: usize, queries: std::ops::Range<usize>) -> Vec<f32> {
    let mut seen = vec![0.0; batch * queries.len() * s];
    let rows = (0..batch).flat_map(|b| queries.clone().map(move |i| (b, i)));
    for (row, (b, i)) in seen.chunks_exact_mut(s).zip(rows) {
        if mask.query_row(b, n).is_some_and(|real| real[i] == 0) {
            continue;
        }
        let valid = mask.valid_row(b);
        for j in mask.visible(i, n, s) {
            row[j] = f32::from(u8::from(valid.is_none_or(|valid| valid[j] != 0)));
        }
    }
    seen
}

impl MixtureKeys {
    fn without_autodiff(self) -> Self {
        Self {
            k: self.k.without_autodiff(),
            shift: self.shift.map(Tensor::without_autodiff),
            variance: self.variance.without_autodiff(),
            log_prior: self.log_prior.map(|prior| match prior {
                LogPrior::Tied(prior) => LogPrior::Tied(prior.without_autodiff()),
                LogPrior::PerPosition(prior) => LogPrior::PerPosition(prior.without_autodiff()),
            }),
        }
    }
}
