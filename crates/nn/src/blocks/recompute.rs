//! Gradient checkpointing: a block that is computed again in the backward pass.

use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use regard_kernels::{Error, Mask, Operator, Reference, Saved, View};

use super::{Block, Context};
use crate::{attention::Attention, ops};

/// [`Block::forward`], of which only the input is kept for the backward pass.
///
/// What stays in memory falls from all activations of a block (about `N (12 d + 4 feed_forward)` numbers a sequence) to
/// its input (`N d`), at the price of one more forward pass; beside that, all blocks together hold one more copy of their
/// parameters. Values and gradients are the same to the bit: dropout draws by key, and the prior of soft-EM is that of the
/// first pass. Devices without kernels keep everything; there, Burn's own `Device::gradient_checkpointing` recomputes
/// element-wise operations.
pub(crate) fn recomputed(
    block: &Block,
    shared: Option<&Attention>,
    x: Tensor<3>,
    mask: &Mask,
    context: &Context,
) -> Tensor<3> {
    if !ops::runs_kernels(&x.device()) {
        return block.forward(x, mask, shared, context);
    }
    let parameters = flat(block, shared);
    let running = Part { block: block.valid(), shared: shared.map(Module::valid) };
    let frozen = Part { block: block.valid(), shared: shared.map(Module::valid) };
    let operator = Arc::new(Recompute { running: running.clone(), frozen, mask: mask.clone(), context: context.clone() });
    let out = ops::apply(operator, &[x.into(), parameters.into()]);
    block.adopt_buffers(&running.block);
    out
}

/// A block with the attention that it may share.
#[derive(Clone, Debug)]
struct Part {
    block: Block,
    shared: Option<Attention>,
}

impl Part {
    fn forward(&self, x: Tensor<3>, mask: &Mask, context: &Context) -> Tensor<3> {
        self.block.forward(x, mask, self.shared.as_ref(), context)
    }
}

/// Inputs `x [B,N,d]` and all trained parameters of the block, one after the other.
#[derive(Debug)]
struct Recompute {
    /// Runs the forward pass, which may change its buffers.
    running: Part,
    /// Has the buffers from before.
    frozen: Part,
    mask: Mask,
    context: Context,
}

impl Operator for Recompute {
    fn inputs(&self) -> Vec<&'static str> {
        vec!["x", "parameters"]
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        if shapes[0].len() != 3 {
            return Err(Error::rank("x", shapes[0], 3));
        }
        Ok(shapes[0].to_vec())
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        let x = tensor(&inputs[0], inputs[0].data, &Device::flex());
        let y = self.running.forward(x, &self.mask, &self.context).into_data();
        out.copy_from_slice(y.as_slice().expect("f32"));
        Saved::new()
    }

    fn backward(
        &self,
        inputs: &[View<f32>],
        _: &[f32],
        _: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        let device = Device::flex().autodiff();
        let x = tensor(&inputs[0], inputs[0].data, &device).require_grad();
        let part =
            Part { block: self.frozen.block.clone().train(), shared: self.frozen.shared.clone().map(Module::train) };
        // What routers did is on record since the first pass.
        let context = self.context.clone().without_router_log();
        let out = part.forward(x.clone(), &self.mask, &context);
        let grads = (out * tensor(&inputs[0], grad_out, &device)).sum().backward();
        let grad_x = || x.grad(&grads).expect("x is tracked").into_data().try_to_vec().expect("f32");
        vec![wanted[0].then(grad_x), wanted[1].then(|| flat_grads(&part, &grads))]
    }

    fn reference(&self, _: &[View<f64>], _: Option<&[f64]>) -> Reference {
        unreachable!("a block is made of operators; only those have float64 twins")
    }
}

fn tensor(like: &View<f32>, data: &[f32], device: &Device) -> Tensor<3> {
    Tensor::from_data(TensorData::new(data.to_vec(), like.shape), device)
}

/// All trained parameters, `[count]`, in the order of the fields.
fn flat(block: &Block, shared: Option<&Attention>) -> Tensor<1> {
    struct Collect(Vec<Tensor<1>>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            if value.is_require_grad() {
                self.0.push(value.flatten(0, D - 1));
            }
        }
    }
    let mut collect = Collect(Vec::new());
    block.visit(&mut collect);
    if let Some(shared) = shared {
        shared.visit(&mut collect);
    }
    Tensor::cat(collect.0, 0)
}

/// Gradients of the same parameters, in the same order; 0 for one that took no part.
fn flat_grads(part: &Part, grads: &Gradients) -> Vec<f32> {
    struct Collect<'a>(Vec<f32>, &'a Gradients);
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            if !value.is_require_grad() {
                return;
            }
            match value.grad(self.1) {
                Some(grad) => self.0.extend_from_slice(grad.into_data().as_slice().expect("f32")),
                None => self.0.resize(self.0.len() + value.shape().num_elements(), 0.0),
            }
        }
    }
    let mut collect = Collect(Vec::new(), grads);
    part.block.visit(&mut collect);
    if let Some(shared) = &part.shared {
        shared.visit(&mut collect);
    }
    collect.0
}
