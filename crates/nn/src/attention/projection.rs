//! What the layers share: sizes, projections, positions, dropout.

use std::{borrow::Cow, sync::Arc};

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use regard_kernels::{
    Call, Dropout, Layout, Mask,
    mechanism::{KeyDesign, Position},
};

use super::{AttentionConfig, AttentionRecord, record::AttentionPart};
use crate::{
    blocks::{Context, Init, Place, Positions, Rotary, alibi_slopes},
    config::ModelConfig,
    ops::{self, Inputs},
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
    /// Angles of rotary positions, where they are rotary.
    rotary: Option<Arc<Rotary>>,
    /// The output projection has a bias.
    output_bias: bool,
    /// The other projections have a bias.
    bias: bool,
    /// Share of weights dropped.
    dropout: f32,
    /// Scale of the initial output projection.
    pub gain: f64,
}

impl Heads {
    pub fn new(model: &ModelConfig, options: &AttentionConfig, context: usize, gain: f64) -> Self {
        let rotary = (options.position == Position::Rotary).then(|| {
            Rotary::shared(&model.rotary, model.head_width(options), context).expect("checked with the model")
        });
        Self {
            options: options.clone(),
            kernel: kernel_options(options),
            width: model.width,
            head_width: model.head_width(options),
            context,
            rotary,
            output_bias: model.output_bias.unwrap_or(model.bias),
            bias: model.qkv_bias.unwrap_or(model.bias),
            dropout: model.attention_dropout as f32,
            gain,
        }
    }

    /// The same sizes with another mechanism.
    pub fn with_options(self, options: AttentionConfig) -> Self {
        Self { kernel: kernel_options(&options), options, ..self }
    }

    /// Channels of all query heads.
    pub fn query_width(&self) -> usize {
        self.options.heads * self.head_width
    }

    /// Channels of all key heads.
    pub fn key_width(&self) -> usize {
        self.options.key_heads() * self.head_width
    }

    /// The output projection's bias, 0 at first, where there is one.
    pub fn output_bias(&self, init: &Init, width: usize) -> Option<Param<Tensor<1>>> {
        self.output_bias.then(|| init.constant([width], 0.0))
    }

    /// The bias of another projection, 0 at first, where there are biases.
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

    /// The heads' outputs, `[B,N,H,D]` or `[B,N,H*D]`, of one operator, on record where the pass has a log.
    pub fn attend<const D: usize>(&self, inputs: &Inputs, mask: &Mask, context: &Context, place: Place) -> Tensor<D> {
        let [out] = self.attend_parts([AttentionPart::new(Cow::Borrowed(&self.kernel), inputs)], mask, context, place);
        out
    }

    /// The same of several operators, which share a record.
    pub fn attend_parts<const D: usize, const P: usize>(
        &self,
        parts: [AttentionPart; P],
        mask: &Mask,
        context: &Context,
        place: Place,
    ) -> [Tensor<D>; P] {
        let call = self.call(mask.clone(), context, place);
        if let Some(log) = &context.attention {
            let (stack, layer) = context.position();
            let calls = parts.iter().map(|part| part.record(call.clone())).collect();
            log.push(AttentionRecord { stack, layer, place, options: self.options.clone(), calls });
        }
        parts.map(|part| match &context.spread {
            None => ops::attention(&part.options, call.clone(), part.inputs),
            Some(spread) => ops::spread_attention(&**spread, &part.options, call.clone(), part.inputs),
        })
    }

    /// Options for [`AttentionOptions::operator`](regard_kernels::AttentionOptions::operator).
    pub fn kernel(&self) -> &AttentionConfig {
        &self.kernel
    }

    /// Rotates `x [B,N,..,D]` of these positions where positions are rotary.
    pub fn rotate<const R: usize>(&self, x: Tensor<R>, at: Positions) -> Tensor<R> {
        match &self.rotary {
            Some(rotary) => ops::rotate(x, rotary.rotation(at)),
            None => x,
        }
    }
}

/// Options as the kernel sees them.
fn kernel_options(options: &AttentionConfig) -> AttentionConfig {
    let mut kernel = options.clone();
    if options.position == Position::Rotary {
        // Shifted keys are rotated whole, shift included, so that products depend on distances only.
        kernel.keys.design = KeyDesign::Projected;
    }
    kernel
}

/// Projections of queries, keys, values and of the heads' outputs, with the sizes and options of their layer.
///
/// `K` and `B` are the axes of the keys' weight and bias: 2 and 1, or 3 and 2 where a position has several keys. The part
/// adds nothing to the names of its parameters ([`ParameterPath`](crate::models::ParameterPath)).
#[derive(Module, Debug)]
pub(crate) struct Projections<const K: usize, const B: usize> {
    w_q: Param<Tensor<2>>,
    b_q: Option<Param<Tensor<1>>>,
    /// `[d,Hk*D]` or `[M,d,Hk*D]`; absent where queries are the keys.
    w_k: Option<Param<Tensor<K>>>,
    b_k: Option<Param<Tensor<B>>>,
    w_v: Param<Tensor<2>>,
    b_v: Option<Param<Tensor<1>>>,
    w_o: Param<Tensor<2>>,
    b_o: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pub heads: Heads,
}

impl<const K: usize, const B: usize> Projections<K, B> {
    fn build(heads: Heads, keys: Option<([usize; K], [usize; B])>, init: &Init) -> Self {
        let (width, queries, values) = (heads.width, heads.query_width(), heads.key_width());
        Self {
            w_q: init.projection("w_q", [width, queries], 1.0),
            b_q: heads.bias(init, [queries]),
            w_k: keys.map(|(shape, _)| init.projection("w_k", shape, 1.0)),
            b_k: keys.and_then(|(_, shape)| heads.bias(init, shape)),
            w_v: init.projection("w_v", [width, values], 1.0),
            b_v: heads.bias(init, [values]),
            w_o: init.projection("w_o", [queries, width], heads.gain),
            b_o: heads.output_bias(init, width),
            heads,
        }
    }

