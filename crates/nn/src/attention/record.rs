//! What the attention of a model computed in one pass, for inspection.

use std::sync::Arc;

use regard_kernels::{Operator, View};

use super::{AttentionConfig, state::Host};
use crate::blocks::{Log, Place, Stack};

/// Collects a record of every attention that a forward pass goes through.
///
/// Whatever builds its layers from [`Attention`](super::Attention) writes here by itself, so that what reads records knows
/// neither models nor where their parameters come from.
pub type AttentionLog = Log<AttentionRecord>;

/// One attention of a pass.
#[derive(Clone, Debug)]
pub struct AttentionRecord {
    /// Stack of the layer.
    pub stack: Stack,
    /// Number of the layer in its stack, from 1.
    pub layer: usize,
    /// Which attention of the layer: [`Place::Weights`] for self-attention, [`Place::CrossWeights`] for that to a second
    /// sequence.
    pub place: Place,
    /// Options of the layer.
    pub options: AttentionConfig,
    /// What was computed: one call, two where a gate averages them, none where no kernel computes it
    /// ([`AttentionOptions::check_kernel`](regard_kernels::AttentionOptions::check_kernel)).
    pub calls: Vec<AttentionCall>,
}

/// One call of an operator with its inputs, token first.
#[derive(Clone, Debug)]
pub struct AttentionCall {
    /// The operator, with its mask.
    pub operator: Arc<dyn Operator>,
    inputs: Vec<Host>,
    /// Share of each head's output, `[H]`; all of it when absent.
    pub shares: Option<Vec<f32>>,
    /// Experts of every query, `[B,N,k]`, where a router chose them: heads are slots then.
    pub experts: Option<Vec<u32>>,
}

impl AttentionCall {
    /// # Panics
    /// Inputs that do not fit the operator.
    pub(crate) fn new(operator: Arc<dyn Operator>, inputs: Vec<Host>) -> Self {
        let shapes: Vec<&[usize]> = inputs.iter().map(|input| &input.shape[..]).collect();
        if let Err(error) = operator.out_shape(&shapes) {
            panic!("{error}");
        }
        Self { operator, inputs, shares: None, experts: None }
    }

    pub(crate) fn with_shares(self, shares: Vec<f32>) -> Self {
        Self { shares: Some(shares), ..self }
    }

    pub(crate) fn with_experts(self, experts: Vec<u32>) -> Self {
        Self { experts: Some(experts), ..self }
    }

    /// Input `name`, where the operator has one: `q [B,N,H,D]`, `k [B,S,Hk,D]` (mixtures `[B,S,M,Hk,D]`), `v [B,S,Hk,Dv]`.
    pub fn input(&self, name: &str) -> Option<View<'_, f32>> {
        let at = self.operator.inputs().iter().position(|input| *input == name)?;
        Some(self.inputs[at].view())
    }

    /// All inputs in float64, in the order of the operator, as pairs of elements and shape.
    pub fn wide_inputs(&self) -> Vec<(Vec<f64>, &[usize])> {
        let wide = |input: &Host| input.data.iter().map(|x| f64::from(*x)).collect();
        self.inputs.iter().map(|input| (wide(input), &input.shape[..])).collect()
    }
}
