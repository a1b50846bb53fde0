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
        let context = Context::evaluation().with_attention_log(log.clone());
        match model {
            // One sequence of a pair has attention, but no logits.
            Model::Classifier(model) => drop(model.vectors(&batch.tokens, &context)),
            // The titles alone: of a reader's history only their vectors are left.
            Model::Recommender(model) => drop(model.news(&batch.tokens, &context)),
            _ => drop(model.predictions(batch, &context)),
        }
        let tokens = batch.source.as_ref().unwrap_or(&batch.tokens).length;
        Self { tokens, records: log.take() }
    }

    /// Recordings of `most` sequences or pairs, spread evenly over a split; sequences with fewer than two tokens are left out.
    ///
    /// # Errors
    /// A split that cannot be cut into sequences.
    pub fn all<'a>(
        model: &'a Model,
        data: &'a TaskData,
        split: Split,
        most: usize,
    ) -> Result<impl ExactSizeIterator<Item = Self> + 'a, DataError> {
        let batches = split_batches(data, split, 1, most)?.flat_map(unpadded);
        let worth =
            |batch: &Batch| [Some(&batch.tokens), batch.source.as_ref()].into_iter().flatten().all(|t| t.length > 1);
        let batches: Vec<Batch> = batches.filter(worth).collect();
        Ok(batches.into_iter().map(|batch| Self::of(model, &batch)))
    }
}

/// Each sequence of an item without its padding, which comes last.
fn unpadded(batch: Batch) -> Vec<Batch> {
    let cut = |tokens: &TokenBatch, row: usize| {
        let real = tokens.padding.as_ref().map(|padding| padding.row(row).iter().filter(|real| **real != 0).count());
        let (start, length) = (row * tokens.length, real.unwrap_or(tokens.length));
        let types = tokens.types.as_ref().map(|types| types[start..start + length].into());
        TokenBatch { ids: tokens.ids[start..start + length].into(), batch: 1, length, padding: None, types }
    };
    // One target per token, or one per item.
    let of_tokens = batch.targets.len() == batch.tokens.length;
    let one = |row: usize| {
        let tokens = cut(&batch.tokens, row);
        let targets = if of_tokens { batch.targets[..tokens.length].into() } else { batch.targets.clone() };
        Batch { tokens, targets, source: batch.source.as_ref().map(|source| cut(source, row)), readers: None }
    };
    (0..batch.tokens.batch).map(one).collect()
}

#[cfg(test)]
mod tests {
    use regard_kernels::Padding;

    use super::*;

    #[test]
    fn a_sequence_keeps_its_types_without_its_padding() {
        let padding = Some(Arc::new(Padding::from_lengths(&[2, 3], 3)));
        let tokens = TokenBatch::new([1, 2, 0, 3, 4, 5], 2, 3, padding).unwrap();
        let tokens = tokens.with_types([0, 1, 0, 0, 0, 1]).unwrap();
        let cut = unpadded(Batch { tokens, targets: [1, 0].into(), source: None, readers: None });
        let seen: Vec<_> = cut.iter().map(|batch| (&batch.tokens.ids[..], batch.tokens.types.as_deref())).collect();
        assert_eq!(seen, [(&[1, 2][..], Some(&[0, 1][..])), (&[3, 4, 5], Some(&[0, 0, 1]))]);
    }
}
