//! Recommenders: what reaches a score, and that every parameter learns.

mod common;

use std::sync::Arc;

use burn::tensor::Device;
use common::{VOCABULARY, attention, batch, doubles, gradients, small, values};
use regard_kernels::{Mechanism, Padding, mechanism::Position};
use regard_nn::{
    attention::AttentionConfig,
    blocks::Context,
    models::{ModelConfig, Pooling, Readers, Recommender, TokenBatch, named_parameters},
    ops::cross_entropy,
};
use regard_testkit::Report;

const TITLE: usize = 8;
const HISTORY: usize = 6;

fn recommender(config: &ModelConfig, options: &AttentionConfig, device: &Device) -> Recommender {
    Recommender::new(config, options, VOCABULARY, TITLE, HISTORY, 3, device).unwrap()
}

fn pooled(pooling: Pooling) -> ModelConfig {
    ModelConfig { pooling, ..small() }
}

/// Rows of titles with `filler` as padding.
fn histories(rows: &[&[i32]], length: usize, filler: i32) -> TokenBatch {
    let lengths: Vec<usize> = rows.iter().map(|row| row.len()).collect();
    let ids: Vec<i32> =
        rows.iter().flat_map(|row| (0..length).map(|i| row.get(i).copied().unwrap_or(filler))).collect();
    TokenBatch::new(ids, rows.len(), length, Some(Arc::new(Padding::from_lengths(&lengths, length)))).unwrap()
}

/// Three readers, one of whom has read nothing, and three candidates for each.
fn readers(length: usize, filler: i32) -> Readers {
    let histories = histories(&[&[0, 1, 3], &[], &[4, 2]], length, filler);
    Readers { histories, candidates: [1, 2, 4, 0, 1, 2, 3, 0, 1].into() }
}

#[test]
fn padding_of_titles_and_histories_never_reaches_a_score() {
    let mut report = Report::new();
    for &mechanism in Mechanism::ALL {
        for pooling in [Pooling::Attention, Pooling::Mean] {
            let model = recommender(&pooled(pooling), &attention(mechanism), &Device::flex());
            let scores = |title, history, filler| {
                let titles = batch(&[5, 2, 4, 1, 3], title, filler);
                doubles(model.forward(&titles, &readers(history, filler), &Context::evaluation()))
            };
            let plain = scores(5, 3, 0);
            report.compare(format!("{mechanism} {pooling:?}"), &scores(8, 6, 4), &plain, 1e-5);
            // Who has read nothing ties all.
            assert_eq!(plain[3..6], [0.0; 3], "{mechanism} {pooling:?}");
            assert!(plain.iter().all(|score| score.is_finite()) && plain[0] != plain[1], "{mechanism} {plain:?}");
        }
    }
    report.finish();
}

#[test]
fn a_score_is_the_product_of_vectors_that_each_stand_alone() {
    let model = recommender(&pooled(Pooling::Attention), &attention(Mechanism::Fastformer), &Device::flex());
    let context = Context::evaluation();
    let titles = batch(&[5, 2, 4, 1, 3], 5, 0);
    let news = model.news(&titles, &context);
    let users = model.users(news.clone(), &readers(3, 0).histories, &context);
    let (products, scores) = (
        doubles(users.clone().matmul(news.clone().transpose())),
        doubles(model.forward(&titles, &readers(3, 0), &context)),
    );
    let mut report = Report::new();
    let expected: Vec<f64> = [[1, 2, 4], [0, 1, 2], [3, 0, 1]]
        .iter()
        .enumerate()
        .flat_map(|(user, offered)| offered.iter().map(move |news| (user, *news)))
        .map(|(user, news)| products[5 * user + news] / 4.0)
        .collect();
    report.compare("products", &scores, &expected, 1e-6);
    // A title and a reader alone have the vectors that they have beside others.
    let alone = doubles(model.news(&batch(&[5], 5, 0), &context));
    report.compare("a title", &alone, &doubles(news.clone())[..16], 1e-6);
    let alone = doubles(model.users(news, &histories(&[&[0, 1, 3]], 3, 0), &context));
    report.compare("a reader", &alone, &doubles(users)[..16], 1e-6);
    report.finish();
}

#[test]
fn softmax_takes_a_history_as_a_set_whatever_the_positions_of_words() {
    let mut report = Report::new();
    for position in [Position::Learned, Position::Sinusoidal, Position::Rotary, Position::Alibi] {
        // Nor is anything causal.
        let options = AttentionConfig { position, causal: true, ..attention(Mechanism::Softmax) };
        let model = recommender(&pooled(Pooling::Attention), &options, &Device::flex());
        let context = Context::evaluation();
        let news = model.news(&batch(&[5, 2, 4, 1, 3], 5, 0), &context);
        let vector = |history: &[i32]| doubles(model.users(news.clone(), &histories(&[history], 3, 0), &context));
        report.compare(format!("{position:?}"), &vector(&[3, 0, 1]), &vector(&[0, 1, 3]), 1e-5);
        // Words have an order.
        let title = |ids: [i32; 3]| values(model.news(&TokenBatch::full(ids, 1).unwrap(), &context));
        assert_ne!(title([1, 2, 3]), title([3, 2, 1]));
    }
    report.finish();
}

#[test]
fn every_parameter_of_both_encoders_learns() {
    let device = Device::flex().autodiff();
    for &mechanism in Mechanism::ALL {
        for (position, embedding_width) in [(Position::Learned, None), (Position::Sinusoidal, Some(6))] {
            let config =
                ModelConfig { dropout: 0.1, attention_dropout: 0.1, embedding_width, ..pooled(Pooling::Attention) };
            let options = AttentionConfig { position, ..attention(mechanism) };
            let model = recommender(&config, &options, &device);
            // Titles as long as the model has positions.
            let titles = batch(&[8, 2, 4, 1, 3], 8, 0);
            let logits = model.forward(&titles, &readers(3, 0), &Context::training(0, 0));
            let grads = gradients(&model, &cross_entropy(logits, [0, 1, 2], 0.0).backward());
            let parameters = named_parameters(&model);
            for name in ["news.token_embedding", "pool_news", "users.layers.1.norm_1.weight", "pool_users"] {
                assert!(parameters.iter().any(|parameter| parameter.name == name), "{name}");
            }
            for parameter in parameters.into_iter().filter(|parameter| !parameter.buffer) {
                let what = format!("{mechanism}: {}", parameter.name);
                let grad = grads.get(&parameter.name).unwrap_or_else(|| panic!("{what}"));
                assert!(grad.iter().all(|g| g.is_finite()), "{what}");
                // Key biases of softmax shift all scores of a query alike.
                let softmax = matches!(mechanism, Mechanism::Softmax | Mechanism::Sparse | Mechanism::Scatterbrain);
                let idle = softmax && parameter.name.ends_with("b_k");
                assert!(idle || grad.iter().any(|&g| g != 0.0), "{what}");
            }
        }
    }
}

#[test]
fn what_cannot_be_pooled_is_refused() {
    let error = Recommender::new(&pooled(Pooling::First), &attention(Mechanism::Softmax), 5, 3, 3, 0, &Device::flex())
        .unwrap_err()
        .to_string();
    assert!(error.contains("model.pooling") && error.contains("'attention' or 'mean'"), "{error}");
}
