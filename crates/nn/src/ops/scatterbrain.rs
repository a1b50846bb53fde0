//! Sparse and low-rank attention, alone and together.

use burn::tensor::{Bool, Tensor, TensorData};
use regard_kernels::{
    self as kernels, AttentionOptions, Call, Layout, Operator, View,
    features::FeatureKind,
    mechanism::{Combination, Mechanism},
    reference::scatterbrain::support,
};

use super::{
    Operand, apply,
    composed::{Visible, head_first, real_keys, real_queries, repeat_heads, uses_kernel},
};

/// What is drawn and not learned; an operation takes what its options ask for.
#[derive(Clone, Debug, Default)]
pub struct Draws {
    /// Rows of the feature map, `[R,D]`.
    pub projection: Option<Tensor<2>>,
    /// Directions of SMYRF, `[rounds,D+2]`.
    pub directions: Option<Tensor<2>>,
    /// Rotations of LSH, `[rounds,D,hash_values/2]`.
    pub rotations: Option<Tensor<3>>,
}

/// Attention with weights `exp(tau q.k)` on a support and `phi(q).phi(k)` off it, or one of the two alone (arXiv 2110.15343,
/// section 4), for `q [B,N,H,D]`, `k [B,S,Hk,D]`, `v [B,S,Hk,Dv]`: `[B,N,H,Dv]`. With LSH there is no `k`: keys are the
/// queries at unit norm.
///
/// # Panics
/// Shapes or draws that do not fit each other, the options or the mask.
pub fn scatterbrain(
    q: Tensor<4>,
    k: Option<Tensor<4>>,
    v: Tensor<4>,
    draws: &Draws,
    options: &AttentionOptions,
    call: Call,
) -> Tensor<4> {
    if !uses_kernel(&q.device()) {
        return composed(q, k, v, draws, options, call);
    }
    let operator = options.operator(call).unwrap_or_else(|error| panic!("{error}"));
    let inputs: Vec<Operand> = operator
        .inputs()
        .into_iter()
        .map(|name| {
            let input = match name {
                "q" => Some(Operand::from(&q)),
                "k" => k.as_ref().map(Operand::from),
                "v" => Some(Operand::from(&v)),
                "projection" => draws.projection.as_ref().map(Operand::from),
                "directions" => draws.directions.as_ref().map(Operand::from),
                _ => draws.rotations.as_ref().map(Operand::from),
            };
            input.unwrap_or_else(|| panic!("tensor '{name}' is missing"))
        })
        .collect();
    apply(operator, &inputs)
}

/// `q [B,N,H,D]` at unit norm, the keys of LSH.
pub fn unit_keys(q: Tensor<4>) -> Tensor<4> {
    // Keeps the root off 0, where it has no slope.
    let norms = q.clone().square().sum_dim(3).add_scalar(1e-30).sqrt();
    q / norms
}

fn composed(
    q: Tensor<4>,
    k: Option<Tensor<4>>,
    v: Tensor<4>,
    draws: &Draws,
    options: &AttentionOptions,
    call: Call,
) -> Tensor<4> {
    let device = q.device();
    let [batch, n, heads, width] = q.dims();
    let s = v.dims()[1];
    let visible = Visible::new(&call.mask, batch, n, s, &device);
    let (q, v) = (real_queries(q, &call.mask), real_keys(v, &call.mask));
    let k = k.map(|k| real_keys(k, &call.mask));
    let scale = call.scale.unwrap_or((width as f64).sqrt().recip());
    let on_support = options.uses_support().then(|| host_support(&q, k.as_ref(), &v, draws, options, &call));
    let k = k.unwrap_or_else(|| unit_keys(q.clone()));
    let (q, k, v) = (head_first(q), repeat_heads(head_first(k), heads), repeat_heads(head_first(v), heads));
    let off_support =
        options.uses_features().then(|| log_products(q.clone(), k.clone(), draws, options.features.kind, scale));
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
    draws: &Draws,
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
    fn host<const D: usize>(tensor: &Tensor<D>) -> (Vec<f64>, Vec<usize>) {
        let values: Vec<f32> = tensor.clone().into_data_as::<f32>().try_into_vec().expect("f32, as asked");
        (values.into_iter().map(f64::from).collect(), tensor.dims().to_vec())
    }
    let missing = |name: &str| -> ! { panic!("tensor '{name}' is missing") };
    let inputs: Vec<(Vec<f64>, Vec<usize>)> = operator
        .inputs()
        .into_iter()
        .map(|name| match name {
            "q" => host(q),
            "k" => k.map_or_else(|| missing(name), host),
            "v" => host(v),
            "directions" => draws.directions.as_ref().map_or_else(|| missing(name), host),
            _ => draws.rotations.as_ref().map_or_else(|| missing(name), host),
        })
        .collect();
    let views: Vec<_> = inputs.iter().map(|(data, shape)| View::new(data, shape)).collect();
    support(&operator, &views)
}

/// `ln phi(q_i).phi(k_j)`, `[B,H,N,S]`.
fn log_products(q: Tensor<4>, k: Tensor<4>, draws: &Draws, kind: FeatureKind, scale: f64) -> Tensor<4> {
    let logs = |x: Tensor<4>| match kind {
        FeatureKind::Elu => x.clone().clamp_max(0.0) + x.clamp_min(0.0).add_scalar(1.0).log(),
        FeatureKind::Plain | FeatureKind::Hyperbolic => {
            let x = x.mul_scalar(scale.sqrt());
            let rows = draws.projection.clone().expect("features have a projection");
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
