//! The Gaussian kernel and the mixture of Gaussian keys.

use burn::module::{Module, Param, RunningState};
use burn::tensor::{Tensor, TensorData};
use regard_kernels::{
    Error, Mask,
    mechanism::{Inference, Prior},
};

use super::{
    DecodeState,
    projection::{Heads, join, project, project_components},
    state::{Host, set},
};
use crate::{
    blocks::{Context, Init, Place},
    ops::{self, LogPrior, MixtureKeys},
};

/// Attention whose scores are log-likelihoods of the query under a mixture of Gaussians around each key (MGK and sMGK,
/// arXiv 2110.08678, sections 2 and 3.4).
#[derive(Module, Debug)]
pub struct GaussianMixture {
    w_q: Param<Tensor<2>>,
    b_q: Option<Param<Tensor<1>>>,
    /// `[M,d,Hk*D]`, one component where keys are shifted.
    w_k: Param<Tensor<3>>,
    b_k: Option<Param<Tensor<2>>>,
    w_v: Param<Tensor<2>>,
    b_v: Option<Param<Tensor<1>>>,
    w_o: Param<Tensor<2>>,
    b_o: Option<Param<Tensor<1>>>,
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
    #[module(skip)]
    heads: Heads,
}

impl GaussianMixture {
    pub(crate) fn new(heads: Heads, init: &Init) -> Result<Self, Error> {
        let (width, queries, keys) = (heads.width, heads.query_width(), heads.key_width());
        let (options, context) = (&heads.options, heads.context);
        let components = options.components();
        let projections = if options.shifted() { 1 } else { components };
        let variances = options.mixture.variances.resolve(components, heads.head_width)?;
        let variances: Vec<f32> = variances.into_iter().map(|variance| variance as f32).collect();
        let (inference, tied) = (options.mixture.inference, options.mixture.prior == Prior::Tied);
        let soft = options.mechanism.is_mixture() && inference == Inference::Soft;
        let uniform = 1.0 / components as f64;
        let log_variances = variances.iter().map(|variance| variance.ln()).collect();
        Ok(Self {
            w_q: init.projection("w_q", [width, queries], 1.0),
            b_q: heads.bias(init, [queries]),
            w_k: init.projection("w_k", [projections, width, keys], 1.0),
            b_k: heads.bias(init, [projections, keys]),
            w_v: init.projection("w_v", [width, keys], 1.0),
            b_v: heads.bias(init, [keys]),
            w_o: init.projection("w_o", [queries, width], heads.gain),
            b_o: heads.bias(init, [width]),
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
            heads,
        })
    }

    pub(crate) fn forward(
        &self,
        queries: Tensor<3>,
        keys: Tensor<3>,
        mask: &Mask,
        context: &Context,
        place: Place,
    ) -> Tensor<3> {
        let (q, keys, v) = self.project(queries, keys, 0);
        // The output is that of the prior before the step.
        if let (Some(prior), true) = (&self.prior, context.training) {
            let kernel = self.heads.kernel();
            set(prior, ops::prior_after(prior.value(), q.clone(), keys.clone(), v.clone(), mask, kernel));
        }
        let call = self.heads.call(mask.clone(), context, place);
        join(ops::gaussian_mixture(q, keys, v, self.heads.kernel(), call), &self.w_o, &self.b_o)
    }

    pub(crate) fn decode(&self, token: Tensor<3>, state: &mut DecodeState) -> Tensor<3> {
        let (q, keys, v) = self.project(token.clone(), token, state.position());
        let (shape, device) = (q.dims(), q.device());
        let k = match keys.shift {
            Some(_) => Host::from(keys.k.squeeze_dim::<4>(2)),
            None => keys.k.into(),
        };
        let mut inputs = vec![q.into(), k, v.into(), keys.variance.into()];
        // Whole, also where it depends on the position: the state knows which it is at.
        inputs.extend(self.log_prior().map(|prior| match prior {
            LogPrior::Tied(prior) => Host::from(prior),
            LogPrior::PerPosition(prior) => prior.into(),
        }));
        inputs.extend(keys.shift.map(Host::from));
        join(state.step(&inputs, shape, &device), &self.w_o, &self.b_o)
    }

    fn project(&self, queries: Tensor<3>, keys: Tensor<3>, from: usize) -> (Tensor<4>, MixtureKeys, Tensor<4>) {
        let width = self.heads.head_width;
        let device = queries.device();
        let length = keys.dims()[1];
        let q = self.heads.turn(project(queries, &self.w_q, &self.b_q, width), from);
        let k = project_components(keys.clone(), &self.w_k, &self.b_k, width);
        let v = project(keys, &self.w_v, &self.b_v, width);
        let (k, shift) = self.heads.turn_components(k, self.shift.as_ref().map(Param::val), from);
        let variance = match &self.log_variance {
            Some(log) => log.val().exp(),
            None => Tensor::from_floats(self.variances.as_slice(), &device),
        };
        let log_prior = self.log_prior().map(|prior| match prior {
            LogPrior::PerPosition(prior) => LogPrior::PerPosition(prior.narrow(2, 0, length)),
            tied => tied,
        });
        (q, MixtureKeys { k, shift, variance, log_prior }, v)
    }

    /// The logarithm of the prior over all positions; none in hard inference.
    fn log_prior(&self) -> Option<LogPrior> {
        if self.heads.options.mixture.inference == Inference::Hard {
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
        Some(LogPrior::Tied(Tensor::zeros([self.heads.options.heads, 1], &self.w_q.val().device())))
    }

    /// Takes over the prior of `other`, a copy of this layer that saw one more batch.
    pub(crate) fn adopt_prior(&self, other: &Self) {
        if let (Some(own), Some(other)) = (&self.prior, &other.prior) {
            set(own, other.value());
        }
    }

    pub(crate) fn heads(&self) -> &Heads {
        &self.heads
    }
}
