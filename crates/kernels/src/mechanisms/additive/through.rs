//! Additive attention over a part of a sequence: the other parts enter through the two averages alone.

use super::{
    Additive,
    backward::PassOn,
    forward::{Blocks, LOWEST},
    plan::Plan,
};
use crate::{
    Saved, ScaledSums, View,
    parallel::for_each_part,
    scaled::HEAD,
    simd::{add_scaled, exp, vectorize},
};
use std::f32::consts::LOG2_E;

impl Additive {
    /// [`Operator::forward`](crate::Operator::forward) over a part of a sequence. `exchange` is called for the average of
    /// the queries, then for that of the gated keys: it gets the sums over the tokens of this part, `[B,H]` rows
    /// `[top, z, S]`, and returns those that enter besides: under a causal mask over all tokens before this part,
    /// otherwise over all of the sequence, this part's included.
    ///
    /// # Errors
    /// What `exchange` fails with.
    pub fn forward_through<E>(
        &self,
        inputs: &[View<f32>],
        mut exchange: impl FnMut(ScaledSums) -> Result<ScaledSums, E>,
        out: &mut [f32],
    ) -> Result<Saved, E> {
        let inputs = self.read(inputs);
        let inputs = inputs.views();
        let mut plan = Plan::new(self, &inputs);
        let mut sums = plan.sum_blocks(None);
        let outside = exchange(plan.totals(&sums))?;
        let of_row = outside.as_slice().chunks_exact(plan.shape.heads * outside.row_len());
        let seen: Vec<f32> = of_row.map(|sums| if sums[1] > 0.0 { 1.0 } else { 0.0 }).collect();
        // Rows before the first real token now take part, and are padded.
        let tokens = plan.shape.queries;
        for (n, weights) in sums.weights.chunks_exact_mut(tokens).enumerate() {
            let b = n / plan.shape.heads;
            if seen[b] > 0.0 {
                weights[..plan.first(b)].fill(f32::NEG_INFINITY);
            }
        }
        plan.see_outside(seen.iter().map(|seen| *seen > 0.0));
        let queries = plan.settle(sums, Some(&outside));
        let sums = plan.sum_blocks(Some(queries.view()));
        let outside = exchange(plan.totals(&sums))?;
        let keys = plan.settle(sums, Some(&outside));
        plan.project(queries.view(), keys.view(), out);
        Ok(vec![queries.weights, queries.state, keys.weights, keys.state, seen].into())
    }

    /// [`Operator::backward`](crate::Operator::backward) of [`Additive::forward_through`]. `exchange` is called for the
    /// average of the gated keys, then for that of the queries, with a function that says what this part passes on, for
    /// each head of each batch row a vector and a scalar, `[B,H,D + 1]`. Under a causal mask it goes to the parts before
    /// this one, the function takes what this part gets from those after it, and `exchange` returns that, none at the end
    /// of the sequence. Otherwise it is this part's share of a sum, and `exchange` returns the sum over all parts.
    ///
    /// # Errors
    /// What `exchange` fails with.
    pub fn backward_through<E>(
        &self,
        inputs: &[View<f32>],
        saved: &Saved,
        grad_out: &[f32],
        exchange: impl FnMut(PassOn) -> Result<Option<Vec<f32>>, E>,
        wanted: &[bool],
    ) -> Result<Vec<Option<Vec<f32>>>, E> {
        let inputs = self.read(inputs);
        let inputs = inputs.views();
        let mut plan = Plan::new(self, &inputs);
        plan.see_outside(saved[4].iter().map(|seen| *seen > 0.0));
        let gradients = plan.backward_through(saved.buffers(), grad_out, wanted[wanted.len() - 1], exchange)?;
        Ok(gradients.into_iter().zip(wanted).map(|(gradient, wanted)| wanted.then_some(gradient)).collect())
    }
}

impl Plan<'_> {
    /// Sums over all blocks, for each head of each batch row.
    fn totals(&self, sums: &Blocks) -> ScaledSums {
        let (heads, width, blocks) = (self.shape.heads, self.shape.head_width, self.blocks());
        let mut totals = vec![0.0; self.shape.batch * heads * (width + HEAD)];
        for_each_part(&mut totals, width + HEAD, |task, total| {
            let (b, h) = (task / heads, task % heads);
            let tops = &sums.tops[task * blocks..(task + 1) * blocks];
            let top = tops.iter().copied().fold(LOWEST, f32::max);
            if top == LOWEST {
                total[0] = f32::NEG_INFINITY;
                return;
            }
            total[0] = top * LOG2_E;
            let mut weight = 0.0f64;
            vectorize(
                #[inline(always)]
                || {
                    for (block, &block_top) in tops.iter().enumerate() {
                        let scores = &sums.weights[self.scalars(b, h, &self.seeing(b, block))];
                        let part: f32 = scores.iter().map(|score| exp(score - top)).sum();
                        weight += f64::from(part);
                        add_scaled(&mut total[HEAD..], exp(block_top - top), &sums.state[self.partial(b, block, h)]);
                    }
                },
            );
            total[1] = weight as f32;
        });
        ScaledSums::new(totals, width)
    }
}
