//! A trained softmax layer as the start of a mixture of keys.
//!
//! The score of a Gaussian key is `-|q - k|^2 / (2 s) = q.k / s - |k|^2 / (2 s) - |q|^2 / (2 s)`. With one variance `s` for all
//! components the last term is the same for all keys of a query and cancels. Queries times `s / sqrt(D)` make the first one the
//! score of softmax attention, so that only `|k|^2 / (2 s)` is left, which falls with `s`. Scores that are products (`score =
//! "dot"`) leave nothing. All components begin at the trained key: equal components are one. A small difference between them is
//! what training can tell them apart by.
//!
//! Linear attention has no such `s`: a mixture of linear keys begins as linear attention with the trained projections, which is
//! another function than softmax.

use burn::tensor::{Tensor, TensorData};
use regard_kernels::{
    Error, Mechanism,
    random::{normal, substream, unit},
};

use super::{Attention, AttentionConfig, GaussianMixture, HeadPlan, LinearAttention, MultiHead};
use crate::{blocks::Init, config::check};

/// Deviation of a component's differences, relative to the trained matrix: far above rounding, far below what the matrix says.
const SPREAD: f64 = 0.01;

/// Whether a part of a plan is a mixture of keys.
pub(super) fn is_mixture(part: &HeadPlan) -> bool {
    part.attention.as_ref().is_some_and(|options| options.mechanism.is_mixture())
}

