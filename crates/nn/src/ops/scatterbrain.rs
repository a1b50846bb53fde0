//! Sparse and low-rank attention, alone and together.

use burn::tensor::Tensor;
use regard_kernels::{
    AttentionOptions, Call, Mask,
    features::FeatureKind,
    mechanism::{Combination, Mechanism},
    support::SupportKind,
};

use super::{
    Inputs,
    composed::{Form, Rows, Visible, by_rows, head_first, real_keys, real_queries, repeat_heads},
    features::{self, log_features, log_products},
    support::Support,
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
    let (q, v) = (real_queries(q, &call.mask), real_keys(v, &call.mask));
    let k = own_keys.then(|| real_keys(inputs.tensor::<4>("k"), &call.mask));
    let support = options.uses_support().then(|| Support::new(&q, k.as_ref(), &v, inputs, &options.support, &call));
    let k = k.unwrap_or_else(|| unit_keys(q.clone()));
    let mut silent = Inputs::new(q).with("k", k).with("v", v);
    if options.uses_features() {
        silent = silent.with_some("projection", inputs.operand("projection").cloned());
    }
    if !options.uses_support() && call.mask.window.is_none() {
        let [q, k, v] = ["q", "k", "v"].map(|name| head_first(silent.tensor::<4>(name)));
        let [_, heads, _, width] = q.dims();
        let scale = call.scale.unwrap_or((width as f64).sqrt().recip());
        let logs = |x| log_features(x, silent.get("projection"), options.features.kind, scale);
        let (k, v) = (repeat_heads(logs(k), heads), repeat_heads(v, heads));
        return head_first(features::attend(logs(q), k, v, &call.mask));
    }
    let form = Joint {
        support,
        features: options.uses_features().then_some(options.features.kind),
        naive: options.mechanism == Mechanism::Scatterbrain && options.scatterbrain.combination == Combination::Naive,
        scale: call.scale,
        mask: call.mask.clone(),
    };
    by_rows(form, &silent, &call.mask, 1)
}

#[derive(Debug)]
struct Joint {
    support: Option<Support>,
    features: Option<FeatureKind>,
    naive: bool,
    scale: Option<f64>,
    mask: Mask,
}

impl Form for Joint {
    fn block(&self, inputs: &Inputs, rows: &Rows) -> Tensor<4> {
        let [q, k, v] = ["q", "k", "v"].map(|name| head_first(inputs.tensor::<4>(name)));
        let device = q.device();
        let [batch, heads, _, width] = q.dims();
        let (k, v) = (repeat_heads(k, heads), repeat_heads(v, heads));
        let scale = self.scale.unwrap_or((width as f64).sqrt().recip());
        let mut visible = Visible::new(&self.mask, batch, rows, &device);
        let off = self.features.map(|kind| {
            let logs = |x: &Tensor<4>| log_features(x.clone(), inputs.get("projection"), kind, scale);
            log_products(logs(&q), logs(&k))
        });
        let exact = || q.clone().mul_scalar(scale).matmul(k.clone().transpose());
        let on_support = self.support.as_ref().map(|support| support.pairs(&visible, rows, &device));
        let weights = match (on_support, off) {
            (None, None) => unreachable!("a mechanism with neither support nor features"),
            (None, Some(off)) => visible.softmax(off),
            (Some(seen), None) => {
                visible.hide(seen.bool_not());
                visible.softmax(exact())
            }
            (Some(seen), Some(off)) => {
                let on = if self.naive { log_add(exact(), off.clone()) } else { exact() };
                let seen = seen.expand(off.dims());
                visible.softmax(off.mask_where(seen, on))
            }
        };
        head_first(weights.matmul(v))
    }
}

/// `ln(exp(a) + exp(b))`.
fn log_add(a: Tensor<4>, b: Tensor<4>) -> Tensor<4> {
    let most = a.clone().detach().max_pair(b.clone().detach());
    ((a - most.clone()).exp() + (b - most.clone()).exp()).log() + most
}
