//! Sequences whose tokens are spread over ranks.

use std::sync::Arc;

use regard_cluster::{ClusterError, Communicator, Group};
use regard_kernels::{
    AttentionOptions, Call, Error, Mechanism, Operator, Padding,
    mechanism::{Combination, Interaction},
    support::SupportKind,
};
use regard_nn::{blocks::Spread, models::TokenBatch, ops::runs_kernels};
use regard_sequence::{Failed, OnRank, SequenceError, SequenceParallel, Split, SumOverRanks};

use crate::train::{Batch, Model, TrainError};

/// Key of the number of ranks that a sequence is spread over.
const KEY: &str = "parallel.sequence";

/// The ranks that share each sequence.
#[derive(Debug)]
pub struct SequenceRanks {
    group: Arc<dyn Communicator>,
    options: AttentionOptions,
    failed: Failed,
}

impl SequenceRanks {
    /// This rank's, where `ranks` share a sequence.
    ///
    /// # Errors
    /// A job that does not consist of such groups; a model or a device that cannot be spread.
    pub fn new(job: &Arc<dyn Communicator>, ranks: usize, model: &Model) -> Result<Self, TrainError> {
        if ranks == 0 || !job.ranks().is_multiple_of(ranks) {
            let expected = format!("a divisor of {}, the ranks of the job (mpirun -n)", job.ranks());
            return Err(Error::option(KEY, ranks, expected).into());
        }
        let refuse = |expected: &str| Err(Error::option(KEY, ranks, expected).into());
        if !runs_kernels(&super::device_of(model)) {
            return refuse("1 on this device: attention over ranks runs on the CPU");
        }
        let Some(options) = model.spread_options() else {
            return refuse("1 for this task: encoder-decoders and recommenders have several sequences");
        };
        if options.mechanism == Mechanism::Fastformer && options.fastformer.interaction != Interaction::Product {
            return refuse("1 with fastformer.interaction other than 'product', which is composed on one rank");
        }
        if options.mechanism == Mechanism::Scatterbrain
            && options.scatterbrain.combination == Combination::Gated
            && options.support.kind == SupportKind::Full
        {
            return refuse("1 with full support beside features: the two spread tokens in different ways");
        }
        let group: Arc<dyn Communicator> = Arc::new(Group::of(job.clone(), ranks));
        let own = Self { group, options: options.clone(), failed: Failed::default() };
        // Refuses what no scheme spreads before any data are read.
        own.split(2 * ranks)?;
        Ok(own)
    }

    /// Which of `length` tokens each rank has.
    fn split(&self, length: usize) -> Result<Split, TrainError> {
        let call = Call { mask: self.options.mask(), ..Call::default() };
        let mut options = self.options.clone();
        // A layer of two operators that are spread alike.
        if options.scatterbrain.combination == Combination::Gated {
            options.scatterbrain.combination = Combination::Corrected;
        }
        match SequenceParallel::new(&options, &call, [length; 2], self.group.clone()) {
            Ok(attention) => Ok(attention.queries().clone()),
            Err(SequenceError::Call(error)) => Err(error.into()),
            Err(SequenceError::Cluster(error)) => Err(error.into()),
        }
    }

    /// Ranks of a sequence.
    pub fn ranks(&self) -> usize {
        self.group.ranks()
    }

    /// This one among them.
    pub fn place(&self) -> usize {
        self.group.rank()
    }

    /// The first message that did not arrive in a pass.
    pub fn check(&self) -> Result<(), ClusterError> {
        self.failed.error().map_or(Ok(()), Err)
    }

