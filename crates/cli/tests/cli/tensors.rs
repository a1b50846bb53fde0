//! Safetensors files to give and to judge.

use std::{collections::BTreeMap, fs, path::Path};

use regard_testkit::golden;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

/// A tensor as it lies in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// Type of its elements.
    pub dtype: Dtype,
    /// Sizes of its axes.
    pub shape: Vec<usize>,
    /// Its elements, little endian, row by row.
    pub bytes: Vec<u8>,
}

/// The tensors of a file.
#[derive(Clone, Debug, Default)]
pub struct File(pub BTreeMap<String, Stored>);

impl File {
    /// Those of the golden case `name`.
    pub fn golden(name: &str) -> Self {
        Self::read(&golden::folder().join(format!("{name}.safetensors")))
    }

    /// Those of a file.
    ///
    /// # Panics
    /// If there is none.
    pub fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let file = SafeTensors::deserialize(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let stored = |(name, view): (&str, TensorView)| {
            let stored = Stored { dtype: view.dtype(), shape: view.shape().to_vec(), bytes: view.data().to_vec() };
            (name.to_owned(), stored)
        };
        Self(file.iter().map(stored).collect())
    }

    /// The bytes of a file with these tensors.
    pub fn bytes(&self) -> Vec<u8> {
        let views = self.0.iter().map(|(name, stored)| {
            let view =
                TensorView::new(stored.dtype, stored.shape.clone(), &stored.bytes).expect("as many as the shape says");
            (name.clone(), view)
        });
        safetensors::serialize(views.collect::<Vec<_>>(), None).expect("sound tensors")
    }

    /// Writes a file with these tensors.
    pub fn write(&self, path: &Path) {
        fs::write(path, self.bytes()).expect("a directory for tests");
    }

    /// Names, sorted.
    pub fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    /// Tensor `name`.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn tensor(&self, name: &str) -> &Stored {
        self.0.get(name).unwrap_or_else(|| panic!("no tensor '{name}', only {:?}", self.names()))
    }

    /// Elements of tensor `name`, of F32 or F64.
    ///
    /// # Panics
    /// If it is not there or of another type.
    #[track_caller]
    pub fn real(&self, name: &str) -> Vec<f64> {
        let stored = self.tensor(name);
        match stored.dtype {
            Dtype::F64 => stored.bytes.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
            Dtype::F32 => stored.bytes.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
            other => panic!("'{name}' holds {other:?}"),
        }
    }

    /// Puts a tensor of F64 there.
    pub fn put(&mut self, name: &str, shape: &[usize], data: &[f64]) {
        let bytes = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.0.insert(name.to_owned(), Stored { dtype: Dtype::F64, shape: shape.to_vec(), bytes });
    }

    /// Takes a tensor away.
    pub fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Changes element `at` of a tensor of F64.
    pub fn spoil(&mut self, name: &str, at: usize, value: f64) {
        let mut data = self.real(name);
        data[at] = value;
        let shape = self.tensor(name).shape.clone();
        self.put(name, &shape, &data);
    }

    /// The same numbers, those of F64 rounded to F32.
    pub fn narrow(&self) -> Self {
        let narrow = |(name, stored): (&String, &Stored)| {
            if stored.dtype != Dtype::F64 {
                return (name.clone(), stored.clone());
            }
            let bytes = self.real(name).iter().flat_map(|x| (*x as f32).to_le_bytes()).collect();
            (name.clone(), Stored { dtype: Dtype::F32, shape: stored.shape.clone(), bytes })
        };
        Self(self.0.iter().map(narrow).collect())
    }
}
