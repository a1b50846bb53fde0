//! What a call leaves open: options that the tensors say, tensors that have a default or are drawn.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use regard_kernels::{
    AttentionOptions, Error, Layout, Mechanism, draws,
    features::{FeatureKind, FeatureOptions},
    mechanism::{Inference, KeyDesign, Prior, Sharing},
    random::substream,
    support::SupportKind,
};

use crate::{options::Options, tensor::Tensor};

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// Streams of draws under a seed, those of `regard attend`: the same seed draws the same numbers there.
const PROJECTION_STREAM: u64 = 2;
const DIRECTIONS_STREAM: u64 = 3;
const ROTATIONS_STREAM: u64 = 4;

/// Largest tensor, in numbers, that is drawn or filled in: 1 GiB.
const MOST: usize = 1 << 28;

/// Sizes of a call that defaults depend on.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    heads: usize,
    queries: usize,
    keys: usize,
    width: usize,
}

/// Whether queries are the keys.
fn shares_queries(options: &AttentionOptions) -> bool {
    options.uses_support() && options.support.kind == SupportKind::Lsh
}

fn sizes(options: &AttentionOptions, tensors: &Tensors, layout: Layout) -> Result<Option<Sizes>, Error> {
    let Some(q) = tensors.get("q") else { return Ok(None) };
    let (head_axis, token_axis) = if layout == Layout::HeadFirst { (1, 2) } else { (2, 1) };
    if q.shape.len() != 4 {
        return Err(Error::rank("q", &q.shape, 4));
    }
    // Values have as many tokens as keys; without values of their own, queries have.
    let others = ["v", "k"].into_iter().filter_map(|name| tensors.get(name)).find(|tensor| tensor.shape.len() == 4);
    let keys = if shares_queries(options) { q } else { others.unwrap_or(q) };
    Ok(Some(Sizes {
        heads: q.shape[head_axis],
        queries: q.shape[token_axis],
        keys: keys.shape[token_axis],
        width: q.shape[3],
    }))
}

/// The options with what the tensors say where nobody chose: heads, components, the design of keys, shared values, rows,
/// rounds, experts, and the sizes that a budget gives.
pub fn options(given: &Options, tensors: &Tensors, layout: Layout) -> Result<AttentionOptions, Error> {
    let mut options = given.typed.clone();
    let axis = |name: &str, rank: usize, axis: usize| {
        let tensor = tensors.get(name).filter(|tensor| tensor.shape.len() == rank);
        // The operator says what is wrong with a tensor of another rank or without elements.
        tensor.map(|tensor| tensor.shape[axis]).filter(|size| *size > 0)
    };
    let agree = |key: &str, fixed: bool, size: &mut usize, seen: Option<usize>| match seen {
        Some(seen) if fixed && seen != *size => {
            Err(Error::option(key, *size, format!("{seen}, as the tensors have them")))
        }
        Some(seen) => {
            *size = seen;
            Ok(())
        }
        None => Ok(()),
    };
    let sizes = sizes(&options, tensors, layout)?;
    let head_axis = if layout == Layout::HeadFirst { 1 } else { 2 };
    let key_name = if shares_queries(&options) || !tensors.contains_key("k") { "v" } else { "k" };
    if let Some(sizes) = sizes {
        agree("heads", given.is_chosen("heads"), &mut options.heads, Some(sizes.heads))?;
    }
    let key_heads = match tensors.get(key_name).map(|tensor| &tensor.shape[..]) {
        Some(&[_, a, b, _]) => Some(if head_axis == 1 { a } else { b }),
        Some(&[_, heads, _, _, _]) if layout == Layout::HeadFirst => Some(heads),
        Some(&[_, _, _, heads, _]) => Some(heads),
        _ => None,
    };
    if let (Some(asked), Some(seen)) = (options.key_value_heads, key_heads)
        && asked != seen
    {
        return Err(Error::option("key_value_heads", asked, format!("{seen}, as the tensors have them")));
    }
    // The operator holds heads against each other by the tensors themselves.
    options.key_value_heads = key_heads.filter(|seen| *seen > 0 && options.heads.is_multiple_of(*seen));
    if options.mechanism == Mechanism::Moa {
        options.key_value_heads = None;
        agree("moa.experts", given.is_chosen("moa.experts"), &mut options.moa.experts, axis("w_gate", 2, 1))?;
    }
    if options.mechanism.is_mixture() {
        if tensors.contains_key("shift") && !given.is_chosen("keys.design") {
            options.keys.design = KeyDesign::Shifted;
        }
        let seen = match options.keys.design {
            KeyDesign::Projected => axis("k", 5, 2),
            KeyDesign::Shifted => axis("shift", 3, 1),
        };
        agree("keys.components", given.is_chosen("keys.components"), &mut options.keys.components, seen)?;
    }
    if options.mechanism == Mechanism::Fastformer && tensors.contains_key("v") && !given.is_chosen("fastformer.sharing")
    {
        options.fastformer.sharing = Sharing::None;
    }
    if options.uses_support() {
        let rounds = match options.support.kind {
            SupportKind::Smyrf => axis("directions", 2, 0),
            SupportKind::Lsh => axis("rotations", 3, 0),
            _ => None,
        };
        agree("support.rounds", given.is_chosen("support.rounds"), &mut options.support.rounds, rounds)?;
        if let (SupportKind::Lsh, Some(half)) = (options.support.kind, axis("rotations", 3, 2)) {
            let mut values = options.support.hash_values.unwrap_or(2 * half);
            agree("support.hash_values", true, &mut values, Some(2 * half))?;
            options.support.hash_values = Some(values);
        }
    }
    if let (Some(_), Some(Sizes { queries, keys, width, .. })) = (options.budget, sizes) {
        options = options.within_budget(queries, keys, width)?;
    }
    if options.uses_features() && options.features.kind != FeatureKind::Elu {
        let fixed = given.typed.budget.is_some() || given.is_chosen("features.rows");
        agree("features.rows", fixed, &mut options.features.rows, axis("projection", 2, 0))?;
    }
    Ok(options)
}

