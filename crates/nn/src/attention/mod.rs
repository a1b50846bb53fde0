//! Attention layers: projections around the operators of [`crate::ops`].
//!
//! Every layer maps queries `[B,N,d]` and keys `[B,S,d]` (the same tensor in self-attention) to `[B,N,d]`. A mechanism is
//! a file here, an operation in [`crate::ops`] and a variant of [`Attention`].

mod fastformer;
mod from_softmax;
mod gaussian_mixture;
mod keys;
mod linear;
mod mixture_of_heads;
mod multi_head;
mod planned;
mod projection;
mod record;
mod scatterbrain;
mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Tensor;
use regard_kernels::{Error, Mask, Mechanism, Padding, Storage};

pub use fastformer::Fastformer;
pub use gaussian_mixture::GaussianMixture;
pub use keys::KeyState;
pub use linear::LinearAttention;
pub use mixture_of_heads::MixtureOfHeads;
pub use multi_head::MultiHead;
pub use planned::{HeadPlan, Planned};
pub use record::{AttentionCall, AttentionLog, AttentionRecord, LayerLog, LayerRecord};
pub use scatterbrain::Scatterbrain;
pub use state::DecodeState;

pub use crate::config::{AttentionConfig, Attentions, reads_second_sequence, shared_by_layers};

use crate::{
    blocks::{Context, Init, Place, Positions, residual_gain},
    config::ModelConfig,
};
use projection::Heads;

/// One attention layer of any mechanism.
///
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use regard_kernels::Mechanism;
/// use regard_nn::{
///     attention::{Attention, AttentionConfig},
///     blocks::{Context, Init, Place},
///     config::ModelConfig,
/// };
///
/// let device = Device::flex().autodiff();
/// let model = ModelConfig { width: 32, ..ModelConfig::default() };
/// let options = AttentionConfig { mechanism: Mechanism::Linear, heads: 2, causal: true, ..AttentionConfig::default() };
/// let layer = Attention::new(&model, &options, 16, &Init::new(1, &device))?;
///
/// let x = Tensor::<3>::random([1, 16, 32], Distribution::Default, &device).require_grad();
/// let out = layer.forward(x.clone(), x.clone(), &layer.mask(None), &Context::training(1, 0), Place::Weights);
/// assert_eq!(out.dims(), [1, 16, 32]);
/// assert!(x.grad(&out.sum().backward()).is_some());
/// # Ok::<(), regard_kernels::Error>(())
/// ```
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // One value a block: the difference is a few hundred bytes a model.
pub enum Attention {
    /// Exact softmax attention, of products or of cosines.
    MultiHead(MultiHead),
    /// The Gaussian kernel and the mixture of Gaussian keys.
    GaussianMixture(GaussianMixture),
    /// Linear attention and the mixture of linear keys.
    Linear(LinearAttention),
    /// Performer, sparse attention, and the two together.
    Scatterbrain(Scatterbrain),
    /// Mixture of attention heads.
    MixtureOfHeads(MixtureOfHeads),
    /// Additive attention.
    Fastformer(Fastformer),
    /// Softmax attention in which some heads attend in another way.
    Planned(Planned),
}

/// Calls a method of whichever layer it is.
macro_rules! each {
    ($attention:expr, $layer:ident => $call:expr) => {
        match $attention {
            Attention::MultiHead($layer) => $call,
            Attention::GaussianMixture($layer) => $call,
            Attention::Linear($layer) => $call,
            Attention::Scatterbrain($layer) => $call,
            Attention::MixtureOfHeads($layer) => $call,
            Attention::Fastformer($layer) => $call,
            Attention::Planned($layer) => $call,
        }
    };
}

impl Attention {
    /// The layer that `options` name, in a model of `model`'s width whose longest sequence has `context` tokens; budgets
    /// refer to this length.
    ///
    /// # Errors
    /// Options that do not fit each other or the sizes.
    pub fn new(model: &ModelConfig, options: &AttentionConfig, context: usize, init: &Init) -> Result<Self, Error> {
        model.check(options)?;
        let options = &options.within_budget(context, context, model.head_width(options))?;
        let heads = Heads::new(model, options, context, residual_gain(model));
        Ok(match options.mechanism {
            Mechanism::Softmax | Mechanism::Cosine => Self::MultiHead(MultiHead::new(heads, init)),
            Mechanism::Gaussian | Mechanism::Mgk => Self::GaussianMixture(GaussianMixture::new(heads, init)?),
            Mechanism::Linear | Mechanism::Mlk => Self::Linear(LinearAttention::new(heads, init)),
            Mechanism::Performer | Mechanism::Sparse | Mechanism::Scatterbrain => {
                Self::Scatterbrain(Scatterbrain::new(heads, init)?)
            }
            Mechanism::Moa => Self::MixtureOfHeads(MixtureOfHeads::new(heads, init)?),
            Mechanism::Fastformer => Self::Fastformer(Fastformer::new(heads, init)),
        })
    }

