//! Routing of tokens to experts, for the mixture of attention heads.

use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData, activation};
use regard_kernels::{
    Operator, Padding, Saved,
    routing::{
        ExpertOutputs, ExpertQueries, GateKind, Gates, RouterCoefficients, RouterLoss, Routing, Sampling, logit_noise,
    },
};

use super::{
    Host, Operand, Pullback,
    bridge::{apply_forgetting_output, entered},
    composed::uses_kernel,
    stored_like,
};

/// Logits `[B,N,E]` with normal noise of standard deviation `deviation`, drawn from stream `key`.
pub fn noisy_logits(logits: Tensor<3>, deviation: f64, key: u64) -> Tensor<3> {
    let shape @ [batch, queries, experts] = logits.dims();
    let noise = logit_noise(batch * queries, experts, deviation, key);
    let noise = Tensor::<3>::from_data(TensorData::new(noise, shape), &logits.device());
    logits + noise
}

/// Chooses `active` experts for each token of `logits [B,N,E]`; also returns the logits, copied to the host. The choice
/// has no gradient.
///
/// # Panics
/// Padding of another size, or more active experts than there are.
pub fn route(
    logits: &Tensor<3>,
    active: usize,
    sampling: Option<Sampling>,
    padding: Option<Arc<Padding>>,
) -> (Arc<Routing>, Vec<f32>) {
    let shape = logits.dims();
    let values: Vec<f32> = logits.clone().into_data_as::<f32>().try_into_vec().expect("f32, as asked");
    let routing = Routing::new(&values, shape, active, sampling, padding).unwrap_or_else(|error| panic!("{error}"));
    (Arc::new(routing), values)
}

/// Returns `logits [B,N,E]` unchanged and adds the gradient of the router's losses, times `coefficients`, to theirs.
pub fn router_loss(logits: Tensor<3>, routing: &Arc<Routing>, coefficients: RouterCoefficients) -> Tensor<3> {
    let device = logits.device();
    if coefficients.are_zero() || !device.is_autodiff() {
        return logits;
    }
    let operator = RouterLoss { routing: routing.clone(), coefficients };
    if uses_kernel(&device) {
        return apply_forgetting_output(Arc::new(operator), &[logits.into()]);
    }
    entered(logits.clone().without_autodiff(), vec![logits.into()], Vec::new(), Arc::new(LossOnHost(operator)))
}

/// The same gradient, found on the host, where the choice of experts is made too.
#[derive(Debug)]
struct LossOnHost(RouterLoss);

impl Pullback for LossOnHost {
    fn backward(&self, kept: Vec<Operand>, grad_out: Operand, _: &[bool]) -> Vec<Option<Operand>> {
        let logits = Host::from(&kept[0]);
        let none = vec![0.0; logits.data.len()];
        let mut grads = self.0.backward(&[logits.view()], &[], &Saved::new(), &none, &[true]);
        let grad_out = grad_out.into_tensor::<3>();
        let grad = TensorData::new(grads.remove(0).expect("a gradient that is wanted"), grad_out.dims());
        let grad = Tensor::<3>::from_data(grad, &grad_out.device());
        vec![Some((grad_out + grad).into())]
    }
}

/// Weights `[B,N,k]` of the chosen experts from `logits [B,N,E]`; 0 for padding.
pub fn gates(logits: Tensor<3>, routing: &Arc<Routing>, kind: GateKind) -> Tensor<3> {
    if uses_kernel(&logits.device()) {
        return apply_forgetting_output(Arc::new(Gates { routing: routing.clone(), kind }), &[logits.into()]);
    }
    let chosen = one_hot(routing, &logits.device());
    let p = activation::softmax(logits, 2).unsqueeze_dim::<4>(3);
    let weights = chosen.matmul(p).squeeze_dim::<3>(3);
    match kind {
        GateKind::Released => weights,
        // Padding has a sum of 0, and weights of 0.
        GateKind::Paper => weights.clone() / weights.sum_dim(2).detach().clamp_min(f32::MIN_POSITIVE),
    }
}

/// Queries `[B,N,k,D]` of the chosen experts from `x [B,N,d]` and `w_query [E,d,D]`; 0 for padding.
pub fn expert_queries(x: Tensor<3>, w_query: Tensor<3>, routing: &Arc<Routing>) -> Tensor<4> {
    if uses_kernel(&x.device()) {
        let operator = ExpertQueries { routing: routing.clone() };
        return apply_forgetting_output(Arc::new(operator), &[x.into(), w_query.into()]);
    }
    let [batch, tokens, width] = x.dims();
    let [experts, _, head_width] = w_query.dims();
    let weight = stored_like(w_query, &x).permute([1, 0, 2]).reshape([width, experts * head_width]);
    let all = x.reshape([batch * tokens, width]).matmul(weight).reshape([batch, tokens, experts, head_width]);
    stored_like(one_hot(routing, &all.device()), &all).matmul(all)
}

/// Weighted outputs `[B,N,d]` of the chosen experts, added up, from `heads [B,N,k,D]`, their weights `[B,N,k]` and
/// `w_out [E,D,d]`; 0 for padding.
pub fn expert_outputs(heads: Tensor<4>, weights: Tensor<3>, w_out: Tensor<3>, routing: &Arc<Routing>) -> Tensor<3> {
    if uses_kernel(&heads.device()) {
        let operator = ExpertOutputs { routing: routing.clone() };
        return apply_forgetting_output(Arc::new(operator), &[heads.into(), weights.into(), w_out.into()]);
    }
    let [batch, tokens, _, head_width] = heads.dims();
    let [experts, _, width] = w_out.dims();
    let (weights, w_out) = (stored_like(weights, &heads), stored_like(w_out, &heads));
    let weighted = heads * weights.unsqueeze_dim::<4>(3);
    let chosen = stored_like(one_hot(routing, &weighted.device()), &weighted);
    let by_expert = chosen.swap_dims(2, 3).matmul(weighted);
    let joined = by_expert.reshape([batch * tokens, experts * head_width]);
    joined.matmul(w_out.reshape([experts * head_width, width])).reshape([batch, tokens, width])
}

/// `[B,N,k,E]`: 1 where the expert is in the slot of the token; padding has none.
fn one_hot(routing: &Routing, device: &Device) -> Tensor<4> {
    let (experts, active) = (routing.experts(), routing.active());
    let mut values = vec![0.0f32; routing.tokens() * active * experts];
    for t in (0..routing.tokens()).filter(|t| routing.is_real(*t)) {
        for (slot, expert) in routing.of(t).iter().enumerate() {
            values[(t * active + slot) * experts + *expert as usize] = 1.0;
        }
    }
    Tensor::from_data(TensorData::new(values, [routing.batch(), routing.queries(), active, experts]), device)
}
