//! `regard eval`

use regard_tasks::{
    data::TaskData,
    metrics::BLEU_SIGNATURE,
    train::{Evaluation, Split, evaluate, measure_bleu},
};

use super::{Trained, trained};
use crate::{
    args::{Common, Eval},
    error::Outcome,
    output,
};

/// Measures a trained model.
///
/// # Errors
/// A directory without a run, data that are missing.
pub fn run(args: &Eval, common: &Common) -> Outcome {
    let Trained { config, data, model, step } = trained(&args.run, args.checkpoint, args.cache.as_deref(), common)?;
    let split = Split::from(args.split);
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

/// What the perplexity of a language model was taken over: it means nothing without.
#[derive(Clone, Copy)]
struct Scored {
    /// Tokens that a window predicts, from nothing before it.
    context: usize,
    /// From the start of a window to that of the next.
    stride: usize,
    /// Predicted tokens.
    tokens: usize,
}

impl Scored {
    fn of(data: &TaskData, result: &Evaluation) -> Option<Self> {
        let TaskData::Language(data) = data else { return None };
        // Windows follow one another without overlap.
        Some(Self { context: data.context, stride: data.context, tokens: result.items })
    }
}
