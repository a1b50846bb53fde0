//! Waiting for a rank, as long as it lives.

use std::{
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use super::{Engine, lock};
use crate::ClusterError;

/// Looks that only let others run in between: most messages come at once.
const SPINS: u32 = 200;
/// Time between later looks.
const SHORT: Duration = Duration::from_micros(50);
const LONG: Duration = Duration::from_millis(1);
/// Waiting after which looks are seldom.
const SOON: Duration = Duration::from_secs(1);
/// Waiting for a message before its sender is asked for a sign of life, and for that sign.
const SILENCE: Duration = Duration::from_secs(15);

/// How long one rank has waited for another.
#[derive(Debug)]
pub struct Patience {
    rank: usize,
    spins: u32,
    /// Without the time in which this process was suspended.
    waited: Duration,
    last: Option<Instant>,
    /// When a sign of life was asked for, and how many there were.
    asked: Option<(Duration, u64)>,
}

impl Patience {
    /// For messages of `rank`.
    pub fn new(rank: usize) -> Self {
        Self { rank, spins: 0, waited: Duration::ZERO, last: None, asked: None }
    }

    /// Waits a little.
    ///
    /// # Errors
    /// Any rank that left with an error, or that is known to be gone; this one if it gives no sign of life.
    pub fn wait(&mut self, engine: &Mutex<Engine>) -> Result<(), ClusterError> {
        if self.spins < SPINS {
            self.spins += 1;
            thread::yield_now();
            return Ok(());
        }
        thread::sleep(if self.waited < SOON { SHORT } else { LONG });
        let now = Instant::now();
        let elapsed = self.last.replace(now).map_or(SHORT, |last| now - last);
        // More has passed where the process was suspended: the other rank may have been, too.
        self.waited += elapsed.min(10 * LONG);
        let mut engine = lock(engine);
        if let Some((rank, code)) = engine.left() {
            return Err(ClusterError::Stopped { rank, code });
        }
        if let Some(rank) = engine.lost() {
            return Err(ClusterError::Lost { rank });
        }
        let answers = engine.answers(self.rank);
        match self.asked {
            Some((_, before)) if answers > before => {
                self.asked = None;
                self.waited = Duration::ZERO;
            }
            Some((at, _)) if self.waited - at > SILENCE => {
                engine.lose(self.rank);
                return Err(ClusterError::Lost { rank: self.rank });
            }
            None if self.waited > SILENCE => {
                engine.ask(self.rank);
                self.asked = Some((self.waited, answers));
            }
            _ => {}
        }
        Ok(())
    }
}
