//! Scores on a window, and features of what lies before it.

use std::sync::Arc;

use burn::tensor::Tensor;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use regard_gpu::{self as gpu, FeatureOutputs, UNSEEN, feature_forward};

use super::{
    counts, features,
    pairs::{Fixed, Prepared, Scored, prepare},
    primitive,
};
use crate::ops::{Operand, Pullback, entered, takes_results};

/// Log features of the tokens, of which queries see those of keys that are further back than the window.
pub(in crate::ops) struct Far {
    /// `[B,H,N,m]`.
    pub q: Tensor<4>,
    /// `[B,H,N,m]`, hidden at padding.
    pub k: Tensor<4>,
    /// `[B,H,N,Dv]`.
    pub v: Tensor<4>,
}

/// Averages `[B,N,H,Dv]` of values with weights `exp(score)` for keys of the causal window of `near.mask`, and products of features
/// for those before it; nothing where the kernels cannot take both, or the device has none.
pub(in crate::ops) fn window(near: Scored, far: Far) -> Option<Tensor<4>> {
    let device = near.q.device();
    let reach = near.mask.window.filter(|_| near.mask.causal)?;
    let tokens = near.q.dims()[1];
    // The first query that has keys before its window.
    let first = reach.saturating_add(1);
    if first >= tokens {
        return super::attend(near);
    }
    let rest = tokens - first;
    let far = [far.q.narrow(2, first, rest), far.k.narrow(2, 0, rest), far.v.narrow(2, 0, rest)].map(Operand::from);
    let Prepared { mut inputs, fixed, operands } = prepare(near)?;
    let far_operands = features::operands(far.iter().map(|x| primitive(x.clone().without_autodiff())).collect());
    if !far_operands.taken() {
        return None;
    }
    counts([1, 0]);
    let near_count = inputs.len();
    inputs.extend(far);
    let (near_out, near_log) = gpu::forward(fixed.call, operands);
    let far = feature_forward(far_operands);
    let [out, log] = join([near_out, near_log], &far, first);
    let result = Tensor::<4>::from_primitive::<CubeBackend>(out.clone());
    Some(match takes_results(&device) {
        true => {
            let recorded = Recorded { fixed, near_count, far, out, log, first };
            entered(result, inputs, Vec::new(), Arc::new(recorded))
        }
        false => result,
    })
}

/// Outputs `[B,N,H,Dv]` and log-sum-exp `[B,H,N]` of both.
fn join([out, log]: [CubeTensor; 2], far: &FeatureOutputs, first: usize) -> [CubeTensor; 2] {
    let out = Tensor::<4>::from_primitive::<CubeBackend>(out).swap_dims(1, 2);
    let log = Tensor::<3>::from_primitive::<CubeBackend>(log);
    let far_out = Tensor::<4>::from_primitive::<CubeBackend>(far.out.clone());
    let far_log = Tensor::<3>::from_primitive::<CubeBackend>(far.logs.clone());
    let rest = far_log.dims()[2];
    // What is not seen has no weight.
    let seen = |log: Tensor<3>| {
        let none = log.clone().greater_equal_elem(UNSEEN);
        log.mask_fill(none, -UNSEEN)
    };
    let (near_log, far_log) = (seen(log.clone().narrow(2, first, rest)), seen(far_log));
    let most = near_log.clone().max_pair(far_log.clone());
    let (near, far) = ((near_log - most.clone()).exp(), (far_log - most.clone()).exp());
    let total = near.clone() + far.clone();
    let kind = out.dtype();
    let share = |of: Tensor<3>| (of / total.clone()).unsqueeze_dim::<4>(3).cast(kind);
    let both = out.clone().narrow(2, first, rest) * share(near) + far_out * share(far);
    let none = most.clone().lower_equal_elem(-UNSEEN);
    let both_log = (most + total.log()).mask_fill(none, UNSEEN);
    let out = Tensor::cat(vec![out.narrow(2, 0, first), both], 2).swap_dims(1, 2);
    let log = Tensor::cat(vec![log.narrow(2, 0, first), both_log], 2);
    [primitive(out.into()), primitive(log.into())]
}

/// The backward pass: each of both has the gradients of its part of the whole.
#[derive(Debug)]
struct Recorded {
    fixed: Fixed,
    near_count: usize,
    far: FeatureOutputs,
    out: CubeTensor,
    log: CubeTensor,
    first: usize,
}

impl Pullback for Recorded {
    fn backward(&self, mut kept: Vec<Operand>, grad_out: Operand, wanted: &[bool]) -> Vec<Option<Operand>> {
        counts([0, 1]);
        let far = kept.split_off(self.near_count);
        let mut grads = self.fixed.gradients(kept, [self.out.clone(), self.log.clone()], grad_out.clone());
        let rest = far[0].shape()[2];
        let head_first = |x: Tensor<4>| Operand::from(x.swap_dims(1, 2).narrow(2, self.first, rest));
        let out = head_first(Tensor::from_primitive::<CubeBackend>(self.out.clone()));
        let log = Tensor::<3>::from_primitive::<CubeBackend>(self.log.clone()).narrow(2, self.first, rest);
        let outputs = self.far.within(primitive(out), primitive(log.into()));
        grads.extend(features::gradients(far, &outputs, head_first(grad_out.into_tensor())));
        grads.into_iter().zip(wanted).map(|(grad, wanted)| wanted.then_some(grad)).collect()
    }
}
