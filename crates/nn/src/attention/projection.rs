//! What the layers share: sizes, projections, positions, dropout.

use burn::module::Param;
use burn::tensor::Tensor;
use regard_kernels::{
    Call, Dropout, Layout, Mask,
    mechanism::{KeyDesign, Position},
};

use super::AttentionConfig;
use crate::{
    blocks::{Context, Init, Place, Rotation, alibi_slopes},
    models::ModelConfig,
    ops,
};

/// Sizes and options of a layer.
#[derive(Clone, Debug)]
pub(crate) struct Heads {
    /// Options, checked.
    pub options: AttentionConfig,
    /// Options as the kernel sees them.
    kernel: AttentionConfig,
    /// Width of the model.
    pub width: usize,
    /// Width of one head.
    pub head_width: usize,
    /// Longest sequence.
    pub context: usize,
    /// Projections have biases.
    bias: bool,
    /// Share of weights dropped.
    dropout: f32,
    /// Scale of the initial output projection.
    pub gain: f64,
}

impl Heads {
    pub fn new(model: &ModelConfig, options: &AttentionConfig, context: usize, gain: f64) -> Self {
        let mut kernel = options.clone();
        if options.position == Position::Rotary {
            // Shifted keys are turned whole, shift included, so that products depend on distances only.
            kernel.keys.design = KeyDesign::Projected;
        }
        Self {
            options: options.clone(),
            kernel,
            width: model.width,
            head_width: model.head_width(options),
            context,
            bias: model.bias,
            dropout: model.attention_dropout as f32,
            gain,
        }
    }

    /// Channels of all query heads.
    pub fn query_width(&self) -> usize {
        self.options.heads * self.head_width
    }

    /// Channels of all key heads.
    pub fn key_width(&self) -> usize {
        self.options.key_heads() * self.head_width
    }

    /// A bias of 0, where there are biases.
    pub fn bias<const D: usize>(&self, init: &Init, shape: [usize; D]) -> Option<Param<Tensor<D>>> {
        self.bias.then(|| init.constant(shape, 0.0))
    }

    /// The call of an operator.
    pub fn call(&self, mask: Mask, context: &Context, place: Place) -> Call {
        let dropout =
            (context.training && self.dropout > 0.0).then(|| Dropout { rate: self.dropout, key: context.key(place) });
        let slopes = (self.options.position == Position::Alibi).then(|| alibi_slopes(self.options.heads).into());
        Call { layout: Layout::TokenFirst, mask, slopes, dropout, ..Call::default() }
    }

    /// Options for [`AttentionOptions::operator`](regard_kernels::AttentionOptions::operator).
    pub fn kernel(&self) -> &AttentionConfig {
        &self.kernel
    }

    /// Turns `x [B,N,..,D]` of positions `from ..` where positions are rotary.
    pub fn turn<const R: usize>(&self, x: Tensor<R>, from: usize) -> Tensor<R> {
        if self.options.position != Position::Rotary {
            return x;
        }
        Rotation::new(from, x.dims()[1], self.head_width, &x.device()).turn(x)
    }

    /// The same for keys `[B,S,M,Hk,D]` and what is left of their shift: turned keys already hold it.
    pub fn turn_components(
        &self,
        k: Tensor<5>,
        shift: Option<Tensor<3>>,
        from: usize,
    ) -> (Tensor<5>, Option<Tensor<3>>) {
        match (self.options.position, shift) {
            (Position::Rotary, Some(shift)) => (self.turn(ops::shifted_keys(k.squeeze_dim(2), shift), from), None),
            (_, shift) => (self.turn(k, from), shift),
        }
    }
}

/// `x W + b`, cut into heads: `[B,N,heads,D]`.
pub(crate) fn project(
    x: Tensor<3>,
    weight: &Param<Tensor<2>>,
    bias: &Option<Param<Tensor<1>>>,
    head_width: usize,
) -> Tensor<4> {
    let [batch, tokens, _] = x.dims();
    let y = ops::linear(x, weight.val(), bias.as_ref().map(Param::val));
    let heads = y.dims()[2] / head_width;
    y.reshape([batch, tokens, heads, head_width])
}

/// Keys of a mixture: `x W_r + b_r` for every `r`, `[B,S,M,Hk,D]`; `weight [M,d,Hk*D]`, `bias [M,Hk*D]`.
///
/// One product over all components: their matrices lie side by side.
pub(crate) fn project_components(
    x: Tensor<3>,
    weight: &Param<Tensor<3>>,
    bias: &Option<Param<Tensor<2>>>,
    head_width: usize,
) -> Tensor<5> {
    let [batch, tokens, width] = x.dims();
    let [components, _, outputs] = weight.dims();
    let weight = match components {
        1 => weight.val().reshape([width, outputs]),
        _ => weight.val().permute([1, 0, 2]).reshape([width, components * outputs]),
    };
    let bias = bias.as_ref().map(|bias| bias.val().reshape([components * outputs]));
    ops::linear(x, weight, bias).reshape([batch, tokens, components, outputs / head_width, head_width])
}

/// Heads `[B,N,H,D]` side by side, through the output projection: `[B,N,d]`.
pub(crate) fn join(heads: Tensor<4>, weight: &Param<Tensor<2>>, bias: &Option<Param<Tensor<1>>>) -> Tensor<3> {
    let [batch, tokens, count, head_width] = heads.dims();
    let x = heads.reshape([batch, tokens, count * head_width]);
    ops::linear(x, weight.val(), bias.as_ref().map(Param::val))
}
