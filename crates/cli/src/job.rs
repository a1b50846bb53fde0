//! The ranks of a job: this process is one of several where a launcher of MPI has started it, as `mpirun -n 4` does.
//!
//! Rank 0 keeps, prints and shows progress. The others are silent but for errors that are theirs alone.

use std::sync::{Arc, atomic::AtomicBool};

use regard_cluster::{Alone, Communicator, Launch, barrier};
use regard_tasks::Class;

use crate::error::{Failure, Outcome};

/// The rank that a launcher has given to this process; 0 without one.
pub fn rank() -> usize {
    Launch::of_process().map_or(0, |launch| launch.rank)
}

/// Whether this process is one of several.
pub fn is_shared() -> bool {
    Launch::of_process().is_some_and(|launch| launch.ranks > 1)
}

/// Joins the job of this process; alone where no launcher has started it. `stop` is the flag of an interrupt.
///
/// # Errors
/// A program without MPI that was started as one of several.
pub fn join(stop: &Arc<AtomicBool>) -> Outcome<Arc<dyn Communicator>> {
    match Launch::of_process() {
        Some(launch) if launch.ranks > 1 => start(launch, stop),
        _ => Ok(Arc::new(Alone)),
    }
}

/// Waits for all ranks.
///
/// # Errors
/// A rank that has left the job.
pub fn gather(cluster: &dyn Communicator) -> Outcome {
    const TURN: u32 = 0x200;
    Ok(barrier(cluster, TURN)?)
}

/// An interrupt in no words on a rank other than 0, which tells it.
pub fn told_by_first(failure: Failure) -> Failure {
    match failure.class {
        Class::Interrupted if rank() > 0 => Failure::interrupted(""),
        _ => failure,
    }
}

/// For commands that no ranks share.
///
/// # Errors
/// A process that was started as one of several.
pub fn alone() -> Outcome {
    match Launch::of_process() {
        Some(Launch { ranks, .. }) if ranks > 1 => Err(Failure::usage(format!(
            "started as one of {ranks} ranks, expected one; start it without mpirun: only train, eval, compare, reproduce, attend \
             and bench --network share their work among ranks"
        ))),
        _ => Ok(()),
    }
}

/// Whether another rank tells what went wrong on this one: errors of configuration and numbers are the same on all, and an
/// interrupt that a rank has no words for is told by rank 0.
pub fn told_elsewhere(failure: &Failure) -> bool {
    let same = matches!(failure.class, Class::Usage | Class::Numeric) && rank() > 0;
    same || failure.message.is_empty() || stopped().is_some() || !first_to_tell()
}

#[cfg(feature = "mpi")]
mod mpi {
    use std::{
        sync::{OnceLock, atomic::Ordering},
        thread,
        time::Duration,
    };

    use regard_cluster::{ClusterError, Mpi};

    use super::{Arc, AtomicBool, Class, Communicator, Failure, Launch, Outcome};
    use crate::{console, signal};

    static JOB: OnceLock<Arc<Mpi>> = OnceLock::new();
    /// Whether this process has told what ends it.
    static TOLD: AtomicBool = AtomicBool::new(false);

    /// Time for other ranks to notice what this one has.
    const LINGER: Duration = Duration::from_millis(300);
    /// How Open MPI copies messages between processes of a machine.
    const COPIES: &str = "OMPI_MCA_btl_vader_single_copy_mechanism";

    /// Prepares for [`join`](super::join), at the very beginning of the program.
    pub fn prepare() {
        // Otherwise a rank reads from the memory of another, and Open MPI ends it without a word when that one has died.
        if super::is_shared() && std::env::var_os(COPIES).is_none() {
            // SAFETY: the process has no other thread yet.
            unsafe { std::env::set_var(COPIES, "none") };
        }
    }

    /// Whether nobody in this process has told yet what ends it. True once.
    pub fn first_to_tell() -> bool {
        !TOLD.swap(true, Ordering::Relaxed)
    }

    pub fn start(_: Launch, stop: &Arc<AtomicBool>) -> Outcome<Arc<dyn Communicator>> {
        // A rank in the middle of an update would say it too late: the launcher kills all a second after one has died.
        let lost = |rank| {
            if first_to_tell() {
                console::error(&ClusterError::Lost { rank }.to_string());
            }
            thread::sleep(LINGER);
            std::process::exit(signal::code().unwrap_or(1).into());
        };
        let job = Arc::new(Mpi::join(stop.clone(), Box::new(lost)).map_err(Failure::usage)?);
        let _ = JOB.set(job.clone());
        Ok(job)
    }

    /// The exit code of the rank that stopped the job.
    pub fn stopped() -> Option<u8> {
        JOB.get()?.stopped().map(|(_, code)| code)
    }

    /// Leaves the job, with the exit code of this process.
    pub fn leave(failed: Option<Class>, code: u8) {
        let Some(job) = JOB.get() else { return };
        match failed {
            // The launcher kills the others as soon as one has ended with an error: all need time to tell.
            Some(Class::Interrupted) if job.is_broken() => thread::sleep(LINGER),
            None | Some(Class::Interrupted | Class::Check) => job.finish(),
            Some(_) => job.abandon(code),
        }
    }
}

#[cfg(not(feature = "mpi"))]
mod mpi {
    use super::{Arc, AtomicBool, Class, Communicator, Failure, Launch, Outcome};

    pub fn prepare() {}

    pub fn first_to_tell() -> bool {
        true
    }

    pub fn start(launch: Launch, _: &Arc<AtomicBool>) -> Outcome<Arc<dyn Communicator>> {
        Err(Failure::usage(format!(
            "started as one of {} ranks, but this build of regard has no MPI; build it with --features mpi, or start it without \
             mpirun",
            launch.ranks
        )))
    }

    pub fn stopped() -> Option<u8> {
        None
    }

    pub fn leave(_: Option<Class>, _: u8) {}
}

use mpi::{first_to_tell, start};
pub use mpi::{leave, prepare, stopped};
