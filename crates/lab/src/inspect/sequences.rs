//! Recordings of a model's attention on sequences of its data.

use std::sync::Arc;

use regard_nn::{
    attention::{AttentionLog, AttentionRecord},
    blocks::Context,
    models::TokenBatch,
};
use regard_tasks::{
    data::{DataError, TaskData},
    train::{Batch, Model, Split, split_batches},
};

/// All attentions of one forward pass over one sequence without padding.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Tokens of the sequence; of the source in translation.
    pub tokens: usize,
    /// One record per attention, in the order in which they ran.
    pub records: Vec<AttentionRecord>,
}

impl Recording {
    /// Recording of `batch`, one sequence without padding.
    pub fn of(model: &Model, batch: &Batch) -> Self {
        let log = Arc::new(AttentionLog::new());
        model.predictions(batch, &Context::evaluation().with_attention_log(log.clone()));
        let tokens = batch.source.as_ref().unwrap_or(&batch.tokens).length;
        Self { tokens, records: log.take() }
    }

    /// Recordings of `most` sequences, spread evenly over a split; those with fewer than two tokens are left out.
    ///
    /// # Errors
    /// A split that cannot be cut into sequences.
    pub fn all<'a>(
        model: &'a Model,
        data: &'a TaskData,
        split: Split,
        most: usize,
    ) -> Result<impl ExactSizeIterator<Item = Self> + 'a, DataError> {
        let batches = split_batches(data, split, 1, most)?.map(unpadded);
        let worth =
            |batch: &Batch| [Some(&batch.tokens), batch.source.as_ref()].into_iter().flatten().all(|t| t.length > 1);
        let batches: Vec<Batch> = batches.filter(worth).collect();
        Ok(batches.into_iter().map(|batch| Self::of(model, &batch)))
    }
}

/// One sequence without its padding, which comes last.
fn unpadded(batch: Batch) -> Batch {
    let cut = |tokens: TokenBatch| {
        let length = tokens.real_tokens();
        TokenBatch { ids: tokens.ids[..length].into(), batch: 1, length, padding: None, types: None }
    };
    // One target per token, or one per sequence.
    let of_tokens = batch.targets.len() == batch.tokens.length;
    let tokens = cut(batch.tokens);
    let targets = if of_tokens { batch.targets[..tokens.length].into() } else { batch.targets };
    Batch { tokens, targets, source: batch.source.map(cut) }
}
