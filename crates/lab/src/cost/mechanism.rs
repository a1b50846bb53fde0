//! Cost of each mechanism: the only mechanism-specific code of this crate.

use regard_kernels::Mechanism;
use regard_kernels::features::FeatureKind;
use regard_kernels::mechanism::{AdditiveScores, Combination, Inference, Interaction, Position, Prior, Sharing};
use regard_kernels::support::{SupportKind, SupportOptions};

use super::Count;
use super::support::{support_pairs, visible_pairs};
use super::{AttentionSizes, CostError, Run};

/// Attention cost of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttentionCost {
    /// Parameters of the projections, biases and shifts included.
    pub projection_parameters: Count,
    /// Parameters of the mechanism itself: priors, variances, score vectors.
    pub core_parameters: Count,
    /// Multiply-adds of the projections over one sequence.
    pub projection_operations: Count,
    /// Multiply-adds of the mechanism over one sequence; masked pairs are not counted.
    pub core_operations: Count,
    /// Floats kept for the backward pass, per sequence: inputs and outputs of the operator, and its saved buffers.
    pub kept_floats: Count,
    /// Floats of decode state, per sequence; under a window, its maximum size.
    pub state_floats: Count,
    /// Whether all layers share one set of parameters.
    pub shared_between_layers: bool,
}

/// Positions between two sums saved by causal linear attention for its backward pass.
const LINEAR_SEGMENT: Count = 256;
/// Queries between two sums saved by feature-based attention for its backward pass.
const FEATURE_SPAN: Count = 512;

