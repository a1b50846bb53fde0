//! The loss of a projection to many outputs, whose logits never are in memory all at once.

use std::{ops::Range, sync::Arc};

use burn::tensor::Tensor;
use regard_kernels::{
    Operator, View,
    elementwise::{CrossEntropy, IGNORE},
};

use crate::ops::{self, Operand, Pullback, with_elements};

/// Most logits that are held at once in training, and as many gradients: 256 MiB each. More rows are taken part by part and
/// computed again in the backward pass.
pub const HELD_LOGITS: usize = 1 << 26;

/// The same in evaluation.
const HELD_FOR_EVALUATION: usize = 1 << 24;

/// Mean cross entropy of `x w + b`, `[1]`, with `x [rows,d]`, `w [d,classes]`, `b [classes]`, over the rows whose target is
/// not [`IGNORE`]; `smoothing` as in [`ops::cross_entropy`]. At most `held` logits are in memory at once.
///
/// # Panics
/// As [`ops::cross_entropy`].
pub(super) fn projected(
    x: Tensor<2>,
    w: Tensor<2>,
    b: Option<Tensor<1>>,
    targets: Arc<[i32]>,
    smoothing: f32,
    held: usize,
) -> Tensor<1> {
    let ([rows, _], [_, classes]) = (x.dims(), w.dims());
    if rows * classes <= held {
        return ops::cross_entropy(ops::linear(x, w, b), targets, smoothing);
    }
    assert_eq!(targets.len(), rows, "one target a row");
    let counted = targets.iter().filter(|&&target| target != IGNORE).count();
    let parts = Parts { targets, counted, smoothing, rows: (held / classes).max(1) };
    if !ops::takes_results(&x.device()) {
        return parts.loss(&x, &w, b.as_ref());
    }
    let plain = b.as_ref().map(|b| b.clone().without_autodiff());
    let out = parts.loss(&x.clone().without_autodiff(), &w.clone().without_autodiff(), plain.as_ref());
    let inputs = [Some(Operand::from(x)), Some(w.into()), b.map(Operand::from)];
    ops::entered(out, inputs.into_iter().flatten().collect(), Vec::new(), Arc::new(parts))
}

/// Rows in parts.
#[derive(Debug)]
struct Parts {
    targets: Arc<[i32]>,
    counted: usize,
    smoothing: f32,
    /// Rows of a part.
    rows: usize,
}

impl Parts {
    fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let count = self.targets.len();
        (0..count).step_by(self.rows).map(move |first| first..(first + self.rows).min(count))
    }

    /// What the rows `range`, which are `x`, add to the mean.
    fn share(&self, range: Range<usize>, x: Tensor<2>, w: Tensor<2>, b: Option<Tensor<1>>) -> Tensor<1> {
        let targets: Arc<[i32]> = self.targets[range].into();
        let counted = targets.iter().filter(|&&target| target != IGNORE).count();
        ops::cross_entropy(ops::linear(x, w, b), targets, self.smoothing)
            * (counted as f64 / self.counted.max(1) as f64)
    }

    fn loss(&self, x: &Tensor<2>, w: &Tensor<2>, b: Option<&Tensor<1>>) -> Tensor<1> {
        let share = |range: Range<usize>| {
            let x = x.clone().narrow(0, range.start, range.len());
            self.share(range, x, w.clone(), b.cloned())
        };
        self.ranges().map(share).reduce(|sum, share| sum + share).expect("more than one part")
    }
}

impl Pullback for Parts {
    fn backward(&self, kept: Vec<Operand>, grad_out: Operand, wanted: &[bool]) -> Vec<Option<Operand>> {
        let grad_out = grad_out.into_tensor::<1>();
        let x = kept[0].clone().into_tensor::<2>();
        let w = kept[1].clone().into_tensor::<2>().autodiff().require_grad();
        let b = kept.get(2).map(|b| b.clone().into_tensor::<1>().autodiff().require_grad());
        let (mut of_x, mut of_w, mut of_b) = (Vec::new(), None, None);
        for range in self.ranges() {
            let x = x.clone().narrow(0, range.start, range.len()).autodiff().require_grad();
            let share = self.share(range, x.clone(), w.clone(), b.clone());
            let mut grads = share.backward();
            of_x.push(x.grad_remove(&mut grads).expect("tracked"));
            let grad = w.grad_remove(&mut grads).expect("tracked");
            of_w = Some(of_w.map_or(grad.clone(), |sum: Tensor<2>| sum + grad));
            if let Some(grad) = b.as_ref().map(|b| b.grad_remove(&mut grads).expect("tracked")) {
                of_b = Some(of_b.map_or(grad.clone(), |sum: Tensor<1>| sum + grad));
            }
        }
        let scale = |grad: Tensor<2>| Operand::from(grad * grad_out.clone().unsqueeze());
        let gradients =
            [Some(scale(Tensor::cat(of_x, 0))), of_w.map(scale), of_b.map(|b| (b * grad_out.clone()).into())];
        let gradients = gradients.into_iter().take(kept.len());
        gradients.zip(wanted).map(|(gradient, wanted)| gradient.filter(|_| *wanted)).collect()
    }
}

