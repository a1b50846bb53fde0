//! One mechanism on the tensors of a safetensors file: the black box by which others check us.

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use regard_kernels::{
    AttentionOptions, Call, Error, GaussianMixture, Mask, Mechanism, Operator, Padding, View,
    mechanism::{Inference, KeyDesign, Prior, Sharing},
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

/// What to apply, and how.
#[derive(Clone)]
pub struct Request<'a> {
    /// Mechanism, mask and options. Sizes (heads, components) are read off the tensors.
    pub options: AttentionOptions,
    /// Options, by key, that somebody chose: what the tensors say yields to them, or is an error.
    pub chosen: &'a dyn Fn(&str) -> bool,
    /// Score scale in place of `1 / sqrt(D)`.
    pub scale: Option<f64>,
    /// Runs the float64 twin instead of the kernel.
    pub reference: bool,
    /// Draws the shifts that the file does not give.
    pub seed: u64,
}

/// Why a file could not be attended to.
#[derive(Debug, thiserror::Error)]
pub enum AttendError {
    /// The file is no whole safetensors file, or a tensor in it is unusable.
    #[error("{0}")]
    Data(String),
    /// Tensors or options that do not fit together.
    #[error(transparent)]
    Call(#[from] Error),
}

/// Names of padding.
const PADDING: [&str; 2] = ["valid", "query_valid"];
/// Names of real inputs of any mechanism; a file may hold others, which are passed over.
const REAL: [&str; 12] =
    ["q", "k", "v", "bias", "grad_out", "log_prior", "prior", "variance", "shift", "w_q", "w_k", "w_t"];
/// Most components that are drawn: far more than any mixture has, and few enough to fit into memory.
const MOST_COMPONENTS: usize = 1024;
/// Streams of draws; each name has its own.
const SHIFT_STREAM: u64 = 1;

/// A tensor held as float64.
#[derive(Clone, Debug)]
struct Tensor {
    shape: Vec<usize>,
    data: Vec<f64>,
}

impl Tensor {
    fn view(&self) -> View<'_, f64> {
        View::new(&self.data, &self.shape)
    }
}

/// The tensors of the file.
struct Inputs {
    real: BTreeMap<String, Tensor>,
    padding: BTreeMap<String, Padding>,
    dtype: Dtype,
}

/// Applies the mechanism to the tensors of `file`; returns the bytes of a file with `out`, `lse` where it exists,
/// `prior_after` in soft-EM, and `grad.NAME` for each input where the file has `grad_out`. Numbers are in the format
/// of `q` (or of `k` where there is no `q`).
///
/// # Errors
/// A file that is not whole, numbers that are not finite, tensors that are missing or do not fit.
pub fn attend(file: &[u8], request: &Request) -> Result<Vec<u8>, AttendError> {
    let mut inputs = Inputs::read(file)?;
    let plan = Plan::new(&mut inputs, request)?;
    let outputs = plan.run(&inputs, request)?;
    Ok(write(&outputs, inputs.dtype))
}

impl Inputs {
    fn read(file: &[u8]) -> Result<Self, AttendError> {
        let tensors = SafeTensors::deserialize(file).map_err(|error| {
            AttendError::Data(format!("not a whole safetensors file ({error}); write it again, or copy it whole"))
        })?;
        let (mut real, mut padding, mut dtype) = (BTreeMap::new(), BTreeMap::new(), None);
        for (name, view) in tensors.iter() {
            // Results in the file, as golden data have them, are not inputs.
            if name.starts_with("grad.") {
                continue;
            }
            if PADDING.contains(&name) {
                padding.insert(name.to_owned(), read_padding(name, &view)?);
            } else if matches!(view.dtype(), Dtype::F32 | Dtype::F64) {
                if name == "q" || dtype.is_none() {
                    dtype = Some(view.dtype());
                }
                real.insert(name.to_owned(), Tensor { shape: view.shape().to_vec(), data: read_real(&view) });
            } else if REAL.contains(&name) {
                let seen = view.dtype();
                return Err(AttendError::Data(format!("tensor '{name}' holds {seen:?} numbers, expected F32 or F64")));
            }
        }
        Ok(Self { real, padding, dtype: dtype.unwrap_or(Dtype::F32) })
    }

