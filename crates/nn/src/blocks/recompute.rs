//! Gradient checkpointing: a block that is computed again in the backward pass.

use std::{fmt::Debug, sync::Arc};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};
use regard_kernels::{Mask, Padding};

use super::{Block, Context, DecoderBlock, Memory};
use crate::{
    attention::Attention,
    ops::{self, Operand, Pullback},
};

/// [`Block::forward`], of which only the input is kept for the backward pass.
///
/// What stays in memory falls from all activations of a block (about `N (12 d + 4 feed_forward)` numbers per sequence) to
/// its input (`N d`), at the price of one more forward pass. Values and gradients are the same to the bit: dropout draws by
/// key, and the prior of soft-EM is that of the first pass. The block runs on the device of `x`, with kernels or without.
/// Devices whose graph takes no such results ([`ops::takes_results`]) keep everything; there, Burn's own
/// `Device::gradient_checkpointing` recomputes element-wise operations.
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
    if !ops::takes_results(&inputs[0].device()) {
        return block.pass(inputs, masks, shared, context);
    }
    let part = || Part { block: block.valid(), shared: shared.map(Module::valid) };
    // The pass may change the buffers of its copy; the backward pass starts with those from before.
    let (running, frozen) = (part(), part());
    let plain = inputs.iter().map(|input| input.clone().without_autodiff()).collect();
    let out = running.block.pass(plain, masks, running.shared.as_ref(), context);
    block.adopt(&running.block);
    // What routers and blocks did is on record now.
    let recompute = Recompute { part: frozen, masks: masks.clone(), context: context.clone().without_logs() };
    let inputs = inputs.into_iter().map(Operand::from).collect();
    ops::entered(out, inputs, vec![flat(block, shared).into()], Arc::new(recompute))
}

/// A block that can be run again.
trait Layer: Module + Debug + Send + Sync + 'static {
    /// Masks or padding of its inputs.
    type Masks: Clone + Debug + Send + Sync;

    fn pass(
        &self,
        inputs: Vec<Tensor<3>>,
        masks: &Self::Masks,
        shared: Option<&Attention>,
        context: &Context,
    ) -> Tensor<3>;

    /// Takes over the buffers of a copy that has seen one more batch.
    fn adopt(&self, other: &Self);
}

impl Layer for Block {
    type Masks = Mask;

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

/// The backward pass of a block: of its inputs, which are kept, and of all its trained parameters, one after the other.
#[derive(Debug)]
struct Recompute<L: Layer> {
    part: Part<L>,
    masks: L::Masks,
    context: Context,
}

impl<L: Layer> Pullback for Recompute<L> {
    fn backward(&self, kept: Vec<Operand>, grad_out: Operand, wanted: &[bool]) -> Vec<Option<Operand>> {
        let inputs = kept.into_iter().map(|input| input.into_tensor::<3>().autodiff().require_grad());
        let inputs: Vec<_> = inputs.collect();
        let part = Part { block: self.part.block.clone().train(), shared: self.part.shared.clone().map(Module::train) };
        let out = part.block.pass(inputs.clone(), &self.masks, part.shared.as_ref(), &self.context);
        let mut grads = (out * grad_out.into_tensor::<3>()).sum().backward();
        let gradients = inputs.iter().map(|input| input.grad_remove(&mut grads).expect("inputs are tracked").into());
        let gradients: Vec<Operand> = gradients.collect();
        let parameters = wanted.last().is_some_and(|wanted| *wanted).then(|| flat_grads(&part, &mut grads).into());
        let gradients = gradients.into_iter().map(Some).chain([parameters]);
        gradients.zip(wanted).map(|(gradient, wanted)| gradient.filter(|_| *wanted)).collect()
    }
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
fn flat_grads<L: Layer>(part: &Part<L>, grads: &mut Gradients) -> Tensor<1> {
    struct Collect<'a>(Vec<Tensor<1>>, &'a mut Gradients);
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            if !value.is_require_grad() {
                return;
            }
            let zeros = || Tensor::zeros(value.shape(), &value.device().without_autodiff());
            let grad = value.grad_remove(self.1).unwrap_or_else(zeros);
            self.0.push(grad.flatten(0, D - 1));
        }
    }
    let mut collect = Collect(Vec::new(), grads);
    part.block.visit(&mut collect);
    if let Some(shared) = &part.shared {
        shared.visit(&mut collect);
    }
    Tensor::cat(collect.0, 0)
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};
    use regard_kernels::Mechanism;

    use super::*;
    use crate::{attention::AttentionConfig, blocks::Init, config::ModelConfig};

    fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        ops::with_elements(&tensor, <[f32]>::to_vec)
    }

    /// What devices without kernels do, on the CPU.
    #[test]
    fn blocks_without_kernels_are_recomputed_too() {
        let config = ModelConfig { width: 8, layers: 1, feed_forward: 16, dropout: 0.1, ..ModelConfig::default() };
        let plain = Device::flex().autodiff();
        assert!(!ops::takes_results(&Device::flex()), "nothing is kept there");
        for device in [plain.clone(), plain.gradient_checkpointing()] {
            assert!(ops::takes_results(&device));
            for &mechanism in Mechanism::ALL {
                let options = AttentionConfig { mechanism, heads: 2, ..AttentionConfig::default() };
                let block = Block::new(&config, &options, 7, &Init::new(3, &device)).unwrap();
                let pass = |again: bool| {
                    let x: Vec<f32> = (0..2 * 7 * 8).map(|i| (i as f32 * 0.7).sin()).collect();
                    let x = Tensor::<3>::from_data(TensorData::new(x, [2, 7, 8]), &device).require_grad();
                    let context = Context::training(1, 0).at_layer(1);
                    let out = match again {
                        true => recomputed(&block, None, x.clone(), &Mask::none(), &context),
                        false => block.forward(x.clone(), &Mask::none(), None, &context),
                    };
                    let mut grads = (out.clone() * out.clone()).sum().backward();
                    let of_x = numbers(x.grad(&grads).expect("x is tracked"));
                    let part = Part { block: block.clone(), shared: None };
                    [numbers(out), of_x, numbers(flat_grads(&part, &mut grads))]
                };
                let [kept, again] = [false, true].map(|again| ops::force_composed(|| pass(again)));
                // Within rounding: gradients may be added in another order, and Burn's softmax rounds differently with and
                // without autodiff.
                for (kept, again) in kept.iter().zip(&again) {
                    let largest = kept.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                    let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-5 * largest;
                    assert!(!kept.iter().zip(again).any(far), "{mechanism}: {again:?}, expected {kept:?}");
                }
                assert!(again[2].iter().any(|grad| *grad != 0.0), "{mechanism}");
                assert_ne!(again, pass(true), "{mechanism}: the kernels round otherwise");
            }
        }
    }
}
