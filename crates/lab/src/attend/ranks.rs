//! The kernel over ranks, each of which computes its part of the sequence.

use std::sync::Arc;

use regard_cluster::{Communicator, Threads};
use regard_kernels::{AttentionOptions, Call, Error, View};
use regard_sequence::{SequenceError, SequenceParallel, Whole};

/// Who computes.
#[derive(Clone, Debug, Default)]
pub enum Ranks {
    /// This process alone.
    #[default]
    One,
    /// So many ranks, threads of this process.
    Threads(usize),
    /// The ranks of a job, which all make the same request and all get the whole result.
    Job(Arc<dyn Communicator>),
}

impl Ranks {
    /// Most ranks of one process, a thread each.
    pub const MOST: usize = 256;

    /// The results over ranks of a call over `[queries, keys]` tokens; `None` for one process.
    ///
    /// # Errors
    /// A call that no scheme spreads over ranks, or a rank that has left.
    pub(super) fn run(
        &self,
        options: &AttentionOptions,
        call: &Call,
        tokens: [usize; 2],
        inputs: &[View<f32>],
        grad_out: Option<&View<f32>>,
    ) -> Result<Option<Whole>, SequenceError> {
        let rank = |communicator: Arc<dyn Communicator>| {
            SequenceParallel::new(options, call, tokens, communicator)?.whole(inputs, grad_out)
        };
        match self {
            Self::One => Ok(None),
            Self::Threads(ranks) if !(1..=Self::MOST).contains(ranks) => {
                let expected = format!("1 to {}, as threads of one process", Self::MOST);
                Err(Error::option("ranks", ranks, expected).into())
            }
            // All ranks have the same results.
            Self::Threads(ranks) => Threads::run(*ranks, rank).remove(0).map(Some),
            Self::Job(communicator) => rank(communicator.clone()).map(Some),
        }
    }
}
