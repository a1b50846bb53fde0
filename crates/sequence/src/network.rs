//! What a network is worth: the two numbers of the cost model that depend on machines, and the time that schemes take on it.

use std::time::{Duration, Instant};

use regard_cluster::{ClusterError, Communicator};

/// Round trips of the smallest message, and of the largest.
const TRIES: [usize; 2] = [200, 6];
/// Bytes of the largest message.
const LARGE: usize = 16 << 20;
/// Tag of these messages.
const TAG: u32 = 0x5e10;

/// A network between ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Seconds until a message of no size has arrived.
    pub latency: f64,
    /// Bytes a second of a long message.
    pub bandwidth: f64,
}

impl Network {
    /// Measures the way between rank 0 and rank `other`, and tells all ranks. The latency is half the shortest of 200 round
    /// trips, the bandwidth that of the fastest of 6 messages of 16 MiB. All ranks have to call it.
    ///
    /// # Errors
    /// A rank that has left.
    ///
    /// # Panics
    /// Without a rank `other`, or if that is rank 0.
    pub fn measure(communicator: &dyn Communicator, other: usize) -> Result<Self, ClusterError> {
        let (rank, ranks) = (communicator.rank(), communicator.ranks());
        assert!((1..ranks).contains(&other), "rank {other} of {ranks}");
        let answer = |tries: usize| {
            (0..tries).try_for_each(|_| {
                communicator.receive(0, TAG)?;
                communicator.send(0, TAG, Vec::new())
            })
        };
        let ask = |tries: usize, bytes: usize| {
            let mut shortest = Duration::MAX;
            for _ in 0..tries {
                let message = vec![1; bytes];
                let start = Instant::now();
                communicator.send(other, TAG, message)?;
                communicator.receive(other, TAG)?;
                shortest = shortest.min(start.elapsed());
            }
            Ok(shortest.as_secs_f64())
        };
        let own = match rank {
            0 => {
                let (short, long) = (ask(TRIES[0], 0)?, ask(TRIES[1], LARGE)?);
                Some(Self { latency: short / 2.0, bandwidth: LARGE as f64 / (long - short).max(1e-9) })
            }
            rank if rank == other => answer(TRIES[0]).and_then(|()| answer(TRIES[1])).map(|()| None)?,
            _ => None,
        };
        match own {
            Some(Self { latency, bandwidth }) => {
                let bytes: Vec<u8> = [latency, bandwidth].iter().flat_map(|x| x.to_le_bytes()).collect();
                (1..ranks).try_for_each(|to| communicator.send(to, TAG, bytes.clone()))?;
                Ok(Self { latency, bandwidth })
            }
            None => {
                let bytes = communicator.receive(0, TAG)?;
                let number = |n: usize| f64::from_le_bytes(bytes.as_chunks::<8>().0[n]);
                Ok(Self { latency: number(0), bandwidth: number(1) })
            }
        }
    }

    /// Seconds until a message has arrived.
    pub fn message(&self, bytes: f64) -> f64 {
        self.latency + bytes / self.bandwidth
    }

    /// Seconds of a ring forward and backward, of `ranks` ranks that compute so long each and pass on blocks of `block` bytes.
    ///
    /// A block travels while its rank computes with it; its gradients can only follow.
    pub fn ring(&self, ranks: usize, compute: [f64; 2], block: f64) -> [f64; 2] {
        let (steps, message) = (ranks as f64, self.message(block));
        if ranks == 1 {
            return compute;
        }
        let [forward, backward] = compute.map(|seconds| seconds / steps);
        [
            (steps - 1.0) * forward.max(message) + forward,
            (steps - 1.0) * (backward.max(message) + message) + backward + message,
        ]
    }

    /// Seconds of a scan forward and backward: the last rank hears of the first one through all others.
    pub fn scan(&self, ranks: usize, compute: [f64; 2], state: f64) -> [f64; 2] {
        compute.map(|seconds| seconds + (ranks - 1) as f64 * self.message(state))
    }

    /// Seconds of a halo forward and backward, where keys are fetched in both passes and their gradients sent back.
    pub fn halo(&self, ranks: usize, compute: [f64; 2], halo: f64) -> [f64; 2] {
        let message = if ranks == 1 { 0.0 } else { self.message(halo) };
        [compute[0] + message, compute[1] + 2.0 * message]
    }
}

#[cfg(test)]
mod tests {
    use regard_cluster::Threads;

    use super::*;

    #[test]
    fn all_ranks_hear_of_the_same_network() {
        for other in [1, 2] {
            let found = Threads::run(3, |rank| Network::measure(&*rank, other).unwrap());
            assert!(found.iter().all(|network| *network == found[0]));
            assert!(found[0].latency > 0.0 && found[0].bandwidth > 1e6, "{found:?}");
        }
    }

    #[test]
    fn times_of_schemes_by_hand() {
        let network = Network { latency: 1.0, bandwidth: 10.0 };
        // Two ranks: one block of 20 bytes takes 3 s and hides the 2 s of computing with the one before.
        assert_eq!(network.ring(2, [4.0, 8.0], 20.0), [3.0 + 2.0, (4.0 + 3.0) + 4.0 + 3.0]);
        assert_eq!(network.ring(1, [4.0, 8.0], 20.0), [4.0, 8.0]);
        assert_eq!(network.scan(3, [4.0, 8.0], 10.0), [8.0, 12.0]);
        assert_eq!(network.halo(2, [4.0, 8.0], 10.0), [6.0, 12.0]);
    }
}
