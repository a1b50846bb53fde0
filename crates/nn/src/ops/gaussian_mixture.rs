//! The Gaussian kernel and the mixture of Gaussian keys.

use burn::tensor::{Tensor, TensorData};
use regard_kernels::{
    self as kernels, AttentionOptions, Call, Layout, Mask, Operator,
    mechanism::{Inference, Score},
};

#[cfg(feature = "cube")]
use super::fused;
use super::{
    Host, Inputs, Operand,
    composed::{
        Form, Rows, Visible, by_rows, drop_weights, head_first, log_sum_exp, real_keys, real_queries, repeat_heads,
        uses_kernel,
    },
    stored_like,
};

/// `softmax_j(score_ij) v_j` with `score_ij = LSE_r (log_prior_r - |q_i - k_jr|^2 / (2 s_r))`, or its variants by
/// `options`, for `q [B,N,H,D]`, `v [B,S,Hk,Dv]`: `[B,N,H,Dv]` (arXiv 2110.08678, equation 10). Keys are
/// `k [B,S,M,Hk,D]`, or `k [B,S,Hk,D]` with `shift [Hk,M,D]`; `variance [M]`; `log_prior` is `[H,M]` or `[H,M,S]`, and absent
/// in hard inference.
pub(super) fn composed(inputs: &Inputs, options: &AttentionOptions, call: Call) -> Tensor<4> {
    let [q, v] = ["q", "v"].map(|name| inputs.tensor::<4>(name));
    let (q, v) = (real_queries(q, &call.mask), real_keys(v, &call.mask));
    let k = component_keys(inputs, &call.mask);
    let components = k.dims()[2];
    #[cfg(feature = "cube")]
    if let Some(out) = fused([&q, &v], &k, inputs, options, &call) {
        return out;
    }
    let further = |silent: Inputs, name| silent.with_some(name, inputs.operand(name).cloned());
    let silent = ["variance", "log_prior"].into_iter().fold(Inputs::new(q).with("k", k).with("v", v), further);
    let mask = call.mask.clone();
    let form = Mixture { inference: options.mixture.inference, score: options.mixture.score, call };
    by_rows(form, &silent, &mask, components)
}

/// The same by fused kernels, where the device has them and they take the call.
#[cfg(feature = "cube")]
fn fused(
    [q, v]: [&Tensor<4>; 2],
    k: &Tensor<5>,
    inputs: &Inputs,
    options: &AttentionOptions,
    call: &Call,
) -> Option<Tensor<4>> {
    if !fused::takes(options, call.mask.causal) || call.dropout.is_some() || !fused::is_for(&q.device()) {
        return None;
    }
    fused::attend(fused::Scored {
        q: q.clone(),
        k: k.clone(),
        v: v.clone(),
        inverse: super::single(inputs.tensor::<1>("variance")).recip(),
        log_prior: inputs.operand("log_prior").cloned(),
        slopes: None,
        distances: options.mixture.score == Score::Gaussian,
        mask: &call.mask,
    })
}

#[derive(Debug)]
struct Mixture {
    inference: Inference,
    score: Score,
    call: Call,
}

impl Form for Mixture {
    fn block(&self, inputs: &Inputs, rows: &Rows) -> Tensor<4> {
        let [q, v] = ["q", "v"].map(|name| inputs.tensor::<4>(name));
        let device = q.device();
        let [batch, _, heads, _] = q.dims();
        let logits = component_logits(q, inputs.tensor("k"), inputs, self.score);
        let scores = match self.inference {
            Inference::Hard => logits.max_dim(2),
            Inference::Soft | Inference::SoftEm => log_sum_exp(logits),
        };
        let weights = Visible::new(&self.call.mask, batch, rows, &device).softmax(scores.squeeze_dim(2));
        head_first(drop_weights(weights, self.call.dropout, rows).matmul(repeat_heads(head_first(v), heads)))
    }
}

/// The keys `[B,S,M,Hk,D]` of every component.
pub(super) fn component_keys(inputs: &Inputs, mask: &Mask) -> Tensor<5> {
    match (inputs.get::<3>("shift"), inputs.operand("k").map(Operand::axes)) {
        (Some(shift), _) => shifted_keys(real_keys(inputs.tensor("k"), mask), shift),
        (None, Some(4)) => real_keys(inputs.tensor::<4>("k"), mask).unsqueeze_dim(2),
        (None, _) => real_keys(inputs.tensor("k"), mask),
    }
}

/// The prior `[H,M,S]`, or `[H,M,1]` where it is tied over positions.
fn log_prior(inputs: &Inputs) -> Option<Tensor<3>> {
    Some(match inputs.operand("log_prior")?.axes() {
        2 => inputs.tensor::<2>("log_prior").unsqueeze_dim(2),
        _ => inputs.tensor("log_prior"),
    })
}

