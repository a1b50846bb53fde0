//! Tensors read from the file.

use std::collections::BTreeMap;

use regard_kernels::{Error, Padding, View};
use safetensors::{Dtype, tensor::TensorView};

use super::AttendError;
use crate::tensors::tensors;

/// Names of padding masks.
const PADDING: [&str; 2] = ["valid", "query_valid"];
/// Block layout of a block-sparse support: 0 or 1, in any number format.
const LAYOUT: &str = "layout";
/// A tensor held as float64.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub shape: Vec<usize>,
    pub data: Vec<f64>,
}

impl Tensor {
    pub fn view(&self) -> View<'_, f64> {
        View::new(&self.data, &self.shape)
    }
}

/// The tensors of the file.
pub(super) struct Inputs {
    pub real: BTreeMap<String, Tensor>,
    /// Unsupported number types, by the names of tensors in `real`, which have no elements there.
    foreign: BTreeMap<String, Dtype>,
    pub padding: BTreeMap<String, Padding>,
    pub dtype: Dtype,
}

impl Inputs {
    pub fn read(file: &[u8]) -> Result<Self, AttendError> {
        let tensors = tensors(file).map_err(AttendError::Data)?;
        let (mut real, mut foreign, mut padding, mut dtype) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), None);
        for (name, view) in tensors.iter() {
            // Results in the file, as golden data have them, are not inputs.
            if name.starts_with("grad") && name.contains('.') {
                continue;
            }
            if PADDING.contains(&name) {
                padding.insert(name.to_owned(), read_padding(name, &view)?);
            } else if name == LAYOUT
                && let Some(data) = read_blocks(&view)
            {
                real.insert(name.to_owned(), Tensor { shape: view.shape().to_vec(), data });
            } else if matches!(view.dtype(), Dtype::F32 | Dtype::F64) {
                if matches!(name, "q" | "x") || dtype.is_none() {
                    dtype = Some(view.dtype());
                }
                real.insert(name.to_owned(), Tensor { shape: view.shape().to_vec(), data: read_real(&view) });
            } else {
                real.insert(name.to_owned(), Tensor { shape: view.shape().to_vec(), data: Vec::new() });
                foreign.insert(name.to_owned(), view.dtype());
            }
        }
        Ok(Self { real, foreign, padding, dtype: dtype.unwrap_or(Dtype::F32) })
    }

    pub fn need(&self, name: &str, why: &str) -> Result<&Tensor, AttendError> {
        match self.foreign.get(name) {
            None => Ok(self.real.get(name).ok_or_else(|| Error::missing(name, why))?),
            Some(seen) => {
                Err(AttendError::Data(format!("tensor '{name}' holds {seen:?} numbers, expected F32 or F64")))
            }
        }
    }
}

/// Fails if a number is not finite.
pub(super) fn check_finite(name: &str, tensor: &Tensor) -> Result<(), AttendError> {
    let Some(at) = tensor.data.iter().position(|x| !x.is_finite()) else { return Ok(()) };
    let (value, place) = (tensor.data[at], place(at, &tensor.shape));
    Err(AttendError::Data(format!("tensor '{name}' holds {value} at {place:?}, expected finite numbers")))
}

/// Fails if a number overflows the float32 of the kernels, or a variance underflows.
pub(super) fn check_narrow(name: &str, tensor: &Tensor) -> Result<(), AttendError> {
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

/// Elements of which only zero or nonzero matters; `None` for formats without 0 and 1.
fn read_blocks(view: &TensorView) -> Option<Vec<f64>> {
    let width = match view.dtype() {
        Dtype::F32 | Dtype::F64 => return Some(read_real(view)),
        Dtype::U8 | Dtype::I8 | Dtype::BOOL => 1,
        Dtype::U16 | Dtype::I16 => 2,
        Dtype::U32 | Dtype::I32 => 4,
        Dtype::U64 | Dtype::I64 => 8,
        _ => return None,
    };
    let seen = |bytes: &[u8]| f64::from(u8::from(bytes.iter().any(|byte| *byte != 0)));
    Some(view.data().chunks_exact(width).map(seen).collect())
}

fn read_padding(name: &str, view: &TensorView) -> Result<Padding, AttendError> {
    if !matches!(view.dtype(), Dtype::U8 | Dtype::BOOL) {
        let seen = view.dtype();
        return Err(AttendError::Data(format!("tensor '{name}' holds {seen:?} numbers, expected U8 (1 = real token)")));
    }
    let &[batch, length] = view.shape() else { return Err(Error::rank(name, view.shape(), 2).into()) };
    if let Some(at) = view.data().iter().position(|real| *real > 1) {
        let (seen, place) = (view.data()[at], place(at, view.shape()));
        return Err(AttendError::Data(format!(
            "tensor '{name}' holds {seen} at {place:?}, expected 1 for a real token or 0 for padding"
        )));
    }
    Ok(Padding::new(batch, length, view.data().to_vec())?)
}

/// Index of element `at` along each axis.
pub(super) fn place(mut at: usize, shape: &[usize]) -> Vec<usize> {
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
