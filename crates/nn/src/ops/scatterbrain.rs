//! Sparse and low-rank attention, alone and together.

use std::ops::Range;

use burn::tensor::Tensor;
use regard_kernels::{
    AttentionOptions, Call, Mask,
    features::FeatureKind,
    mechanism::{Combination, Mechanism},
    support::SupportKind,
};

#[cfg(feature = "cube")]
use super::fused;
use super::{
    Inputs,
    composed::{Form, Rows, Visible, head_first, in_blocks, real_keys, real_queries, repeat_heads},
    features::{self, HIDDEN, Spans, Sums, hide_padding, log_features, log_products, with_ones},
    plan::{Plan, plans},
    single, stored_as,
    support::Support,
};

/// `q [B,N,H,D]` at unit norm, the keys of LSH.
pub fn unit_keys(q: Tensor<4>) -> Tensor<4> {
    let format = q.dtype().into();
    let q = single(q);
    // Keeps the root off 0, where it has no slope.
    let norms = q.clone().square().sum_dim(3).add_scalar(1e-30).sqrt();
    stored_as(q / norms, format)
}

/// Attention with weights `exp(tau q.k)` on a support and `phi(q).phi(k)` off it, or one of the two alone (arXiv 2110.15343,
/// section 4), for `q [B,N,H,D]`, `k [B,S,Hk,D]`, `v [B,S,Hk,Dv]`: `[B,N,H,Dv]`. With LSH there is no `k`: keys are the
/// queries at unit norm. Drawn are the rows `projection [R,D]` of the feature map, the `directions [rounds,D+2]` of SMYRF
/// and the `rotations [rounds,D,hash_values/2]` of LSH; an operation takes what its options ask for.
pub(super) fn composed(inputs: &Inputs, options: &AttentionOptions, call: Call) -> Tensor<4> {
    let [q, v] = ["q", "v"].map(|name| inputs.tensor::<4>(name));
    let own_keys = !(options.uses_support() && options.support.kind == SupportKind::Lsh);
    let (q, v) = (real_queries(q, &call.mask), real_keys(v, &call.mask));
    let k = own_keys.then(|| real_keys(inputs.tensor::<4>("k"), &call.mask));
    let support = options.uses_support().then(|| Support::new(&q, k.as_ref(), &v, inputs, &options.support, &call));
    let k = k.unwrap_or_else(|| unit_keys(q.clone()));
    let [batch, n, heads, width] = q.dims();
    let s = v.dims()[1];
    let scale = call.scale.unwrap_or((width as f64).sqrt().recip());
    let features = options.uses_features().then(|| Features {
        kind: options.features.kind,
        naive: options.mechanism == Mechanism::Scatterbrain && options.scatterbrain.combination == Combination::Naive,
    });
    #[cfg(feature = "cube")]
    if let Some(out) = fused([&q, &k, &v], inputs, options, &call) {
        return out;
    }
    let projection = inputs.operand("projection").filter(|_| features.is_some()).cloned();
    let silent = Inputs::new(q).with("k", k).with("v", v).with_some("projection", projection);
    let Some(support) = support else {
        let kind = features.expect("a mechanism with neither support nor features").kind;
        let [q, k, v] = ["q", "k", "v"].map(|name| head_first(silent.tensor::<4>(name)));
        let logs = |x| log_features(x, silent.get("projection"), kind, scale);
        let (k, v) = (repeat_heads(logs(k), heads), repeat_heads(v, heads));
        return head_first(features::attend(logs(q), k, v, &call.mask));
    };
    let plans = plans(&options.support, &call.mask, [n, s], batch * heads * size_of::<f32>());
    let far = features.as_ref().map(|features| far_sums(&silent, features.kind, scale, &plans, &call.mask));
    let silent = match far {
        Some(Far { scales, sums }) => silent.with("far_scale", scales).with("far_sums", sums),
        None => silent,
    };
    in_blocks(
        Joint { support, features, scale, mask: call.mask },
        &silent,
        plans.into_iter().map(|plan| plan.rows).collect(),
    )
}

/// The same by fused kernels, where the device has them and they take the call: one of a window.
#[cfg(feature = "cube")]
fn fused([q, k, v]: [&Tensor<4>; 3], inputs: &Inputs, options: &AttentionOptions, call: &Call) -> Option<Tensor<4>> {
    let (causal, heads) = (call.mask.causal, q.dims()[2]);
    let support = options.uses_support() && fused::takes(options, causal) && fused::is_for(&q.device());
    // Features see what lies before the window of their own position.
    if !support || call.mask.window.is_some() || options.uses_features() && q.dims()[1] != k.dims()[1] {
        return None;
    }
    let scale = call.scale.unwrap_or((q.dims()[3] as f64).sqrt().recip());
    let near = fused::Scored {
        q: q.clone(),
        k: k.clone().unsqueeze_dim(2),
        v: v.clone(),
        inverse: Tensor::from_floats([scale as f32], &q.device()),
        log_prior: None,
        slopes: None,
        distances: false,
        mask: &Mask { window: Some(options.support.radius), ..call.mask.clone() },
    };
    if !options.uses_features() {
        return fused::attend(near);
    }
    let logs =
        |x: &Tensor<4>| log_features(head_first(x.clone()), inputs.get("projection"), options.features.kind, scale);
    let far = fused::Far {
        q: logs(q),
        k: hide_padding(repeat_heads(logs(k), heads), &call.mask),
        v: repeat_heads(head_first(v.clone()), heads),
    };
    fused::window(near, far)
}

