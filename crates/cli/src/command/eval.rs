//! `regard eval`

use regard_tasks::metrics::BLEU_SIGNATURE;
use regard_tasks::train::{Split, evaluate, measure_bleu};

use super::{Trained, print_json, trained};
use crate::{
    args::{Common, Eval},
    error::{Failure, Outcome},
};

/// Measures a trained model.
///
/// # Errors
/// A directory without a run, data that are missing.
pub fn run(args: &Eval, common: &Common) -> Outcome {
    let Trained { config, data, model, step } = trained(&args.run, args.checkpoint, args.cache.as_deref(), common)?;
    let split = Split::from(args.split);
    let batch = args.batch.unwrap_or(config.train.batch);
    if batch == 0 {
        return Err(Failure::usage("--batch is 0, expected at least 1"));
    }
    let mut result = evaluate(&model, &data, split, batch, 0, step)?;
    let bleu = measure_bleu(&model, &data, split, &config.train, batch)?;
    result.bleu = bleu.as_ref().map(|bleu| bleu.score);
    if common.json {
        print_json(&serde_json::to_value(&result).expect("plain numbers"));
        return Ok(());
    }
    println!("split       {} ({} sequences)", split.name(), result.sequences);
    println!("step        {step}");
    println!("loss        {:.4}", result.loss);
    if let Some(accuracy) = result.accuracy {
        println!("accuracy    {:.2} %", 100.0 * accuracy);
    }
    if let Some(perplexity) = result.perplexity {
        println!("perplexity  {perplexity:.4}");
    }
    if let Some(bleu) = bleu {
        println!("{bleu}, {BLEU_SIGNATURE}");
    }
    println!("speed       {:.1} sequences/s", result.sequences_per_second());
    Ok(())
}
