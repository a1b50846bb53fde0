//! What a forward pass knows beside its inputs.

use regard_kernels::random::substream;

/// Whether a forward pass trains, and which draws of dropout are its own.
///
/// Every mask of dropout is a function of `(seed, step, micro_batch, layer, place)` and nothing else, so that a run
/// resumed at a step draws what the whole run would have drawn there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// Dropout acts, and buffers that follow the data are updated.
    pub training: bool,
    /// Seed of the run.
    pub seed: u64,
    /// Optimizer step.
    pub step: u64,
    /// Batch within the step, where gradients are accumulated.
    pub micro_batch: u64,
    layer: u64,
}

/// Where in a layer dropout acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// The same inside layer `layer`; 0 is the embedding.
    #[must_use]
    pub(crate) fn at_layer(self, layer: usize) -> Self {
        Self { layer: layer as u64, ..self }
    }

    /// Key of the draw at `place` of this layer.
    pub(crate) fn key(&self, place: Place) -> u64 {
        let path = [self.step, self.micro_batch, self.layer, place as u64];
        path.into_iter().fold(self.seed ^ DROPOUT_STREAM, substream)
    }
}

/// Keeps dropout apart from every other stream of the same seed ("dropout" in ASCII).
const DROPOUT_STREAM: u64 = 0x0064_726f_706f_7574;

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
            base.with_micro_batch(1).key(Place::Weights),
            Context::training(3, 6).at_layer(1).key(Place::Weights),
            Context::training(4, 5).at_layer(1).key(Place::Weights),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[..i].contains(key), "key {i} repeats an earlier one");
        }
        assert_eq!(keys[0], Context::training(3, 5).at_layer(1).key(Place::Weights));
    }
}
