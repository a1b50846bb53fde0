//! A mechanism with its options, applied to tensors by name.

use std::sync::Arc;

use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyDict, PyList, PyString},
};
use regard_kernels::{
    AttentionOptions, Call, Dropout, Error, GaussianMixture, InputSpec, Layout, Mask, Operator as Kernel, Padding,
    Role, Saved as Kept, Storage, View, mechanism::Inference, memory::arbitrary,
};

use crate::{
    array::{Array, Memory},
    decoder::Decoder,
    error, fit,
    fit::Tensors,
    options::{Options, nearest},
    tensor::{Reals, Slice, Tensor, padding},
    threads::compute,
};

/// Names of padding.
const PADDING: [&str; 2] = ["valid", "query_valid"];
/// Tensors that change the call by being there.
const OPTIONAL: [&str; 2] = ["bias", "x_kv"];

/// A mechanism with its options. The class of the same name in the package is the one to use.
#[pyclass(frozen, module = "regard._native")]
pub struct Operator {
    options: Options,
    layout: Layout,
    scale: Option<f64>,
    slopes: Option<Arc<[f32]>>,
    dropout: Option<Dropout>,
    seed: u64,
}

/// The kernel for the tensors at hand, and the tensors in the order in which it takes them.
pub struct Plan {
    pub kernel: Arc<dyn Kernel>,
    pub options: AttentionOptions,
    pub mask: Mask,
    pub layout: Layout,
    pub names: Vec<&'static str>,
    pub roles: Vec<Role>,
    pub tensors: Vec<Tensor>,
    pub out_shape: Vec<usize>,
    /// Shapes of the tensors that were given and are not drawn, hence have gradients, as they were given.
    given: Vec<Option<Vec<usize>>>,
}

impl Plan {
    pub fn shapes(&self) -> Vec<&[usize]> {
        self.tensors.iter().map(|tensor| &tensor.shape[..]).collect()
    }

    pub fn views(&self) -> PyResult<Vec<View<'_, f32>>> {
        let pairs = self.names.iter().zip(&self.tensors);
        pairs.map(|(name, tensor)| Ok(View::new(tensor.narrow(name)?, &tensor.shape))).collect()
    }

    fn check_variances(&self) -> PyResult<()> {
        let Some(at) = self.names.iter().position(|name| *name == "variance") else { return Ok(()) };
        let bad = match &self.tensors[at].data {
            Reals::F32(data) => data.iter().map(|s| f64::from(*s)).find(|s| s.is_nan() || *s <= 0.0),
            Reals::F64(data) => data.iter().copied().find(|s| s.is_nan() || *s <= 0.0),
        };
        bad.map_or(Ok(()), |bad| {
            Err(PyValueError::new_err(format!("tensor 'variance' holds {bad}, expected positive numbers")))
        })
    }

    fn check_grad(&self, grad: &Tensor) -> PyResult<()> {
        Error::check_shape("grad_out", &grad.shape, &self.out_shape).map_err(error)
    }

    /// Shape `[B,H,N]` of the log of the denominator.
    fn lse_shape(&self) -> Vec<usize> {
        let q = self.names.iter().zip(&self.tensors).find(|(name, _)| **name == "q").map(|(_, tensor)| &tensor.shape);
        match (q.map(|shape| &shape[..]), self.layout) {
            (Some(&[batch, heads, queries, _]), Layout::HeadFirst)
            | (Some(&[batch, queries, heads, _]), Layout::TokenFirst) => vec![batch, heads, queries],
            _ => Vec::new(),
        }
    }
}

impl Operator {
    /// The kernel for tensors of these names; padding and options come from the call.
    fn kernel(&self, options: &AttentionOptions, mask: Mask, has: impl Fn(&str) -> bool) -> PyResult<Arc<dyn Kernel>> {
        let call = Call {
            layout: self.layout,
            mask,
            scale: self.scale,
            slopes: self.slopes.clone(),
            bias: has("bias"),
            dropout: self.dropout,
            cross: has("x_kv"),
        };
        options.operator(call).map_err(error)
    }

    fn mask(&self, valid: Option<Padding>, query_valid: Option<Padding>) -> Mask {
        let AttentionOptions { causal, window, .. } = self.options.typed;
        let query_valid = query_valid.map(Arc::new);
        Mask { causal, window, query_valid, ..Mask::none() }.with_valid(valid.map(Arc::new))
    }

