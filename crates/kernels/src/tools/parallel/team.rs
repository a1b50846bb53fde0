//! Parallel loops: the calling thread works from the start, and others join as they wake up.
//!
//! Waking a sleeping thread takes 50 to 100 microseconds, in a virtual machine more: longer than many calls last. So
//! the caller never waits for one. It takes tasks from a counter itself, and leaves the loop when none is left and
//! threads that joined in time are done; late threads find nothing to do. (Rayon's own loops, called from outside its
//! pool, sleep until one of its threads wakes to do the work and another wakes the caller.)

use std::{
    any::Any,
    cell::RefCell,
    hint::spin_loop,
    mem::transmute,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, Thread},
};

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

/// A team of threads, instead of the global pool.
///
/// Unlike [`ThreadPool::install`] it runs on the calling thread too, so that a short call wakes no other thread.
#[derive(Clone, Debug)]
pub struct Team(Arc<ThreadPool>);

thread_local! {
    /// The team of the current call on this thread.
    static TEAM: RefCell<Option<Team>> = const { RefCell::new(None) };
}

impl Team {
    /// A team of this many threads, including the caller; 0 for the number of hardware threads, or `RAYON_NUM_THREADS`.
    ///
    /// # Errors
    /// If threads cannot be created.
    pub fn new(threads: usize) -> Result<Self, ThreadPoolBuildError> {
        let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(|n| format!("regard-{n}")).build()?;
        Ok(Self(Arc::new(pool)))
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.0.current_num_threads()
    }

    /// Runs `task` on the calling thread, with kernels using this team.
    pub fn run<R>(&self, task: impl FnOnce() -> R) -> R {
        struct Restore(Option<Team>);
        impl Drop for Restore {
            fn drop(&mut self) {
                TEAM.set(self.0.take());
            }
        }
        let _restore = Restore(TEAM.replace(Some(self.clone())));
        task()
    }
}

/// Threads of the current pool.
pub fn threads() -> usize {
    TEAM.with_borrow(|team| team.as_ref().map_or_else(rayon::current_num_threads, Team::threads))
}

/// Runs `task` on this thread and on all of the current pool.
pub fn on_all(task: impl Fn() + Sync) {
    task();
    TEAM.with_borrow(|team| match team {
        Some(Team(pool)) => drop(pool.broadcast(|_| task())),
        None => drop(rayon::broadcast(|_| task())),
    });
}

fn spawn(task: impl FnOnce() + Send + 'static) {
    TEAM.with_borrow(|team| match team {
        Some(Team(pool)) => pool.spawn(task),
        None => rayon::spawn(task),
    });
}

type Task<'a> = &'a (dyn Fn(usize) + Sync);

/// A loop that other threads may join.
struct Loop {
    task: Task<'static>,
    count: usize,
    /// First task not yet taken.
    next: AtomicUsize,
    /// Threads, besides the caller, that may be running a task.
    inside: AtomicUsize,
    panicked: Mutex<Option<Box<dyn Any + Send>>>,
    caller: Thread,
}

/// Invitations that no thread has accepted yet. A busy pool accepts none, so their number is limited.
static WAITING: AtomicUsize = AtomicUsize::new(0);
const WAITING_MOST: usize = 1 << 10;

/// Spins on a counter before the caller goes to sleep: some 20 microseconds, the time of a wake-up.
const LOOKS: usize = 1 << 10;

/// Runs `task(0) .. task(count - 1)`, each once, on this thread and at most `others` more of the current pool.
pub fn share(count: usize, others: usize, task: Task) {
    // SAFETY: a thread calls the task only while it counts as inside with an index below `count`, and this function
    // returns or unwinds only once all indices are taken and no thread is inside.
    let task = unsafe { transmute::<Task<'_>, Task<'static>>(task) };
    let (next, inside) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let caller = thread::current();
    let shared = Arc::new(Loop { task, count, next, inside, panicked: Mutex::new(None), caller });
    for _ in 0..others.min(WAITING_MOST.saturating_sub(WAITING.load(Ordering::Relaxed))) {
        WAITING.fetch_add(1, Ordering::Relaxed);
        let shared = shared.clone();
        spawn(move || {
            WAITING.fetch_sub(1, Ordering::Relaxed);
            shared.join();
        });
    }
    shared.work();
    shared.wait();
    let panicked = shared.panicked.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    if let Some(panic) = panicked {
        resume_unwind(panic);
    }
}

impl Loop {
    /// Takes tasks until none is left.
    fn work(&self) {
        let done = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let task = self.next.fetch_add(1, Ordering::AcqRel);
                if task >= self.count {
                    break;
                }
                (self.task)(task);
            }
        }));
        if let Err(panic) = done {
            self.next.fetch_max(self.count, Ordering::AcqRel);
            self.panicked.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(panic);
        }
    }

    /// Joins as a thread other than the caller.
    fn join(&self) {
        // A thread counts itself in before it takes a task, so the caller sees it when no task is left.
        self.inside.fetch_add(1, Ordering::AcqRel);
        self.work();
        if self.inside.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.caller.unpark();
        }
    }

    /// Waits until no thread is inside.
    fn wait(&self) {
        for _ in 0..LOOKS {
            if self.inside.load(Ordering::Acquire) == 0 {
                return;
            }
            spin_loop();
        }
        while self.inside.load(Ordering::Acquire) > 0 {
            thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_however_many_threads_come() {
        for others in [0, 1, 3, 9] {
            for count in [1, 2, 5, 1000] {
                let runs: Vec<_> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                share(count, others, &|task| {
                    runs[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1), "{others} {count}");
            }
        }
    }

    #[test]
    fn loops_nest_and_come_from_many_threads() {
        let sum = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    share(10, 3, &|a| {
                        share(10, 3, &|b| {
                            sum.fetch_add(10 * a + b, Ordering::Relaxed);
                        });
                    });
                });
            }
        });
        assert_eq!(sum.into_inner(), 4 * (0..100).sum::<usize>());
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_next_loop_runs() {
        for bad in [0, 7, 63] {
            let run = catch_unwind(|| share(64, 3, &|task| assert!(task != bad, "task {task}")));
            let message = *run.expect_err("it panicked").downcast::<String>().expect("a message");
            assert_eq!(message, format!("task {bad}"));
        }
        share(8, 3, &|_| {});
    }
}
