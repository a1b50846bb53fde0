//! The models that tasks train, and what trains them.

use std::{path::Path, sync::Arc};

use burn::{
    module::Module,
    tensor::{Device, Tensor, TensorData},
};
use regard_kernels::Error;
use regard_nn::{
    attention::{AttentionConfig, Attentions},
    blocks::Context,
    models::{
        Classifier, LanguageModel, MaskedModel, ModelConfig, Recommender, Translator, is_buffer, load_parameters,
        named_parameters,
    },
    ops,
};

use super::{CHECKPOINTS, Checkpoint, Checkpoints, HostTensor, HostTensors, TrainError};
use crate::data::{Batch, Objective, Shape, TaskData, target_score};

/// A model of any task.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // One value a run.
pub enum Model {
    /// One label per sequence, or per pair of sequences; with a single output, a score.
    Classifier(Classifier),
    /// The next token of every token.
    Language(LanguageModel),
    /// The translation of a sentence, the summary of a document.
    Translator(Translator),
    /// The masked tokens.
    Masked(MaskedModel),
    /// Scores of news for readers.
    Recommender(Recommender),
}

/// Checks that the head suits the objective.
///
/// # Errors
/// An adaptive softmax in a model that is no language model; pooling that a recommender cannot have.
pub(crate) fn check_head(config: &ModelConfig, objective: Objective) -> Result<(), Error> {
    match objective {
        Objective::NextToken { .. } => Ok(()),
        Objective::Rank { .. } if !config.adaptive_softmax.is_used() => Recommender::check(config),
        _ if !config.adaptive_softmax.is_used() => Ok(()),
        _ => Err(Error::option("model.adaptive_softmax.cutoffs", "set", "none: only language models have such a head")),
    }
}

impl Model {
    /// The model that `config` and `attentions` describe, of the vocabulary, classes and lengths of `data`. A model with one
    /// stack of blocks has the attention of the encoder.
    ///
    /// On a device with autodiff it trains. The same seed gives the same parameters.
    ///
    /// # Errors
    /// Sizes or options that do not fit each other.
    pub fn build(
        config: &ModelConfig,
        attentions: impl Into<Attentions>,
        data: &TaskData,
        seed: u64,
        device: &Device,
    ) -> Result<Self, Error> {
        let types = data.token_types();
        if (1..types).contains(&config.token_types) {
            let expected = format!("0 for none, or {types}, those of this task");
            return Err(Error::option("model.token_types", config.token_types, expected));
        }
        Self::of_shape(config, attentions, data.shape(), seed, device)
    }

    /// The same for data of this shape.
    ///
    /// # Errors
    /// Sizes or options that do not fit each other.
    pub fn of_shape(
        config: &ModelConfig,
        attentions: impl Into<Attentions>,
        shape: Shape,
        seed: u64,
        device: &Device,
    ) -> Result<Self, Error> {
        let Shape { objective, vocabulary, max_length: length } = shape;
        check_head(config, objective)?;
        let attentions = attentions.into();
        let attention = &attentions.encoder;
        Ok(match objective {
            Objective::Classify { classes } => {
                Self::Classifier(Classifier::new(config, attention, vocabulary, classes, length, seed, device)?)
            }
            Objective::Regress => {
                Self::Classifier(Classifier::new(config, attention, vocabulary, 1, length, seed, device)?)
            }
            Objective::ClassifyPairs { classes } => {
                Self::Classifier(Classifier::of_pairs(config, attention, vocabulary, classes, length, seed, device)?)
            }
            Objective::NextToken { .. } => {
                Self::Language(LanguageModel::new(config, attention, vocabulary, length, seed, device)?)
            }
            Objective::Translate | Objective::Summarize { .. } => {
                Self::Translator(Translator::new(config, &attentions, vocabulary, length, seed, device)?)
            }
            Objective::Rank { history, .. } => {
                Self::Recommender(Recommender::new(config, attention, vocabulary, length, history, seed, device)?)
            }
            Objective::Fill => Self::Masked(MaskedModel::new(config, attention, vocabulary, length, seed, device)?),
        })
    }