    /// The kernel with whatever a step of decoding or a list of inputs needs to know, without tensors.
    pub fn bare(&self) -> PyResult<Arc<dyn Kernel>> {
        // Sizes that a budget or tensors set are not known yet; any will do.
        let mut options = AttentionOptions { budget: None, ..self.options.typed.clone() };
        if !self.options.is_chosen("moa.experts") {
            options.moa.experts = options.moa.experts.max(options.moa.active);
        }
        self.kernel(&options, self.mask(None, None), |_| false)
    }

    pub fn plan(&self, given: &Bound<'_, PyDict>) -> PyResult<Plan> {
        let mut tensors = Tensors::new();
        let mut paddings = [None, None];
        for (name, object) in given {
            let name = name.cast_into::<PyString>()?.to_string_lossy().into_owned();
            if object.is_none() {
                continue;
            }
            match PADDING.iter().position(|padding| *padding == name) {
                Some(n) => paddings[n] = Some(padding(&name, &object)?),
                None => {
                    tensors.insert(name.clone(), Tensor::new(&name, &object)?);
                }
            }
        }
        let [valid, query_valid] = paddings;
        let mask = self.mask(valid, query_valid);
        let (options, sizes) = fit::fit(&self.options, &tensors, self.layout).map_err(error)?;
        let kernel = self.kernel(&options, mask.clone(), |name| tensors.contains_key(name))?;
        let specs = options.inputs(&*kernel, &sizes);
        let names: Vec<&'static str> = specs.iter().map(|spec| spec.name).collect();
        if let Some(unknown) = tensors.keys().find(|name| !names.contains(&name.as_str())) {
            let known = names.join(", ");
            let hint = nearest(unknown, names.iter().copied().chain(PADDING).chain(OPTIONAL));
            return Err(PyValueError::new_err(format!(
                "tensor '{unknown}' is no input of {} under these options, which takes {known}{hint}",
                options.mechanism
            )));
        }
        let shape_given = |spec: &InputSpec| {
            let given = tensors.get(spec.name).filter(|_| spec.role != Role::Constant);
            given.map(|tensor| tensor.shape.clone())
        };
        let given: Vec<Option<Vec<usize>>> = specs.iter().map(shape_given).collect();
        fit::complete(&mut tensors, &specs, options.mechanism, self.seed).map_err(error)?;
        let why = format!("{} takes {}", options.mechanism, names.join(", "));
        let tensors = names
            .iter()
            .map(|name| tensors.remove(*name).ok_or_else(|| error(Error::missing(*name, why.as_str()))))
            .collect::<PyResult<Vec<_>>>()?;
        let (layout, roles) = (self.layout, specs.iter().map(|spec| spec.role).collect());
        let plan = Plan { kernel, options, mask, layout, names, roles, tensors, out_shape: Vec::new(), given };
        plan.check_variances()?;
        Ok(plan)
    }

    /// A plan whose tensors fit together.
    fn whole_plan(&self, given: &Bound<'_, PyDict>) -> PyResult<Plan> {
        let mut plan = self.plan(given)?;
        plan.out_shape = plan.kernel.out_shape(&plan.shapes()).map_err(error)?;
        Ok(plan)
    }
}

