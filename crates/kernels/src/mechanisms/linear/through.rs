//! Linear attention over a part of a sequence, whose other parts enter through their sums alone.

use super::{Linear, bidirectional, causal, operands::Output};
use crate::{Saved, View};

impl Linear {
    /// [`Operator::forward`](crate::Operator::forward) over a part of a sequence. `exchange` gets the sums over the keys of
    /// this part, `[B, sums, D (Dv + 1)]`, and returns those that its queries see besides: under a causal mask the sums
    /// over all keys before this part, otherwise over all keys of the sequence, this part's included.
    ///
    /// # Errors
    /// What `exchange` fails with.
    pub fn forward_through<E>(
        &self,
        inputs: &[View<f32>],
        exchange: impl FnOnce(Vec<f32>) -> Result<Vec<f32>, E>,
        out: &mut [f32],
    ) -> Result<Saved, E> {
        let inputs = self.read(inputs);
        let inputs = inputs.views();
        let operands = self.operands(&inputs);
        let sums = exchange(bidirectional::sum_keys(&operands))?;
        Ok(match self.mask.causal {
            true => causal::forward(&operands, Some(&sums), out),
            false => bidirectional::forward(&operands, sums, out),
        })
    }

    /// [`Operator::backward`](crate::Operator::backward) of [`Linear::forward_through`]. `exchange` gets the gradient of
    /// those sums from the queries of this part, and returns that from the queries which see the keys of this part: under
    /// a causal mask those of all later parts, otherwise all, this part's included.
    ///
    /// # Errors
    /// What `exchange` fails with.
    pub fn backward_through<E>(
        &self,
        inputs: &[View<f32>],
        (out, saved): (&[f32], &Saved),
        grad_out: &[f32],
        exchange: impl FnOnce(Vec<f32>) -> Result<Vec<f32>, E>,
        wanted: &[bool],
    ) -> Result<Vec<Option<Vec<f32>>>, E> {
        let inputs = self.read(inputs);
        let inputs = inputs.views();
        let operands = self.operands(&inputs);
        let output = Output { out, denominators: &saved[0], grad: grad_out };
        if !self.mask.causal {
            return bidirectional::backward(&operands, output, &saved[1], wanted, exchange);
        }
        let after = exchange(causal::grad_of_start(&operands, output))?;
        Ok(causal::backward(&operands, output, &saved[1], Some(&after), wanted))
    }
}
