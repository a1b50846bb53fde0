//! Experts of a mixture of attention heads: their load, and the tokens that each prefers.

mod report;
mod tally;

use std::{collections::BTreeMap, sync::Arc};

use regard_nn::{
    blocks::{Context, Place, RouterLog, RouterRecord, Stack},
    models::TokenBatch,
};
use regard_tasks::{
    data::{DataError, TaskData},
    train::{Batch, Model, Split, split_batches},
};

use super::place_name;
pub use report::{Experts, Router};
pub use tally::{Load, Preference, Tally};

/// Sequences per batch.
const ROWS: usize = 32;

/// What to inspect.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The split.
    pub split: Split,
    /// Batches of 32 sequences, spread over the split; 0 for all of it.
    pub batches: usize,
    /// Preferred tokens per expert.
    pub tokens: usize,
    /// Minimum occurrences of a listed token.
    pub least: u64,
}

/// The routers of `model` on its data, bottom to top; none if it has no mixture of attention heads.
///
/// # Errors
/// A split that cannot be cut into batches.
pub fn routers(model: &Model, data: &TaskData, wanted: &Wanted) -> Result<Vec<Router>, DataError> {
    let mut tallies: BTreeMap<(Stack, usize, Place), Tally> = BTreeMap::new();
    for batch in split_batches(data, wanted.split, ROWS, wanted.batches)? {
        let log = Arc::new(RouterLog::with_choices());
        let context = Context::evaluation().with_router_log(log.clone());
        match model {
            // Those of titles, which have tokens.
            Model::Recommender(model) => drop(model.news(&batch.tokens, &context)),
            _ => drop(model.predictions(&batch, &context)),
        }
        for record in log.take() {
            let Some(chosen) = &record.chosen else { continue };
            let tokens = real_tokens(queries(&batch, &record));
            let active = chosen.len() / tokens.len();
            let place = (record.stack, record.layer, record.place);
            let tally = tallies.entry(place).or_insert_with(|| Tally::new(record.load.len(), active));
            tally.add(chosen, &tokens, [record.entropy, record.balance, record.z]);
        }
    }
    let two_stacks = matches!(model, Model::Translator(_));
    let router = |((stack, layer, place), tally): (&(Stack, usize, Place), &Tally)| {
        let (name, place) = place_name(*stack, *layer, *place, two_stacks);
        let preferences = tally.preferences(wanted.tokens, wanted.least);
        Router { name, place, load: tally.load(), preferences, information: tally.information() }
    };
    Ok(tallies.iter().map(router).collect())
}

/// Tokens of the data as text, by id.
pub fn token_texts(data: &TaskData) -> Vec<String> {
    let text = |id: usize| match (data.units(), data.tokenizer(), data.characters()) {
        (Some(units), ..) => match u32::try_from(id as i32 - data.first_id()) {
            Err(_) => "padding".into(),
            // Above the vocabulary stands what separates the texts of a pair.
            Ok(own) if own as usize >= units.vocabulary() => "separator".into(),
            Ok(own) => units.piece(own),
        },
        (_, Some(tokenizer), _) => tokenizer.piece(id as i32),
        (.., Some(characters)) => format!("{:?}", characters.decode(&[id as u16]).unwrap_or_default()),
        _ => id.to_string(),
    };
    (0..data.shape().vocabulary).map(text).collect()
}

/// The tokens that a router routed: the source tokens in an encoder.
fn queries<'a>(batch: &'a Batch, record: &RouterRecord) -> &'a TokenBatch {
    match (record.stack, &batch.source) {
        (Stack::Encoder, Some(source)) => source,
        _ => &batch.tokens,
    }
}

/// Token ids of all positions, none for padding.
fn real_tokens(tokens: &TokenBatch) -> Vec<Option<i32>> {
    let real = |at: usize| {
        let padding = tokens.padding.as_ref();
        padding.is_none_or(|padding| padding.as_slice()[at] != 0)
    };
    tokens.ids.iter().enumerate().map(|(at, id)| real(at).then_some(*id)).collect()
}

#[cfg(test)]
mod tests {
    use regard_tasks::data::{TaskConfig, TaskName};

    use super::*;

    #[test]
    fn texts_are_of_their_tokens() {
        let news = TaskConfig { name: TaskName::News, ..TaskConfig::default() };
        let data = news.load(1, None, &|_, _| {}).unwrap();
        let texts = token_texts(&data);
        assert_eq!(texts.len(), data.shape().vocabulary);
        assert_eq!((texts[0].as_str(), &texts[1]), ("padding", &data.units().unwrap().piece(0)));
    }
}
