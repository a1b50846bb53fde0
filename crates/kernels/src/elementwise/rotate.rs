//! Rotary positions (Su et al. 2021).

use std::sync::Arc;

use super::{BLOCK, for_blocks};
use crate::{
    Error, Operator, Reference, Saved, View,
    memory::arbitrary,
    simd::{LANES, vectorize},
};

/// Rotates the first `2 * pairs` of `D` channels of every row of token `n` by the angles of position `n`: channel `c`
/// with channel `c + pairs`, the channel order of GPT-NeoX. The others are unchanged.
///
/// Input `x [B,N,..,D]`, token first. The tables are constants: they have no gradient.
#[derive(Clone, Debug)]
pub struct Rotate {
    cosine: Arc<[f32]>,
    sine: Arc<[f32]>,
    pairs: usize,
    from: usize,
}

impl Rotate {
    /// Cosines and sines of the angles of positions 0, 1, .., `[positions, pairs]` each. Token 0 has position `from`.
    pub fn new(cosine: Arc<[f32]>, sine: Arc<[f32]>, pairs: usize, from: usize) -> Self {
        Self { cosine, sine, pairs, from }
    }

    /// Number of rotated channel pairs.
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// Cosines and sines of `tokens` tokens.
    ///
    /// # Panics
    /// A position beyond the tables.
    pub fn tables(&self, tokens: usize) -> [&[f32]; 2] {
        [&self.cosine, &self.sine].map(|table| &table[self.from * self.pairs..][..tokens * self.pairs])
    }

    /// Rotates forward, or backward for gradients.
    fn turn(&self, x: View<f32>, back: bool, out: &mut [f32]) {
        let &[_, tokens, .., width] = x.shape else { unreachable!("a row for every token") };
        let token = x.shape[2..].iter().product::<usize>();
        let tall = (BLOCK / token.max(1)).max(1);
        for_blocks(x.data.len().div_ceil((tall * token).max(1)), [(out, tall * token)], |block, [out]| {
            let x = &x.data[block * tall * token..][..out.len()];
            vectorize(
                #[inline(always)]
                || {
                    for (at, (x, out)) in x.chunks_exact(token).zip(out.chunks_exact_mut(token)).enumerate() {
                        let position = self.from + (block * tall + at) % tokens;
                        let [cosine, sine] =
                            [&self.cosine, &self.sine].map(|table| &table[position * self.pairs..][..self.pairs]);
                        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                            if back {
                                // The sum of the gradients of two slices, each with zeros elsewhere: no zero is negative.
                                turn_row(x, cosine, sine, out, |a, b| a + b + 0.0, |b, a| b - a + 0.0);
                            } else {
                                turn_row(x, cosine, sine, out, |a, b| a - b, |b, a| b + a);
                            }
                        }
                    }
                },
            );
        });
    }
}

/// `first = f(x_1 cosine, x_2 sine)` and `second = g(x_2 cosine, x_1 sine)`, every product rounded, in whole vectors
/// even for few pairs.
#[inline(always)]
fn turn_row(
    x: &[f32],
    cosine: &[f32],
    sine: &[f32],
    out: &mut [f32],
    f: impl Fn(f32, f32) -> f32,
    g: impl Fn(f32, f32) -> f32,
) {
    let pairs = cosine.len();
    let (x, x_rest) = x.split_at(2 * pairs);
    let (out, out_rest) = out.split_at_mut(2 * pairs);
    out_rest.copy_from_slice(x_rest);
    let ((x_1, x_2), (out_1, out_2)) = (x.split_at(pairs), out.split_at_mut(pairs));
    let (x_1, x_1_rest) = x_1.as_chunks::<LANES>();
    let (x_2, x_2_rest) = x_2.as_chunks::<LANES>();
    let (cosine, cosine_rest) = cosine.as_chunks::<LANES>();
    let (sine, sine_rest) = sine.as_chunks::<LANES>();
    let (out_1, out_1_rest) = out_1.as_chunks_mut::<LANES>();
    let (out_2, out_2_rest) = out_2.as_chunks_mut::<LANES>();
    let inputs = x_1.iter().zip(x_2).zip(cosine.iter().zip(sine));
    for ((out_1, out_2), ((x_1, x_2), (cosine, sine))) in out_1.iter_mut().zip(out_2).zip(inputs) {
        let (mut lanes_1, mut lanes_2) = ([0.0; LANES], [0.0; LANES]);
        for c in 0..LANES {
            lanes_1[c] = f(x_1[c] * cosine[c], x_2[c] * sine[c]);
            lanes_2[c] = g(x_2[c] * cosine[c], x_1[c] * sine[c]);
        }
        (*out_1, *out_2) = (lanes_1, lanes_2);
    }
    for c in 0..cosine_rest.len() {
        out_1_rest[c] = f(x_1_rest[c] * cosine_rest[c], x_2_rest[c] * sine_rest[c]);
        out_2_rest[c] = g(x_2_rest[c] * cosine_rest[c], x_1_rest[c] * sine_rest[c]);
    }
}

