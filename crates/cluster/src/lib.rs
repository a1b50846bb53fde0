//! Ranks that work on one job and the messages between them.
//!
//! A job has `ranks()` ranks, numbered from 0. [`Communicator`] is all that training and attention know of them: a rank
//! sends a message to another under a tag and receives what was sent to it, in the order of sending for each sender and
//! tag. [`Alone`] is a job of one rank; [`Threads`] runs every rank as a thread of this process; with the feature `mpi`,
//! `Mpi` is a process that an MPI launcher has started. What all ranks do together is written over the trait:
//! [`gather_all`], [`broadcast`], [`barrier`], sums in an order that does not depend on the number of ranks, [`SumTree`], and
//! work that is dealt to whoever is free, [`deal`].

mod collective;
mod deal;
mod error;
mod group;
mod launch;
mod mailbox;
#[cfg(feature = "mpi")]
mod mpi;
mod threads;
mod tree;

use std::fmt::Debug;

pub use collective::{barrier, broadcast, gather_all};
pub use deal::deal;
pub use error::ClusterError;
pub use group::Group;
pub use launch::Launch;
pub use mailbox::{Mailbox, Message};
#[cfg(feature = "mpi")]
pub use mpi::{Mpi, OnLost};
pub use threads::Threads;
pub use tree::{Link, Linked, PartialSums, SumTree};

/// One rank's view of its job.
///
/// Sending never waits for the receiver, so that two ranks may send to each other before either receives.
pub trait Communicator: Debug + Send + Sync {
    /// This rank, below [`Communicator::ranks`].
    fn rank(&self) -> usize;

    /// Ranks of the job, at least 1.
    fn ranks(&self) -> usize;

    /// Sends `bytes` to rank `to` under `tag`; returns before they arrive.
    ///
    /// # Errors
    /// A rank that has left the job.
    ///
    /// # Panics
    /// If there is no rank `to`.
    fn send(&self, to: usize, tag: u32, bytes: Vec<u8>) -> Result<(), ClusterError>;

    /// The next message of rank `from` under `tag`; waits for it.
    ///
    /// # Errors
    /// A rank that has left the job without sending it.
    ///
    /// # Panics
    /// If there is no rank `from`.
    fn receive(&self, from: usize, tag: u32) -> Result<Vec<u8>, ClusterError>;

    /// Bytes that this rank has sent to others so far.
    fn bytes_sent(&self) -> u64;
}

/// A job of one rank, which has nobody to talk to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Communicator for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn ranks(&self) -> usize {
        1
    }

    fn send(&self, to: usize, _: u32, _: Vec<u8>) -> Result<(), ClusterError> {
        panic!("a job of one rank sends to nobody, not to {to}")
    }

    fn receive(&self, from: usize, _: u32) -> Result<Vec<u8>, ClusterError> {
        panic!("a job of one rank receives from nobody, not from {from}")
    }

    fn bytes_sent(&self) -> u64 {
        0
    }
}
