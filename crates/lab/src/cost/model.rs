//! The cost of a whole model, part by part: parameters, multiply-adds, activations of a training step, decode state.
//! Counts follow the layers as built, so parameter counts are exact to the last bias.

use regard_kernels::mechanism::Position;
use regard_nn::models::{HELD_LOGITS, NormKind, NormPlace, Pooling};
use regard_report::{Cell, Column, Format, Table};
use serde::Serialize;

use super::{
    CostError, Count, Head, ModelSizes, Run,
    mechanism::{AttentionCost, attention_cost},
    readers,
};

/// Cost of one part of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Name of the part.
    pub name: String,
    /// Number of parameters.
    pub parameters: Count,
    /// Multiply-adds of the forward pass over one sequence of [`Run::length`], one pair of them, or all that one reader has read
    /// or is offered. Training takes about three times as many.
    pub multiply_adds: Count,
    /// Bytes that a training step on the whole batch keeps for its backward pass, f32, dropout masks not counted.
    pub activation_bytes: Count,
    /// Bytes of decode state of one sequence after [`Run::decoded`] tokens, f32.
    pub state_bytes: Count,
}

/// The cost of a model, by part.
///
/// ```
/// use regard_kernels::AttentionOptions;
/// use regard_lab::cost::{ModelCost, ModelSizes, Run};
/// use regard_nn::models::ModelConfig;
/// use regard_tasks::data::{Objective, Shape};
///
/// let shape = Shape { objective: Objective::Classify { classes: 10 }, vocabulary: 256, max_length: 1024 };
/// let sizes = ModelSizes::new(&ModelConfig::default(), &(&AttentionOptions::default()).into(), shape);
/// let cost = ModelCost::of(&sizes, Run { batch: 32, length: 1024, decoded: 0 })?;
/// assert!(cost.total().parameters > 100_000);
/// let text = cost.table("Cost").to_text(); // one row per part
/// # assert!(text.contains("total"));
/// # Ok::<(), regard_lab::cost::CostError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelCost {
    /// The sizes of the step.
    pub run: Run,
    /// Sequences of an item of a batch: two for a pair, those of a reader, else one.
    #[serde(skip)]
    pub sequences: Count,
    /// Its parts, bottom to top; layers are summed.
    pub parts: Vec<Part>,
}

impl ModelCost {
    /// Counts a model.
    ///
    /// # Errors
    /// Invalid sizes.
    pub fn of(sizes: &ModelSizes, run: Run) -> Result<Self, CostError> {
        sizes.check()?;
        run.check()?;
        let cost = |attention, run| attention_cost(attention, sizes.model.width, sizes.context, run);
        let attentions = match &sizes.decoder {
            None => vec![("", cost(&sizes.attention, run)?)],
            Some(decoder) => {
                // Only the decoder goes token by token; its attention to the encoder holds the whole source.
                let encoder = AttentionCost { state_floats: 0, ..cost(&sizes.attention, run)? };
                let cross = cost(&decoder.cross, Run { decoded: run.length, ..run })?;
                vec![("encoder ", encoder), ("decoder ", cost(&decoder.attention, run)?), ("cross ", cross)]
            }
        };
        let mut parts = parts(sizes, &attentions, run);
        if let Head::Readers { history, candidates } = sizes.head {
            parts.extend(readers::encoder(sizes, run, history, candidates)?);
        }
        Ok(Self { run, sequences: sizes.head.sequences(), parts })
    }

    /// The sum over all parts, named `total`.
    pub fn total(&self) -> Part {
        self.parts.iter().fold(Part { name: "total".into(), ..Part::default() }, |sum, part| Part {
            name: sum.name,
            parameters: sum.parameters + part.parameters,
            multiply_adds: sum.multiply_adds + part.multiply_adds,
            activation_bytes: sum.activation_bytes + part.activation_bytes,
            state_bytes: sum.state_bytes + part.state_bytes,
        })
    }