/// The layer as the mixture that `plan` asks for in all of its heads.
///
/// # Errors
/// A plan that leaves heads out, variances that differ, options that do not fit.
pub(super) fn mixture(layer: MultiHead, plan: &[HeadPlan], seed: u64) -> Result<Attention, Error> {
    let projections = layer.into_projections();
    let heads = projections.heads.clone();
    let key_heads = heads.options.key_heads();
    let mut asked: Vec<usize> = plan.iter().flat_map(|part| part.key_heads.iter().copied()).collect();
    asked.sort_unstable();
    let [HeadPlan { attention: Some(options), .. }] = plan else {
        let expected = format!("one group of all {key_heads}: a mixture of keys has parameters for a whole layer");
        return Err(Error::option("key heads of a plan", format!("{} groups", plan.len()), expected));
    };
    if !asked.iter().copied().eq(0..key_heads) {
        let expected = format!("all of 0 to {}: a mixture of keys has parameters for a whole layer", key_heads - 1);
        return Err(Error::option("key heads of a plan", format!("{asked:?}"), expected));
    }
    let trained = &heads.options;
    let options = AttentionConfig {
        heads: trained.heads,
        key_value_heads: trained.key_value_heads,
        position: trained.position,
        causal: trained.causal,
        ..options.clone()
    };
    options.check()?;
    options.check_kernel()?;
    check(&options, heads.width, heads.head_width)?;
    let gaussian = options.mechanism == Mechanism::Mgk;
    let mut query_scale = 1.0;
    if gaussian {
        let variances = options.mixture.variances.resolve(options.components(), heads.head_width)?;
        if variances.iter().any(|variance| *variance != variances[0]) {
            let expected =
                "one variance for all, so that the trained model is where it begins; learn_variances may part them";
            return Err(Error::option("mixture.variances of a trained layer", format!("{variances:?}"), expected));
        }
        query_scale = variances[0] / (heads.head_width as f64).sqrt();
    }
    let device = projections.device();
    let draw = |number: u64, count: usize, deviation: f64| -> Vec<f32> {
        let key = substream(seed, number);
        let at = |i: usize| substream(key, i as u64);
        (0..count).map(|i| (deviation * normal(unit(at(2 * i)), unit(at(2 * i + 1)))) as f32).collect()
    };
    let size = projections.key_size();
    let noise = |r: usize, shape: [usize; 2]| {
        // The first is the trained key itself.
        let deviation = if r == 0 { 0.0 } else { SPREAD * size };
        Tensor::from_data(TensorData::new(draw(r as u64, shape[0] * shape[1], deviation), shape), &device)
    };
    let (components, width, shifted) = (options.components(), heads.head_width, options.shifted());
    let projections = projections.into_components(heads.clone().with_options(options), query_scale, noise);
    // Inputs of a layer have a norm behind them: channels of about 1 each.
    let deviation = SPREAD * size * (heads.width as f64).sqrt();
    let shift = shifted.then(|| {
        let mut values = draw(components as u64, key_heads * components * width, deviation);
        values.chunks_exact_mut(components * width).for_each(|head| head[..width].fill(0.0));
        Tensor::from_data(TensorData::new(values, [key_heads, components, width]), &device)
    });
    // What is not drawn here begins with the same value everywhere.
    let init = Init::new(seed, &device);
    Ok(match gaussian {
        true => Attention::GaussianMixture(GaussianMixture::around(projections, &init)?.with_shift(shift)),
        false => Attention::Linear(LinearAttention::around(projections, &init).with_shift(shift)),
    })
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use regard_kernels::mechanism::{KeyDesign, MixtureOptions, Position, Score, Variances};

    use super::*;
    use crate::{
        blocks::{Context, Place},
        models::{ModelConfig, load_parameters, named_parameters},
    };

    const WIDTH: usize = 24;
    const LENGTH: usize = 9;

    fn trained(position: Position) -> Attention {
        let model = ModelConfig { width: WIDTH, ..ModelConfig::default() };
        let options = AttentionConfig { heads: 4, key_value_heads: Some(2), position, ..AttentionConfig::default() };
        Attention::new(&model, &options, LENGTH, &Init::new(3, &Device::flex())).unwrap()
    }

    fn plan(options: AttentionConfig) -> Vec<HeadPlan> {
        vec![HeadPlan { key_heads: vec![0, 1], attention: Some(options) }]
    }

    fn mgk(variance: f64, score: Score, design: KeyDesign) -> AttentionConfig {
        let mut options = AttentionConfig { mechanism: Mechanism::Mgk, ..AttentionConfig::default() };
        options.mixture =
            MixtureOptions { score, variances: Variances::List(vec![variance; 2]), ..MixtureOptions::default() };
        options.keys.design = design;
        options
    }

    fn run(layer: &Attention) -> Tensor<3> {
        let x = Tensor::<1>::from_floats([0.7; LENGTH * WIDTH], &Device::flex()).cumsum(0).cos();
        let x = x.reshape([1, LENGTH, WIDTH]) * 2.0;
        layer.forward(x.clone(), x, &layer.mask(None), &Context::evaluation(), Place::Weights)
    }

    /// Squared distance relative to the size of the second.
    fn distance(one: &Attention, other: &Attention) -> f32 {
        let (one, other) = (run(one), run(other));
        let number = |x: Tensor<1>| x.into_scalar::<f32>();
        number((one - other.clone()).square().sum()) / number(other.square().sum())
    }

    #[test]
    fn products_begin_as_softmax_and_distances_the_nearer_the_larger_the_variance() {
        for position in [Position::None, Position::Rotary] {
            let softmax = trained(position);
            let start = |options| softmax.clone().planned(&plan(options), 5).unwrap();
            // A shift that all keys share moves all scores of a query alike, unless rotation makes it depend on distance.
            let exact = distance(&start(mgk(2.0, Score::Dot, KeyDesign::Shifted)), &softmax);
            let bound = if position == Position::None { 1e-11 } else { 1e-4 };
            assert!(exact < bound, "{position:?}: {exact}");
            for design in [KeyDesign::Projected, KeyDesign::Shifted] {
                let far = |variance| distance(&start(mgk(variance, Score::Gaussian, design)), &softmax);
                let (wide, wider, widest) = (far(2.0), far(20.0), far(2000.0));
                assert!(wide > 4.0 * wider && wider > 4.0 * widest && widest < 1e-4, "{wide} {wider} {widest}");
            }
        }
    }

    #[test]
    fn linear_keys_begin_as_linear_attention() {
        let softmax = trained(Position::Rotary);
        let mlk = AttentionConfig { mechanism: Mechanism::Mlk, ..AttentionConfig::default() };
        let start = softmax.clone().planned(&plan(mlk), 5).unwrap();
        let model = ModelConfig { width: WIDTH, ..ModelConfig::default() };
        let linear = AttentionConfig {
            mechanism: Mechanism::Linear,
            heads: 4,
            key_value_heads: Some(2),
            position: Position::Rotary,
            ..AttentionConfig::default()
        };
        let linear = Attention::new(&model, &linear, LENGTH, &Init::blank(&Device::flex())).unwrap();
        let parameters = named_parameters(&softmax).into_iter().map(|parameter| {
            let stacked = parameter.name == "w_k" || parameter.name == "b_k";
            let shape = stacked.then_some(1).into_iter().chain(parameter.shape).collect();
            (parameter.name, (shape, parameter.values))
        });
        let linear = load_parameters(linear, parameters.collect()).unwrap();
        let (near, far) = (distance(&start, &linear), distance(&start, &softmax));
        assert!(near < 1e-4 && far > 100.0 * near, "{near} {far}");
    }

    #[test]
    fn a_mixture_takes_a_whole_layer_and_one_variance() {
        let refused = |plan: Vec<HeadPlan>| trained(Position::None).planned(&plan, 1).unwrap_err().to_string();
        let part = |key_heads: Vec<usize>| HeadPlan {
            key_heads,
            attention: Some(mgk(2.0, Score::Gaussian, KeyDesign::Projected)),
        };
        assert!(refused(vec![part(vec![1])]).contains("key heads of a plan is [1]"));
        assert!(refused(vec![part(vec![0, 1, 1])]).contains("[0, 1, 1]"));
        assert!(refused(vec![part(vec![0]), part(vec![1])]).contains("2 groups"));
        let mut unequal = mgk(2.0, Score::Gaussian, KeyDesign::Projected);
        unequal.mixture.variances = Variances::List(vec![2.0, 6.0]);
        assert!(refused(plan(unequal)).contains("one variance for all"));
        assert!(run(&trained(Position::None).planned(&[part(vec![0, 1])], 1).unwrap()).dims() == [1, LENGTH, WIDTH]);
    }
}
