//! Counted costs against models as they are built.

use burn::tensor::Device;
use regard_kernels::features::FeatureKind;
use regard_kernels::mechanism::{
    AdditiveScores, Combination, Fraction, Inference, Interaction, KeyDesign, Position, Prior, Sharing,
};
use regard_kernels::routing::MoaOptions;
use regard_kernels::support::SupportKind;
use regard_kernels::{Mechanism, Storage};
use regard_lab::cost::{Count, ModelCost, ModelSizes, Run};
use regard_nn::attention::AttentionConfig;
use regard_nn::models::{
    AdaptiveSoftmaxConfig, Classifier, LanguageModel, MaskedModel, ModelConfig, NormKind, NormPlace, Pooling,
    Recommender, Translator, parameter_count,
};
use regard_tasks::data::{Objective, Shape};

const CONTEXT: usize = 12;

/// Every mechanism with every option that changes a size.
fn variants() -> Vec<AttentionConfig> {
    let plain = |mechanism| AttentionConfig { mechanism, heads: 4, ..AttentionConfig::default() };
    let mut all: Vec<AttentionConfig> = Mechanism::ALL.iter().map(|mechanism| plain(*mechanism)).collect();
    for mechanism in Mechanism::ALL.iter().filter(|mechanism| mechanism.is_mixture()) {
        let mut shifted = plain(*mechanism);
        shifted.keys.design = KeyDesign::Shifted;
        shifted.keys.components = 3;
        all.push(shifted);
    }
    let moa = MoaOptions { experts: 5, active: 3, head_width: Some(6), ..MoaOptions::default() };
    all.push(AttentionConfig { moa, ..plain(Mechanism::Moa) });
    let grouped = |mechanism: &&Mechanism| !matches!(mechanism, Mechanism::Moa | Mechanism::Fastformer);
    for mechanism in Mechanism::ALL.iter().filter(grouped) {
        all.push(AttentionConfig { key_value_heads: Some(2), position: Position::None, ..plain(*mechanism) });
    }
    for (inference, prior) in
        [(Inference::Soft, Prior::PerPosition), (Inference::SoftEm, Prior::Tied), (Inference::Hard, Prior::Tied)]
    {
        let mut mixture = plain(Mechanism::Mgk);
        (mixture.mixture.inference, mixture.mixture.prior) = (inference, prior);
        mixture.mixture.learn_variances = inference == Inference::Soft;
        all.push(mixture);
    }
    for mechanism in [Mechanism::Sparse, Mechanism::Scatterbrain] {
        let mut narrow = plain(mechanism);
        (narrow.support.radius, narrow.features.kind) = (1, FeatureKind::Elu);
        all.push(narrow);
        let mut budgeted = plain(mechanism);
        budgeted.budget = Fraction::new(0.75).ok();
        all.push(budgeted);
        let mut hashed = plain(mechanism);
        hashed.support.kind = SupportKind::Lsh;
        all.push(hashed);
    }
    let mut gated = plain(Mechanism::Scatterbrain);
    (gated.scatterbrain.combination, gated.support.radius) = (Combination::Gated, 1);
    all.push(gated);
    for sharing in [Sharing::None, Sharing::HeadWise, Sharing::LayerWise] {
        let mut additive = plain(Mechanism::Fastformer);
        additive.fastformer.sharing = sharing;
        additive.fastformer.scores = AdditiveScores::Released;
        all.push(additive);
    }
    all
}

const CLASSIFY: Objective = Objective::Classify { classes: 5 };
const PAIRS: Objective = Objective::ClassifyPairs { classes: 5 };
const RANK: Objective = Objective::Rank { history: CONTEXT, candidates: 5 };
const NEXT: Objective = Objective::NextToken { certain: false };

fn sized(config: &ModelConfig, attention: &AttentionConfig, objective: Objective) -> ModelSizes {
    ModelSizes::new(config, &attention.into(), Shape { objective, vocabulary: 11, max_length: CONTEXT })
}