    /// One row per part and one for the total.
    pub fn table(&self, title: impl Into<String>) -> Table {
        let columns = vec![
            Column::text("part"),
            Column::number("parameters", Format::Plain),
            Column::number("multiply-adds", Format::Count),
            Column::number("activations", Format::Bytes),
            Column::number("decode state", Format::Bytes),
        ];
        let Run { batch, length, decoded } = self.run;
        let rows = self.sequences * batch as Count;
        let item = match self.sequences {
            1 => "one sequence".into(),
            2 => "one pair of sequences".into(),
            more => format!("{more} sequences of one reader, each"),
        };
        let mut table = Table::new(title, columns).note(format!(
            "Multiply-adds: forward, {item} of {length} tokens. Activations: kept for the backward pass of a step \
             on {rows} x {length} tokens in f32, dropout masks apart. Decode state: one sequence of {decoded} tokens."
        ));
        for part in self.parts.iter().chain([&self.total()]) {
            let counts = [part.parameters, part.multiply_adds, part.activation_bytes, part.state_bytes];
            table.push([Cell::from(part.name.as_str())].into_iter().chain(counts.map(Cell::from)).collect());
        }
        table
    }
}

pub(super) const FLOAT: Count = size_of::<f32>() as Count;

pub(super) fn parts(sizes: &ModelSizes, attentions: &[(&str, AttentionCost)], run: Run) -> Vec<Part> {
    let count = |size: usize| size as Count;
    let model = &sizes.model;
    let (width, embedded) = (count(model.width), count(model.embedding_width()));
    let (layers, vocabulary) = (count(model.layers), count(sizes.vocabulary));
    let length = count(run.length);
    // A pair is two sequences through one model.
    let sequences = sizes.head.sequences();
    let batch = sequences * count(run.batch);
    let tokens = batch * length;
    let part = |name: &str, parameters, multiply_adds, floats: Count, state: Count| Part {
        name: name.into(),
        parameters,
        multiply_adds,
        activation_bytes: floats * FLOAT,
        state_bytes: state * FLOAT,
    };
    let translates = sizes.decoder.is_some();
    let stacks = 1 + Count::from(translates);
    // With recomputed blocks, only one at a time is fully in memory.
    let kept = if model.checkpointing { layers.min(1) } else { layers };
    // Blocks with separate parameters, in the encoder and the decoder.
    let own = if model.shared_blocks { layers.min(1) } else { layers };
    let own_in_decoder = Count::from(translates) * layers;

    let mut parts = vec![part("token embedding", vocabulary * embedded, 0, 0, 0)];
    let learned = sizes.attention.options.position == Position::Learned;
    let positions = stacks * Count::from(learned) * count(sizes.context) * embedded;
    parts.push(part("position embedding", positions, 0, 0, 0));
    if model.token_types > 0 {
        parts.push(part("token types", stacks * count(model.token_types) * embedded, 0, 0, 0));
    }
    if model.embedding_width.is_some() {
        let operations = stacks * length * embedded * width;
        parts.push(part(
            "embedding projection",
            stacks * (embedded + 1) * width,
            operations,
            stacks * tokens * embedded,
            0,
        ));
    }

    for (at, (place, attention)) in attentions.iter().enumerate() {
        let own = match (attention.shared_between_layers, at) {
            (true, _) => layers.min(1),
            (false, 0) => own,
            (false, _) => layers,
        };
        parts.push(part(
            &format!("{place}attention projections"),
            own * attention.projection_parameters,
            layers * attention.projection_operations,
            kept * tokens * width,
            0,
        ));
        parts.push(part(
            &format!("{place}attention core"),
            own * attention.core_parameters,
            layers * attention.core_operations,
            kept * batch * attention.kept_floats,
            layers * attention.state_floats,
        ));
    }

    // Weight and bias, or only a weight; kept are the input and as many statistics per token.
    let of_norm = if model.norm_kind == NormKind::Layer { 2 } else { 1 };
    // One before or after each attention and each feed-forward layer.
    let per_layer = count(attentions.len()) + stacks;
    let last_norms = stacks * Count::from(model.norm == NormPlace::Pre);
    let first_norms = stacks * Count::from(model.embedding_norm);
    let norms = 2 * own + (per_layer - 2) * own_in_decoder + last_norms;
    parts.push(part(
        "norms",
        (norms * width + first_norms * embedded) * of_norm,
        ((per_layer * layers + last_norms) * width + first_norms * embedded) * of_norm * length,
        ((per_layer * kept + last_norms) * (width + of_norm) + first_norms * (embedded + of_norm)) * tokens,
        0,
    ));

    let inside = count(model.feed_forward);
    let bias = Count::from(model.feed_forward_bias.unwrap_or(model.bias));
    // Matrices into the hidden channels; the output of each is kept, and the input of the last one.
    let into = if model.gated { 2 } else { 1 };
    parts.push(part(
        "feed-forward",
        (own + own_in_decoder) * ((into + 1) * width * inside + bias * (into * inside + width)),
        stacks * layers * length * (into + 1) * width * inside,
        stacks * kept * tokens * (width + (into + 1) * inside),
        0,
    ));
    if model.layer_scale.is_some() {
        // After attention and feed-forward of the encoder; the inputs of the scales are kept.
        parts.push(part("layer scales", 2 * own * width, 2 * layers * length * width, 2 * kept * tokens * width, 0));
    }
    parts.iter_mut().for_each(|part| part.multiply_adds *= sequences);
    parts.push(match sizes.head {
        Head::Classes(classes) | Head::Pairs(classes) => {
            let (classes, scores) = (count(classes), Count::from(model.pooling == Pooling::Attention));
            // Both vectors of a pair, their product and their difference.
            let (features, products) = if sequences == 2 { (4 * width, width) } else { (width, 0) };
            let parameters = (features + Count::from(model.bias)) * classes + scores * width;
            let operations = features * classes + products + sequences * (1 + scores) * length * width;
            let vectors = if sequences == 2 { 2 * width } else { 0 };
            let floats = count(run.batch) * (vectors + features + classes) + tokens * (width + scores);
            part("head", parameters, operations, floats, 0)
        }
        Head::Readers { .. } => readers::pooling(model, run, sequences),
        Head::Tokens if model.adaptive_softmax.is_used() => adaptive_softmax(sizes, length, tokens),
        Head::Tokens => {
            let inputs = if model.head_transform { embedded } else { width };
            let of_matrix = if model.tied_head { 0 } else { inputs * vocabulary };
            let parameters = of_matrix + Count::from(model.head_bias) * vocabulary;
            // A language model takes many logits part by part.
            let most = if sizes.attention.options.causal { HELD_LOGITS as Count } else { Count::MAX };
            let logits = (tokens * vocabulary).min(most);
            let (operations, floats) = (length * inputs * vocabulary, tokens * width + logits);
            // A projection with a bias, its norm, and their outputs.
            let transform = Count::from(model.head_transform);
            part(
                "head",
                parameters + transform * (width + 1 + of_norm) * inputs,
                operations + transform * length * (width + of_norm) * inputs,
                floats + transform * tokens * (3 * inputs + of_norm),
                0,
            )
        }
    });
    if model.checkpointing {
        parts.push(part("inputs of blocks", 0, 0, stacks * layers * tokens * width, 0));
    }
    parts
}

