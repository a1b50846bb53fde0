//! Tensors on the host.

use burn::tensor::Tensor;
use regard_kernels::View;

use super::{Operand, bridge::each_rank};

/// A tensor on the host.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub data: Vec<f32>,
    pub shape: Vec<usize>,
}

impl Host {
    pub fn view(&self) -> View<'_, f32> {
        View::new(&self.data, &self.shape)
    }

    /// The elements in float64.
    pub fn wide(&self) -> Vec<f64> {
        self.data.iter().map(|x| f64::from(*x)).collect()
    }
}

impl<const D: usize> From<Tensor<D>> for Host {
    fn from(tensor: Tensor<D>) -> Self {
        let shape = tensor.dims().to_vec();
        Self { data: tensor.into_data_as::<f32>().try_to_vec().expect("f32, as asked"), shape }
    }
}

impl From<&Operand> for Host {
    fn from(operand: &Operand) -> Self {
        each_rank!(operand.clone(), tensor => tensor.into())
    }
}
