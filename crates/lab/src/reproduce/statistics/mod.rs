//! What decides a clause: estimates with intervals from independent units, and how many units to look at.
//!
//! The unit is what was drawn or trained independently: a seed, a draw, a decoder. Matrices of one model, or layers, are
//! not independent, and count as one unit together. Where there is one pretrained model, its queries, images or heads are
//! the units, and the verdict is on that model.

mod estimate;
mod sequential;

pub use estimate::{Estimate, SEEDS};
pub use sequential::Looks;

/// Chance of a wrong verdict on an entry.
const WRONG: f64 = 0.05;

/// Confidence of the intervals of an entry with this many clauses of the paper: the more there are, the more likely it is
/// that one of them is missed by chance, and one is enough to refute a paper. So the chance is shared (Bonferroni).
pub fn confidence(clauses: usize) -> f64 {
    1.0 - WRONG / clauses.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clauses_share_the_chance_of_a_wrong_verdict() {
        assert_eq!([confidence(1), confidence(5)], [0.95, 0.99]);
    }
}
