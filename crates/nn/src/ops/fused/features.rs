//! Causal attention with weights of positive features.

use std::sync::Arc;

use burn::tensor::Tensor;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use regard_gpu::{FeatureOperands, FeatureOutputs, feature_backward, feature_forward};

use super::{counts, is_for, primitive};
use crate::ops::{Operand, Pullback, entered, takes_results};

/// `phi(q_i) sum_{j <= i} phi(k_j) v_j / phi(q_i) sum_{j <= i} phi(k_j)` of log features `q k [B,H,N,m]`, `v [B,H,N,Dv]`:
/// `[B,H,N,Dv]`, or nothing where the kernels cannot take the call, or the device has none.
pub(in crate::ops) fn causal(q: &Tensor<4>, k: &Tensor<4>, v: &Tensor<4>) -> Option<Tensor<4>> {
    let device = q.device();
    if !is_for(&device) || q.dims()[2] != k.dims()[2] {
        return None;
    }
    let inputs: Vec<Operand> = [q, k, v].into_iter().map(Operand::from).collect();
    let tensors = inputs.iter().map(|input| primitive(input.clone().without_autodiff())).collect();
    let operands = operands(tensors);
    if !operands.taken() {
        return None;
    }
    counts([1, 0]);
    let outputs = feature_forward(operands);
    let result = Tensor::from_primitive::<CubeBackend>(outputs.out.clone());
    Some(match takes_results(&device) {
        true => entered(result, inputs, Vec::new(), Arc::new(Recorded { outputs })),
        false => result,
    })
}

pub(super) fn operands(tensors: Vec<CubeTensor>) -> FeatureOperands {
    let [q, k, v] = tensors.try_into().expect("q, k and v");
    FeatureOperands { q, k, v }
}

/// The backward pass.
#[derive(Debug)]
struct Recorded {
    outputs: FeatureOutputs,
}

impl Pullback for Recorded {
    fn backward(&self, kept: Vec<Operand>, grad_out: Operand, wanted: &[bool]) -> Vec<Option<Operand>> {
        counts([0, 1]);
        let grads = gradients(kept, &self.outputs, grad_out);
        grads.into_iter().zip(wanted).map(|(grad, wanted)| wanted.then_some(grad)).collect()
    }
}

/// Gradients of `q k v`.
pub(super) fn gradients(inputs: Vec<Operand>, outputs: &FeatureOutputs, grad_out: Operand) -> [Operand; 3] {
    let inputs = operands(inputs.into_iter().map(primitive).collect());
    let FeatureOperands { q, k, v } = feature_backward(inputs, outputs, primitive(grad_out));
    [q, k, v].map(|tensor| Tensor::<4>::from_primitive::<CubeBackend>(tensor).into())
}
