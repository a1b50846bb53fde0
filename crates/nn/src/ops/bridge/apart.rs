//! Results computed apart from Burn's graph, whose backward pass is made of tensors of any backend.

use std::{fmt::Debug, sync::Arc};

use burn::backend::{
    Autodiff, AutodiffBackend, Backend, BackendTensor, Dispatch, DispatchDevice, DispatchKindConversion,
    DispatchTensor, Flex, backend_extension, tensor::FloatTensor,
};
use burn::tensor::{Device, Tensor};
use burn_autodiff::{
    NodeId,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};

use super::{Operand, operands::Operands};

/// The backward pass of a result.
pub(crate) trait Pullback: Debug + Send + Sync {
    /// One gradient for each tensor that the result depends on, `None` where it is not `wanted`. `kept` are the tensors
    /// that were kept for this pass. All tensors, arguments and results, are without autodiff.
    fn backward(&self, kept: Vec<Operand>, grad_out: Operand, wanted: &[bool]) -> Vec<Option<Operand>>;
}

/// Backends whose graphs accept results that were computed apart.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
trait Apart: Backend {
    /// The first of `tensors`, which depends on all others. The first `kept` of these are kept for the backward pass.
    fn enter(pullback: Arc<dyn Pullback>, kept: usize, #[extension_type] tensors: Operands<Self>) -> FloatTensor<Self>;
}

/// Whether results can be entered into the graph of this device: one with autodiff.
pub(crate) fn takes_results(device: &Device) -> bool {
    matches!(device.as_dispatch(), DispatchDevice::Autodiff(_))
}

/// Enters `out`, which was computed without autodiff from `kept` and `others`, into their graph. In the backward pass
/// `pullback` gets `kept` and the gradient of `out` and returns the gradients of all of them.
///
/// # Panics
/// Tensors of a device for which [`takes_results`] is false.
pub(crate) fn entered<const D: usize>(
    out: Tensor<D>,
    kept: Vec<Operand>,
    others: Vec<Operand>,
    pullback: Arc<dyn Pullback>,
) -> Tensor<D> {
    let count = kept.len();
    let tensors = [Operand::from(out)].into_iter().chain(kept).chain(others).map(|operand| operand.0);
    Tensor::from_dispatch(Dispatch::enter(pullback, count, Operands::from_vec(tensors.collect())))
}

impl Apart for Flex {
    fn enter(_: Arc<dyn Pullback>, _: usize, _: Operands<Self>) -> FloatTensor<Self> {
        unreachable!("only tensors with autodiff go there")
    }
}

#[cfg(feature = "cube")]
impl Apart for burn_cubecl::CubeBackend {
    fn enter(_: Arc<dyn Pullback>, _: usize, _: Operands<Self>) -> FloatTensor<Self> {
        unreachable!("only tensors with autodiff go there")
    }
}

impl<B: Backend, C: CheckpointStrategy> Apart for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn enter(pullback: Arc<dyn Pullback>, kept: usize, tensors: Operands<Self>) -> FloatTensor<Self> {
        let mut tensors = tensors.into_vec();
        let out = tensors.remove(0).into_primitive();
        if !tensors.iter().any(|tensor| tensor.is_tracked()) {
            return Self::from_inner(out);
        }
        let record = match tensors.len() {
            1 => record::<B, C, 1>,
            2 => record::<B, C, 2>,
            3 => record::<B, C, 3>,
            4 => record::<B, C, 4>,
            5 => record::<B, C, 5>,
            6 => record::<B, C, 6>,
            7 => record::<B, C, 7>,
            count => unreachable!("a result of {count} tensors"),
        };
        record(pullback, kept, &tensors, out)
    }
}

fn record<B: Backend, C: CheckpointStrategy, const N: usize>(
    pullback: Arc<dyn Pullback>,
    kept: usize,
    tensors: &[FloatTensor<Autodiff<B, C>>],
    out: B::FloatTensorPrimitive,
) -> FloatTensor<Autodiff<B, C>>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let tensors: &[_; N] = tensors.try_into().expect("N tensors");
    let nodes = tensors.each_ref().map(|tensor| tensor.node());
    match <Step as Backward<B, N>>::prepare::<C>(Step, nodes).compute_bound().stateful() {
        OpsKind::Tracked(mut prep) => {
            let kept = tensors[..kept].iter().map(|tensor| prep.checkpoint(tensor)).collect();
            prep.finish(Recorded { pullback, kept }, out)
        }
        OpsKind::UnTracked(prep) => prep.finish(out),
    }
}

/// What the backward pass needs.
#[derive(Clone, Debug)]
struct Recorded {
    pullback: Arc<dyn Pullback>,
    kept: Vec<NodeId>,
}

#[derive(Debug)]
struct Step;

impl<B: Backend, const N: usize> Backward<B, N> for Step
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = Recorded;

    fn backward(self, ops: Ops<Recorded, N>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let operand = |tensor: B::FloatTensorPrimitive| {
            Operand(<DispatchTensor as DispatchKindConversion<B>>::from_backend(BackendTensor::Float(tensor)))
        };
        let grad_out = operand(grads.consume::<B>(&ops.node));
        let Recorded { pullback, kept } = ops.state;
        let kept = kept.into_iter().map(|id| operand(checkpointer.retrieve_node_output(id))).collect();
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let results = pullback.backward(kept, grad_out, &wanted);
        assert_eq!(results.len(), N, "{pullback:?} returned a wrong number of gradients");
        for (parent, grad) in ops.parents.into_iter().zip(results) {
            let Some(parent) = parent else { continue };
            let grad = grad.unwrap_or_else(|| panic!("{pullback:?} left out a gradient that was wanted"));
            let grad = <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(grad.0);
            grads.register::<B>(parent.id, grad.unwrap_or_else(|error| panic!("{pullback:?}: {error}")).float());
        }
    }
}
