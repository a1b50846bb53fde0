//! `regard compare`

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;
use regard_lab::compare::{
    self, Candidate, Comparison, Job,
    study::{self, Figure, Plan, Results, Shard, Study},
};
use regard_tasks::{
    Class,
    run::RunConfig,
    train::{DirectoryLock, Existing},
};

use super::{cache_directory, command_line, environment, layers, shell_command, show, typed_words};
use crate::{
    args::{Common, Directory, Source},
    console::Console,
    error::{Failure, Outcome},
    job, output, signal,
    values::{choice, size},
};

#[derive(Debug, Args)]
pub struct Compare {
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub directory: Directory,
    /// Train the cells of a study, a TOML file of tasks, models, settings and seeds. --set then applies to every cell.
    #[arg(long, value_name = "FILE")]
    pub study: Option<PathBuf>,
    /// Write one report of the cells in several directories of studies or shards.
    #[arg(long, value_name = "DIR", num_args = 1.., conflicts_with_all = ["study", "resume", "overwrite"], requires = "out")]
    pub merge: Vec<PathBuf>,
    /// Train part I of N of the cells, for several processes or machines; put the parts together with --merge.
    #[arg(long, value_name = "I/N", requires = "study", allow_hyphen_values = true)]
    pub shard: Option<String>,
    /// Print a script for Slurm's sbatch that trains the study in N tasks, which need no MPI, and puts the parts together.
    #[arg(long, requires = "study", conflicts_with_all = ["shard", "dry_run", "resume", "overwrite"], value_name = "N", value_parser = size(1))]
    pub slurm: Option<usize>,
    /// List the cells of the study with their parameters, estimated memory and state, and train nothing.
    #[arg(long, requires = "study")]
    pub dry_run: bool,
    /// Model of the study that the others are tested against; default: the study's, or its first.
    #[arg(long, value_name = "LABEL")]
    pub baseline: Option<String>,
    /// Figures beside the measure of each task of the study.
    #[arg(long, value_parser = choice(&Figure::ALL), value_delimiter = ',', value_name = "FIGURE,...")]
    pub columns: Vec<Figure>,
}

/// Trains the same model with each mechanism, or the cells of a study, and reports.
///
/// # Errors
/// Errors of the configuration, the data and the runs; cells of a study that failed.
pub fn run(args: &Compare, common: &Common) -> Outcome {
    // What reads and prints alone needs no ranks: rank 0 does it.
    if job::rank() > 0 && (args.dry_run || args.slurm.is_some() || !args.merge.is_empty()) {
        return Ok(());
    }
    match (&args.study, args.merge.is_empty()) {
        (Some(file), _) => run_study(args, file, common),
        (None, false) => merge(args, common),
        (None, true) if args.source.mechanism.is_some() => Err(Failure::usage(
            "--mechanism is given, but several are compared; name them by --set compare.mechanisms=softmax,mgk",
        )),
        (None, true) if args.baseline.is_some() || !args.columns.is_empty() => {
            Err(Failure::usage("--baseline and --columns belong to a study, expected --study or --merge with them"))
        }
        (None, true) => one_task(&args.source, &args.directory, common),
    }
}

/// The first option of one model that is given.
fn named(source: &Source) -> Option<&'static str> {
    let Source { preset, config, set: _, mechanism, task, seed } = source;
    first(&[
        ("--preset", preset.is_some()),
        ("--config", config.is_some()),
        ("--mechanism", mechanism.is_some()),
        ("--task", task.is_some()),
        ("--seed", seed.is_some()),
    ])
}

