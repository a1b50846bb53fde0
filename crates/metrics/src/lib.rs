#![doc = include_str!("../README.md")]

mod accuracy;
mod bleu;
mod classification;
mod correlation;
mod ranking;
mod rouge;

pub use accuracy::{accuracy, bits, count_correct, majority_rate, perplexity, predicted};
pub use bleu::{BLEU_SIGNATURE, Bleu, Unpaired, tokenize_13a};
pub use classification::Confusion;
pub use correlation::{Correlation, kendall, pearson, spearman};
pub use ranking::{area_under_curve, average_precision, ndcg, reciprocal_rank};
pub use rouge::{Overlap, Rouge};

#[cfg(test)]
#[track_caller]
fn close(seen: f64, expected: f64) {
    assert!((seen - expected).abs() < 1e-12, "{seen}, expected {expected}");
}