#[test]
fn parameters_are_those_of_the_built_models() {
    let device = Device::default();
    let run = Run { batch: 1, length: 1, decoded: 0 };
    let counted = |sizes: &ModelSizes| ModelCost::of(sizes, run).expect("sizes").total().parameters;
    for attention in variants() {
        for (bias, norm, pooling) in
            [(true, NormPlace::Pre, Pooling::Mean), (false, NormPlace::Post, Pooling::Attention)]
        {
            let config = ModelConfig { width: 16, bias, norm, pooling, tied_head: bias, ..ModelConfig::default() };
            let model = Classifier::new(&config, &attention, 11, 5, CONTEXT, 0, &device).expect("classifier");
            let sizes = sized(&config, &attention, CLASSIFY);
            assert_eq!(counted(&sizes), parameter_count(&model) as Count, "{attention:?} {config:?}");
            let model = Classifier::of_pairs(&config, &attention, 11, 5, CONTEXT, 0, &device).expect("pairs");
            let sizes = sized(&config, &attention, PAIRS);
            assert_eq!(counted(&sizes), parameter_count(&model) as Count, "{attention:?} {config:?}");
            let model = LanguageModel::new(&config, &attention, 11, CONTEXT, 0, &device).expect("language model");
            let sizes = sized(&config, &attention, NEXT);
            assert_eq!(counted(&sizes), parameter_count(&model) as Count, "{attention:?} {config:?}");
            let config = ModelConfig { embedding_width: (!bias).then_some(6), embedding_norm: bias, ..config };
            let model = Recommender::new(&config, &attention, 11, CONTEXT, CONTEXT, 0, &device).expect("recommender");
            let sizes = sized(&config, &attention, RANK);
            assert_eq!(counted(&sizes), parameter_count(&model) as Count, "{attention:?} {config:?}");
        }
    }
}

#[test]
fn clusters_of_an_adaptive_softmax_are_counted() {
    let device = Device::default();
    let attention = AttentionConfig { heads: 4, ..AttentionConfig::default() };
    for (cutoffs, factor) in [(vec![4], 4), (vec![3, 7], 2), (vec![1, 2, 9], 2)] {
        let adaptive_softmax = AdaptiveSoftmaxConfig { cutoffs, factor };
        let config = ModelConfig { width: 16, adaptive_softmax, ..ModelConfig::default() };
        let model = LanguageModel::new(&config, &attention, 11, CONTEXT, 0, &device).expect("language model");
        let sizes = sized(&config, &attention, NEXT);
        let total = ModelCost::of(&sizes, Run { batch: 1, length: 1, decoded: 0 }).expect("sizes").total();
        assert_eq!(total.parameters, parameter_count(&model) as Count, "{config:?}");
    }
    // By hand: 16 x (3 + 2) of the head, clusters of 4 tokens on 8 channels and of 4 on 4.
    let adaptive_softmax = AdaptiveSoftmaxConfig { cutoffs: vec![3, 7], factor: 2 };
    let config = ModelConfig { width: 16, adaptive_softmax, ..ModelConfig::default() };
    let cost =
        ModelCost::of(&sized(&config, &attention, NEXT), Run { batch: 2, length: 10, decoded: 0 }).expect("sizes");
    let head = cost.parts.iter().find(|part| part.name == "head").expect("a head");
    let weights = 16 * 5 + (16 * 8 + 8 * 4) + (16 * 4 + 4 * 4);
    assert_eq!((head.parameters, head.multiply_adds), (weights, 10 * weights));
    assert_eq!(head.activation_bytes, 4 * 20 * (16 + 5));
    let far = ModelConfig {
        adaptive_softmax: AdaptiveSoftmaxConfig { cutoffs: vec![11], factor: 2 },
        ..ModelConfig::default()
    };
    let error = sized(&far, &attention, NEXT).check().expect_err("no token in the cluster").to_string();
    assert_eq!(error, "model.adaptive_softmax.cutoffs is 11, expected a whole number from 1 to 10");
}

