//! Sparse and low-rank attention, alone and together.

use burn::tensor::{Bool, Tensor, TensorData};
use regard_kernels::{
    self as kernels, AttentionOptions, Call, Layout, Operator, View,
    features::FeatureKind,
    mechanism::{Combination, Mechanism},
    reference::scatterbrain::support,
    support::SupportKind,
};

use super::{
    Host, Inputs,
    composed::{Visible, head_first, real_keys, real_queries, repeat_heads},
};

/// `q [B,N,H,D]` at unit norm, the keys of LSH.
pub fn unit_keys(q: Tensor<4>) -> Tensor<4> {
    // Keeps the root off 0, where it has no slope.
    let norms = q.clone().square().sum_dim(3).add_scalar(1e-30).sqrt();
    q / norms
}

/// Attention with weights `exp(tau q.k)` on a support and `phi(q).phi(k)` off it, or one of the two alone (arXiv 2110.15343,
/// section 4), for `q [B,N,H,D]`, `k [B,S,Hk,D]`, `v [B,S,Hk,Dv]`: `[B,N,H,Dv]`. With LSH there is no `k`: keys are the
/// queries at unit norm. Drawn are the rows `projection [R,D]` of the feature map, the `directions [rounds,D+2]` of SMYRF
/// and the `rotations [rounds,D,hash_values/2]` of LSH; an operation takes what its options ask for.
pub(super) fn composed(inputs: &Inputs, options: &AttentionOptions, call: Call) -> Tensor<4> {
    let [q, v] = ["q", "v"].map(|name| inputs.tensor::<4>(name));
    let own_keys = !(options.uses_support() && options.support.kind == SupportKind::Lsh);
    let device = q.device();
    let [batch, n, heads, width] = q.dims();
    let s = v.dims()[1];
    let visible = Visible::new(&call.mask, batch, n, s, &device);
    let (q, v) = (real_queries(q, &call.mask), real_keys(v, &call.mask));
    let k = own_keys.then(|| real_keys(inputs.tensor::<4>("k"), &call.mask));
    let scale = call.scale.unwrap_or((width as f64).sqrt().recip());
    let on_support = options.uses_support().then(|| host_support(&q, k.as_ref(), &v, inputs, options, &call));
    let k = k.unwrap_or_else(|| unit_keys(q.clone()));
    let (q, k, v) = (head_first(q), repeat_heads(head_first(k), heads), repeat_heads(head_first(v), heads));
    let off_support =
        options.uses_features().then(|| log_products(q.clone(), k.clone(), inputs, options.features.kind, scale));
    let exact = || q.clone().matmul(k.clone().transpose()).mul_scalar(scale);
    let weights = match (on_support, off_support) {
        (None, None) => unreachable!("a mechanism with neither support nor features"),
        (None, Some(off)) => visible.softmax(off),
        (Some(seen), None) => Visible::of(seen, [batch, heads, n, s], &device).softmax(exact()),
        (Some(seen), Some(off)) => {
            let seen = Tensor::<4, Bool>::from_data(TensorData::new(seen, [batch, heads, n, s]), &device);
            let naive =
                options.mechanism == Mechanism::Scatterbrain && options.scatterbrain.combination == Combination::Naive;
            let on = if naive { log_add(exact(), off.clone()) } else { exact() };
            visible.softmax(off.mask_where(seen, on))
        }
    };
    head_first(weights.matmul(v))
}

/// Pairs `[B,H,N,S]` of the support, found on the host: it is piecewise constant and has no gradient.
fn host_support(
    q: &Tensor<4>,
    k: Option<&Tensor<4>>,
    v: &Tensor<4>,
    inputs: &Inputs,
    options: &AttentionOptions,
    call: &Call,
) -> Vec<bool> {
    let operator = kernels::Scatterbrain {
        layout: Layout::TokenFirst,
        mask: call.mask.clone(),
        scale: call.scale,
        support: Some(options.support.clone()),
        ..Default::default()
    };
    // Padding of these three is silent already.
    let mut silent = Inputs::new(q.clone()).with_some("k", k.cloned()).with("v", v.clone());
    for name in ["directions", "rotations"] {
        silent = silent.with_some(name, inputs.operand(name).cloned());
    }
    let host: Vec<Host> = silent.operands(&operator.inputs()).iter().map(Host::from).collect();
    let wide: Vec<Vec<f64>> = host.iter().map(Host::wide).collect();
    let views: Vec<_> = wide.iter().zip(&host).map(|(data, host)| View::new(data, &host.shape)).collect();
    support(&operator, &views)
}

/// `ln phi(q_i).phi(k_j)`, `[B,H,N,S]`.
fn log_products(q: Tensor<4>, k: Tensor<4>, inputs: &Inputs, kind: FeatureKind, scale: f64) -> Tensor<4> {
    let logs = |x: Tensor<4>| match kind {
        FeatureKind::Elu => x.clone().clamp_max(0.0) + x.clamp_min(0.0).add_scalar(1.0).log(),
        FeatureKind::Plain | FeatureKind::Hyperbolic => {
            let x = x.mul_scalar(scale.sqrt());
            let rows = inputs.tensor::<2>("projection");
            let along = x.clone().matmul(rows.transpose().unsqueeze::<4>());
            let along = match kind {
                FeatureKind::Hyperbolic => Tensor::cat(vec![along.clone(), along.neg()], 3),
                _ => along,
            };
            let count = along.dims()[3] as f64;
            along - x.square().sum_dim(3).mul_scalar(0.5).add_scalar(0.5 * count.ln())
        }
    };
    let (q, k) = (logs(q), logs(k));
    let (most_q, most_k) = (q.clone().detach().max_dim(3), k.clone().detach().max_dim(3));
    let products = (q - most_q.clone()).exp().matmul((k - most_k.clone()).exp().transpose());
    // Where the largest features of a query and a key are far apart, their product may be below the smallest float.
    products.clamp_min(f32::MIN_POSITIVE).log() + most_q + most_k.transpose()
}

/// `ln(exp(a) + exp(b))`.
fn log_add(a: Tensor<4>, b: Tensor<4>) -> Tensor<4> {
    let most = a.clone().detach().max_pair(b.clone().detach());
    ((a - most.clone()).exp() + (b - most.clone()).exp()).log() + most
}