    /// This rank's tokens of a batch with their targets, what the model has to know of the others, and this rank's share of the
    /// loss of the batch.
    ///
    /// # Errors
    /// A mechanism or option that is not spread over ranks; fewer tokens than ranks have chunks.
    pub fn cut(&self, batch: &Batch) -> Result<(Batch, Arc<dyn Spread>, f64), TrainError> {
        let tokens = &batch.tokens;
        let length = tokens.length;
        let split = self.split(length)?;
        let own: Vec<usize> = split.of(self.place()).iter().cloned().flatten().collect();
        // One target a token, or a few for the sequence, which all ranks have.
        let by_token = batch.targets.len() == tokens.ids.len();
        let targets = if by_token { chosen(&batch.targets, length, &own) } else { batch.targets.clone() };
        let part = Batch { tokens: cut(tokens, &own), targets, source: None, readers: None };
        let share = match by_token {
            true => part.items() as f64 / batch.items().max(1) as f64,
            false => 1.0 / self.ranks() as f64,
        };
        let real = |row: usize| tokens.padding.as_ref().map_or(length, |padding| real_in(padding.row(row)));
        let spread = Tokens {
            group: self.group.clone(),
            failed: self.failed.clone(),
            real: (0..tokens.batch).map(real).collect(),
            padding: tokens.padding.clone(),
            own,
            split,
        };
        Ok((part, Arc::new(spread), share))
    }
}

fn real_in(row: &[u8]) -> usize {
    row.iter().filter(|real| **real != 0).count()
}

/// Entries `own` of each row of `length`.
fn chosen<T: Copy>(all: &[T], length: usize, own: &[usize]) -> Arc<[T]> {
    all.chunks_exact(length).flat_map(|row| own.iter().map(|at| row[*at])).collect()
}

/// Tokens `own` of every row.
fn cut(tokens: &TokenBatch, own: &[usize]) -> TokenBatch {
    let TokenBatch { batch, length, .. } = *tokens;
    let padding = tokens.padding.as_ref().map(|padding| {
        let real = chosen(padding.as_slice(), length, own).to_vec();
        Arc::new(Padding::new(batch, own.len(), real).expect("the tokens of each row"))
    });
    TokenBatch {
        ids: chosen(&tokens.ids, length, own),
        batch,
        length: own.len(),
        padding,
        types: tokens.types.as_ref().map(|types| chosen(types, length, own)),
    }
}

/// The tokens of one batch.
#[derive(Debug)]
struct Tokens {
    group: Arc<dyn Communicator>,
    failed: Failed,
    split: Split,
    /// Positions of this rank's.
    own: Vec<usize>,
    /// Of all.
    padding: Option<Arc<Padding>>,
    /// Real tokens of each row.
    real: Vec<usize>,
}

impl Spread for Tokens {
    fn positions(&self) -> &[usize] {
        &self.own
    }

    fn real_tokens(&self) -> &[usize] {
        &self.real
    }

    fn attention(&self, options: &AttentionOptions, call: Call) -> Arc<dyn Operator> {
        assert!(call.mask.query_valid.is_none(), "queries and keys of one sequence have one padding");
        let call = Call { mask: call.mask.with_valid(self.padding.clone()), ..call };
        let attention = SequenceParallel::new(options, &call, [self.split.total(); 2], self.group.clone());
        let attention = attention.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(*attention.queries(), self.split, "all layers spread tokens alike");
        Arc::new(OnRank::new(attention, self.failed.clone()))
    }

    fn sum(&self) -> Arc<dyn Operator> {
        Arc::new(SumOverRanks::new(self.group.clone(), self.failed.clone()))
    }

    fn largest(&self, values: Vec<f32>) -> Vec<f32> {
        SumOverRanks::new(self.group.clone(), self.failed.clone()).largest(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_cut_with_all_that_belongs_to_them() {
        let padding = Padding::new(2, 4, vec![1, 1, 1, 1, 1, 1, 0, 0]).unwrap();
        let tokens = TokenBatch::new([1, 2, 3, 4, 5, 6, 7, 8], 2, 4, Some(Arc::new(padding))).unwrap();
        let tokens = tokens.with_types([0, 0, 1, 1, 0, 1, 1, 1]).unwrap();
        let own = cut(&tokens, &[0, 3]);
        assert_eq!((&own.ids[..], own.batch, own.length), (&[1, 4, 5, 8][..], 2, 2));
        assert_eq!(own.padding.unwrap().as_slice(), [1, 1, 1, 0]);
        assert_eq!(own.types.unwrap()[..], [0, 1, 0, 1]);
    }
}
