//! The cost of ranking news for readers: two encoders, of titles and of what was read.

use regard_nn::models::{ModelConfig, Pooling, Recommender};

use super::{
    AttentionSizes, CostError, Count, Head, ModelSizes, Run,
    mechanism::attention_cost,
    model::{FLOAT, Part, parts},
};

/// Pooling of the titles of one reader: the histories and what is offered. `titles` is their number.
pub(super) fn pooling(model: &ModelConfig, run: Run, titles: Count) -> Part {
    let (width, scores) = (model.width as Count, Count::from(model.pooling == Pooling::Attention));
    let (batch, length) = (titles * run.batch as Count, run.length as Count);
    Part {
        name: "pooling".into(),
        parameters: scores * width,
        multiply_adds: titles * (1 + scores) * length * width,
        activation_bytes: (batch * width + batch * length * (width + scores)) * FLOAT,
        state_bytes: 0,
    }
}

/// The encoder of histories of `history` titles, as [`Recommender`] has it, and the scores of `candidates`.
pub(super) fn encoder(sizes: &ModelSizes, run: Run, history: usize, candidates: usize) -> Result<Vec<Part>, CostError> {
    let (model, options) = Recommender::of_users(&sizes.model, &sizes.attention.options);
    let attention = AttentionSizes { options, ..sizes.attention.clone() };
    // One sequence, one vector.
    let head = Head::Readers { history: 1, candidates: 0 };
    let own = ModelSizes { model, context: history, head, attention, ..sizes.clone() };
    let run = Run { length: history, decoded: 0, ..run };
    let cost = attention_cost(&own.attention, own.model.width, own.context, run)?;
    let all = parts(&own, &[("", cost)], run);
    // What it reads are vectors.
    let own_parts = all.into_iter().filter(|part| !part.name.ends_with("embedding"));
    let width = own.model.width as Count;
    let offered = candidates as Count * width;
    let scores = Part {
        name: "scores".into(),
        parameters: 0,
        multiply_adds: offered,
        activation_bytes: run.batch as Count * (offered + width) * FLOAT,
        state_bytes: 0,
    };
    let named = own_parts.map(|part| Part { name: format!("histories: {}", part.name), state_bytes: 0, ..part });
    Ok(named.chain([scores]).collect())
}
