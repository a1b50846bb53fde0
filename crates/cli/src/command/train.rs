//! `regard train`

use std::path::{Path, PathBuf};

use regard_cluster::Communicator;
use regard_lab::{cost::check_training, load, run_report::RunReport};
use regard_tasks::{
    run::{Layers, RunConfig, Stored, Which},
    train::{
        CHECKPOINTS, CONFIG, Environment, Evaluation, Existing, METRICS, Outcome as Ended, Record, RunDirectory,
        RunState, Split, Trainer,
    },
};
use serde_json::json;

use super::{above, cache_directory, command_line, environment, quality::quality, resolve};
use crate::{
    args::{Common, Directory, Source},
    console::{self, Console, TrainingBar},
    error::{Failure, Outcome},
    job, output, signal,
};

/// Trains one model.
///
/// # Errors
/// Errors of the configuration, the data and the run.
pub fn run(source: &Source, directory: &Directory, common: &Common) -> Outcome {
    let config = configured(source, directory)?;
    config.check()?;
    let label = config.label();
    let out =
        directory.out.clone().unwrap_or_else(|| PathBuf::from("runs").join(format!("{}-{label}", config.task.name)));
    let existing = directory.existing();
    let stop = signal::stop_flag();
    let cluster = job::join(&stop)?;
    let leads = cluster.rank() == 0;
    config.check_ranks(cluster.ranks())?;
    check_training(&config, cluster.ranks())?;
    if existing == Existing::Resume && leads {
        check_resumed(&out, &config)?;
    }
    let quiet = common.quiet || !leads;
    let cache = cache_directory(directory.cache.as_deref());
    let data = in_turn(&*cluster, || {
        load::data(&config, cache.as_deref(), &Console::new(&Common { quiet, ..common.clone() }))
    })?;
    let environment = Environment { ranks: Some(cluster.ranks()).filter(|ranks| *ranks > 1), ..environment() };
    let model = config.trainable(&data)?;
    let parameters = regard_nn::models::parameter_count(&model);
    let bar = TrainingBar::new(&label, config.train.steps, quiet);
    let (ranks, sequence) = (cluster.ranks(), config.parallel.sequence);
    let trainer = Trainer::new(model, &data, &config.train, config.seed)?
        .with_progress(&bar)
        .with_stop(stop)
        .with_sequences_over(sequence, cluster)?;
    // Opened last: a run that cannot start must not remove the one before it, which it may start from.
    let open = || RunDirectory::open(&out, existing, config.train.keep, &config.to_toml(), &environment);
    let run = leads.then(open).transpose()?;
    if !quiet {
        let words = format!("{label} on {}: {parameters} parameters, run in {}", config.task.name, out.display());
        console::line(words);
        if ranks > 1 {
            console::line(shared(&config, ranks));
        }
    }
    let mut trainer = match run {
        Some(run) => trainer.with_directory(run)?,
        None => trainer.following()?,
    };
    let ended = trainer.run();
    bar.finish();
    match ended? {
        // Rank 0 tells it.
        Ended::Interrupted { .. } if !leads => return Err(Failure::interrupted("")),
        Ended::Interrupted { step } => {
            return Err(Failure::interrupted(format!(
                "stopped after step {step}; the checkpoint is in {}; continue with --resume",
                out.display()
            )));
        }
        Ended::Finished { .. } | Ended::Stopped { .. } => {}
    }
    if data.summaries(Split::Valid).is_some() {
        trainer.evaluate_best(Split::Valid)?;
    }
    let test = trainer.evaluate_best(Split::Test)?;
    if !leads {
        return Ok(());
    }
    told(&Told { config: &config, out: &out, environment: &environment, parameters }, trainer.state(), &test, common)
}

/// A run that has ended.
struct Told<'a> {
    config: &'a RunConfig,
    out: &'a Path,
    environment: &'a Environment,
    parameters: usize,
}

/// Writes the report of a run and prints what came of it.
fn told(run: &Told, state: &RunState, test: &Evaluation, common: &Common) -> Outcome {
    let &Told { config, out, environment, parameters } = run;
    let label = config.label();
    let records = Record::read(&out.join(METRICS))?;
    let report = RunReport {
        title: &format!("{label} on {}", config.task.name),
        command: &command_line(),
        config: &config.to_toml(),
        environment,
        parameters,
        records: &records,
    };
    let written = report.write(out).map_err(|error| Failure::written(&error))?;
    if common.json {
        return output::json(&json!({
            "run": out.to_string_lossy(), "mechanism": label, "task": config.task.name.name(), "steps": state.step,
            "parameters": parameters, "best": state.best, "test": test, "train_seconds": state.seconds,
        }));
    }
    output::line(format_args!(
        "run         {}\nreport      {}\nsteps       {} in {:.0} s\nbest step   {}\ntest loss   {:.4}\n{}",
        out.display(),
        written.page.display(),
        state.step,
        state.seconds,
        test.step,
        test.loss,
        quality(test)
    ))
}

/// The configuration of the run: as given, or that of the run to resume where neither a preset nor a file is.
fn configured(source: &Source, directory: &Directory) -> Outcome<RunConfig> {
    let own = directory.out.as_ref().map(|out| out.join(CONFIG)).filter(|path| directory.resume && path.is_file());
    match own {
        Some(path) if source.preset.is_none() && source.config.is_none() => {
            above(Layers::over(RunConfig::read(&path)?), source)?.resolve()
        }
        _ => resolve(source),
    }
}

/// What a person is told of a run by several ranks.
fn shared(config: &RunConfig, ranks: usize) -> String {
    let parts = match config.train.parts {
        0 => "the last digits depend on that number, as train.parts is 0".to_owned(),
        parts => format!("each batch in {parts} parts, the same bits on any number of ranks"),
    };
    match config.parallel.sequence {
        1 => format!("{ranks} ranks share each update; {parts}"),
        each => format!("{ranks} ranks share each update, {each} of them the tokens of a sequence"),
    }
}

/// On rank 0 first, so that the others find what it keeps for them.
fn in_turn<T>(cluster: &dyn Communicator, work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    if cluster.rank() == 0 {
        let done = work()?;
        job::gather(cluster)?;
        return Ok(done);
    }
    job::gather(cluster)?;
    work()
}

/// Refuses to resume a run with another configuration, before anything is overwritten.
fn check_resumed(out: &Path, config: &RunConfig) -> Outcome {
    let path = out.join(CONFIG);
    if !path.is_file() {
        if out.join(CHECKPOINTS).exists() {
            return Err(Failure::data(format!(
                "{} holds checkpoints but no {CONFIG}, so that nothing says of what model; put the file back, or choose \
                 another --out",
                out.display()
            )));
        }
        // Opening the directory will report what is missing.
        return Ok(());
    }
    let stored = Stored::open(out)?;
    match config.other_run(&stored.config) {
        // A run without a checkpoint begins anew.
        None => match stored.checkpoint(Which::Last).map(|(_, last)| last.state.step) {
            Ok(done) if done > config.train.steps => Err(Failure::usage(format!(
                "train.steps is {}, but the run in {} has done {done} updates; expected at least as many",
                config.train.steps,
                out.display()
            ))),
            _ => Ok(()),
        },
        Some((key, own, before)) => Err(Failure::usage(format!(
            "{key} is {own}, but the run in {} has {before}; resume with the same value, or choose another --out",
            out.display()
        ))),
    }
}
