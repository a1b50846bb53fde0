//! One vector for a sequence.

use burn::tensor::{Tensor, TensorData, activation};
use regard_kernels::Padding;

use super::Pooling;
use crate::ops;

/// One vector per sequence, `[B,1,d]`, of states `x [B,N,d]`; `scores [d,1]` are those of attention pooling. 0 for a sequence
/// without a real token, but for [`Pooling::First`].
pub(super) fn pooled(
    x: Tensor<3>,
    scores: Option<Tensor<2>>,
    pooling: Pooling,
    padding: Option<&Padding>,
) -> Tensor<3> {
    let [batch, length, _] = x.dims();
    let device = x.device();
    match (scores, pooling) {
        (None, Pooling::First) => x.narrow(1, 0, 1),
        (Some(scores), _) => {
            // [B,N,1] to [B,1,N]; padding gets a score far below any other.
            let scores = ops::linear(x.clone(), scores, None).transpose();
            let real = real(padding, [batch, length], |_| 1.0);
            let real = Tensor::<3>::from_data(TensorData::new(real, [batch, 1, length]), &device);
            let hidden = real.clone().sub_scalar(1.0).mul_scalar(1e30);
            (activation::softmax(scores + hidden, 2) * real).matmul(x)
        }
        (None, _) => {
            let shares = real(padding, [batch, length], |count| 1.0 / count as f32);
            Tensor::<3>::from_data(TensorData::new(shares, [batch, 1, length]), &device).matmul(x)
        }
    }
}

/// `value` of the number of real tokens in its row for each real token, 0 for the others.
fn real(padding: Option<&Padding>, [batch, length]: [usize; 2], value: impl Fn(usize) -> f32) -> Vec<f32> {
    let Some(padding) = padding else { return vec![value(length); batch * length] };
    let rows = padding.as_slice().chunks_exact(length);
    rows.flat_map(|row| {
        let share = value(row.iter().filter(|&&real| real != 0).count().max(1));
        row.iter().map(move |&real| if real != 0 { share } else { 0.0 })
    })
    .collect()
}
