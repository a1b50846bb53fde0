//! Gradients on the device of a model, and its update by them.

use std::{collections::BTreeMap, sync::Arc};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{self, Tensor},
};
use regard_kernels::simd::{sum, vectorize};
use regard_nn::{
    blocks::{Context, RouterLog, RouterRecord},
    config::Precision,
    models::ParameterPath,
    ops::{runs_kernels, with_elements, with_elements_mut},
};

use super::{AdamW, Batch, Model};

/// Elements whose squares are summed in single precision before their sum joins the total.
const NORM_CHUNK: usize = 1 << 12;

/// Gradients by parameter name, flat, summed over the batches of an update.
#[derive(Debug, Default)]
pub(super) struct Gradients(BTreeMap<String, Tensor<1>>);

/// What an update knows after its forward and backward passes.
#[derive(Debug)]
pub(super) struct Pass {
    /// Mean loss over all items.
    pub loss: f64,
    /// Its gradients; of a job of several ranks those of the parameters that this one updates.
    pub gradients: Gradients,
    /// Euclidean norm of all gradients together.
    pub norm: f64,
    /// What the routers of mixtures of heads did, where that was asked for.
    pub routers: Vec<RouterRecord>,
    /// Whether a rank of the job was asked to end.
    pub stop: bool,
}

/// How an update's loss is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// Share of a target's probability that is spread.
    pub smoothing: f32,
    /// Seed of the run.
    pub seed: u64,
    /// The update.
    pub step: u64,
    /// The routers report.
    pub log: bool,
    /// In what activations are stored.
    pub precision: Precision,
    /// What the loss is multiplied by for the backward pass: the gradients are too, the loss that is reported is not.
    pub loss_scale: f64,
}

impl Gradients {
    /// Mean loss over all items of all batches of an update, and its gradients: the same however items are split into
    /// batches. `None` where `stop` says so between two of them.
    pub fn of(model: &Model, batches: &[Batch], settings: Settings, stop: &dyn Fn() -> bool) -> Option<Pass> {
        let items: usize = batches.iter().map(Batch::items).sum();
        let (mut total, mut gradients) = (0.0, Self::default());
        let routers = Arc::new(RouterLog::new());
        for (part, batch) in batches.iter().enumerate() {
            if part > 0 && stop() {
                return None;
            }
            // The only batch of an update needs no scaling.
            let share = (batches.len() > 1).then(|| batch.items() as f64 / items as f64);
            let mut context = Context::training(settings.seed, settings.step).with_micro_batch(part as u64);
            if settings.log {
                context = context.with_router_log(routers.clone());
            }
            total += gradients.add_batch(model, batch, settings, context, share);
        }
        let norm = gradients.norm();
        Some(Pass { loss: total, gradients, norm, routers: routers.take(), stop: false })
    }

    /// Adds those of one batch, whose mean loss is multiplied by its `share` of all items of the update; returns that loss.
    pub fn add_batch(
        &mut self,
        model: &Model,
        batch: &Batch,
        settings: Settings,
        context: Context,
        share: Option<f64>,
    ) -> f64 {
        let Settings { smoothing, precision, loss_scale, .. } = settings;
        let context = context.with_loss_scale(share.unwrap_or(1.0) * loss_scale).with_precision(precision);
        let loss = model.loss(batch, smoothing, &context);
        let loss = match share {
            None => loss,
            Some(share) => loss.mul_scalar(share),
        };
        let value = f64::from(loss.clone().inner().into_scalar::<f32>());
        let loss = if loss_scale == 1.0 { loss } else { loss.mul_scalar(loss_scale) };
        self.add(model, loss.backward());
        value
    }

    /// Takes the gradient of a parameter, if it has one.
    pub fn take(&mut self, name: &str) -> Option<Tensor<1>> {
        self.0.remove(name)
    }

    /// Whether a parameter has a gradient.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Puts the gradient of a parameter.
    pub fn put(&mut self, name: String, gradient: Tensor<1>) {
        self.0.insert(name, gradient);
    }

