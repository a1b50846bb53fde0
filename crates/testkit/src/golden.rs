//! The repository's reference data, `testdata/golden`; its README says how it is laid out.

use std::{collections::BTreeMap, fs, path::PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde_json::Value;

use crate::measure::float32_bound;

/// Folder of the reference data: of the checkout whose tests are running, which need not be the one that this was built in
/// where two share their build. Every crate lies two folders below the root.
pub fn folder() -> PathBuf {
    // A program that is started by hand knows no crate, and may have been built where another checkout was: from the root of
    // a checkout it finds that one's data.
    let tested = std::env::var_os("CARGO_MANIFEST_DIR").map(|own| PathBuf::from(own).join("../../testdata/golden"));
    let here = PathBuf::from("testdata/golden");
    let built = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/golden").into();
    tested.unwrap_or_else(|| if here.is_dir() { here } else { built })
}

/// One entry of the manifest.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    /// Name of its file in [`folder`].
    pub file: String,
    /// The mechanism it belongs to.
    pub mechanism: String,
    /// What it is there to check, in words.
    pub checks: String,
    /// Options of the mechanism, and under `grad` the tensors that have a gradient.
    pub options: Value,
    /// Tensors that are 0, or would be in exact arithmetic.
    pub zero: Vec<String>,
    /// Error that the dense formula reaches in float32, by tensor.
    pub float32_error: BTreeMap<String, f64>,
    /// Type and shape of every tensor.
    pub tensors: BTreeMap<String, Info>,
}

/// Type and shape of a tensor as the manifest has them.
#[derive(Clone, Debug, Deserialize)]
pub struct Info {
    /// `float64`, `uint8`, `int32` or `int64`.
    pub dtype: String,
    /// Sizes of its axes.
    pub shape: Vec<usize>,
}

/// A value from the list of cost formulas.
#[derive(Clone, Debug, Deserialize)]
pub struct Cost {
    /// Name of the formula.
    pub formula: String,
    /// Its arguments.
    pub arguments: BTreeMap<String, f64>,
    /// Its value.
    pub value: f64,
    /// How it is counted.
    pub note: String,
}

#[derive(Deserialize)]
struct Manifest {
    cases: Vec<Case>,
    costs: Vec<Cost>,
}

