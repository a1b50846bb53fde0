//! Messages of floats.

use std::sync::Arc;

use regard_cluster::{ClusterError, Communicator};

/// What a message is about: messages of one sender under one tag arrive in order, others need not.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tag {
    /// Keys and values on their way round the ring, and their gradients.
    Ring = 0x5e01,
    /// Keys near a border, and their gradients on the way back.
    Halo,
    /// States from lower ranks to higher ones.
    Up,
    /// States from higher ranks to lower ones.
    Down,
    /// Global tokens, and what they gather.
    Globals,
    /// Sums over all ranks.
    Total,
}

/// One rank of a job, with messages of floats.
#[derive(Clone, Debug)]
pub(crate) struct Peers(pub Arc<dyn Communicator>);

impl Peers {
    pub fn rank(&self) -> usize {
        self.0.rank()
    }

    pub fn ranks(&self) -> usize {
        self.0.ranks()
    }

    /// All ranks but this one, in order.
    pub fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.rank();
        (0..self.ranks()).filter(move |rank| *rank != own)
    }

    /// Sends the parts as one message.
    pub fn send<'a>(
        &self,
        to: usize,
        tag: Tag,
        parts: impl IntoIterator<Item = &'a [f32], IntoIter: Clone>,
    ) -> Result<(), ClusterError> {
        let parts = parts.into_iter();
        let mut bytes = Vec::with_capacity(4 * parts.clone().map(<[f32]>::len).sum::<usize>());
        parts.for_each(|part| bytes.extend(part.iter().flat_map(|x| x.to_le_bytes())));
        self.0.send(to, tag as u32, bytes)
    }

    pub fn receive(&self, from: usize, tag: Tag) -> Result<Vec<f32>, ClusterError> {
        let bytes = self.0.receive(from, tag as u32)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    /// Sum of `own` over all ranks, in their order, the same bits on each. A rank sends its own to every other.
    pub fn total(&self, own: &[f32]) -> Result<Vec<f32>, ClusterError> {
        self.merged(own, |sum, x| sum + x)
    }

    /// The same with another way to join two numbers.
    pub fn merged(&self, own: &[f32], join: impl Fn(f32, f32) -> f32) -> Result<Vec<f32>, ClusterError> {
        for to in self.others() {
            self.send(to, Tag::Total, [own])?;
        }
        let mut merged: Option<Vec<f32>> = None;
        for rank in 0..self.ranks() {
            let next = if rank == self.rank() { own.to_vec() } else { self.receive(rank, Tag::Total)? };
            merged = Some(match merged {
                None => next,
                Some(mut so_far) => {
                    so_far.iter_mut().zip(next).for_each(|(so_far, next)| *so_far = join(*so_far, next));
                    so_far
                }
            });
        }
        Ok(merged.expect("at least one rank"))
    }
}
