//! Mixture of heads: every rank routes its own tokens and projects its own keys and values, which all heads share; their
//! attention is exact attention over all ranks.

use regard_kernels::{Layout, Mask, MixtureOfHeads, Saved, View};

use crate::{error::SequenceError, exact::Exact, rows::Scales};

/// The operator over the tokens of one rank, and the attention of its heads.
#[derive(Clone, Debug)]
pub(crate) struct Experts {
    pub operator: MixtureOfHeads,
    pub attention: Exact,
}

impl Experts {
    /// `operator` is that of the whole call.
    pub fn new(operator: MixtureOfHeads, attention: Exact) -> Self {
        let (rank, [queries, keys]) = (attention.rank(), attention.splits());
        let mask = Mask {
            valid: keys.padding(&operator.mask.valid, rank),
            query_valid: queries.padding(&operator.mask.query_valid, rank),
            ..operator.mask.clone()
        };
        Self { operator: MixtureOfHeads { mask, ..operator }, attention }
    }

    pub fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Result<Saved, SequenceError> {
        let attend = |inputs: &[View<f32>], heads: &mut [f32]| {
            let scales = self.attention.forward(inputs, heads)?;
            let buffers: Vec<_> = scales.into_iter().flat_map(|scales| [scales.tops, scales.inverses]).collect();
            Ok(buffers.into())
        };
        self.operator.forward_through(inputs, attend, out)
    }

    pub fn backward(
        &self,
        inputs: &[View<f32>],
        saved: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Result<Vec<Option<Vec<f32>>>, SequenceError> {
        let attend = |inputs: &[View<f32>], heads: &[f32], saved: &Saved, of_heads: &[f32]| {
            let pairs = saved.buffers().chunks_exact(2);
            let scales: Vec<_> =
                pairs.map(|pair| Scales { tops: pair[0].clone(), inverses: pair[1].clone() }).collect();
            Ok(self.attention.backward(inputs, (heads, &scales), of_heads, &[true; 3])?)
        };
        self.operator.backward_through(inputs, saved, grad_out, attend, wanted)
    }

    /// The layout in which the heads attend.
    pub const LAYOUT: Layout = Layout::TokenFirst;
}
