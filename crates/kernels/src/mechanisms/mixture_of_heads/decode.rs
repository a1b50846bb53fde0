//! Decoding token by token: the state is one head of keys and values, independent of the number of experts and of
//! active experts.

use super::{MixtureOfHeads, Parts};
use crate::{Decode, Storage, View};

/// Keys and values of the tokens so far.
#[derive(Debug)]
pub(super) struct HeadCache {
    /// For one token, which has neither a future nor padding.
    operator: MixtureOfHeads,
    attention: Box<dyn Decode>,
}

impl HeadCache {
    pub fn new(operator: &MixtureOfHeads, storage: Storage) -> Self {
        let attention = crate::Operator::decoder(&operator.softmax(), storage).expect("causal softmax decodes");
        Self { operator: MixtureOfHeads { dropout: None, ..operator.clone() }, attention }
    }
}

impl Decode for HeadCache {
    fn step(&mut self, inputs: &[View<f32>], out: &mut [f32]) {
        let parts = Parts::new(&self.operator, inputs, None);
        let (weights, q) = parts.weights_and_queries();
        let [k, v] = parts.keys_and_values();
        let (head_shape, key_shape) = (parts.head_shape(), parts.key_shape());
        let mut heads = vec![0.0; q.len()];
        let token = [View::new(&q, &head_shape), View::new(&k, &key_shape), View::new(&v, &key_shape)];
        self.attention.step(&token, &mut heads);
        parts.join(&heads, &weights, out);
    }

    fn absorb(&mut self, inputs: &[View<f32>], _: &mut [f32]) {
        let parts = Parts::new(&self.operator, inputs, None);
        let (_, q) = parts.weights_and_queries();
        let [k, v] = parts.keys_and_values();
        let (head_shape, key_shape) = (parts.head_shape(), parts.key_shape());
        let token = [View::new(&q, &head_shape), View::new(&k, &key_shape), View::new(&v, &key_shape)];
        self.attention.absorb(&token, &mut []);
    }

    fn reorder(&mut self, rows: &[usize]) {
        self.attention.reorder(rows);
    }

    fn bytes(&self) -> usize {
        self.attention.bytes()
    }
}
