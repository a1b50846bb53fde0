//! Translations of a split by beam search, and how good they are.

use regard_nn::models::{BeamOptions, Translator, beam_search};

use super::{
    Model, Split, TrainConfig, TrainError,
    batches::{pairs, source},
};
use crate::{
    data::{TaskData, TranslationData},
    metrics::Bleu,
};

/// Translations of all sentences of a split, in its order, in batches of `rows` sentences of about one length. The model
/// should be without autodiff.
///
/// # Errors
/// A mechanism that does not decode token by token.
pub fn translations(
    model: &Translator,
    data: &TranslationData,
    split: Split,
    rows: usize,
    options: &BeamOptions,
) -> Result<Vec<String>, TrainError> {
    let pairs = pairs(data, split);
    let mut texts = vec![String::new(); pairs.len()];
    for batch in pairs.evaluation_batches(rows) {
        let found = beam_search(model, &source(&batch), options)?;
        for (&item, ids) in batch.items.iter().zip(found) {
            texts[item] = data.tokenizer.decode(&ids);
        }
    }
    Ok(texts)
}

/// BLEU of a translator on a split, by the beam search that `config` describes; `None` for other models.
///
/// # Errors
/// As [`translations`].
pub fn measure_bleu(
    model: &Model,
    data: &TaskData,
    split: Split,
    config: &TrainConfig,
    rows: usize,
) -> Result<Option<Bleu>, TrainError> {
    let (Model::Translator(model), TaskData::Translation(data)) = (model, data) else { return Ok(None) };
    let options = BeamOptions { beam: config.beam, length_penalty: config.length_penalty, longest: data.max_length };
    let texts = translations(model, data, split, rows, &options)?;
    Ok(Some(Bleu::corpus(&texts, pairs(data, split).references())?))
}
