//! Some ranks of a job as a job of their own.

use std::sync::Arc;

use crate::{ClusterError, Communicator};

/// Neighbouring ranks of a job, numbered from 0. Their messages go with those of the job: tags must differ.
#[derive(Clone, Debug)]
pub struct Group {
    job: Arc<dyn Communicator>,
    first: usize,
    ranks: usize,
}

impl Group {
    /// The group of this rank where a job is cut into groups of `ranks`.
    ///
    /// # Panics
    /// If the job does not consist of such groups.
    pub fn of(job: Arc<dyn Communicator>, ranks: usize) -> Self {
        assert!(ranks > 0 && job.ranks().is_multiple_of(ranks), "{} ranks in groups of {ranks}", job.ranks());
        let first = job.rank() / ranks * ranks;
        Self { job, first, ranks }
    }

    fn named(&self, rank: usize) -> usize {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        self.first + rank
    }
}

impl Communicator for Group {
    fn rank(&self) -> usize {
        self.job.rank() - self.first
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn send(&self, to: usize, tag: u32, bytes: Vec<u8>) -> Result<(), ClusterError> {
        self.job.send(self.named(to), tag, bytes)
    }

    fn receive(&self, from: usize, tag: u32) -> Result<Vec<u8>, ClusterError> {
        self.job.receive(self.named(from), tag)
    }

    /// Those of the whole job.
    fn bytes_sent(&self) -> u64 {
        self.job.bytes_sent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Threads, gather_all};

    #[test]
    fn groups_talk_among_themselves() {
        let seen = Threads::run(6, |job| {
            let (own, group) = (job.rank() as u8, Group::of(job, 3));
            (group.rank(), group.ranks(), gather_all(&group, 1, vec![own]).unwrap().concat())
        });
        for (rank, (place, ranks, heard)) in seen.into_iter().enumerate() {
            let first = rank as u8 / 3 * 3;
            assert_eq!((place, ranks, heard), (rank % 3, 3, vec![first, first + 1, first + 2]));
        }
    }
}
