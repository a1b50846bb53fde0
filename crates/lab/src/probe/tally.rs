//! Measurements of a decoder, by layer and position.

use std::collections::BTreeMap;

use rayon::prelude::*;
use serde::Serialize;

use crate::moments::Moments;

/// Measured intermediates of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Quantity {
    /// Elements of queries.
    Query,
    /// Elements of keys.
    Key,
    /// Elements of values.
    Value,
    /// `q.k / sqrt(D)` over visible keys.
    Logit,
    /// Head outputs, before the output projection.
    Heads,
    /// The attention output added to the residual stream, `o_m`.
    Attention,
    /// `o_m` over sequences, channel by channel: without the part common to all sequences.
    OverSequences,
    /// The residual stream after attention.
    Residual,
    /// The same, normalised.
    Normalised,
    /// The block's output.
    Output,
    /// Cosine similarity of the block's output at neighbouring positions.
    Neighbours,
    /// The last query's attention to keys before a threshold; "positions" are thresholds here.
    Cumulative,
    /// Farthest of that from even attention, head by head; a single "position".
    Uneven,
}

impl Quantity {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "q",
            Self::Key => "k",
            Self::Value => "v",
            Self::Logit => "logits",
            Self::Heads => "heads' outputs",
            Self::Attention => "o_m",
            Self::OverSequences => "o_m over sequences",
            Self::Residual => "after residual",
            Self::Normalised => "after norm",
            Self::Output => "block output",
            Self::Neighbours => "neighbours' cosine",
            Self::Cumulative => "cumulative attention",
            Self::Uneven => "farthest from even attention",
        }
    }
}

/// Moments at every position, over some sequences.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    curves: BTreeMap<(usize, Quantity), Vec<Moments>>,
}

/// Sizes of a tensor of token vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axes {
    /// Number of sequences.
    pub batch: usize,
    /// Tokens per sequence.
    pub tokens: usize,
}

/// Attention of the last query of some heads and sequences to the keys before each threshold.
#[derive(Clone, Debug, PartialEq)]
pub struct Shares {
    /// Tokens per sequence.
    pub tokens: usize,
    /// Thresholds, at equal distances; all keys are before the last.
    pub thresholds: usize,
    /// `[.., thresholds]`, a row for each head and sequence.
    pub values: Vec<f64>,
}

impl Shares {
    /// Number of keys before threshold `c`, from 0.
    pub fn before(c: usize, tokens: usize, thresholds: usize) -> usize {
        ((c + 1) * tokens).div_ceil(thresholds).min(tokens)
    }
}

impl Tally {
    /// Moments of `quantity` in `layer`, from 1, one per position.
    pub fn curve(&self, layer: usize, quantity: Quantity) -> Option<&[Moments]> {
        self.curves.get(&(layer, quantity)).map(Vec::as_slice)
    }

