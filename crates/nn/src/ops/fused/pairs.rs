//! Softmax over keys of one or several components.

use std::sync::Arc;

use burn::tensor::{FloatDType, Tensor};
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use regard_gpu as gpu;
use regard_kernels::Mask;

use super::{constant, counts, is_for, primitive};
use crate::ops::{Operand, Pullback, entered, single, takes_results};

/// Softmax over keys of one or several components, whose padding is silent.
pub(in crate::ops) struct Scored<'a> {
    /// `[B,N,H,D]`.
    pub q: Tensor<4>,
    /// `[B,S,M,Hk,D]`.
    pub k: Tensor<5>,
    /// `[B,S,Hk,Dv]`.
    pub v: Tensor<4>,
    /// What the products of a component are multiplied by, `[M]`.
    pub inverse: Tensor<1>,
    /// `[H,M]` or `[H,M,S]`.
    pub log_prior: Option<Operand>,
    /// ALiBi, one for each head.
    pub slopes: Option<&'a [f32]>,
    /// Half squared distances, negative, take the place of products.
    pub distances: bool,
    /// Which keys a query sees.
    pub mask: &'a Mask,
}

/// The outputs `[B,N,H,Dv]`, or nothing where the kernels cannot take the call, or the device has none.
pub(in crate::ops) fn attend(scored: Scored) -> Option<Tensor<4>> {
    let device = scored.q.device();
    let Prepared { inputs, fixed, operands } = prepare(scored)?;
    counts([1, 0]);
    let (out, log_sum_exp) = gpu::forward(fixed.call, operands);
    let result = Tensor::from_primitive::<CubeBackend>(out.clone());
    Some(match takes_results(&device) {
        true => entered(result, inputs, Vec::new(), Arc::new(Recorded { fixed, out, log_sum_exp })),
        false => result,
    })
}

/// A call that the kernels take.
pub(super) struct Prepared {
    /// `q k v inverse` and a log prior, if there is one, with autodiff where they have it.
    pub inputs: Vec<Operand>,
    pub fixed: Fixed,
    pub operands: gpu::Operands,
}

/// The call, if the kernels take it.
pub(super) fn prepare(scored: Scored) -> Option<Prepared> {
    let Scored { q, k, v, inverse, log_prior, slopes, distances, mask } = scored;
    let device = q.device();
    if !is_for(&device) {
        return None;
    }
    let [batch, _, heads, _] = q.dims();
    let keys = k.dims()[1];
    let inverse = single(inverse).into();
    let log_prior = log_prior.map(|prior| prior.stored_as(FloatDType::F32));
    let inputs = [Some(q.into()), Some(k.into()), Some(v.into()), Some(inverse), log_prior];
    let inputs: Vec<Operand> = inputs.into_iter().flatten().collect();
    let tensors = inputs.iter().map(|input| primitive(input.clone().without_autodiff())).collect();
    let fixed = Fixed {
        call: gpu::Call { distances, causal: mask.causal, window: mask.window },
        valid: mask.valid.as_ref().map(|valid| {
            let real: Vec<f32> = valid.as_slice().iter().map(|&real| f32::from(u8::from(real != 0))).collect();
            constant(real, [batch, keys], &device)
        }),
        slopes: slopes.map(|slopes| constant(slopes.to_vec(), [heads], &device)),
    };
    let operands = fixed.operands(tensors);
    gpu::takes(fixed.call, &operands).then_some(Prepared { inputs, fixed, operands })
}

/// What has no gradient.
#[derive(Debug)]
pub(super) struct Fixed {
    pub call: gpu::Call,
    valid: Option<CubeTensor>,
    slopes: Option<CubeTensor>,
}

impl Fixed {
    /// With `q k v inverse` and a log prior, if there is one.
    fn operands(&self, inputs: Vec<CubeTensor>) -> gpu::Operands {
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next().expect("q, k, v and inverse");
        let [q, k, v, inverse] = [next(), next(), next(), next()];
        let (valid, slopes) = (self.valid.clone(), self.slopes.clone());
        gpu::Operands { q, k, v, inverse, prior: inputs.next(), valid, slopes }
    }

    /// Gradients of these inputs, of outputs and log-sum-exp that are those of this call or of a whole that it is part of.
    pub(super) fn gradients(
        &self,
        inputs: Vec<Operand>,
        [out, log_sum_exp]: [CubeTensor; 2],
        grad_out: Operand,
    ) -> Vec<Operand> {
        let prior_axes = inputs.get(4).map(Operand::axes);
        let operands = self.operands(inputs.into_iter().map(primitive).collect());
        let grads = gpu::backward(self.call, operands, out, log_sum_exp, primitive(grad_out));
        let inverse = Tensor::<4>::from_primitive::<CubeBackend>(grads.inverse);
        let [batch, heads, tiles, components] = inverse.dims();
        let inverse = sum(inverse.reshape([batch * heads * tiles, components]), 0).reshape([components]);
        let prior = grads.prior.map(|prior| {
            let prior = Tensor::<4>::from_primitive::<CubeBackend>(prior);
            let [_, heads, components, keys] = prior.dims();
            let prior = sum(prior, 0).reshape([heads, components, keys]);
            match prior_axes {
                Some(2) => Operand::from(sum(prior, 2).reshape([heads, components])),
                _ => prior.into(),
            }
        });
        let of = |tensor| Tensor::<4>::from_primitive::<CubeBackend>(tensor).into();
        let k = Tensor::<5>::from_primitive::<CubeBackend>(grads.k).into();
        let all = [Some(of(grads.q)), Some(k), Some(of(grads.v)), Some(inverse.into()), prior];
        all.into_iter().flatten().collect()
    }
}

/// The backward pass.
#[derive(Debug)]
struct Recorded {
    fixed: Fixed,
    out: CubeTensor,
    log_sum_exp: CubeTensor,
}

impl Pullback for Recorded {
    fn backward(&self, kept: Vec<Operand>, grad_out: Operand, wanted: &[bool]) -> Vec<Option<Operand>> {
        counts([0, 1]);
        let grads = self.fixed.gradients(kept, [self.out.clone(), self.log_sum_exp.clone()], grad_out);
        grads.into_iter().zip(wanted).map(|(grad, wanted)| wanted.then_some(grad)).collect()
    }
}

/// Sums over an axis, which Burn 0.22 may get wrong where it has one element.
fn sum<const D: usize>(x: Tensor<D>, axis: usize) -> Tensor<D> {
    if x.dims()[axis] == 1 { x } else { x.sum_dim(axis) }
}
