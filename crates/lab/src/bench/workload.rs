//! What is run and timed, whatever it is.

use std::time::Instant;

use regard_alloc::Peak;

/// Something that runs again and again with the same sizes.
pub(super) trait Workload: Send {
    /// One run. The first one of a workload also looks at the numbers that come out.
    ///
    /// # Errors
    /// What is wrong with them.
    fn run(&mut self, first: bool) -> Result<Run, Trouble>;
}

/// Result of one run: one time and one size for each pass of its level.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    /// Milliseconds.
    pub times: Vec<f64>,
    /// Bytes, where they are known.
    pub bytes: Vec<Option<u64>>,
}

/// Why a run failed.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    /// A number that is not finite: which.
    NotFinite(String),
    /// Anything else, as a sentence.
    Other(String),
}

/// A clock that also sees the most bytes in use beyond those at its start.
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

    /// Most bytes in use at once since the start, beyond those in use then.
    pub fn bytes(&self) -> Option<u64> {
        self.peak.bytes()
    }
}

/// Fails where a number is not finite.
pub(super) fn require_finite<'a>(data: impl IntoIterator<Item = &'a f32>, what: &str) -> Result<(), Trouble> {
    if data.into_iter().all(|x| x.is_finite()) { Ok(()) } else { Err(Trouble::NotFinite(what.into())) }
}
