//! One query's row of attention weights, shared by the twins that normalise scores.

use crate::{AttentionShape, Dropout, Mask};

/// Weights proportional to `exp(scores)` that sum to 1, and the log of their denominator.
///
/// If no score is above `-inf`, the weights are 0 and the log is `-inf`.
pub(super) fn normalise(scores: &[f64]) -> (Vec<f64>, f64) {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY {
        return (vec![0.0; scores.len()], max);
    }
    let powers: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f64 = powers.iter().sum();
    (powers.iter().map(|p| p / sum).collect(), max + sum.ln())
}

/// Weights of some keys as a row over all keys.
pub(super) fn dense(keys: usize, seen: &[usize], weights: &[f64]) -> Vec<f64> {
    let mut row = vec![0.0; keys];
    seen.iter().zip(weights).for_each(|(&j, &weight)| row[j] = weight);
    row
}

/// Keys visible to query `i` of batch row `b`: the causal or windowed range without padded keys.
pub(super) fn visible_keys(mask: &Mask, shape: &AttentionShape, b: usize, i: usize) -> Vec<usize> {
    let real = mask.valid_row(b);
    mask.visible(i, shape.queries, shape.keys).filter(|&j| real.is_none_or(|row| row[j] != 0)).collect()
}

/// Dropout factor of each weight of row `row = (b H + h) N + i`; 1 without dropout.
pub(super) fn dropout_factors(dropout: Option<Dropout>, row: usize, keys: &[usize]) -> Vec<f64> {
    keys.iter().map(|&j| dropout.map_or(1.0, |drop| f64::from(drop.factor(row as u64, j)))).collect()
}

/// `out_i = sum_j P_ij v_j` over the keys of one row, `P` the weights after dropout; adds to `out`.
pub(super) fn weigh(weights: &[f64], kept: &[f64], values: &[&[f64]], out: &mut [f64]) {
    for ((a, factor), value) in weights.iter().zip(kept).zip(values) {
        for (o, x) in out.iter_mut().zip(*value) {
            *o += a * factor * x;
        }
    }
}

/// Gradient of one row with respect to its scores, `G_ij = A_ij (dA_ij - sum_j A_ij dA_ij)` with
/// `dA_ij = kept_ij dO_i.v_j`: the derivative of a softmax, with the dropout factors constant.
pub(super) fn score_gradient(weights: &[f64], kept: &[f64], values: &[&[f64]], grad_out: &[f64]) -> Vec<f64> {
    let grad_weights: Vec<f64> = values.iter().zip(kept).map(|(v, factor)| factor * dot(grad_out, v)).collect();
    let mean = dot(weights, &grad_weights);
    weights.iter().zip(&grad_weights).map(|(a, g)| a * (g - mean)).collect()
}

/// Dot product.
pub(super) fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(a, b)| a * b).sum()
}

/// `y += factor * x`.
pub(super) fn add_scaled(y: &mut [f64], factor: f64, x: &[f64]) {
    for (a, b) in y.iter_mut().zip(x) {
        *a += factor * b;
    }
}
