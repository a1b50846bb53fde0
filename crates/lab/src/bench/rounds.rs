//! Interleaved mechanisms: the order of all runs.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::atomic::{AtomicBool, Ordering},
};

use rayon::{ThreadPool, ThreadPoolBuilder};
use regard_kernels::{
    AttentionOptions, Error,
    parallel::{release_scratch, threads},
};

use super::{
    BenchError, Check, Level, Measurement, Plan, Sizes, Subject, Timing,
    check::{check, check_decoding},
    decode::Decoding,
    inputs::Tensors,
    layer::{Inference, Layer},
    on_device::other_device,
    operator::Problem,
    step::{Material, Step, options_error},
    workload::{Run, Trouble, Workload},
};

/// Tokens of the check against the twin: several full tiles of a kernel and a partial one, few enough for a slow twin.
const CHECKED: usize = 150;
/// Channels of a head that it sees at most.
const WIDEST: usize = 1024;
/// Milliseconds of a run above which cold-start costs are negligible.
const LONG: f64 = 100.0;

impl Plan<'_> {
    /// Number of measurements to be made.
    pub fn points(&self) -> usize {
        let subjects: usize = self.cells().iter().map(|sizes| self.subjects_at(sizes.length).count()).sum();
        subjects * self.threads.len().max(1)
    }

    fn subjects_at(&self, length: usize) -> impl Iterator<Item = (usize, &Subject)> {
        // The cost of one token is linear in its context.
        let all = self.level == Level::Decode || length <= self.longest_quadratic;
        self.subjects.iter().enumerate().filter(move |(_, subject)| all || !subject.is_quadratic())
    }

    /// All combinations of sizes except threads, which are interleaved like mechanisms.
    fn cells(&self) -> Vec<Sizes> {
        let mut all = Vec::new();
        for &length in self.lengths {
            for &heads in self.heads {
                let model = self.subjects.first().filter(|subject| subject.recipe.is_some());
                let own = model.map(|subject| {
                    let sizes = Sizes { length, head_width: 0, heads, batch: 0, threads: 0 };
                    vec![subject.head_width(&AttentionOptions { heads, ..subject.options.clone() }, sizes)]
                });
                for &head_width in own.as_deref().unwrap_or(self.head_widths) {
                    let cell = |&batch: &usize| Sizes { length, head_width, heads, batch, threads: threads() };
                    all.extend(self.batches.iter().map(cell));
                }
            }
        }
        all
    }

    /// Checks the computation timed at this level.
    fn check(&self, subject: &Subject, sizes: Sizes) -> Result<Check, Error> {
        let options = subject.with_heads(sizes.heads);
        // The twin takes its time and memory: of wider heads it sees as many channels.
        let head_width = subject.head_width(&options, sizes).min(WIDEST);
        // Budget sizes are those of the timed length: a fraction of a short sequence may be too small.
        let options = options.within_budget(sizes.length, sizes.length, head_width)?;
        match self.level {
            Level::Decode => check_decoding(&options, CHECKED, head_width, self.seed),
            _ => check(&options, CHECKED, head_width, self.seed),
        }
    }
}

/// One mechanism at one combination of sizes, and the results of its runs.
struct Case<'a> {
    label: &'a str,
    exact: bool,
    causal: bool,
    words: String,
    check: Check,
    at: Sizes,
    workload: Box<dyn Workload + 'a>,
    pool: Option<&'a ThreadPool>,
    runs: Vec<Vec<f64>>,
    bytes: Vec<Option<u64>>,
}

