//! The sizes of a configured model.

use regard_nn::attention::{AttentionConfig, Attentions};
use regard_nn::models::{ModelConfig, NormPlace, Pooling};

use super::model::{AttentionSizes, DecoderSizes, Head, ModelSizes};

impl ModelSizes {
    /// Sizes of a classifier of sequences of at most `context` tokens.
    pub fn classifier(
        config: &ModelConfig,
        attention: &AttentionConfig,
        vocabulary: usize,
        classes: usize,
        context: usize,
    ) -> Self {
        let head = Head::Classes { classes, attention_pooling: config.pooling == Pooling::Attention };
        Self::configured(config, attention.clone(), vocabulary, head, context)
    }

    /// Sizes of a causal language model of sequences of at most `context` tokens.
    pub fn language_model(
        config: &ModelConfig,
        attention: &AttentionConfig,
        vocabulary: usize,
        context: usize,
    ) -> Self {
        let attention = AttentionConfig { causal: true, ..attention.clone() };
        Self::configured(config, attention, vocabulary, Head::Language { tied: config.tied_head }, context)
    }

    /// Sizes of an encoder that predicts masked tokens of sequences of at most `context` tokens.
    pub fn masked_model(config: &ModelConfig, attention: &AttentionConfig, vocabulary: usize, context: usize) -> Self {
        let attention = AttentionConfig { causal: false, ..attention.clone() };
        Self::configured(config, attention, vocabulary, Head::Language { tied: config.tied_head }, context)
    }

    /// Sizes of an encoder-decoder of sequences of at most `context` tokens, over one vocabulary.
    pub fn translator(config: &ModelConfig, attentions: &Attentions, vocabulary: usize, context: usize) -> Self {
        let sizes = |options: &AttentionConfig, causal| AttentionSizes {
            head_width: config.head_width(options),
            options: AttentionConfig { causal, ..options.clone() },
            bias: config.bias,
        };
        let Attentions { encoder, decoder, cross } = attentions;
        let decoder = DecoderSizes { attention: sizes(decoder, true), cross: sizes(cross, false) };
        let head = Head::Language { tied: config.tied_head };
        Self { decoder: Some(decoder), ..Self::configured(config, encoder.clone(), vocabulary, head, context) }
    }

    fn configured(
        config: &ModelConfig,
        options: AttentionConfig,
        vocabulary: usize,
        head: Head,
        context: usize,
    ) -> Self {
        Self {
            vocabulary,
            width: config.width,
            layers: config.layers,
            feed_forward: config.feed_forward,
            context,
            head,
            final_norm: config.norm == NormPlace::Pre,
            checkpointing: config.checkpointing,
            attention: AttentionSizes { head_width: config.head_width(&options), options, bias: config.bias },
            decoder: None,
        }
    }
}
