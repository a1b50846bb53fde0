//! Tensors that come in: anything with the buffer protocol or DLPack, read where it lies.

use std::{
    ffi::{CStr, c_void},
    ops::Deref,
    ptr,
};

use half::{bf16, f16};
use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    ffi, intern,
    prelude::*,
    types::{PyBytes, PyCapsule, PyDict, PyString},
};
use regard_kernels::{Padding, memory::arbitrary, parallel, stored::Stored};

use crate::{dlpack, threads::compute};

/// Contiguous real numbers and their shape.
pub struct Tensor {
    pub shape: Vec<usize>,
    pub data: Reals,
}

/// The numbers of a tensor in either of the formats that can be computed with.
pub enum Reals {
    F32(Slice<f32>),
    F64(Slice<f64>),
}

/// Numbers owned by somebody else, or by us where they had to be copied.
pub struct Slice<T> {
    start: *const T,
    len: usize,
    /// Keeps what `start` points at alive.
    _owner: Owner<T>,
}

enum Owner<T> {
    Memory { _held: Memory },
    Copy { _numbers: Vec<T> },
}

// SAFETY: a slice is read only, and its owner is released with the interpreter attached, whatever thread that is.
unsafe impl<T: Send> Send for Slice<T> {}
// SAFETY: the same.
unsafe impl<T: Sync> Sync for Slice<T> {}

impl<T> Deref for Slice<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `start` points at `len` aligned numbers that `_owner` keeps alive. As with every library that computes
        // on shared arrays, Python code must not write to them while a call runs.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<T> From<Vec<T>> for Slice<T> {
    fn from(numbers: Vec<T>) -> Self {
        Self { start: numbers.as_ptr(), len: numbers.len(), _owner: Owner::Copy { _numbers: numbers } }
    }
}

/// Memory lent by a Python object until this is dropped.
enum Memory {
    Buffer(Box<ffi::Py_buffer>),
    Versioned(*mut dlpack::Versioned),
    Legacy(*mut dlpack::Legacy),
}

impl Drop for Memory {
    fn drop(&mut self) {
        Python::attach(|_| match self {
            // SAFETY: filled by `PyObject_GetBuffer`, released once.
            Self::Buffer(view) => unsafe { ffi::PyBuffer_Release(&mut **view) },
            // SAFETY: taken from its capsule, so that it is ours to delete, once.
            Self::Versioned(managed) => unsafe {
                if let Some(deleter) = (**managed).deleter {
                    deleter(*managed);
                }
            },
            // SAFETY: the same.
            Self::Legacy(managed) => unsafe {
                if let Some(deleter) = (**managed).deleter {
                    deleter(*managed);
                }
            },
        });
    }
}

/// What the elements of foreign memory are.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Float16,
    Bfloat16,
    Float32,
    Float64,
    /// Integers and booleans of so many bytes.
    Whole(usize),
    /// Anything else, by name.
    Other(String),
}

/// Foreign memory with axes.
struct Raw {
    start: *const u8,
    shape: Vec<usize>,
    /// Bytes between neighbours along each axis.
    strides: Vec<isize>,
    kind: Kind,
    memory: Memory,
}

impl Tensor {
    /// Reads `object` as float32 or float64: without a copy where it is contiguous, through one copy where it is strided or of
    /// 16 bits.
    ///
    /// # Errors
    /// `TypeError` for what has no memory to share or holds other numbers, `ValueError` for memory of another device.
    pub fn new(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let raw = Raw::new(name, object)?;
        let shape = raw.shape.clone();
        let data = match raw.kind {
            // Exact, on all threads: from here on they are numbers as all others.
            Kind::Float16 => Reals::F32(widened(object.py(), &raw.slice::<f16>(), Stored::F16)?),
            Kind::Bfloat16 => Reals::F32(widened(object.py(), &raw.slice::<bf16>(), Stored::Bf16)?),
            Kind::Float32 => Reals::F32(raw.slice()),
            Kind::Float64 => Reals::F64(raw.slice()),
            ref other => {
                let seen = other.name();
                return Err(PyTypeError::new_err(format!(
                    "tensor '{name}' holds {seen} numbers, expected float32, float16 or bfloat16 (or float64 for the reference): convert it first"
                )));
            }
        };
        Ok(Self { shape, data })
    }

    /// A tensor of our own.
    pub fn own(shape: Vec<usize>, data: Vec<f32>) -> Self {
        Self { shape, data: Reals::F32(data.into()) }
    }