/// `l_ijr`, `[B,H,M,N,S]`, of keys `k [B,S,M,Hk,D]`.
fn component_logits(q: Tensor<4>, k: Tensor<5>, inputs: &Inputs, score: Score) -> Tensor<5> {
    let heads = q.dims()[2];
    let components = k.dims()[2];
    // [B,S,M,Hk,D] to [B,H,M,S,D].
    let k = repeat_heads(k.permute([0, 3, 2, 1, 4]), heads);
    let q = head_first(q).unsqueeze_dim::<5>(2);
    let products = q.clone().matmul(k.clone().transpose());
    let variance = inputs.tensor::<1>("variance").reshape([1, 1, components, 1, 1]);
    let logits = match score {
        Score::Dot => products / variance,
        Score::Gaussian => {
            let norms = q.square().sum_dim(4) + k.square().sum_dim(4).transpose();
            (products.mul_scalar(2.0) - norms) / variance.mul_scalar(2.0)
        }
    };
    match log_prior(inputs) {
        Some(prior) => logits + prior.unsqueeze_dim::<4>(2).unsqueeze_dim(0),
        None => logits,
    }
}

/// `k [B,S,Hk,D]` and `shift [Hk,M,D]`, added up: `[B,S,M,Hk,D]`.
pub fn shifted_keys(k: Tensor<4>, shift: Tensor<3>) -> Tensor<5> {
    let shift = stored_like(shift, &k);
    k.unsqueeze_dim::<5>(2) + shift.swap_dims(0, 1).unsqueeze_dim::<4>(0).unsqueeze_dim(0)
}

/// The prior after one step of soft-EM (arXiv 2110.08678, section 2.3): `pi_jr = mean_i rho_ijr` over all visible pairs
/// of real queries in all rows, with `rho = softmax_r l`. `prior [H,M,P]` is a probability over at least as many
/// positions as there are keys, whose logarithm is among the inputs; positions without a visible pair keep theirs. Not
/// differentiable.
///
/// # Panics
/// Hard inference, or a prior tied over positions.
pub fn prior_after(prior: Tensor<3>, inputs: &Inputs, mask: &Mask, options: &AttentionOptions) -> Tensor<3> {
    let (prior, inputs) = (prior.without_autodiff(), inputs.without_autodiff());
    let [heads, components, _] = prior.dims();
    let keys_count = inputs.tensor::<4>("v").dims()[1];
    let after = match uses_kernel(&inputs.device()) {
        true => kernel_prior(&inputs, mask, options),
        false => {
            let old = prior.clone().narrow(2, 0, keys_count);
            composed_prior(old, &inputs.single(), mask, options.mixture.score)
        }
    };
    prior.slice_assign([0..heads, 0..components, 0..keys_count], after)
}

fn kernel_prior(inputs: &Inputs, mask: &Mask, options: &AttentionOptions) -> Tensor<3> {
    let kernel = kernels::GaussianMixture {
        layout: Layout::TokenFirst,
        mask: mask.clone(),
        score: options.mixture.score,
        shifted: inputs.operand("shift").is_some(),
        ..Default::default()
    };
    let prior = log_prior(inputs).expect("soft inference");
    let (shape, device) = (prior.dims(), prior.device());
    let host: Vec<Host> = inputs.operands(&kernel.inputs()).iter().map(Host::from).collect();
    let views: Vec<_> = host.iter().map(Host::view).collect();
    Tensor::from_data(TensorData::new(kernel.responsibilities(&views), shape), &device)
}

/// Queries whose responsibilities are computed at a time: bounds memory by `B H M S` times this.
const QUERY_TILE: usize = 32;

fn composed_prior(old: Tensor<3>, inputs: &Inputs, mask: &Mask, score: Score) -> Tensor<3> {
    let q = inputs.tensor::<4>("q");
    let device = q.device();
    let [batch, n, _, _] = q.dims();
    let [heads, components, s] = old.dims();
    let k = component_keys(inputs, mask);
    let q = real_queries(q, mask);
    let mut sums = Tensor::<3>::zeros([heads, components, s], &device);
    let mut counts = vec![0f32; s];
    for from in (0..n).step_by(QUERY_TILE) {
        let count = QUERY_TILE.min(n - from);
        let logits = component_logits(q.clone().narrow(1, from, count), k.clone(), inputs, score);
        let most = logits.clone().max_dim(2);
        let numerators = (logits - most).exp();
        let rho = numerators.clone() / numerators.sum_dim(2);
        let seen = pairs(mask, batch, n, s, from..from + count);
        for row in seen.chunks_exact(s) {
            counts.iter_mut().zip(row).for_each(|(count, seen)| *count += seen);
        }
        let seen = Tensor::<1>::from_floats(seen.as_slice(), &device).reshape([batch, 1, 1, count, s]);
        sums = sums + (rho * seen).sum_dims_squeeze::<3, usize>(&[0, 3]);
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
