//! Gates, router losses and expert products, token by token (arXiv 2210.05144, section 3).

use super::row::{add_scaled, dot, normalise};
use crate::{
    Reference, View,
    routing::{GateKind, RouterCoefficients, RouterLosses, Routing},
};

/// `softmax(logits_t)` and its log denominator, for every real token.
fn probabilities<'a>(
    routing: &'a Routing,
    logits: &'a [f64],
) -> impl Iterator<Item = (usize, Vec<f64>, f64)> + use<'a> {
    let experts = routing.experts();
    (0..routing.tokens()).filter(|t| routing.is_real(*t)).map(move |t| {
        let (p, log_sum) = normalise(&logits[t * experts..(t + 1) * experts]);
        (t, p, log_sum)
    })
}

/// Mean router probabilities, `P_i`; 0 without a real token.
fn importance(routing: &Routing, logits: &[f64]) -> Vec<f64> {
    let mut importance = vec![0.0; routing.experts()];
    for (_, p, _) in probabilities(routing, logits) {
        add_scaled(&mut importance, 1.0 / routing.real() as f64, &p);
    }
    importance
}

/// The router losses for `logits [B,N,E]`.
pub fn losses(routing: &Routing, logits: &[f64]) -> RouterLosses {
    let real = routing.real() as f64;
    if real == 0.0 {
        return RouterLosses::default();
    }
    let (experts, importance) = (routing.experts() as f64, importance(routing, logits));
    let mut losses = RouterLosses {
        balance: experts * dot(&routing.load(), &importance),
        cv: experts * dot(&importance, &importance) - 1.0,
        ..RouterLosses::default()
    };
    for (_, p, log_sum) in probabilities(routing, logits) {
        losses.z += log_sum * log_sum / real;
        let entropy: f64 = p.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
        losses.entropy += entropy / real;
    }
    losses
}

/// Gradient of the logits from the losses times their coefficients.
pub fn loss_gradient(routing: &Routing, logits: &[f64], coefficients: RouterCoefficients) -> Vec<f64> {
    let mut grad = vec![0.0; logits.len()];
    let (experts, real) = (routing.experts(), routing.real() as f64);
    let (load, importance) = (routing.load(), importance(routing, logits));
    for (t, p, log_sum) in probabilities(routing, logits) {
        // dL/dp_ti, with the fraction of assignments constant.
        let of_p: Vec<f64> = (0..experts)
            .map(|i| {
                let balance = coefficients.balance * load[i];
                experts as f64 * (balance + 2.0 * coefficients.cv * importance[i]) / real
            })
            .collect();
        let mean = dot(&p, &of_p);
        for i in 0..experts {
            let z = 2.0 * coefficients.z * log_sum * p[i] / real;
            grad[t * experts + i] = p[i] * (of_p[i] - mean) + z;
        }
    }
    grad
}

/// Weights of the chosen experts, `[B,N,k]`, and the gradient of the logits.
pub fn gates(routing: &Routing, kind: GateKind, logits: &[f64], grad_out: Option<&[f64]>) -> Reference {
    let (experts, active) = (routing.experts(), routing.active());
    let mut out = vec![0.0; routing.tokens() * active];
    let mut grad = vec![0.0; logits.len()];
    for (t, p, _) in probabilities(routing, logits) {
        let chosen: Vec<usize> = routing.of(t).iter().map(|expert| *expert as usize).collect();
        let divisor = match kind {
            GateKind::Paper => chosen.iter().map(|i| p[*i]).sum(),
            GateKind::Released => 1.0,
        };
        let mut of_p = vec![0.0; experts];
        for (slot, &i) in chosen.iter().enumerate() {
            out[t * active + slot] = p[i] / divisor;
            of_p[i] = grad_out.map_or(0.0, |grad_out| grad_out[t * active + slot] / divisor);
        }
        let mean = dot(&p, &of_p);
        for i in 0..experts {
            grad[t * experts + i] = p[i] * (of_p[i] - mean);
        }
    }
    Reference { out, lse: None, grads: if grad_out.is_some() { vec![grad] } else { Vec::new() } }
}

/// Every assignment of a real token: its index, its token and its expert.
fn assignments(routing: &Routing) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
    let active = routing.active();
    let real = (0..routing.tokens()).filter(|t| routing.is_real(*t));
    real.flat_map(move |t| {
        routing.of(t).iter().enumerate().map(move |(slot, expert)| (t * active + slot, t, *expert as usize))
    })
}

/// `q_ts = x_t W_e` and the gradients of `x` and `w_query`.
pub fn expert_queries(routing: &Routing, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
    let [x, w] = [inputs[0].data, inputs[1].data];
    let &[_, width, head_width] = inputs[1].shape else { unreachable!("checked shapes") };
    let mut out = vec![0.0; routing.tokens() * routing.active() * head_width];
    let mut grads = vec![vec![0.0; x.len()], vec![0.0; w.len()]];
    for (pair, t, expert) in assignments(routing) {
        for i in 0..width {
            let row = (expert * width + i) * head_width..(expert * width + i + 1) * head_width;
            let pair = pair * head_width..(pair + 1) * head_width;
            add_scaled(&mut out[pair.clone()], x[t * width + i], &w[row.clone()]);
            if let Some(grad_out) = grad_out {
                grads[0][t * width + i] += dot(&grad_out[pair.clone()], &w[row.clone()]);
                add_scaled(&mut grads[1][row], x[t * width + i], &grad_out[pair]);
            }
        }
    }
    Reference { out, lse: None, grads: if grad_out.is_some() { grads } else { Vec::new() } }
}

/// `y_t = sum_s w_ts h_ts W_e` and the gradients of `heads`, `weights` and `w_out`.
pub fn expert_outputs(routing: &Routing, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
    let [heads, weights, w] = [0, 1, 2].map(|n| inputs[n].data);
    let &[_, head_width, width] = inputs[2].shape else { unreachable!("checked shapes") };
    let mut out = vec![0.0; routing.tokens() * width];
    let mut grads = vec![vec![0.0; heads.len()], vec![0.0; weights.len()], vec![0.0; w.len()]];
    for (pair, t, expert) in assignments(routing) {
        let token = t * width..(t + 1) * width;
        for c in 0..head_width {
            let at = pair * head_width + c;
            let row = (expert * head_width + c) * width..(expert * head_width + c + 1) * width;
            add_scaled(&mut out[token.clone()], weights[pair] * heads[at], &w[row.clone()]);
            if let Some(grad_out) = grad_out {
                let u = dot(&grad_out[token.clone()], &w[row.clone()]);
                grads[0][at] = weights[pair] * u;
                grads[1][pair] += heads[at] * u;
                add_scaled(&mut grads[2][row], weights[pair] * heads[at], &grad_out[token.clone()]);
            }
        }
    }
    Reference { out, lse: None, grads: if grad_out.is_some() { grads } else { Vec::new() } }
}