    /// Layers and quantities that were measured.
    pub fn keys(&self) -> impl Iterator<Item = (usize, Quantity)> + '_ {
        self.curves.keys().copied()
    }

    /// Adds moments, one per position.
    pub fn add_moments(&mut self, layer: usize, quantity: Quantity, moments: Vec<Moments>) {
        match self.curves.get_mut(&(layer, quantity)) {
            Some(own) => own.iter_mut().zip(moments).for_each(|(own, more)| *own = own.and(more)),
            None => drop(self.curves.insert((layer, quantity), moments)),
        }
    }

    /// Adds cumulative attention, over heads and sequences, and how far each of them by itself is from even attention: a mean
    /// over heads that each attend to one place would be even.
    pub fn add_cumulative(&mut self, layer: usize, shares: &Shares) {
        let Shares { tokens, thresholds, ref values } = *shares;
        let at = |c: usize| Moments::of(&values.iter().skip(c).step_by(thresholds).copied().collect::<Vec<_>>());
        self.add_moments(layer, Quantity::Cumulative, (0..thresholds).map(at).collect());
        let even = |c: usize| Shares::before(c, tokens, thresholds) as f64 / tokens as f64;
        let off = |row: &[f64]| row.iter().enumerate().map(|(c, share)| (share - even(c)).abs()).fold(0.0, f64::max);
        let off: Vec<f64> = values.chunks_exact(thresholds).map(off).collect();
        self.add_moments(layer, Quantity::Uneven, vec![Moments::of(&off)]);
    }

    /// Adds all elements of `values [B,N,..]`.
    pub fn add<T: Copy + Into<f64> + Sync>(&mut self, layer: usize, quantity: Quantity, values: &[T], axes: Axes) {
        let width = values.len() / (axes.batch * axes.tokens);
        let rows = |position: usize| (0..axes.batch).map(move |b| (b * axes.tokens + position) * width);
        let at = |position: usize| {
            let moments = rows(position).map(|start| Moments::of(&values[start..start + width]));
            moments.fold(Moments::default(), Moments::and)
        };
        let moments = (0..axes.tokens).into_par_iter().map(at).collect();
        self.add_moments(layer, quantity, moments);
    }

    /// Adds the cosines of neighbours in `values [B,N,d]`, one per position but the last.
    pub fn add_neighbours<T: Copy + Into<f64> + Sync>(&mut self, layer: usize, values: &[T], axes: Axes) {
        if axes.tokens < 2 {
            return;
        }
        let width = values.len() / (axes.batch * axes.tokens);
        let at = |position: usize| {
            let cosine = |b: usize| {
                let start = (b * axes.tokens + position) * width;
                cosine(&values[start..start + width], &values[start + width..start + 2 * width])
            };
            Moments::of(&(0..axes.batch).map(cosine).collect::<Vec<_>>())
        };
        let moments = (0..axes.tokens - 1).into_par_iter().map(at).collect();
        self.add_moments(layer, Quantity::Neighbours, moments);
    }

    /// Adds the moments of `q.k / sqrt(D)` over the keys that each query sees, for `q [B,N,H,D]` and `k [B,N,Hk,D]`.
    ///
    /// Sums over keys are `q . sum k` and `q^T (sum k k^T) q`, so that no pairwise products are needed.
    pub fn add_logits<T: Copy + Into<f64> + Sync>(
        &mut self,
        layer: usize,
        (q, k): (&[T], &[T]),
        axes: Axes,
        [heads, key_heads, width]: [usize; 3],
        causal: bool,
    ) {
        let Axes { batch, tokens } = axes;
        let row = |x: &[T], b: usize, i: usize, h: usize, heads: usize| -> Vec<f64> {
            let start = ((b * tokens + i) * heads + h) * width;
            x[start..start + width].iter().map(|x| (*x).into()).collect()
        };
        let one = |at: usize| {
            let (b, h) = (at / heads, at % heads);
            let (mut sum, mut squares) = (vec![0.0; width], vec![0.0; width * width]);
            let take = |j: usize, sum: &mut [f64], squares: &mut [f64]| {
                let key = row(k, b, j, h * key_heads / heads, key_heads);
                for (c, x) in key.iter().enumerate() {
                    sum[c] += x;
                    let line = &mut squares[c * width..(c + 1) * width];
                    line.iter_mut().zip(&key).for_each(|(s, y)| *s += x * y);
                }
            };
            if !causal {
                (0..tokens).for_each(|j| take(j, &mut sum, &mut squares));
            }
            let mut moments = Vec::with_capacity(tokens);
            for i in 0..tokens {
                if causal {
                    take(i, &mut sum, &mut squares);
                }
                let (count, query) = (if causal { i + 1 } else { tokens }, row(q, b, i, h, heads));
                let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
                let square: f64 =
                    query.iter().zip(squares.chunks_exact(width)).map(|(x, line)| x * dot(line, &query)).sum();
                let scale = (width as f64).sqrt();
                let mean = dot(&query, &sum) / count as f64 / scale;
                let mean_square = square / count as f64 / (width as f64);
                moments.push(Moments::from_means(count as u64, mean, mean_square));
            }
            moments
        };
        let parts: Vec<Vec<Moments>> = (0..batch * heads).into_par_iter().map(one).collect();
        parts.into_iter().for_each(|moments| self.add_moments(layer, Quantity::Logit, moments));
    }
}

