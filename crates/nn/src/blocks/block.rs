//! One block of an encoder or of a decoder-only model.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use regard_kernels::{Error, Mask, Storage};

use super::{Context, FeedForward, Init, Norm, Part, Place, drop_out};
use crate::{
    attention::{Attention, AttentionConfig, DecodeState, HeadPlan},
    config::{ModelConfig, NormPlace},
    ops::stored_like,
};

/// Self-attention and feed-forward, each with its residual sum.
///
/// Pre-norm: `x += attention(norm_1(x)); x += ff(norm_2(x))`. Post-norm: `x = norm_1(x + attention(x))` and so on.
#[derive(Module, Debug)]
pub struct Block {
    norm_1: Norm,
    /// Absent where all blocks of a model share one.
    attention: Option<Attention>,
    /// Scale of what attention adds, where there is one.
    scale_1: Option<Param<Tensor<1>>>,
    norm_2: Norm,
    ff: FeedForward,
    scale_2: Option<Param<Tensor<1>>>,
    #[module(skip)]
    norm: NormPlace,
    #[module(skip)]
    dropout: f32,
}

impl Block {
    /// A block of a model of `config.layers` blocks; `context` is the length of its longest sequence.
    ///
    /// # Errors
    /// Options that do not fit the sizes.
    pub fn new(config: &ModelConfig, attention: &AttentionConfig, context: usize, init: &Init) -> Result<Self, Error> {
        let own = !crate::config::shared_by_layers(attention);
        let scale = || config.layer_scale.map(|start| init.constant([config.width], start));
        let build = |init: Init| Attention::new(config, attention, context, &init);
        Ok(Self {
            norm_1: Norm::new(config, config.width, &init.part("norm_1")),
            attention: own.then(|| build(init.part("attention"))).transpose()?,
            scale_1: scale(),
            norm_2: Norm::new(config, config.width, &init.part("norm_2")),
            ff: FeedForward::new(config, residual_gain(config), &init.part("ff")),
            scale_2: scale(),
            norm: config.norm,
            dropout: config.rate(),
        })
    }

    /// `x [B,N,d]` to the same shape. `shared` is the attention of a model whose blocks share one.
    pub fn forward(&self, x: Tensor<3>, mask: &Mask, shared: Option<&Attention>, context: &Context) -> Tensor<3> {
        context.record(Part::Input, &x);
        let attend = |x: Tensor<3>| {
            let attention = self.attention_or(shared);
            let out = attention.forward(x.clone(), x.clone(), mask, context, Place::Weights);
            context.attended(attention, &x, &out);
            let out = scaled(out, &self.scale_1);
            context.record(Part::Attention, &out);
            drop_out(out, self.dropout, context, Place::Attention)
        };
        let feed = |x: Tensor<3>| {
            context.record(Part::FeedForward, &x);
            drop_out(scaled(self.ff.forward(x, context), &self.scale_2), self.dropout, context, Place::FeedForward)
        };
        let out = self.residuals(x, attend, feed);
        context.record(Part::Output, &out);
        out
    }

    /// The next tokens `x [B,N,d]` of every row.
    pub fn decode(&self, x: Tensor<3>, shared: Option<&Attention>, state: &mut DecodeState) -> Tensor<3> {
        let attend = |x| scaled(self.attention_or(shared).decode(x, state), &self.scale_1);
        self.residuals(x, attend, |x| scaled(self.ff.forward(x, &Context::evaluation()), &self.scale_2))
    }

    /// The block with the heads of its attention changed; see [`Attention::planned`].
    pub(crate) fn planned(mut self, plan: &[HeadPlan], seed: u64) -> Result<Self, Error> {
        self.attention = self.attention.map(|attention| attention.planned(plan, seed)).transpose()?;
        Ok(self)
    }

    /// A fresh state for [`Block::decode`].
    ///
    /// # Errors
    /// Attention that cannot decode token by token.
    pub fn decoder(&self, shared: Option<&Attention>, storage: Storage) -> Result<DecodeState, Error> {
        self.attention_or(shared).decoder(storage)
    }

    /// Takes over the buffers of `other`, a copy of this block that saw one more batch.
    pub(crate) fn adopt_buffers(&self, other: &Self) {
        if let (Some(own), Some(other)) = (&self.attention, &other.attention) {
            own.adopt_buffers(other);
        }
    }

    fn attention_or<'a>(&'a self, shared: Option<&'a Attention>) -> &'a Attention {
        self.attention.as_ref().or(shared).expect("a model without shared attention gives every block its own")
    }

    fn residuals(
        &self,
        x: Tensor<3>,
        attend: impl FnOnce(Tensor<3>) -> Tensor<3>,
        feed: impl FnOnce(Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let x = residual(self.norm, x, &self.norm_1, attend);
        residual(self.norm, x, &self.norm_2, feed)
    }
}

/// `x` times a vector, where there is one.
fn scaled(x: Tensor<3>, scale: &Option<Param<Tensor<1>>>) -> Tensor<3> {
    match scale {
        Some(scale) => {
            let scale = stored_like(scale.val(), &x);
            x * scale.unsqueeze()
        }
        None => x,
    }
}

/// `x` and what `part` makes of it, with the norm before the part or after the sum.
pub(super) fn residual(
    place: NormPlace,
    x: Tensor<3>,
    norm: &Norm,
    part: impl FnOnce(Tensor<3>) -> Tensor<3>,
) -> Tensor<3> {
    match place {
        NormPlace::Pre => x.clone() + part(norm.forward(x)),
        NormPlace::Post => norm.forward(x.clone() + part(x)),
    }
}

/// Scale of the initial projections that write to the residual stream: `1 / sqrt(2 L)`, so that the stream's variance does
/// not grow with depth (Radford et al. 2019, section 2.3). Post-norm blocks renormalise the stream and need none.
pub(crate) fn residual_gain(config: &ModelConfig) -> f64 {
    match config.norm {
        NormPlace::Pre => (2.0 * config.layers as f64).sqrt().recip(),
        NormPlace::Post => 1.0,
    }
}
