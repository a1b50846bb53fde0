//! States to logits over the vocabulary.

use std::sync::Arc;

use burn::module::Param;
use burn::tensor::Tensor;

use super::ModelConfig;
use crate::{
    blocks::Init,
    ops::{self, elementwise::IGNORE},
};

/// The head `[d,vocabulary]` of a model that has one of its own.
pub(super) fn own(config: &ModelConfig, vocabulary: usize, init: &Init) -> Option<Param<Tensor<2>>> {
    (!config.tied_head).then(|| init.projection("head", [config.width, vocabulary], 1.0))
}

/// Logits `[..,vocabulary]` of states `x [..,d]`: by `head [d,vocabulary]`, or the token vectors `[vocabulary,d]` where
/// there is none.
pub(super) fn logits<const D: usize>(x: Tensor<D>, head: &Option<Param<Tensor<2>>>, tokens: Tensor<2>) -> Tensor<D> {
    let weight = match head {
        Some(head) => head.val(),
        None => tokens.transpose(),
    };
    ops::linear(x, weight, None)
}

/// The states `[counted,d]` of `x [B,N,d]` whose target is not negative, with those targets: a head need not see the
/// others. Where none counts, the first state with a target that does not count.
///
/// # Panics
/// If there are not `B N` targets.
pub(super) fn counted(x: Tensor<3>, targets: &[i32]) -> (Tensor<2>, Arc<[i32]>) {
    let [batch, length, width] = x.dims();
    assert_eq!(targets.len(), batch * length, "one target a token, of {batch} rows of {length}");
    let mut rows: Vec<i32> = (0..targets.len()).filter(|&i| targets[i] >= 0).map(|i| i as i32).collect();
    if rows.is_empty() {
        rows.push(0);
    }
    let kept = rows.iter().map(|&row| targets[row as usize].max(IGNORE)).collect();
    let count = rows.len();
    let x = ops::embedding(x.reshape([batch * length, width]), rows, [1, count]);
    (x.reshape([count, width]), kept)
}