    fn need(&self, name: &str, why: &str) -> Result<&Tensor, AttendError> {
        let tensor = self.real.get(name).ok_or_else(|| Error::missing(name, why))?;
        if let Some(at) = tensor.data.iter().position(|x| !x.is_finite()) {
            let (value, place) = (tensor.data[at], place(at, &tensor.shape));
            return Err(AttendError::Data(format!(
                "tensor '{name}' holds {value} at {place:?}, expected finite numbers"
            )));
        }
        Ok(tensor)
    }
}

/// Fails where a number is too large for the float32 of the kernels, or a variance too small.
fn check_narrow(name: &str, tensor: &Tensor) -> Result<(), AttendError> {
    let fits = |x: &f64| (*x as f32).is_finite() && (name != "variance" || *x as f32 > 0.0);
    let Some(at) = tensor.data.iter().position(|x| !fits(x)) else { return Ok(()) };
    let (value, place) = (tensor.data[at], place(at, &tensor.shape));
    Err(AttendError::Data(format!(
        "tensor '{name}' holds {value:e} at {place:?}, beyond the float32 of the kernels; use --reference"
    )))
}

fn read_real(view: &TensorView) -> Vec<f64> {
    let bytes = view.data();
    match view.dtype() {
        Dtype::F32 => {
            bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().expect("4 bytes")))).collect()
        }
        _ => bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().expect("8 bytes"))).collect(),
    }
}

fn read_padding(name: &str, view: &TensorView) -> Result<Padding, AttendError> {
    if !matches!(view.dtype(), Dtype::U8 | Dtype::BOOL) {
        let seen = view.dtype();
        return Err(AttendError::Data(format!("tensor '{name}' holds {seen:?} numbers, expected U8 (1 = real token)")));
    }
    let &[batch, length] = view.shape() else { return Err(Error::rank(name, view.shape(), 2).into()) };
    Ok(Padding::new(batch, length, view.data().to_vec())?)
}

/// Index of element `at` along each axis.
fn place(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut index: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&size| {
            let i = at % size;
            at /= size;
            i
        })
        .collect();
    index.reverse();
    index
}

/// The operator for the tensors at hand, and the names of what it takes, in its order.
struct Plan {
    operator: std::sync::Arc<dyn Operator>,
    names: Vec<&'static str>,
    out_shape: Vec<usize>,
    /// Names of inputs that were in the file, hence have gradients to report, and their shapes there.
    given: BTreeMap<&'static str, Vec<usize>>,
    /// The same mechanism as a mixture, where the prior is to be updated.
    update: Option<GaussianMixture>,
}

impl Plan {
    fn new(inputs: &mut Inputs, request: &Request) -> Result<Self, AttendError> {
        let mut options = request.options.clone();
        let mechanism = options.mechanism;
        fit_options(&mut options, inputs, request)?;
        let padding = |name: &str| inputs.padding.get(name).cloned().map(std::sync::Arc::new);
        let mask = Mask {
            causal: options.causal,
            window: options.window,
            valid: padding("valid"),
            query_valid: padding("query_valid"),
        };
        let bias = inputs.real.contains_key("bias");
        let call = Call { mask: mask.clone(), scale: request.scale, bias, ..Call::default() };
        let operator = options.operator(call)?;
        let names = operator.inputs();
        let mut given: BTreeMap<&'static str, Vec<usize>> = BTreeMap::new();
        for &name in &names {
            if let Some(tensor) = inputs.real.get(name) {
                given.insert(name, tensor.shape.clone());
            }
        }
        complete(inputs, &options, request)?;
        let why = format!("{mechanism} needs it");
        let mut shapes = Vec::new();
        for &name in &names {
            shapes.push(inputs.need(name, &why)?.shape.clone());
        }
        let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        let out_shape = operator.out_shape(&shapes)?;
        let update =
            (mechanism == Mechanism::Mgk && options.mixture.inference == Inference::SoftEm).then(|| GaussianMixture {
                mask,
                score: options.mixture.score,
                shifted: options.shifted(),
                ..GaussianMixture::default()
            });
        Ok(Self { operator, names, out_shape, given, update })
    }

