//! The operator call defined by the given tensors, and how to run it.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use regard_kernels::{
    Call, Error, GaussianMixture, Mask, Mechanism, MixtureOfHeads, Operator, Role, View,
    mechanism::Inference,
    reference::gaussian_mixture::responsibilities,
    routing::{RouterCoefficients, RouterLosses},
};

use regard_sequence::Whole;

use super::{
    AttendError, Request,
    fit::{complete, fit},
    inputs::{Inputs, Tensor, check_finite, check_narrow},
    ranks::Ranks,
};

/// The operator for the given tensors, and the names of its inputs in order.
pub(super) struct Plan {
    operator: Arc<dyn Operator>,
    /// Queries and keys.
    tokens: [usize; 2],
    pub names: Vec<&'static str>,
    out_shape: Vec<usize>,
    /// Names and shapes of inputs that come from the file and are not random: their gradients are reported.
    given: BTreeMap<&'static str, Vec<usize>>,
    /// The same mechanism as a mixture, if the prior is to be updated.
    update: Option<GaussianMixture>,
    /// The same mechanism as a mixture of attention heads, whose router has losses.
    routed: Option<MixtureOfHeads>,
}

impl Plan {
    pub fn new(inputs: &mut Inputs, request: &Request) -> Result<Self, AttendError> {
        let (options, sizes) = fit(inputs, request)?;
        let mechanism = options.mechanism;
        let padding = |name: &str| inputs.padding.get(name).cloned().map(Arc::new);
        let mask = Mask {
            causal: options.causal,
            window: options.window,
            valid: padding("valid"),
            query_valid: padding("query_valid"),
            ..Mask::none()
        };
        let bias = inputs.real.contains_key("bias");
        let cross = inputs.real.contains_key("x_kv");
        let call = Call { mask: mask.clone(), scale: request.scale, bias, cross, ..Call::default() };
        let operator = options.operator(call)?;
        let soft_em = mechanism == Mechanism::Mgk && options.mixture.inference == Inference::SoftEm;
        let specs = options.inputs(&*operator, &sizes);
        // The soft-EM buffer replaces its log in the file.
        let stands_in = |name: &str| soft_em && name == "log_prior" && inputs.real.contains_key("prior");
        let learned = specs.iter().filter(|spec| spec.role != Role::Constant && !stands_in(spec.name));
        let given = learned.filter_map(|spec| Some((spec.name, inputs.real.get(spec.name)?.shape.clone()))).collect();
        complete(inputs, &specs, &options, request)?;
        let names: Vec<&'static str> = specs.iter().map(|spec| spec.name).collect();
        let why = format!("{mechanism} needs it");
        let mut shapes = Vec::new();
        for &name in &names {
            shapes.push(inputs.need(name, &why)?.shape.clone());
        }
        let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        let out_shape = operator.out_shape(&shapes)?;
        silence(inputs, operator.as_ref(), &names);
        names.iter().try_for_each(|name| check_finite(name, &inputs.real[*name]))?;
        let routed = (mechanism == Mechanism::Moa).then(|| MixtureOfHeads {
            mask: mask.clone(),
            active: options.moa.active,
            cross,
            ..MixtureOfHeads::default()
        });
        let update = soft_em.then(|| GaussianMixture {
            mask,
            score: options.mixture.score,
            shifted: options.shifted(),
            ..GaussianMixture::default()
        });
        Ok(Self { operator, tokens: [sizes.queries, sizes.keys], names, out_shape, given, update, routed })
    }