/// Adds to the tensors what the operator takes, by `names`, and has a default or is drawn: variances, a uniform prior,
/// projections and hashes.
pub fn complete(
    tensors: &mut Tensors,
    names: &[&'static str],
    options: &AttentionOptions,
    layout: Layout,
    seed: u64,
) -> Result<(), Error> {
    if options.mechanism == Mechanism::Gaussian
        && let Some(k) = tensors.get_mut("k").filter(|k| k.shape.len() == 4)
    {
        // One component, before the keys or before the heads: in either layout the third axis.
        k.shape.insert(2, 1);
    }
    let Some(Sizes { heads, keys, width, .. }) = sizes(options, tensors, layout)? else { return Ok(()) };
    let components = options.components();
    for &name in names {
        if tensors.contains_key(name) {
            continue;
        }
        let (features, support) = (&options.features, &options.support);
        let shape = match name {
            "variance" => vec![components],
            "log_prior" => {
                let per_position = options.mechanism == Mechanism::Mgk
                    && (options.mixture.prior == Prior::PerPosition || options.mixture.inference == Inference::SoftEm);
                let mut shape = vec![heads, components];
                shape.extend(per_position.then_some(keys));
                shape
            }
            "projection" => vec![features.rows, width],
            "directions" => vec![support.rounds, width.saturating_add(2)],
            "rotations" => vec![support.rounds, width, support.hash_values(keys) / 2],
            _ => continue,
        };
        let count = shape.iter().try_fold(1usize, |count, size| count.checked_mul(*size));
        if count.is_none_or(|count| count > MOST) {
            return Err(Error::shape(name, &shape, format!("a size that can be made, at most {MOST} numbers")));
        }
        let data = match name {
            "variance" => {
                let variances = options.mixture.variances.resolve(components, width)?;
                variances.into_iter().map(|variance| variance as f32).collect()
            }
            "log_prior" => vec![-(components as f32).ln(); shape.iter().product()],
            _ => drawn(name, &shape, features, support.hash_values(keys), seed),
        };
        tensors.insert(name.to_owned(), Tensor::own(shape, data));
    }
    Ok(())
}

/// What was drawn, under what names a draw.
type Draw = ((&'static str, Vec<usize>, String, u64), Arc<Vec<f32>>);

/// Draws are kept, few at a time: orthogonal rows cost more than attention to a short sequence.
fn drawn(name: &'static str, shape: &[usize], features: &FeatureOptions, hash_values: usize, seed: u64) -> Vec<f32> {
    const KEPT: usize = 16;
    static DRAWS: Mutex<Vec<Draw>> = Mutex::new(Vec::new());
    let rule = format!("{:?} {:?}", features.rows_drawn, features.row_norms);
    let key = (name, shape.to_vec(), rule, seed);
    let mut draws = DRAWS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, draw)) = draws.iter().find(|(known, _)| *known == key) {
        return draw.to_vec();
    }
    let stream = |stream| substream(seed, stream);
    let draw = match name {
        "projection" => {
            draws::projection(shape[0], shape[1], features.rows_drawn, features.row_norms, stream(PROJECTION_STREAM))
        }
        "directions" => draws::directions(shape[0], shape[1] - 2, stream(DIRECTIONS_STREAM)),
        _ => draws::rotations(shape[0], shape[1], hash_values, stream(ROTATIONS_STREAM)),
    };
    if draws.len() == KEPT {
        draws.remove(0);
    }
    draws.push((key, Arc::new(draw.clone())));
    draw
}
