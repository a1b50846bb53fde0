//! The C structures of DLPack 1.0 (dmlc/dlpack, `dlpack.h`), by which libraries hand each other tensors without a copy.

use std::ffi::{CStr, c_void};

/// Name of a capsule that holds a [`Versioned`] nobody has taken yet.
pub const VERSIONED: &CStr = c"dltensor_versioned";
/// The same after it was taken.
pub const VERSIONED_USED: &CStr = c"used_dltensor_versioned";
/// Name of a capsule that holds a [`Legacy`] nobody has taken yet.
pub const LEGACY: &CStr = c"dltensor";
/// The same after it was taken.
pub const LEGACY_USED: &CStr = c"used_dltensor";

/// `kDLCPU`
pub const CPU: i32 = 1;
/// `kDLCUDAHost`: memory of the processor, pinned for a device.
pub const PINNED: i32 = 3;

/// `DLDataTypeCode`
pub mod code {
    /// Signed integer.
    pub const INT: u8 = 0;
    /// Unsigned integer.
    pub const UINT: u8 = 1;
    /// IEEE floating point.
    pub const FLOAT: u8 = 2;
    /// The upper half of a float32.
    pub const BFLOAT: u8 = 4;
    /// Boolean.
    pub const BOOL: u8 = 6;
}

/// `DLDevice`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Device {
    pub kind: i32,
    pub id: i32,
}

/// `DLDataType`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

/// `DLTensor`; strides are in elements, null for a contiguous tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    pub data: *mut c_void,
    pub device: Device,
    pub axes: i32,
    pub dtype: DataType,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

/// `DLManagedTensor`
#[repr(C)]
#[derive(Debug)]
pub struct Legacy {
    pub tensor: Tensor,
    pub context: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut Legacy)>,
}

/// `DLPackVersion`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

/// `DLManagedTensorVersioned`
#[repr(C)]
#[derive(Debug)]
pub struct Versioned {
    pub version: Version,
    pub context: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    pub flags: u64,
    pub tensor: Tensor,
}