/// A pair goes through all but the head as two sequences.
#[test]
fn a_pair_costs_two_sequences_and_its_head() {
    for attention in variants() {
        let config = ModelConfig { width: 16, pooling: Pooling::Attention, ..ModelConfig::default() };
        let run = Run { batch: 3, length: 8, decoded: 0 };
        let [one, pair] = [CLASSIFY, PAIRS]
            .map(|objective| ModelCost::of(&sized(&config, &attention, objective), run).expect("sizes").parts);
        for (one, pair) in one.iter().zip(&pair) {
            assert_eq!(one.name, pair.name);
            if one.name == "head" {
                // 5 classes of 64 features, 16 products, and twice the scores and the means of 8 tokens.
                assert_eq!(pair.multiply_adds, 64 * 5 + 16 + 2 * 2 * 8 * 16);
                assert_eq!(pair.activation_bytes, 4 * (3 * (32 + 64 + 5) + 6 * 8 * 17));
            } else {
                let twice = (one.parameters, 2 * one.multiply_adds, 2 * one.activation_bytes);
                assert_eq!((pair.parameters, pair.multiply_adds, pair.activation_bytes), twice, "{}", one.name);
            }
        }
    }
}

/// All titles of a reader go through the first encoder, and their vectors through one of the same blocks.
#[test]
fn a_reader_costs_its_titles_and_its_history() {
    for attention in variants() {
        let config = ModelConfig { width: 16, pooling: Pooling::Attention, ..ModelConfig::default() };
        let run = |length| Run { batch: 3, length, decoded: 0 };
        let cost =
            |objective, length| ModelCost::of(&sized(&config, &attention, objective), run(length)).expect("sizes");
        let reader = cost(RANK, 8).parts;
        let find = |name: &str| reader.iter().find(|part| part.name == name).unwrap_or_else(|| panic!("{name}"));
        // 12 titles read and 5 offered, of 8 words each.
        for one in cost(CLASSIFY, 8).parts.iter().filter(|part| part.name != "head") {
            let own = find(&one.name);
            let all = (one.parameters, 17 * one.multiply_adds, 17 * one.activation_bytes);
            assert_eq!((own.parameters, own.multiply_adds, own.activation_bytes), all, "{}", one.name);
        }
        assert_eq!(find("pooling").multiply_adds, 17 * 2 * 8 * 16);
        // 12 vectors; sizes that depend on the longest sequence, as a prior by position, have the longest history.
        let own = AttentionConfig { position: Position::None, ..attention.clone() };
        let shape = Shape { objective: CLASSIFY, vocabulary: 11, max_length: CONTEXT };
        let history =
            ModelCost::of(&ModelSizes::new(&config, &(&own).into(), shape), run(CONTEXT)).expect("sizes").parts;
        for one in history.iter().filter(|part| !part.name.ends_with("embedding") && part.name != "head") {
            let own = find(&format!("histories: {}", one.name));
            let all = (one.parameters, one.multiply_adds, one.activation_bytes);
            assert_eq!((own.parameters, own.multiply_adds, own.activation_bytes), all, "{}", one.name);
        }
        assert_eq!(find("histories: pooling").multiply_adds, 2 * 12 * 16);
        assert_eq!(find("scores").multiply_adds, 5 * 16);
    }
}

