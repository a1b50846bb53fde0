//! Helpers of the tests of whole models.

#![allow(dead_code)] // Each test binary uses some of them.

use std::{collections::BTreeMap, sync::Arc};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};
use regard_kernels::{Mechanism, Padding};
use regard_nn::{
    attention::AttentionConfig,
    models::{ModelConfig, ParameterPath, TokenBatch},
};

/// Token numbers of the small models.
pub const VOCABULARY: usize = 11;

/// A small model.
pub fn small() -> ModelConfig {
    ModelConfig { width: 16, feed_forward: 24, ..ModelConfig::default() }
}

/// Two heads of a mechanism.
pub fn attention(mechanism: Mechanism) -> AttentionConfig {
    AttentionConfig { mechanism, heads: 2, ..AttentionConfig::default() }
}

/// Tokens of rows of these lengths, with `filler` as padding.
pub fn batch(lengths: &[usize], length: usize, filler: i32) -> TokenBatch {
    let ids: Vec<i32> = lengths
        .iter()
        .enumerate()
        .flat_map(|(row, &tokens)| {
            (0..length).map(move |i| if i < tokens { ((3 * i + 5 * row + 1) % VOCABULARY) as i32 } else { filler })
        })
        .collect();
    let padding = Arc::new(Padding::from_lengths(lengths, length));
    TokenBatch::new(ids, lengths.len(), length, Some(padding)).unwrap()
}

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