    /// The numbers as float32.
    ///
    /// # Errors
    /// `TypeError` where they are float64: to round them in silence would be a surprise.
    pub fn narrow(&self, name: &str) -> PyResult<&[f32]> {
        match &self.data {
            Reals::F32(data) => Ok(data),
            Reals::F64(_) => Err(PyTypeError::new_err(format!(
                "tensor '{name}' holds float64 numbers, expected float32: convert it ({name}.astype('float32') in NumPy, \
                 {name}.float() in PyTorch), or ask for the float64 reference"
            ))),
        }
    }

    /// The numbers as float64, copied where they are float32.
    pub fn widen(self) -> (Vec<usize>, Slice<f64>) {
        let data = match self.data {
            Reals::F64(data) => data,
            Reals::F32(data) => data.iter().map(|x| f64::from(*x)).collect::<Vec<_>>().into(),
        };
        (self.shape, data)
    }
}

/// Numbers of 16 bits in f32, on all threads.
fn widened<'a, T: Sync>(py: Python<'_>, from: &'a [T], stored: fn(&'a [T]) -> Stored<'a>) -> PyResult<Slice<f32>> {
    /// Numbers that one thread converts at a time.
    const BLOCK: usize = 1 << 15;
    let wide = compute(py, || {
        let mut to = arbitrary(from.len());
        parallel::for_each_part(&mut to, BLOCK, |n, to| stored(&from[n * BLOCK..][..to.len()]).read_row(0, to));
        to
    })?;
    Ok(wide.into())
}

