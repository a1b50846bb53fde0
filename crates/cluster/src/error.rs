//! What can go wrong between ranks.

/// A message that did not arrive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// A rank ended before the job did.
    #[error("rank {rank} has left the job: it stopped or was stopped; see its output, then go on with --resume")]
    Lost {
        /// The rank that is gone.
        rank: usize,
    },
    /// A rank ended with an error that it has told.
    #[error("rank {rank} has stopped the job: it says why")]
    Stopped {
        /// The rank that is gone.
        rank: usize,
        /// The exit code of its process.
        code: u8,
    },
}
