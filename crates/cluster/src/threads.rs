//! Ranks as threads of one process.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
    mpsc::{Sender, channel},
};

use crate::{ClusterError, Communicator, Mailbox, Message};

/// One rank of a job within this process. A rank leaves the job when it is dropped.
#[derive(Debug)]
pub struct Threads {
    rank: usize,
    /// To each rank.
    outgoing: Vec<Sender<Message>>,
    /// From each rank.
    incoming: Vec<Mailbox>,
    sent: AtomicU64,
}

impl Threads {
    /// The ranks of a job, one for each thread that is to take part.
    pub fn job(ranks: usize) -> Vec<Self> {
        let mut outgoing: Vec<Vec<_>> = (0..ranks).map(|_| Vec::new()).collect();
        let mut incoming: Vec<Vec<_>> = (0..ranks).map(|_| Vec::new()).collect();
        for from in &mut outgoing {
            for to in &mut incoming {
                let (sender, channel) = channel();
                from.push(sender);
                to.push(Mailbox::new(channel));
            }
        }
        let ranks = outgoing.into_iter().zip(incoming).enumerate();
        ranks.map(|(rank, (outgoing, incoming))| Self { rank, outgoing, incoming, sent: AtomicU64::new(0) }).collect()
    }

    /// Runs `work` on every rank of a job, each on its own thread: the results by rank.
    ///
    /// # Panics
    /// If a rank does.
    pub fn run<T: Send>(ranks: usize, work: impl Fn(Arc<dyn Communicator>) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> =
                Self::job(ranks).into_iter().map(|rank| scope.spawn(move || work(Arc::new(rank)))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
        })
    }
}

impl Communicator for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.outgoing.len()
    }

    fn send(&self, to: usize, tag: u32, bytes: Vec<u8>) -> Result<(), ClusterError> {
        if to != self.rank {
            self.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        self.outgoing[to].send((tag, bytes)).map_err(|_| ClusterError::Lost { rank: to })
    }

    fn receive(&self, from: usize, tag: u32) -> Result<Vec<u8>, ClusterError> {
        self.incoming[from].receive(tag).ok_or(ClusterError::Lost { rank: from })
    }

    fn bytes_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_by_sender_and_tag_in_the_order_of_sending() {
        let seen = Threads::run(3, |rank| {
            for to in (0..3).filter(|to| *to != rank.rank()) {
                for (tag, byte) in [(7, 1), (9, 2), (7, 3)] {
                    rank.send(to, tag, vec![byte, rank.rank() as u8]).unwrap();
                }
            }
            // From all, so that nobody leaves before all have sent.
            let others = [1, 2].map(|step| (rank.rank() + step) % 3);
            others.map(|from| [9, 7, 7].map(|tag| rank.receive(from, tag).unwrap()))
        });
        for (rank, seen) in seen.into_iter().enumerate() {
            for (step, messages) in seen.into_iter().enumerate() {
                let from = ((rank + step + 1) % 3) as u8;
                assert_eq!(messages, [[2, from], [1, from], [3, from]]);
            }
        }
    }

    #[test]
    fn bytes_to_others_are_counted() {
        let counts = Threads::run(2, |rank| {
            rank.send(1 - rank.rank(), 0, vec![0; 5 + rank.rank()]).unwrap();
            rank.receive(1 - rank.rank(), 0).unwrap();
            rank.bytes_sent()
        });
        assert_eq!(counts, [5, 6]);
    }

    #[test]
    fn a_rank_that_has_left_is_named() {
        let mut job = Threads::job(2);
        let (second, first) = (job.pop().unwrap(), job.pop().unwrap());
        first.send(1, 4, vec![8]).unwrap();
        drop(first);
        assert_eq!(second.receive(0, 4), Ok(vec![8]));
        assert_eq!(second.receive(0, 4), Err(ClusterError::Lost { rank: 0 }));
    }
}
