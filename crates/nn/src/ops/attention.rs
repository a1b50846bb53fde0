//! The attention of any mechanism.

use burn::tensor::{Device, Tensor};
use regard_kernels::{AttentionOptions, Call, Mechanism};

use super::{
    Inputs, Operand, additive, apply, composed::uses_kernel, cosine, gaussian_mixture, linear, scatterbrain, softmax,
    stored_as,
};
use crate::blocks::Spread;

/// The output of the operator that `options` name: `[B,N,H,Dv]`, for additive attention `[B,N,H*D]`.
///
/// The CPU runs the kernel with its hand-written backward pass; other devices run a fused kernel where there is one that takes
/// the call ([`runs_fused`]), or else compose tensor operations.
///
/// # Panics
/// Inputs that are missing or do not fit each other, the options or the mask; an output that has not `D` axes.
pub fn attention<const D: usize>(options: &AttentionOptions, call: Call, inputs: &Inputs) -> Tensor<D> {
    let call = Call { bias: inputs.operand("bias").is_some(), ..call };
    if uses_kernel(&inputs.device()) {
        let operator = options.operator(call).unwrap_or_else(|error| panic!("{error}"));
        let operands = inputs.operands(&operator.inputs());
        return apply(operator, &operands);
    }
    let format = inputs.tensor::<4>("q").dtype().into();
    // Their blocks convert what they read; the others add up keys from the start, which must be in f32.
    let single = match options.mechanism {
        Mechanism::Softmax | Mechanism::Gaussian | Mechanism::Mgk => inputs.clone(),
        _ => inputs.single(),
    };
    let inputs = &single;
    let out = match options.mechanism {
        Mechanism::Softmax => softmax::composed(inputs, call),
        Mechanism::Cosine => cosine::composed(inputs, call),
        Mechanism::Gaussian | Mechanism::Mgk => gaussian_mixture::composed(inputs, options, call),
        Mechanism::Linear | Mechanism::Mlk => linear::composed(inputs, call),
        Mechanism::Performer | Mechanism::Sparse | Mechanism::Scatterbrain => {
            scatterbrain::composed(inputs, options, call)
        }
        Mechanism::Fastformer => {
            let out = additive::composed(inputs, options.fastformer.scores, call);
            return Operand::from(stored_as(out, format)).into_tensor();
        }
        other => panic!("mechanism '{other}' is no operator of attention alone"),
    };
    Operand::from(stored_as(out, format)).into_tensor()
}

/// [`attention`] of this rank's tokens to those of all, by kernels.
///
/// # Panics
/// Inputs that do not fit, or of a device without kernels.
pub(crate) fn spread_attention<const D: usize>(
    spread: &dyn Spread,
    options: &AttentionOptions,
    call: Call,
    inputs: &Inputs,
) -> Tensor<D> {
    assert!(uses_kernel(&inputs.device()), "tokens are spread over ranks on the CPU alone");
    let operator = spread.attention(options, call);
    let operands = inputs.operands(&operator.inputs());
    apply(operator, &operands)
}

/// Whether `device` has fused kernels for calls with these options, under a causal mask or one that is not: with the feature of a
/// GPU, on that. Calls with dropout on weights or a bias are composed all the same.
pub fn runs_fused(options: &AttentionOptions, causal: bool, device: &Device) -> bool {
    #[cfg(feature = "cube")]
    return super::fused::takes(options, causal) && super::fused::serves(device);
    #[cfg(not(feature = "cube"))]
    {
        let _ = (options, causal, device);
        false
    }
}
