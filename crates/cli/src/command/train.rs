//! `regard train`

use std::path::{Path, PathBuf};

use regard_lab::{cost::check_training, load, run_report::RunReport};
use regard_metrics::BLEU_SIGNATURE;
use regard_tasks::{
    run::RunConfig,
    train::{CONFIG, Existing, METRICS, Outcome as Ended, Record, RunDirectory, Split, Trainer},
};
use serde_json::json;

use super::{cache_directory, command_line, environment, resolve};
use crate::{
    args::{Common, Directory, Source},
    console::{self, Console, TrainingBar},
    error::{Failure, Outcome},
    output, signal,
};

/// Trains one model.
///
/// # Errors
/// Errors of the configuration, the data and the run.
pub fn run(source: &Source, directory: &Directory, common: &Common) -> Outcome {
    let config = resolve(source)?;
    config.check()?;
    check_training(&config)?;
    let label = config.label();
    let out =
        directory.out.clone().unwrap_or_else(|| PathBuf::from("runs").join(format!("{}-{label}", config.task.name)));
    let existing = directory.existing();
    if existing == Existing::Resume {
        check_resumed(&out, &config)?;
    }
    // Opened after the data are read: a run that cannot start must not remove the one before it.
    let data = load::data(&config, cache_directory(directory.cache.as_deref()).as_deref(), &Console::new(common))?;
    let run = RunDirectory::open(&out, existing, config.train.keep, &config.to_toml(), &environment())?;
    let model = config.trainable(&data)?;
    let parameters = regard_nn::models::parameter_count(&model);
    if !common.quiet {
        let words = format!("{label} on {}: {parameters} parameters, run in {}", config.task.name, out.display());
        console::line(words);
    }
    let bar = TrainingBar::new(&label, config.train.steps, common.quiet);
    let mut trainer = Trainer::new(model, &data, &config.train, config.seed)?
        .with_progress(&bar)
        .with_stop(signal::stop_flag())
        .with_directory(run)?;
    let ended = trainer.run();
    bar.finish();
    match ended? {
        Ended::Interrupted { step } => Err(Failure::interrupted(format!(
            "stopped after step {step}; the checkpoint is in {}; continue with --resume",
            out.display()
        ))),
        Ended::Finished { step } | Ended::Stopped { step } => {
            if data.summaries(Split::Valid).is_some() {
                trainer.evaluate_best(Split::Valid)?;
            }
            let test = trainer.evaluate_best(Split::Test)?;
            let best = trainer.state().best;
            let records = Record::read(&out.join(METRICS))?;
            let title = format!("{label} on {}", config.task.name);
            let report = RunReport {
                title: &title,
                command: &command_line(),
                config: &config.to_toml(),
                environment: &environment(),
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
