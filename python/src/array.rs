//! Arrays that go out: they own their memory and share it by the buffer protocol and by DLPack.

use std::{
    ffi::{CStr, c_int, c_void},
    ptr,
    sync::Arc,
};

use pyo3::{
    exceptions::{PyBufferError, PyTypeError},
    ffi,
    prelude::*,
    types::{PyMemoryView, PyTuple},
};

use crate::{dlpack, export, tensor::contiguous};

/// Numbers that may be written to from Python, hence never borrowed for long.
pub struct Memory {
    start: *mut c_void,
    len: usize,
    format: Format,
}

/// What the numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    F32,
    F64,
}

// SAFETY: nothing but numbers, freed by whichever thread drops it last. Python code that writes to them while another
// thread reads races as it does with any shared array.
unsafe impl Send for Memory {}
// SAFETY: the same.
unsafe impl Sync for Memory {}

impl Format {
    fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    fn code(self) -> &'static CStr {
        match self {
            Self::F32 => c"f",
            Self::F64 => c"d",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F64 => "float64",
        }
    }
}

impl Memory {
    /// The numbers of an array that a kernel filled.
    ///
    /// # Panics
    /// If they are float64.
    pub fn f32(&self) -> &[f32] {
        assert_eq!(self.format, Format::F32, "kernels compute in float32");
        // SAFETY: made from a vector of `len` float32 numbers.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.len) }
    }
}

impl Memory {
    fn copy(&self) -> Self {
        match self.format {
            Format::F32 => self.f32().to_vec().into(),
            // SAFETY: made from a vector of `len` float64 numbers.
            Format::F64 => unsafe { std::slice::from_raw_parts(self.start.cast::<f64>(), self.len).to_vec().into() },
        }
    }

    /// The tensor of DLPack over these numbers, with sizes and strides in elements that outlive it.
    pub fn tensor(&self, shape: &mut [i64], strides: &mut [i64]) -> dlpack::Tensor {
        dlpack::Tensor {
            data: self.start,
            device: dlpack::Device { kind: dlpack::CPU, id: 0 },
            axes: shape.len() as i32,
            dtype: dlpack::DataType { code: dlpack::code::FLOAT, bits: 8 * self.format.bytes() as u8, lanes: 1 },
            shape: shape.as_mut_ptr(),
            strides: strides.as_mut_ptr(),
            byte_offset: 0,
        }
    }
}

impl From<Vec<f32>> for Memory {
    fn from(numbers: Vec<f32>) -> Self {
        let numbers = Box::leak(numbers.into_boxed_slice());
        Self { start: numbers.as_mut_ptr().cast(), len: numbers.len(), format: Format::F32 }
    }
}

impl From<Vec<f64>> for Memory {
    fn from(numbers: Vec<f64>) -> Self {
        let numbers = Box::leak(numbers.into_boxed_slice());
        Self { start: numbers.as_mut_ptr().cast(), len: numbers.len(), format: Format::F64 }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: leaked from a box of this type and length.
        unsafe {
            match self.format {
                Format::F32 => drop(Box::from_raw(ptr::slice_from_raw_parts_mut(self.start.cast::<f32>(), self.len))),
                Format::F64 => drop(Box::from_raw(ptr::slice_from_raw_parts_mut(self.start.cast::<f64>(), self.len))),
            }
        }
    }
}

/// A contiguous array of float32 or float64 numbers that owns its memory.
///
/// ``numpy.asarray(array)``, ``torch.from_dlpack(array)`` and ``memoryview(array)`` share that memory without a copy.
#[pyclass(frozen, module = "regard")]
pub struct Array {
    memory: Arc<Memory>,
    shape: Box<[isize]>,
    /// In bytes.
    strides: Box<[isize]>,
}

impl Array {
    /// An array over all of `memory`.
    pub fn new(shape: &[usize], memory: impl Into<Arc<Memory>>) -> Self {
        let memory = memory.into();
        assert_eq!(memory.len, shape.iter().product::<usize>(), "memory for shape {shape:?}");
        let strides = contiguous(shape, memory.format.bytes()).into();
        Self { memory, shape: shape.iter().map(|size| *size as isize).collect(), strides }
    }

    /// An array of numbers in a vector.
    pub fn of<T>(shape: &[usize], numbers: Vec<T>) -> Self
    where
        Memory: From<Vec<T>>,
    {
        Self::new(shape, Memory::from(numbers))
    }
}

#[pymethods]
impl Array {
    /// Sizes of the axes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// ``"float32"`` or ``"float64"``.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.memory.format.name()
    }

    /// Number of axes.
    #[getter]
    fn ndim(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.memory.len
    }

    /// Bytes of all elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.len * self.memory.format.bytes()
    }

    /// The numbers as nested lists.
    fn tolist<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        PyMemoryView::from(slf.as_any())?.call_method0("tolist")
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.shape.first().copied();
        first.map(|size| size as usize).ok_or_else(|| PyTypeError::new_err("an array without axes has no length"))
    }

    fn __repr__(&self) -> String {
        let sizes: Vec<String> = self.shape.iter().map(isize::to_string).collect();
        format!("regard.Array(shape=({}), dtype={})", sizes.join(", "), self.dtype())
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let this = slf.get();
        let format = this.memory.format;
        let asked = |flag: c_int| flags & flag == flag;
        // SAFETY: the view is the caller's to fill; what it points at lives in the frozen object that it holds.
        unsafe {
            (*view).buf = this.memory.start;
            (*view).len = this.nbytes() as isize;
            (*view).readonly = 0;
            (*view).itemsize = format.bytes() as isize;
            (*view).format = if asked(ffi::PyBUF_FORMAT) { format.code().as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).ndim = this.shape.len() as c_int;
            (*view).shape = if asked(ffi::PyBUF_ND) { this.shape.as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).strides =
                if asked(ffi::PyBUF_STRIDES) { this.strides.as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
            (*view).obj = slf.into_any().into_ptr();
        }
        Ok(())
    }

    /// Device of the memory in terms of DLPack: the processor.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::CPU, 0)
    }

    /// A capsule of DLPack, of version 1 where the consumer knows it.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if stream.is_some() {
            return Err(PyBufferError::new_err("memory of the processor has no stream, expected None"));
        }
        if dl_device.is_some_and(|device| device != self.__dlpack_device__()) {
            return Err(PyBufferError::new_err("regard arrays lie in the memory of the processor and are not moved"));
        }
        let copied = copy == Some(true);
        let memory = if copied { Arc::new(self.memory.copy()) } else { self.memory.clone() };
        match max_version {
            Some((1.., _)) => export::versioned(py, memory, &self.shape, copied),
            _ => export::legacy(py, memory, &self.shape),
        }
    }
}
