//! Common interface of timed workloads.

use std::time::Instant;

use regard_alloc::Peak;

use super::on_device::other_device;

/// A workload that runs repeatedly with the same sizes.
pub(super) trait Workload: Send {
    /// One run. The first run of a workload also checks its results.
    ///
    /// # Errors
    /// Invalid results.
    fn run(&mut self, first: bool) -> Result<Run, Trouble>;
}

/// Result of one run: time and memory for each pass of its level.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    /// Milliseconds.
    pub times: Vec<f64>,
    /// Bytes, if known.
    pub bytes: Vec<Option<u64>>,
}

/// Why a run failed.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    /// A non-finite number in the named tensor.
    NotFinite(String),
    /// Anything else, as a sentence.
    Other(String),
}

/// Measures time and peak memory since its start.
pub(super) struct Meter {
    peak: Peak,
    start: Instant,
}

impl Meter {
    pub fn start() -> Self {
        Self { peak: Peak::start(), start: Instant::now() }
    }

    /// Milliseconds since the start.
    pub fn milliseconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64() * 1e3
    }

    /// Peak bytes in use since the start, beyond those in use then; not known of other devices than the CPU.
    pub fn bytes(&self) -> Option<u64> {
        // What is counted is memory of the host.
        self.peak.bytes().filter(|_| other_device().is_none())
    }
}

/// Fails if a number is not finite.
pub(super) fn require_finite<'a>(data: impl IntoIterator<Item = &'a f32>, what: &str) -> Result<(), Trouble> {
    if data.into_iter().all(|x| x.is_finite()) { Ok(()) } else { Err(Trouble::NotFinite(what.into())) }
}
