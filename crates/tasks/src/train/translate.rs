//! Translations by beam search: of a split, and how good they are; of any text, as summaries are too.

use regard_cluster::Communicator;
use regard_metrics::Bleu;
use regard_nn::models::{BeamOptions, Translator, beam_search};

use super::{
    Model, TrainConfig, TrainError,
    parallel::{Reader, Writer, spread},
};
use crate::data::{
    DataError, Objective, SentencePairs, Split, TaskData, TextTokenizer, padded,
    tokenizer::{END, PADDING},
    with_query,
};

/// Translations of all sentences, in their order, in batches of `rows` sentences of about one length, which the ranks of a
/// job take in turn: all have all texts then. The model should be without autodiff.
///
/// # Errors
/// A mechanism that does not decode token by token; a rank that has left the job.
pub fn translations(
    model: &Translator,
    tokenizer: &TextTokenizer,
    pairs: &SentencePairs,
    rows: usize,
    options: &BeamOptions,
    cluster: &dyn Communicator,
) -> Result<Vec<String>, TrainError> {
    let mut own = Vec::new();
    for batch in pairs.evaluation_batches(rows).skip(cluster.rank()).step_by(cluster.ranks()) {
        let found = beam_search(model, &batch.sources(), options)?;
        let mut written = Writer::default();
        written.count(batch.items.len());
        for (&item, ids) in batch.items.iter().zip(found) {
            written.count(item);
            // Nothing is said of nothing, as in `write_from`.
            let text = if pairs.source(item).is_empty() { String::new() } else { tokenizer.decode(&ids) };
            written.bytes(text.as_bytes());
        }
        own.push(written.done());
    }
    let mut texts = vec![String::new(); pairs.len()];
    for batch in spread(cluster, own)? {
        let mut written = Reader::of(&batch);
        for _ in 0..written.count() {
            let item = written.count();
            texts[item] = String::from_utf8_lossy(written.bytes()).into_owned();
        }
    }
    Ok(texts)
}

/// BLEU of a translator on a split, by the beam search that `config` describes; `None` for other models and tasks.
///
/// # Errors
/// As [`translations`].
pub fn measure_bleu(
    model: &Model,
    data: &TaskData,
    split: Split,
    config: &TrainConfig,
    rows: usize,
    cluster: &dyn Communicator,
) -> Result<Option<Bleu>, TrainError> {
    let (Model::Translator(model), Objective::Translate) = (model, data.shape().objective) else { return Ok(None) };
    let (Some(tokenizer), Some(pairs)) = (data.tokenizer(), data.pairs(split)) else { return Ok(None) };
    let options = config.search(data.shape().longest_written());
    let texts = translations(model, tokenizer, pairs, rows, &options, cluster)?;
    Ok(Some(Bleu::corpus(&texts, pairs.references()).map_err(|error| DataError::Value(error.to_string()))?))
}

/// A translation or summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The text.
    pub text: String,
    /// Whether the source was too long for the model and was truncated.
    pub cut: bool,
}

/// Translates `texts`, all in one batch; one without a word becomes the empty text. The model should be without autodiff.
///
/// # Errors
/// Invalid options, a mechanism that does not decode token by token.
pub fn translate(
    model: &Translator,
    tokenizer: &TextTokenizer,
    texts: &[impl AsRef<str> + Sync],
    options: &BeamOptions,
) -> Result<Vec<Translation>, TrainError> {
    write_from(model, tokenizer, tokenizer.encode_all(texts), options)
}

/// Summarises `texts`, all in one batch, as answers to `query` if there is one: only models that were trained on queries
/// know what to do with it. A text without a word has the empty summary. The model should be without autodiff.
///
/// # Errors
/// As [`translate`].
pub fn summarize(
    model: &Translator,
    tokenizer: &TextTokenizer,
    texts: &[impl AsRef<str> + Sync],
    query: Option<&str>,
    options: &BeamOptions,
) -> Result<Vec<Translation>, TrainError> {
    let mut rows = tokenizer.encode_all(texts);
    rows.iter_mut().filter(|ids| !ids.is_empty()).for_each(|ids| *ids = with_query(tokenizer, query, ids));
    write_from(model, tokenizer, rows, options)
}

/// What a model makes of rows of token ids; of one without tokens the empty text.
fn write_from(
    model: &Translator,
    tokenizer: &TextTokenizer,
    mut rows: Vec<Vec<i32>>,
    options: &BeamOptions,
) -> Result<Vec<Translation>, TrainError> {
    // The end token takes a position.
    let most = model.sizes().context - 1;
    let mut all: Vec<Translation> =
        rows.iter().map(|ids| Translation { text: String::new(), cut: ids.len() > most }).collect();
    let filled: Vec<usize> = (0..rows.len()).filter(|&i| !rows[i].is_empty()).collect();
    if filled.is_empty() {
        return Ok(all);
    }
    let lengths: Vec<usize> = filled.iter().map(|&i| rows[i].len().min(most) + 1).collect();
    let longest = lengths.iter().copied().max().unwrap_or(1);
    let mut ids = vec![PADDING; filled.len() * longest];
    for ((row, &i), &length) in ids.chunks_exact_mut(longest).zip(&filled).zip(&lengths) {
        rows[i].truncate(length - 1);
        row[..length - 1].copy_from_slice(&rows[i]);
        row[length - 1] = END;
    }
    let found = beam_search(model, &padded(ids, &lengths, longest), options)?;
    for (&i, ids) in filled.iter().zip(found) {
        all[i].text = tokenizer.decode(&ids);
    }
    Ok(all)
}