fn manifest() -> Manifest {
    let path = folder().join("MANIFEST.json");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every case, in the order of the manifest.
///
/// # Panics
/// If the manifest cannot be read.
pub fn cases() -> Vec<Case> {
    manifest().cases
}

/// Values of the closed cost formulas.
///
/// # Panics
/// If the manifest cannot be read.
pub fn costs() -> Vec<Cost> {
    manifest().costs
}

impl Case {
    /// File name without its ending.
    pub fn name(&self) -> &str {
        self.file.trim_end_matches(".safetensors")
    }

    /// Bound for the error of tensor `name` in float32: ten times what the dense formula reaches, at least 2e-6.
    pub fn bound(&self, name: &str) -> f64 {
        float32_bound(self.float32_error.get(name).copied().unwrap_or(0.0))
    }

    /// Names of the inputs that have a gradient.
    pub fn differentiated(&self) -> Vec<&str> {
        self.options["grad"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// Reads the tensors.
    ///
    /// # Panics
    /// If the file cannot be read or is not what the manifest says.
    pub fn load(&self) -> Tensors {
        let path = folder().join(&self.file);
        let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file = SafeTensors::deserialize(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let tensors: BTreeMap<String, Tensor> = file
            .iter()
            .map(|(name, view)| {
                let data = Data::decode(view.dtype(), view.data());
                (name.to_string(), Tensor { shape: view.shape().to_vec(), data })
            })
            .collect();
        for (name, info) in &self.tensors {
            let shape = tensors.get(name).map(|t| &t.shape);
            assert_eq!(shape, Some(&info.shape), "{}: shape of '{name}'", path.display());
        }
        Tensors { file: self.file.clone(), tensors }
    }
}

/// The tensors of one file.
#[derive(Clone, Debug)]
pub struct Tensors {
    file: String,
    tensors: BTreeMap<String, Tensor>,
}

impl Tensors {
    /// Tensor `name`, where the file has it.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// Tensor `name`.
    ///
    /// # Panics
    /// If the file does not have it.
    pub fn tensor(&self, name: &str) -> &Tensor {
        let names = || self.tensors.keys().cloned().collect::<Vec<_>>().join(", ");
        self.get(name).unwrap_or_else(|| panic!("{} has no tensor '{name}', only {}", self.file, names()))
    }

    /// Names and tensors, in alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }
}

/// A tensor in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Sizes of the axes.
    pub shape: Vec<usize>,
    data: Data,
}

#[derive(Clone, Debug, PartialEq)]
enum Data {
    Real(Vec<f64>),
    Integer(Vec<i64>),
    Byte(Vec<u8>),
}

impl Data {
    fn decode(dtype: Dtype, bytes: &[u8]) -> Self {
        fn numbers<const N: usize, T>(bytes: &[u8], number: impl Fn([u8; N]) -> T) -> Vec<T> {
            bytes.as_chunks::<N>().0.iter().map(|&chunk| number(chunk)).collect()
        }
        match dtype {
            Dtype::F64 => Self::Real(numbers(bytes, f64::from_le_bytes)),
            Dtype::F32 => Self::Real(numbers(bytes, |b| f64::from(f32::from_le_bytes(b)))),
            Dtype::I64 => Self::Integer(numbers(bytes, i64::from_le_bytes)),
            Dtype::I32 => Self::Integer(numbers(bytes, |b| i64::from(i32::from_le_bytes(b)))),
            Dtype::U8 => Self::Byte(bytes.to_vec()),
            other => panic!("no test data of type {other:?}"),
        }
    }
}

impl Tensor {
    /// Real numbers.
    ///
    /// # Panics
    /// If they are not.
    pub fn f64(&self) -> &[f64] {
        match &self.data {
            Data::Real(data) => data,
            other => panic!("real numbers expected, not {other:?}"),
        }
    }

    /// Real numbers, rounded: exactly for inputs.
    ///
    /// # Panics
    /// If they are not real.
    pub fn f32(&self) -> Vec<f32> {
        self.f64().iter().map(|&x| x as f32).collect()
    }

    /// Integers.
    ///
    /// # Panics
    /// If they are not.
    pub fn i64(&self) -> &[i64] {
        match &self.data {
            Data::Integer(data) => data,
            other => panic!("integers expected, not {other:?}"),
        }
    }

    /// Bytes of a mask.
    ///
    /// # Panics
    /// If they are not.
    pub fn u8(&self) -> &[u8] {
        match &self.data {
            Data::Byte(data) => data,
            other => panic!("bytes expected, not {other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_there_as_the_manifest_says() {
        let cases = cases();
        assert!(cases.len() > 100, "{} cases", cases.len());
        for case in &cases {
            let tensors = case.load();
            assert_eq!(tensors.iter().count(), case.tensors.len(), "{}", case.file);
            for name in case.differentiated() {
                // Whole models list their parameters as `param.NAME`.
                let gradient = format!("grad.{}", name.trim_start_matches("param."));
                assert!(tensors.get(&gradient).is_some(), "{} lacks '{gradient}'", case.file);
            }
        }
        assert!(costs().iter().any(|c| c.formula == "mgk_operations" && c.value == 112_302.0));
    }

    #[test]
    fn inputs_are_float32_numbers() {
        for case in cases().iter().filter(|c| c.mechanism == "softmax") {
            let tensors = case.load();
            for name in ["q", "k", "v", "grad_out"] {
                let exact = tensors.tensor(name).f64().iter().all(|&x| f64::from(x as f32) == x);
                assert!(exact, "{} '{name}'", case.file);
            }
        }
    }

    #[test]
    fn bounds_follow_the_manifest() {
        let cases = cases();
        let case = cases.iter().find(|c| c.name() == "mgk_extreme").unwrap();
        assert!((case.bound("grad.log_prior") - 1.7e-3).abs() < 1e-9);
        assert_eq!(case.bound("out"), float32_bound(case.float32_error["out"]));
        assert_eq!(case.bound("unknown"), 2e-6);
    }
}
