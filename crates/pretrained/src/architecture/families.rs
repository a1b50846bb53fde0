//! The keys of each family. Defaults are those of `transformers`, for keys that it leaves out.

use std::collections::BTreeMap;

use regard_nn::blocks::RotaryConfig;

use super::{
    Activation, Architecture, Biases, Family, Head, Norm, NormKind, NormPlace, Patch, Position, head, rotary::scaled,
};
use crate::{ConfigProblem, keys::Keys};

type Result<T> = std::result::Result<T, ConfigProblem>;

/// More layers than any model has, few enough to list their tensors.
const MOST_LAYERS: usize = 4096;
/// More pixels or colours than any model has, few enough that the numbers of a patch stay in range.
const LONGEST_SIDE: usize = 1 << 14;

/// The architecture of a family.
pub(super) fn read(family: Family, keys: &Keys<'_>) -> Result<Architecture> {
    let architecture = match family {
        Family::Bert | Family::Roberta | Family::Albert => bert(family, keys),
        Family::Gpt2 => gpt2(keys),
        Family::Llama => llama(keys),
        Family::Vit | Family::Dinov2 => image(family, keys),
    }?;
    let mut architecture = head::read(architecture, keys)?;
    architecture.padding = keys.optional_id("pad_token_id")?;
    Ok(architecture)
}

/// What most families have, with the keys of most.
fn common(family: Family, keys: &Keys<'_>) -> Result<Architecture> {
    let width = keys.size("hidden_size")?;
    let heads = keys.size("num_attention_heads")?;
    Ok(Architecture {
        family,
        width,
        layers: layers(keys, "num_hidden_layers")?,
        heads,
        key_value_heads: heads,
        head_width: head_width(keys, "hidden_size", width, "num_attention_heads", heads)?,
        feed_forward: 0,
        gated: false,
        activation: Activation::named(keys, "hidden_act", Activation::Gelu)?,
        norm: norm(keys, "layer_norm_eps", 1e-12, NormPlace::Post)?,
        embedding_norm: false,
        final_norm: false,
        biases: Biases { query_key_value: true, out: true, feed_forward: true },
        vocabulary: 0,
        context: 0,
        token_types: 0,
        embedding_width: width,
        embedding_projection: false,
        position: Position::None,
        padding: None,
        causal: false,
        patch: None,
        class_token: false,
        layer_scale: false,
        shared_blocks: false,
        pooler: false,
        head: Head::None,
        labels: BTreeMap::new(),
    })
}

fn bert(family: Family, keys: &Keys<'_>) -> Result<Architecture> {
    keys.only("is_decoder", false)?;
    keys.only("add_cross_attention", false)?;
    if keys.optional_text("position_embedding_type")?.is_some_and(|kind| kind != "absolute") {
        return Err(keys.problem("position_embedding_type", "\"absolute\", the only one read"));
    }
    let common = common(family, keys)?;
    let rows = keys.size("max_position_embeddings")?;
    let mut offset = 0;
    if family == Family::Roberta {
        // Padding keeps the row of its own number, and real tokens begin after it.
        offset = keys.optional_index("pad_token_id")?.unwrap_or(1) + 1;
        if offset >= rows {
            return Err(keys.problem("max_position_embeddings", format!("more than pad_token_id + 1 = {offset}")));
        }
    }
    let mut architecture = Architecture {
        feed_forward: keys.size("intermediate_size")?,
        embedding_norm: true,
        vocabulary: keys.size("vocab_size")?,
        context: rows - offset,
        token_types: keys.optional_size("type_vocab_size")?.unwrap_or(2),
        position: Position::Learned { offset, rows },
        ..common
    };
    if family == Family::Albert {
        for key in ["num_hidden_groups", "inner_group_num"] {
            if keys.optional_size(key)?.is_some_and(|n| n != 1) {
                return Err(keys.problem(key, "1, the only number read"));
            }
        }
        architecture.activation = Activation::named(keys, "hidden_act", Activation::GeluTanh)?;
        architecture.embedding_width = keys.optional_size("embedding_size")?.unwrap_or(128);
        architecture.embedding_projection = true;
        architecture.shared_blocks = true;
    }
    Ok(architecture)
}

