//! The Gaussian kernel and the mixture of Gaussian keys.

use burn::module::{Module, Param, RunningState};
use burn::tensor::{Tensor, TensorData};
use regard_kernels::{
    Error, Mask,
    mechanism::{Inference, Prior},
};

use super::{
    DecodeState, KeyState,
    projection::{Heads, Projections},
    state::set,
};
use crate::{
    blocks::{Context, Init, Part, Place, Positions},
    ops::{self, Inputs},
};

/// Attention whose scores are log-likelihoods of the query under a mixture of Gaussians around each key (MGK and sMGK,
/// arXiv 2110.08678, sections 2 and 3.4).
#[derive(Module, Debug)]
pub struct GaussianMixture {
    projections: Projections<3, 2>,
    /// `[H,M]`, learned by gradient.
    log_prior: Option<Param<Tensor<2>>>,
    /// `[H,M,context]`, learned by gradient.
    position_log_prior: Option<Param<Tensor<3>>>,
    /// `[H,M,context]`, a probability: the buffer of soft-EM, which every training pass replaces (each batch of an
    /// accumulated step by itself). Clones of the layer share it.
    prior: Option<RunningState<Tensor<3>>>,
    shift: Option<Param<Tensor<3>>>,
    /// `[M]`, the logarithm, so that a learned variance stays positive.
    log_variance: Option<Param<Tensor<1>>>,
    #[module(skip)]
    variances: Vec<f32>,
}

impl GaussianMixture {
    pub(crate) fn new(heads: Heads, init: &Init) -> Result<Self, Error> {
        Self::around(Projections::components(heads, init), init)
    }

    /// A layer around projections that were made before.
    pub(crate) fn around(projections: Projections<3, 2>, init: &Init) -> Result<Self, Error> {
        let heads = &projections.heads;
        let (options, context) = (&heads.options, heads.context);
        let components = options.components();
        let variances = options.mixture.variances.resolve(components, heads.head_width)?;
        let variances: Vec<f32> = variances.into_iter().map(|variance| variance as f32).collect();
        let (inference, tied) = (options.mixture.inference, options.mixture.prior == Prior::Tied);
        let soft = options.mechanism.is_mixture() && inference == Inference::Soft;
        let uniform = 1.0 / components as f64;
        let log_variances = variances.iter().map(|variance| variance.ln()).collect();
        Ok(Self {
            log_prior: (soft && tied).then(|| init.constant([options.heads, components], uniform.ln())),
            position_log_prior: (soft && !tied)
                .then(|| init.constant([options.heads, components, context], uniform.ln())),
            prior: (options.mechanism.is_mixture() && inference == Inference::SoftEm)
                .then(|| RunningState::new(Tensor::full([options.heads, components, context], uniform, init.device()))),
            shift: options
                .shifted()
                .then(|| init.normal("shift", [options.key_heads(), components, heads.head_width], 1.0)),
            log_variance: options
                .mixture
                .learn_variances
                .then(|| Param::from_data(TensorData::new(log_variances, [components]), init.device())),
            variances,
            projections,
        })
    }

    /// The same with other shifts, `[Hk,M,D]`.
    pub(crate) fn with_shift(self, shift: Option<Tensor<3>>) -> Self {
        Self { shift: shift.map(Param::from_tensor), ..self }
    }

    pub(crate) fn project_keys(&self, keys: Tensor<3>, at: Positions) -> KeyState {
        let k = self.projections.keys(keys.clone(), self.shift.as_ref(), at);
        KeyState::Components { k, v: self.projections.values(keys) }
    }

    pub(crate) fn attend(
        &self,
        queries: Tensor<3>,
        keys: KeyState,
        mask: &Mask,
        context: &Context,
        place: Place,
    ) -> Tensor<3> {
        let length = keys.length();
        let inputs = self.inputs(queries, keys, context.positions(), length);
        // The output is that of the prior before the step.
        if let (Some(prior), true) = (&self.prior, context.training) {
            set(prior, ops::prior_after(prior.value(), &inputs, mask, self.heads().kernel()));
        }
        let out = self.heads().attend(&inputs, mask, context, place);
        context.record(Part::Heads, &out);
        self.projections.join(out)
    }

    pub(crate) fn decode(&self, tokens: Tensor<3>, state: &mut DecodeState) -> Tensor<3> {
        let at = Positions::From(state.position());
        // The whole prior, also where it depends on the position: the state knows its position.
        let inputs = self.inputs(tokens.clone(), self.project_keys(tokens, at), at, self.heads().context);
        let out = match inputs.tensor::<4>("q").dims()[1] {
            1 => state.step_heads(&inputs),
            tokens => Tensor::cat((0..tokens).map(|token| state.step_heads(&inputs.token(token))).collect(), 1),
        };
        self.projections.join(out)
    }

    /// Inputs with the prior of the first `positions`, or of those that are named.
    fn inputs(&self, queries: Tensor<3>, keys: KeyState, at: Positions, positions: usize) -> Inputs {
        let (k, v) = keys.components();
        let variance = match &self.log_variance {
            Some(log) => log.val().exp(),
            None => Tensor::from_floats(self.variances.as_slice(), &v.device()),
        };
        let shift = self.projections.shift_left(self.shift.as_ref());
        let inputs = Inputs::new(self.projections.queries(queries, at));
        let inputs = match shift {
            Some(_) => inputs.with("k", k.squeeze_dim::<4>(2)),
            None => inputs.with("k", k),
        };
        let inputs = inputs.with("v", v).with("variance", variance);
        let inputs = match self.log_prior() {
            Some(LogPrior::Tied(prior)) => inputs.with("log_prior", prior),
            Some(LogPrior::PerPosition(prior)) => {
                // Decoding takes the prior from the start, wherever its tokens stand.
                let keys = if let Positions::From(_) = at { Positions::START } else { at };
                inputs.with("log_prior", keys.of(prior, 2, positions))
            }
            None => inputs,
        };
        inputs.with_some("shift", shift)
    }

    /// The logarithm of the prior over all positions; none in hard inference.
    fn log_prior(&self) -> Option<LogPrior> {
        if self.heads().options.mixture.inference == Inference::Hard {
            return None;
        }
        if let Some(prior) = &self.log_prior {
            return Some(LogPrior::Tied(prior.val()));
        }
        if let Some(prior) = &self.position_log_prior {
            return Some(LogPrior::PerPosition(prior.val()));
        }
        if let Some(prior) = &self.prior {
            // A component that no query chose has prior 0, whose logarithm must stay finite.
            return Some(LogPrior::PerPosition(prior.value().clamp_min(f32::MIN_POSITIVE).log()));
        }
        // One component: its prior is 1.
        Some(LogPrior::Tied(Tensor::zeros([self.heads().options.heads, 1], &self.projections.device())))
    }

    /// Takes over the prior of `other`, a copy of this layer that saw one more batch.
    pub(crate) fn adopt_prior(&self, other: &Self) {
        if let (Some(own), Some(other)) = (&self.prior, &other.prior) {
            set(own, other.value());
        }
    }

    pub(crate) fn heads(&self) -> &Heads {
        &self.projections.heads
    }
}

/// Logarithm of the prior of a mixture.
enum LogPrior {
    /// `[H,M]`.
    Tied(Tensor<2>),
    /// `[H,M,context]`.
    PerPosition(Tensor<3>),
}