/// Counts the attention of one layer of a model of `width` and `context`.
///
/// # Errors
/// Sizes that the mechanism cannot have.
pub fn attention_cost(
    sizes: &AttentionSizes,
    width: usize,
    context: usize,
    run: Run,
) -> Result<AttentionCost, CostError> {
    let count = |size: usize| size as Count;
    let options = &sizes.options.within_budget(context, context, sizes.head_width)?;
    let mixture = options.mechanism.is_mixture();
    let (heads, key_heads) = (count(options.query_heads()), count(options.key_heads()));
    let (head, components) = (count(sizes.head_width), count(options.components()));
    let (n, decoded, outside) = (count(run.length), count(run.decoded), count(width));
    let (inner, key_inner) = (heads * head, key_heads * head);
    // With LSH queries equal keys.
    let lsh = options.uses_support() && options.support.kind == SupportKind::Lsh;
    let projected_keys = match (lsh, options.shifted()) {
        (true, _) => 0,
        (_, true) => 1,
        _ => components,
    };
    let (bias, output_bias) = (Count::from(sizes.bias), Count::from(sizes.output_bias));

    // Projections of queries, keys of every component, values, and output: the same for every mechanism with separate
    // keys.
    let columns = inner + (projected_keys + 1) * key_inner;
    let shifts = if options.shifted() { components * key_inner } else { 0 };
    let mut cost = AttentionCost {
        projection_parameters: outside * (columns + inner) + bias * columns + output_bias * outside + shifts,
        projection_operations: n * outside * (columns + inner),
        ..AttentionCost::default()
    };
    // Shifted keys are one projection, except where each is rotated for itself.
    let rotated = options.shifted() && options.position == Position::Rotary;
    let held_keys = if rotated { components } else { projected_keys };
    let read_and_written = n * (2 * inner + (held_keys + 1) * key_inner);

    // Every query attends to every visible key. Saved per row: log denominator, maximum and inverse.
    let pairs = visible_pairs(n, options.causal, options.window.map(count));
    let rows = 3 * n * heads;
    // A cache is trimmed to its window when it is twice as long.
    let cached = options.window.map_or(decoded, |window| decoded.min(2 * (count(window) + 1)));
    let cache = cached * (held_keys + 1) * key_inner;

    match options.mechanism {
        Mechanism::Softmax => {
            cost.core_operations = pairs * 2 * inner;
            cost.kept_floats = read_and_written + rows;
            cost.state_floats = cache;
        }
        Mechanism::Cosine => {
            cost.core_parameters = heads;
            // A square and a product per channel of queries and keys.
            cost.core_operations = pairs * 2 * inner + 2 * n * (inner + key_inner);
            cost.kept_floats = read_and_written + rows;
            cost.state_floats = cache;
        }
        Mechanism::Gaussian | Mechanism::Mgk => {
            let learned = mixture && options.mixture.inference == Inference::Soft;
            let positions = if options.mixture.prior == Prior::PerPosition { count(context) } else { 1 };
            let prior = if learned { heads * components * positions } else { 0 };
            let variances = if options.mixture.learn_variances { components } else { 0 };
            cost.core_parameters = prior + variances;
            // One dot product per component and one value per pair; the squared norms once per query and once per key.
            let norms = n * (inner + components * key_inner);
            cost.core_operations = pairs * (components + 1) * inner + norms;
            cost.kept_floats = read_and_written + rows;
            cost.state_floats = cache;
        }
        Mechanism::Linear | Mechanism::Mlk => {
            cost.core_parameters = if mixture { heads * components } else { 0 };
            // With separate priors, query heads that share keys have different sums, `[D,Dv]` and `[D]` each.
            let states = if mixture { heads } else { key_heads };
            let sums = states * head * (head + 1);
            let mixing = if mixture { n * components * states * head } else { 0 };
            cost.core_operations = n * (states + heads) * head * (head + 1) + mixing;
            let kept_sums = if options.causal { n.div_ceil(LINEAR_SEGMENT) } else { 1 };
            cost.kept_floats = read_and_written + n * heads + kept_sums * sums;
            cost.state_floats = sums;
        }
        Mechanism::Performer | Mechanism::Sparse | Mechanism::Scatterbrain => {
            let kind = if options.uses_support() { options.support.kind } else { SupportKind::Empty };
            let gated =
                options.mechanism == Mechanism::Scatterbrain && options.scatterbrain.combination == Combination::Gated;
            let exact = support_pairs(&options.support, n, options.causal) * Count::from(kind != SupportKind::Empty);
            let hashes = match kind {
                SupportKind::Smyrf => n * count(options.support.rounds) * 2 * heads * (head + 2),
                SupportKind::Lsh => {
                    let values = count(options.support.hash_values(context));
                    n * count(options.support.rounds) * inner * values / 2
                }
                _ => 0,
            };
            let mut low_rank = 0;
            let mut pair = 2 * head;
            let (mut sums, mut kept_sums) = (0, 0);
            if options.uses_features() {
                let features = count(options.features.count(sizes.head_width));
                let rows = if options.features.kind == FeatureKind::Elu { 0 } else { count(options.features.rows) };
                // Features of queries and keys, sums over keys, products with the sums; each pair of the support
                // subtracts its feature product.
                sums = key_heads * features * (head + 1);
                // Sums before each span of queries, and after it if visible, with one scale per feature.
                let sides = if options.causal { 1 } else { 2 };
                let spans = if kind == SupportKind::Full { 0 } else { n.div_ceil(FEATURE_SPAN) };
                kept_sums = spans * (sides * sums + key_heads * features);
                low_rank = n * (heads + key_heads) * (rows * head + features * (head + 1));
                pair += if gated { 0 } else { features };
            }
            cost.core_operations = exact * heads * pair + hashes + low_rank;
            cost.kept_floats = read_and_written + rows + kept_sums;
            let tokens = match kind {
                SupportKind::Local => decoded.min(count(options.support.radius).saturating_add(1)),
                SupportKind::Longformer => {
                    let SupportOptions { radius, globals, .. } = options.support;
                    decoded.min(count(globals).saturating_add(count(radius)).saturating_add(1))
                }
                SupportKind::Empty => 0,
                // The other supports need all keys and values to decode.
                _ => decoded,
            };
            let naive = options.scatterbrain.combination == Combination::Naive;
            let states = match kind {
                SupportKind::Full if !gated => 0,
                // One for each block of keys, and one for those that a row does not see.
                SupportKind::Block if !gated && !naive => decoded.div_ceil(count(options.support.block)) + 1,
                _ => 1,
            };
            cost.state_floats = tokens * 2 * key_inner + states * (sums + sums / (head + 1));
            if gated {
                cost.core_parameters = heads;
                cost.core_operations += n * inner;
                // Both outputs, their difference and both rows of denominators, besides the mixed output.
                cost.kept_floats += 3 * n * inner + rows;
            }
        }
        Mechanism::Moa => {
            let (experts, active) = (count(options.moa.experts), count(options.moa.active));
            // One head of keys and values; a query and an output projection per expert, of which a token uses some.
            cost.projection_parameters = (2 * experts + 2) * head * outside + outside * experts;
            cost.projection_operations = 2 * (active + 1) * n * head * outside + n * outside * experts;
            cost.core_operations = pairs * 2 * active * head;
            // Logits, weights, queries and head outputs of the chosen experts, keys and values. The tokens are those of the
            // projections, and nothing needs the output.
            cost.kept_floats = n * (experts + active + 2 * active * head + 2 * head) + 3 * n * active;
            cost.state_floats = cached * 2 * head;
        }
        Mechanism::Fastformer => {
            if inner != outside {
                let inner = options.heads * sizes.head_width;
                return Err(CostError::Inner { mechanism: options.mechanism, inner, width });
            }
            let sharing = options.fastformer.sharing;
            // Head-wise, one matrix `[D,D]` and one score vector serve every head.
            let head_wise = sharing == Sharing::HeadWise;
            let (from, to, uses) = if head_wise { (head, head, heads) } else { (outside, inner, 1) };
            let vectors = if head_wise { 1 } else { heads };
            let inputs = if sharing == Sharing::None { 3 } else { 2 };
            let seen = match options.fastformer.scores {
                AdditiveScores::Paper => head,
                AdditiveScores::Released => inner,
            };
            cost.projection_parameters = inputs * (from * to + bias * to) + (inner + output_bias) * outside;
            cost.projection_operations = n * (inputs * uses * from * to + inner * outside);
            cost.core_parameters = 2 * vectors * seen;
            // Two scores, two weighted sums and two element-wise products or sums.
            cost.core_operations = n * (2 * heads * seen + 4 * inner);
            match options.fastformer.interaction {
                Interaction::Product => {
                    cost.kept_floats = n * ((inputs + 1) * inner + 2 * heads) + 2 * inner;
                    // Two averages and the current token; for each average and head a maximum, and a denominator in
                    // f64.
                    cost.state_floats = 3 * inner + 2 * heads * 3;
                }
                // Operands of later products, and three floats per weight: exponential, numerator, quotient. No decode
                // state.
                Interaction::Sum => cost.kept_floats = n * (3 * inner + 6 * heads),
                Interaction::Concatenation => {
                    // A matrix `[D,2D]` per head for keys and one for values, with the half for the global vector
                    // applied once.
                    cost.core_parameters += 2 * vectors * 2 * head * head;
                    cost.core_operations = n * (2 * heads * seen + 2 * inner) + 2 * (n + 1) * inner * head;
                    cost.kept_floats = n * ((inputs + 2) * inner + 6 * heads);
                }
            }
            cost.shared_between_layers = sharing == Sharing::LayerWise;
        }
    }
    Ok(cost)
}