/// Negative log probability, in nats, of each target under `softmax(x w + b)`, none of them ignored.
pub(super) fn nats(x: &Tensor<2>, w: &Tensor<2>, b: Option<&Tensor<1>>, targets: &[i32]) -> Vec<f64> {
    let classes = w.dims()[1];
    let rows = (HELD_FOR_EVALUATION / classes).max(1);
    let mut all = Vec::with_capacity(targets.len());
    for (part, targets) in targets.chunks(rows).enumerate() {
        let x = x.clone().narrow(0, part * rows, targets.len());
        let logits = ops::linear(x, w.clone(), b.cloned());
        with_elements(&logits, |logits| {
            // The logs of the denominators are kept for a backward pass.
            let operator = CrossEntropy::new(targets.into(), 0.0);
            let kept = operator.forward(&[View::new(logits, &[targets.len(), classes])], &mut [0.0]);
            let rows = logits.chunks_exact(classes).zip(targets).zip(&kept.buffers()[0]);
            all.extend(
                rows.map(|((row, target), normaliser)| f64::from(*normaliser) - f64::from(row[*target as usize])),
            );
        });
    }
    all
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};
    use regard_kernels::random;

    use super::*;

    fn draw<const D: usize>(shape: [usize; D], key: u64, device: &Device) -> Tensor<D> {
        let count: usize = shape.iter().product();
        let mut draws = (0..count as u64).map(|i| random::unit(random::substream(key, i)) as f32 - 0.5);
        Tensor::from_data(TensorData::new(draws.by_ref().collect::<Vec<f32>>(), shape), device)
    }

    fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        with_elements(&tensor, <[f32]>::to_vec)
    }

    fn close(a: &[f32], b: &[f32]) {
        let largest = a.iter().fold(0f32, |largest, a| largest.max(a.abs()));
        assert!(a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 2e-6 * largest), "{a:?} {b:?}");
    }

    #[test]
    fn parts_give_the_loss_and_gradients_of_the_whole() {
        let device = Device::flex().autodiff();
        let targets: Arc<[i32]> = (0..23).map(|row| if row % 6 == 4 { IGNORE } else { row * 5 % 11 }).collect();
        for (bias, smoothing) in [(false, 0.0), (true, 0.0), (true, 0.1)] {
            let run = |held: usize| {
                let x = draw([23, 7], 1, &device).require_grad();
                let w = draw([7, 11], 2, &device).require_grad();
                let b = bias.then(|| draw([11], 3, &device).require_grad());
                let loss = projected(x.clone(), w.clone(), b.clone(), targets.clone(), smoothing, held);
                let mut grads = (loss.clone() * 3.0).backward();
                let mut all = vec![numbers(loss.inner())];
                all.extend([x, w].map(|tensor| numbers(tensor.grad_remove(&mut grads).unwrap())));
                all.extend(b.map(|b| numbers(b.grad_remove(&mut grads).unwrap())));
                all
            };
            let whole = run(usize::MAX);
            // One row at a time, four with a last part of three, and a part in which no row counts.
            for held in [1, 44, 20 * 11] {
                run(held).iter().zip(&whole).for_each(|(a, b)| close(b, a));
            }
        }
    }

    #[test]
    fn nats_add_up_to_the_loss() {
        let device = Device::flex();
        let (x, w, b) = (draw([9, 4], 1, &device), draw([4, 6], 2, &device), draw([6], 3, &device));
        let targets: Vec<i32> = (0..9).map(|row| row % 6).collect();
        let nats = nats(&x, &w, Some(&b), &targets);
        let loss = numbers(projected(x, w, Some(b), targets.into(), 0.0, 30))[0];
        assert!((nats.iter().sum::<f64>() / 9.0 - f64::from(loss)).abs() < 1e-6);
    }
}