/// An adaptive softmax (Grave et al. 2017): a matrix over the frequent tokens and the clusters, and two for each cluster.
///
/// Multiply-adds are those of the probabilities of all tokens, as generation needs them; a training step and an evaluation
/// take a cluster's only where the target is in it. How often that is depends on the text, so that no activations of
/// clusters are counted.
fn adaptive_softmax(sizes: &ModelSizes, length: Count, tokens: Count) -> Part {
    let (softmax, width) = (&sizes.model.adaptive_softmax, sizes.model.width as Count);
    let first = softmax.cutoffs.first().map_or(0, |first| *first as Count) + softmax.cutoffs.len() as Count;
    let of_cluster = |[tokens, channels]: [usize; 2]| channels as Count * (width + tokens as Count);
    let clusters = softmax.clusters(sizes.model.width, sizes.vocabulary);
    let weights = width * first + clusters.map(of_cluster).sum::<Count>();
    let kept = tokens * width + (tokens * first).min(HELD_LOGITS as Count);
    Part {
        name: "head".into(),
        parameters: weights,
        multiply_adds: length * weights,
        activation_bytes: kept * FLOAT,
        state_bytes: 0,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use regard_kernels::mechanism::{FastformerOptions, Inference, KeyDesign, Prior, Sharing};
    use regard_kernels::{AttentionOptions, Mechanism};
    use regard_nn::models::ModelConfig;

    use super::*;
    use crate::cost::AttentionSizes;
    use crate::cost::formulas::{self, PaperSizes};

    /// The Long Range Arena model of the recipes.
    pub fn sizes(mechanism: Mechanism) -> ModelSizes {
        let options = AttentionOptions { mechanism, heads: 2, ..AttentionOptions::default() };
        let attention = AttentionSizes { options, head_width: 32, bias: true, output_bias: true };
        let model = ModelConfig { width: 64, layers: 2, feed_forward: 128, ..ModelConfig::default() };
        let head = Head::Classes(10);
        ModelSizes { model, vocabulary: 16, context: 2_000, head, attention, decoder: None }
    }

    const RUN: Run = Run { batch: 32, length: 1_000, decoded: 500 };

    fn part(sizes: &ModelSizes, name: &str) -> Part {
        let cost = ModelCost::of(sizes, RUN).expect("sizes");
        cost.parts.into_iter().find(|part| part.name == name).expect("part")
    }

    #[test]
    fn parameters_to_the_last_bias() {
        let total = |sizes: &ModelSizes| ModelCost::of(sizes, RUN).expect("sizes").total().parameters;
        let attention = 4 * (64 * 64 + 64);
        let rest = 16 * 64 + 2_000 * 64 + 2 * (4 * 64 + 64 * 128 + 128 + 128 * 64 + 64) + 2 * 64 + 64 * 10 + 10;
        assert_eq!(total(&sizes(Mechanism::Softmax)), rest + 2 * attention);
        assert_eq!(total(&sizes(Mechanism::Gaussian)), rest + 2 * attention);
        assert_eq!(total(&sizes(Mechanism::Linear)), rest + 2 * attention);
        // One more key projection, a prior.
        let mixture = attention + 64 * 64 + 64 + 2 * 2;
        assert_eq!(total(&sizes(Mechanism::Mgk)), rest + 2 * mixture);
        assert_eq!(total(&sizes(Mechanism::Mlk)), rest + 2 * mixture);
        // Two shifts in place of it.
        let mut shifted = sizes(Mechanism::Mgk);
        shifted.attention.options.keys.design = KeyDesign::Shifted;
        assert_eq!(total(&shifted), rest + 2 * (attention + 2 * 64 + 2 * 2));
        shifted.attention.options.mixture.prior = Prior::PerPosition;
        assert_eq!(total(&shifted), rest + 2 * (attention + 2 * 64 + 2 * 2 * 2_000));
        shifted.attention.options.mixture.inference = Inference::Hard;
        assert_eq!(total(&shifted), rest + 2 * (attention + 2 * 64));
        // Values are queries; two score vectors a head.
        let fastformer = 3 * (64 * 64 + 64) + 2 * 64;
        assert_eq!(total(&sizes(Mechanism::Fastformer)), rest + 2 * fastformer);
    }

    /// The model of the reference data: `token_embedding`, `position_embedding`, one layer norm pair per layer, `head`
    /// without bias.
    #[test]
    fn language_models_count_as_the_reference_ones() {
        let mut model = sizes(Mechanism::Softmax);
        (model.head, model.model.tied_head) = (Head::Tokens, false);
        let untied = ModelCost::of(&model, RUN).expect("sizes").total().parameters;
        model.model.tied_head = true;
        let tied = ModelCost::of(&model, RUN).expect("sizes").total().parameters;
        assert_eq!(untied - tied, 16 * 64);
        model.attention.options.position = Position::None;
        assert_eq!(tied - ModelCost::of(&model, RUN).expect("sizes").total().parameters, 2_000 * 64);
    }

    #[test]
    fn attention_equals_the_closed_forms() {
        let paper = PaperSizes { tokens: 10, heads: 8, head_width: 16, width: 128 };
        let layer = |mechanism, heads| {
            let mut model = sizes(mechanism);
            model.attention.options.heads = heads;
            model.attention.options.fastformer = FastformerOptions::default();
            model.attention.head_width = 16;
            (model.attention.bias, model.attention.output_bias) = (false, false);
            (model.model.width, model.model.layers) = (128, 1);
            part(&model, "attention projections").parameters + part(&model, "attention core").parameters
        };
        assert_eq!(layer(Mechanism::Softmax, 8), formulas::softmax_parameters(paper));
        assert_eq!(Some(layer(Mechanism::Mgk, 4)), formulas::mgk_parameters(paper));
        assert_eq!(layer(Mechanism::Fastformer, 8), formulas::fastformer_parameters_dense(8, 16));
    }

    #[test]
    fn multiply_adds_count_visible_pairs() {
        let mut model = sizes(Mechanism::Softmax);
        let core = |model: &ModelSizes| part(model, "attention core").multiply_adds;
        assert_eq!(core(&model), 2 * 1_000 * 1_000 * 2 * 64);
        model.attention.options.causal = true;
        assert_eq!(core(&model), 2 * (1_000 * 1_001 / 2) * 2 * 64);
        model.attention.options.window = Some(3);
        assert_eq!(core(&model), 2 * (1_000 * 4 - 6) * 2 * 64);
        model.attention.options.causal = false;
        assert_eq!(core(&model), 2 * (1_000 * 7 - 12) * 2 * 64);
    }

    #[test]
    fn recomputed_blocks_keep_their_inputs() {
        let mut model = sizes(Mechanism::Softmax);
        let bytes = |model: &ModelSizes| ModelCost::of(model, RUN).expect("sizes").total().activation_bytes;
        model.model.layers = 16;
        let whole = bytes(&model);
        model.model.checkpointing = true;
        assert!(bytes(&model) < whole / 5);
        assert_eq!(part(&model, "inputs of blocks").activation_bytes, 16 * 32_000 * 64 * 4);
    }

    #[test]
    fn decode_state() {
        let state = |mechanism| part(&sizes(mechanism), "attention core").state_bytes;
        assert_eq!(state(Mechanism::Softmax), 2 * 500 * 2 * 64 * 4);
        assert_eq!(state(Mechanism::Mgk), 2 * 500 * 3 * 64 * 4);
        assert_eq!(state(Mechanism::Linear), 2 * 2 * 32 * 33 * 4);
        let mut shared = sizes(Mechanism::Softmax);
        shared.attention.options.key_value_heads = Some(1);
        assert_eq!(part(&shared, "attention core").state_bytes, 2 * 500 * 2 * 32 * 4);
    }

    #[test]
    fn sharing_of_fastformer() {
        let parameters = |sharing| {
            let mut model = sizes(Mechanism::Fastformer);
            model.attention.options.fastformer.sharing = sharing;
            part(&model, "attention projections").parameters
        };
        let whole = 64 * 64 + 64;
        assert_eq!(parameters(Sharing::None), 2 * 4 * whole);
        assert_eq!(parameters(Sharing::QueryValue), 2 * 3 * whole);
        assert_eq!(parameters(Sharing::LayerWise), 3 * whole);
        assert_eq!(parameters(Sharing::HeadWise), 2 * (2 * (32 * 32 + 32) + whole));
    }

    #[test]
    fn impossible_and_huge_sizes() {
        for mechanism in Mechanism::ALL {
            let mut model = sizes(*mechanism);
            (model.vocabulary, model.model.width, model.model.layers) = (1 << 26, 1 << 20, 1 << 12);
            (model.model.feed_forward, model.context) = (1 << 24, 1 << 30);
            (model.attention.options.heads, model.attention.head_width) = (1 << 12, 1 << 8);
            model.attention.options.keys.components = 1 << 10;
            let run = Run { batch: 1 << 20, length: 1 << 30, decoded: 1 << 30 };
            ModelCost::of(&model, run).expect("counted without overflow");
            model.attention.options.keys.components = 0;
            let error = ModelCost::of(&model, run).expect_err("no component").to_string();
            assert_eq!(error, "keys.components is 0, expected a whole number from 1 to 1024");
        }
        let mut model = sizes(Mechanism::Fastformer);
        model.model.width = 65;
        let error = ModelCost::of(&model, RUN).expect_err("inner width").to_string();
        assert!(error.contains("is 64, expected the width, 65"), "{error}");
        model = sizes(Mechanism::Softmax);
        model.attention.options.key_value_heads = Some(3);
        assert!(ModelCost::of(&model, RUN).is_err());
    }

    #[test]
    fn table_ends_in_the_total() {
        let cost = ModelCost::of(&sizes(Mechanism::Mgk), RUN).expect("sizes");
        let table = cost.table("mgk");
        assert_eq!(table.rows.len(), cost.parts.len() + 1);
        let sum: Count = cost.parts.iter().map(|part| part.parameters).sum();
        assert_eq!(table.rows.last().map(|row| row[1].clone()), Some(Cell::Whole(sum)));
    }
}
