//! Summaries of a split by beam search, and how good they are.

use std::fmt;

use regard_cluster::Communicator;
use regard_metrics::Rouge;
use serde::{Deserialize, Serialize};

use super::{Model, TrainConfig, TrainError, translations};
use crate::data::{Split, TaskData};

/// F1 of ROUGE as the package `rouge-score` computes it without stemming, 0 to 100: the mean over documents, of each with the
/// reference that has the best ROUGE-1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RougeScores {
    /// Of single words.
    pub rouge_1: f64,
    /// Of pairs of words.
    pub rouge_2: f64,
    /// Of the longest common subsequence.
    pub rouge_l: f64,
}

/// Summaries beside what takes no model: the first sentences of the documents.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SummaryScores {
    /// Of the summaries of a model.
    pub model: RougeScores,
    /// Of the first sentences.
    pub lead: RougeScores,
    /// Number of those sentences.
    pub lead_sentences: usize,
}

impl RougeScores {
    /// Of texts with the references of each; `None` of no text.
    fn of<'a>(texts: impl IntoIterator<Item = (&'a String, &'a Vec<String>)>) -> Option<Self> {
        let best =
            |(text, references): (&String, &Vec<String>)| Rouge::best(text, references.iter().map(String::as_str));
        let mean = Rouge::average(texts.into_iter().filter_map(best))?;
        Some(Self { rouge_1: 100.0 * mean.one.f1, rouge_2: 100.0 * mean.two.f1, rouge_l: 100.0 * mean.l.f1 })
    }
}

/// ROUGE-1, -2 and -L.
impl fmt::Display for RougeScores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} / {:.2} / {:.2}", self.rouge_1, self.rouge_2, self.rouge_l)
    }
}

/// ROUGE of a model's summaries of a split, by the beam search that `config` describes, in batches of `rows`; `None` for other
/// models and tasks.
///
/// # Errors
/// As [`translations`].
pub fn measure_rouge(
    model: &Model,
    data: &TaskData,
    split: Split,
    config: &TrainConfig,
    rows: usize,
    cluster: &dyn Communicator,
) -> Result<Option<SummaryScores>, TrainError> {
    let (Model::Translator(model), Some(references)) = (model, data.summaries(split)) else { return Ok(None) };
    let (Some(tokenizer), Some(pairs)) = (data.tokenizer(), data.pairs(split)) else { return Ok(None) };
    let options = config.search(data.shape().longest_written());
    let texts = translations(model, tokenizer, pairs, rows, &options, cluster)?;
    let scores = |texts: &[String]| RougeScores::of(texts.iter().zip(&references.summaries));
    let (Some(model), Some(lead)) = (scores(&texts), scores(&references.leads)) else { return Ok(None) };
    Ok(Some(SummaryScores { model, lead, lead_sentences: references.sentences }))
}