    fn run(&self, inputs: &Inputs, request: &Request) -> Result<BTreeMap<String, Tensor>, AttendError> {
        let grad_out = match inputs.real.contains_key("grad_out") {
            true => Some(inputs.need("grad_out", "gradients were asked for")?),
            false => None,
        };
        if let Some(grad_out) = grad_out {
            Error::check_shape("grad_out", &grad_out.shape, &self.out_shape)?;
        }
        let tensors: Vec<&Tensor> = self.names.iter().map(|name| &inputs.real[*name]).collect();
        if !request.reference {
            let all = self.names.iter().copied().zip(tensors.iter().copied());
            all.chain(grad_out.map(|grad| ("grad_out", grad)))
                .try_for_each(|(name, tensor)| check_narrow(name, tensor))?;
        }
        let mut results = BTreeMap::new();
        let (out, lse, grads, prior) = if request.reference {
            self.run_reference(&tensors, grad_out)
        } else {
            self.run_kernel(&tensors, grad_out)
        };
        if let Some(lse) = lse {
            let q = &inputs.real["q"].shape;
            results.insert("lse".to_owned(), Tensor { shape: q[..3].to_vec(), data: lse });
        }
        if let Some(prior) = prior {
            let shape = inputs.real["log_prior"].shape.clone();
            results.insert("prior_after".to_owned(), Tensor { shape, data: prior });
        }
        for (name, grad) in self.names.iter().zip(grads) {
            if let (Some(shape), Some(data)) = (self.given.get(name), grad) {
                results.insert(format!("grad.{name}"), Tensor { shape: shape.clone(), data });
            }
        }
        results.insert("out".to_owned(), Tensor { shape: self.out_shape.clone(), data: out });
        Ok(results)
    }

    #[allow(clippy::type_complexity)]
    fn run_reference(
        &self,
        tensors: &[&Tensor],
        grad_out: Option<&Tensor>,
    ) -> (Vec<f64>, Option<Vec<f64>>, Vec<Option<Vec<f64>>>, Option<Vec<f64>>) {
        let views: Vec<_> = tensors.iter().map(|tensor| tensor.view()).collect();
        let result = self.operator.reference(&views, grad_out.map(|grad| grad.data.as_slice()));
        let prior = self.update.as_ref();
        let prior = prior.map(|op| regard_kernels::reference::gaussian_mixture::responsibilities(op, &views));
        (result.out, result.lse, result.grads.into_iter().map(Some).collect(), prior)
    }

    #[allow(clippy::type_complexity)]
    fn run_kernel(
        &self,
        tensors: &[&Tensor],
        grad_out: Option<&Tensor>,
    ) -> (Vec<f64>, Option<Vec<f64>>, Vec<Option<Vec<f64>>>, Option<Vec<f64>>) {
        let narrow = |data: &[f64]| data.iter().map(|x| *x as f32).collect::<Vec<f32>>();
        let widen = |data: Vec<f32>| data.into_iter().map(f64::from).collect::<Vec<f64>>();
        let data: Vec<Vec<f32>> = tensors.iter().map(|tensor| narrow(&tensor.data)).collect();
        let views: Vec<_> = data.iter().zip(tensors).map(|(data, tensor)| View::new(data, &tensor.shape)).collect();
        let mut out = vec![0.0; self.out_shape.iter().product()];
        let saved = self.operator.forward(&views, &mut out);
        let grads = match grad_out {
            None => Vec::new(),
            Some(grad) => {
                let wanted = vec![true; views.len()];
                self.operator.backward(&views, &out, &saved, &narrow(&grad.data), &wanted)
            }
        };
        let lse = self.operator.has_lse().then(|| widen(saved.into_iter().next().expect("buffer 0 is the log")));
        let prior = self.update.as_ref().map(|op| widen(op.responsibilities(&views)));
        (widen(out), lse, grads.into_iter().map(|grad| grad.map(widen)).collect(), prior)
    }
}

