//! Tensors on the host.

use burn::tensor::Tensor;
use regard_kernels::View;

use super::{
    Operand,
    bridge::{each_rank, with_dense},
};

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

/// Lends the elements of a float32 tensor, in row-major order.
///
/// Where [`runs_kernels`](super::runs_kernels) is true, a tensor that is in this order is read in place; other devices
/// send a copy.
pub fn with_elements<const D: usize, R>(tensor: &Tensor<D>, task: impl FnOnce(&[f32]) -> R) -> R {
    match with_dense(tensor, task) {
        Ok(result) => result,
        Err(task) => task(&Host::from(tensor.clone()).data),
    }
}

/// The tensors after `task` has changed their elements, float32 in row-major order.
///
/// Where [`runs_kernels`](super::runs_kernels) is true, a buffer that nothing else holds is changed in place; other devices
/// send a copy and get it back. The results are without autodiff.
pub fn with_elements_mut<const D: usize, const N: usize>(
    tensors: [Tensor<D>; N],
    task: impl FnOnce([&mut [f32]; N]),
) -> [Tensor<D>; N] {
    let mut lent = tensors.map(|tensor| {
        let tensor = tensor.without_autodiff();
        (tensor.device(), tensor.into_data_as::<f32>())
    });
    task(lent.each_mut().map(|(_, data)| data.as_mut_slice().expect("f32, as asked")));
    lent.map(|(device, data)| Tensor::from_data(data, &device))
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn address<const D: usize>(tensor: &Tensor<D>) -> *const f32 {
        with_elements(tensor, |elements| elements.as_ptr())
    }

    #[test]
    fn elements_are_read_where_they_lie() {
        let device = Device::flex();
        let x = Tensor::<2>::from_data([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &device);
        let row = x.clone().narrow(0, 1, 1);
        assert_eq!(address(&row), address(&x).wrapping_add(3));
        assert_eq!(with_elements(&row, <[f32]>::to_vec), [4.0, 5.0, 6.0]);
        assert_eq!(with_elements(&x.transpose().autodiff(), <[f32]>::to_vec), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }

    #[test]
    fn a_buffer_is_changed_in_place_unless_another_tensor_holds_it() {
        let device = Device::flex();
        let x = Tensor::<1>::from_data([1.0, 2.0], &device);
        let before = address(&x);
        let [x] = with_elements_mut([x], |[x]| x[0] = 7.0);
        assert_eq!((address(&x), with_elements(&x, <[f32]>::to_vec)), (before, vec![7.0, 2.0]));
        let [changed] = with_elements_mut([x.clone()], |[x]| x[1] = 9.0);
        assert_eq!(with_elements(&changed, <[f32]>::to_vec), [7.0, 9.0]);
        assert_eq!(with_elements(&x, <[f32]>::to_vec), [7.0, 2.0]);
    }
}
