//! Options and tensors that the file leaves open.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use regard_kernels::{
    AttentionOptions, Error, Mechanism, draws,
    features::FeatureKind,
    mechanism::{Inference, KeyDesign, Prior, Sharing},
    random::substream,
    support::SupportKind,
};

use super::{
    AttendError, Request,
    inputs::{Inputs, Tensor, place},
};

/// Most components that are drawn: far more than any mixture has, and few enough to fit into memory.
const MOST_COMPONENTS: usize = 1024;
/// Streams of draws; each name has its own.
const SHIFT_STREAM: u64 = 1;
const PROJECTION_STREAM: u64 = 2;
const DIRECTIONS_STREAM: u64 = 3;
const ROTATIONS_STREAM: u64 = 4;

/// The options, with what the tensors say where nobody chose: heads, components, the design of keys, shared values, rows,
/// rounds, blocks, experts.
pub(super) fn fit_options(inputs: &Inputs, request: &Request) -> Result<AttentionOptions, AttendError> {
    let mut options = request.options.clone();
    if options.mechanism == Mechanism::Moa {
        fit_experts(&mut options, inputs, request)?;
        return Ok(options);
    }
    fit_heads(&mut options, inputs, request)?;
    if options.mechanism.is_mixture() {
        fit_components(&mut options, inputs, request)?;
    }
    if options.mechanism == Mechanism::Fastformer
        && inputs.real.contains_key("v")
        && !(request.chosen)("fastformer.sharing")
    {
        options.fastformer.sharing = Sharing::None;
    }
    fit_draws(&mut options, inputs, request)?;
    Ok(options)
}

/// Whether queries are the keys.
fn shares_queries(options: &AttentionOptions) -> bool {
    options.uses_support() && options.support.kind == SupportKind::Lsh
}

fn fit_heads(options: &mut AttentionOptions, inputs: &Inputs, request: &Request) -> Result<(), AttendError> {
    let why = format!("{} needs it", options.mechanism);
    let shared = shares_queries(options);
    // Values have as many heads and tokens as keys.
    let key_name = if shared { "v" } else { "k" };
    let (q, k) = (inputs.need("q", &why)?, inputs.need(key_name, &why)?);
    for (name, tensor, most) in [("q", q, 4), (key_name, k, if shared { 4 } else { 5 })] {
        if !(4..=most).contains(&tensor.shape.len()) {
            return Err(Error::rank(name, &tensor.shape, 4).into());
        }
        if tensor.shape.contains(&0) {
            return Err(Error::shape(name, &tensor.shape, "every size at least 1").into());
        }
    }
    let (heads, key_heads) = (q.shape[1], k.shape[1]);
    for (key, asked, seen) in [
        ("heads", Some(options.heads).filter(|_| (request.chosen)("heads")), heads),
        ("key_value_heads", options.key_value_heads, key_heads),
    ] {
        if let Some(asked) = asked.filter(|asked| *asked != seen) {
            return Err(Error::option(key, asked, format!("{seen}, as the file has them")).into());
        }
    }
    if !heads.is_multiple_of(key_heads) {
        let expected = format!("a number of heads that divides that of q, {heads}");
        return Err(Error::shape(key_name, &k.shape, expected).into());
    }
    if shared && k.shape[2] != q.shape[2] {
        let tokens = q.shape[2];
        let expected = format!("{tokens} tokens, as q: with support.kind = 'lsh' the queries are the keys");
        return Err(Error::shape(key_name, &k.shape, expected).into());
    }
    options.heads = heads;
    options.key_value_heads = Some(key_heads).filter(|key_heads| *key_heads != heads);
    Ok(())
}

/// The number of experts and the width of a head.
fn fit_experts(options: &mut AttentionOptions, inputs: &Inputs, request: &Request) -> Result<(), AttendError> {
    let need = |name: &str, rank: usize| {
        let tensor = inputs.need(name, "moa needs it")?;
        if tensor.shape.len() != rank {
            return Err(AttendError::from(Error::rank(name, &tensor.shape, rank)));
        }
        if tensor.shape.contains(&0) {
            return Err(Error::shape(name, &tensor.shape, "every size at least 1").into());
        }
        Ok(tensor)
    };
    need("x", 3)?;
    let (experts, head_width) = (need("w_gate", 2)?.shape[1], need("w_query", 3)?.shape[2]);
    let moa = &mut options.moa;
    agree("moa.experts", (request.chosen)("moa.experts"), &mut moa.experts, Some(experts))?;
    let mut width = moa.head_width.unwrap_or(head_width);
    agree("moa.head_width", true, &mut width, Some(head_width))?;
    moa.head_width = Some(width);
    Ok(())
}