/// Reads off the tensors what the options leave open: heads, components, the design of keys, shared values.
fn fit_options(options: &mut AttentionOptions, inputs: &Inputs, request: &Request) -> Result<(), AttendError> {
    let chosen = request.chosen;
    let why = format!("{} needs it", options.mechanism);
    let (q, k) = (inputs.need("q", &why)?, inputs.need("k", &why)?);
    for (name, tensor, most) in [("q", q, 4), ("k", k, 5)] {
        if !(4..=most).contains(&tensor.shape.len()) {
            return Err(Error::rank(name, &tensor.shape, 4).into());
        }
        if tensor.shape.contains(&0) {
            return Err(Error::shape(name, &tensor.shape, "every size at least 1").into());
        }
    }
    let (heads, key_heads) = (q.shape[1], k.shape[1]);
    for (key, asked, seen) in [
        ("heads", Some(options.heads).filter(|_| chosen("heads")), heads),
        ("key_value_heads", options.key_value_heads, key_heads),
    ] {
        if let Some(asked) = asked.filter(|asked| *asked != seen) {
            return Err(Error::option(key, asked, format!("{seen}, as the file has them")).into());
        }
    }
    if !heads.is_multiple_of(key_heads) {
        return Err(Error::shape("k", &k.shape, format!("a number of heads that divides that of q, {heads}")).into());
    }
    options.heads = heads;
    options.key_value_heads = Some(key_heads).filter(|key_heads| *key_heads != heads);
    if options.mechanism.is_mixture() {
        let shift = inputs.real.get("shift");
        if shift.is_some() && !chosen("keys.design") {
            options.keys.design = KeyDesign::Shifted;
        }
        let seen = match options.keys.design {
            KeyDesign::Projected if k.shape.len() == 5 => Some(k.shape[2]),
            KeyDesign::Projected => {
                return Err(
                    Error::shape("k", &k.shape, "[B,Hk,M,S,D], one key a component (or a tensor 'shift')").into()
                );
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
    }
    if options.mechanism == Mechanism::Fastformer && inputs.real.contains_key("v") && !chosen("fastformer.sharing") {
        options.fastformer.sharing = Sharing::None;
    }
    Ok(())
}

/// Adds what has a default to the inputs: variances, a uniform prior, drawn shifts.
fn complete(inputs: &mut Inputs, options: &AttentionOptions, request: &Request) -> Result<(), AttendError> {
    let mixture = matches!(options.mechanism, Mechanism::Gaussian | Mechanism::Mgk);
    let components = options.components();
    let (width, heads) = (inputs.real["q"].shape[3], inputs.real["q"].shape[1]);
    let (key_heads, keys) = {
        let shape = &inputs.real["k"].shape;
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
    Ok(())
}

/// A standard normal number that float32 holds (Box and Muller 1958).
fn normal(stream: &mut ChaCha8Rng) -> f64 {
    let (radius, angle): (f64, f64) = (1.0 - stream.random::<f64>(), stream.random());
    f64::from(((-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()) as f32)
}

fn write(tensors: &BTreeMap<String, Tensor>, dtype: Dtype) -> Vec<u8> {
    let bytes: Vec<Vec<u8>> = tensors
        .values()
        .map(|tensor| match dtype {
            Dtype::F64 => tensor.data.iter().flat_map(|x| x.to_le_bytes()).collect(),
            _ => tensor.data.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect(),
        })
        .collect();
    let views = tensors.iter().zip(&bytes).map(|((name, tensor), bytes)| {
        (name.clone(), TensorView::new(dtype, tensor.shape.clone(), bytes).expect("as many bytes as the shape says"))
    });
    safetensors::serialize(views.collect::<Vec<_>>(), None).expect("views are whole")
}