    /// Attention of `queries [B,N,d]` to `keys [B,S,d]`. `place` identifies the draw of dropout on the weights.
    pub fn forward(
        &self,
        queries: Tensor<3>,
        keys: Tensor<3>,
        mask: &Mask,
        context: &Context,
        place: Place,
    ) -> Tensor<3> {
        self.attend(queries, self.project_keys(keys, context.positions()), mask, context, place)
    }

    /// Keys and values of `keys [B,S,d]` at these positions, for any number of calls of [`Attention::attend`].
    pub fn project_keys(&self, keys: Tensor<3>, at: Positions) -> KeyState {
        each!(self, layer => layer.project_keys(keys, at))
    }

    /// As [`Attention::forward`], to keys that this layer projected before.
    ///
    /// # Panics
    /// If a layer of another mechanism projected them.
    pub fn attend(
        &self,
        queries: Tensor<3>,
        keys: KeyState,
        mask: &Mask,
        context: &Context,
        place: Place,
    ) -> Tensor<3> {
        each!(self, layer => layer.attend(queries, keys, mask, context, place))
    }

    /// The mask of self-attention over a padded batch.
    pub fn mask(&self, padding: Option<Arc<Padding>>) -> Mask {
        each!(self, layer => layer.heads()).options.mask().with_valid(padding)
    }

    /// A fresh state for [`Attention::decode`], whose keys and values are kept as `storage` says.
    ///
    /// # Errors
    /// Attention that is not causal, that has no kernel, or whose kernel has no state under these options.
    pub fn decoder(&self, storage: Storage) -> Result<DecodeState, Error> {
        let heads = each!(self, layer => layer.heads());
        let options = &heads.options;
        options.check_kernel()?;
        if !options.causal {
            return Err(Error::option("causal", false, "true: only causal attention decodes token by token"));
        }
        let call = heads.call(self.mask(None), &Context::evaluation(), Place::Weights);
        let decoder = match self {
            Self::Scatterbrain(layer) => layer.decoder(call, storage)?,
            Self::MixtureOfHeads(layer) => layer.decoder(call, storage)?,
            Self::Planned(layer) => Some(layer.decoder(storage)?),
            _ => heads.kernel().operator(call)?.decoder(storage),
        };
        decoder.map(DecodeState::new).ok_or_else(|| options.no_decoder("mechanism"))
    }

    /// Self-attention of the next tokens `[B,N,d]` of every row to themselves and the tokens before them.
    ///
    /// The first call on a fresh state runs the kernel for whole sequences, where the mechanism has one; later tokens are
    /// decoded one by one.
    ///
    /// # Panics
    /// If [`DecodeState::check`] refuses the tokens.
    pub fn decode(&self, tokens: Tensor<3>, state: &mut DecodeState) -> Tensor<3> {
        let count = tokens.dims()[1];
        match self {
            Self::MixtureOfHeads(_) | Self::Fastformer(_) if count > 1 => {
                Tensor::cat((0..count).map(|at| self.decode(tokens.clone().narrow(1, at, 1), state)).collect(), 1)
            }
            _ => each!(self, layer => layer.decode(tokens, state)),
        }
    }

    /// Softmax attention with the heads of `plan` changed, from what it was at first; `seed` draws what mechanisms draw. An
    /// empty plan gives the layer as it was. A mixture of keys takes the whole layer, with parameters of its own that begin as
    /// near the trained layer as they can.
    ///
    /// # Errors
    /// Attention other than softmax; heads, mechanisms or options that cannot stand there.
    pub fn planned(self, plan: &[HeadPlan], seed: u64) -> Result<Self, Error> {
        let layer = match self {
            Self::MultiHead(layer) if layer.heads().options.mechanism == Mechanism::Softmax => layer,
            Self::Planned(layer) => layer.into_multi_head(),
            other => {
                let seen = each!(&other, layer => layer.heads()).options.label();
                return Err(Error::option("mechanism of a planned layer", seen, "softmax"));
            }
        };
        if plan.is_empty() {
            return Ok(Self::MultiHead(layer));
        }
        if plan.iter().any(from_softmax::is_mixture) {
            return from_softmax::mixture(layer, plan, seed);
        }
        Planned::new(layer, plan, seed).map(Self::Planned)
    }

    /// Takes over the buffers of `other`, a copy of this layer that saw one more batch.
    pub(crate) fn adopt_buffers(&self, other: &Self) {
        match (self, other) {
            (Self::GaussianMixture(own), Self::GaussianMixture(other)) => own.adopt_prior(other),
            (Self::Scatterbrain(own), Self::Scatterbrain(other)) => own.adopt_projection(other),
            _ => {}
        }
    }
}
