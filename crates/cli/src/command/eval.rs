//! `regard eval`

use std::path::PathBuf;

use clap::Args;
use regard_metrics::BLEU_SIGNATURE;
use regard_tasks::{
    data::{Objective, Shape, TaskData},
    run::{Run, Which},
    train::{Evaluation, Split, evaluate, measure_bleu},
};

use super::trained;
use crate::{
    args::{CHECKPOINTS, Common, SPLITS},
    error::Outcome,
    output,
    values::{choice, size},
};

#[derive(Debug, Args)]
pub struct Eval {
    /// Run directory.
    pub run: PathBuf,
    /// Split of the data.
    #[arg(long, value_parser = choice(&SPLITS), default_value = "test")]
    pub split: Split,
    /// Checkpoint of the run.
    #[arg(long, value_parser = choice(&CHECKPOINTS), default_value = "best")]
    pub checkpoint: Which,
    /// Sequences per batch; default: as in training.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub batch: Option<usize>,
    /// Cache directory for generated data, or 'none' to generate it each time.
    #[arg(long, env = "REGARD_CACHE", value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

/// Evaluates a trained model.
///
/// # Errors
/// A directory without a run, data that are missing.
pub fn run(args: &Eval, common: &Common) -> Outcome {
    let Run { config, data, model, step, .. } = trained(&args.run, args.checkpoint, args.cache.as_deref(), common)?;
    let split = args.split;
    let batch = args.batch.unwrap_or(config.train.batch);
    let mut result = evaluate(&model, &data, split, batch, 0, step)?;
    let bleu = measure_bleu(&model, &data, split, &config.train, batch)?;
    result.bleu = bleu.as_ref().map(|bleu| bleu.score);
    let scored = Scored::of(&data, &result);
    if common.json {
        let mut json = serde_json::to_value(&result).expect("plain numbers");
        if let (Some(scored), Some(json)) = (scored, json.as_object_mut()) {
            json.insert("context".into(), scored.context.into());
            json.insert("stride".into(), scored.stride.into());
            json.insert("scored_tokens".into(), scored.tokens.into());
        }
        return output::json(&json);
    }
    let lines = [
        Some(format!("split       {} ({} sequences)", split.name(), result.sequences)),
        scored.map(|Scored { context, stride, .. }| format!("context     {context} tokens, stride {stride}")),
        scored.map(|Scored { tokens, .. }| format!("scored      {tokens} tokens")),
        Some(format!("step        {step}")),
        Some(format!("loss        {:.4}", result.loss)),
        result.accuracy.map(|accuracy| format!("accuracy    {:.2} %", 100.0 * accuracy)),
        result.perplexity.map(|perplexity| format!("perplexity  {perplexity:.4}")),
        bleu.map(|bleu| format!("{bleu}, {BLEU_SIGNATURE}")),
        Some(format!("speed       {:.1} sequences/s", result.sequences_per_second())),
    ];
    output::line(lines.into_iter().flatten().collect::<Vec<_>>().join("\n"))
}

/// How the perplexity of a language model was computed; it is meaningless without this.
#[derive(Clone, Copy)]
struct Scored {
    /// Tokens predicted per window, without context before the window.
    context: usize,
    /// Distance between the starts of neighbouring windows.
    stride: usize,
    /// Predicted tokens.
    tokens: usize,
}

impl Scored {
    fn of(data: &TaskData, result: &Evaluation) -> Option<Self> {
        let Shape { objective: Objective::NextToken { certain: false }, max_length, .. } = data.shape() else {
            return None;
        };
        // Windows follow one another without overlap.
        Some(Self { context: max_length, stride: max_length, tokens: result.items })
    }
}
