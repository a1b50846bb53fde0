//! `regard train`

use std::path::{Path, PathBuf};

use regard_cluster::Communicator;
use regard_lab::{cost::check_training, load, run_report::RunReport};
use regard_metrics::BLEU_SIGNATURE;
use regard_tasks::{
    run::{Layers, RunConfig},
    train::{CONFIG, Environment, Existing, METRICS, Outcome as Ended, Record, RunDirectory, Split, Trainer},
};
use serde_json::json;

use super::{above, cache_directory, command_line, environment, resolve};
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
    check_training(&config)?;
    let label = config.label();
    let out =
        directory.out.clone().unwrap_or_else(|| PathBuf::from("runs").join(format!("{}-{label}", config.task.name)));
    let existing = directory.existing();
    let stop = signal::stop_flag();
    let cluster = job::join(&stop)?;
    let leads = cluster.rank() == 0;
    config.check_ranks(cluster.ranks())?;
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
        Ended::Interrupted { .. } if !leads => Err(Failure::interrupted("")),
        Ended::Interrupted { step } => Err(Failure::interrupted(format!(
            "stopped after step {step}; the checkpoint is in {}; continue with --resume",
            out.display()
        ))),
        Ended::Finished { step } | Ended::Stopped { step } => {
            if data.summaries(Split::Valid).is_some() {
                trainer.evaluate_best(Split::Valid)?;
            }
            let test = trainer.evaluate_best(Split::Test)?;
            if !leads {
                return Ok(());
            }
            let best = trainer.state().best;
            let records = Record::read(&out.join(METRICS))?;
            let title = format!("{label} on {}", config.task.name);
            let report = RunReport {
                title: &title,
                command: &command_line(),
                config: &config.to_toml(),
                environment: &environment,
                parameters,
                records: &records,
            };
            let written = report.write(&out).map_err(|error| Failure::written(&error))?;
            if common.json {
                return output::json(&json!({
                    "run": out.to_string_lossy(), "mechanism": label, "task": config.task.name.name(), "steps": step,
                    "parameters": parameters, "best": best, "test": test,
                    "train_seconds": trainer.state().seconds,
                }));
            }
            let quality = [
                test.accuracy.map(|accuracy| format!("accuracy    {:.2} %\n", 100.0 * accuracy)),
                test.values.map(|scores| super::eval::correlations(&scores) + "\n"),
                test.perplexity.map(|perplexity| format!("perplexity  {perplexity:.4}\n")),
                test.language.as_ref().and_then(super::eval::spelled).map(|lines| lines + "\n"),
                test.ranking.as_ref().map(|ranking| super::eval::ranked(ranking) + "\n"),
                test.bleu.map(|bleu| format!("BLEU        {bleu:.2} ({BLEU_SIGNATURE})\n")),
                test.rouge.map(|scores| super::eval::rouge(&scores) + "\n"),
            ];
            output::text(format_args!(
                "run         {}\nreport      {}\nsteps       {step} in {:.0} s\nbest step   {}\ntest loss   {:.4}\n{}",
                out.display(),
                written.page.display(),
                trainer.state().seconds,
                test.step,
                test.loss,
                quality.into_iter().flatten().collect::<String>()
            ))
        }
    }
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
        // Opening the directory will report what is missing.
        return Ok(());
    }
    match config.other_run(&RunConfig::read(&path)?) {
        None => Ok(()),
        Some((key, own, before)) => Err(Failure::usage(format!(
            "{key} is {own}, but the run in {} has {before}; resume with the same value, or choose another --out",
            out.display()
        ))),
    }
}