/// Reads padding `[batch, length]`: booleans or integers, of which those other than 0 are real tokens. Copied.
///
/// # Errors
/// Those of [`Tensor::new`], and `ValueError` for another number of axes.
pub fn padding(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Padding> {
    let raw = Raw::new(name, object)?;
    let Kind::Whole(bytes) = raw.kind else {
        return Err(PyTypeError::new_err(format!(
            "tensor '{name}' holds {} numbers, expected booleans or integers (true = real token)",
            raw.kind.name()
        )));
    };
    let &[batch, length] = &raw.shape[..] else {
        return Err(PyValueError::new_err(format!("tensor '{name}' has shape {:?}, expected 2 axes", raw.shape)));
    };
    let mut real = Vec::with_capacity(batch * length);
    raw.for_each(|element| {
        // SAFETY: an element is `bytes` bytes.
        let element = unsafe { std::slice::from_raw_parts(element, bytes) };
        real.push(u8::from(element.iter().any(|byte| *byte != 0)));
    });
    Padding::new(batch, length, real).map_err(crate::error)
}

/// Whether `object` shares its memory by either protocol.
pub fn is_tensor(object: &Bound<'_, PyAny>) -> bool {
    if object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>() {
        return false;
    }
    // SAFETY: a borrowed reference to a live object.
    let buffer = unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0;
    buffer || object.hasattr(intern!(object.py(), "__dlpack__")).unwrap_or(false)
}

impl Kind {
    fn name(&self) -> String {
        match self {
            Self::Float16 => "float16".to_owned(),
            Self::Bfloat16 => "bfloat16".to_owned(),
            Self::Float32 => "float32".to_owned(),
            Self::Float64 => "float64".to_owned(),
            Self::Whole(bytes) => format!("{}-bit integer", 8 * bytes),
            Self::Other(name) => name.clone(),
        }
    }

    /// From a format of the `struct` module.
    fn of_format(format: &str, bytes: usize) -> Self {
        let plain = format.trim_start_matches(['@', '=', if cfg!(target_endian = "little") { '<' } else { '>' }]);
        match plain {
            "f" => Self::Float32,
            "d" => Self::Float64,
            "e" => Self::Float16,
            "?" | "b" | "B" | "h" | "H" | "i" | "I" | "l" | "L" | "q" | "Q" | "n" | "N" => Self::Whole(bytes),
            _ => Self::Other(format!("'{format}'")),
        }
    }

    fn of_dtype(dtype: dlpack::DataType) -> Self {
        use dlpack::code;
        match (dtype.code, dtype.bits, dtype.lanes) {
            (code::FLOAT, 16, 1) => Self::Float16,
            (code::BFLOAT, 16, 1) => Self::Bfloat16,
            (code::FLOAT, 32, 1) => Self::Float32,
            (code::FLOAT, 64, 1) => Self::Float64,
            (code::FLOAT, bits, 1) => Self::Other(format!("float{bits}")),
            (code::BFLOAT, bits, 1) => Self::Other(format!("bfloat{bits}")),
            (code::INT | code::UINT | code::BOOL, bits @ (8 | 16 | 32 | 64), 1) => Self::Whole(usize::from(bits) / 8),
            (code, bits, lanes) => Self::Other(format!("DLPack ({code}, {bits}, {lanes})")),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Float32 => 4,
            Self::Float64 => 8,
            Self::Whole(bytes) => *bytes,
            Self::Other(_) => 1,
        }
    }
}

impl Raw {
    fn new(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        // SAFETY: a borrowed reference to a live object.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0 {
            return Self::from_buffer(object);
        }
        if object.hasattr(intern!(object.py(), "__dlpack__"))? {
            return Self::from_dlpack(name, object);
        }
        let seen = object.get_type().name()?;
        Err(PyTypeError::new_err(format!(
            "tensor '{name}' is a {seen}, expected an object with the buffer protocol or DLPack, as arrays of NumPy and \
             tensors of PyTorch are"
        )))
    }

    fn from_buffer(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: `view` lives in a box, where it stays until it is released.
        let failed = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view, ffi::PyBUF_RECORDS_RO) } != 0;
        if failed {
            return Err(PyErr::fetch(object.py()));
        }
        let axes = view.ndim as usize;
        // SAFETY: a view asked for with strides and format has `ndim` sizes and strides, and a format that is null for bytes.
        let (shape, strides, format) = unsafe {
            let sizes = |start: *const isize| if axes == 0 { &[][..] } else { std::slice::from_raw_parts(start, axes) };
            let format = if view.format.is_null() { c"B" } else { CStr::from_ptr(view.format) };
            (sizes(view.shape), sizes(view.strides), format.to_string_lossy().into_owned())
        };
        Ok(Self {
            start: view.buf.cast(),
            shape: shape.iter().map(|size| *size as usize).collect(),
            strides: strides.to_vec(),
            kind: Kind::of_format(&format, view.itemsize as usize),
            memory: Memory::Buffer(view),
        })
    }

    fn from_dlpack(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let (device, _): (i32, i32) = object.call_method0(intern!(py, "__dlpack_device__"))?.extract()?;
        if device != dlpack::CPU && device != dlpack::PINNED {
            return Err(PyValueError::new_err(format!(
                "tensor '{name}' lies on a device of DLPack type {device}, expected the processor: move it first \
                 ({name}.cpu() in PyTorch)"
            )));
        }
        let versioned = PyDict::new(py);
        versioned.set_item("max_version", (1, 0))?;
        let capsule = match object.call_method(intern!(py, "__dlpack__"), (), Some(&versioned)) {
            // Before DLPack 1.0 there was no such argument.
            Err(error) if error.is_instance_of::<PyTypeError>(py) => object.call_method0(intern!(py, "__dlpack__"))?,
            other => other?,
        };
        let capsule = capsule.cast_into::<PyCapsule>()?;
        let (memory, tensor) = take(name, &capsule)?;
        let axes = tensor.axes as usize;
        // SAFETY: a tensor has as many sizes as axes, and as many strides unless it is contiguous.
        let (shape, strides) = unsafe {
            let sizes = |start: *const i64| if axes == 0 { &[][..] } else { std::slice::from_raw_parts(start, axes) };
            (sizes(tensor.shape), (!tensor.strides.is_null()).then(|| sizes(tensor.strides)))
        };
        let kind = Kind::of_dtype(tensor.dtype);
        let shape: Vec<usize> = shape.iter().map(|size| *size as usize).collect();
        let bytes = kind.bytes() as isize;
        let strides = match strides {
            Some(strides) => strides.iter().map(|stride| *stride as isize * bytes).collect(),
            None => contiguous(&shape, kind.bytes()),
        };
        if tensor.data.is_null() && shape.iter().all(|size| *size > 0) {
            return Err(PyValueError::new_err(format!(
                "tensor '{name}' has no memory, expected numbers: it was released, or never there"
            )));
        }
        let start = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize).cast_const();
        Ok(Self { start, shape, strides, kind, memory })
    }

    /// The elements in row-major order: where they lie if they lie so, else copied.
    fn slice<T: Copy>(self) -> Slice<T> {
        let len = self.shape.iter().product();
        if len == 0 {
            return Vec::new().into();
        }
        let start = self.start.cast::<T>();
        if start.is_aligned() && self.is_contiguous() {
            return Slice { start, len, _owner: Owner::Memory { _held: self.memory } };
        }
        let mut copy: Vec<T> = Vec::with_capacity(len);
        let (count, step) = self.row();
        let aligned = start.is_aligned() && self.strides.iter().all(|stride| stride % align_of::<T>() as isize == 0);
        if aligned && step == size_of::<T>() as isize {
            // Whole rows, as those of heads and tokens in another order.
            // SAFETY: a row is `count` aligned elements of type `T`.
            self.for_each_row(|row| {
                copy.extend_from_slice(unsafe { std::slice::from_raw_parts(row.cast::<T>(), count) })
            });
        } else {
            // SAFETY: each element is a `T`, aligned or not.
            self.for_each(|element| copy.push(unsafe { element.cast::<T>().read_unaligned() }));
        }
        copy.into()
    }

    fn is_contiguous(&self) -> bool {
        let expected = contiguous(&self.shape, self.kind.bytes());
        // The stride of an axis of size 1 means nothing.
        self.shape
            .iter()
            .zip(self.strides.iter().zip(&expected))
            .all(|(size, (seen, expected))| *size == 1 || seen == expected)
    }

    /// Calls `visit` with the address of each row along the last axis, in row-major order.
    fn for_each_row(&self, mut visit: impl FnMut(*const u8)) {
        if self.shape.contains(&0) {
            return;
        }
        let outer = &self.shape[..self.shape.len().saturating_sub(1)];
        let mut index = vec![0; outer.len()];
        loop {
            let offset: isize = index.iter().zip(&self.strides).map(|(i, stride)| *i as isize * stride).sum();
            visit(self.start.wrapping_offset(offset));
            let Some(axis) = (0..outer.len()).rev().find(|&axis| index[axis] + 1 < outer[axis]) else { return };
            index[axis] += 1;
            index[axis + 1..].fill(0);
        }
    }

    /// Calls `visit` with the address of each element, in row-major order.
    fn for_each(&self, mut visit: impl FnMut(*const u8)) {
        let (count, step) = self.row();
        self.for_each_row(|row| (0..count).for_each(|n| visit(row.wrapping_offset(n as isize * step))));
    }

    /// Elements of a row along the last axis, and the bytes between them.
    fn row(&self) -> (usize, isize) {
        (self.shape.last().copied().unwrap_or(1), self.strides.last().copied().unwrap_or(0))
    }
}

