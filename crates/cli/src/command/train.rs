//! `regard train`

use std::path::PathBuf;

use regard_tasks::train::{Model, Outcome as Ended, RunDirectory, Split, Trainer};
use serde_json::json;

use super::{environment, load, print_json, resolve, training_device};
use crate::{
    args::{Common, Directory, Source},
    console::TrainingBar,
    error::{Failure, Outcome},
    signal,
};

/// Trains one model.
///
/// # Errors
/// Those of the configuration, the data and the run.
pub fn run(source: &Source, directory: &Directory, common: &Common) -> Outcome {
    let config = resolve(source)?;
    config.check()?;
    let label = config.attention.label();
    let out = directory.out.clone().unwrap_or_else(|| PathBuf::from("runs").join(format!("{}-{label}", config.task.name)));
    let existing = directory.existing();
    // Opened before the data are read: a directory that cannot be used is known at once.
    let run = RunDirectory::open(&out, existing, config.train.keep, &config.to_toml(), &environment())?;
    let data = load(&config.task, config.seed, directory.cache.as_deref(), common)?;
    let model = Model::build(&config.model, &config.attention, &data, config.seed, &training_device(&config))?;
    let parameters = regard_nn::models::parameter_count(&model);
    if !common.quiet {
        eprintln!("{label} on {}: {parameters} parameters, run in {}", config.task.name, out.display());
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
            let test = trainer.evaluate_best(Split::Test)?;
            let best = trainer.state().best;
            if common.json {
                print_json(&json!({
                    "run": out, "mechanism": label, "task": config.task.name.name(), "steps": step,
                    "parameters": parameters, "best": best, "test": test,
                    "train_seconds": trainer.state().seconds,
                }));
                return Ok(());
            }
            println!("run         {}", out.display());
            println!("steps       {step} in {:.0} s", trainer.state().seconds);
            println!("best step   {}", test.step);
            println!("test loss   {:.4}", test.loss);
            if let Some(accuracy) = test.accuracy {
                println!("accuracy    {:.2} %", 100.0 * accuracy);
            }
            if let Some(perplexity) = test.perplexity {
                println!("perplexity  {perplexity:.4}");
            }
            Ok(())
        }
    }
}
