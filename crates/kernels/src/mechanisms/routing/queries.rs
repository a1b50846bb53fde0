//! Queries of each token's experts.

use std::sync::Arc;

use super::{
    Routing,
    weights::{chunks, pair_rows, sum_over_slots, sum_over_tokens, token_rows, turned},
};
use crate::{
    Error, Operator, Reference, Saved, View,
    gemm::Write,
    parallel::{self, Disjoint},
    reference,
    simd::{Places, Spread, product_of_rows},
};

/// `q_ts = x_t W_e(t,s)`: `x [B,N,d]`, `w_query [E,d,D]` to `[B,N,k,D]`, 0 for padded tokens.
#[derive(Clone, Debug)]
pub struct ExpertQueries {
    /// The chosen experts.
    pub routing: Arc<Routing>,
}

impl Operator for ExpertQueries {
    fn inputs(&self) -> Vec<&'static str> {
        vec!["x", "w_query"]
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        let routing = &self.routing;
        let &[batch, queries, width] = shapes[0] else { return Err(Error::rank("x", shapes[0], 3)) };
        Error::check_shape("x", shapes[0], &[routing.batch(), routing.queries(), width])?;
        let &[_, _, head_width] = shapes[1] else { return Err(Error::rank("w_query", shapes[1], 3)) };
        Error::check_shape("w_query", shapes[1], &[routing.experts(), width, head_width])?;
        Ok(vec![batch, queries, routing.active(), head_width])
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        let routing = &*self.routing;
        let &[_, width, head_width] = inputs[1].shape else { unreachable!("checked shapes") };
        fill_padding(routing, head_width, out);
        let chunks = chunks(routing);
        let written = Disjoint::new(out);
        parallel::for_each(chunks.len(), |chunk| {
            let (expert, pairs) = chunks[chunk];
            let (mut from, mut to) = (Vec::new(), Vec::new());
            token_rows(pairs, routing.active(), width, &mut from);
            pair_rows(pairs, head_width, &mut to);
            let x = Spread::new(inputs[0].data, Places::At(&from));
            let weights = Spread::new(&inputs[1].data[expert * width * head_width..], Places::Every(head_width));
            let size = (pairs.len(), head_width, width);
            // SAFETY: every assignment belongs to one chunk.
            unsafe { product_of_rows(size, x, weights, None, Write::Over, &written, Places::At(&to)) };
        });
        Saved::new()
    }

    fn backward(
        &self,
        inputs: &[View<f32>],
        _out: &[f32],
        _saved: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        let routing = &*self.routing;
        let [x, w_query] = [inputs[0].data, inputs[1].data];
        let &[_, width, head_width] = inputs[1].shape else { unreachable!("checked shapes") };
        let x_grad = || {
            let mut grad = vec![0.0; x.len()];
            let turned = turned(w_query, (width, head_width));
            sum_over_slots(routing, grad_out, None, &turned, (head_width, width), &mut grad);
            grad
        };
        let weight_grad = || {
            let mut grad = vec![0.0; w_query.len()];
            let written = Disjoint::new(&mut grad);
            sum_over_tokens(routing, (grad_out, head_width), None, (x, width), |expert, rows, sum| {
                let len = rows.len();
                // SAFETY: these rows of this expert's matrix belong to this task alone.
                let dst = unsafe { written.range((expert * width + rows.start) * head_width, len * head_width) };
                crate::gemm::transpose(crate::gemm::Matrix::rows(sum, len), (head_width, len), dst);
            });
            grad
        };
        vec![wanted[0].then(x_grad), wanted[1].then(weight_grad)]
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        reference::routing::expert_queries(&self.routing, inputs, grad_out)
    }
}

/// Sets the rows `[B,N,k,D]` of padded tokens to 0.
pub(super) fn fill_padding(routing: &Routing, head_width: usize, rows: &mut [f32]) {
    if routing.real() < routing.tokens() {
        let token = routing.active() * head_width;
        let padded = (0..routing.tokens()).filter(|t| !routing.is_real(*t));
        padded.for_each(|t| rows[t * token..(t + 1) * token].fill(0.0));
    }
}