impl<'a> Case<'a> {
    fn new(
        plan: &Plan,
        subject: &'a Subject,
        check: Check,
        at: Sizes,
        pool: Option<&'a ThreadPool>,
        material: Option<&'a Material>,
        tensors: &mut Tensors,
    ) -> Result<Self, BenchError> {
        let Sizes { length, heads, .. } = at;
        let label = || subject.label.clone();
        let failed = |source| BenchError::Options { label: label(), length, source };
        let options = subject.with_heads(heads);
        let sized = options.within_budget(length, length, subject.head_width(&options, at)).map_err(failed)?;
        let own_heads = subject.own_heads.then(|| format!("{} heads", options.heads));
        let words = own_heads.into_iter().chain([sized.sizes()]).filter(|words| !words.is_empty());
        let words = words.collect::<Vec<_>>().join(", ");
        let build = || -> Result<Box<dyn Workload + 'a>, BenchError> {
            Ok(match (plan.level, &subject.recipe, material) {
                (Level::Operator, ..) => {
                    let problem = Problem::new(&sized, at, tensors).map_err(failed)?;
                    match other_device() {
                        Some(device) => Box::new(problem.on(&sized, &device).map_err(failed)?),
                        None => Box::new(problem),
                    }
                }
                (Level::Layer, ..) => Box::new(Layer::new(&options, at, plan.seed, tensors).map_err(failed)?),
                (Level::Inference, ..) => Box::new(Inference::new(&options, at, plan.seed, tensors).map_err(failed)?),
                (Level::Decode, ..) => {
                    let runs = plan.warm_ups + 2 * plan.repeats + 1;
                    Box::new(Decoding::new(&sized, at, plan.storage, runs, plan.seed).map_err(failed)?)
                }
                (Level::Step, Some(recipe), Some(material)) => {
                    let step = Step::new(recipe, &options, material, plan.seed);
                    Box::new(step.map_err(|error| match options_error(error) {
                        Ok(source) => failed(source),
                        Err(problem) => BenchError::Model { label: label(), length, problem },
                    })?)
                }
                (Level::Step, ..) => {
                    let problem = "a training step without a model; give one".into();
                    return Err(BenchError::Model { label: label(), length, problem });
                }
            })
        };
        let workload = within(pool, build)?;
        let (exact, causal) = (subject.is_exact(), options.causal);
        let (runs, bytes) = (Vec::new(), Vec::new());
        Ok(Self { label: &subject.label, exact, causal, words, check, at, workload, pool, runs, bytes })
    }

    fn once(&mut self, first: bool) -> Result<Run, BenchError> {
        let (label, length) = (self.label, self.at.length);
        let workload = &mut self.workload;
        within(self.pool, || {
            if first {
                release_scratch();
            }
            workload.run(first)
        })
        .map_err(|trouble| match trouble {
            Trouble::NotFinite(what) => BenchError::Numeric { label: label.into(), length, what },
            Trouble::Other(problem) => BenchError::Model { label: label.into(), length, problem },
        })
    }

    /// Untimed runs: the first measures memory, with no scratch allocated yet; all of them warm up threads, tables and
    /// pages.
    fn warm_up(&mut self, runs: usize) -> Result<(), BenchError> {
        self.bytes = self.once(true)?.bytes;
        (1..runs).try_for_each(|_| self.once(false).map(drop))
    }

    /// A timed run; a short one follows an untimed one, since sleeping threads and caches filled by other mechanisms
    /// would cost as much as the run itself.
    fn run(&mut self) -> Result<(), BenchError> {
        if self.runs.last().and_then(|times| times.last()).is_none_or(|time| *time < LONG) {
            self.once(false)?;
        }
        let times = self.once(false)?.times;
        self.runs.push(times);
        Ok(())
    }

    /// Total seconds of all timed runs.
    fn seconds(&self) -> f64 {
        self.runs.iter().filter_map(|times| times.last()).sum::<f64>() / 1e3
    }

    /// The measurement from the runs.
    fn measurement(&self, level: Level, warm_ups: usize) -> Measurement {
        let mut measurement = Measurement {
            label: self.label.to_owned(),
            level,
            at: self.at,
            causal: self.causal,
            exact: self.exact,
            sizes: self.words.clone(),
            check: Some(self.check.clone()),
            warm_ups,
            runs: self.runs.len(),
            forward: None,
            both: None,
            step: None,
            token: None,
            forward_bytes: None,
            both_bytes: None,
            step_bytes: None,
            state_bytes: None,
        };
        for (n, &pass) in level.passes().iter().enumerate() {
            let times = self.runs.iter().map(|times| times[n]).collect();
            measurement.set(pass, Timing::of(times), self.bytes.get(n).copied().flatten());
        }
        measurement
    }
}

/// Runs `task` on a pool, or on the current threads.
fn within<R: Send>(pool: Option<&ThreadPool>, task: impl FnOnce() -> R + Send) -> R {
    match pool {
        Some(pool) => pool.install(task),
        None => task(),
    }
}

