//! An interrupt ends the work after the step in progress; a second one ends it at once.

use std::{
    io::{self, BufRead, BufReader, Read, stdin},
    sync::{
        Arc, LazyLock, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

/// The signal that was caught, once there is a handler.
static CAUGHT: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// Raised while the process waits for input: there is no step in progress, and the first signal ends it.
static WAITING: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Standard input.
pub fn input() -> impl BufRead {
    BufReader::new(Input)
}

struct Input;

impl Read for Input {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        WAITING.store(true, Ordering::SeqCst);
        let read = stdin().lock().read(bytes);
        WAITING.store(false, Ordering::SeqCst);
        read
    }
}

/// A flag that is raised by the first interrupt or request to end.
pub fn stop_flag() -> Arc<AtomicBool> {
    let (stop, caught) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the second signal finds the flag raised and ends the process.
        let handlers = flag::register_conditional_shutdown(signal, 128 + signal, stop.clone())
            .and_then(|_| flag::register_conditional_shutdown(signal, 128 + signal, WAITING.clone()))
            .and_then(|_| flag::register_usize(signal, caught.clone(), signal as usize))
            .and_then(|_| flag::register(signal, stop.clone()));
        // Without a handler the signal ends the process as it always does; the last checkpoint remains.
        if handlers.is_err() {
            break;
        }
    }
    let _ = CAUGHT.set(caught);
    stop
}

/// Ends the process as a closed pipe ends others: whoever read its results, as `head` does, has enough.
///
/// Not by the signal that the system sends: progress that nobody reads must not end a training.
pub fn end_with_reader() -> ! {
    #[cfg(unix)]
    let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGPIPE);
    std::process::exit(128 + 13)
}

/// Has a write beyond the limit on the size of files fail as one to a full disk does, with an error that is told. By default
/// the system ends the process.
pub fn outlive_full_files() {
    // Where the handler cannot be had, nothing is lost but the sentence.
    #[cfg(unix)]
    let _ = flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// The exit code of a process that a signal has stopped: 130 or 143.
pub fn code() -> Option<u8> {
    match CAUGHT.get()?.load(Ordering::Relaxed) {
        0 => None,
        signal => Some(128 + signal as u8),
    }
}
