//! What can go wrong.

use regard_cluster::ClusterError;
use regard_kernels::Error;

/// A call that cannot be spread over ranks, or a rank that has left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// Options or tensors that do not fit, or that no scheme spreads over ranks.
    #[error(transparent)]
    Call(#[from] Error),
    /// A message that did not arrive.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}
