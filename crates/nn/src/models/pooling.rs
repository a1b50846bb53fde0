//! One vector for a sequence.

use burn::tensor::{Tensor, TensorData, activation};
use regard_kernels::Padding;

use super::Pooling;
use crate::{
    blocks::{Context, Spread},
    ops::{self, apply, with_elements},
};

/// One vector per sequence, `[B,1,d]`, of states `x [B,N,d]`; `scores [d,1]` are those of attention pooling. 0 for a sequence
/// without a real token, but for [`Pooling::First`].
pub(super) fn pooled(
    x: Tensor<3>,
    scores: Option<Tensor<2>>,
    pooling: Pooling,
    padding: Option<&Padding>,
    context: &Context,
) -> Tensor<3> {
    if let Some(spread) = &context.spread {
        return pooled_over_ranks(x, scores, pooling, padding, &**spread);
    }
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

/// The same where each rank has some of the tokens.
fn pooled_over_ranks(
    x: Tensor<3>,
    scores: Option<Tensor<2>>,
    pooling: Pooling,
    padding: Option<&Padding>,
    spread: &dyn Spread,
) -> Tensor<3> {
    let [batch, length, width] = x.dims();
    let device = x.device();
    let row = |values: Vec<f32>| Tensor::<3>::from_data(TensorData::new(values, [batch, 1, length]), &device);
    let sum = |x: Tensor<3>| apply::<3>(spread.sum(), &[x.into()]);
    let real = real(padding, [batch, length], |_| 1.0);
    match (scores, pooling) {
        (None, Pooling::First) => {
            let first = spread.positions().iter().map(|place| f32::from(u8::from(*place == 0)));
            sum(row(first.cycle().take(batch * length).collect()).matmul(x))
        }
        (Some(scores), _) => {
            let scores = ops::linear(x.clone(), scores, None).transpose();
            let largest = with_elements(&scores, |scores| {
                let seen = |(score, real): (&f32, &f32)| if *real > 0.0 { *score } else { f32::MIN };
                let rows = scores.chunks_exact(length).zip(real.chunks_exact(length));
                rows.map(|(scores, real)| scores.iter().zip(real).map(seen).fold(f32::MIN, f32::max)).collect()
            });
            let largest = Tensor::<3>::from_data(TensorData::new(spread.largest(largest), [batch, 1, 1]), &device);
            let real = row(real);
            // Padding has the weight of the largest score, times 0.
            let weights = ((scores - largest.clone()) * real.clone()).exp() * real;
            let parts = Tensor::cat(vec![weights.clone().matmul(x), weights.sum_dim(2)], 2);
            let total = sum(parts);
            let weight = total.clone().narrow(2, width, 1);
            let none = weight.clone().equal_elem(0.0);
            total.narrow(2, 0, width) / weight.mask_fill(none, 1.0)
        }
        (None, _) => {
            let shares = spread.real_tokens().iter().zip(real.chunks_exact(length)).flat_map(|(count, row)| {
                let share = 1.0 / (*count).max(1) as f32;
                row.iter().map(move |real| real * share)
            });
            sum(row(shares.collect()).matmul(x))
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
