//! The threads that kernels run on.
//!
//! A team of our own and never the pool that the process shares: its size can change at any time, and a forked child, in which no
//! thread but the forking one lives on, can start afresh.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, MutexGuard, PoisonError},
};

use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
};
use regard_kernels::parallel::Team;

struct Threads {
    /// As asked for; 0 for as many as the processor runs at once, or `RAYON_NUM_THREADS`.
    count: usize,
    /// Made at the first call.
    team: Option<Team>,
}

/// Locked for moments and only by threads attached to the interpreter, so that none holds it while another forks.
static THREADS: Mutex<Threads> = Mutex::new(Threads { count: 0, team: None });

/// More than any machine runs at once, and few enough to be started.
const MOST: usize = 4096;

fn lock() -> MutexGuard<'static, Threads> {
    THREADS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn team(threads: &mut Threads) -> PyResult<Team> {
    if let Some(team) = &threads.team {
        return Ok(team.clone());
    }
    let team = Team::new(threads.count)
        .map_err(|error| PyRuntimeError::new_err(format!("no threads to compute on: {error}")))?;
    Ok(threads.team.insert(team).clone())
}

/// Runs `task` on the calling thread and those of the team while other Python threads go on.
///
/// # Errors
/// `RuntimeError` where a kernel panics, which only a defect of this library can bring about.
pub fn compute<T: Send>(py: Python<'_>, task: impl FnOnce() -> T + Send) -> PyResult<T> {
    let team = team(&mut lock())?;
    py.detach(|| catch_unwind(AssertUnwindSafe(|| team.run(task)))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        PyRuntimeError::new_err(format!("a kernel failed, which is a defect of regard: {text}"))
    })
}

/// Sets the number of threads that kernels run on from now on. Results do not depend on it, to the bit.
///
/// Parameters
/// ----------
/// count : int
///     At least 1; 0 for as many as the processor runs at once (or as ``RAYON_NUM_THREADS`` says), which is the default.
#[pyfunction]
#[pyo3(signature = (count, /))]
pub fn set_threads(count: i64) -> PyResult<()> {
    let count = usize::try_from(count).ok().filter(|count| *count <= MOST);
    let count = count
        .ok_or_else(|| PyValueError::new_err(format!("number of threads out of range, expected 0 (all) to {MOST}")))?;
    let mut threads = lock();
    if threads.count != count {
        *threads = Threads { count, team: None };
    }
    Ok(())
}

/// Number of threads that kernels run on.
#[pyfunction]
pub fn get_threads() -> PyResult<usize> {
    Ok(team(&mut lock())?.threads())
}

/// Frees what is kept for the next call: scratch memory of the threads, up to 64 MiB each, and the blocks of arrays that are
/// gone, up to 1 GiB (never more than was in use at once).
#[pyfunction]
pub fn release_memory(py: Python<'_>) -> PyResult<()> {
    compute(py, regard_kernels::parallel::release_scratch)?;
    regard_alloc::release();
    Ok(())
}

/// Forgets the threads of the parent process; called in a forked child.
#[pyfunction]
pub fn _after_fork() {
    // Not dropped: that would wait for threads that are not there.
    std::mem::forget(lock().team.take());
}
