//! `regard bench`

mod args;
mod network;
mod revision;
mod shapes;
mod subjects;

use std::{cell::Cell, ffi::OsStr, fs, path::Path};

use regard_lab::{
    bench::{self, Benchmark, Earlier, Level, Measurement, Pass, Plan, Subject, merge},
    cost::{TRAINING, fits},
};
use regard_tasks::Class;

use super::{command_line, environment, make_out, show};
use crate::{
    args::Common,
    console,
    error::{Failure, Outcome},
    signal,
};
pub use args::Bench;
use revision::Revision;
use subjects::Chosen;

/// Query-sized tensors that one mechanism holds at once: `q k v grad_out`, output, three gradients, and four more for
/// saved tensors. A lower bound for mixtures.
const TENSORS: u128 = 12;
/// The same for decoding: keys and values.
const CACHED: u128 = 2;

/// Measures time and memory of mechanisms.
///
/// # Errors
/// Invalid options, not enough memory, a mechanism that differs from its twin, an interrupt.
pub fn run(args: &Bench, common: &Common) -> Outcome {
    let level = args.level;
    if !(args.seconds >= 0.0 && args.seconds.is_finite()) {
        return Err(Failure::usage(format!("--seconds is {}, expected a number from 0", args.seconds)));
    }
    if args.network {
        return network::run(args, common);
    }
    if args.shapes {
        return shapes::run(args, common);
    }
    let Chosen { subjects, lengths, heads, head_widths, batches } = subjects::choose(args)?;
    check_memory(level, &lengths, &heads, &head_widths, &batches)?;
    if let Some(recipe) = subjects.iter().find_map(|subject: &Subject| subject.recipe.as_ref()) {
        // Embedding, its gradient and moments.
        let bytes = TRAINING * recipe.vocabulary as u128 * recipe.model.width as u128;
        fits("the embedding needs at least", bytes, "lower --vocabulary")?;
    }
    let plan = Plan {
        level,
        subjects: &subjects,
        lengths: &lengths,
        heads: &heads,
        head_widths: &head_widths,
        batches: &batches,
        threads: &args.threads_sweep,
        warm_ups: args.warm_up,
        repeats: args.repeats,
        seconds: args.seconds,
        longest_quadratic: args.longest_quadratic,
        storage: args.kv_cache,
        seed: args.seed,
    };
    make_out(args.out.as_deref())?;
    let against = args.compare.as_deref().map(Against::new).transpose()?;
    let (measurements, earlier) = match against {
        None => (measure(&plan, common)?, None),
        Some(Against::File(earlier)) => (measure(&plan, common)?, Some(earlier)),
        Some(Against::Revision(revision)) => {
            let (ours, earlier) = alternate(&revision, args.repeats, common)?;
            (ours, Some(earlier))
        }
    };
    let benchmark = Benchmark {
        setting: setting(&plan, &measurements),
        labels: subjects.iter().map(|subject| subject.label.clone()).collect(),
        measurements,
        command: command_line(),
        environment: environment(),
        crossover: args.crossover,
        earlier,
    };
    if let Some(earlier) = &benchmark.earlier {
        benchmark.differences(earlier).iter().for_each(|warning| console::line(format_args!("warning: {warning}")));
    }
    show(common, args.out.as_deref(), &benchmark)?;
    verdict(&benchmark)
}

/// All measurements of this program, with a progress bar or one line each.
fn measure(plan: &Plan, common: &Common) -> Outcome<Vec<Measurement>> {
    let bar = console::bar(plan.points() as u64, common.quiet);
    bar.set_prefix("bench");
    let lines = !common.quiet && bar.is_hidden();
    let done = Cell::new(0);
    let watch = |m: &Measurement| {
        done.set(done.get() + 1);
        let time = |pass: &Pass| m.time(*pass).map(|time| format!("{:.2} ms {}", time.median, pass.title()));
        let times: Vec<String> = m.level.passes().iter().filter_map(time).collect();
        let wrong = m.check.as_ref().filter(|check| !check.passed);
        let wrong = wrong.map_or(String::new(), |check| format!("; {}", check.words()));
        let text = format!("{} at {} tokens: {}{wrong}", m.label, m.at.length, times.join(", "));
        bar.set_position(done.get());
        if lines { console::line(text) } else { bar.println(text) }
    };
    let measurements = bench::run(plan, &watch, &signal::stop_flag());
    bar.finish_and_clear();
    Ok(measurements?)
}

/// The argument of `--compare`.
enum Against {
    File(Earlier),
    Revision(Revision),
}

impl Against {
    /// An existing path is a file, anything else a revision.
    fn new(name: &OsStr) -> Outcome<Self> {
        let (path, name) = (Path::new(name), name.to_string_lossy());
        if !path.exists() {
            // No revision has such a name.
            if path.extension().is_some_and(|extension| extension == "json") {
                let error = std::io::Error::from(std::io::ErrorKind::NotFound);
                return Err(Failure::reading(path, &error));
            }
            return Revision::find(&name).map(Self::Revision);
        }
        let text = fs::read_to_string(path).map_err(|error| Failure::reading(path, &error))?;
        let earlier = Earlier::read(&*name, &text).map_err(|problem| {
            Failure::data(format!("{name}: {problem}; give a file that 'regard bench --out' or --json wrote"))
        })?;
        Ok(Self::File(earlier))
    }
}

