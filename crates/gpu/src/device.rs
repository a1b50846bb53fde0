//! What a device can do.

use burn::tensor::DType;
use burn_cubecl::cubecl::{
    client::Client,
    ir::{ElemType, FloatKind, features::TypeUsage},
};

/// A float that the kernels may have in memory; sums are float32.
pub(crate) fn element(float: DType) -> Option<ElemType> {
    Some(ElemType::Float(match float {
        DType::F32 => FloatKind::F32,
        DType::F16 => FloatKind::F16,
        DType::BF16 => FloatKind::BF16,
        _ => return None,
    }))
}

/// Whether a device has this float and so many buffers a kernel.
pub(crate) fn supports(client: &Client, float: DType, buffers: usize) -> bool {
    let properties = client.properties();
    let usage = TypeUsage::Buffer | TypeUsage::Conversion;
    element(float).is_some_and(|element| properties.type_usage(element).is_superset(usage))
        && properties.hardware.max_bindings as usize >= buffers
}