#[pymethods]
impl Operator {
    #[new]
    #[pyo3(signature = (mechanism, options, *, layout, scale, slopes, dropout, dropout_key, seed))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        mechanism: &str,
        options: &Bound<'_, PyDict>,
        layout: &str,
        scale: Option<f64>,
        slopes: Option<Vec<f32>>,
        dropout: f32,
        dropout_key: u64,
        seed: u64,
    ) -> PyResult<Self> {
        let layout = match layout {
            "head_first" => Layout::HeadFirst,
            "token_first" => Layout::TokenFirst,
            other => {
                let hint = nearest(other, ["head_first", "token_first"].into_iter());
                return Err(PyValueError::new_err(format!(
                    "layout is '{other}', expected 'head_first' or 'token_first'{hint}"
                )));
            }
        };
        if !(0.0..1.0).contains(&dropout) {
            return Err(PyValueError::new_err(format!("dropout is {dropout}, expected at least 0 and less than 1")));
        }
        let dropout = (dropout > 0.0).then_some(Dropout { rate: dropout, key: dropout_key });
        let options = Options::new(mechanism, options)?;
        let operator = Self { options, layout, scale, slopes: slopes.map(Arc::from), dropout, seed };
        operator.bare()?;
        Ok(operator)
    }

    #[getter]
    fn mechanism(&self) -> &'static str {
        self.options.typed.mechanism.name()
    }

    /// All options as JSON.
    #[getter]
    fn options_json(&self) -> PyResult<String> {
        serde_json::to_string(&self.options.typed).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    #[getter]
    fn inputs(&self) -> PyResult<Vec<&'static str>> {
        Ok(self.bare()?.inputs())
    }

    #[getter]
    fn constants(&self) -> PyResult<Vec<&'static str>> {
        let kernel = self.bare()?;
        let inputs = kernel.inputs();
        Ok(kernel.constants().iter().copied().filter(|name| inputs.contains(name)).collect())
    }

    fn forward(&self, py: Python<'_>, tensors: &Bound<'_, PyDict>) -> PyResult<(Array, Saved)> {
        let plan = self.whole_plan(tensors)?;
        let views = plan.views()?;
        let len = plan.out_shape.iter().product();
        let (out, kept) = compute(py, || {
            let mut out = arbitrary(len);
            let kept = plan.kernel.forward(&views, &mut out);
            (out, kept)
        })?;
        let out = Arc::new(Memory::from(out));
        Ok((Array::new(&plan.out_shape, out.clone()), Saved { plan, out, kept }))
    }

    /// Output, log of the denominator where there is one, and gradients by name where `grad_out` is given.
    #[pyo3(signature = (tensors, grad_out=None))]
    fn reference<'py>(
        &self,
        py: Python<'py>,
        tensors: &Bound<'py, PyDict>,
        grad_out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Array, Option<Array>, Bound<'py, PyDict>)> {
        let mut plan = self.whole_plan(tensors)?;
        let grad_out = grad_out.map(|grad| Tensor::new("grad_out", grad)).transpose()?;
        if let Some(grad) = &grad_out {
            plan.check_grad(grad)?;
        }
        let grad_out = grad_out.map(|grad| grad.widen().1);
        let lse_shape = plan.lse_shape();
        let wide: Vec<(Vec<usize>, Slice<f64>)> = plan.tensors.drain(..).map(Tensor::widen).collect();
        let views: Vec<View<f64>> = wide.iter().map(|(shape, data)| View::new(data, shape)).collect();
        let kernel = &plan.kernel;
        let result = compute(py, || kernel.reference(&views, grad_out.as_deref()))?;
        let grads = PyDict::new(py);
        for ((name, given), grad) in plan.names.iter().zip(&plan.given).zip(result.grads) {
            if let Some(shape) = given.as_ref().filter(|shape| shape.iter().product::<usize>() == grad.len()) {
                grads.set_item(name, Array::of(shape, grad))?;
            }
        }
        let lse = result
            .lse
            .filter(|lse| lse.len() == lse_shape.iter().product::<usize>())
            .map(|lse| Array::of(&lse_shape, lse));
        Ok((Array::of(&plan.out_shape, result.out), lse, grads))
    }

    fn decoder(slf: Bound<'_, Self>, cache: &str) -> PyResult<Decoder> {
        let known = || Storage::ALL.iter().map(|storage| storage.name());
        let storage = Storage::ALL.iter().copied().find(|storage| storage.name() == cache).ok_or_else(|| {
            let names: Vec<String> = known().map(|name| format!("'{name}'")).collect();
            let hint = nearest(cache, known());
            PyValueError::new_err(format!("cache is '{cache}', expected one of {}{hint}", names.join(", ")))
        })?;
        Decoder::new(slf, storage)
    }
}

/// What a forward pass leaves for the backward pass: the kernel, its tensors (shared, not copied) and its buffers.
///
/// The tensors and the output must not change until the backward pass is done.
#[pyclass(frozen, module = "regard")]
pub struct Saved {
    plan: Plan,
    out: Arc<Memory>,
    kept: Kept,
}

#[pymethods]
impl Saved {
    /// Log of the softmax denominator ``[B,H,N]``, or ``None`` where the mechanism has none. A copy.
    #[getter]
    fn lse(&self) -> Option<Array> {
        Some(Array::of(&self.plan.lse_shape(), self.kept.lse()?.to_vec()))
    }

    /// Bytes kept for the backward pass beside inputs and output.
    #[getter]
    fn nbytes(&self) -> usize {
        self.kept.floats() * size_of::<f32>()
    }

