//! A model that ranks news for a reader.

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use regard_kernels::{Error, mechanism::Position};

use super::{Body, ModelConfig, Pooling, Sizes, TokenBatch, encoder::Encoder, pooling::pooled};
use crate::{
    attention::AttentionConfig,
    blocks::{Context, Init, Stack},
    ops,
};

/// Readers and what is offered to them. Pieces of news are named by their rows in the titles, or vectors, of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readers {
    /// What each reader has read, the oldest first; the ids are rows.
    pub histories: TokenBatch,
    /// Rows of what is offered: equally many for each reader, reader by reader.
    pub candidates: Arc<[i32]>,
}

/// Two encoders of one mechanism (Wu et al. 2019, "Neural News Recommendation with Multi-Head Self-Attention"): one reads the
/// words of a title, the other the vectors of the titles that someone has read; each pools its states to one vector. The score
/// of a piece of news for a reader is the product of their vectors, divided by the root of the width, as in attention: the
/// order is the same, but scores start small at any width.
///
/// What was read carries no positions of its own: the second encoder takes a history as a set, but for mechanisms whose
/// support depends on the order. The vector of a reader without history is 0.
///
/// ```
/// use burn::tensor::Device;
/// use regard_nn::{
///     attention::AttentionConfig,
///     blocks::Context,
///     models::{ModelConfig, Readers, Recommender, TokenBatch},
/// };
///
/// let (config, attention) = (ModelConfig::default(), AttentionConfig::default());
/// let (vocabulary, longest_title, longest_history, seed) = (10, 3, 2, 1);
/// let model =
///     Recommender::new(&config, &attention, vocabulary, longest_title, longest_history, seed, &Device::flex())?;
/// let titles = TokenBatch::full([1, 2, 3, 4, 5, 6, 7, 8, 9], 3)?;
/// // One reader, who has read titles 0 and 2, is offered titles 1 and 2.
/// let readers = Readers { histories: TokenBatch::full([0, 2], 1)?, candidates: [1, 2].into() };
/// assert_eq!(model.forward(&titles, &readers, &Context::evaluation()).dims(), [1, 2]);
/// # Ok::<(), regard_kernels::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct Recommender {
    news: Body,
    /// Scores of attention pooling, `[d,1]`.
    pool_news: Option<Param<Tensor<2>>>,
    users: Encoder,
    /// The same of histories.
    pool_users: Option<Param<Tensor<2>>>,
    #[module(skip)]
    pooling: Pooling,
}

impl Recommender {
    /// A model of titles of at most `title` tokens below `vocabulary` and of histories of at most `history` titles. The same seed
    /// gives the same parameters on any device; a device with autodiff gives a model that trains.
    ///
    /// # Errors
    /// Sizes or options that do not fit each other; pooling by the first token.
    pub fn new(
        config: &ModelConfig,
        attention: &AttentionConfig,
        vocabulary: usize,
        title: usize,
        history: usize,
        seed: u64,
        device: &Device,
    ) -> Result<Self, Error> {
        Self::check(config)?;
        let init = Init::new(seed, device);
        let width = config.width;
        let attention = AttentionConfig { causal: false, ..attention.clone() };
        let sizes = config.sizes(&attention, vocabulary, width, title)?;
        let (of_users, among_news) = Self::of_users(config, &attention);
        of_users.sizes(&among_news, vocabulary, width, history)?;
        let pool = |name| (config.pooling == Pooling::Attention).then(|| init.projection(name, [width, 1], 1.0));
        Ok(Self {
            news: Body::new(config, &attention, sizes, &init.part("news"))?,
            pool_news: pool("pool_news"),
            users: Encoder::new(&of_users, &among_news, history, &init.part("users"))?,
            pool_users: pool("pool_users"),
            pooling: config.pooling,
        })
    }

    /// Checks what this model alone demands.
    ///
    /// # Errors
    /// Pooling by the first token, which says nothing of a title or a history.
    pub fn check(config: &ModelConfig) -> Result<(), Error> {
        match config.pooling {
            Pooling::First => {
                Err(Error::option("model.pooling", "'first'", "'attention' or 'mean': news and readers are whole"))
            }
            _ => Ok(()),
        }
    }

    /// Options of the second encoder: as those of the first, but what it reads are vectors, without positions or types.
    pub fn of_users(config: &ModelConfig, attention: &AttentionConfig) -> (ModelConfig, AttentionConfig) {
        let model = ModelConfig { embedding_width: None, embedding_norm: false, token_types: 0, ..config.clone() };
        (model, AttentionConfig { position: Position::None, causal: false, ..attention.clone() })
    }

    /// Scores `[readers,candidates]` of what is offered to each reader; `titles` are all news that readers name.
    ///
    /// # Panics
    /// Tokens that [`TokenBatch::check`] refuses, a row that is not there, or candidates that the readers cannot share evenly.
    pub fn forward(&self, titles: &TokenBatch, readers: &Readers, context: &Context) -> Tensor<2> {
        let news = self.news(titles, context);
        let users = self.users(news.clone(), &readers.histories, context);
        self.scores(users, news, readers.candidates.clone())
    }

    /// One vector per title, `[titles,d]`; 0 for one without a word.
    ///
    /// # Panics
    /// Tokens that [`TokenBatch::check`] refuses.
    pub fn news(&self, titles: &TokenBatch, context: &Context) -> Tensor<2> {
        let states = self.news.forward(titles, context);
        let scores = self.pool_news.as_ref().map(Param::val);
        pooled(states, scores, self.pooling, titles.padding.as_deref(), context).squeeze_dim(1)
    }

    /// One vector per reader, `[readers,d]`, of what each has read of `news [titles,d]`; 0 for one who has read nothing.
    ///
    /// # Panics
    /// A row that is not there, or histories that are too long.
    pub fn users(&self, news: Tensor<2>, histories: &TokenBatch, context: &Context) -> Tensor<2> {
        let x = ops::embedding(news, histories.ids.clone(), [histories.batch, histories.length]);
        let states = self.users.forward_vectors(x, histories.padding.clone(), &context.in_stack(Stack::Decoder));
        let scores = self.pool_users.as_ref().map(Param::val);
        pooled(states, scores, self.pooling, histories.padding.as_deref(), context).squeeze_dim(1)
    }

    /// Products `[readers,candidates]` of `users [readers,d]` and the rows `candidates` of `news [titles,d]`, equally many for
    /// each reader, divided by the root of the width.
    ///
    /// # Panics
    /// Candidates that the readers cannot share evenly, or a row that is not there.
    pub fn scores(&self, users: Tensor<2>, news: Tensor<2>, candidates: Arc<[i32]>) -> Tensor<2> {
        let [readers, width] = users.dims();
        assert!(candidates.len().is_multiple_of(readers), "{} candidates for {readers} readers", candidates.len());
        let each = candidates.len() / readers;
        let offered = ops::embedding(news, candidates, [readers, each]);
        let users = users.mul_scalar((width as f64).sqrt().recip()).reshape([readers, width, 1]);
        offered.matmul(users).reshape([readers, each])
    }

    /// Sizes of the first encoder; its outputs are the channels of a vector.
    pub fn sizes(&self) -> Sizes {
        self.news.sizes()
    }

    /// Options of the attention among words.
    pub fn attention(&self) -> &AttentionConfig {
        self.news.options()
    }
}
