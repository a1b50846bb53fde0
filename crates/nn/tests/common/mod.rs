//! Helpers of the tests of whole models.

#![allow(dead_code)] // Each test binary uses some of them.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};
use regard_nn::models::ParameterPath;

/// Elements in row-major order.
pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data_as::<f32>().try_to_vec().unwrap()
}

/// The same in double precision.
pub fn doubles<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    values(tensor).into_iter().map(f64::from).collect()
}

/// Gradients of all parameters that have one, by name.
pub fn gradients<M: Module>(model: &M, grads: &Gradients) -> BTreeMap<String, Vec<f64>> {
    struct Collect<'a>(ParameterPath, &'a Gradients, BTreeMap<String, Vec<f64>>);
    impl ModuleVisitor for Collect<'_> {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(grad) = param.val().grad(self.1) {
                self.2.insert(self.0.name(), doubles(grad));
            }
        }
    }
    let mut collect = Collect(ParameterPath::default(), grads, BTreeMap::new());
    model.visit(&mut collect);
    collect.2
}
