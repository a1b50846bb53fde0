//! What each mechanism costs: the one place of this crate that tells mechanisms apart.

use regard_kernels::Mechanism;
use regard_kernels::mechanism::{AdditiveScores, Inference, Prior, Sharing};

use super::Count;
use super::model::{AttentionSizes, CostError, Run};

/// What the attention of one layer costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttentionCost {
    /// Numbers in the projections, biases and shifts included.
    pub projection_parameters: Count,
    /// Numbers in the mechanism itself: priors, variances, score vectors.
    pub core_parameters: Count,
    /// Multiply-adds of the projections over one sequence.
    pub projection_operations: Count,
    /// Multiply-adds of the mechanism over one sequence; pairs that the mask hides are not counted.
    pub core_operations: Count,
    /// Numbers kept for the backward pass, one sequence: what the operator reads and writes, and its saved buffers.
    pub kept_floats: Count,
    /// Numbers of decode state, one sequence.
    pub state_floats: Count,
    /// Whether all layers use one set of parameters.
    pub shared_between_layers: bool,
}

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
    let options = &sizes.options;
    let (heads, key_heads) = (count(options.heads), count(options.key_heads()));
    let (head, components) = (count(sizes.head_width), count(options.components()));
    let (n, decoded) = (count(run.length), count(run.decoded));
    let outside = count(width);
    let (inner, key_inner) = (heads * head, key_heads * head);
    let projected_keys = if options.shifted() { 1 } else { components };

    // Softmax and the kernels around keys: q, k of every component, v, and the output projection.
    let projection = |columns: Count| (outside * columns, if sizes.bias { columns } else { 0 });
    let columns = [inner, projected_keys * key_inner, key_inner];
    let mut weights: Count = columns.iter().map(|c| projection(*c).0).sum::<Count>() + inner * outside;
    let mut biases: Count = if sizes.bias { columns.iter().sum::<Count>() + outside } else { 0 };
    let shifts = if options.shifted() { components * key_inner } else { 0 };

    let pairs = visible_pairs(n, options.causal, options.window.map(count));
    let prior_rows = if options.mixture.prior == Prior::PerPosition { count(context) } else { 1 };
    let mixture_parameters = match options.mixture.inference {
        // Not learned by gradient: a buffer, or not there at all.
        Inference::SoftEm | Inference::Hard => 0,
        Inference::Soft => heads * components * prior_rows,
    };
    let variances = if options.mixture.learn_variances { components } else { 0 };
    let read_and_written = n * (2 * inner + (projected_keys + 1) * key_inner);
    let cached = |keys: Count| decoded * (keys + 1) * key_inner;
    // `[D,Dv]` and `[D]` a head; a prior of their own gives query heads that share keys different states.
    let prefix = |heads: Count| heads * head * (head + 1);

    let mut cost = AttentionCost::default();
    match options.mechanism {
        Mechanism::Softmax => {
            cost.core_operations = pairs * 2 * inner;
            cost.kept_floats = read_and_written + n * heads;
            cost.state_floats = cached(1);
        }
        Mechanism::Gaussian | Mechanism::Mgk => {
            let mixture = options.mechanism.is_mixture();
            cost.core_parameters = variances + if mixture { mixture_parameters } else { 0 };
            // One dot product a component and one value a pair; the squared norms once a query and a key.
            let norms = n * (inner + components * key_inner);
            cost.core_operations = pairs * (components + 1) * inner + norms;
            cost.kept_floats = read_and_written + n * heads;
            cost.state_floats = cached(projected_keys);
        }
        Mechanism::Linear | Mechanism::Mlk => {
            let mixture = options.mechanism.is_mixture();
            cost.core_parameters = if mixture { heads * components } else { 0 };
            let states = if mixture { heads } else { key_heads };
            let mixing = if mixture { n * components * states * head } else { 0 };
            cost.core_operations = n * (states + heads) * head * (head + 1) + mixing;
            cost.kept_floats = read_and_written + n * heads;
            cost.state_floats = prefix(states);
        }
        Mechanism::Fastformer => {
            if options.heads * sizes.head_width != width {
                let inner = options.heads * sizes.head_width;
                return Err(CostError::Inner { mechanism: options.mechanism, inner, width });
            }
            let sharing = options.fastformer.sharing;
            // Query and key projections see all of the input; with head-wise sharing they make one head's channels.
            let made = if sharing == Sharing::HeadWise { head } else { inner };
            let inputs = if sharing == Sharing::None { 3 } else { 2 };
            weights = inputs * outside * made + inner * outside;
            biases = if sizes.bias { inputs * made + outside } else { 0 };
            let seen = match options.fastformer.scores {
                AdditiveScores::Paper => head,
                AdditiveScores::Released => inner,
            };
            let vectors = if sharing == Sharing::HeadWise { 1 } else { heads };
            cost.core_parameters = 2 * vectors * seen;
            // Two scores, two weighted sums and two element-wise products.
            cost.core_operations = n * (2 * heads * seen + 4 * inner);
            cost.kept_floats = n * ((inputs + 1) * inner + 2 * heads);
            cost.state_floats = heads * (2 * head + 4);
            cost.shared_between_layers = sharing == Sharing::LayerWise;
        }
    }
    cost.projection_parameters = weights + biases + shifts;
    cost.projection_operations = n * weights;
    Ok(cost)
}

/// Pairs of query and key in `n` tokens that the mask leaves: `j <= i` when causal, `|i - j| <= window`.
fn visible_pairs(n: Count, causal: bool, window: Option<Count>) -> Count {
    let reach = window.unwrap_or(n).min(n.saturating_sub(1));
    // Query i looks back at min(i, reach) tokens: a triangle, then a band.
    let back = reach * (reach + 1) / 2 + (n - reach).saturating_sub(1) * reach;
    if causal { n + back } else { n + 2 * back }
}
