//! Attention by the fused kernels of GPUs, with their own backward passes.

mod features;
mod pairs;
mod window;

#[cfg(test)]
use std::cell::Cell;

use burn::backend::DispatchDevice;
use burn::tensor::{Device, Tensor, TensorData};
use burn_cubecl::{CubeBackend, CubeDevice, tensor::CubeTensor};
use regard_kernels::{
    AttentionOptions, Mechanism,
    mechanism::{Combination, Inference},
    support::SupportKind,
};

use super::{Operand, bridge::each_rank, composed::is_forced};
pub(super) use features::causal;
pub(super) use pairs::{Scored, attend};
pub(super) use window::{Far, window};

/// Whether calls with these options are fused, without dropout on weights and without a bias: where the mask is causal, or under any.
pub(super) fn takes(options: &AttentionOptions, causal: bool) -> bool {
    let local = options.support.kind == SupportKind::Local;
    match options.mechanism {
        Mechanism::Softmax | Mechanism::Cosine | Mechanism::Gaussian | Mechanism::Moa => true,
        Mechanism::Mgk => options.mixture.inference != Inference::Hard,
        Mechanism::Linear | Mechanism::Mlk | Mechanism::Performer | Mechanism::Fastformer => causal,
        Mechanism::Sparse => local,
        Mechanism::Scatterbrain => match options.scatterbrain.combination {
            Combination::Corrected => causal && local,
            // The sparse part at least.
            Combination::Gated => local,
            Combination::Naive => false,
        },
    }
}

#[cfg(test)]
thread_local! {
    static PASSES: Cell<[usize; 2]> = const { Cell::new([0; 2]) };
}

/// Forward and backward passes of fused kernels that the calling thread has started.
#[cfg(test)]
pub(crate) fn fused_passes() -> [usize; 2] {
    PASSES.get()
}

/// Notes forward and backward passes, for tests.
fn counts(_passes: [usize; 2]) {
    #[cfg(test)]
    PASSES.set(std::array::from_fn(|kind| PASSES.get()[kind] + _passes[kind]));
}

/// Whether tensors of this device may go to fused kernels.
pub(super) fn is_for(device: &Device) -> bool {
    !is_forced() && cube(device).is_some()
}

/// Whether this device can run the kernels, for heads of a usual width at least.
pub(super) fn serves(device: &Device) -> bool {
    cube(device).is_some_and(regard_gpu::serves)
}

/// A device of CubeCL, with or without autodiff.
fn cube(device: &Device) -> Option<&CubeDevice> {
    let device = match device.as_dispatch() {
        DispatchDevice::Autodiff(device) => &**device,
        device => device,
    };
    match device {
        DispatchDevice::Cube(device) => Some(device),
        _ => None,
    }
}

fn constant<const D: usize>(numbers: Vec<f32>, shape: [usize; D], device: &Device) -> CubeTensor {
    let device = device.clone().without_autodiff();
    primitive(Tensor::<D>::from_data(TensorData::new(numbers, shape), &device).into())
}

fn primitive(operand: Operand) -> CubeTensor {
    each_rank!(operand, tensor => tensor.try_into_primitive::<CubeBackend>().expect("a tensor of CubeCL"))
}