/// Builds the revision, then runs it and this program alternately, with one timed run of everything each time.
fn alternate(revision: &Revision, repeats: usize, common: &Common) -> Outcome<(Vec<Measurement>, Earlier)> {
    let theirs = revision.build(common.quiet)?;
    let ours = std::env::current_exe().map_err(|error| Failure::data(format!("cannot find this program: {error}")))?;
    let name = revision.to_string();
    let bar = console::bar(2 * repeats as u64, common.quiet);
    bar.set_prefix("bench");
    let mut results = [Vec::new(), Vec::new()];
    let mut environment = None;
    for round in 0..repeats {
        // Each goes first equally often.
        for turn in 0..2 {
            let which = (round + turn) % 2;
            let (program, who) = [(&ours, "this program"), (&theirs, name.as_str())][which];
            let result = revision::once(program, who)?;
            if which == 1 {
                environment = Some(result.environment);
            }
            results[which].push(result.measurements);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let [ours, theirs] = results.map(|rounds| merge(&rounds));
    let environment = environment.expect("at least one round");
    Ok((ours, Earlier { name, measurements: theirs, environment }))
}

/// A failure if a mechanism is wrong: its times are shown, but meaningless.
fn verdict(benchmark: &Benchmark) -> Outcome {
    let wrong = benchmark.wrong();
    if wrong.is_empty() {
        return Ok(());
    }
    let words: Vec<String> = wrong.iter().map(|(label, words)| format!("{label} ({words})")).collect();
    let message = format!(
        "{} of {} mechanisms differ from their float64 twins by more than {:.0e}: {}; their times mean nothing",
        wrong.len(),
        benchmark.labels.len(),
        bench::bound(),
        words.join(", ")
    );
    Err(Failure::new(Class::Check, message))
}

/// Checks that the largest tensors fit into memory.
fn check_memory(level: Level, lengths: &[usize], heads: &[usize], head_widths: &[usize], batches: &[usize]) -> Outcome {
    let most = |sizes: &[usize]| sizes.iter().copied().max().unwrap_or(1);
    let longest = most(lengths);
    let factors = [most(batches), longest, most(heads), most(head_widths), 4];
    let tensor = factors.iter().fold(1u128, |product, factor| product.saturating_mul(*factor as u128));
    let bytes = tensor.saturating_mul(if level == Level::Decode { CACHED } else { TENSORS });
    fits(&format!("{longest} tokens need at least"), bytes, "lower --lengths, --batch or --heads")
}

/// A short description of what all points share and of the swept sizes.
fn setting(plan: &Plan, measurements: &[Measurement]) -> String {
    let list = |values: &[usize]| values.iter().map(usize::to_string).collect::<Vec<_>>().join("|");
    let mut head_widths: Vec<usize> = measurements.iter().map(|m| m.at.head_width).collect();
    head_widths.sort_unstable();
    head_widths.dedup();
    let causal = if measurements.iter().all(|m| m.causal) { "causal" } else { "bidirectional" };
    let sizes = format!("batch {}, {} heads of {}, {causal}", list(plan.batches), list(plan.heads), list(&head_widths));
    let model = plan.subjects.iter().find_map(|subject: &Subject| subject.recipe.as_ref());
    match (plan.level, model) {
        (Level::Step, Some(recipe)) => {
            let kind = if recipe.classes.is_some() { "classifier" } else { "language model" };
            let (layers, width, vocabulary) = (recipe.model.layers, recipe.model.width, recipe.vocabulary);
            format!("training step of a {kind}, {layers} layers {width} wide, vocabulary {vocabulary}, {sizes}")
        }
        (Level::Layer, _) => format!("layer, {sizes}"),
        (Level::Inference, _) => format!("layer in inference, {sizes}"),
        (Level::Decode, _) => format!("one token, {sizes}, keys and values in {}", plan.storage.name()),
        _ => sizes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A result with one mechanism whose check passed or failed.
    fn judged(passed: bool) -> Benchmark {
        let text = format!(
            r#"{{"environment": {{"commit": null, "date": "", "platform": "", "processor": "", "processors": 1,
                "threads": 1, "version": ""}},
               "measurements": [{{"label": "mgk", "length": 8, "sizes": "", "runs": 1, "batch": 1, "heads": 1,
                "head_width": 4, "threads": 1, "causal": false,
                "check": {{"passed": {passed}, "error": 0.5, "tensor": "output"}}}}]}}"#
        );
        let Earlier { measurements, environment, .. } = Earlier::read("x", &text).unwrap();
        Benchmark {
            labels: vec!["mgk".into()],
            measurements,
            setting: String::new(),
            command: String::new(),
            environment,
            crossover: false,
            earlier: None,
        }
    }

    #[test]
    fn a_mechanism_that_is_wrong_fails_the_command() {
        assert!(verdict(&judged(true)).is_ok());
        let failure = verdict(&judged(false)).unwrap_err();
        assert_eq!(failure.class, Class::Check);
        assert!(failure.message.contains("mgk (wrong, output by 5.0e-1)"), "{}", failure.message);
    }
}
