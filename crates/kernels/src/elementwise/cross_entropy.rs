//! Cross-entropy of logits with class indices, without a matrix of probabilities.

use std::sync::Arc;

use super::{for_blocks, rows_per_block};
use crate::{
    Error, Operator, Reference, Saved, View,
    memory::arbitrary,
    simd::{exp, max, sum_pairs, vectorize},
};

/// Target of an ignored row.
pub const IGNORE: i32 = -1;

/// Mean over the counted rows of `log sum_c e^{z_c} - (1 - smoothing) z_target - smoothing / classes sum_c z_c`.
///
/// Label smoothing as in Szegedy et al. 2016: a share of the target's weight is spread uniformly over all classes.
/// Input `logits [rows, classes]`, output `[1]`: 0 if no row counts. Saves the log denominator of each row.
#[derive(Clone, Debug)]
pub struct CrossEntropy {
    targets: Arc<[i32]>,
    smoothing: f32,
}

impl CrossEntropy {
    /// `targets`: one class per row, or [`IGNORE`]; `smoothing` in `[0, 1)`.
    pub fn new(targets: Arc<[i32]>, smoothing: f32) -> Self {
        Self { targets, smoothing }
    }

    /// Number of rows that count.
    fn counted(&self) -> usize {
        self.targets.iter().filter(|&&target| target != IGNORE).count()
    }
}

