//! In what a training pass stores its activations.

use burn::tensor::{DType, Device, FloatDType, Tensor};
use serde::{Deserialize, Serialize};

use crate::ops;

/// Format of what operations hand to each other, and keep for the backward pass, between embedding and head.
///
/// Parameters, their gradients, sums within operations, routers and losses are f32 whatever this is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits with the range of f32 and relative errors of 2^-9.
    Bf16,
    /// 16 bits with relative errors of 2^-12, for magnitudes from 6.1e-5 to 65,504: gradients below vanish, so that the loss
    /// is scaled up before the backward pass.
    F16,
}

impl Precision {
    /// All variants.
    pub const ALL: &[Self] = &[Self::F32, Self::Bf16, Self::F16];

    /// Its name in options.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// Whether a device computes with it.
    pub fn runs_on(self, device: &Device) -> bool {
        device.clone().without_autodiff().supports_dtype(DType::from(self.format()))
    }

    /// `x` in this format.
    pub(crate) fn of<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        ops::stored_as(x, self.format())
    }

    fn format(self) -> FloatDType {
        match self {
            Self::F32 => FloatDType::F32,
            Self::Bf16 => FloatDType::BF16,
            Self::F16 => FloatDType::F16,
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::module::{Module, ModuleVisitor, Param};
    use burn::tensor::Gradients;
    use regard_kernels::{Mechanism, Padding, mechanism::Position, support::SupportKind};

    use super::*;
    use crate::{
        attention::AttentionConfig,
        blocks::Context,
        config::{ModelConfig, NormKind},
        models::{LanguageModel, TokenBatch},
    };

    struct Flat<'a>(Vec<f32>, &'a mut Gradients);

    impl ModuleVisitor for Flat<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(grad) = param.val().grad_remove(self.1) {
                assert_eq!(grad.dtype(), DType::F32, "parameters and their gradients are f32");
                ops::with_elements(&grad, |grad| self.0.extend_from_slice(grad));
            }
        }
    }

    /// Loss and all gradients of a pass of two sequences, one of them padded.
    fn pass(model: &LanguageModel, precision: Precision) -> (f64, Vec<f32>) {
        let ids: Vec<i32> = (0..24).map(|i| i * i % 9).collect();
        let padding = Padding::from_lengths(&[12, 7], 12);
        let tokens = TokenBatch::new(ids, 2, 12, Some(padding.into())).expect("two sequences");
        let targets: Vec<i32> = (0..24).map(|i| if i < 19 { i * 5 % 9 } else { ops::elementwise::IGNORE }).collect();
        let context = Context::training(1, 0).with_precision(precision);
        let loss = model.loss(&tokens, targets.into(), 0.0, &context);
        let value = f64::from(loss.clone().into_scalar::<f32>());
        let mut grads = loss.backward();
        let mut flat = Flat(Vec::new(), &mut grads);
        model.visit(&mut flat);
        (value, flat.0)
    }

    #[test]
    fn models_of_every_mechanism_train_in_16_bits() {
        trains_in_16_bits("cpu", &Device::flex());
    }

    /// The same on every other device, in what it computes with.
    #[cfg(feature = "cube")]
    #[test]
    fn other_devices_train_in_16_bits() {
        let others: Vec<_> = crate::device::list().into_iter().filter(|found| !found.kernels).collect();
        assert!(
            !others.is_empty(),
            "no device but the CPU: on a machine without a GPU, a software Vulkan driver serves"
        );
        for found in others {
            trains_in_16_bits(&found.name, &crate::device::find(&found.name).expect("a device that was listed"));
        }
    }

    /// Every mechanism, with kernels and without: within what 8 and 11 bits can say of the pass in f32.
    fn trains_in_16_bits(name: &str, device: &Device) {
        let formats = [(Precision::Bf16, 0.05, 0.3), (Precision::F16, 0.01, 0.04)];
        let formats: Vec<_> = formats.into_iter().filter(|(precision, ..)| precision.runs_on(device)).collect();
        let device = device.clone().autodiff();
        let mut problems = Vec::new();
        for (i, &mechanism) in Mechanism::ALL.iter().enumerate() {
            let mut attention = AttentionConfig { mechanism, heads: 2, causal: true, ..AttentionConfig::default() };
            attention.support.kind = SupportKind::Local;
            attention.support.radius = 3;
            attention.position =
                if mechanism != Mechanism::Fastformer && i % 2 == 0 { Position::Rotary } else { Position::Learned };
            let config = ModelConfig {
                width: 16,
                layers: 2,
                feed_forward: 32,
                dropout: 0.1,
                layer_scale: (i % 3 == 0).then_some(0.5),
                norm_kind: if i % 2 == 0 { NormKind::Layer } else { NormKind::Rms },
                gated: i % 2 == 1,
                checkpointing: i % 4 == 3,
                ..ModelConfig::default()
            };
            let model = LanguageModel::new(&config, &attention, 9, 12, 3, &device).expect("a model");
            for composed in [false, true] {
                let run = |precision| match composed {
                    true => ops::force_composed(|| pass(&model, precision)),
                    false => pass(&model, precision),
                };
                let (loss, grads) = run(Precision::F32);
                let size = grads.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
                // Bounds of the loss and of the gradients: scores of cosines are steep.
                for &(precision, of_loss, of_grads) in &formats {
                    let (seen, rounded) = run(precision);
                    let squares = grads.iter().zip(&rounded).map(|(a, b)| f64::from(a - b).powi(2));
                    let far = squares.sum::<f64>().sqrt() / size;
                    let near = (loss - seen).abs() < of_loss * loss && far < of_grads;
                    let what = format!("{name}: {mechanism}, {precision:?}, composed {composed}");
                    problems.extend((!near).then(|| format!("{what}: {seen}, in f32 {loss}; gradients off by {far}")));
                    assert!(seen != loss && far > 0.0, "{what}: nothing was rounded");
                }
            }
        }
        assert!(problems.is_empty(), "{problems:#?}");
    }
}
