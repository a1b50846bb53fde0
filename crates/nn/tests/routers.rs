//! What routers add to the training of whole models.

mod common;

use std::sync::Arc;

use burn::tensor::Device;
use common::{VOCABULARY, attention, batch, gradients, small};
use regard_kernels::{Mechanism, routing::MoaOptions};
use regard_nn::{
    attention::AttentionConfig,
    blocks::{Context, RouterLog, RouterRecord},
    models::{LanguageModel, ModelConfig},
};

/// Gradients by name and the records of one pass.
fn pass(moa: &MoaOptions, checkpointing: bool) -> (std::collections::BTreeMap<String, Vec<f64>>, Vec<RouterRecord>) {
    let options = AttentionConfig { causal: true, moa: moa.clone(), ..attention(Mechanism::Moa) };
    let config = ModelConfig { layers: 2, checkpointing, ..small() };
    let device = Device::flex().autodiff();
    let model = LanguageModel::new(&config, &options, VOCABULARY, 9, 3, &device).unwrap();
    let tokens = batch(&[9, 6], 9, 0);
    let targets = tokens.ids.iter().map(|id| (id + 1) % VOCABULARY as i32).collect::<Vec<_>>();
    let log = Arc::new(RouterLog::new());
    let context = Context::training(1, 2).with_loss_scale(2.0).with_router_log(log.clone());
    let grads = model.loss(&tokens, targets.into(), 0.0, &context).backward();
    (gradients(&model, &grads), log.take())
}

/// Recomputing a block gives the same gradients, those of the losses included, and its router is on record once.
#[test]
fn a_recomputed_block_trains_alike_and_is_logged_once() {
    let moa = MoaOptions { balance: 1.0, z: 0.5, noise: 0.2, sampled: 1, ..MoaOptions::default() };
    let (plain, recomputed) = (pass(&moa, false), pass(&moa, true));
    assert_eq!(plain.1, recomputed.1);
    assert_eq!(plain.1.iter().map(|record| (record.layer, record.tokens)).collect::<Vec<_>>(), [(1, 15), (2, 15)]);
    assert_eq!(plain.0, recomputed.0);
    let without = pass(&MoaOptions { balance: 0.0, z: 0.0, ..moa }, true);
    let gate = "layers.1.attention.w_gate";
    assert_ne!(without.0[gate], recomputed.0[gate]);
    assert_eq!(without.0["layers.1.attention.w_out"], recomputed.0["layers.1.attention.w_out"]);
}