/// Takes the tensor out of a capsule, which is marked as used.
fn take(name: &str, capsule: &Bound<'_, PyCapsule>) -> PyResult<(Memory, dlpack::Tensor)> {
    let object = capsule.as_ptr();
    // SAFETY: the pointer is asked for under the name that the capsule has, and its structure is the one of that name;
    // renaming it is how a consumer says that it will call the deleter.
    unsafe {
        let pointer = |name: &CStr| -> *mut c_void {
            if ffi::PyCapsule_IsValid(object, name.as_ptr()) == 0 {
                return ptr::null_mut();
            }
            ffi::PyCapsule_GetPointer(object, name.as_ptr())
        };
        let versioned = pointer(dlpack::VERSIONED).cast::<dlpack::Versioned>();
        if !versioned.is_null() && (*versioned).version.major == 1 {
            ffi::PyCapsule_SetName(object, dlpack::VERSIONED_USED.as_ptr());
            return Ok((Memory::Versioned(versioned), (*versioned).tensor));
        }
        let legacy = pointer(dlpack::LEGACY).cast::<dlpack::Legacy>();
        if !legacy.is_null() {
            ffi::PyCapsule_SetName(object, dlpack::LEGACY_USED.as_ptr());
            return Ok((Memory::Legacy(legacy), (*legacy).tensor));
        }
    }
    Err(PyTypeError::new_err(format!("tensor '{name}' has a DLPack capsule that is not of version 1 or before")))
}

/// Strides in bytes of a contiguous tensor.
pub fn contiguous(shape: &[usize], bytes: usize) -> Vec<isize> {
    let mut stride = bytes as isize;
    let mut strides: Vec<isize> = shape
        .iter()
        .rev()
        .map(|size| {
            let own = stride;
            stride *= *size as isize;
            own
        })
        .collect();
    strides.reverse();
    strides
}