/// What trained models of others are made of.
#[test]
fn parts_of_trained_models_are_counted() {
    let device = Device::default();
    let run = Run { batch: 1, length: 1, decoded: 0 };
    let counted = |sizes: &ModelSizes| ModelCost::of(sizes, run).expect("sizes").total().parameters;
    let plain = || ModelConfig { width: 16, layers: 3, ..ModelConfig::default() };
    let configs = [
        ModelConfig { norm_kind: NormKind::Rms, gated: true, bias: false, tied_head: true, ..plain() },
        ModelConfig { gated: true, qkv_bias: Some(false), layer_scale: Some(0.1), ..plain() },
        ModelConfig { output_bias: Some(false), feed_forward_bias: Some(false), head_bias: true, ..plain() },
        ModelConfig { token_types: 2, embedding_norm: true, norm: NormPlace::Post, ..plain() },
        ModelConfig { embedding_width: Some(6), shared_blocks: true, head_transform: true, ..plain() },
        ModelConfig { head_transform: true, norm_kind: NormKind::Rms, tied_head: true, head_bias: true, ..plain() },
    ];
    for config in configs {
        for mechanism in [Mechanism::Softmax, Mechanism::Mgk, Mechanism::Fastformer] {
            let attention = AttentionConfig { mechanism, heads: 4, ..AttentionConfig::default() };
            let model = MaskedModel::new(&config, &attention, 11, CONTEXT, 0, &device).expect("masked model");
            let sizes = sized(&config, &attention, Objective::Fill);
            assert_eq!(counted(&sizes), parameter_count(&model) as Count, "{mechanism:?} {config:?}");
            if mechanism == Mechanism::Fastformer || config.head_transform {
                continue;
            }
            let attentions = (&attention).into();
            let model = Translator::new(&config, &attentions, 11, CONTEXT, 0, &device).expect("translator");
            let shape = Shape { objective: Objective::Translate, vocabulary: 11, max_length: CONTEXT };
            let sizes = ModelSizes::new(&config, &attentions, shape);
            // Only the encoder's blocks are shared, and only they have scales.
            assert_eq!(counted(&sizes), parameter_count(&model) as Count, "{mechanism:?} {config:?}");
        }
    }
}

#[test]
fn interactions_of_fastformer_are_counted_with_their_matrices() {
    let run = Run { batch: 1, length: 1, decoded: 0 };
    let config = ModelConfig { width: 16, ..ModelConfig::default() };
    for interaction in [Interaction::Sum, Interaction::Concatenation] {
        for sharing in [Sharing::QueryValue, Sharing::None, Sharing::HeadWise, Sharing::LayerWise] {
            let mut attention =
                AttentionConfig { mechanism: Mechanism::Fastformer, heads: 4, ..AttentionConfig::default() };
            (attention.fastformer.interaction, attention.fastformer.sharing) = (interaction, sharing);
            let model = Classifier::new(&config, &attention, 11, 5, CONTEXT, 0, &Device::default()).expect("model");
            let sizes = sized(&config, &attention, CLASSIFY);
            let total = ModelCost::of(&sizes, run).expect("sizes").total();
            assert_eq!(total.parameters, parameter_count(&model) as Count, "{interaction:?}, {sharing:?}");
            assert_eq!(total.state_bytes, 0);
            // A language model is causal.
            let sizes = sized(&config, &attention, NEXT);
            let error = ModelCost::of(&sizes, run).expect_err("causal").to_string();
            assert!(error.contains("fastformer.interaction") && error.contains(interaction.name()), "{error}");
        }
    }
}

#[test]
fn decode_state_is_that_of_the_models() {
    let config = ModelConfig { width: 16, ..ModelConfig::default() };
    // Hashes need all tokens at once.
    for attention in variants().into_iter().filter(|attention| !attention.support.kind.hashes()) {
        let model = LanguageModel::new(&config, &attention, 11, CONTEXT, 0, &Device::default()).expect("model");
        let mut state = model.decoder(1, Storage::F32).expect("every mechanism here decodes");
        for decoded in 1..=3 {
            model.step(&[1], &mut state).expect("a token");
            let sizes = sized(&config, &attention, NEXT);
            let cost = ModelCost::of(&sizes, Run { batch: 1, length: 1, decoded }).expect("sizes");
            assert_eq!(cost.total().state_bytes, state.bytes() as Count, "{attention:?} after {decoded}");
        }
    }
}
