//! Ranks as processes of MPI.
//!
//! Calls of MPI are made one at a time, under one lock, from whichever thread sends or receives, so that the library need
//! only know threads that take turns (`MPI_THREAD_SERIALIZED`). A thread of its own looks after what is under way: messages
//! go on while this rank computes, and a rank that is asked for a sign of life gives one.

mod engine;
mod library;
mod patience;
mod watch;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use engine::Engine;
use patience::Patience;
pub use watch::OnLost;

use crate::{ClusterError, Communicator};

/// Bytes of a message of MPI, whose sizes are 32-bit numbers. A longer one goes in parts of this size and a shorter last one.
const PART: usize = 1 << 30;
/// Time between two looks at messages that are under way.
const BUSY: Duration = Duration::from_millis(1);
/// Time for messages to others before this rank leaves with an error.
const FAREWELL: Duration = Duration::from_millis(300);

/// One rank of a job that an MPI launcher has started, such as `mpirun -n 4`.
#[derive(Debug)]
pub struct Mpi {
    rank: usize,
    ranks: usize,
    engine: Arc<Mutex<Engine>>,
    /// Raised at the end of the job.
    over: Arc<AtomicBool>,
    sent: AtomicU64,
    /// Bytes of a part: [`PART`], but for tests.
    part: usize,
}

impl Mpi {
    /// Joins the job of this process, once in a process, on its main thread. `stop` is raised when the process is asked to
    /// end: then each rank asks the others for a sign of life, and gives one that has none to `on_lost`.
    ///
    /// # Errors
    /// An MPI that was started before, or whose calls are not allowed on several threads, as a sentence.
    pub fn join(stop: Arc<AtomicBool>, on_lost: OnLost) -> Result<Self, String> {
        Self::with_parts(stop, on_lost, PART)
    }

    /// The same, with long messages cut into parts of `part` bytes.
    ///
    /// # Errors
    /// As [`Mpi::join`].
    #[doc(hidden)]
    pub fn with_parts(stop: Arc<AtomicBool>, on_lost: OnLost, part: usize) -> Result<Self, String> {
        let engine = Engine::start()?;
        let (rank, ranks) = (engine.rank(), engine.ranks());
        let (engine, over) = (Arc::new(Mutex::new(engine)), Arc::new(AtomicBool::new(false)));
        let (watched, ended) = (engine.clone(), over.clone());
        let watch = move || watch::watch(&watched, &ended, &stop, on_lost);
        thread::Builder::new().name("messages".into()).spawn(watch).map_err(|error| error.to_string())?;
        Ok(Self { rank, ranks, engine, over, sent: AtomicU64::new(0), part })
    }

    /// Ends the job well: waits until what this rank sent has arrived and all ranks are here. To be called on the main thread.
    /// Where this rank knows that one is gone, it tells the others not to wait, and the process is to end.
    pub fn finish(&self) {
        if self.is_broken() {
            return self.abandon(0);
        }
        lock(&self.engine).tell_done();
        loop {
            let mut engine = lock(&self.engine);
            let busy = engine.tend();
            if engine.broken() {
                return;
            }
            if !busy && engine.all_done() {
                self.over.store(true, Ordering::Relaxed);
                return engine.finish();
            }
            drop(engine);
            thread::sleep(BUSY);
        }
    }

    /// Whether a rank is gone, without a word or with an error.
    pub fn is_broken(&self) -> bool {
        lock(&self.engine).broken()
    }

    /// The rank that stopped the job with an error which it has told, and the exit code of its process.
    pub fn stopped(&self) -> Option<(usize, u8)> {
        lock(&self.engine).left()
    }

    /// Tells all others that this rank ends with an error, which it has told, and the exit code `code`. The process is to end
    /// then, without [`Mpi::finish`].
    pub fn abandon(&self, code: u8) {
        lock(&self.engine).tell_leaving(code);
        let mut left = FAREWELL;
        while lock(&self.engine).tend() && !left.is_zero() {
            thread::sleep(BUSY);
            left = left.saturating_sub(BUSY);
        }
    }

    /// One message of MPI.
    fn receive_part(&self, from: usize, tag: i32) -> Result<Vec<u8>, ClusterError> {
        let mut patience = Patience::new(from);
        let mut incoming = loop {
            // Locked for the call alone.
            let found = lock(&self.engine).find(from, tag);
            match found {
                Some(incoming) => break incoming,
                None => patience.wait(&self.engine)?,
            }
        };
        loop {
            // Two threads may receive at a time: the engine is locked for the call, though it is the library's alone.
            let engine = lock(&self.engine);
            let bytes = incoming.finish();
            drop(engine);
            match bytes {
                Ok(bytes) => return Ok(bytes),
                Err(unfinished) => incoming = unfinished,
            }
            patience.wait(&self.engine)?;
        }
    }
}

impl Communicator for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn send(&self, to: usize, tag: u32, bytes: Vec<u8>) -> Result<(), ClusterError> {
        assert!(to < self.ranks, "there is no rank {to}");
        if to != self.rank {
            self.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        let (tag, mut engine) = (number(tag), lock(&self.engine));
        if bytes.len() < self.part {
            engine.send(to, tag, bytes);
            return Ok(());
        }
        let whole = bytes.len() / self.part * self.part;
        bytes[..whole].chunks(self.part).for_each(|part| engine.send(to, tag, part.to_vec()));
        engine.send(to, tag, bytes[whole..].to_vec());
        Ok(())
    }

    fn receive(&self, from: usize, tag: u32) -> Result<Vec<u8>, ClusterError> {
        assert!(from < self.ranks, "there is no rank {from}");
        let tag = number(tag);
        let mut bytes = self.receive_part(from, tag)?;
        let mut more = bytes.len() == self.part;
        while more {
            let part = self.receive_part(from, tag)?;
            more = part.len() == self.part;
            bytes.extend(part);
        }
        Ok(bytes)
    }

    fn bytes_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

fn lock(engine: &Mutex<Engine>) -> MutexGuard<'_, Engine> {
    engine.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A tag of MPI, which are 32-bit numbers from 0.
fn number(tag: u32) -> i32 {
    i32::try_from(tag).expect("a tag below 2^31")
}
