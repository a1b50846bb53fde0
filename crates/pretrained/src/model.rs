//! A folder as a model that runs.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use regard_kernels::{Error, Mechanism, Storage, mechanism};
use regard_nn::{
    attention::{AttentionConfig, HeadPlan},
    blocks::{Context, Init, RotaryConfig},
    models::{
        self, FeatureModel, ImageHead, ImageModel, LanguageModel, MaskedModel, ModelConfig, ParameterMap, Patches,
        TextHead, TokenBatch, compact_weights, load_parameters,
    },
};

use crate::{
    Activation, Architecture, Element, Features, Folder, Head, NormKind, NormPlace, Position, PretrainedError,
};

/// A trained model, by what it gives.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // One value a run.
pub enum Model {
    /// Scores of the next token.
    Language(LanguageModel),
    /// Scores of hidden tokens.
    Masked(MaskedModel),
    /// States of tokens, and scores of classes where it has a head.
    Features(FeatureModel),
    /// The same of images.
    Image(ImageModel),
}

impl Model {
    /// What it is, in words.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Language(_) => "one that predicts the next token",
            Self::Masked(_) => "one that predicts hidden tokens",
            Self::Features(model) if model.classifies() => "a classifier of texts",
            Self::Features(_) => "an encoder of texts",
            Self::Image(model) if model.classifies() => "a classifier of images",
            Self::Image(_) => "an encoder of images",
        }
    }
}

/// A model with what it is made of.
#[derive(Clone, Debug)]
pub struct Pretrained {
    /// The model.
    pub model: Model,
    /// The transformer around its attention.
    pub config: ModelConfig,
    /// Its attention.
    pub attention: AttentionConfig,
    /// Tokens that it takes at most.
    pub context: usize,
}

/// How a model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Tokens that it should take; absent: as many as it was made for.
    pub context: Option<usize>,
    /// Where it should take more than a table of positions has, the table is stretched: rows between are linear mixtures.
    pub stretch: bool,
}

impl Folder {
    /// The storage in which the matrices lose nothing: that of the files where it is the same for all of them, else f32.
    pub fn storage(&self) -> Storage {
        let mut kinds =
            self.load().filter(|parameter| parameter.shape().len() == 2).map(|parameter| parameter.element());
        match kinds.next() {
            Some(first) if kinds.all(|kind| kind == first) => match first {
                Element::F16 => Storage::F16,
                Element::Bf16 => Storage::Bf16,
                _ => Storage::F32,
            },
            _ => Storage::F32,
        }
    }

    /// The model of the folder.
    ///
    /// ```no_run
    /// use burn::tensor::Device;
    /// use regard_pretrained::{Folder, LoadOptions, Model};
    ///
    /// let pretrained = Folder::open("SmolLM2-135M")?.model(LoadOptions::default(), &Device::flex())?;
    /// let Model::Language(model) = pretrained.model else { panic!("no language model") };
    /// assert_eq!(model.sizes().context, pretrained.context);
    /// # Ok::<(), regard_pretrained::PretrainedError>(())
    /// ```
    ///
    /// # Errors
    /// Heads that are not run, a context beyond a table of positions that is not to be stretched.
    pub fn model(&self, options: LoadOptions, device: &Device) -> Result<Pretrained, PretrainedError> {
        let architecture = self.architecture();
        let context = options.context.unwrap_or(architecture.context);
        let (config, attention) = (architecture.model_config(), architecture.attention());
        let init = Init::blank(device);
        let vocabulary = architecture.vocabulary;
        let model = match (architecture.patch, architecture.head) {
            (Some(patch), head) => {
                let head = match head {
                    Head::Classifier { classes, features, .. } => {
                        Some(ImageHead { classes, with_mean: features == Features::FirstAndMean })
                    }
                    _ => None,
                };
                let patches = Patches {
                    image: patch.image,
                    patch: patch.patch,
                    channels: patch.channels,
                    class_token: architecture.class_token,
                };
                let model = ImageModel::build(&config, &attention, patches, head, &init)?;
                Model::Image(self.filled(model, context, options)?)
            }
            (None, Head::Language { .. }) => {
                let model = LanguageModel::build(&config, &attention, vocabulary, context, &init)?;
                Model::Language(self.filled(model, context, options)?)
            }
            (None, Head::Masked { .. }) => {
                let model = MaskedModel::build(&config, &attention, vocabulary, context, &init)?;
                Model::Masked(self.filled(model, context, options)?)
            }
            (None, head) => {
                let head = match head {
                    Head::Classifier { features: features @ (Features::Each | Features::FirstAndMean), .. } => {
                        let expected = "a classifier of whole texts";
                        return Err(Error::option("head", format!("{features:?}"), expected).into());
                    }
                    Head::Classifier { classes, features, bias } => {
                        Some(TextHead { classes, last: features == Features::Last, bias })
                    }
                    _ => None,
                };
                let pooler = architecture.pooler;
                let model = FeatureModel::build(&config, &attention, vocabulary, context, pooler, head, &init)?;
                Model::Features(self.filled(model, context, options)?)
            }
        };
        Ok(Pretrained { model, config, attention, context })
    }