/// The first option that is given.
fn first(options: &[(&'static str, bool)]) -> Option<&'static str> {
    options.iter().find(|(_, given)| *given).map(|(option, _)| *option)
}

/// Trains the cells of a study.
fn run_study(args: &Compare, file: &Path, common: &Common) -> Outcome {
    if let Some(option) = named(&args.source) {
        return Err(Failure::usage(format!(
            "{option} is given with --study, which names presets, mechanisms, tasks and seeds itself; write it there"
        )));
    }
    let shard = args.shard.as_deref().map(str::parse::<Shard>).transpose();
    let shard = shard.map_err(|problem| Failure::usage(format!("--shard {problem}")))?;
    let study = shown(study::read(file, std::env::vars_os(), &args.source.set)?, args)?;
    let out_of = |shard| args.directory.out.clone().unwrap_or_else(|| default_directory(file, shard));
    if let Some(parts) = args.slurm {
        return output::text(study::slurm(&whole_command(), &out_of(None), parts, common.threads));
    }
    let cells = study.dealt(shard);
    let out = out_of(shard);
    if args.dry_run {
        let plan = Plan::of(&study, &cells, &out)?;
        match common.json {
            true => output::json(&plan.to_json())?,
            false => output::text(plan.table().to_text())?,
        }
        return failed(plan.failing(), plan.cells(), "failed before or cannot be trained; the list says why");
    }
    let stop = signal::stop_flag();
    let cluster = job::join(&stop)?;
    let leads = cluster.rank() == 0;
    let existing = args.directory.existing();
    let mut lock = None;
    if leads {
        fs::create_dir_all(&out).map_err(|error| Failure::writing(&out, &error))?;
        lock = Some(DirectoryLock::take(&out)?);
        study::open(&out, existing, &study, &cells)?;
    }
    job::gather(&*cluster)?;
    let (environment, cache) = (environment(), cache_directory(args.directory.cache.as_deref()));
    let watch = Console::new(&Common { quiet: common.quiet || !leads, ..common.clone() });
    let again = existing == Existing::Resume;
    let work = Job { out: &out, cache: cache.as_deref(), environment: &environment, cluster };
    let records = study::run(&cells, &work, again, &watch, &stop).map_err(job::told_by_first)?;
    if !leads {
        return Ok(());
    }
    let count = records.iter().filter(|record| record.finished().is_none()).count();
    show(common, Some(&out), &Results::of(study.clone(), &out, command_line(), environment)?)?;
    drop(lock);
    failed(count, cells.len(), "failed; the report says why, and --resume tries them again")
}

/// The command as it was typed, without what a task of Slurm has of its own.
fn whole_command() -> String {
    let mut words = Vec::new();
    let mut typed = typed_words();
    while let Some(word) = typed.next() {
        match word.split_once('=').map_or(word.as_str(), |(option, _)| option) {
            "--slurm" | "--out" if word.contains('=') => {}
            "--slurm" | "--out" => drop(typed.next()),
            _ => words.push(word),
        }
    }
    shell_command(words)
}

/// `runs/NAME` of the file, with the shard.
fn default_directory(file: &Path, shard: Option<Shard>) -> PathBuf {
    let mut name = file.file_stem().unwrap_or(file.as_os_str()).to_owned();
    if let Some(Shard { number, of }) = shard {
        name.push(format!("-{number}-of-{of}"));
    }
    Path::new("runs").join(name)
}

/// The study with the baseline and columns of the command line.
fn shown(study: Study, args: &Compare) -> Outcome<Study> {
    let study = match &args.baseline {
        Some(label) => study.with_baseline(label).map_err(|failure| failure.at("--baseline"))?,
        None => study,
    };
    let columns = if args.columns.is_empty() { study.columns.clone() } else { args.columns.clone() };
    Ok(Study { columns, ..study })
}

fn failed(failed: usize, cells: usize, how: &str) -> Outcome {
    if failed == 0 {
        return Ok(());
    }
    Err(Failure::new(Class::Check, format!("{failed} of {cells} cells {how}")))
}

/// Writes one report of the cells in several directories.
fn merge(args: &Compare, common: &Common) -> Outcome {
    let further = [
        ("--set", !args.source.set.is_empty()),
        ("--dry-run", args.dry_run),
        ("--shard", args.shard.is_some()),
        ("--slurm", args.slurm.is_some()),
    ];
    if let Some(option) = named(&args.source).or_else(|| first(&further)) {
        return Err(Failure::usage(format!("{option} is given with --merge, which trains nothing; leave it out")));
    }
    let mut merged = study::merge(&args.merge)?;
    merged.study = shown(merged.study, args)?;
    let out = args.directory.out.clone().unwrap_or_default();
    fs::create_dir_all(&out).map_err(|error| Failure::writing(&out, &error))?;
    let _lock = DirectoryLock::take(&out)?;
    merged.open(&out)?;
    merged.copy(&out)?;
    let results = Results::of(merged.study, &out, command_line(), environment())?;
    show(common, Some(&out), &results)?;
    failed(results.failed(), results.records.len(), "failed; the report says why")
}

/// The configuration given by these options. A seed is that of the models too, unless these have their own.
fn config(source: &Source) -> Outcome<RunConfig> {
    let mut layers = layers(source)?;
    let own = |assignment: &String| assignment.trim_start().starts_with("compare.seeds");
    if let Some(seed) = source.seed.filter(|_| !source.set.iter().any(own)) {
        layers.set("compare.seeds", &seed.to_string(), "--seed")?;
    }
    layers.resolve()
}

/// Trains the same model with each mechanism.
fn one_task(source: &Source, directory: &Directory, common: &Common) -> Outcome {
    let config = config(source)?;
    let candidates = Candidate::all(&config)?;
    config.task.check()?;
    config.train.check()?;
    // Comparisons of several presets stand beside each other.
    let named = || source.preset.as_ref().map_or("compare".into(), |preset| format!("compare-{preset}"));
    let out = directory.out.clone().unwrap_or_else(|| Path::new("runs").join(named()));
    let stop = signal::stop_flag();
    let cluster = job::join(&stop)?;
    let leads = cluster.rank() == 0;
    let mut lock = None;
    if leads {
        fs::create_dir_all(&out).map_err(|error| Failure::writing(&out, &error))?;
        lock = Some(DirectoryLock::take(&out)?);
        compare::open(&out, directory.existing(), &config)?;
    }
    job::gather(&*cluster)?;
    let environment = environment();
    let cache = cache_directory(directory.cache.as_deref());
    let watch = Console::new(&Common { quiet: common.quiet || !leads, ..common.clone() });
    let work = Job { out: &out, cache: cache.as_deref(), environment: &environment, cluster };
    let trained = compare::train(&config, &candidates, &work, &watch, &stop);
    let (data, results) = trained.map_err(job::told_by_first)?;
    if !leads {
        return Ok(());
    }
    let models = candidates.iter().map(|candidate| {
        (candidate.label.as_str(), candidate.model.attention_dropout, candidate.attentions.encoder.mechanism)
    });
    let differences = compare::dropout_note(models);
    let comparison = Comparison {
        labels: candidates.into_iter().map(|candidate| candidate.label).collect(),
        results,
        task: config.task.name.name().into(),
        setting: data.setting(),
        majority: data.majority(),
        differences,
        command: command_line(),
        config: config.to_toml(),
        environment,
    };
    show(common, Some(&out), &comparison)?;
    drop(lock);
    Ok(())
}