/// Measures every mechanism at every combination of sizes; `watch` receives each result as it is available.
///
/// # Errors
/// Options that do not fit, a number that is not finite, or a raised `stop`. A mechanism that differs from its twin is
/// not an error: its measurements say so.
pub fn run(plan: &Plan, watch: &dyn Fn(&Measurement), stop: &AtomicBool) -> Result<Vec<Measurement>, BenchError> {
    let go_on = || if stop.load(Ordering::Relaxed) { Err(BenchError::Interrupted) } else { Ok(()) };
    let pool = |&count: &usize| {
        let built = ThreadPoolBuilder::new().num_threads(count).build();
        built.map_err(|error| BenchError::Threads { count, problem: error.to_string() })
    };
    let pools: Vec<ThreadPool> = plan.threads.iter().map(pool).collect::<Result<_, _>>()?;
    let turns: Vec<Option<&ThreadPool>> = if pools.is_empty() { vec![None] } else { pools.iter().map(Some).collect() };
    let mut checks: BTreeMap<_, Check> = BTreeMap::new();
    let checked = |n: usize, subject: &Subject, cell: Sizes| {
        (n, cell.heads, cell.head_width, subject.options.budget.map(|_| cell.length))
    };
    let mut all = Vec::new();
    for cell in plan.cells() {
        let mut materials = Vec::new();
        for (n, subject) in plan.subjects_at(cell.length) {
            go_on()?;
            let failed = |source| BenchError::Options { label: subject.label.clone(), length: cell.length, source };
            let key = checked(n, subject, cell);
            if let Entry::Vacant(unknown) = checks.entry(key) {
                unknown.insert(plan.check(subject, cell).map_err(failed)?);
            }
            materials.push(subject.recipe.as_ref().map(|recipe| Material::new(recipe, cell, plan.seed)));
        }
        let mut tensors = Tensors::new(plan.seed);
        let mut cases = Vec::new();
        for ((n, subject), material) in plan.subjects_at(cell.length).zip(&materials) {
            for pool in &turns {
                go_on()?;
                let at = Sizes { threads: pool.map_or(cell.threads, ThreadPool::current_num_threads), ..cell };
                let check = checks[&checked(n, subject, cell)].clone();
                cases.push(Case::new(plan, subject, check, at, *pool, material.as_ref(), &mut tensors)?);
            }
        }
        for case in &mut cases {
            go_on()?;
            if all.is_empty() && plan.level != Level::Step {
                // One-time setup (threads, tables) must not count as memory of any case.
                case.warm_up(1)?;
            }
            case.warm_up(plan.warm_ups)?;
        }
        for round in 0..plan.repeats {
            for case in cases.iter_mut().filter(|case| round == 0 || case.seconds() < plan.seconds) {
                go_on()?;
                case.run()?;
            }
        }
        for case in cases {
            let measurement = case.measurement(plan.level, plan.warm_ups);
            watch(&measurement);
            all.push(measurement);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use regard_kernels::{Mechanism, Storage, mechanism::Fraction};
    use regard_nn::models::ModelConfig;
    use regard_tasks::train::TrainConfig;

    use super::super::{Pass, Recipe};
    use super::*;

    fn subject(mechanism: Mechanism) -> Subject {
        let options = AttentionOptions { mechanism, heads: 2, ..AttentionOptions::default() };
        Subject { label: options.label(), options, own_heads: false, recipe: None }
    }

    fn plan<'a>(subjects: &'a [Subject], lengths: &'a [usize]) -> Plan<'a> {
        Plan {
            level: Level::Operator,
            subjects,
            lengths,
            heads: &[2],
            head_widths: &[8],
            batches: &[2],
            threads: &[],
            warm_ups: 1,
            repeats: 3,
            seconds: 60.0,
            longest_quadratic: 40,
            storage: Storage::F32,
            seed: 1,
        }
    }

    fn measured(plan: &Plan) -> Result<Vec<Measurement>, BenchError> {
        run(plan, &|_| {}, &AtomicBool::new(false))
    }

    #[test]
    fn every_mechanism_is_found_through_the_list() {
        for level in [Level::Operator, Level::Layer, Level::Inference] {
            for causal in [false, true] {
                for &mechanism in Mechanism::ALL {
                    let mut subject = subject(mechanism);
                    subject.options.causal = causal;
                    let subjects = [subject];
                    let seen = measured(&Plan { level, ..plan(&subjects, &[24]) }).unwrap();
                    assert_eq!((seen.len(), seen[0].at.length, seen[0].runs), (1, 24, 3), "{mechanism}");
                    let forward = seen[0].forward.unwrap();
                    assert!(0.0 < forward.fastest && forward.p10 <= forward.median && forward.median <= forward.p90);
                    assert_eq!(seen[0].both.is_none(), level == Level::Inference);
                    assert!(seen[0].both.is_none_or(|both| forward.median < both.slowest), "{mechanism}");
                    assert!(!seen[0].is_wrong() && seen[0].exact == (mechanism == Mechanism::Softmax));
                }
            }
        }
    }

    #[test]
    fn every_mechanism_decodes_and_only_some_states_grow() {
        for &mechanism in Mechanism::ALL {
            let mut subject = subject(mechanism);
            subject.options.causal = true;
            let subjects = [subject];
            let seen = measured(&Plan { level: Level::Decode, ..plan(&subjects, &[48, 96]) }).unwrap();
            let bytes: Vec<u64> = seen.iter().map(|m| m.state_bytes.unwrap()).collect();
            let grows = mechanism.facts().decode_state == regard_kernels::mechanism::Growth::Linear;
            assert_eq!((seen.len(), bytes[1] > bytes[0]), (2, grows), "{mechanism} {bytes:?}");
            assert!(seen[0].time(Pass::Token).unwrap().median > 0.0 && seen[0].forward.is_none());
            assert!(!seen[0].is_wrong(), "{mechanism}: {:?}", seen[0].check);
        }
        let subjects = [subject(Mechanism::Softmax)];
        let error = measured(&Plan { level: Level::Decode, ..plan(&subjects, &[8]) }).unwrap_err().to_string();
        assert!(error.contains("causal is false"), "{error}");
    }

    #[test]
    fn models_of_both_kinds_train() {
        for (classes, causal) in [(Some(3), false), (None, true)] {
            let recipe = Recipe {
                model: ModelConfig { width: 12, ..ModelConfig::default() },
                train: TrainConfig::default(),
                vocabulary: 11,
                classes,
            };
            let mut subjects = [Mechanism::Softmax, Mechanism::Linear].map(subject);
            for subject in &mut subjects {
                subject.recipe = Some(recipe.clone());
                subject.options.causal = causal;
            }
            let plan = Plan { level: Level::Step, heads: &[2, 3], ..plan(&subjects, &[20]) };
            let seen = measured(&plan).unwrap();
            let points: Vec<_> = seen.iter().map(|m| (m.label.as_str(), m.at.heads, m.at.head_width)).collect();
            assert_eq!(points, [("softmax", 2, 6), ("linear", 2, 6), ("softmax", 3, 4), ("linear", 3, 4)]);
            for m in &seen {
                // Parameters, gradients and two moments of the token embedding alone.
                assert!(m.step.unwrap().median > 0.0 && m.step_bytes.is_none_or(|bytes| bytes > 4 * 4 * 11 * 12));
            }
        }
    }

    #[test]
    fn every_combination_of_sizes_is_measured_once() {
        let subjects = [subject(Mechanism::Softmax), subject(Mechanism::Linear)];
        let sweep =
            Plan { heads: &[1, 2], head_widths: &[4, 8], batches: &[1, 3], threads: &[1, 2], ..plan(&subjects, &[9]) };
        let seen = measured(&Plan { repeats: 1, ..sweep.clone() }).unwrap();
        assert_eq!((seen.len(), sweep.points()), (32, 32));
        let mut places: Vec<_> = seen.iter().map(|m| (&m.label, m.at)).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 32);
        assert_eq!(seen.iter().filter(|m| m.at.threads == 2 && m.at.heads == 1).count(), 8);
    }

    #[test]
    fn heads_of_its_own_stay() {
        let own = Subject { own_heads: true, ..subject(Mechanism::Softmax) };
        let subjects = [own];
        let seen = measured(&Plan { heads: &[8], ..plan(&subjects, &[9]) }).unwrap();
        assert_eq!((seen[0].at.heads, seen[0].sizes.as_str()), (8, "2 heads"));
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
        let points: Vec<_> = seen.iter().map(|m| (m.label.as_str(), m.at.length)).collect();
        assert_eq!(points, [("softmax", 16), ("performer", 16), ("budget", 16), ("performer", 64)]);
        assert_eq!((watched.get(), seen[2].sizes.as_str()), (4, "4 rows"));
    }

    #[test]
    fn a_spent_time_limit_leaves_one_run_and_a_raised_flag_none() {
        let subjects = [subject(Mechanism::Softmax)];
        let plan = Plan { seconds: 0.0, warm_ups: 2, ..plan(&subjects, &[16]) };
        let seen = measured(&plan).unwrap();
        assert_eq!((seen[0].runs, seen[0].warm_ups), (1, 2));
        assert!(matches!(run(&plan, &|_| {}, &AtomicBool::new(true)), Err(BenchError::Interrupted)));
    }

    #[test]
    fn options_that_do_not_fit_name_mechanism_and_length() {
        let mut window = subject(Mechanism::Linear);
        window.options.window = Some(3);
        let error = measured(&plan(&[window], &[16])).unwrap_err().to_string();
        assert!(error.starts_with("linear at 16 tokens: ") && error.contains("window"), "{error}");
    }
}