    /// Queries `[B,N,H,D]` of `x [B,N,d]`, rotated where positions are rotary.
    pub fn queries(&self, x: Tensor<3>, at: Positions) -> Tensor<4> {
        self.heads.rotate(project(x, &self.w_q, &self.b_q, self.heads.head_width), at)
    }

    /// Values `[B,S,Hk,D]` of `x [B,S,d]`.
    pub fn values(&self, x: Tensor<3>) -> Tensor<4> {
        project(x, &self.w_v, &self.b_v, self.heads.head_width)
    }

    /// Heads `[B,N,H,D]`, concatenated, through the output projection: `[B,N,d]`.
    pub fn join(&self, heads: Tensor<4>) -> Tensor<3> {
        let [batch, tokens, count, head_width] = heads.dims();
        let x = heads.reshape([batch, tokens, count * head_width]);
        ops::linear(x, self.w_o.val(), self.b_o.as_ref().map(Param::val))
    }

    /// Device of the parameters.
    pub fn device(&self) -> Device {
        self.w_q.val().device()
    }

    /// Root mean square of the matrix that makes the keys; 0 without one.
    pub fn key_size(&self) -> f64 {
        let Some(weight) = &self.w_k else { return 0.0 };
        let square = weight.val().square().mean().into_data_as::<f32>();
        f64::from(square.try_to_vec::<f32>().expect("f32, as asked")[0]).sqrt()
    }
}

impl Projections<2, 1> {
    /// One key per position; none where queries are the keys.
    pub fn new(heads: Heads, own_keys: bool, init: &Init) -> Self {
        let (width, keys) = (heads.width, heads.key_width());
        Self::build(heads, own_keys.then_some(([width, keys], [keys])), init)
    }

    /// Keys `[B,S,Hk,D]` of `x [B,S,d]`, rotated where positions are rotary.
    pub fn keys(&self, x: Tensor<3>, at: Positions) -> Option<Tensor<4>> {
        let weight = self.w_k.as_ref()?;
        Some(self.heads.rotate(project(x, weight, &self.b_k, self.heads.head_width), at))
    }
}

impl Projections<2, 1> {
    /// The same for a mixture with these heads: `query_scale` scales what the queries are made by, and each component's keys are
    /// made by the trained matrix and what `noise` adds to it.
    pub fn into_components(
        self,
        heads: Heads,
        query_scale: f64,
        mut noise: impl FnMut(usize, [usize; 2]) -> Tensor<2>,
    ) -> Projections<3, 2> {
        let components = if heads.options.shifted() { 1 } else { heads.options.components() };
        let w_k = self.w_k.expect("softmax attention has keys").val();
        let shape = w_k.dims();
        let copies = (0..components).map(|r| w_k.clone() + noise(r, shape)).collect();
        let b_k = self.b_k.map(|b| b.val().unsqueeze_dim::<2>(0).repeat_dim(0, components));
        Projections {
            w_q: fresh(self.w_q.val().mul_scalar(query_scale)),
            b_q: self.b_q.map(|b| fresh(b.val().mul_scalar(query_scale))),
            w_k: Some(fresh(Tensor::stack(copies, 0))),
            b_k: b_k.map(fresh),
            w_v: self.w_v,
            b_v: self.b_v,
            w_o: self.w_o,
            b_o: self.b_o,
            heads,
        }
    }
}

impl Projections<3, 2> {
    /// As many keys per position as there are components, or one where the components are shifted copies of it.
    pub fn components(heads: Heads, init: &Init) -> Self {
        let (width, keys) = (heads.width, heads.key_width());
        let count = if heads.options.shifted() { 1 } else { heads.options.components() };
        Self::build(heads, Some(([count, width, keys], [count, keys])), init)
    }

    /// Keys of a mixture: `x W_r + b_r` for every `r`, `[B,S,M,Hk,D]`, rotated where positions are
    /// rotary, and then with their shift: rotated keys hold it ([`Projections::shift_left`]).
    ///
    /// One product over all components, whose matrices are concatenated.
    pub fn keys(&self, x: Tensor<3>, shift: Option<&Param<Tensor<3>>>, at: Positions) -> Tensor<5> {
        let [batch, tokens, width] = x.dims();
        let weight = self.w_k.as_ref().expect("a mixture has keys of its own");
        let [components, _, outputs] = weight.dims();
        let weight = match components {
            1 => weight.val().reshape([width, outputs]),
            _ => weight.val().permute([1, 0, 2]).reshape([width, components * outputs]),
        };
        let bias = self.b_k.as_ref().map(|bias| bias.val().reshape([components * outputs]));
        let head_width = self.heads.head_width;
        let k = ops::linear(x, weight, bias).reshape([batch, tokens, components, outputs / head_width, head_width]);
        match (self.heads.options.position, shift) {
            (Position::Rotary, Some(shift)) => self.heads.rotate(ops::shifted_keys(k.squeeze_dim(2), shift.val()), at),
            _ => self.heads.rotate(k, at),
        }
    }

    /// The shift that is not yet added to the keys.
    pub fn shift_left(&self, shift: Option<&Param<Tensor<3>>>) -> Option<Tensor<3>> {
        shift.filter(|_| self.heads.options.position != Position::Rotary).map(Param::val)
    }
}

/// A parameter with these values and no history.
fn fresh<const D: usize>(values: Tensor<D>) -> Param<Tensor<D>> {
    Param::from_tensor(values.detach())
}

/// `x W + b`, split into heads: `[B,N,heads,D]`.
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