/// Sums of features off the support.
#[derive(Clone, Debug)]
struct Features {
    kind: FeatureKind,
    /// They count on the support too.
    naive: bool,
}

#[derive(Debug)]
struct Joint {
    support: Support,
    features: Option<Features>,
    scale: f64,
    mask: Mask,
}

impl Form for Joint {
    fn block(&self, inputs: &Inputs, rows: &Rows) -> Tensor<4> {
        let [q, k, v] = ["q", "k", "v"].map(|name| head_first(inputs.tensor::<4>(name)));
        let device = q.device();
        let [batch, heads, _, _] = q.dims();
        let (k, v) = (repeat_heads(k, heads), repeat_heads(v, heads));
        let mut visible = Visible::new(&self.mask, batch, rows, &device);
        let exact = q.clone().mul_scalar(self.scale).matmul(k.clone().transpose());
        let seen = self.support.pairs(&visible, rows, &device);
        let Some(Features { kind, naive }) = self.features else {
            visible.hide(seen.bool_not());
            return head_first(visible.softmax(exact).matmul(v));
        };
        let logs = |x: Tensor<4>| log_features(x, inputs.get("projection"), kind, self.scale);
        let (q, k) = (logs(q), logs(k));
        let off = log_products(q.clone(), k);
        let on = if naive { log_add(exact, off.clone()) } else { exact };
        let dims = off.dims();
        let weights = off.mask_where(seen.expand(dims), on);
        let weights = match visible.hidden(dims) {
            Some(hidden) => weights.mask_fill(hidden, HIDDEN),
            None => weights,
        };
        let far = Sums {
            scale: inputs.tensor::<5>("far_scale").squeeze_dim(0),
            sums: inputs.tensor::<5>("far_sums").squeeze_dim(0),
        };
        head_first(features::join(weights, with_ones(v), q, &far))
    }
}

/// Sums over the far keys of each block.
struct Far {
    /// `[blocks,B,H,1,m]`.
    scales: Tensor<5>,
    /// `[blocks,B,H,m,Dv+1]`.
    sums: Tensor<5>,
}

fn far_sums(inputs: &Inputs, kind: FeatureKind, scale: f64, plans: &[Plan], mask: &Mask) -> Far {
    let heads = inputs.tensor::<4>("q").dims()[2];
    let [k, v] = ["k", "v"].map(|name| repeat_heads(head_first(inputs.tensor::<4>(name)), heads));
    let k = hide_padding(log_features(k, inputs.get("projection"), kind, scale), mask);
    let values = with_ones(v);
    let none = Sums::none(&k, &values);
    let add = |state: Sums, range: Range<usize>| match range.is_empty() {
        true => state,
        false => state.plus(&Sums::of_range(&k, &values, range)),
    };
    let spans = plans.iter().any(|plan| !plan.apart.is_empty()).then(|| Spans::new(&k, &values));
    // Ranges that grow are summed on from block to block, from either end.
    let mut sums: Vec<Sums> = Vec::with_capacity(plans.len());
    let (mut state, mut summed) = (none.clone(), 0..0);
    for Plan { before, .. } in plans {
        let grows = before.start == summed.start && before.end >= summed.end;
        state = if grows { add(state, summed.end..before.end) } else { add(none.clone(), before.clone()) };
        summed = before.clone();
        sums.push(state.clone());
    }
    let (mut state, mut summed) = (none.clone(), 0..0);
    for (Plan { after, apart, .. }, sums) in plans.iter().zip(&mut sums).rev() {
        let grows = after.end == summed.end && after.start <= summed.start;
        state = if grows { add(state, after.start..summed.start) } else { add(none.clone(), after.clone()) };
        summed = after.clone();
        if !after.is_empty() {
            *sums = sums.plus(&state);
        }
        if let Some(spans) = &spans {
            *sums = apart.iter().cloned().fold(sums.clone(), |sums, range| spans.add(sums, range));
        }
    }
    let stack = |of: fn(Sums) -> Tensor<4>| {
        Tensor::cat(sums.iter().map(|sums| of(sums.clone()).unsqueeze_dim::<5>(0)).collect(), 0)
    };
    Far { scales: stack(|sums| sums.scale), sums: stack(|sums| sums.sums) }
}

/// `ln(exp(a) + exp(b))`.
fn log_add(a: Tensor<4>, b: Tensor<4>) -> Tensor<4> {
    let most = a.clone().detach().max_pair(b.clone().detach());
    ((a - most.clone()).exp() + (b - most.clone()).exp()).log() + most
}
