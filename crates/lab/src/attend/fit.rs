//! Options and tensors that the file does not specify.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use regard_kernels::{
    AttentionOptions, Error, InputSizes, InputSpec, Layout, Mechanism, mechanism::Inference, random,
    support::SupportKind,
};

use super::{
    AttendError, Request,
    inputs::{Inputs, Tensor, check_finite, place},
};

/// Random stream of the key shifts; [`InputSpec::numbers`] uses others.
const SHIFT_STREAM: u64 = 1;

/// The options, completed from the tensor shapes where they were not set, and the sizes of the call.
pub(super) fn fit(inputs: &Inputs, request: &Request) -> Result<(AttentionOptions, InputSizes), AttendError> {
    let mut options = request.options.clone();
    if options.uses_support() && options.support.kind == SupportKind::Block {
        fit_layout(&mut options, inputs, (request.chosen)("support.block"))?;
    }
    let shapes = inputs.real.iter().map(|(name, tensor)| (name.as_str(), &tensor.shape[..])).collect();
    Ok(options.fit(&shapes, Layout::HeadFirst, request.chosen)?)
}

/// The tensor `layout` as the option, and the tokens of a block by the number of blocks.
fn fit_layout(options: &mut AttentionOptions, inputs: &Inputs, fixed: bool) -> Result<(), AttendError> {
    if !inputs.real.contains_key("layout") {
        return Ok(());
    }
    if options.support.layout.is_some() {
        let expected = "one of it and the tensor 'layout' of the file; leave the option out";
        return Err(Error::option("support.layout", "given", expected).into());
    }
    let layout = inputs.need("layout", "support.kind is 'block'")?;
    check_finite("layout", layout)?;
    let &[rows, columns] = &layout.shape[..] else { return Err(Error::rank("layout", &layout.shape, 2).into()) };
    if rows == 0 || columns == 0 {
        return Err(Error::shape("layout", &layout.shape, "every size at least 1").into());
    }
    let row = |row: &[f64]| row.iter().map(|seen| if *seen == 0.0 { '0' } else { '1' }).collect();
    options.support.layout = Some(layout.data.chunks_exact(columns).map(row).collect());
    if let Some(queries) = inputs.real.get("q").and_then(|q| q.shape.get(2)).filter(|_| !fixed) {
        options.support.block = queries.div_ceil(rows);
    }
    Ok(())
}

/// Adds inputs that have a default or are random, and checks inputs whose values are restricted.
pub(super) fn complete(
    inputs: &mut Inputs,
    specs: &[InputSpec],
    options: &AttentionOptions,
    request: &Request,
) -> Result<(), AttendError> {
    if options.mechanism == Mechanism::Gaussian {
        if inputs.real.contains_key("shift") {
            let problem = "tensor 'shift' is given, but a Gaussian has one key; leave it out, or use --mechanism mgk";
            return Err(AttendError::Data(problem.into()));
        }
        if let Some(k) = inputs.real.get_mut("k") {
            if k.shape.len() == 4 {
                k.shape.insert(2, 1);
            }
            if k.shape.len() == 5 && k.shape[2] != 1 {
                let expected = "one key per position, [B,H,1,S,D]; several are of --mechanism mgk";
                return Err(Error::shape("k", &k.shape, expected).into());
            }
        }
    }
    if options.mechanism == Mechanism::Mgk
        && options.mixture.inference == Inference::SoftEm
        && inputs.real.contains_key("prior")
    {
        // The buffer of soft-EM is a probability.
        let prior = inputs.need("prior", "soft-em needs it")?;
        check_finite("prior", prior)?;
        if let Some(at) = prior.data.iter().position(|p| *p < 0.0 || *p > 1.0 + 1e-5) {
            let (seen, place) = (prior.data[at], place(at, &prior.shape));
            return Err(AttendError::Data(format!("tensor 'prior' holds {seen} at {place:?}, expected probabilities")));
        }
        // A model's buffer has a place for every position, of which these keys take the first.
        let shape = specs.iter().find(|spec| spec.name == "log_prior").map_or(&prior.shape, |spec| &spec.shape).clone();
        let [.., keys] = shape[..] else { return Err(Error::rank("prior", &prior.shape, 3).into()) };
        if prior.shape.len() != 3 || prior.shape[..2] != shape[..2] || prior.shape[2] < keys {
            return Err(Error::shape("prior", &prior.shape, format!("{shape:?}, or more positions")).into());
        }
        // An impossible component stays so, but its logarithm must be finite for the kernels' sums.
        let rows = prior.data.chunks_exact(prior.shape[2]).flat_map(|row| &row[..keys]);
        let data = rows.map(|p| p.max(f64::from(f32::MIN_POSITIVE)).ln()).collect();
        let log_prior = Tensor { shape, data };
        inputs.real.insert("log_prior".to_owned(), log_prior);
    }
    for spec in specs {
        let Some(given) = inputs.real.get(spec.name) else {
            let data = if spec.name == "shift" { Some(shift(spec, request.seed)) } else { spec.numbers(request.seed)? };
            let tensor = data.map(|data| Tensor { shape: spec.shape.clone(), data });
            inputs.real.extend(tensor.map(|tensor| (spec.name.to_owned(), tensor)));
            continue;
        };
        // The operator takes a prior of either rank; these options select one.
        if spec.name == "log_prior" && given.shape.len() < spec.shape.len() {
            let expected = format!("{:?}, or a tensor 'prior' of this shape in its place", spec.shape);
            return Err(Error::shape(spec.name, &given.shape, expected).into());
        }
        if let Some(at) = given.data.iter().position(|s| spec.name == "variance" && *s <= 0.0) {
            let seen = given.data[at];
            return Err(AttendError::Data(format!(
                "tensor 'variance' holds {seen} at [{at}], expected positive numbers"
            )));
        }
    }
    Ok(())
}

fn shift(spec: &InputSpec, seed: u64) -> Vec<f64> {
    let mut stream = ChaCha8Rng::seed_from_u64(seed);
    stream.set_stream(SHIFT_STREAM);
    // Rounded to float32.
    let one = |_| f64::from(random::normal(1.0 - stream.random::<f64>(), stream.random()) as f32);
    (0..spec.shape.iter().product()).map(one).collect()
}
