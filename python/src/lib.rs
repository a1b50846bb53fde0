//! The Python package `regard`: tensors in and out without a copy, and the kernels between them.
//!
//! `tensor` reads what comes in, `array` and `export` share what goes out, `options` and `fit` find out what is asked for,
//! `operator`, `saved` and `decoder` do it on the threads of `threads`. All that is convenience lives in Python, beside this folder.

mod array;
mod decoder;
mod dlpack;
mod export;
mod fit;
mod operator;
mod options;
mod saved;
mod tensor;
mod threads;

use pyo3::{exceptions::PyValueError, prelude::*};
use regard_alloc::Keeping;
use regard_kernels::simd::{Vectors, limit};

/// Outputs and gradients are freed by Python soon after the call: their memory is that of the next call.
#[global_allocator]
static ALLOCATOR: Keeping = Keeping;

/// A call that no kernel accepts, as an exception.
fn error(error: regard_kernels::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Whether an object shares its memory, by the buffer protocol or by DLPack.
#[pyfunction]
#[pyo3(signature = (object, /))]
fn is_tensor(object: &Bound<'_, PyAny>) -> bool {
    tensor::is_tensor(object)
}

/// The key of part ``part`` of what ``key`` draws.
#[pyfunction]
#[pyo3(signature = (key, part, /))]
fn _substream(key: u64, part: u64) -> u64 {
    regard_kernels::random::substream(key, part)
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // To measure a narrower processor on this one.
    if let Some(named) = std::env::var_os("REGARD_VECTORS") {
        limit(Vectors::named(&named.to_string_lossy()).map_err(error)?);
    }
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<array::Array>()?;
    module.add_class::<operator::Operator>()?;
    module.add_class::<saved::Saved>()?;
    module.add_class::<decoder::Decoder>()?;
    module.add_function(wrap_pyfunction!(is_tensor, module)?)?;
    module.add_function(wrap_pyfunction!(operator::mechanisms, module)?)?;
    module.add_function(wrap_pyfunction!(options::option_names, module)?)?;
    module.add_function(wrap_pyfunction!(options::option_roots, module)?)?;
    module.add_function(wrap_pyfunction!(threads::set_threads, module)?)?;
    module.add_function(wrap_pyfunction!(threads::get_threads, module)?)?;
    module.add_function(wrap_pyfunction!(threads::release_memory, module)?)?;
    module.add_function(wrap_pyfunction!(threads::_after_fork, module)?)?;
    module.add_function(wrap_pyfunction!(_substream, module)?)?;
    Ok(())
}
