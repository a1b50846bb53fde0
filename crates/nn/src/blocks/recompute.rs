//! Gradient checkpointing: a block that is computed again in the backward pass.

use std::{fmt::Debug, sync::Arc};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use regard_kernels::{Error, Mask, Operator, Padding, Reference, Saved, View};

use super::{Block, Context, DecoderBlock, Memory};
use crate::{
    attention::Attention,
    ops::{self, Operand},
};

/// [`Block::forward`], of which only the input is kept for the backward pass.
///
/// What stays in memory falls from all activations of a block (about `N (12 d + 4 feed_forward)` numbers per sequence) to
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
    run(block, shared, vec![x], mask, context)
}

/// [`DecoderBlock::forward`], likewise. All blocks read the same memory, which is kept once; their gradients of it are
/// added in another order than without recomputing.
pub(crate) fn recomputed_decoder(
    block: &DecoderBlock,
    shared: Option<&Attention>,
    x: Tensor<3>,
    padding: Option<Arc<Padding>>,
    memory: &Memory,
    context: &Context,
) -> Tensor<3> {
    run(block, shared, vec![x, memory.states.clone()], &[padding, memory.padding.clone()], context)
}

fn run<L: Layer>(
    block: &L,
    shared: Option<&Attention>,
    inputs: Vec<Tensor<3>>,
    masks: &L::Masks,
    context: &Context,
) -> Tensor<3> {
    if !ops::runs_kernels(&inputs[0].device()) {
        return block.pass(inputs, masks, shared, context);
    }
    let part = || Part { block: block.valid(), shared: shared.map(Module::valid) };
    let running = part();
    let parameters = flat(block, shared);
    let operator = Arc::new(Recompute {
        running: running.clone(),
        frozen: part(),
        masks: masks.clone(),
        context: context.clone(),
    });
    let mut operands: Vec<Operand> = inputs.into_iter().map(Operand::from).collect();
    operands.push(parameters.into());
    let out = ops::apply(operator, &operands);
    block.adopt(&running.block);
    out
}

/// A block that can be run again.
trait Layer: Module + Debug + Send + Sync + 'static {
    /// What it knows of its inputs beside their numbers.
    type Masks: Clone + Debug + Send + Sync;
    /// Names of its inputs, each `[B,..,d]`, and of all its parameters.
    const INPUTS: &'static [&'static str];

    fn pass(
        &self,
        inputs: Vec<Tensor<3>>,
        masks: &Self::Masks,
        shared: Option<&Attention>,
        context: &Context,
    ) -> Tensor<3>;

    /// Takes over the buffers of a copy that saw one more batch.
    fn adopt(&self, other: &Self);
}

impl Layer for Block {
    type Masks = Mask;
    const INPUTS: &'static [&'static str] = &["x", "parameters"];

    fn pass(&self, inputs: Vec<Tensor<3>>, mask: &Mask, shared: Option<&Attention>, context: &Context) -> Tensor<3> {
        let [x] = inputs.try_into().expect("one input");
        self.forward(x, mask, shared, context)
    }

    fn adopt(&self, other: &Self) {
        self.adopt_buffers(other);
    }
}

impl Layer for DecoderBlock {
    type Masks = [Option<Arc<Padding>>; 2];
    const INPUTS: &'static [&'static str] = &["x", "memory", "parameters"];

    fn pass(
        &self,
        inputs: Vec<Tensor<3>>,
        [own, memory]: &Self::Masks,
        shared: Option<&Attention>,
        context: &Context,
    ) -> Tensor<3> {
        let [x, states] = inputs.try_into().expect("two inputs");
        self.forward(x, own.clone(), &Memory { states, padding: memory.clone() }, shared, context)
    }

    fn adopt(&self, other: &Self) {
        self.adopt_buffers(other);
    }
}

/// A block with the attention that it may share.
#[derive(Clone, Debug)]
struct Part<L> {
    block: L,
    shared: Option<Attention>,
}

/// Inputs of the block and all its trained parameters, one after the other.
#[derive(Debug)]
struct Recompute<L: Layer> {
    /// Runs the forward pass, which may change its buffers.
    running: Part<L>,
    /// Has the buffers from before.
    frozen: Part<L>,
    masks: L::Masks,
    context: Context,
}

impl<L: Layer> Recompute<L> {
    fn pass(&self, part: &Part<L>, inputs: Vec<Tensor<3>>, context: &Context) -> Tensor<3> {
        part.block.pass(inputs, &self.masks, part.shared.as_ref(), context)
    }
}

impl<L: Layer> Operator for Recompute<L> {
    fn inputs(&self) -> Vec<&'static str> {
        L::INPUTS.to_vec()
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        if shapes[0].len() != 3 {
            return Err(Error::rank("x", shapes[0], 3));
        }
        Ok(shapes[0].to_vec())
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        let blocks = inputs[..inputs.len() - 1].iter().map(|input| tensor(input, input.data, &Device::flex()));
        let y = self.pass(&self.running, blocks.collect(), &self.context).into_data();
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
        let (_, blocks) = inputs.split_last().expect("parameters come last");
        let blocks: Vec<_> = blocks.iter().map(|input| tensor(input, input.data, &device).require_grad()).collect();
        let part =
            Part { block: self.frozen.block.clone().train(), shared: self.frozen.shared.clone().map(Module::train) };
        // What routers and blocks did is on record since the first pass.
        let context = self.context.clone().without_logs();
        let out = self.pass(&part, blocks.clone(), &context);
        let grads = (out * tensor(&inputs[0], grad_out, &device)).sum().backward();
        let of = |x: &Tensor<3>| x.grad(&grads).expect("inputs are tracked").into_data().try_to_vec().expect("f32");
        let mut all: Vec<_> = blocks.iter().zip(wanted).map(|(x, wanted)| wanted.then(|| of(x))).collect();
        all.push(wanted[blocks.len()].then(|| flat_grads(&part, &grads)));
        all
    }

    fn reference(&self, _: &[View<f64>], _: Option<&[f64]>) -> Reference {
        unreachable!("a block is made of operators; only those have float64 twins")
    }
}

fn tensor(like: &View<f32>, data: &[f32], device: &Device) -> Tensor<3> {
    Tensor::from_data(TensorData::new(data.to_vec(), like.shape), device)
}

/// All trained parameters, `[count]`, in the order of the fields.
fn flat<L: Layer>(block: &L, shared: Option<&Attention>) -> Tensor<1> {
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
fn flat_grads<L: Layer>(part: &Part<L>, grads: &Gradients) -> Vec<f32> {
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