    /// Drawn tensors of the call by name, copied: projections, directions, rotations.
    #[getter]
    fn draws<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let draws = PyDict::new(py);
        for ((name, tensor), role) in self.plan.names.iter().zip(&self.plan.tensors).zip(&self.plan.roles) {
            if *role == Role::Constant {
                draws.set_item(name, Array::of(&tensor.shape, tensor.narrow(name)?.to_vec()))?;
            }
        }
        Ok(draws)
    }

    /// Names of the tensors that have a gradient.
    #[getter]
    fn differentiable(&self) -> Vec<&'static str> {
        let all = self.plan.names.iter().zip(&self.plan.given);
        all.filter(|(_, given)| given.is_some()).map(|(name, _)| *name).collect()
    }

    /// Gradients of ``sum(out * grad_out)`` by name of the input; see ``regard.Operator.backward``.
    #[pyo3(signature = (grad_out, wanted=None))]
    fn backward<'py>(
        &self,
        py: Python<'py>,
        grad_out: &Bound<'py, PyAny>,
        wanted: Option<Vec<String>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let Self { plan, out, kept } = self;
        let known = self.differentiable();
        if let Some(unknown) = wanted.iter().flatten().find(|name| !known.contains(&name.as_str())) {
            let expected = known.join(", ");
            return Err(PyValueError::new_err(format!(
                "'{unknown}' has no gradient here, expected some of {expected}"
            )));
        }
        let is_wanted = |name: &str| wanted.as_ref().is_none_or(|wanted| wanted.iter().any(|wanted| wanted == name));
        let flags: Vec<bool> =
            plan.names.iter().zip(&plan.given).map(|(name, given)| given.is_some() && is_wanted(name)).collect();
        let grad_out = Tensor::new("grad_out", grad_out)?;
        plan.check_grad(&grad_out)?;
        let (grad, views) = (grad_out.narrow("grad_out")?, plan.views()?);
        let gradients = compute(py, || plan.kernel.backward(&views, out.f32(), kept, grad, &flags))?;
        let by_name = PyDict::new(py);
        for ((name, shape), gradient) in plan.names.iter().zip(&plan.given).zip(gradients) {
            if let (Some(shape), Some(gradient)) = (shape, gradient) {
                by_name.set_item(name, Array::of(shape, gradient))?;
            }
        }
        Ok(by_name)
    }

    /// The prior of soft expectation-maximisation after this pass, ``[H,M,S]``: the mean responsibility of each component
    /// for each key over the visible pairs of real tokens.
    ///
    /// Raises ``ValueError`` for any other mechanism than ``mgk`` with a prior per position.
    fn responsibilities(&self, py: Python<'_>) -> PyResult<Array> {
        let Self { plan, .. } = self;
        let prior = plan.names.iter().position(|name| *name == "log_prior").map(|at| plan.tensors[at].shape.clone());
        let shape = match (prior, plan.options.mixture.inference) {
            (Some(shape), Inference::Soft | Inference::SoftEm)
                if shape.len() == 3 && plan.names.contains(&"variance") =>
            {
                shape
            }
            _ => {
                return Err(PyValueError::new_err(
                    "no prior per position here, expected mechanism 'mgk' with mixture.inference = 'soft-em' or \
                     mixture.prior = 'per-position'",
                ));
            }
        };
        let mixture = GaussianMixture {
            layout: plan.layout,
            mask: plan.mask.clone(),
            hard: false,
            score: plan.options.mixture.score,
            shifted: plan.options.shifted(),
            dropout: None,
        };
        let views = plan.views()?;
        let prior = compute(py, || mixture.responsibilities(&views))?;
        Ok(Array::of(&shape, prior))
    }
}

/// Facts about every mechanism, in the order of lists: dictionaries of its name, a summary, time, memory and decoder state
/// by the length ``N``, whether queries and keys may be different sequences, whether it takes a window, and its source.
#[pyfunction]
pub fn mechanisms(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for mechanism in regard_kernels::Mechanism::ALL {
        let facts = mechanism.facts();
        let entry = PyDict::new(py);
        entry.set_item("name", mechanism.name())?;
        entry.set_item("summary", facts.summary)?;
        entry.set_item("time", facts.time.name())?;
        entry.set_item("memory", facts.memory.name())?;
        entry.set_item("decode_state", facts.decode_state.name())?;
        entry.set_item("cross", facts.cross)?;
        entry.set_item("window", facts.window)?;
        entry.set_item("source", facts.source)?;
        list.append(entry)?;
    }
    Ok(list)
}
