//! Heads that a plan does not name do what they did.

use burn::tensor::Device;
use regard_nn::{
    attention::{AttentionConfig, HeadPlan},
    blocks::Context,
    models::{LanguageModel, ModelConfig, TokenBatch},
};

#[test]
fn heads_without_a_plan_keep_the_window_of_their_layer() {
    let config = ModelConfig { width: 16, layers: 2, feed_forward: 32, ..ModelConfig::default() };
    let windowed = AttentionConfig {
        heads: 2,
        key_value_heads: Some(2),
        causal: true,
        window: Some(2),
        ..AttentionConfig::default()
    };
    let logits = |planned: bool| -> Vec<f32> {
        let mut model = LanguageModel::new(&config, &windowed, 11, 12, 1, &Device::flex()).unwrap();
        if planned {
            // The same window, said of one head.
            let own = AttentionConfig { window: Some(2), ..AttentionConfig::default() };
            let plan = vec![HeadPlan { key_heads: vec![0], attention: Some(own) }];
            model = model.planned(&vec![plan; config.layers], 1).unwrap();
        }
        let tokens = TokenBatch::full((0..12).map(|at| at % 11).collect::<Vec<i32>>(), 1).unwrap();
        model.forward(&tokens, &Context::evaluation()).into_data_as::<f32>().try_to_vec().unwrap()
    };
    let (exact, planned) = (logits(false), logits(true));
    let largest = exact.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    assert!(exact.iter().zip(&planned).all(|(a, b)| (a - b).abs() < 1e-5 * largest));
}