fn gpt2(keys: &Keys<'_>) -> Result<Architecture> {
    keys.only("scale_attn_weights", true)?;
    keys.only("scale_attn_by_inverse_layer_idx", false)?;
    keys.only("add_cross_attention", false)?;
    let width = keys.size("n_embd")?;
    let heads = keys.size("n_head")?;
    let context = keys.size("n_positions")?;
    Ok(Architecture {
        family: Family::Gpt2,
        width,
        layers: layers(keys, "n_layer")?,
        heads,
        key_value_heads: heads,
        head_width: head_width(keys, "n_embd", width, "n_head", heads)?,
        feed_forward: keys.optional_size("n_inner")?.unwrap_or(4 * width),
        gated: false,
        activation: Activation::named(keys, "activation_function", Activation::GeluTanh)?,
        norm: norm(keys, "layer_norm_epsilon", 1e-5, NormPlace::Pre)?,
        embedding_norm: false,
        final_norm: true,
        biases: Biases { query_key_value: true, out: true, feed_forward: true },
        vocabulary: keys.size("vocab_size")?,
        context,
        token_types: 0,
        embedding_width: width,
        embedding_projection: false,
        position: Position::Learned { offset: 0, rows: context },
        padding: None,
        causal: true,
        patch: None,
        class_token: false,
        layer_scale: false,
        shared_blocks: false,
        pooler: false,
        head: Head::None,
        labels: BTreeMap::new(),
    })
}

fn llama(keys: &Keys<'_>) -> Result<Architecture> {
    let width = keys.size("hidden_size")?;
    let heads = keys.size("num_attention_heads")?;
    let key_value_heads = keys.optional_size("num_key_value_heads")?.unwrap_or(heads);
    if heads % key_value_heads != 0 {
        return Err(keys.problem("num_key_value_heads", format!("a divisor of num_attention_heads = {heads}")));
    }
    let head_width = match keys.optional_size("head_dim")? {
        Some(head_width) => head_width,
        None => head_width(keys, "hidden_size", width, "num_attention_heads", heads)?,
    };
    if heads.checked_mul(head_width).is_none_or(|n| n > 1 << 28) {
        return Err(keys.problem("head_dim", "a width of a head"));
    }
    let context = keys.size("max_position_embeddings")?;
    let attention = keys.flag("attention_bias", false)?;
    let position = rotary(keys, context, head_width)?;
    Ok(Architecture {
        family: Family::Llama,
        width,
        layers: layers(keys, "num_hidden_layers")?,
        heads,
        key_value_heads,
        head_width,
        feed_forward: keys.size("intermediate_size")?,
        gated: true,
        activation: Activation::named(keys, "hidden_act", Activation::Silu)?,
        norm: Norm {
            kind: NormKind::Rms,
            epsilon: keys.optional_positive("rms_norm_eps")?.unwrap_or(1e-6),
            place: NormPlace::Pre,
        },
        embedding_norm: false,
        final_norm: true,
        biases: Biases { query_key_value: attention, out: attention, feed_forward: keys.flag("mlp_bias", false)? },
        vocabulary: keys.size("vocab_size")?,
        context,
        token_types: 0,
        embedding_width: width,
        embedding_projection: false,
        position,
        padding: None,
        causal: true,
        patch: None,
        class_token: false,
        layer_scale: false,
        shared_blocks: false,
        pooler: false,
        head: Head::None,
        labels: BTreeMap::new(),
    })
}

/// `rope_parameters` of newer files, `rope_theta` and `rope_scaling` of older ones.
fn rotary(keys: &Keys<'_>, context: usize, head_width: usize) -> Result<Position> {
    let newer = keys.below("rope_parameters")?;
    let base = match newer.as_ref().map(|keys| keys.optional_positive("rope_theta")).transpose()?.flatten() {
        Some(base) => base,
        None => keys.optional_positive("rope_theta")?.unwrap_or(10000.0),
    };
    if base <= 1.0 {
        return Err(newer.as_ref().unwrap_or(keys).problem("rope_theta", "a number above 1"));
    }
    let scaling = match newer {
        Some(newer) => Some(newer),
        None => keys.below("rope_scaling")?,
    };
    let share =
        match scaling.as_ref().map(|keys| keys.optional_positive("partial_rotary_factor")).transpose()?.flatten() {
            Some(share) => share,
            None => keys.optional_positive("partial_rotary_factor")?.unwrap_or(1.0),
        };
    if share == 1.0 && !head_width.is_multiple_of(2) {
        let key = if keys.get("head_dim").is_some() { "head_dim" } else { "num_attention_heads" };
        return Err(keys.problem(key, format!("one that makes heads of even width, not {head_width}")));
    }
    let rotated = (head_width as f64 * share) as usize;
    if share > 1.0 || rotated < 2 || !rotated.is_multiple_of(2) {
        let expected = format!("a share of at most 1 that leaves an even part of heads of {head_width}");
        return Err(keys.problem("partial_rotary_factor", expected));
    }
    let plain = RotaryConfig { base, share, ..RotaryConfig::default() };
    Ok(Position::Rotary(scaling.map_or(Ok(plain), |keys| scaled(plain, &keys, context))?))
}