    pub fn run(&self, inputs: &Inputs, request: &Request) -> Result<BTreeMap<String, Tensor>, AttendError> {
        let grad_out = match inputs.real.contains_key("grad_out") {
            true => Some(inputs.need("grad_out", "gradients were asked for")?),
            false => None,
        };
        if let Some(grad_out) = grad_out {
            check_finite("grad_out", grad_out)?;
            Error::check_shape("grad_out", &grad_out.shape, &self.out_shape)?;
        }
        let tensors: Vec<&Tensor> = self.names.iter().map(|name| &inputs.real[*name]).collect();
        if !request.reference {
            let all = self.names.iter().copied().zip(tensors.iter().copied());
            all.chain(grad_out.map(|grad| ("grad_out", grad)))
                .try_for_each(|(name, tensor)| check_narrow(name, tensor))?;
        }
        // What kernels compute with; the twin does without.
        let narrowed: Vec<Vec<f32>> = match request.reference {
            true => Vec::new(),
            false => tensors.iter().map(|tensor| narrow(&tensor.data)).collect(),
        };
        let views: Vec<View<f32>> =
            narrowed.iter().zip(&tensors).map(|(data, tensor)| View::new(data, &tensor.shape)).collect();
        let mut results = BTreeMap::new();
        if let Some(routed) = &self.routed {
            let RouterLosses { balance, z, .. } = self.losses(routed, &tensors, &views, request);
            for (name, loss) in [("balance_loss", balance), ("z_loss", z)] {
                results.insert(name.to_owned(), Tensor { shape: vec![1], data: vec![loss] });
            }
            if grad_out.is_some() {
                self.add_loss_gradients(routed, &tensors, &views, request, &mut results);
            }
        }
        let (out, lse, grads, prior) = if request.reference {
            self.run_reference(&tensors, grad_out)
        } else {
            self.run_kernel(&views, grad_out, &request.ranks)?
        };
        if let Some(lse) = lse {
            let q = &inputs.real["q"].shape;
            results.insert("lse".to_owned(), Tensor { shape: q[..3].to_vec(), data: lse });
        }
        if let Some(prior) = prior {
            results.insert("prior_after".to_owned(), buffer_after(inputs, prior));
        }
        for (name, grad) in self.names.iter().zip(grads) {
            if let (Some(shape), Some(data)) = (self.given.get(name), grad) {
                results.insert(format!("grad.{name}"), Tensor { shape: shape.clone(), data });
            }
        }
        results.insert("out".to_owned(), Tensor { shape: self.out_shape.clone(), data: out });
        Ok(results)
    }

    fn losses(
        &self,
        routed: &MixtureOfHeads,
        tensors: &[&Tensor],
        views: &[View<f32>],
        request: &Request,
    ) -> RouterLosses {
        if request.reference {
            return routed.reference_losses(&tensors.iter().map(|tensor| tensor.view()).collect::<Vec<_>>());
        }
        let RouterLosses { balance, z, cv, entropy } = routed.losses(views);
        // Rounded to float32, like all other kernel results.
        let [balance, z, cv, entropy] = [balance, z, cv, entropy].map(|loss| f64::from(loss as f32));
        RouterLosses { balance, z, cv, entropy }
    }

    /// `grad_balance.NAME` and `grad_z.NAME`: gradients of each loss by itself.
    fn add_loss_gradients(
        &self,
        routed: &MixtureOfHeads,
        tensors: &[&Tensor],
        views: &[View<f32>],
        request: &Request,
        results: &mut BTreeMap<String, Tensor>,
    ) {
        let none = RouterCoefficients::default();
        let each = [
            ("grad_balance", RouterCoefficients { balance: 1.0, ..none }),
            ("grad_z", RouterCoefficients { z: 1.0, ..none }),
        ];
        for (loss, coefficients) in each {
            let gradients = if request.reference {
                let views: Vec<_> = tensors.iter().map(|tensor| tensor.view()).collect();
                routed.reference_loss_gradients(&views, coefficients)
            } else {
                routed.loss_gradients(views, coefficients).map(widen)
            };
            for (name, data) in ["x", "w_gate"].into_iter().zip(gradients) {
                if let Some(shape) = self.given.get(name) {
                    results.insert(format!("{loss}.{name}"), Tensor { shape: shape.clone(), data });
                }
            }
        }
    }