fn fit_components(options: &mut AttentionOptions, inputs: &Inputs, request: &Request) -> Result<(), AttendError> {
    let chosen = request.chosen;
    let k = inputs.need("k", "a mixture needs it")?;
    if inputs.real.contains_key("shift") && !chosen("keys.design") {
        options.keys.design = KeyDesign::Shifted;
    }
    let seen = match options.keys.design {
        KeyDesign::Projected if k.shape.len() == 5 => Some(k.shape[2]),
        KeyDesign::Projected => {
            return Err(Error::shape("k", &k.shape, "[B,Hk,M,S,D], one key a component (or a tensor 'shift')").into());
        }
        KeyDesign::Shifted => {
            let axis = |name: &str, axis: usize| inputs.real.get(name)?.shape.get(axis).copied();
            axis("shift", 1).or_else(|| axis("log_prior", 1)).or_else(|| axis("variance", 0))
        }
    };
    match seen {
        Some(seen) if chosen("keys.components") && seen != options.keys.components => {
            let expected = format!("{seen}, the number of components in the file");
            return Err(Error::option("keys.components", options.keys.components, expected).into());
        }
        Some(seen) => options.keys.components = seen,
        None if options.keys.components > MOST_COMPONENTS => {
            let expected = format!("at most {MOST_COMPONENTS}");
            return Err(Error::option("keys.components", options.keys.components, expected).into());
        }
        None => {}
    }
    Ok(())
}

/// Sizes that the budget sets, and those of what is drawn: rows of the projection, rounds of hashing, blocks.
fn fit_draws(options: &mut AttentionOptions, inputs: &Inputs, request: &Request) -> Result<(), AttendError> {
    let chosen = request.chosen;
    let tokens = |name: &str| inputs.real[name].shape[2];
    let (queries, keys) = (tokens("q"), tokens(if shares_queries(options) { "q" } else { "k" }));
    let axis = |name: &str, rank: usize, axis: usize| {
        let tensor = inputs.real.get(name).filter(|tensor| tensor.shape.len() == rank);
        // The operator says what is wrong with a tensor of another rank or without elements.
        tensor.map(|tensor| tensor.shape[axis]).filter(|size| *size > 0)
    };
    if options.uses_support() {
        let rounds = match options.support.kind {
            SupportKind::Smyrf => axis("directions", 2, 0),
            SupportKind::Lsh => axis("rotations", 3, 0),
            _ => None,
        };
        agree("support.rounds", chosen("support.rounds"), &mut options.support.rounds, rounds)?;
        if let (SupportKind::Lsh, Some(half)) = (options.support.kind, axis("rotations", 3, 2)) {
            let mut values = options.support.hash_values.unwrap_or(2 * half);
            agree("support.hash_values", true, &mut values, Some(2 * half))?;
            options.support.hash_values = Some(values);
        }
        if options.support.kind == SupportKind::Block && options.support.layout.is_none() {
            fit_layout(options, inputs, queries, chosen("support.block"))?;
        }
    }
    let budgeted = options.budget.is_some();
    *options = options.within_budget(queries, keys, inputs.real["q"].shape[3])?;
    if options.uses_features() && options.features.kind != FeatureKind::Elu {
        let fixed = budgeted || chosen("features.rows");
        agree("features.rows", fixed, &mut options.features.rows, axis("projection", 2, 0))?;
    }
    Ok(())
}

/// Takes over the size that the file has, or fails where another is fixed.
fn agree(key: &str, fixed: bool, size: &mut usize, seen: Option<usize>) -> Result<(), Error> {
    match seen {
        Some(seen) if fixed && seen != *size => {
            return Err(Error::option(key, *size, format!("{seen}, as the file has them")));
        }
        Some(seen) => *size = seen,
        None => {}
    }
    Ok(())
}

/// The tensor `layout` as the option, and the tokens of a block by the number of blocks.
fn fit_layout(options: &mut AttentionOptions, inputs: &Inputs, queries: usize, fixed: bool) -> Result<(), AttendError> {
    if !inputs.real.contains_key("layout") {
        return Ok(());
    }
    let layout = inputs.need("layout", "support.kind is 'block'")?;
    let &[rows, columns] = &layout.shape[..] else { return Err(Error::rank("layout", &layout.shape, 2).into()) };
    if rows == 0 || columns == 0 {
        return Err(Error::shape("layout", &layout.shape, "every size at least 1").into());
    }
    let row = |row: &[f64]| row.iter().map(|seen| if *seen == 0.0 { '0' } else { '1' }).collect();
    options.support.layout = Some(layout.data.chunks_exact(columns).map(row).collect());
    if !fixed {
        options.support.block = queries.div_ceil(rows);
    }
    Ok(())
}