impl Operator for Rotate {
    fn inputs(&self) -> Vec<&'static str> {
        vec!["x"]
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        let misfit = || Error::shape("x", shapes[0], format!("[B,N,..,D] with D of {} or more", 2 * self.pairs));
        let &[_, tokens, .., width] = shapes[0] else { return Err(misfit()) };
        if self.pairs > width / 2 {
            return Err(misfit());
        }
        for (name, table) in [("cosines", &self.cosine), ("sines", &self.sine)] {
            let positions = tokens.saturating_add(self.from);
            if table.len() < positions.saturating_mul(self.pairs) {
                let expected = format!("at least {positions} x {}", self.pairs);
                return Err(Error::option(format!("number of {name}"), table.len(), expected));
            }
        }
        Ok(shapes[0].to_vec())
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        self.turn(inputs[0], false, out);
        Saved::new()
    }

    fn backward(
        &self,
        inputs: &[View<f32>],
        _out: &[f32],
        _saved: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        let grad = || {
            let mut grad = arbitrary(grad_out.len());
            self.turn(View::new(grad_out, inputs[0].shape), true, &mut grad);
            grad
        };
        vec![wanted[0].then(grad)]
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        let shape = inputs[0].shape;
        let (tokens, width) = (shape[1], shape[shape.len() - 1]);
        let rows = shape[2..shape.len() - 1].iter().product::<usize>();
        let turned = |x: &[f64], direction: f64| {
            let mut out = x.to_vec();
            for (row, (x, out)) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)).enumerate() {
                for c in 0..self.pairs {
                    let at = (self.from + row / rows % tokens) * self.pairs + c;
                    let (cosine, sine) = (f64::from(self.cosine[at]), direction * f64::from(self.sine[at]));
                    out[c] = x[c] * cosine - x[c + self.pairs] * sine;
                    out[c + self.pairs] = x[c + self.pairs] * cosine + x[c] * sine;
                }
            }
            out
        };
        let out = turned(inputs[0].data, 1.0);
        Reference { out, lse: None, grads: grad_out.into_iter().map(|grad| turned(grad, -1.0)).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    fn rotate(tokens: usize, pairs: usize) -> Rotate {
        let angle = |i: usize| (i / pairs.max(1)) as f32 * 0.3f32.powi((i % pairs.max(1)) as i32);
        let table = |f: fn(f32) -> f32| (0..tokens * pairs).map(|i| f(angle(i))).collect();
        Rotate::new(table(f32::cos), table(f32::sin), pairs, 0)
    }

    #[test]
    fn later_tokens_have_later_positions() {
        let (all, x) = (rotate(7, 2), check::draw(&[1, 7, 5], 1.0, 3).data);
        let [mut whole, mut part] = [vec![0.0; 35], vec![0.0; 15]];
        all.forward(&[View::new(&x, &[1, 7, 5])], &mut whole);
        Rotate { from: 4, ..all }.forward(&[View::new(&x[20..], &[1, 3, 5])], &mut part);
        assert_eq!(part, whole[20..]);
    }

    #[test]
    fn values_and_gradients_agree_with_the_twin() {
        for (shape, pairs) in [
            (vec![1, 3, 2], 1),
            (vec![2, 5, 3, 9], 4),
            (vec![2, 150, 2, 3, 40], 17),
            (vec![1, 300, 4, 64], 32),
            (vec![2, 3, 5], 0),
        ] {
            check::all(&rotate(shape[1], pairs), &[check::draw(&shape, 1.5, 7)]);
        }
    }

    #[test]
    fn every_product_is_rounded_as_in_the_tensor_form() {
        let (tokens, width, pairs) = (70, 48, 20);
        let rotate = rotate(tokens, pairs);
        let (shape, x) = ([1, tokens, width], check::draw(&[tokens * width], 2.0, 8).data);
        let mut out = vec![f32::NAN; x.len()];
        rotate.forward(&[View::new(&x, &shape)], &mut out);
        let back = rotate.backward(&[View::new(&x, &shape)], &[], &Saved::new(), &x, &[true]).remove(0).unwrap();
        for (i, &seen) in out.iter().enumerate() {
            let (row, c) = (i / width * width, i % width);
            let at = i / width * pairs + c % pairs;
            let (cosine, sine) = (rotate.cosine[at % (tokens * pairs)], rotate.sine[at % (tokens * pairs)]);
            let want = match c {
                c if c < pairs => (x[i] * cosine - x[i + pairs] * sine, x[i] * cosine + x[i + pairs] * sine),
                c if c < 2 * pairs => {
                    (x[i] * cosine + x[row + c - pairs] * sine, x[i] * cosine - x[row + c - pairs] * sine)
                }
                _ => (x[i], x[i]),
            };
            assert_eq!((seen.to_bits(), back[i].to_bits()), (want.0.to_bits(), want.1.to_bits()), "{i}");
        }
    }

    #[test]
    fn tables_and_widths_that_do_not_fit_are_errors() {
        let error = |shape: &[usize]| rotate(3, 2).out_shape(&[shape]).unwrap_err().to_string();
        assert_eq!(error(&[1, 4, 6]), "number of cosines is 6, expected at least 4 x 2");
        assert!(error(&[1, 3, 3]).contains("expected [B,N,..,D] with D of 4 or more"));
        assert!(error(&[3, 4]).contains("expected [B,N,..,D]"));
        rotate(0, 2).forward(&[View::new(&[], &[2, 0, 5])], &mut []);
    }
}
