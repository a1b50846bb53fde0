//! The weights of the chosen experts.

use std::sync::Arc;

use super::{GateKind, Routing, softmax};
use crate::{
    Error, Operator, Reference, Saved, View,
    parallel::{self, Disjoint},
    reference,
};

/// Maps `logits [B,N,E]` to weights `[B,N,k]`: `p_i` of the chosen experts, `p = softmax(logits)`, or with the paper's
/// gates `p_i / sum of the chosen p`, without a gradient through the sum. Padded tokens have weights 0.
#[derive(Clone, Debug)]
pub struct Gates {
    /// The chosen experts.
    pub routing: Arc<Routing>,
    /// Whether weights sum to 1.
    pub kind: GateKind,
}

/// Tokens per task.
const BLOCK: usize = 256;

impl Gates {
    /// Divisor of the probabilities of token `t`.
    fn divisor(&self, t: usize, p: &[f32]) -> f32 {
        match self.kind {
            GateKind::Paper => self.routing.of(t).iter().map(|expert| p[*expert as usize]).sum(),
            GateKind::Released => 1.0,
        }
    }

    /// Calls `work` with each real token and its probabilities, in parallel.
    fn each(&self, logits: &[f32], work: impl Fn(usize, &[f32]) + Sync + Send) {
        let (tokens, experts) = (self.routing.tokens(), self.routing.experts());
        parallel::for_each(tokens.div_ceil(BLOCK), |block| {
            let mut p = vec![0.0; experts];
            for t in (block * BLOCK..tokens.min((block + 1) * BLOCK)).filter(|t| self.routing.is_real(*t)) {
                softmax(&logits[t * experts..(t + 1) * experts], &mut p);
                work(t, &p);
            }
        });
    }
}

impl Operator for Gates {
    fn inputs(&self) -> Vec<&'static str> {
        vec!["logits"]
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        let (batch, queries) = (self.routing.batch(), self.routing.queries());
        Error::check_shape("logits", shapes[0], &[batch, queries, self.routing.experts()])?;
        Ok(vec![batch, queries, self.routing.active()])
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        let active = self.routing.active();
        out.fill(0.0);
        let written = Disjoint::new(out);
        self.each(inputs[0].data, |t, p| {
            // SAFETY: this token belongs to this task alone.
            let weights = unsafe { written.range(t * active, active) };
            let inverse = 1.0 / self.divisor(t, p);
            for (weight, expert) in weights.iter_mut().zip(self.routing.of(t)) {
                *weight = p[*expert as usize] * inverse;
            }
        });
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
        let (active, experts) = (self.routing.active(), self.routing.experts());
        vec![wanted[0].then(|| {
            let mut grad = vec![0.0; inputs[0].data.len()];
            let written = Disjoint::new(&mut grad);
            self.each(inputs[0].data, |t, p| {
                // SAFETY: this token belongs to this task alone.
                let grad = unsafe { written.range(t * experts, experts) };
                let inverse = 1.0 / self.divisor(t, p);
                let slopes = &grad_out[t * active..(t + 1) * active];
                let chosen = || self.routing.of(t).iter().map(|expert| *expert as usize).zip(slopes);
                let mean: f32 = chosen().map(|(expert, slope)| p[expert] * slope * inverse).sum();
                grad.iter_mut().zip(p).for_each(|(grad, p)| *grad = -p * mean);
                chosen().for_each(|(expert, slope)| grad[expert] += p[expert] * slope * inverse);
            });
            grad
        })]
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        reference::routing::gates(&self.routing, self.kind, inputs[0].data, grad_out)
    }
}
