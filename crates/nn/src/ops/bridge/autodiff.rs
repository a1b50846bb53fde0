//! The hand-written backward pass of every operator, recorded in Burn's graph.

use std::sync::Arc;

use burn::backend::{Autodiff, AutodiffBackend, Flex, tensor::FloatTensor};
use burn_autodiff::{
    NodeId,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn_flex::FlexTensor;
use regard_kernels::{Operator, Saved};

use super::{Call, Keep, Kernels, flex, operands::Operands};

impl<C: CheckpointStrategy> Kernels for Autodiff<Flex, C> {
    fn run(call: Call, inputs: Operands<Self>) -> FloatTensor<Self> {
        let inputs = inputs.into_vec();
        let primitives: Vec<_> = inputs.iter().map(|input| input.primitive().clone()).collect();
        let (out, saved) = flex::forward(&call, &primitives);
        if !inputs.iter().any(|input| input.is_tracked()) {
            return Self::from_inner(out);
        }
        let record = match inputs.len() {
            1 => record::<C, 1>,
            2 => record::<C, 2>,
            3 => record::<C, 3>,
            4 => record::<C, 4>,
            5 => record::<C, 5>,
            6 => record::<C, 6>,
            7 => record::<C, 7>,
            8 => record::<C, 8>,
            count => unreachable!("{count} operands"),
        };
        record(call, &inputs, out, saved)
    }

    fn multiply(_: Operands<Self>) -> FloatTensor<Self> {
        unreachable!("only tensors without autodiff go there")
    }
}

/// Enters the call into the graph. Counts as compute-bound, so that gradient checkpointing never runs a kernel twice;
/// inputs go through the checkpointer, which may recompute cheap ones instead of keeping them.
fn record<C: CheckpointStrategy, const N: usize>(
    call: Call,
    inputs: &[FloatTensor<Autodiff<Flex, C>>],
    out: FlexTensor,
    saved: Saved,
) -> FloatTensor<Autodiff<Flex, C>> {
    let inputs: &[_; N] = inputs.try_into().expect("N inputs");
    match Pullback.prepare::<C>(inputs.each_ref().map(|input| input.node())).compute_bound().stateful() {
        OpsKind::Tracked(mut prep) => {
            let inputs = (call.keep != Keep::Neither).then(|| inputs.each_ref().map(|input| prep.checkpoint(input)));
            let kept = (call.keep == Keep::InputsAndOutput).then(|| out.clone());
            prep.finish(Recorded { operator: call.operator, inputs, out: kept, saved: Arc::new(saved) }, out)
        }
        OpsKind::UnTracked(prep) => prep.finish(out),
    }
}

/// What the backward pass needs of a forward pass.
#[derive(Clone, Debug)]
struct Recorded<const N: usize> {
    operator: Arc<dyn Operator>,
    /// None where the gradient of the output stands for them.
    inputs: Option<[NodeId; N]>,
    out: Option<FlexTensor>,
    saved: Arc<Saved>,
}

#[derive(Debug)]
struct Pullback;

impl<const N: usize> Backward<Flex, N> for Pullback {
    type State = Recorded<N>;

    fn backward(self, ops: Ops<Recorded<N>, N>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let grad_out = grads.consume::<Flex>(&ops.node);
        let Recorded { operator, inputs, out, saved } = ops.state;
        let inputs = match inputs {
            Some(inputs) => inputs.map(|input| checkpointer.retrieve_node_output::<FlexTensor>(input)),
            None => std::array::from_fn(|_| grad_out.clone()),
        };
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let results = flex::backward(&*operator, &inputs, out.as_ref(), &saved, grad_out, &wanted);
        for ((parent, grad), name) in ops.parents.into_iter().zip(results).zip(operator.inputs()) {
            match (parent, grad) {
                (Some(parent), Some(grad)) => grads.register::<Flex>(parent.id, grad),
                // Random draws have no gradient, tracked or not.
                (Some(_), None) if operator.constants().contains(&name) => {}
                (Some(_), None) => panic!("{operator:?} left out the gradient of '{name}', which was wanted"),
                (None, _) => {}
            }
        }
    }
}
