//! What a thread of its own does for a rank: it moves messages on, answers others, and notices at the end who is gone.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{BUSY, Engine, lock};

/// Time between two looks while no message is under way.
const IDLE: Duration = Duration::from_millis(20);
/// Time for a sign of life once this process was asked to end. A launcher does so when a rank has died, and kills the others a
/// second later.
const SIGN: Duration = Duration::from_millis(400);

/// Called with a rank that is gone.
pub type OnLost = Box<dyn Fn(usize) + Send>;

/// Watches until the job is `over`. Once `stop` is raised, a rank without a sign of life is given to `on_lost`.
pub fn watch(engine: &Mutex<Engine>, over: &AtomicBool, stop: &Arc<AtomicBool>, on_lost: OnLost) {
    let mut asked: Option<(Instant, Vec<u64>)> = None;
    let mut told = false;
    while !over.load(Ordering::Relaxed) {
        let mut own = lock(engine);
        let busy = own.tend();
        if stop.load(Ordering::Relaxed) && !told {
            match &asked {
                Some((since, before)) if since.elapsed() > SIGN => {
                    let silent = (0..own.ranks()).find(|&rank| rank != own.rank() && own.answers(rank) == before[rank]);
                    // Who said that it leaves is not lost.
                    if let Some(rank) = silent.filter(|_| own.left().is_none()) {
                        own.lose(rank);
                        drop(own);
                        on_lost(rank);
                        told = true;
                        continue;
                    }
                    asked = None;
                }
                Some(_) => {}
                None => {
                    let before = (0..own.ranks()).map(|rank| own.answers(rank)).collect();
                    own.ask_all();
                    asked = Some((Instant::now(), before));
                }
            }
        }
        drop(own);
        thread::sleep(if busy { BUSY } else { IDLE });
    }
}
