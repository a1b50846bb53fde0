//! `regard eval`

use std::{path::PathBuf, sync::Arc};

use clap::Args;
use regard_lab::load;
use regard_tasks::{
    data::{Objective, Shape, TaskData, TaskName},
    run::{Run, Which},
    train::{Evaluation, LanguageFigures, Split, evaluate_by_ranks, measure_bleu, measure_rouge},
};

use super::{cache_directory, quality::quality};
use crate::{
    args::{CHECKPOINTS, Common, SPLITS},
    console::Console,
    error::{Failure, Outcome},
    job, output, signal,
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
    /// Task lm: distance between the starts of neighbouring windows; default: as in the configuration of the run.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub stride: Option<usize>,
    /// Cache directory for generated data, or 'none' to generate it each time.
    #[arg(long, env = "REGARD_CACHE", value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

/// Evaluates a trained model.
///
/// # Errors
/// A directory without a run, data that are missing.
pub fn run(args: &Eval, common: &Common) -> Outcome {
    let mut stored = load::stored(&args.run)?;
    let task = &mut stored.config.task;
    if let Some(stride) = args.stride {
        if task.name != TaskName::Lm {
            let (path, name) = (args.run.display(), task.name);
            return Err(Failure::usage(format!(
                "--stride is of the task lm, but {path} was trained on the task {name}; leave it out"
            )));
        }
        (task.lm.stride, task.lm.valid_stride) = (Some(stride), Some(stride));
    }
    // Alone, an interrupt ends it at once.
    let stop = if job::is_shared() { signal::stop_flag() } else { Arc::default() };
    let cluster = job::join(&stop)?;
    let leads = cluster.rank() == 0;
    let common = &Common { quiet: common.quiet || !leads, ..common.clone() };
    let (cache, console) = (cache_directory(args.cache.as_deref()), Console::new(common));
    let Run { config, data, model, step, .. } =
        stored.load(args.checkpoint, |config| load::data(config, cache.as_deref(), &console))?;
    let split = args.split;
    let batch = args.batch.unwrap_or(config.train.batch);
    let mut result = evaluate_by_ranks(&model, &data, split, batch, step, &*cluster)?;
    let bleu = measure_bleu(&model, &data, split, &config.train, batch, &*cluster)?;
    result.bleu = bleu.as_ref().map(|bleu| bleu.score);
    result.rouge = measure_rouge(&model, &data, split, &config.train, batch, &*cluster)?;
    if !leads {
        return Ok(());
    }
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
        Some(quality(&result)).filter(|lines| !lines.is_empty()),
        bleu.map(|bleu| format!("            {bleu}")),
        Some(format!("speed       {:.1} sequences/s", result.sequences_per_second())),
        result.language.as_ref().map(positions),
    ];
    output::line(lines.into_iter().flatten().collect::<Vec<_>>().join("\n"))
}

/// Perplexity by the number of tokens before one in its window.
fn positions(figures: &LanguageFigures) -> String {
    let mut lines = vec![String::new(), "tokens before      scored  perplexity".into()];
    lines.extend(figures.positions.iter().map(|position| {
        format!("{:>6} to {:<6} {:>9}  {:.4}", position.from, position.to, position.tokens, position.perplexity)
    }));
    lines.join("\n")
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
        // But for a stride, windows follow one another without overlap.
        let stride = result.language.as_ref().map_or(max_length, |figures| figures.stride);
        Some(Self { context: max_length, stride, tokens: result.items })
    }
}
