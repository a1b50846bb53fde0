//! A mixture of heads whose attention itself is done by the caller: over a part of a sequence, by all parts together.

use super::{MixtureOfHeads, Parts, grads, product_gradients, sum};
use crate::{
    Operator, Saved, View,
    routing::{ExpertOutputs, ExpertQueries},
};

impl MixtureOfHeads {
    /// [`Operator::forward`] with the softmax attention of the chosen heads done by `attend`: from queries `[B,N,k,D]`, keys
    /// and values `[B,S,1,D]` it fills outputs like the queries.
    ///
    /// # Errors
    /// What `attend` fails with.
    pub fn forward_through<E>(
        &self,
        inputs: &[View<f32>],
        attend: impl FnOnce(&[View<f32>], &mut [f32]) -> Result<Saved, E>,
        out: &mut [f32],
    ) -> Result<Saved, E> {
        let inputs = self.read(inputs);
        let inputs = inputs.views();
        let parts = Parts::new(self, &inputs, None);
        let (weights, q) = parts.weights_and_queries();
        let [k, v] = parts.keys_and_values();
        let (head_shape, key_shape) = (parts.head_shape(), parts.key_shape());
        let mut heads = vec![0.0; q.len()];
        let attended = [View::new(&q, &head_shape), View::new(&k, &key_shape), View::new(&v, &key_shape)];
        let mut saved = attend(&attended, &mut heads)?.buffers;
        parts.join(&heads, &weights, out);
        saved.extend([weights, q, k, v, heads, parts.logits.into_owned()]);
        Ok(saved.into())
    }

    /// [`Operator::backward`] of [`MixtureOfHeads::forward_through`]; `attend` gets what it got there, with the outputs, what
    /// it saved and the gradient of the outputs, and returns the gradients of queries, keys and values.
    ///
    /// # Errors
    /// What `attend` fails with.
    pub fn backward_through<E>(
        &self,
        inputs: &[View<f32>],
        saved: &Saved,
        grad_out: &[f32],
        attend: impl FnOnce(&[View<f32>], &[f32], &Saved, &[f32]) -> Result<Vec<Option<Vec<f32>>>, E>,
        wanted: &[bool],
    ) -> Result<Vec<Option<Vec<f32>>>, E> {
        let (of_softmax, of_parts) = saved.buffers.split_at(saved.buffers.len() - 6);
        let [weights, q, k, v, heads, logits] = of_parts else { unreachable!("six buffers") };
        let inputs = self.read(inputs);
        let inputs = inputs.views();
        let parts = Parts::new(self, &inputs, Some(logits));
        let (head_shape, key_shape) = (parts.head_shape(), parts.key_shape());
        let (weights_shape, logits_shape) = (parts.weights_shape(), parts.logits_shape());

        let outputs = ExpertOutputs { routing: parts.routing.clone() };
        let joined = [View::new(heads, &head_shape), View::new(weights, &weights_shape), parts.w_out];
        let [of_heads, of_weights, w_out] =
            grads(outputs.backward(&joined, &[], &Saved::new(), grad_out, &[true, true, wanted[wanted.len() - 1]]));
        let attended = [View::new(q, &head_shape), View::new(k, &key_shape), View::new(v, &key_shape)];
        let of_heads = of_heads.expect("wanted");
        let of_attended = attend(&attended, heads, &of_softmax.to_vec().into(), &of_heads)?;
        let [of_q, of_k, of_v] = grads(of_attended).map(|grad| grad.expect("wanted"));
        let logits = [View::new(&parts.logits[..], &logits_shape)];
        let of_weights = of_weights.expect("wanted");
        let [of_logits] = grads(parts.gates().backward(&logits, &[], &Saved::new(), &of_weights, &[true]));
        let of_logits = of_logits.expect("wanted");

        let from_end = |n: usize| wanted[wanted.len() - n];
        let of_x = wanted[0];
        let of_x_kv = if self.cross { wanted[1] } else { of_x };
        let queries = ExpertQueries { routing: parts.routing.clone() };
        let both = [of_x, from_end(4)];
        let [x, w_query] = grads(queries.backward(&[parts.x, parts.w_query], &[], &Saved::new(), &of_q, &both));
        let [more, w_gate] = product_gradients(parts.x, parts.w_gate, &of_logits, [of_x, from_end(5)]);
        let x = sum(x, more);
        let [x_kv, w_key] = product_gradients(parts.x_kv, parts.w_key, &of_k, [of_x_kv, from_end(3)]);
        let [more, w_value] = product_gradients(parts.x_kv, parts.w_value, &of_v, [of_x_kv, from_end(2)]);
        let x_kv = sum(x_kv, more);
        let mut all = if self.cross { vec![x, x_kv] } else { vec![sum(x, x_kv)] };
        all.extend([w_gate, w_query, w_key, w_value, w_out]);
        Ok(all)
    }
}
