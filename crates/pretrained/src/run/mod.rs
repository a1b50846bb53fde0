//! What trained models are used for: texts continued, scored, embedded and classified.

mod classify;
mod collections;
mod embed;
mod generate;
mod masked;
mod perplexity;
mod sampling;
mod tensors;
mod text;

use std::sync::Arc;

use burn::tensor::Tensor;
use regard_kernels::{Error, Padding};
use regard_nn::models::TokenBatch;

pub use self::{
    classify::{Class, Predictions, classify_images, classify_texts},
    collections::{Judgement, Ranked, SentencePair, SmartDocument, judgements, rank, sentence_pairs, smart_documents},
    embed::{EmbedOptions, Embeddings, Pooling, embed},
    generate::{Finish, GenerateOptions, Generated, generate},
    masked::{MaskedScore, MaskedTokens, hide, masked_accuracy},
    perplexity::{Beginning, Bucket, Perplexity, PerplexityOptions, perplexity},
    sampling::{Sampler, Sampling},
    tensors::{read_masked, read_pixels},
    text::read_text,
};
use crate::{Encoded, PretrainedError};

/// How far something is, in parts of which there are so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Parts that are done.
    pub done: usize,
    /// All of them.
    pub total: usize,
}

/// Tokens of a batch that go through a model at once, padding included: more do not make it faster.
const BATCH_TOKENS: usize = 4096;

/// Rows of tokens in batches of similar length, the longest first: which rows, and the tokens with their padding.
fn batches(
    rows: &[Encoded],
    padding: i32,
    typed: bool,
    most: usize,
) -> impl Iterator<Item = Result<(Vec<usize>, TokenBatch), Error>> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|row| std::cmp::Reverse(rows[*row].ids.len()));
    let mut start = 0;
    std::iter::from_fn(move || {
        let length = rows[*order.get(start)?].ids.len();
        let count = (BATCH_TOKENS / length.max(1)).clamp(1, most).min(order.len() - start);
        let taken = order[start..start + count].to_vec();
        start += count;
        Some(padded(&taken, rows, length, padding, typed).map(|batch| (taken, batch)))
    })
}

fn padded(taken: &[usize], rows: &[Encoded], length: usize, padding: i32, typed: bool) -> Result<TokenBatch, Error> {
    let (mut ids, mut types, mut real) = (Vec::new(), Vec::new(), Vec::new());
    for row in taken.iter().map(|row| &rows[*row]) {
        let fill = length - row.ids.len();
        ids.extend(row.ids.iter().map(|id| *id as i32).chain(std::iter::repeat_n(padding, fill)));
        types.extend(row.types.iter().map(|kind| *kind as i32).chain(std::iter::repeat_n(0, fill)));
        real.extend(std::iter::repeat_n(1, row.ids.len()).chain(std::iter::repeat_n(0, fill)));
    }
    let whole = real.iter().all(|real: &u8| *real == 1);
    let padding = if whole { None } else { Some(Arc::new(Padding::new(taken.len(), length, real)?)) };
    let batch = TokenBatch::new(ids, taken.len(), length, padding)?;
    if typed { batch.with_types(types) } else { Ok(batch) }
}

/// The numbers of a tensor.
fn numbers<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>, PretrainedError> {
    let shown = |error| PretrainedError::Text(format!("a result that is no f32: {error:?}"));
    tensor.into_data_as::<f32>().try_into_vec().map_err(shown)
}
