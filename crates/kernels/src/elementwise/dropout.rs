//! Dropout (Srivastava et al. 2014), scaled in training so that evaluation is the identity.

use super::{BLOCK, for_blocks};
use crate::{Error, Operator, Reference, Saved, View, memory::arbitrary, random, simd::vectorize};

/// `out = x / (1 - rate)` where an element is kept and 0 where it is dropped. Input `x` of any shape.
///
/// The choice is a function of `key` and the element's index alone, so that the backward pass regenerates it and
/// nothing is saved.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// Probability that an element becomes 0, in `[0, 1)`.
    pub rate: f32,
    /// Random key.
    pub key: u64,
}

impl Dropout {
    /// Whether the element at index `place` of the flattened tensor is kept.
    pub fn keeps(&self, place: usize) -> bool {
        random::keep(self.key_at(place), place as u32, random::threshold(self.rate))
    }

    /// Indices with equal high 32 bits share a key; below 2^32 it is the key itself.
    fn key_at(&self, place: usize) -> u64 {
        match place as u64 >> 32 {
            0 => self.key,
            high => random::substream(self.key, high),
        }
    }

    fn mask(&self, x: &[f32], out: &mut [f32]) {
        let threshold = random::threshold(self.rate);
        let scale = 1.0 / (1.0 - self.rate);
        for_blocks(x.len().div_ceil(BLOCK), [(out, BLOCK)], |block, [out]| {
            let start = block * BLOCK;
            let key = self.key_at(start);
            vectorize(
                #[inline(always)]
                move || {
                    let x = &x[start..][..out.len()];
                    for i in 0..out.len() {
                        let kept = random::keep(key, (start as u32).wrapping_add(i as u32), threshold);
                        out[i] = if kept { x[i] * scale } else { 0.0 };
                    }
                },
            );
        });
    }
}

impl Operator for Dropout {
    fn inputs(&self) -> Vec<&'static str> {
        vec!["x"]
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        if (0.0..1.0).contains(&self.rate) {
            Ok(shapes[0].to_vec())
        } else {
            Err(Error::option("dropout rate", self.rate, "a share in [0, 1)"))
        }
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        self.mask(inputs[0].data, out);
        Saved::new()
    }

    fn backward(
        &self,
        _inputs: &[View<f32>],
        _out: &[f32],
        _saved: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        let grad = || {
            let mut grad = arbitrary(grad_out.len());
            self.mask(grad_out, &mut grad);
            grad
        };
        vec![wanted[0].then(grad)]
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        let scale = 1.0 / (1.0 - f64::from(self.rate));
        let mask = |x: &[f64]| -> Vec<f64> {
            x.iter().enumerate().map(|(i, x)| if self.keeps(i) { x * scale } else { 0.0 }).collect()
        };
        Reference { out: mask(inputs[0].data), lse: None, grads: grad_out.into_iter().map(mask).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn values_and_gradients_agree_with_the_twin() {
        for (shape, rate) in [(vec![5], 0.5), (vec![100, 700], 0.1), (vec![2, 3, 7], 0.9)] {
            check::all(&Dropout { rate, key: 17 }, &[check::draw(&shape, 1.0, 6)]);
        }
    }

    #[test]
    fn rate_zero_changes_nothing_and_the_mean_survives_others() {
        let x = vec![1.0; 100_000];
        let mut out = vec![f32::NAN; x.len()];
        Dropout { rate: 0.0, key: 3 }.forward(&[View::new(&x, &[x.len()])], &mut out);
        assert_eq!(out, x);
        Dropout { rate: 0.3, key: 3 }.forward(&[View::new(&x, &[x.len()])], &mut out);
        let mean = out.iter().sum::<f32>() / x.len() as f32;
        // Four standard deviations of the mean.
        assert!((mean - 1.0).abs() < 4.0 * (0.3f32 / 0.7 / x.len() as f32).sqrt(), "mean {mean}");
    }

    #[test]
    fn a_dropped_infinity_is_zero_and_keys_differ() {
        let x = vec![f32::INFINITY; 64];
        let draw = |key| {
            let mut out = vec![f32::NAN; x.len()];
            Dropout { rate: 0.5, key }.forward(&[View::new(&x, &[64])], &mut out);
            out
        };
        assert!(draw(1).contains(&0.0) && draw(1).contains(&f32::INFINITY) && draw(1) != draw(2));
        let error = Dropout { rate: 1.0, key: 0 }.out_shape(&[&[3]]).unwrap_err().to_string();
        assert_eq!(error, "dropout rate is 1, expected a share in [0, 1)");
    }

    #[test]
    fn places_beyond_32_bits_have_keys_of_their_own() {
        let dropout = Dropout { rate: 0.5, key: 8 };
        let agree = (0..1000).filter(|&i| dropout.keeps(i) == dropout.keeps(i + (1 << 32))).count();
        assert!((400..600).contains(&agree), "{agree} of 1000 agree");
    }
}
