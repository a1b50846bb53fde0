//! `regard bench`

use std::cell::Cell;

use regard_lab::bench::{self, BenchError, Benchmark, Measurement, Plan, Subject};

use super::{budget::total_memory, command_line, environment, print_json};
use crate::{
    args::{Bench, Common},
    config::{Layers, RunConfig, SECTIONS},
    console,
    error::{Code, Failure, Outcome},
    signal,
};

/// The mechanisms of the Scatterbrain paper's figure 6, with the sizes that speed is promised for.
const MECHANISMS: [&str; 5] = [
    "softmax",
    "performer:features.rows=32",
    "sparse:support.kind=smyrf",
    "sparse:support.kind=local,support.radius=32",
    "scatterbrain:support.kind=local,support.radius=32,features.rows=32",
];
/// Tensors as large as the queries that one mechanism has at once: `q k v grad_out`, output, three gradients, and as much again
/// for what is kept. A lower bound for mixtures.
const TENSORS: u128 = 12;

/// Measures time and memory of mechanisms against length.
///
/// # Errors
/// Options that cannot be, more memory than there is, an interrupt.
pub fn run(args: &Bench, common: &Common) -> Outcome {
    check(args)?;
    let subjects = subjects(args)?;
    let mut lengths = args.lengths.clone();
    lengths.sort_unstable();
    lengths.dedup();
    let plan = Plan {
        subjects: &subjects,
        lengths: &lengths,
        batch: args.batch,
        head_width: args.head_width,
        repeats: args.repeats,
        seconds: args.seconds,
        longest_quadratic: args.longest_quadratic,
        seed: args.seed,
    };
    let bar = console::bar(plan.points() as u64, common.quiet);
    bar.set_prefix("bench");
    let lines = !common.quiet && bar.is_hidden();
    let done = Cell::new(0);
    let watch = |m: &Measurement| {
        done.set(done.get() + 1);
        let text = format!(
            "{} at {} tokens: {:.2} ms forward, {:.2} ms forward+backward",
            m.label, m.length, m.forward.median, m.both.median
        );
        bar.set_position(done.get());
        if lines { eprintln!("{text}") } else { bar.println(text) }
    };
    let measurements = bench::run(&plan, &watch, &signal::stop_flag());
    bar.finish_and_clear();
    let benchmark = Benchmark {
        labels: subjects.into_iter().map(|subject| subject.label).collect(),
        measurements: measurements.map_err(failure)?,
        setting: setting(args),
        command: command_line(),
        environment: environment(),
    };
    let files = match &args.out {
        Some(out) => Some(benchmark.write(out).map_err(|error| Failure::written(&error))?),
        None => None,
    };
    if common.json {
        print_json(&benchmark.to_json());
        return Ok(());
    }
    print!("{}", benchmark.table().to_text());
    if let Some(files) = files {
        println!("\nreport: {}", files.report.page.display());
    }
    Ok(())
}

/// Checks the numbers.
fn check(args: &Bench) -> Outcome {
    let sizes = [
        ("lengths", args.lengths.iter().copied().min().unwrap_or(0)),
        ("heads", args.heads),
        ("head-width", args.head_width),
        ("batch", args.batch),
        ("repeats", args.repeats),
    ];
    if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
        return Err(Failure::usage(format!("--{name} is 0, expected at least 1")));
    }
    if !(args.seconds >= 0.0 && args.seconds.is_finite()) {
        return Err(Failure::usage(format!("--seconds is {}, expected a number from 0", args.seconds)));
    }
    let longest = args.lengths.iter().copied().max().unwrap_or(0);
    let factors = [args.batch, longest, args.heads, args.head_width, 4];
    let tensor = factors.iter().fold(1u128, |product, factor| product.saturating_mul(*factor as u128));
    let bytes = tensor.saturating_mul(TENSORS);
    match total_memory() {
        Some(memory) if bytes > memory => Err(Failure {
            code: Code::Budget,
            message: format!(
                "{longest} tokens need at least {:.1} GiB, this machine has {:.1} GiB; lower --lengths, --batch or --heads",
                bytes as f64 / f64::from(1 << 30),
                memory as f64 / f64::from(1 << 30)
            ),
        }),
        _ => Ok(()),
    }
}

/// The mechanisms with their options, each with a name of its own.
fn subjects(args: &Bench) -> Outcome<Vec<Subject>> {
    let mut layers = Layers::new();
    for assignment in &args.set {
        let key = assignment.split('=').next().unwrap_or_default().trim();
        if SECTIONS.contains(&key.split('.').next().unwrap_or_default()) {
            return Err(Failure::usage(format!(
                "--set {key}: a benchmark has no {key}, expected a key of the attention"
            )));
        }
        layers.assign(assignment, "--set")?;
    }
    layers.set("heads", &args.heads.to_string(), "--heads")?;
    if args.causal {
        layers.set("causal", "true", "--causal")?;
    }
    let base = layers.resolve()?;
    let given: Vec<&str> = match args.mechanism.is_empty() {
        true => MECHANISMS.to_vec(),
        false => args.mechanism.iter().map(String::as_str).collect(),
    };
    let mut all: Vec<(String, RunConfig)> = Vec::new();
    for entry in given {
        let (label, config) = base.candidate(entry).map_err(|failure| Failure {
            message: failure.message.replace("an entry of compare.mechanisms", "--mechanism"),
            ..failure
        })?;
        config.attention.check()?;
        if config.model != base.model {
            return Err(Failure::usage(format!(
                "--mechanism {entry}: changes the model, expected keys of the attention"
            )));
        }
        if all.iter().any(|(other, _)| *other == label) {
            return Err(Failure::usage(format!("--mechanism names '{label}' twice, expected each once")));
        }
        all.push((label, config));
    }
    // The mechanism alone is name enough, where no other goes by it.
    let short: Vec<String> = all.iter().map(|(_, config)| config.attention.label()).collect();
    let named = all.into_iter().enumerate().map(|(n, (long, config))| {
        let alone = short.iter().filter(|other| **other == short[n]).count() == 1;
        Subject { label: if alone { short[n].clone() } else { long }, options: config.attention }
    });
    Ok(named.collect())
}

/// What all points share, in a few words.
fn setting(args: &Bench) -> String {
    let causal = if args.causal { "causal" } else { "bidirectional" };
    format!("batch {}, {} heads of {}, {causal}", args.batch, args.heads, args.head_width)
}

fn failure(error: BenchError) -> Failure {
    let code = match &error {
        BenchError::Options { source: regard_kernels::Error::Budget { .. }, .. } => Code::Budget,
        BenchError::Options { .. } => Code::Usage,
        BenchError::Numeric { .. } => Code::Numeric,
        BenchError::Interrupted => Code::Interrupted,
    };
    Failure { code, message: error.to_string() }
}
