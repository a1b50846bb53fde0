//! Named tensors in safetensors files.

use std::{borrow::Cow, collections::BTreeMap, path::Path};

use safetensors::{
    Dtype, SafeTensors,
    tensor::{TensorView, View},
};

use crate::train::TrainError;

/// A tensor on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    /// Sizes of the axes.
    pub shape: Vec<usize>,
    /// Elements in row-major order.
    pub data: Vec<f32>,
}

/// Tensors by name.
pub type HostTensors = BTreeMap<String, HostTensor>;

/// A tensor that lies elsewhere. Its bytes are made when they are written, one tensor after the other.
#[derive(Debug)]
pub(super) struct Lent<'a> {
    pub shape: Vec<usize>,
    pub data: &'a [f32],
}

impl View for Lent<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.data.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    fn data_len(&self) -> usize {
        size_of_val(self.data)
    }
}

/// The bytes of a safetensors file.
pub fn encode_tensors(tensors: &HostTensors) -> Vec<u8> {
    encode(tensors.iter().map(|(name, HostTensor { shape, data })| (name, Lent { shape: shape.clone(), data })))
}

/// The same of tensors that lie elsewhere.
pub(super) fn encode<'a>(
    tensors: impl Iterator<Item = (impl AsRef<str> + Ord + std::fmt::Display, Lent<'a>)>,
) -> Vec<u8> {
    safetensors::serialize(tensors, None).expect("a header of names and shapes")
}

/// The tensors in the bytes of the file `path`.
///
/// # Errors
/// Bytes that are not a safetensors file, or hold another element type than f32.
pub fn decode_tensors(path: &Path, bytes: &[u8]) -> Result<HostTensors, TrainError> {
    let problem = |problem: String| TrainError::checkpoint(path, problem);
    let file =
        SafeTensors::deserialize(bytes).map_err(|error| problem(format!("not a sound safetensors file: {error}")))?;
    let tensor = |(name, view): (&str, TensorView)| {
        if view.dtype() != Dtype::F32 {
            return Err(problem(format!("tensor '{name}' holds {:?}; expected F32", view.dtype())));
        }
        let data = view.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        Ok((name.to_string(), HostTensor { shape: view.shape().to_vec(), data }))
    };
    file.iter().map(tensor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_come_back_bit_for_bit() {
        let data = vec![1.0, -0.0, f32::MIN_POSITIVE / 4.0, f32::NAN, f32::INFINITY, 3.5];
        let tensors = HostTensors::from([
            ("a.weight".into(), HostTensor { shape: vec![2, 3], data }),
            ("empty".into(), HostTensor { shape: vec![0, 4], data: vec![] }),
            ("scalar".into(), HostTensor { shape: vec![], data: vec![7.0] }),
        ]);
        let back = decode_tensors(Path::new("x"), &encode_tensors(&tensors)).unwrap();
        let bits = |tensors: &HostTensors| -> Vec<(String, Vec<usize>, Vec<u32>)> {
            let one = |(name, t): (&String, &HostTensor)| {
                (name.clone(), t.shape.clone(), t.data.iter().map(|x| x.to_bits()).collect())
            };
            tensors.iter().map(one).collect()
        };
        assert_eq!(bits(&back), bits(&tensors));
    }

    #[test]
    fn other_files_are_errors() {
        assert!(decode_tensors(Path::new("x"), b"PK\x03\x04 not tensors at all").is_err());
        let half = [0u8; 4];
        let view = TensorView::new(Dtype::F16, vec![2], &half).unwrap();
        let bytes = safetensors::serialize([("w", view)], None).unwrap();
        let error = decode_tensors(Path::new("x"), &bytes).unwrap_err().to_string();
        assert!(error.contains("tensor 'w' holds F16; expected F32"), "{error}");
    }
}
