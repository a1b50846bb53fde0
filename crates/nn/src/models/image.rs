//! A model that reads images.

use burn::module::{Module, Param};
use burn::tensor::{Tensor, TensorData};
use regard_kernels::{Error, mechanism::Position};

use super::{ModelConfig, Sizes, encoder::Encoder};
use crate::{
    attention::{AttentionConfig, HeadPlan},
    blocks::{Context, Init},
    ops,
};

/// Patches of an image and a class token through bidirectional blocks (Dosovitskiy et al. 2021), with or without a head over
/// classes.
#[derive(Module, Debug)]
pub struct ImageModel {
    /// `[channels * patch * patch, d]`
    w_patch: Param<Tensor<2>>,
    b_patch: Param<Tensor<1>>,
    /// `[1,d]`
    class_token: Option<Param<Tensor<2>>>,
    /// `[tokens,d]`, the class token first.
    position_embedding: Param<Tensor<2>>,
    stack: Encoder,
    /// `[d,classes]`, or `[2 d,classes]` where the mean of the patches stands beside the class token.
    head: Option<Param<Tensor<2>>>,
    b_head: Option<Param<Tensor<1>>>,
    #[module(skip)]
    patches: Patches,
    #[module(skip)]
    sizes: Sizes,
}

/// How images become tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patches {
    /// Height and width of an image.
    pub image: usize,
    /// Height and width of a patch.
    pub patch: usize,
    /// Colours.
    pub channels: usize,
    /// A learned token comes before the patches.
    pub class_token: bool,
}

/// What an image model's head reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageHead {
    /// Classes.
    pub classes: usize,
    /// The mean of the patches beside the first token.
    pub with_mean: bool,
}

impl Patches {
    /// Tokens of an image.
    pub fn tokens(&self) -> usize {
        (self.image / self.patch).pow(2) + usize::from(self.class_token)
    }

    /// Numbers of an image: `channels * image * image`.
    pub fn pixels(&self) -> usize {
        self.channels * self.image * self.image
    }

    /// Numbers of a patch.
    pub fn numbers(&self) -> usize {
        self.channels * self.patch * self.patch
    }
}

impl ImageModel {
    /// With parameters by `init`.
    ///
    /// # Errors
    /// Sizes or options that do not fit each other.
    pub fn build(
        config: &ModelConfig,
        attention: &AttentionConfig,
        patches: Patches,
        head: Option<ImageHead>,
        init: &Init,
    ) -> Result<Self, Error> {
        let Patches { image, patch, .. } = patches;
        if patch == 0 || patches.channels == 0 || image < patch {
            let seen = format!("{image} pixels in patches of {patch}, {} channels", patches.channels);
            return Err(Error::option("image", seen, "at least one patch of one channel"));
        }
        // Positions are added before the stack.
        let attention = AttentionConfig { position: Position::None, causal: false, ..attention.clone() };
        let outputs = head.map_or(config.width, |head| head.classes);
        let sizes = config.sizes(&attention, patches.numbers(), outputs, patches.tokens())?;
        let width = config.width;
        let inputs = |head: ImageHead| if head.with_mean { 2 * width } else { width };
        Ok(Self {
            w_patch: init.projection("w_patch", [patches.numbers(), width], 1.0),
            b_patch: init.constant([width], 0.0),
            class_token: patches.class_token.then(|| init.normal("class_token", [1, width], 0.02)),
            position_embedding: init.normal("position_embedding", [patches.tokens(), width], 0.02),
            stack: Encoder::new(config, &attention, patches.tokens(), init)?,
            head: head.map(|head| init.projection("head", [inputs(head), head.classes], 1.0)),
            b_head: head.map(|head| init.constant([head.classes], 0.0)),
            patches,
            sizes,
        })
    }

    /// States `[B,N,d]` of images, `[B,channels,image,image]` in row-major order.
    ///
    /// # Errors
    /// A number of pixels that is not that of whole images.
    pub fn forward(&self, pixels: &[f32], context: &Context) -> Result<Tensor<3>, Error> {
        let Patches { image, patch, channels, .. } = self.patches;
        let each = channels * image * image;
        if pixels.is_empty() || !pixels.len().is_multiple_of(each) {
            let expected = format!("a multiple of {channels} x {image} x {image}");
            return Err(Error::shape("pixels", &[pixels.len()], expected));
        }
        let (batch, side) = (pixels.len() / each, image / patch);
        let mut rows = Vec::with_capacity(batch * side * side * self.patches.numbers());
        for image_pixels in pixels.chunks_exact(each) {
            for (y, x) in (0..side).flat_map(|y| (0..side).map(move |x| (y, x))) {
                for (c, i) in (0..channels).flat_map(|c| (0..patch).map(move |i| (c, i))) {
                    let from = (c * image + y * patch + i) * image + x * patch;
                    rows.extend_from_slice(&image_pixels[from..from + patch]);
                }
            }
        }
        let device = self.w_patch.val().device();
        let rows = TensorData::new(rows, [batch, side * side, self.patches.numbers()]);
        let x = ops::linear(Tensor::<3>::from_data(rows, &device), self.w_patch.val(), Some(self.b_patch.val()));
        let x = match &self.class_token {
            Some(token) => Tensor::cat(vec![token.val().unsqueeze_dim::<3>(0).repeat_dim(0, batch), x], 1),
            None => x,
        };
        let x = x + self.position_embedding.val().unsqueeze_dim(0);
        Ok(self.stack.forward_vectors(x, None, context))
    }

    /// Logits `[B,classes]` of states `[B,N,d]`, where there is a head.
    pub fn logits(&self, states: Tensor<3>) -> Option<Tensor<2>> {
        let head = self.head.as_ref()?.val();
        let [_, tokens, width] = states.dims();
        let first = states.clone().narrow(1, 0, 1).squeeze_dim::<2>(1);
        let features = match head.dims()[0] == width {
            true => first,
            false => Tensor::cat(vec![first, states.narrow(1, 1, tokens - 1).mean_dim(1).squeeze_dim(1)], 1),
        };
        Some(ops::linear(features, head, self.b_head.as_ref().map(Param::val)))
    }

    /// The model with the heads of its layers changed; see [`LanguageModel::planned`](super::LanguageModel::planned).
    ///
    /// # Errors
    /// The same.
    pub fn planned(self, plan: &[Vec<HeadPlan>], seed: u64) -> Result<Self, Error> {
        Ok(Self { stack: self.stack.planned(plan, seed)?, ..self })
    }

    /// How images become tokens.
    pub fn patches(&self) -> Patches {
        self.patches
    }

    /// Whether there is a head over classes.
    pub fn classifies(&self) -> bool {
        self.head.is_some()
    }

    /// Sizes; the vocabulary is the numbers of a patch.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Options of the attention.
    pub fn attention(&self) -> &AttentionConfig {
        self.stack.options()
    }
}
