//! Auxiliary losses of a router: values, and their gradient as an operator that is otherwise the identity.
//!
//! With probabilities `p_t = softmax(logits_t)` over `T` real queries, `f_i` the fraction of assignments to expert `i`
//! and `P_i = sum_t p_ti / T`:
//!
//! - balance `L_a = E sum_i f_i P_i` (arXiv 2210.05144, equation 7): 1 when balanced, `E / k` when all tokens use the
//!   same `k` experts; `f` is treated as a constant;
//! - z-loss `L_z = sum_t (ln sum_i e^logits_ti)^2 / T` (equation 8);
//! - `L_v = E sum_i P_i^2 - 1`, the squared coefficient of variation of the experts' importance (Shazeer et al. 2017,
//!   equation 7): 0 when balanced, `E - 1` when one expert gets everything.

use std::sync::Arc;

use super::{Routing, softmax};
use crate::{Error, Operator, Reference, Saved, View, parallel};

/// Values of the losses of one router over one batch; 0 without a real query.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RouterLosses {
    /// `L_a`.
    pub balance: f64,
    /// `L_z`.
    pub z: f64,
    /// `L_v`.
    pub cv: f64,
    /// Mean entropy of the probabilities of a token, in nats.
    pub entropy: f64,
}

/// Coefficients of the losses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RouterCoefficients {
    /// For `L_a`.
    pub balance: f64,
    /// For `L_z`.
    pub z: f64,
    /// For `L_v`.
    pub cv: f64,
}

impl RouterCoefficients {
    /// All of them times `factor`.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { balance: self.balance * factor, z: self.z * factor, cv: self.cv * factor }
    }

    /// Whether all are zero.
    pub fn are_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// Tokens per partial sum.
const BLOCK: usize = 256;

/// The losses of `routing` for `logits [B,N,E]`.
///
/// # Panics
/// If the sizes of the logits do not match.
pub fn router_losses(routing: &Routing, logits: &[f32]) -> RouterLosses {
    let experts = routing.experts();
    assert_eq!(logits.len(), routing.tokens() * experts, "logits of another size");
    let real = routing.real();
    if real == 0 {
        return RouterLosses::default();
    }
    let Sums { importance, squares, entropy } = Sums::over(routing, logits);
    let share = 1.0 / real as f64;
    let dot = |shares: &mut dyn Iterator<Item = f64>| -> f64 {
        importance.iter().zip(shares).map(|(p, f)| p * share * f).sum::<f64>() * experts as f64
    };
    RouterLosses {
        balance: dot(&mut routing.load().into_iter()),
        z: squares * share,
        cv: dot(&mut importance.iter().map(|p| p * share)) - 1.0,
        entropy: entropy * share,
    }
}

/// Sums over all real queries.
struct Sums {
    /// `sum_t p_ti`.
    importance: Vec<f64>,
    /// `sum_t (ln sum_i e^logits_ti)^2`.
    squares: f64,
    entropy: f64,
}

impl Sums {
    /// Summed per block, then over the blocks in order.
    fn over(routing: &Routing, logits: &[f32]) -> Self {
        let experts = routing.experts();
        let width = experts + 2;
        let blocks = routing.tokens().div_ceil(BLOCK);
        let mut partial = vec![0.0f64; blocks * width];
        parallel::for_each_part(&mut partial, width, |block, sums| {
            let mut p = vec![0.0; experts];
            for t in (block * BLOCK..routing.tokens().min((block + 1) * BLOCK)).filter(|t| routing.is_real(*t)) {
                let (top, log_sum) = softmax(&logits[t * experts..(t + 1) * experts], &mut p);
                let mut mean = 0.0;
                for ((sum, p), logit) in sums.iter_mut().zip(&p).zip(&logits[t * experts..]) {
                    *sum += f64::from(*p);
                    mean += if *p > 0.0 { f64::from(*p) * f64::from(logit - top) } else { 0.0 };
                }
                sums[experts] += (f64::from(top) + f64::from(log_sum)).powi(2);
                sums[experts + 1] += f64::from(log_sum) - mean;
            }
        });
        let mut total = vec![0.0; width];
        for sums in partial.chunks_exact(width) {
            total.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
        }
        let (squares, entropy) = (total[experts], total[experts + 1]);
        total.truncate(experts);
        Self { importance: total, squares, entropy }
    }
}

/// `logits [B,N,E]` unchanged; the backward pass adds the gradient of the losses, so that they need no separate output
/// and work where a block is recomputed.
#[derive(Clone, Debug)]
pub struct RouterLoss {
    /// The experts chosen for these logits.
    pub routing: Arc<Routing>,
    /// Coefficients, times the factor on the loss that they are added to.
    pub coefficients: RouterCoefficients,
}

impl Operator for RouterLoss {
    fn inputs(&self) -> Vec<&'static str> {
        vec!["logits"]
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        let routing = &self.routing;
        Error::check_shape("logits", shapes[0], &[routing.batch(), routing.queries(), routing.experts()])?;
        Ok(shapes[0].to_vec())
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        out.copy_from_slice(inputs[0].data);
        Saved::new()
    }

    fn backward(
        &self,
        inputs: &[View<f32>],
        _out: &[f32],
        _saved: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        vec![wanted[0].then(|| {
            let mut grad = grad_out.to_vec();
            self.add_gradient(inputs[0].data, &mut grad);
            grad
        })]
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        let out = inputs[0].data.to_vec();
        let grads = grad_out.map(|grad_out| {
            let mut grad = grad_out.to_vec();
            let gradient = crate::reference::routing::loss_gradient(&self.routing, inputs[0].data, self.coefficients);
            grad.iter_mut().zip(gradient).for_each(|(grad, more)| *grad += more);
            vec![grad]
        });
        Reference { out, lse: None, grads: grads.unwrap_or_default() }
    }
}

impl RouterLoss {
    /// Adds the gradient of the losses to `grad [B,N,E]`.
    fn add_gradient(&self, logits: &[f32], grad: &mut [f32]) {
        let routing = &*self.routing;
        let (experts, real) = (routing.experts(), routing.real());
        if real == 0 || self.coefficients.are_zero() {
            return;
        }
        // dL/dp_ti is the same for every token, and dL_z/dlogit_ti = 2 ln(sum) p_ti / T.
        let share = 1.0 / real as f64;
        let mut slope: Vec<f64> = routing.load();
        slope.iter_mut().for_each(|f| *f *= self.coefficients.balance);
        if self.coefficients.cv != 0.0 {
            let importance = Sums::over(routing, logits).importance;
            slope.iter_mut().zip(importance).for_each(|(s, p)| *s += 2.0 * self.coefficients.cv * p * share);
        }
        let scale = share * experts as f64;
        let slope: Vec<f32> = slope.into_iter().map(|s| (s * scale) as f32).collect();
        let z = (2.0 * self.coefficients.z * share) as f32;
        parallel::for_each_part(grad, BLOCK * experts, |block, grads| {
            let mut p = vec![0.0; experts];
            let tokens = (block * BLOCK..).zip(grads.chunks_exact_mut(experts));
            for (t, grad) in tokens.filter(|(t, _)| routing.is_real(*t)) {
                let (top, log_sum) = softmax(&logits[t * experts..(t + 1) * experts], &mut p);
                let mean: f32 = p.iter().zip(&slope).map(|(p, s)| p * s).sum();
                for ((grad, p), slope) in grad.iter_mut().zip(&p).zip(&slope) {
                    *grad += p * (slope - mean + z * (top + log_sum));
                }
            }
        });
    }
}
