//! Fastformer: additive attention through a global query and a global key.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use regard_kernels::{
    Mask,
    mechanism::{AdditiveScores, Interaction, Sharing},
};

use super::{
    DecodeState, KeyState,
    projection::{Heads, project},
};
use crate::{
    blocks::{Context, Init, Place, Positions},
    ops::{self, Concatenation, Inputs, RealTokens},
};

/// Additive attention between projections (arXiv 2108.09084, section 3); its output transform takes the place of an
/// output projection.
///
/// Sharing: values are queries unless `none`. `head-wise` keeps one projection `[D,D]` and one score vector for all heads,
/// each of which reads its own slice of the channels; the output transform stays whole, or heads would never mix.
/// `layer-wise` is one layer for all blocks, which the model sees to.
///
/// Interactions other than the product are compositions of tensor operations, for comparison: bidirectional, their padded
/// rows 0, with neither a decode state nor calls to record.
#[derive(Module, Debug)]
pub struct Fastformer {
    /// `[d,H*D]`; head-wise `[D,D]`.
    w_q: Param<Tensor<2>>,
    b_q: Option<Param<Tensor<1>>>,
    w_k: Param<Tensor<2>>,
    b_k: Option<Param<Tensor<1>>>,
    w_v: Option<Param<Tensor<2>>>,
    b_v: Option<Param<Tensor<1>>>,
    /// `[H,D]` or `[H,H*D]`; head-wise `[1,D]` or `[1,H*D]`.
    score_q: Param<Tensor<2>>,
    score_k: Param<Tensor<2>>,
    /// Of a concatenation: `[H,2D,D]`, the global query's rows before the key's; head-wise `[1,2D,D]`.
    w_p: Option<Param<Tensor<3>>>,
    /// The same of global key and values.
    w_u: Option<Param<Tensor<3>>>,
    w_t: Param<Tensor<2>>,
    b_t: Option<Param<Tensor<1>>>,
    #[module(skip)]
    heads: Heads,
}

impl Fastformer {
    pub(crate) fn new(heads: Heads, init: &Init) -> Self {
        let options = &heads.options.fastformer;
        let head_wise = options.sharing == Sharing::HeadWise;
        let channels = heads.query_width();
        let own_value = options.sharing == Sharing::None;
        let projection = if head_wise { [heads.head_width; 2] } else { [heads.width, channels] };
        let score = match options.scores {
            AdditiveScores::Paper => heads.head_width,
            AdditiveScores::Released => channels,
        };
        let own = if head_wise { 1 } else { heads.options.heads };
        let scores = [own, score];
        let width = heads.head_width;
        let joint = |name| {
            let concatenated = options.interaction == Interaction::Concatenation;
            concatenated.then(|| init.projection(name, [own, 2 * width, width], 1.0))
        };
        Self {
            w_q: init.projection("w_q", projection, 1.0),
            b_q: heads.bias(init, [projection[1]]),
            w_k: init.projection("w_k", projection, 1.0),
            b_k: heads.bias(init, [projection[1]]),
            w_v: own_value.then(|| init.projection("w_v", projection, 1.0)),
            b_v: if own_value { heads.bias(init, [projection[1]]) } else { None },
            score_q: init.normal("score_q", scores, SCORE_DEVIATION),
            score_k: init.normal("score_k", scores, SCORE_DEVIATION),
            w_p: joint("w_p"),
            w_u: joint("w_u"),
            w_t: init.projection("w_t", [channels, channels], heads.gain),
            b_t: heads.output_bias(init, channels),
            heads,
        }
    }

    /// Keys come from the queries' own sequence, and are projected with them.
    pub(crate) fn project_keys(&self, keys: Tensor<3>, _: Positions) -> KeyState {
        KeyState::States(keys)
    }

    pub(crate) fn attend(
        &self,
        queries: Tensor<3>,
        _: KeyState,
        mask: &Mask,
        context: &Context,
        place: Place,
    ) -> Tensor<3> {
        if self.heads.options.fastformer.interaction != Interaction::Product {
            let [] = self.heads.attend_parts::<3, 0>([], mask, context, place);
            return self.attend_jointly(queries, mask);
        }
        self.transform_bias(self.heads.attend(&self.inputs(queries), mask, context, place))
    }

    /// Padded tokens are 0 before anything is multiplied, and their outputs after everything: what they hold, a NaN included,
    /// reaches neither output nor gradient.
    fn attend_jointly(&self, queries: Tensor<3>, mask: &Mask) -> Tensor<3> {
        assert!(
            !mask.causal && mask.window.is_none(),
            "the layer is built for bidirectional attention without a window"
        );
        let [batch, tokens, _] = queries.dims();
        let real = RealTokens::new(mask, [batch, tokens], &queries.device());
        let format = queries.dtype().into();
        let inputs = self.inputs(real.keep(queries)).single();
        let scores = self.heads.options.fastformer.scores;
        let weights = self.w_p.as_ref().zip(self.w_u.as_ref());
        let matrices = weights.map(|(keys, values)| Concatenation { keys: keys.val(), values: values.val() });
        let out = ops::additive_joint(&inputs, scores, matrices.as_ref(), &real);
        real.keep(self.transform_bias(ops::stored_as(out, format)))
    }

    pub(crate) fn decode(&self, token: Tensor<3>, state: &mut DecodeState) -> Tensor<3> {
        let (shape, device) = (token.dims(), token.device());
        self.transform_bias(state.step(&self.inputs(token), shape, &device))
    }

    fn inputs(&self, x: Tensor<3>) -> Inputs {
        let [batch, tokens, _] = x.dims();
        let (count, width) = (self.heads.options.heads, self.heads.head_width);
        let head_wise = self.heads.options.fastformer.sharing == Sharing::HeadWise;
        // One projection for all heads sees each head's slice as a token of its own.
        let x = if head_wise { x.reshape([batch, tokens * count, width]) } else { x };
        let project = |weight: &Param<Tensor<2>>, bias: &Option<Param<Tensor<1>>>| {
            project(x.clone(), weight, bias, width).reshape([batch, tokens, count, width])
        };
        let scores = |vectors: &Param<Tensor<2>>| {
            let vectors = vectors.val();
            let repeats = count / vectors.dims()[0];
            if repeats == 1 { vectors } else { vectors.repeat_dim(0, repeats) }
        };
        Inputs::new(project(&self.w_q, &self.b_q))
            .with("k", project(&self.w_k, &self.b_k))
            .with_some("v", self.w_v.as_ref().map(|weight| project(weight, &self.b_v)))
            .with("w_q", scores(&self.score_q))
            .with("w_k", scores(&self.score_k))
            .with("w_t", self.w_t.val())
    }

    fn transform_bias(&self, out: Tensor<3>) -> Tensor<3> {
        match &self.b_t {
            Some(bias) => {
                let bias = ops::stored_like(bias.val(), &out);
                out + bias.unsqueeze()
            }
            None => out,
        }
    }

    pub(crate) fn heads(&self) -> &Heads {
        &self.heads
    }
}

/// Score vectors start small, as in the released code: every average starts near the mean.
const SCORE_DEVIATION: f64 = 0.02;

#[cfg(test)]
mod tests;
