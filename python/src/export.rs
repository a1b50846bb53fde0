//! Capsules of DLPack over memory of ours.

use std::{
    ffi::{CStr, c_void},
    ptr,
    sync::Arc,
};

use pyo3::{ffi, prelude::*};

use crate::{
    array::Memory,
    dlpack::{self, Legacy, Versioned},
    tensor::contiguous,
};

/// `IS_COPIED` of `DLPACK_FLAG_BITMASK`.
const COPIED: u64 = 2;

/// What a capsule points at: the structure of DLPack first, then what it refers to.
#[repr(C)]
struct Holder<T> {
    managed: T,
    _sizes: Box<[i64]>,
    _memory: Arc<Memory>,
}

/// A capsule of DLPack 1.0.
pub fn versioned<'py>(
    py: Python<'py>,
    memory: Arc<Memory>,
    shape: &[isize],
    copied: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let managed = |tensor| Versioned {
        version: dlpack::Version { major: 1, minor: 0 },
        context: ptr::null_mut(),
        deleter: Some(delete::<Versioned>),
        flags: if copied { COPIED } else { 0 },
        tensor,
    };
    capsule(py, hold(memory, shape, managed).cast(), dlpack::VERSIONED, destroy_versioned)
}

/// A capsule as before DLPack 1.0.
pub fn legacy<'py>(py: Python<'py>, memory: Arc<Memory>, shape: &[isize]) -> PyResult<Bound<'py, PyAny>> {
    let managed = |tensor| Legacy { tensor, context: ptr::null_mut(), deleter: Some(delete::<Legacy>) };
    capsule(py, hold(memory, shape, managed).cast(), dlpack::LEGACY, destroy_legacy)
}

fn hold<T>(memory: Arc<Memory>, shape: &[isize], managed: impl FnOnce(dlpack::Tensor) -> T) -> *mut Holder<T> {
    let sizes: Vec<usize> = shape.iter().map(|size| *size as usize).collect();
    let strides = contiguous(&sizes, 1);
    let mut sizes: Box<[i64]> = shape.iter().chain(&strides).map(|size| *size as i64).collect();
    let (shape, strides) = sizes.split_at_mut(shape.len());
    let managed = managed(memory.tensor(shape, strides));
    Box::into_raw(Box::new(Holder { managed, _sizes: sizes, _memory: memory }))
}

fn capsule<'py>(
    py: Python<'py>,
    pointer: *mut c_void,
    name: &'static CStr,
    destroy: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: `pointer` is what `destroy` expects under this name; the capsule is a new reference.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destroy))) }
}

/// What a consumer calls when it is done.
unsafe extern "C" fn delete<T>(managed: *mut T) {
    // SAFETY: `managed` is the first field of a boxed `Holder`, and a consumer calls this once.
    drop(unsafe { Box::from_raw(managed.cast::<Holder<T>>()) });
}

unsafe extern "C" fn destroy_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: called by Python with the capsule that ends.
    unsafe { destroy::<Versioned>(capsule, dlpack::VERSIONED) }
}

unsafe extern "C" fn destroy_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: called by Python with the capsule that ends.
    unsafe { destroy::<Legacy>(capsule, dlpack::LEGACY) }
}

/// Deletes what nobody took out of the capsule: who takes it gives the capsule another name.
unsafe fn destroy<T>(capsule: *mut ffi::PyObject, name: &CStr) {
    // SAFETY: a capsule of this name holds a `Holder<T>` that is ours to delete.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) != 0 {
            delete(ffi::PyCapsule_GetPointer(capsule, name.as_ptr()).cast::<T>());
        }
    }
}