    /// The sum of two gradients of each parameter, which need not have both.
    #[must_use]
    pub fn plus(mut self, other: Self) -> Self {
        for (name, gradient) in other.0 {
            let sum = sum_of(self.0.remove(&name), Some(gradient)).expect("of one at least");
            self.0.insert(name, sum);
        }
        self
    }

    /// Sum of the squares of a parameter's gradient; 0 without one.
    pub fn squares(&self, name: &str) -> f64 {
        match self.0.get(name) {
            None => 0.0,
            Some(gradient) if runs_kernels(&gradient.device()) => {
                let mut total = 0.0;
                with_elements(gradient, |gradient| {
                    gradient.chunks(NORM_CHUNK).for_each(|chunk| total += chunk_squares(chunk));
                });
                total
            }
            Some(gradient) => f64::from((gradient.clone() * gradient.clone()).sum().into_scalar::<f32>()),
        }
    }

    /// Adds those of one backward pass.
    fn add<M: Module>(&mut self, model: &M, grads: tensor::Gradients) {
        struct Collect<'a>(ParameterPath, tensor::Gradients, &'a mut BTreeMap<String, Tensor<1>>);
        impl ModuleVisitor for Collect<'_> {
            fn enter_module(&mut self, name: &str, container: &str) {
                self.0.enter(name, container);
            }

            fn exit_module(&mut self, _: &str, _: &str) {
                self.0.exit();
            }

            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let Some(grad) = param.val().grad_remove(&mut self.1) else { return };
                let (name, grad) = (self.0.name(), grad.flatten(0, D - 1));
                let sum = match self.2.remove(&name) {
                    Some(total) => plus(total, &grad),
                    None => grad,
                };
                self.2.insert(name, sum);
            }
        }
        model.visit(&mut Collect(ParameterPath::default(), grads, &mut self.0));
    }

    /// Euclidean norm of all of them together.
    pub fn norm(&self) -> f64 {
        match self.0.values().next() {
            Some(grad) if runs_kernels(&grad.device()) => self.norm_fused(),
            Some(_) => self.norm_composed(),
            None => 0.0,
        }
    }

    /// One pass on the CPU.
    fn norm_fused(&self) -> f64 {
        let mut total = 0.0;
        for grad in self.0.values() {
            with_elements(grad, |grad| {
                grad.chunks(NORM_CHUNK).for_each(|chunk| total += chunk_squares(chunk));
            });
        }
        total.sqrt()
    }

    /// Tensor operations, of which one number leaves the device.
    fn norm_composed(&self) -> f64 {
        let squares = self.0.values().map(|grad| (grad.clone() * grad.clone()).sum()).collect();
        f64::from(Tensor::cat(squares, 0).sum().sqrt().into_scalar::<f32>())
    }

    /// Update `t` (from 1) of `model`, the gradients times `scale`.
    ///
    /// Buffers are updated in place where nothing else holds them.
    pub fn apply<M: Module>(&self, model: M, optimizer: &mut AdamW, t: usize, rate: f64, scale: f32) -> M {
        struct Update<'a> {
            path: ParameterPath,
            gradients: &'a Gradients,
            optimizer: &'a mut AdamW,
            t: usize,
            rate: f64,
            scale: f32,
        }
        impl ModuleMapper for Update<'_> {
            fn enter_module(&mut self, name: &str, container: &str) {
                self.path.enter(name, container);
            }

            fn exit_module(&mut self, _: &str, _: &str) {
                self.path.exit();
            }

            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let name = self.path.name();
                let Some(gradient) = self.gradients.0.get(&name) else { return param };
                let (id, tensor, mapper) = param.consume();
                let strategy = tensor.gradient_checkpointing_strategy().unwrap_or_default();
                let updated =
                    self.optimizer.update(&name, self.t, self.rate, self.scale, tensor.without_autodiff(), gradient);
                let tracked = updated.autodiff().with_gradient_checkpointing_strategy(strategy).require_grad();
                Param::from_mapped_value(id, tracked, mapper)
            }
        }
        model.map(&mut Update { path: ParameterPath::default(), gradients: self, optimizer, t, rate, scale })
    }
}

