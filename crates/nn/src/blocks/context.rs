//! What a forward pass knows besides its inputs.

use std::sync::Arc;

use burn::tensor::Tensor;
use regard_kernels::random::substream;

use super::{Activation, ActivationLog, HeadTap, HeadTaps, Part, Positions, RouterLog, Spread};
use crate::{
    attention::{Attention, AttentionLog, LayerLog, LayerRecord},
    config::Precision,
};

/// Whether a forward pass trains, and what identifies its draws of dropout.
///
/// Every mask of dropout is a function of `(seed, step, micro_batch, stack, layer, place)` and nothing else, so that a run
/// resumed at a step draws what the whole run would have drawn there.
#[derive(Clone, Debug)]
pub struct Context {
    /// Dropout acts, and buffers that follow the data are updated.
    pub training: bool,
    /// Seed of the run.
    pub seed: u64,
    /// Optimizer step.
    pub step: u64,
    /// Batch within the step, where gradients are accumulated.
    pub micro_batch: u64,
    /// What the mean loss of this batch is multiplied by before its gradient is taken: losses that layers add, as those of
    /// routers, are multiplied by it too.
    pub loss_scale: f64,
    /// In what activations are stored.
    pub precision: Precision,
    /// Log of what the routers of mixtures of heads do, if one is wanted.
    pub router: Option<Arc<RouterLog>>,
    /// Log of what attention computes, if one is wanted.
    pub attention: Option<Arc<AttentionLog>>,
    /// Where the gradients of the heads' outputs can be read after a backward pass, if they are wanted.
    pub taps: Option<Arc<HeadTaps>>,
    /// Log of the attention layers with what they read and gave, if one is wanted.
    pub layers: Option<Arc<LayerLog>>,
    /// Log of what blocks compute, if one is wanted.
    pub activations: Option<Arc<ActivationLog>>,
    /// The other ranks, where each has some of the tokens of every sequence.
    pub spread: Option<Arc<dyn Spread>>,
    stack: Stack,
    layer: u64,
}

/// Which stack of blocks a layer is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stack {
    /// The only one, or the one that reads the source.
    #[default]
    Encoder,
    /// The one that writes, where there are two.
    Decoder,
}

impl Default for Context {
    fn default() -> Self {
        Self {
            training: false,
            seed: 0,
            step: 0,
            micro_batch: 0,
            loss_scale: 1.0,
            precision: Precision::F32,
            router: None,
            attention: None,
            taps: None,
            layers: None,
            activations: None,
            spread: None,
            stack: Stack::default(),
            layer: 0,
        }
    }
}

/// Where in a layer dropout acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Sum of token and position vectors.
    Embedding,
    /// Normalised attention weights.
    Weights,
    /// What attention adds to the residual stream.
    Attention,
    /// Hidden channels of the feed-forward part.
    Hidden,
    /// What the feed-forward part adds to the residual stream.
    FeedForward,
    /// Normalised weights of attention to a second sequence.
    CrossWeights,
    /// What attention to a second sequence adds.
    CrossAttention,
}

impl Context {
    /// Nothing random and nothing updated.
    pub fn evaluation() -> Self {
        Self::default()
    }

    /// One batch of optimizer step `step`.
    pub fn training(seed: u64, step: u64) -> Self {
        Self { training: true, seed, step, ..Self::default() }
    }

    /// The same for batch `micro_batch` of the step.
    #[must_use]
    pub fn with_micro_batch(self, micro_batch: u64) -> Self {
        Self { micro_batch, ..self }
    }

    /// The same for a batch whose mean loss is multiplied by `loss_scale`.
    #[must_use]
    pub fn with_loss_scale(self, loss_scale: f64) -> Self {
        Self { loss_scale, ..self }
    }

    /// The same with activations stored in `precision`.
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The same, with routers writing into `log`.
    #[must_use]
    pub fn with_router_log(self, log: Arc<RouterLog>) -> Self {
        Self { router: Some(log), ..self }
    }

    /// The same, with attention writing into `log`.
    #[must_use]
    pub fn with_attention_log(self, log: Arc<AttentionLog>) -> Self {
        Self { attention: Some(log), ..self }
    }

    /// The same, with attention layers writing into `log` what they read and gave.
    #[must_use]
    pub fn with_layer_log(self, log: Arc<LayerLog>) -> Self {
        Self { layers: Some(log), ..self }
    }

