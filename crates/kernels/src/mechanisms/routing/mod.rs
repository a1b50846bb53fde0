//! Routing of tokens to experts, and the expert products: parts of the mixture of attention heads (arXiv 2210.05144).
//!
//! A [`Routing`] is the decision, made once per batch from the router logits. The operators share it:
//!
//! | operator | from | to |
//! |---|---|---|
//! | [`RouterLoss`] | `logits [B,N,E]` | the same, with the gradient of the auxiliary losses |
//! | [`Gates`] | `logits [B,N,E]` | weights `[B,N,k]` of the chosen experts |
//! | [`ExpertQueries`] | `x [B,N,d]`, `w_query [E,d,D]` | queries `[B,N,k,D]` |
//! | [`ExpertOutputs`] | `heads [B,N,k,D]`, weights, `w_out [E,D,d]` | `[B,N,d]` |
//!
//! Between the last two comes softmax attention with `k` heads that share keys and values. An expert is one matrix
//! product over its tokens, whose rows are read and written in place.

mod decision;
mod gates;
mod losses;
mod noise;
mod options;
mod outputs;
mod queries;
mod weights;

pub use decision::{Routing, Sampling};
pub use gates::Gates;
pub use losses::{RouterCoefficients, RouterLoss, RouterLosses, router_losses};
pub use noise::logit_noise;
pub use options::{GateKind, LossScale, MoaOptions, RouterStart};
pub use outputs::ExpertOutputs;
pub use queries::ExpertQueries;

use crate::simd;

/// Fills `p` with the softmax of `logits`; returns their maximum and the log of the sum of exponentials relative to it;
/// the two add up to the log-sum-exp.
fn softmax(logits: &[f32], p: &mut [f32]) -> (f32, f32) {
    simd::vectorize(
        #[inline(always)]
        || {
            let top = simd::max(logits).max(f32::MIN);
            for (p, logit) in p.iter_mut().zip(logits) {
                *p = simd::exp(logit - top);
            }
            let total = simd::sum(p.len(), |i| p[i]);
            let inverse = 1.0 / total;
            p.iter_mut().for_each(|p| *p *= inverse);
            (top, total.ln())
        },
    )
}
