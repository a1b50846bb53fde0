//! Time and memory of mechanisms against the length of the sequence: the operators alone, without a model around them.
//!
//! Mechanisms take turns within each round of runs, so that a machine that slows down slows all of them. The first run of
//! each is thrown away but for its memory.

mod inputs;
mod measure;
mod report;

use std::sync::atomic::{AtomicBool, Ordering};

use regard_kernels::{AttentionOptions, Error, support::SupportKind};
use serde::Serialize;

pub use report::Benchmark;

use inputs::Tensors;
use measure::Case;

/// One mechanism with its options.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Name in tables and charts.
    pub label: String,
    /// Its options: heads, causality and all that is its own.
    pub options: AttentionOptions,
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// The mechanisms.
    pub subjects: &'a [Subject],
    /// Tokens of a sequence, queries and keys alike.
    pub lengths: &'a [usize],
    /// Sequences at once.
    pub batch: usize,
    /// Channels of a head, of values too.
    pub head_width: usize,
    /// Timed runs of each mechanism at each length, at least 1 ...
    pub repeats: usize,
    /// ... unless they have taken so many seconds together.
    pub seconds: f64,
    /// Mechanisms whose time grows with the square of the length stop there.
    pub longest_quadratic: usize,
    /// Draws tensors, projections and hashes.
    pub seed: u64,
}

/// Times of some runs in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Timing {
    /// The median.
    pub median: f64,
    /// The fastest run.
    pub fastest: f64,
    /// The slowest run.
    pub slowest: f64,
}

/// One mechanism at one length.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// The mechanism.
    pub label: String,
    /// Tokens.
    pub length: usize,
    /// Sizes of support and features in words.
    pub sizes: String,
    /// Timed runs.
    pub runs: usize,
    /// Time of the forward pass.
    pub forward: Timing,
    /// Time of forward and backward pass together.
    pub both: Timing,
    /// Most bytes in use at once in the forward pass beyond the inputs: output, what is kept, scratch.
    pub forward_bytes: Option<u64>,
    /// The same of both passes, gradients included, beyond inputs and the gradient of the output.
    pub both_bytes: Option<u64>,
}

/// Why a benchmark ended early.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// Options that do not fit the mechanism or the length.
    #[error("{label} at {length} tokens: {source}")]
    Options {
        /// The mechanism.
        label: String,
        /// Tokens.
        length: usize,
        /// What is wrong.
        #[source]
        source: Error,
    },
    /// An output or gradient that is not finite.
    #[error(
        "{label} at {length} tokens: {what} is not finite, expected numbers for inputs of unit variance; give other sizes"
    )]
    Numeric {
        /// The mechanism.
        label: String,
        /// Tokens.
        length: usize,
        /// The output or a gradient.
        what: String,
    },
    /// The stop flag was raised.
    #[error("interrupted")]
    Interrupted,
}

impl Subject {
    /// Whether time grows with the square of the length: of exact mechanisms, of a full support, and of sizes that are a
    /// share of the length.
    fn is_quadratic(&self) -> bool {
        let options = &self.options;
        let sized = options.uses_features() || options.uses_support();
        options.mechanism.facts().time == "N^2"
            || (options.uses_support() && options.support.kind == SupportKind::Full)
            || (sized && options.budget.is_some())
    }
}

impl Plan<'_> {
    /// Subjects at each length, as they will be measured.
    pub fn points(&self) -> usize {
        self.lengths.iter().map(|length| self.subjects_at(*length).count()).sum()
    }

    fn subjects_at(&self, length: usize) -> impl Iterator<Item = &Subject> {
        self.subjects.iter().filter(move |subject| length <= self.longest_quadratic || !subject.is_quadratic())
    }
}

