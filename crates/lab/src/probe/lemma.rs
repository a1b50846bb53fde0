//! Theory of a decoder at initialisation (arXiv 2305.13571, lemmas 1 to 4), as printed and corrected.
//!
//! Inputs `x_m ~ N(0, s^2 I)` of width `d`, normalised before attention of `H` heads; every weight has variance `s^2`.

use serde::Serialize;

/// Sizes in the lemmas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lemmas {
    /// Width `d`.
    pub width: usize,
    /// Heads `H`.
    pub heads: usize,
    /// Length `L`.
    pub length: usize,
    /// Standard deviation `s` of inputs and weights.
    pub deviation: f64,
    /// Whether a query sees only keys up to its own position.
    pub causal: bool,
}

/// A variance as printed in the paper and corrected.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Constant {
    /// As printed.
    pub printed: f64,
    /// Corrected.
    pub corrected: f64,
}

impl Constant {
    fn both(value: f64) -> Self {
        Self { printed: value, corrected: value }
    }
}

impl Lemmas {
    fn d(&self) -> f64 {
        self.width as f64
    }

    fn s2(&self) -> f64 {
        self.deviation.powi(2)
    }

    /// Number of keys visible to query `m`, from 1.
    fn seen(&self, m: usize) -> f64 {
        if self.causal { m as f64 } else { self.length as f64 }
    }

    /// Lemma 1: `d s^2` for every element of queries, keys and values.
    pub fn projection(&self) -> Constant {
        Constant::both(self.d() * self.s2())
    }

    /// Lemma 2: products `q.k`. A head has `D = d / H` channels of variance `d s^2` each, so that the variance is
    /// `D (d s^2)^2 = d^3 s^4 / H`; the paper prints `d^3 s^4 / H^2`.
    pub fn product(&self) -> Constant {
        let corrected = self.d().powi(3) * self.s2().powi(2) / self.heads as f64;
        Constant { printed: corrected / self.heads as f64, corrected }
    }

    /// The same after the scale `1 / sqrt(D)`: `d^2 s^4`; printed `d^2 s^4 / H`.
    pub fn logit(&self) -> Constant {
        let corrected = (self.d() * self.s2()).powi(2);
        Constant { printed: corrected / self.heads as f64, corrected }
    }

    /// Head outputs at position `m`, from 1: the mean of `m` values.
    pub fn heads(&self, m: usize) -> f64 {
        self.d() * self.s2() / self.seen(m)
    }

    /// Lemma 3: `o_m` after the output projection, `d^2 s^4 / m`; `d^2 s^4 / L` everywhere if attention is
    /// bidirectional.
    pub fn output(&self, m: usize) -> f64 {
        self.logit().corrected / self.seen(m)
    }

    /// [`Lemmas::output`] with logits of variance `v = d^2 s^4` instead of uniform attention:
    /// `d^2 s^4 ((1 + (e^v - 1)(1 - 1/n)) / n + (v / d)(1 - 1/n))` for `n` keys.
    ///
    /// The first term is the sum of squared weights of log-normal scores. The second does not decrease: values and keys
    /// come from the same tokens, so that the weighted mean of values is biased towards `W_v W_k^T q / sqrt(D)`, of
    /// variance `s^2 v` per element. Valid for `v` well below 1.
    pub fn output_of_spread_logits(&self, m: usize) -> f64 {
        let (n, v) = (self.seen(m), self.logit().corrected);
        let others = 1.0 - 1.0 / n;
        v * ((1.0 + v.exp_m1() * others) / n + v / self.d() * others)
    }

    /// After the residual addition: `s^2 + d^2 s^4 / m`.
    pub fn residual(&self, m: usize) -> f64 {
        self.s2() + self.output(m)
    }

    /// Lemma 4: variance of a channel after the norm, `(m s^2 + w) / (m s^2 + d^2 s^4)`, where `w` is the squared norm
    /// of the channel's row of `W_o W_v`.
    pub fn channel(&self, m: usize, w: f64) -> f64 {
        let inputs = self.seen(m) * self.s2();
        (inputs + w) / (inputs + self.logit().corrected)
    }
}

/// Slope of a least-squares line through the points.
pub fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0 / count, sum.1 + point.1 / count));
    let up: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    up / points.iter().map(|point| (point.0 - x).powi(2)).sum::<f64>()
}

/// Positions from 1 to `length`, an eighth of an octave apart except for the first few, including the last.
pub fn spaced_positions(length: usize) -> Vec<usize> {
    let mut positions: Vec<usize> =
        (0..).map(|step| (f64::from(step) / 8.0).exp2().round() as usize).take_while(|m| *m < length).collect();
    positions.push(length);
    positions.dedup();
    positions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_of_the_papers_setting() {
        let lemmas = Lemmas { width: 768, heads: 12, length: 512, deviation: 0.02, causal: true };
        let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-12, "{a} {b}");
        close(lemmas.projection().corrected, 0.3072);
        close(lemmas.logit().corrected, 0.3072 * 0.3072);
        close(lemmas.logit().printed, 0.3072 * 0.3072 / 12.0);
        close(lemmas.product().corrected, 64.0 * 0.3072 * 0.3072);
        close(lemmas.product().printed, 64.0 / 12.0 * 0.3072 * 0.3072);
        close(lemmas.output(512), 0.3072 * 0.3072 / 512.0);
        close(lemmas.output_of_spread_logits(1), lemmas.output(1));
        close(lemmas.channel(7, lemmas.logit().corrected), 1.0);
        let both_ways = Lemmas { causal: false, ..lemmas };
        close(both_ways.output(1), both_ways.output(512));
    }

    #[test]
    fn slopes_and_positions() {
        assert!((slope(&[(0.0, 3.0), (1.0, 1.0), (2.0, -1.0)]) + 2.0).abs() < 1e-12);
        let positions = spaced_positions(512);
        assert_eq!(positions[..4], [1, 2, 3, 4]);
        assert_eq!(positions.last(), Some(&512));
        assert!(positions.is_sorted_by(|a, b| a < b) && positions.len() < 70, "{positions:?}");
        assert_eq!(spaced_positions(1), [1]);
    }
}