    /// Logits `[rows, outputs]` and the target of each row, negative where it does not count. Models of pieces of words have
    /// rows for the targets that count alone, since their outputs are many.
    ///
    /// # Panics
    /// A batch of another task.
    pub fn predictions(&self, batch: &Batch, context: &Context) -> (Tensor<2>, Arc<[i32]>) {
        let Batch { tokens, targets, source, readers } = batch;
        match self {
            Self::Classifier(model) => (model.forward(tokens, context), targets.clone()),
            Self::Language(model) => (model.forward(tokens, context).flatten(0, 1), targets.clone()),
            Self::Translator(model) => {
                let source = source.as_ref().expect("a batch of pairs");
                model.forward_counted(source, tokens, targets, context)
            }
            Self::Masked(model) => model.forward_counted(tokens, targets, context),
            Self::Recommender(model) => {
                let readers = readers.as_ref().expect("a batch of impressions");
                (model.forward(tokens, readers, context), targets.clone())
            }
        }
    }

    /// Mean cross entropy of a batch over its items, `[1]`, in nats; `smoothing` is the share of a target's probability
    /// spread over all outputs. Of scores the mean squared error.
    pub fn loss(&self, batch: &Batch, smoothing: f32, context: &Context) -> Tensor<1> {
        if let Self::Language(model) = self {
            return model.loss(&batch.tokens, batch.targets.clone(), smoothing, context);
        }
        let (logits, targets) = self.predictions(batch, context);
        if matches!(self, Self::Classifier(model) if model.sizes().outputs == 1) {
            return squared_error(logits, &targets);
        }
        ops::cross_entropy(logits, targets, smoothing)
    }

    /// The options of its attention, the same in every layer, where tokens can be spread over ranks.
    pub(super) fn spread_options(&self) -> Option<&AttentionConfig> {
        match self {
            Self::Classifier(model) => Some(model.attention()),
            Self::Language(model) => Some(model.attention()),
            Self::Masked(model) => Some(model.attention()),
            Self::Translator(_) | Self::Recommender(_) => None,
        }
    }

    /// Whether it has buffers that each batch of training moves.
    pub(super) fn follows_batches(&self) -> bool {
        !self.moved().is_empty()
    }

    /// The buffers that each batch of training moves.
    pub(super) fn moved(&self) -> HostTensors {
        self.to_host().into_iter().filter(|(name, _)| name.ends_with(".prior")).collect()
    }

    /// Parameters and buffers by name.
    pub fn to_host(&self) -> HostTensors {
        let tensors = named_parameters(self).into_iter();
        tensors.map(|p| (p.name, HostTensor { shape: p.shape, data: p.values })).collect()
    }

    /// This model with the parameters of the best checkpoint of a run, where it has one of the same name and shape. Buffers
    /// stay: random draws belong to the mechanism, not to what was learned.
    ///
    /// # Errors
    /// A directory without a checkpoint, one that cannot be read, or none of whose parameters fits.
    pub fn starting_from(self, run: &Path) -> Result<Self, TrainError> {
        let checkpoints = Checkpoints::new(run.join(CHECKPOINTS), 1);
        let path = checkpoints.best().or_else(|| checkpoints.last()).ok_or_else(|| {
            TrainError::checkpoint(run, "train.start, holds no checkpoint; give the directory of a run that has one")
        })?;
        let mut own = self.to_host();
        let mut taken = 0;
        for (name, tensor) in Checkpoint::load_model(&path)? {
            if let Some(place) = own.get_mut(&name).filter(|place| place.shape == tensor.shape && !is_buffer(&name)) {
                *place = tensor;
                taken += 1;
            }
        }
        if taken == 0 {
            return Err(TrainError::checkpoint(
                path,
                "train.start: no parameter has the name and shape of one of this model; give a run of a model of its sizes",
            ));
        }
        self.with_host(own).map_err(|problem| TrainError::checkpoint(path, problem))
    }

    /// This model with other parameters and buffers.
    ///
    /// # Errors
    /// Names or shapes that are not this model's, as a sentence.
    pub fn with_host(self, tensors: HostTensors) -> Result<Self, String> {
        let tensors = tensors.into_iter().map(|(name, tensor)| (name, (tensor.shape, tensor.data))).collect();
        load_parameters(self, tensors).map_err(|error| error.to_string())
    }
}

/// Mean squared error of `scores [rows,1]`, `[1]`.
fn squared_error(scores: Tensor<2>, targets: &[i32]) -> Tensor<1> {
    let given: Vec<f32> = targets.iter().map(|target| target_score(*target)).collect();
    let given = Tensor::<2>::from_data(TensorData::new(given, [targets.len(), 1]), &scores.device());
    let error = scores - given;
    (error.clone() * error).mean()
}