impl Operator for CrossEntropy {
    fn inputs(&self) -> Vec<&'static str> {
        vec!["logits"]
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        let &[rows, classes] = shapes[0] else { return Err(Error::rank("logits", shapes[0], 2)) };
        if rows != self.targets.len() || classes == 0 {
            let expected = format!("[{}, classes], a row for each target", self.targets.len());
            return Err(Error::shape("logits", shapes[0], expected));
        }
        let fits = |target: i32| target == IGNORE || usize::try_from(target).is_ok_and(|target| target < classes);
        if let Some(row) = self.targets.iter().position(|&target| !fits(target)) {
            let expected = format!("a class below {classes}, or {IGNORE} for a row that does not count");
            return Err(Error::option(format!("target of row {row}"), self.targets[row], expected));
        }
        if !(0.0..1.0).contains(&self.smoothing) {
            return Err(Error::option("label smoothing", self.smoothing, "a share in [0, 1)"));
        }
        Ok(vec![1])
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        let (logits, classes) = (inputs[0].data, inputs[0].shape[1]);
        let rows = self.targets.len();
        let (mut normalisers, mut losses) = (vec![0.0; rows], vec![0.0; rows]);
        let tall = rows_per_block(classes);
        let spread = self.smoothing / classes as f32;
        for_blocks(rows.div_ceil(tall), [(&mut normalisers, tall), (&mut losses, tall)], |block, [lse, losses]| {
            vectorize(
                #[inline(always)]
                move || {
                    for (row, (lse, loss)) in lse.iter_mut().zip(losses).enumerate() {
                        let row = block * tall + row;
                        let z = &logits[row * classes..][..classes];
                        let top = max(z);
                        *lse = top + sum_pairs(z, z, |z, _| exp(z - top)).ln();
                        if self.targets[row] != IGNORE {
                            *loss = *lse - (1.0 - self.smoothing) * z[self.targets[row] as usize];
                            // Skipped without smoothing: a logit of minus infinity rules a class out.
                            if spread > 0.0 {
                                *loss -= spread * sum_pairs(z, z, |z, _| z);
                            }
                        }
                    }
                },
            );
        });
        let total: f64 = losses.iter().map(|&loss| f64::from(loss)).sum();
        out[0] = (total / self.counted().max(1) as f64) as f32;
        vec![normalisers].into()
    }

    fn backward(
        &self,
        inputs: &[View<f32>],
        _out: &[f32],
        saved: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        if !wanted[0] {
            return vec![None];
        }
        let (logits, classes) = (inputs[0].data, inputs[0].shape[1]);
        let scale = grad_out[0] / self.counted().max(1) as f32;
        let spread = self.smoothing / classes as f32;
        let mut grad = arbitrary(logits.len());
        let tall = rows_per_block(classes);
        for_blocks(self.targets.len().div_ceil(tall), [(&mut grad, tall * classes)], |block, [grad]| {
            vectorize(
                #[inline(always)]
                move || {
                    for (row, grad) in grad.chunks_exact_mut(classes).enumerate() {
                        let row = block * tall + row;
                        if self.targets[row] == IGNORE {
                            grad.fill(0.0);
                            continue;
                        }
                        let (z, lse) = (&logits[row * classes..][..classes], saved[0][row]);
                        for (grad, &z) in grad.iter_mut().zip(z) {
                            *grad = scale * (exp(z - lse) - spread);
                        }
                        grad[self.targets[row] as usize] -= scale * (1.0 - self.smoothing);
                    }
                },
            );
        });
        vec![Some(grad)]
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        let (logits, classes) = (inputs[0].data, inputs[0].shape[1]);
        let smoothing = f64::from(self.smoothing);
        let count = self.counted().max(1) as f64;
        let mut loss = 0.0;
        let mut grad = vec![0.0; logits.len()];
        for (row, &target) in self.targets.iter().enumerate().filter(|(_, target)| **target != IGNORE) {
            let z = &logits[row * classes..][..classes];
            let top = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let lse = top + z.iter().map(|z| (z - top).exp()).sum::<f64>().ln();
            for (class, z) in z.iter().enumerate() {
                let hit = f64::from(u8::from(class == target as usize));
                let weight = (1.0 - smoothing) * hit + smoothing / classes as f64;
                loss += weight * (lse - z) / count;
                grad[row * classes + class] = grad_out.map_or(0.0, |g| g[0]) * ((z - lse).exp() - weight) / count;
            }
        }
        Reference { out: vec![loss], lse: None, grads: if grad_out.is_some() { vec![grad] } else { Vec::new() } }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    fn targets(rows: usize, classes: usize) -> Arc<[i32]> {
        (0..rows).map(|row| if row % 5 == 3 { IGNORE } else { (row * 7 % classes) as i32 }).collect()
    }

    #[test]
    fn values_and_gradients_agree_with_the_twin() {
        for (rows, classes) in [(1, 2), (9, 10), (300, 257), (3, 20_000)] {
            for smoothing in [0.0, 0.1] {
                let operator = CrossEntropy::new(targets(rows, classes), smoothing);
                check::all(&operator, &[check::draw(&[rows, classes], 4.0, 5)]);
            }
        }
    }

    #[test]
    fn ignored_rows_have_no_part_and_none_counted_is_zero() {
        let operator = CrossEntropy::new(Arc::from([IGNORE, IGNORE]), 0.1);
        let inputs = [View::new(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])];
        let mut out = [f32::NAN];
        let saved = operator.forward(&inputs, &mut out);
        assert_eq!(out, [0.0]);
        assert_eq!(operator.backward(&inputs, &out, &saved, &[1.0], &[true]), [Some(vec![0.0; 4])]);

        let counted = CrossEntropy::new(Arc::from([1, IGNORE]), 0.0);
        let mut loss = |second: f32| {
            counted.forward(&[View::new(&[1.0, 2.0, 3.0, second], &[2, 2])], &mut out);
            out[0]
        };
        assert_eq!(loss(0.0).to_bits(), loss(50.0).to_bits());
        assert!((loss(0.0) - (1.0 + (-1.0f32).exp()).ln()).abs() < 1e-6);
    }

    #[test]
    fn huge_logits_and_classes_ruled_out_stay_finite() {
        let operator = CrossEntropy::new(Arc::from([0, 1]), 0.0);
        let inputs = [View::new(&[3e4f32, -3e4, f32::NEG_INFINITY, 1.0], &[2, 2])];
        let mut out = [f32::NAN];
        let saved = operator.forward(&inputs, &mut out);
        assert_eq!(out, [0.0]);
        let grads = operator.backward(&inputs, &out, &saved, &[1.0], &[true]);
        assert!(grads[0].as_ref().unwrap().iter().all(|grad| grad.abs() < 1e-6));
    }

    #[test]
    fn targets_outside_the_classes_are_errors() {
        let check = |targets: &[i32], smoothing| {
            CrossEntropy::new(targets.into(), smoothing).out_shape(&[&[2, 3]]).map_err(|error| error.to_string())
        };
        assert!(check(&[0, 3], 0.0).unwrap_err().starts_with("target of row 1 is 3, expected a class below 3"));
        assert!(check(&[-2, 0], 0.0).unwrap_err().starts_with("target of row 0 is -2"));
        assert!(check(&[0], 0.0).unwrap_err().contains("[1, classes]"));
        assert!(CrossEntropy::new(Arc::from([IGNORE]), 0.0).out_shape(&[&[1, 0]]).is_err());
        assert!(check(&[0, 1], 1.0).unwrap_err().starts_with("label smoothing is 1"));
        assert_eq!(check(&[IGNORE, 2], 0.5), Ok(vec![1]));
    }
}
