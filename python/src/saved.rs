//! What a forward pass leaves, and the backward pass through it.

use std::sync::Arc;

use pyo3::{exceptions::PyValueError, prelude::*, types::PyDict};
use regard_kernels::{GaussianMixture, Role, Saved as Kept, mechanism::Inference};

use crate::{
    array::{Array, Memory},
    fit::Tensors,
    operator::Plan,
    tensor::Tensor,
    threads::compute,
};

/// What a forward pass leaves for the backward pass: the kernel, its tensors (shared, not copied) and its buffers.
///
/// The tensors and the output must not change until the backward pass is done.
#[pyclass(frozen, module = "regard")]
pub struct Saved {
    pub plan: Plan,
    pub out: Arc<Memory>,
    pub kept: Kept,
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
    ///
    /// ``moved`` holds tensors by name that lie elsewhere by now, with the numbers that they had: where parameters are
    /// shared among processes, their memory is released between the passes and filled again.
    #[pyo3(signature = (grad_out, wanted=None, moved=None))]
    fn backward<'py>(
        &self,
        py: Python<'py>,
        grad_out: &Bound<'py, PyAny>,
        wanted: Option<Vec<String>>,
        moved: Option<&Bound<'py, PyDict>>,
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
        let mut elsewhere = Tensors::new();
        for (name, object) in moved.into_iter().flatten() {
            let name: String = name.extract()?;
            let tensor = Tensor::new(&name, &object)?;
            elsewhere.insert(name, tensor);
        }
        let (grad, views) = (grad_out.narrow("grad_out")?, plan.views_with(Some(&elsewhere))?);
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