fn image(family: Family, keys: &Keys<'_>) -> Result<Architecture> {
    keys.only("use_swiglu_ffn", false)?;
    let patch = Patch {
        image: side(keys, "image_size", 224)?,
        patch: side(keys, "patch_size", if family == Family::Dinov2 { 14 } else { 16 })?,
        channels: side(keys, "num_channels", 3)?,
    };
    if patch.patch > patch.image {
        return Err(keys.problem("patch_size", format!("at most image_size = {}", patch.image)));
    }
    let common = common(family, keys)?;
    let context = patch.count() + 1;
    let mut architecture = Architecture {
        norm: norm(keys, "layer_norm_eps", if family == Family::Dinov2 { 1e-6 } else { 1e-12 }, NormPlace::Pre)?,
        final_norm: true,
        biases: Biases { query_key_value: keys.flag("qkv_bias", true)?, out: true, feed_forward: true },
        context,
        position: Position::Learned { offset: 0, rows: context },
        patch: Some(patch),
        class_token: true,
        ..common
    };
    if family == Family::Dinov2 {
        let ratio = keys.optional_positive("mlp_ratio")?.unwrap_or(4.0);
        let inner = architecture.width as f64 * ratio;
        if !(1.0..=(1 << 28) as f64).contains(&inner) {
            return Err(keys.problem("mlp_ratio", "a number that makes sense with hidden_size"));
        }
        architecture.feed_forward = inner as usize;
        architecture.layer_scale = true;
    } else {
        architecture.feed_forward = keys.size("intermediate_size")?;
        if let Some(width) = keys.optional_size("pooler_output_size")?
            && width != architecture.width
        {
            return Err(keys.problem("pooler_output_size", format!("hidden_size = {}", architecture.width)));
        }
        if keys.optional_text("pooler_act")?.is_some_and(|name| name != "tanh") {
            return Err(keys.problem("pooler_act", "\"tanh\", the only one read"));
        }
    }
    Ok(architecture)
}

/// A length in pixels, or the number of colours; a list of equal ones counts as one.
fn side(keys: &Keys<'_>, key: &str, default: usize) -> Result<usize> {
    let side = match keys.get(key).and_then(|value| value.as_array()) {
        None => keys.optional_size(key)?.unwrap_or(default),
        Some(sides) => {
            let first = sides.first().and_then(|value| value.as_u64()).unwrap_or(0);
            if sides.len() != 2 || sides[0] != sides[1] || first == 0 {
                return Err(keys.problem(key, "one whole number, or two equal ones"));
            }
            usize::try_from(first).unwrap_or(usize::MAX)
        }
    };
    if side > LONGEST_SIDE {
        return Err(keys.problem(key, format!("at most {LONGEST_SIDE}")));
    }
    Ok(side)
}

fn layers(keys: &Keys<'_>, key: &str) -> Result<usize> {
    let layers = keys.size(key)?;
    if layers > MOST_LAYERS { Err(keys.problem(key, format!("at most {MOST_LAYERS}"))) } else { Ok(layers) }
}

fn norm(keys: &Keys<'_>, key: &str, default: f64, place: NormPlace) -> Result<Norm> {
    Ok(Norm { kind: NormKind::Layer, epsilon: keys.optional_positive(key)?.unwrap_or(default), place })
}

fn head_width(keys: &Keys<'_>, width_key: &str, width: usize, heads_key: &str, heads: usize) -> Result<usize> {
    if width.is_multiple_of(heads) {
        Ok(width / heads)
    } else {
        Err(keys.problem(heads_key, format!("a divisor of {width_key} = {width}")))
    }
}