#[cfg(test)]
mod tests {
    use regard_kernels::Storage;
    use regard_kernels::mechanism::KeyDesign;
    use regard_kernels::{AttentionOptions, Call, InputSizes, InputSpec, Layout, Mask, Operator, Role, View};

    use super::*;

    const HEAD_WIDTH: usize = 8;

    /// The inputs of `operator` for one sequence of `tokens`, with contents.
    fn inputs(operator: &dyn Operator, options: &AttentionOptions, tokens: usize) -> Vec<(InputSpec, Vec<f32>)> {
        let sizes = InputSizes::new(Layout::TokenFirst, 1, tokens, options.heads, HEAD_WIDTH);
        let filled = |spec: InputSpec| {
            // All distinct: otherwise hashing would put everything in one group.
            let data = (0..spec.shape.iter().product::<usize>()).map(|i| ((i * 7919) % 101) as f32 / 101.0).collect();
            (spec, data)
        };
        options.inputs(operator, &sizes).into_iter().map(filled).collect()
    }

    fn variants() -> Vec<AttentionOptions> {
        let plain = |mechanism: &Mechanism| AttentionOptions { mechanism: *mechanism, ..AttentionOptions::default() };
        let mut all: Vec<_> = Mechanism::ALL.iter().map(plain).collect();
        for mixture in Mechanism::ALL.iter().filter(|mechanism| mechanism.is_mixture()) {
            let mut shifted = plain(mixture);
            (shifted.keys.design, shifted.keys.components) = (KeyDesign::Shifted, 3);
            all.push(shifted);
        }
        let shared = |mechanism| AttentionOptions { key_value_heads: Some(2), ..plain(mechanism) };
        let own_keys =
            Mechanism::ALL.iter().filter(|mechanism| mechanism.facts().cross && **mechanism != Mechanism::Moa);
        all.extend(own_keys.map(shared));
        all.push(AttentionOptions { window: Some(5), ..plain(&Mechanism::Mgk) });
        for mechanism in [Mechanism::Sparse, Mechanism::Scatterbrain] {
            use SupportKind::{Bigbird, Empty, Full, Longformer, Lsh, Smyrf};
            for kind in [Longformer, Bigbird, Smyrf, Lsh, Full, Empty] {
                let mut hashed = plain(&mechanism);
                hashed.support.kind = kind;
                all.push(hashed);
            }
            let mut block = plain(&mechanism);
            (block.support.kind, block.support.block) = (SupportKind::Block, 5);
            block.support.layout = Some(vec!["1".repeat(103); 103]);
            all.push(block);
            let mut narrow = plain(&mechanism);
            (narrow.support.radius, narrow.features.kind) = (3, FeatureKind::Elu);
            all.push(narrow);
        }
        all
    }

