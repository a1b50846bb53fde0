//! Decoding token by token.

use std::sync::{Mutex, TryLockError};

use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
    types::PyDict,
};
use regard_kernels::{Decode, Error, Role, Storage};

use crate::{
    array::Array,
    error,
    operator::{Operator, Plan},
    threads::compute,
};

/// The state of a causal mechanism that takes one token at a time.
#[pyclass(frozen, module = "regard._native")]
pub struct Decoder {
    operator: Py<Operator>,
    storage: Storage,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Made at the first token, whose tensors say which options nobody chose.
    decode: Option<Box<dyn Decode>>,
    /// Names and shapes of the first token's tensors.
    names: Vec<&'static str>,
    shapes: Vec<Vec<usize>>,
    /// Batch rows now.
    batch: usize,
    tokens: usize,
}

impl Decoder {
    pub fn new(operator: Bound<'_, Operator>, storage: Storage) -> PyResult<Self> {
        let own = operator.get();
        if own.bare()?.decoder(storage).is_none() {
            return Err(no_decoder());
        }
        if own.dropout.is_some() {
            return Err(PyValueError::new_err("a decoder drops nothing, expected an operator with dropout=0"));
        }
        if own.has_budget() {
            let expected = "expected sizes, as support__radius and features__rows";
            return Err(PyValueError::new_err(format!("a budget is a share of a length, which grows: {expected}")));
        }
        Ok(Self { operator: operator.unbind(), storage, state: Mutex::default() })
    }

    fn with<R>(&self, task: impl FnOnce(&mut State) -> PyResult<R>) -> PyResult<R> {
        // Never waits: a thread that held the state could not get the interpreter back from one that waits for it.
        match self.state.try_lock() {
            Ok(mut state) => task(&mut state),
            Err(TryLockError::Poisoned(state)) => task(&mut state.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(PyRuntimeError::new_err("the decoder is at work in another thread, expected one step at a time"))
            }
        }
    }
}

fn no_decoder() -> PyErr {
    PyValueError::new_err(
        "no decoder under these options, expected a causal mechanism (causal=True) without bias, and a support that is \
         'local', 'longformer', 'block', 'full' or 'empty' where there is one",
    )
}

impl State {
    /// Holds a token's tensors against the sizes of one token and of those before it; gives the shape of the output.
    fn check(&self, plan: &Plan) -> PyResult<Vec<usize>> {
        let mut shapes: Vec<Vec<usize>> = plan.tensors.iter().map(|tensor| tensor.shape.clone()).collect();
        for ((name, role), shape) in plan.names.iter().zip(&plan.roles).zip(&mut shapes) {
            if let Role::Data { axis } = role {
                if shape.get(*axis).is_some_and(|tokens| *tokens != 1) {
                    return Err(error(Error::shape(*name, shape, "one token: a decoder takes one at a time")));
                }
            } else if let ("log_prior", [_, _, positions]) = (*name, &mut shape[..]) {
                if *positions <= self.tokens {
                    let expected = format!("at least {} positions, as this is the token of the last", self.tokens + 1);
                    return Err(error(Error::shape("log_prior", shape, expected)));
                }
                // To a token alone, a prior of each position is that of its own.
                *positions = 1;
            }
        }
        if self.decode.is_some() && plan.names != self.names {
            let [seen, expected] = [&plan.names, &self.names].map(|names| names.join(", "));
            return Err(PyValueError::new_err(format!(
                "tensors are {seen}, expected {expected}, as of the first token"
            )));
        }
        let seen: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        let out_shape = plan.kernel.out_shape(&seen).map_err(error)?;
        for (((name, role), seen), first) in plan.names.iter().zip(&plan.roles).zip(seen).zip(&self.shapes) {
            let mut expected = first.clone();
            if let Role::Data { .. } = role {
                expected[0] = self.batch;
            }
            Error::check_shape(name, seen, &expected).map_err(error)?;
        }
        Ok(out_shape)
    }

    fn step(&mut self, py: Python<'_>, plan: &Plan, storage: Storage) -> PyResult<Array> {
        let out_shape = self.check(plan)?;
        if self.decode.is_none() {
            self.decode = Some(plan.kernel.decoder(storage).ok_or_else(no_decoder)?);
            self.names.clone_from(&plan.names);
            self.shapes = plan.shapes().into_iter().map(<[usize]>::to_vec).collect();
            for (name, shape) in plan.names.iter().zip(&mut self.shapes) {
                if let ("log_prior", [_, _, positions]) = (*name, &mut shape[..]) {
                    *positions = 1;
                }
            }
            self.batch = out_shape[0];
        }
        let Some(decode) = &mut self.decode else { return Err(no_decoder()) };
        decode.check(1).map_err(error)?;
        let views = plan.views()?;
        let out = compute(py, || {
            let mut out = vec![0.0; out_shape.iter().product()];
            decode.step(&views, &mut out);
            out
        })?;
        self.tokens += 1;
        Ok(Array::of(&out_shape, out))
    }
}

#[pymethods]
impl Decoder {
    fn step(&self, py: Python<'_>, tensors: &Bound<'_, PyDict>) -> PyResult<Array> {
        let plan = self.operator.get().plan(tensors)?;
        if plan.mask.valid.is_some() || plan.mask.query_valid.is_some() {
            return Err(PyValueError::new_err("a decoder takes no padding, expected every row to have the token"));
        }
        self.with(|state| state.step(py, &plan, self.storage))
    }

    fn reorder(&self, rows: Vec<i64>) -> PyResult<()> {
        self.with(|state| {
            let Some(decode) = &mut state.decode else { return Ok(()) };
            if rows.is_empty() {
                return Err(PyValueError::new_err("no rows to go on with, expected one at least"));
            }
            let batch = state.batch;
            let known = |row: &i64| {
                let known = usize::try_from(*row).ok().filter(|row| *row < batch);
                let missing = || format!("row {row} does not exist, expected 0 to {}", batch - 1);
                known.ok_or_else(|| PyValueError::new_err(missing()))
            };
            let rows = rows.iter().map(known).collect::<PyResult<Vec<_>>>()?;
            decode.reorder(&rows);
            state.batch = rows.len();
            Ok(())
        })
    }

    #[getter]
    fn tokens(&self) -> PyResult<usize> {
        self.with(|state| Ok(state.tokens))
    }

    #[getter]
    fn nbytes(&self) -> PyResult<usize> {
        self.with(|state| Ok(state.decode.as_ref().map_or(0, |decode| decode.bytes())))
    }
}