    /// The same, with blocks writing into `log`.
    #[must_use]
    pub fn with_activation_log(self, log: Arc<ActivationLog>) -> Self {
        Self { activations: Some(log), ..self }
    }

    /// The same, with softmax attention leaving a tap at its heads' outputs.
    #[must_use]
    pub fn with_taps(self, taps: Arc<HeadTaps>) -> Self {
        Self { taps: Some(taps), ..self }
    }

    /// The same where each rank has some of the tokens.
    #[must_use]
    pub fn with_spread(self, spread: Arc<dyn Spread>) -> Self {
        Self { spread: Some(spread), ..self }
    }

    /// Where the tokens of this pass stand in their sequence.
    pub(crate) fn positions(&self) -> Positions<'_> {
        self.spread.as_ref().map_or(Positions::START, |spread| Positions::At(spread.positions()))
    }

    /// `out` unchanged, with a tap where they are wanted.
    pub(crate) fn tap(&self, out: Tensor<4>) -> Tensor<4> {
        let Some(taps) = &self.taps else { return out };
        let leaf = Tensor::zeros(out.dims(), &out.device()).require_grad();
        taps.push(HeadTap { layer: self.layer as usize, leaf: leaf.clone() });
        out + leaf
    }

    /// Writes `values` into the log of the pass, if there is one.
    pub(crate) fn record<const D: usize>(&self, part: Part, values: &Tensor<D>) {
        if let Some(log) = &self.activations {
            log.push(Activation::new(self.layer as usize, part, values.clone()));
        }
    }

    /// Writes a layer of attention into the log of the pass, if there is one.
    pub(crate) fn attended(&self, attention: &Attention, input: &Tensor<3>, output: &Tensor<3>) {
        if let Some(log) = &self.layers {
            let (layer, attention) = (self.layer as usize, attention.clone());
            log.push(LayerRecord { layer, attention, input: input.clone(), output: output.clone() });
        }
    }

    /// The same, without logs.
    #[must_use]
    pub(crate) fn without_logs(self) -> Self {
        Self { router: None, attention: None, layers: None, activations: None, taps: None, ..self }
    }

    /// The same inside layer `layer`; 0 is the embedding.
    #[must_use]
    pub(crate) fn at_layer(&self, layer: usize) -> Self {
        Self { layer: layer as u64, ..self.clone() }
    }

    /// The same inside stack `stack`.
    #[must_use]
    pub fn in_stack(&self, stack: Stack) -> Self {
        Self { stack, ..self.clone() }
    }

    /// Stack and layer.
    pub(crate) fn position(&self) -> (Stack, usize) {
        (self.stack, self.layer as usize)
    }

    /// Key of the draw at `place` of this layer.
    pub(crate) fn key(&self, place: Place) -> u64 {
        let path = [self.step, self.micro_batch, self.layer, place as u64];
        let key = path.into_iter().fold(self.seed ^ DROPOUT_STREAM, substream);
        match self.stack {
            Stack::Encoder => key,
            Stack::Decoder => substream(key, DECODER),
        }
    }

    /// Key of the draws of the router at `place` of this layer.
    pub(crate) fn router_key(&self, place: Place) -> u64 {
        substream(self.key(place), ROUTER)
    }
}

/// Keeps dropout apart from every other stream of the same seed ("dropout" in ASCII).
const DROPOUT_STREAM: u64 = 0x0064_726f_706f_7574;

/// Streams under the key of a place.
const DECODER: u64 = 1;
const ROUTER: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_coordinate_gives_a_key_of_its_own() {
        let base = Context::training(3, 5).at_layer(1);
        let keys = [
            base.key(Place::Weights),
            base.key(Place::Attention),
            base.at_layer(2).key(Place::Weights),
            base.clone().with_micro_batch(1).key(Place::Weights),
            Context::training(3, 6).at_layer(1).key(Place::Weights),
            Context::training(4, 5).at_layer(1).key(Place::Weights),
            base.in_stack(Stack::Decoder).key(Place::Weights),
            base.router_key(Place::Weights),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[..i].contains(key), "key {i} repeats an earlier one");
        }
        assert_eq!(keys[0], Context::training(3, 5).at_layer(1).key(Place::Weights));
    }
}
