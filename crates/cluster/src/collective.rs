//! What all ranks do together. Every rank calls the same functions with the same tags in the same order.

use crate::{ClusterError, Communicator};

/// The bytes of every rank, by rank.
///
/// # Errors
/// A rank that has left the job.
pub fn gather_all(cluster: &dyn Communicator, tag: u32, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, ClusterError> {
    let others = || (0..cluster.ranks()).filter(|rank| *rank != cluster.rank());
    others().try_for_each(|to| cluster.send(to, tag, bytes.clone()))?;
    let mut all = vec![Vec::new(); cluster.ranks()];
    for from in others() {
        all[from] = cluster.receive(from, tag)?;
    }
    all[cluster.rank()] = bytes;
    Ok(all)
}

/// The bytes of rank `root`, which gives them, on every rank. They travel down a binary tree.
///
/// # Errors
/// A rank that has left the job.
pub fn broadcast(
    cluster: &dyn Communicator,
    root: usize,
    tag: u32,
    bytes: Option<Vec<u8>>,
) -> Result<Vec<u8>, ClusterError> {
    let ranks = cluster.ranks();
    // Counted from the root: place `p` has it from the place without the highest bit of `p`.
    let place = (cluster.rank() + ranks - root) % ranks;
    let rank_of = |place: usize| (place + root) % ranks;
    let bytes = match place.checked_ilog2() {
        None => bytes.expect("the root gives the bytes"),
        Some(highest) => cluster.receive(rank_of(place - (1 << highest)), tag)?,
    };
    let first = place.checked_ilog2().map_or(0, |highest| highest + 1);
    for to in (first..usize::BITS).map(|bit| place + (1 << bit)).take_while(|to| *to < ranks) {
        cluster.send(rank_of(to), tag, bytes.clone())?;
    }
    Ok(bytes)
}

/// Waits until every rank has called it.
///
/// # Errors
/// A rank that has left the job.
pub fn barrier(cluster: &dyn Communicator, tag: u32) -> Result<(), ClusterError> {
    gather_all(cluster, tag, Vec::new()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Alone, Threads};

    #[test]
    fn every_rank_has_the_bytes_of_all() {
        for ranks in 1..6 {
            let want: Vec<Vec<u8>> = (0..ranks).map(|rank| vec![rank as u8; rank]).collect();
            let seen = Threads::run(ranks, |cluster| {
                barrier(&*cluster, 1).unwrap();
                gather_all(&*cluster, 2, want[cluster.rank()].clone()).unwrap()
            });
            assert!(seen.iter().all(|all| *all == want));
        }
        assert_eq!(gather_all(&Alone, 0, vec![7]), Ok(vec![vec![7]]));
    }

    #[test]
    fn a_broadcast_starts_at_any_rank() {
        for ranks in 1..9 {
            for root in 0..ranks {
                let seen = Threads::run(ranks, |cluster| {
                    let bytes = (cluster.rank() == root).then(|| vec![root as u8, 9]);
                    broadcast(&*cluster, root, 3, bytes).unwrap()
                });
                assert!(seen.iter().all(|bytes| *bytes == [root as u8, 9]), "{ranks} ranks from {root}: {seen:?}");
            }
        }
    }
}