    /// Counts match what the operators read, write and save, and what their decoders hold.
    #[test]
    fn counts_are_those_of_the_operators() {
        const TOKENS: usize = 512;
        for (variant, causal) in variants().into_iter().flat_map(|variant| [(variant.clone(), false), (variant, true)])
        {
            let options = AttentionOptions { causal, ..variant };
            let mask = Mask { causal, window: options.window, ..Mask::default() };
            let call = Call { layout: Layout::TokenFirst, mask, ..Call::default() };
            let operator = options.operator(call).expect("options that fit");
            let sizes =
                AttentionSizes { options: options.clone(), head_width: HEAD_WIDTH, bias: true, output_bias: true };
            let width = options.heads * HEAD_WIDTH;
            let counted = |decoded| {
                attention_cost(&sizes, width, TOKENS, Run { batch: 1, length: TOKENS, decoded }).expect("sizes")
            };

            let given = inputs(&*operator, &options, TOKENS);
            let views: Vec<_> = given.iter().map(|(spec, data)| View::new(data, &spec.shape)).collect();
            let mut out = vec![0.0; TOKENS * width];
            let saved = operator.forward(&views, &mut out);
            let of_tokens = given.iter().filter(|(spec, _)| matches!(spec.role, Role::Data { .. }));
            let read = of_tokens.map(|(_, data)| data.len());
            // A layer of experts is made of several operators, the first of which share the tokens.
            let elsewhere = if options.mechanism == Mechanism::Moa { 2 * out.len() } else { 0 };
            let kept = read.sum::<usize>() + out.len() + saved.floats() - elsewhere;
            let share = kept as f64 / counted(0).kept_floats as f64;
            // Block sizes inside a kernel are not counted exactly.
            assert!((share - 1.0).abs() < 0.02, "{options:?}: {share}");

            let Some(mut decoder) = operator.decoder(Storage::F32).filter(|_| causal) else { continue };
            let given = inputs(&*operator, &options, 1);
            let views: Vec<_> = given.iter().map(|(spec, data)| View::new(data, &spec.shape)).collect();
            for decoded in 1..=12 {
                decoder.step(&views, &mut out[..width]);
                let bytes = counted(decoded).state_floats * size_of::<f32>() as Count;
                assert_eq!(decoder.bytes() as Count, bytes, "{options:?} after {decoded}");
            }
        }
    }
}