/// The sum of what there is of two gradients.
pub(super) fn sum_of(one: Option<Tensor<1>>, other: Option<Tensor<1>>) -> Option<Tensor<1>> {
    match (one, other) {
        (Some(one), Some(other)) => Some(plus(one, &other)),
        (one, other) => one.or(other),
    }
}

/// Sum of the squares of a part of a gradient.
fn chunk_squares(chunk: &[f32]) -> f64 {
    f64::from(vectorize(
        #[inline(always)]
        || sum(chunk.len(), |i| chunk[i] * chunk[i]),
    ))
}

/// The sum of two gradients.
fn plus(total: Tensor<1>, grad: &Tensor<1>) -> Tensor<1> {
    if !runs_kernels(&total.device()) {
        return total + grad.clone();
    }
    let [total] = with_elements_mut([total], |[total]| {
        with_elements(grad, |grad| total.iter_mut().zip(grad).for_each(|(total, grad)| *total += grad));
    });
    total
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use regard_nn::{
        attention::AttentionConfig,
        models::{Classifier, LanguageModel, ModelConfig, TokenBatch},
    };
    use regard_testkit::{Report, cases};

    use super::*;
    use crate::train::{HostTensor, OptimizerConfig};

    fn batch(rows: std::ops::Range<i32>) -> Batch {
        let ids: Vec<i32> = rows.clone().flat_map(|row| (0..6).map(move |i| (row * 5 + i * i) % 9)).collect();
        let tokens = TokenBatch::full(ids, rows.len()).unwrap();
        Batch { tokens, targets: rows.map(|row| row % 3).collect(), source: None, readers: None }
    }

    fn settings(step: u64) -> Settings {
        Settings { smoothing: 0.0, seed: 1, step, log: false, precision: Precision::F32, loss_scale: 1.0 }
    }

    fn model() -> Model {
        let (config, attention) = (ModelConfig::default(), AttentionConfig::default());
        Model::Classifier(Classifier::new(&config, &attention, 9, 3, 6, 1, &Device::flex().autodiff()).unwrap())
    }

    #[test]
    fn splitting_an_update_into_unequal_batches_changes_nothing() {
        let model = model();
        let of = |batches: &[Batch]| {
            let Pass { loss, gradients, .. } =
                Gradients::of(&model, batches, Settings { smoothing: 0.1, ..settings(0) }, &|| false).unwrap();
            (loss, gradients)
        };
        let (loss, whole) = of(&[batch(0..7)]);
        let (split_loss, split) = of(&[batch(0..1), batch(1..3), batch(3..7)]);
        assert!((loss - split_loss).abs() < 1e-6, "{loss} {split_loss}");
        assert!((whole.norm() - split.norm()).abs() < 1e-5 * whole.norm());
        assert_eq!(whole.0.keys().collect::<Vec<_>>(), split.0.keys().collect::<Vec<_>>());
        assert_eq!(whole.0.len(), model.to_host().len(), "every parameter has a gradient");
        let numbers = |grad: &Tensor<1>| with_elements(grad, <[f32]>::to_vec);
        for (name, grad) in &whole.0 {
            let (grad, split) = (numbers(grad), numbers(&split.0[name]));
            let largest = grad.iter().fold(0f32, |a, b| a.max(b.abs()));
            let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-4 * largest + 1e-7;
            assert!(!grad.iter().zip(&split).any(far), "gradient of {name}");
        }
    }

    #[test]
    fn both_forms_of_the_norm_are_that_of_all_elements() {
        let tensor = |values: &[f32]| Tensor::<1>::from_data(values, &Device::flex());
        let gradients = Gradients(BTreeMap::from([
            ("a".into(), tensor(&vec![3.0; 2 * NORM_CHUNK + 1])),
            ("b".into(), tensor(&[-4.0, 0.0])),
        ]));
        let want = (9.0 * (2 * NORM_CHUNK + 1) as f64 + 16.0).sqrt();
        assert!((gradients.norm() - want).abs() < 1e-9 * want);
        assert_eq!(gradients.norm(), gradients.norm_fused());
        assert!((gradients.norm_composed() - want).abs() < 1e-6 * want);
        assert_eq!(Gradients::default().norm(), 0.0);
    }

    #[test]
    fn an_update_keeps_what_autodiff_keeps() {
        for device in [Device::flex().autodiff(), Device::flex().autodiff().gradient_checkpointing()] {
            let (config, attention) = (ModelConfig::default(), AttentionConfig::default());
            let model = Model::Classifier(Classifier::new(&config, &attention, 9, 3, 6, 1, &device).unwrap());
            let batches = [batch(0..2)];
            let mut adam = AdamW::new(OptimizerConfig::default());
            let pass = |model: &Model, step| Gradients::of(model, &batches, settings(step), &|| false).unwrap();
            let before = pass(&model, 0);
            let model = before.gradients.apply(model, &mut adam, 1, 1e-3, 1.0);
            assert!(pass(&model, 1).loss < before.loss);
        }
    }

    #[test]
    fn ten_updates_give_the_golden_losses() {
        let mut report = Report::new();
        for name in ["model_softmax", "model_nope_mgk"] {
            let case = cases().into_iter().find(|case| case.name() == name).unwrap();
            let (tensors, options) = (case.load(), &case.options);
            let size = |name: &str| options[name].as_u64().unwrap() as usize;
            let number = |name: &str| options[name].as_f64().unwrap();
            let config = ModelConfig {
                width: size("width"),
                layers: size("layers"),
                feed_forward: size("feed_forward"),
                tied_head: options["tied_head"].as_bool().unwrap(),
                ..ModelConfig::default()
            };
            let attention = AttentionConfig {
                mechanism: options["attention"].as_str().unwrap().parse().unwrap(),
                heads: size("heads"),
                position: serde_json::from_value(options["positions"].clone()).unwrap(),
                ..AttentionConfig::default()
            };
            let device = Device::flex().autodiff();
            let model = LanguageModel::new(&config, &attention, size("vocab"), size("context"), 1, &device).unwrap();
            let parameters = tensors.iter().filter_map(|(name, tensor)| {
                let tensor_of = || HostTensor { shape: tensor.shape.clone(), data: tensor.f32() };
                name.strip_prefix("param.").map(|name| (name.to_string(), tensor_of()))
            });
            let mut model = Model::Language(model).with_host(parameters.collect()).unwrap();
            let ids = |name: &str| tensors.tensor(name).i64().iter().map(|&id| id as i32).collect::<Vec<_>>();
            let tokens = TokenBatch::full(ids("tokens"), size("batch")).unwrap();
            let batch = Batch { tokens, targets: ids("targets").into(), source: None, readers: None };
            let rate = number("lr");
            let mut adam = AdamW::new(OptimizerConfig {
                learning_rate: rate,
                beta1: number("beta1"),
                beta2: number("beta2"),
                epsilon: number("eps"),
                weight_decay: number("weight_decay"),
            });
            let mut losses = Vec::new();
            for t in 1..=size("steps") + 1 {
                let batches = std::slice::from_ref(&batch);
                let Pass { loss, gradients, .. } =
                    Gradients::of(&model, batches, settings(t as u64), &|| false).unwrap();
                losses.push(loss);
                model = gradients.apply(model, &mut adam, t, rate, 1.0);
            }
            let expected = tensors.tensor("step_losses").f64();
            report.compare(format!("{name} losses"), &losses, expected, case.bound("step_losses"));
        }
        report.finish();
    }
}