    /// A model of zeros with the numbers of the folder.
    fn filled<M: Module>(&self, model: M, context: usize, options: LoadOptions) -> Result<M, PretrainedError> {
        let mut parameters = ParameterMap::new();
        for parameter in self.load() {
            let (mut shape, mut values) = (parameter.shape().to_vec(), parameter.values());
            if parameter.name() == "position_embedding" {
                let Position::Learned { offset, .. } = self.architecture().position else { unreachable!("a table") };
                values.drain(..offset * shape[1]);
                shape[0] -= offset;
                if context != shape[0] {
                    values = positions(values, shape[1], context, options.stretch)?;
                    shape[0] = context;
                }
            }
            parameters.insert(parameter.name().into(), (shape, values));
        }
        let misfit = |error: models::ParameterError| PretrainedError::content(self.path(), error.to_string());
        load_parameters(model, parameters).map_err(misfit)
    }
}

/// The first `context` rows of a table of positions, or more of them.
fn positions(values: Vec<f32>, width: usize, context: usize, stretch: bool) -> Result<Vec<f32>, Error> {
    let rows = values.len() / width;
    if context <= rows {
        return Ok(values[..context * width].to_vec());
    }
    if !stretch {
        let expected = format!("at most {rows}, the rows of the table of positions, or the table stretched");
        return Err(Error::option("context", context, expected));
    }
    let row = |i: usize| &values[i.min(rows - 1) * width..][..width];
    let mixed = |i: usize| {
        let at = i as f64 * (rows - 1) as f64 / (context - 1).max(1) as f64;
        let (from, share) = (at as usize, at.fract() as f32);
        row(from).iter().zip(row(from + 1)).map(move |(a, b)| a + (b - a) * share)
    };
    Ok((0..context).flat_map(mixed).collect())
}

impl Pretrained {
    /// The model with the heads of its layers changed, `plan` having an entry for each layer with weights of its own; `seed`
    /// draws what mechanisms draw.
    ///
    /// # Errors
    /// A plan for another number of layers; heads, mechanisms or options that cannot stand there.
    pub fn planned(self, plan: &[Vec<HeadPlan>], seed: u64) -> Result<Self, Error> {
        let model = match self.model {
            Model::Language(model) => Model::Language(model.planned(plan, seed)?),
            Model::Masked(model) => Model::Masked(model.planned(plan, seed)?),
            Model::Features(model) => Model::Features(model.planned(plan, seed)?),
            Model::Image(model) => Model::Image(model.planned(plan, seed)?),
        };
        Ok(Self { model, ..self })
    }

    /// The model with parameters that no gradient is computed for: what remains is the gradient in what passes through it.
    #[must_use]
    pub fn frozen(self) -> Self {
        let model = match self.model {
            Model::Language(model) => Model::Language(model.no_grad()),
            Model::Masked(model) => Model::Masked(model.no_grad()),
            Model::Features(model) => Model::Features(model.no_grad()),
            Model::Image(model) => Model::Image(model.no_grad()),
        };
        Self { model, ..self }
    }

