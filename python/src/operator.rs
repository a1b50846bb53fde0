//! A mechanism with its options, applied to tensors by name.

use std::sync::Arc;

use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyDict, PyList, PyString},
};
use regard_kernels::{
    AttentionOptions, Call, Dropout, Error, InputSpec, Layout, Mask, Operator as Kernel, Padding, Role, Storage, View,
    memory::arbitrary,
};

use crate::{
    array::{Array, Memory},
    decoder::Decoder,
    error, fit,
    fit::Tensors,
    options::{Options, nearest},
    saved::Saved,
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
    pub dropout: Option<Dropout>,
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
    pub given: Vec<Option<Vec<usize>>>,
}

impl Plan {
    pub fn shapes(&self) -> Vec<&[usize]> {
        self.tensors.iter().map(|tensor| &tensor.shape[..]).collect()
    }

    pub fn views(&self) -> PyResult<Vec<View<'_, f32>>> {
        self.views_with(None)
    }

    /// The tensors as the kernel takes them, those of `moved` where they lie now.
    pub fn views_with<'a>(&'a self, moved: Option<&'a Tensors>) -> PyResult<Vec<View<'a, f32>>> {
        let view = |name: &str, kept: &'a Tensor| {
            let numbers = moved.and_then(|moved| moved.get(name)).unwrap_or(kept).narrow(name)?;
            let expected: usize = kept.shape.iter().product();
            if numbers.len() != expected {
                let seen = numbers.len();
                return Err(PyValueError::new_err(format!(
                    "tensor '{name}' has {seen} numbers now, expected {expected}"
                )));
            }
            Ok(View::new(numbers, &kept.shape))
        };
        self.names.iter().zip(&self.tensors).map(|(name, tensor)| view(name, tensor)).collect()
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

    pub fn check_grad(&self, grad: &Tensor) -> PyResult<()> {
        Error::check_shape("grad_out", &grad.shape, &self.out_shape).map_err(error)
    }

    /// Shape `[B,H,N]` of the log of the denominator.
    pub fn lse_shape(&self) -> Vec<usize> {
        let q = self.names.iter().zip(&self.tensors).find(|(name, _)| **name == "q").map(|(_, tensor)| &tensor.shape);
        match (q.map(|shape| &shape[..]), self.layout) {
            (Some(&[batch, heads, queries, _]), Layout::HeadFirst)
            | (Some(&[batch, queries, heads, _]), Layout::TokenFirst) => vec![batch, heads, queries],
            _ => Vec::new(),
        }
    }
}

impl Operator {
    /// Whether sizes depend on the length.
    pub fn has_budget(&self) -> bool {
        self.options.typed.budget.is_some()
    }

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
        if let Some(slope) = slopes.iter().flatten().find(|slope| !slope.is_finite()) {
            return Err(PyValueError::new_err(format!("slopes has {slope}, expected finite numbers")));
        }
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