fn cosine<T: Copy + Into<f64>>(a: &[T], b: &[T]) -> f64 {
    let (mut product, mut left, mut right) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        let (a, b): (f64, f64) = ((*a).into(), (*b).into());
        product += a * b;
        left += a * a;
        right += b * b;
    }
    product / (left * right).sqrt()
}

/// Normalises rows of `values [.., width]` to mean 0 and variance 1, like a norm without weight, bias and epsilon.
pub fn normalise(values: &mut [f32], width: usize) {
    values.par_chunks_mut(width).for_each(|row| {
        let moments = Moments::of(&*row);
        let scale = moments.variance().sqrt().recip();
        row.iter_mut().for_each(|x| *x = ((f64::from(*x) - moments.mean) * scale) as f32);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_are_those_of_all_pairs() {
        let (axes, sizes) = (Axes { batch: 2, tokens: 5 }, [4, 2, 3]);
        let values = |heads: usize, phase: f64| -> Vec<f64> {
            (0..2 * 5 * heads * 3).map(|i| (phase + 1.7 * i as f64).sin()).collect()
        };
        let (q, k) = (values(4, 0.3), values(2, 0.9));
        for causal in [true, false] {
            let mut tally = Tally::default();
            tally.add_logits(1, (&q, &k), axes, sizes, causal);
            let curve = tally.curve(1, Quantity::Logit).unwrap();
            for i in 0..5 {
                let mut all = Vec::new();
                for (b, h) in (0..2).flat_map(|b| (0..4).map(move |h| (b, h))) {
                    for j in 0..if causal { i + 1 } else { 5 } {
                        let (from, to) = (((b * 5 + i) * 4 + h) * 3, ((b * 5 + j) * 2 + h / 2) * 3);
                        all.push((0..3).map(|c| q[from + c] * k[to + c]).sum::<f64>() / 3f64.sqrt());
                    }
                }
                let want = Moments::of(&all);
                assert_eq!(curve[i].count, want.count);
                assert!(
                    (curve[i].mean - want.mean).abs() < 1e-12 && (curve[i].variance() - want.variance()).abs() < 1e-12
                );
            }
        }
    }

    /// Two heads that each attend to one end: even together, as far from it as can be by themselves.
    #[test]
    fn each_head_is_uneven_by_itself() {
        let values = [vec![1.0; 4], vec![0.0, 0.0, 0.0, 1.0]].concat();
        let mut tally = Tally::default();
        tally.add_cumulative(1, &Shares { tokens: 8, thresholds: 4, values });
        let means = |quantity| tally.curve(1, quantity).unwrap().iter().map(|own| own.mean).collect::<Vec<_>>();
        assert_eq!(means(Quantity::Cumulative), [0.5, 0.5, 0.5, 1.0]);
        assert_eq!(means(Quantity::Uneven), [0.75]);
    }

    #[test]
    fn tallies_add_up_over_batches() {
        let values: Vec<f32> = (0..48).map(|i| (i as f32 * 0.7).cos()).collect();
        let (mut whole, mut parts) = (Tally::default(), Tally::default());
        whole.add(1, Quantity::Output, &values, Axes { batch: 4, tokens: 3 });
        whole.add_neighbours(1, &values, Axes { batch: 4, tokens: 3 });
        for half in values.chunks(24) {
            parts.add(1, Quantity::Output, half, Axes { batch: 2, tokens: 3 });
            parts.add_neighbours(1, half, Axes { batch: 2, tokens: 3 });
        }
        for (layer, quantity) in whole.keys() {
            let (a, b) = (whole.curve(layer, quantity).unwrap(), parts.curve(layer, quantity).unwrap());
            assert_eq!(a.len(), if quantity == Quantity::Neighbours { 2 } else { 3 });
            for (a, b) in a.iter().zip(b) {
                assert!((a.mean - b.mean).abs() < 1e-12 && (a.variance() - b.variance()).abs() < 1e-12);
            }
        }
    }
}