    /// The model with its matrices as they are read the fastest, for inference: [`models::compact_weights`]. Plans come first.
    ///
    /// # Errors
    /// Whole numbers; a device other than the processor without autodiff.
    pub fn compact(self, storage: Storage) -> Result<Self, Error> {
        let model = match self.model {
            Model::Language(model) => Model::Language(compact_weights(model, storage)?),
            Model::Masked(model) => Model::Masked(compact_weights(model, storage)?),
            Model::Features(model) => Model::Features(compact_weights(model, storage)?),
            Model::Image(model) => Model::Image(compact_weights(model, storage)?),
        };
        Ok(Self { model, ..self })
    }

    /// States `[B,N,d]` of texts after the last layer, before any head.
    ///
    /// # Errors
    /// Tokens that the model does not have, or more than it takes; a model of images.
    pub fn states(&self, tokens: &TokenBatch, context: &Context) -> Result<Tensor<3>, Error> {
        let sizes = match &self.model {
            Model::Language(model) => model.sizes(),
            Model::Masked(model) => model.sizes(),
            Model::Features(model) => model.sizes(),
            Model::Image(_) => return Err(Error::option("model", "a model of images", "a model of texts")),
        };
        tokens.check(sizes.vocabulary, sizes.context)?;
        Ok(match &self.model {
            Model::Language(model) => model.states(tokens, context),
            Model::Masked(model) => model.states(tokens, context),
            Model::Features(model) => model.forward(tokens, context),
            Model::Image(_) => unreachable!("refused above"),
        })
    }
}

impl Architecture {
    /// The transformer around the attention.
    pub fn model_config(&self) -> ModelConfig {
        ModelConfig {
            width: self.width,
            layers: self.layers,
            feed_forward: self.feed_forward,
            head_width: (self.head_width * self.heads != self.width).then_some(self.head_width),
            norm: match self.norm.place {
                NormPlace::Pre => models::NormPlace::Pre,
                NormPlace::Post => models::NormPlace::Post,
            },
            norm_kind: match self.norm.kind {
                NormKind::Layer => models::NormKind::Layer,
                NormKind::Rms => models::NormKind::Rms,
            },
            norm_epsilon: self.norm.epsilon,
            activation: match self.activation {
                Activation::Gelu => models::Activation::Gelu,
                Activation::GeluTanh => models::Activation::GeluTanh,
                Activation::Relu => models::Activation::Relu,
                Activation::Silu => models::Activation::Silu,
            },
            gated: self.gated,
            tied_head: self.tied(),
            qkv_bias: Some(self.biases.query_key_value),
            output_bias: Some(self.biases.out),
            feed_forward_bias: Some(self.biases.feed_forward),
            rotary: self.rotary(),
            token_types: self.token_types,
            embedding_width: self.embedding_projection.then_some(self.embedding_width),
            embedding_norm: self.embedding_norm,
            shared_blocks: self.shared_blocks,
            layer_scale: self.layer_scale.then_some(1.0),
            head_transform: matches!(self.head, Head::Masked { .. }),
            head_bias: matches!(self.head, Head::Language { bias: true, .. } | Head::Masked { bias: true, .. }),
            ..ModelConfig::default()
        }
    }

    /// Softmax attention as the model has it.
    pub fn attention(&self) -> AttentionConfig {
        AttentionConfig {
            mechanism: Mechanism::Softmax,
            heads: self.heads,
            key_value_heads: (self.key_value_heads != self.heads).then_some(self.key_value_heads),
            position: match self.position {
                Position::None => mechanism::Position::None,
                Position::Learned { .. } => mechanism::Position::Learned,
                Position::Rotary(_) => mechanism::Position::Rotary,
            },
            causal: self.causal,
            ..AttentionConfig::default()
        }
    }

    fn rotary(&self) -> RotaryConfig {
        match self.position {
            Position::Rotary(rotary) => rotary,
            Position::None | Position::Learned { .. } => RotaryConfig::default(),
        }
    }
}