/// Adds to the inputs what has a default or is drawn: variances, a uniform prior, shifts, projections and hashes; `names`
/// are the inputs that the operator takes.
pub(super) fn complete(
    inputs: &mut Inputs,
    names: &[&str],
    options: &AttentionOptions,
    request: &Request,
) -> Result<(), AttendError> {
    if options.mechanism == Mechanism::Moa {
        // Everything is in the file: nothing has a default.
        return Ok(());
    }
    let mixture = matches!(options.mechanism, Mechanism::Gaussian | Mechanism::Mgk);
    let components = options.components();
    let (width, heads) = (inputs.real["q"].shape[3], inputs.real["q"].shape[1]);
    let (key_heads, keys) = {
        let shape = &inputs.real[if shares_queries(options) { "v" } else { "k" }].shape;
        (shape.get(1).copied().unwrap_or(0), shape.get(shape.len().saturating_sub(2)).copied().unwrap_or(0))
    };
    let add = |inputs: &mut Inputs, name: &str, shape: Vec<usize>, data: Vec<f64>| {
        inputs.real.entry(name.to_owned()).or_insert(Tensor { shape, data });
    };
    if options.mechanism == Mechanism::Gaussian && inputs.real["k"].shape.len() == 4 {
        inputs.real.get_mut("k").expect("needed before").shape.insert(2, 1);
    }
    if mixture {
        add(inputs, "variance", vec![components], options.mixture.variances.resolve(components, width)?);
        if let Some(at) = inputs.real["variance"].data.iter().position(|s| *s <= 0.0) {
            let seen = inputs.real["variance"].data[at];
            return Err(AttendError::Data(format!(
                "tensor 'variance' holds {seen} at [{at}], expected positive numbers"
            )));
        }
    }
    if options.mechanism == Mechanism::Mgk && options.mixture.inference == Inference::SoftEm {
        // The buffer of soft-EM is a probability.
        if let Some(prior) = inputs.real.get("prior").cloned() {
            inputs.need("prior", "soft-em needs it")?;
            if let Some(at) = prior.data.iter().position(|p| *p < 0.0) {
                let (seen, place) = (prior.data[at], place(at, &prior.shape));
                return Err(AttendError::Data(format!(
                    "tensor 'prior' holds {seen} at {place:?}, expected probabilities"
                )));
            }
            // A component that is impossible stays so; its logarithm must be finite to pass the kernels' sums.
            let data = prior.data.iter().map(|p| p.max(f64::from(f32::MIN_POSITIVE)).ln()).collect();
            inputs.real.insert("log_prior".to_owned(), Tensor { shape: prior.shape, data });
        }
        let uniform = vec![-(components as f64).ln(); heads * components * keys];
        add(inputs, "log_prior", vec![heads, components, keys], uniform);
        if inputs.real["log_prior"].shape.len() != 3 {
            return Err(Error::rank("log_prior", &inputs.real["log_prior"].shape, 3).into());
        }
    } else if mixture || options.mechanism == Mechanism::Mlk {
        let per_position = mixture && options.mixture.prior == Prior::PerPosition;
        let mut shape = vec![heads, components];
        shape.extend(per_position.then_some(keys));
        if per_position && inputs.real.get("log_prior").is_some_and(|given| given.shape.len() != 3) {
            return Err(Error::shape("log_prior", &inputs.real["log_prior"].shape, format!("{shape:?}")).into());
        }
        let uniform = vec![-(components as f64).ln(); shape.iter().product()];
        add(inputs, "log_prior", shape, uniform);
    }
    if options.shifted() && !inputs.real.contains_key("shift") {
        let shape = vec![key_heads, components, width];
        let mut stream = ChaCha8Rng::seed_from_u64(request.seed);
        stream.set_stream(SHIFT_STREAM);
        let draws = shape.iter().product();
        let data = (0..draws).map(|_| normal(&mut stream));
        add(inputs, "shift", shape, data.collect());
    }
    let (features, support) = (&options.features, &options.support);
    for &name in names {
        if inputs.real.contains_key(name) {
            continue;
        }
        let key = |stream| substream(request.seed, stream);
        let (shape, draw) = match name {
            "projection" => {
                let key = key(PROJECTION_STREAM);
                let draw = draws::projection(features.rows, width, features.rows_drawn, features.row_norms, key);
                (vec![features.rows, width], draw)
            }
            "directions" => {
                let draw = draws::directions(support.rounds, width, key(DIRECTIONS_STREAM));
                (vec![support.rounds, width + 2], draw)
            }
            "rotations" => {
                let values = support.hash_values(keys);
                let draw = draws::rotations(support.rounds, width, values, key(ROTATIONS_STREAM));
                (vec![support.rounds, width, values / 2], draw)
            }
            _ => continue,
        };
        add(inputs, name, shape, draw.into_iter().map(f64::from).collect());
    }
    Ok(())
}

/// A standard normal number that float32 holds (Box and Muller 1958).
fn normal(stream: &mut ChaCha8Rng) -> f64 {
    let (radius, angle): (f64, f64) = (1.0 - stream.random::<f64>(), stream.random());
    f64::from(((-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()) as f32)
}