/// Measures every mechanism at every length; `watch` gets each result as it comes.
///
/// # Errors
/// Options that do not fit, a number that is not finite, or a raised `stop`.
pub fn run(plan: &Plan, watch: &dyn Fn(&Measurement), stop: &AtomicBool) -> Result<Vec<Measurement>, BenchError> {
    let check = || if stop.load(Ordering::Relaxed) { Err(BenchError::Interrupted) } else { Ok(()) };
    let mut all = Vec::new();
    for &length in plan.lengths {
        let mut tensors = Tensors::new(plan.seed);
        let mut cases = Vec::new();
        for subject in plan.subjects_at(length) {
            let failed = |source| BenchError::Options { label: subject.label.clone(), length, source };
            cases.push(Case::new(subject, plan, length, &mut tensors).map_err(failed)?);
        }
        for case in &mut cases {
            check()?;
            if all.is_empty() {
                // What a process does once (threads, tables) is in the memory of none.
                case.warm_up()?;
            }
            case.warm_up()?;
        }
        for round in 0..plan.repeats {
            for case in cases.iter_mut().filter(|case| round == 0 || case.seconds() < plan.seconds) {
                check()?;
                case.run();
            }
        }
        for case in cases {
            let measurement = case.measurement();
            watch(&measurement);
            all.push(measurement);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use regard_kernels::{Mechanism, mechanism::Fraction};

    use super::*;

    fn subject(mechanism: Mechanism) -> Subject {
        let options = AttentionOptions { mechanism, heads: 2, ..AttentionOptions::default() };
        Subject { label: options.label(), options }
    }

    fn plan<'a>(subjects: &'a [Subject], lengths: &'a [usize]) -> Plan<'a> {
        Plan { subjects, lengths, batch: 2, head_width: 8, repeats: 3, seconds: 60.0, longest_quadratic: 40, seed: 1 }
    }

    #[test]
    fn every_mechanism_is_found_through_the_list() {
        for causal in [false, true] {
            for &mechanism in Mechanism::ALL {
                let mut subject = subject(mechanism);
                subject.options.causal = causal;
                let subjects = [subject];
                let seen = run(&plan(&subjects, &[24]), &|_| {}, &AtomicBool::new(false)).unwrap();
                assert_eq!((seen.len(), seen[0].length, seen[0].runs), (1, 24, 3), "{mechanism}");
                let Measurement { forward, both, .. } = &seen[0];
                assert!(
                    0.0 < forward.fastest && forward.fastest <= forward.median && forward.median <= forward.slowest
                );
                assert!(forward.median < both.slowest, "{mechanism}");
            }
        }
    }

    #[test]
    fn what_is_quadratic_stops_early() {
        let mut budget = subject(Mechanism::Performer);
        budget.label = "budget".into();
        budget.options.budget = Some(Fraction::new(0.5).unwrap());
        let subjects = [subject(Mechanism::Softmax), subject(Mechanism::Performer), budget];
        let plan = plan(&subjects, &[16, 64]);
        assert_eq!(plan.points(), 4);
        let watched = Cell::new(0);
        let watch = |_: &Measurement| watched.set(watched.get() + 1);
        let seen = run(&plan, &watch, &AtomicBool::new(false)).unwrap();
        let points: Vec<_> = seen.iter().map(|m| (m.label.as_str(), m.length)).collect();
        assert_eq!(points, [("softmax", 16), ("performer", 16), ("budget", 16), ("performer", 64)]);
        assert_eq!((watched.get(), seen[2].sizes.as_str()), (4, "4 rows"));
    }

    #[test]
    fn a_spent_time_limit_leaves_one_run_and_a_raised_flag_none() {
        let subjects = [subject(Mechanism::Softmax)];
        let mut plan = plan(&subjects, &[16]);
        plan.seconds = 0.0;
        assert_eq!(run(&plan, &|_| {}, &AtomicBool::new(false)).unwrap()[0].runs, 1);
        assert!(matches!(run(&plan, &|_| {}, &AtomicBool::new(true)), Err(BenchError::Interrupted)));
    }

    #[test]
    fn options_that_do_not_fit_name_mechanism_and_length() {
        let mut window = subject(Mechanism::Linear);
        window.options.window = Some(3);
        let error = run(&plan(&[window], &[16]), &|_| {}, &AtomicBool::new(false)).unwrap_err().to_string();
        assert!(error.starts_with("linear at 16 tokens: ") && error.contains("window"), "{error}");
    }
}
