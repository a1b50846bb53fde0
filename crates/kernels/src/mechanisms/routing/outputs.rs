//! Weighted sum of the outputs of each token's experts.

use std::sync::Arc;

use super::{
    Routing,
    queries::fill_padding,
    weights::{chunks, pair_rows, sum_over_slots, sum_over_tokens, token_rows, turned},
};
use crate::{
    Error, Operator, Reference, Saved, View,
    gemm::Write,
    parallel::{self, Disjoint},
    reference,
    simd::{self, Places, Spread, product_of_rows},
};

/// `y_t = sum_s w_ts h_ts W_e(t,s)`: `heads [B,N,k,D]`, `weights [B,N,k]`, `w_out [E,D,d]` to `[B,N,d]`, 0 for padded
/// tokens.
#[derive(Clone, Debug)]
pub struct ExpertOutputs {
    /// The chosen experts.
    pub routing: Arc<Routing>,
}

impl Operator for ExpertOutputs {
    fn inputs(&self) -> Vec<&'static str> {
        vec!["heads", "weights", "w_out"]
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        let routing = &self.routing;
        let (batch, queries, active) = (routing.batch(), routing.queries(), routing.active());
        let &[_, _, _, head_width] = shapes[0] else { return Err(Error::rank("heads", shapes[0], 4)) };
        Error::check_shape("heads", shapes[0], &[batch, queries, active, head_width])?;
        Error::check_shape("weights", shapes[1], &[batch, queries, active])?;
        let &[_, _, width] = shapes[2] else { return Err(Error::rank("w_out", shapes[2], 3)) };
        Error::check_shape("w_out", shapes[2], &[routing.experts(), head_width, width])?;
        Ok(vec![batch, queries, width])
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        let [heads, weights, w_out] = [0, 1, 2].map(|n| inputs[n].data);
        let &[_, head_width, width] = inputs[2].shape else { unreachable!("checked shapes") };
        sum_over_slots(&self.routing, heads, Some(weights), w_out, (head_width, width), out);
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
        let [heads, weights, w_out] = [0, 1, 2].map(|n| inputs[n].data);
        let &[_, head_width, width] = inputs[2].shape else { unreachable!("checked shapes") };
        let (mut heads_grad, mut weights_grad) = (None, None);
        if wanted[0] || wanted[1] {
            let (mut of_heads, mut of_weights) = (vec![0.0; heads.len()], vec![0.0; weights.len()]);
            self.row_gradients((heads, weights), w_out, grad_out, (head_width, width), &mut of_heads, &mut of_weights);
            (heads_grad, weights_grad) = (wanted[0].then_some(of_heads), wanted[1].then_some(of_weights));
        }
        let matrix_grad = || {
            let mut grad = vec![0.0; w_out.len()];
            let written = Disjoint::new(&mut grad);
            let heads = (heads, head_width);
            sum_over_tokens(&self.routing, heads, Some(weights), (grad_out, width), |expert, columns, sum| {
                for (i, row) in sum.chunks_exact(columns.len()).enumerate() {
                    let start = (expert * head_width + i) * width + columns.start;
                    // SAFETY: these columns of this expert's matrix belong to this task alone.
                    unsafe { written.range(start, columns.len()) }.copy_from_slice(row);
                }
            });
            grad
        };
        vec![heads_grad, weights_grad, wanted[2].then(matrix_grad)]
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        reference::routing::expert_outputs(&self.routing, inputs, grad_out)
    }
}

impl ExpertOutputs {
    /// With `u_ts = dy_t W_e^T`: `dh_ts = w_ts u_ts`, `dw_ts = h_ts . u_ts`.
    fn row_gradients(
        &self,
        (heads, weights): (&[f32], &[f32]),
        w_out: &[f32],
        grad_out: &[f32],
        (head_width, width): (usize, usize),
        heads_grad: &mut [f32],
        weights_grad: &mut [f32],
    ) {
        let routing = &*self.routing;
        fill_padding(routing, head_width, heads_grad);
        let turned = turned(w_out, (head_width, width));
        let chunks = chunks(routing);
        let (of_heads, of_weights) = (Disjoint::new(heads_grad), Disjoint::new(weights_grad));
        parallel::for_each(chunks.len(), |chunk| {
            let (expert, pairs) = chunks[chunk];
            let (mut from, mut to) = (Vec::new(), Vec::new());
            token_rows(pairs, routing.active(), width, &mut from);
            pair_rows(pairs, head_width, &mut to);
            let rows = Spread::new(grad_out, Places::At(&from));
            let matrix = Spread::new(&turned[expert * width * head_width..], Places::Every(head_width));
            let size = (pairs.len(), head_width, width);
            // SAFETY: every assignment belongs to one chunk.
            unsafe { product_of_rows(size, rows, matrix, None, Write::Over, &of_heads, Places::At(&to)) };
            simd::vectorize(
                #[inline(always)]
                || {
                    for pair in pairs.iter().map(|pair| *pair as usize) {
                        let at = pair * head_width;
                        // SAFETY: as above.
                        let (u, slope) = unsafe { (of_heads.range(at, head_width), of_weights.range(pair, 1)) };
                        slope[0] = simd::dot(&heads[at..at + head_width], u);
                        u.iter_mut().for_each(|u| *u *= weights[pair]);
                    }
                },
            );
        });
    }
}