    #[allow(clippy::type_complexity)]
    fn run_reference(
        &self,
        tensors: &[&Tensor],
        grad_out: Option<&Tensor>,
    ) -> (Vec<f64>, Option<Vec<f64>>, Vec<Option<Vec<f64>>>, Option<Vec<f64>>) {
        let views: Vec<_> = tensors.iter().map(|tensor| tensor.view()).collect();
        let result = self.operator.reference(&views, grad_out.map(|grad| grad.data.as_slice()));
        let prior = self.update.as_ref();
        let prior = prior.map(|op| responsibilities(op, &views));
        (result.out, result.lse, result.grads.into_iter().map(Some).collect(), prior)
    }

    #[allow(clippy::type_complexity)]
    fn run_kernel(
        &self,
        views: &[View<f32>],
        grad_out: Option<&Tensor>,
        ranks: &Ranks,
    ) -> Result<(Vec<f64>, Option<Vec<f64>>, Vec<Option<Vec<f64>>>, Option<Vec<f64>>), AttendError> {
        let narrowed = grad_out.map(|grad| narrow(&grad.data));
        let grad_out = narrowed.as_ref().map(|grad| View::new(grad, &self.out_shape));
        let (options, call) = self.operator.attention().expect("an operator made from options");
        let found = match ranks.run(options, call, self.tokens, views, grad_out.as_ref())? {
            Some(whole) => whole,
            None => self.run_here(views, grad_out.as_ref()),
        };
        let prior = self.update.as_ref().map(|op| widen(op.responsibilities(views)));
        let grads = found.grads.into_iter().map(|grad| grad.map(widen)).collect();
        Ok((widen(found.out), found.lse.map(widen), grads, prior))
    }

    fn run_here(&self, views: &[View<f32>], grad_out: Option<&View<f32>>) -> Whole {
        let mut out = vec![0.0; self.out_shape.iter().product()];
        let saved = self.operator.forward(views, &mut out);
        let grads = match grad_out {
            None => Vec::new(),
            Some(grad) => self.operator.backward(views, &out, &saved, grad.data, &vec![true; views.len()]),
        };
        Whole { lse: saved.lse().map(<[f32]>::to_vec), out, grads }
    }
}

/// Overwrites padding with valid numbers, so that NaN, or numbers that overflow float32, have no effect there.
fn silence(inputs: &mut Inputs, operator: &dyn Operator, names: &[&'static str]) {
    let views: Vec<_> = names.iter().map(|name| inputs.real[*name].view()).collect();
    let replaced = operator.silenced(&views).into_iter().map(|data| match data {
        Cow::Owned(data) => Some(data),
        Cow::Borrowed(_) => None,
    });
    let replaced: Vec<_> = replaced.collect();
    for (name, data) in names.iter().zip(replaced) {
        if let (Some(data), Some(tensor)) = (data, inputs.real.get_mut(*name)) {
            tensor.data = data;
        }
    }
}

/// The buffer of soft-EM after a step: positions beyond the keys keep their prior.
fn buffer_after(inputs: &Inputs, updated: Vec<f64>) -> Tensor {
    let Tensor { shape, data } = inputs.real.get("prior").unwrap_or(&inputs.real["log_prior"]);
    let (positions, keys) = (shape[2], inputs.real["log_prior"].shape[2]);
    let mut after = Tensor { shape: shape.clone(), data: data.clone() };
    for (row, updated) in after.data.chunks_exact_mut(positions).zip(updated.chunks_exact(keys)) {
        row[..keys].copy_from_slice(updated);
    }
    after
}

fn widen(data: Vec<f32>) -> Vec<f64> {
    data.into_iter().map(f64::from).collect()
}

fn narrow(data: &[f64]) -> Vec<f32> {
    data.iter().map(|x| *x as f32).collect()
}
