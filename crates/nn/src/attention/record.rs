//! What the attention of a model computed in one pass, for inspection.

use std::{borrow::Cow, sync::Arc};

use burn::tensor::Tensor;
use regard_kernels::{Call, Operator, View};

use super::{Attention, AttentionConfig};
use crate::{
    blocks::{Log, Place, Stack},
    ops::{Host, Inputs},
};

/// Collects a record of every attention that a forward pass goes through.
///
/// Whatever builds its layers from [`Attention`](super::Attention) writes here by itself, so that what reads records knows
/// neither models nor where their parameters come from.
pub type AttentionLog = Log<AttentionRecord>;

/// Collects the attention layers of a pass, each with what it read and gave.
pub type LayerLog = Log<LayerRecord>;

/// One attention layer of a pass.
#[derive(Clone, Debug)]
pub struct LayerRecord {
    /// Number of the layer in its stack, from 1.
    pub layer: usize,
    /// The layer; its parameters are shared, not copied.
    pub attention: Attention,
    /// What it read, `[B,N,d]`.
    pub input: Tensor<3>,
    /// What it gave, `[B,N,d]`, before any scale.
    pub output: Tensor<3>,
}

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

/// One operator of a pass, about to run.
pub(crate) struct AttentionPart<'a> {
    pub options: Cow<'a, AttentionConfig>,
    pub inputs: &'a Inputs,
    /// Share of each head's output, `[H]`; all of it when absent.
    shares: Option<Tensor<1>>,
    /// Experts of every query, where a router chose them.
    experts: Option<&'a [u32]>,
}

impl<'a> AttentionPart<'a> {
    pub fn new(options: Cow<'a, AttentionConfig>, inputs: &'a Inputs) -> Self {
        Self { options, inputs, shares: None, experts: None }
    }

    pub fn with_shares(self, shares: Tensor<1>) -> Self {
        Self { shares: Some(shares), ..self }
    }

    pub fn with_experts(self, experts: &'a [u32]) -> Self {
        Self { experts: Some(experts), ..self }
    }

    /// For a log.
    pub fn record(&self, call: Call) -> AttentionCall {
        let operator = self.options.operator(call).unwrap_or_else(|error| panic!("{error}"));
        let inputs = self.inputs.operands(&operator.inputs()).iter().map(Host::from).collect();
        AttentionCall {
            operator,
            inputs,
            shares: self.shares.clone().map(|shares| Host::from(shares).data),
            experts: self.experts.map(<[u32]>::to_vec),
        }
    }
}

impl AttentionCall {
    /// Input `name`, where the operator has one: `q [B,N,H,D]`, `k [B,S,Hk,D]` (mixtures `[B,S,M,Hk,D]`), `v [B,S,Hk,Dv]`.
    pub fn input(&self, name: &str) -> Option<View<'_, f32>> {
        let at = self.operator.inputs().iter().position(|input| *input == name)?;
        Some(self.inputs[at].view())
    }

    /// All inputs in float64, in the order of the operator, as pairs of elements and shape.
    pub fn wide_inputs(&self) -> Vec<(Vec<f64>, &[usize])> {
        self.inputs.iter().map(|input| (input.wide(), &input.shape[..])).collect()
    }
}
