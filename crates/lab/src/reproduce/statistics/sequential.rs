//! More draws until the clauses are decided, with the price of looking more than once.

use std::ops::Range;

use crate::reproduce::{Clause, Verdict};

/// Sample sizes at which the sample is looked at.
///
/// Every look is one more chance to be wrong. With `L` looks each has confidence `1 - (1 - c) / L` (Bonferroni), which
/// keeps the chance of any wrong decision within `1 - c` for every statistic, medians and correlations included, whatever
/// the dependence of the looks. Sizes double, so that looks are few and the correction stays small.
#[derive(Clone, Copy, Debug)]
pub struct Looks {
    /// Size at the first look.
    pub first: usize,
    /// Size at the last.
    pub most: usize,
}

impl Looks {
    /// Sizes, each twice the one before; the last is the most.
    fn sizes(self) -> Vec<usize> {
        let doubled = std::iter::successors(Some(self.first.max(1)), |size| Some(2 * size));
        doubled.take_while(|size| *size < self.most).chain([self.most]).collect()
    }

    /// Draws until no clause is open, or to the end: `draw` adds the draws of a range to `sample`, `judge` decides on
    /// the clauses at a confidence, where `confidence` is that of all looks together.
    ///
    /// # Errors
    /// Those of a draw.
    pub fn until_decided<S, E>(
        self,
        confidence: f64,
        sample: &mut S,
        mut draw: impl FnMut(&mut S, Range<usize>) -> Result<(), E>,
        judge: impl Fn(&S, f64) -> Vec<Clause>,
    ) -> Result<Vec<Clause>, E> {
        let sizes = self.sizes();
        let each = 1.0 - (1.0 - confidence) / sizes.len() as f64;
        let (mut drawn, mut clauses) = (0, Vec::new());
        for size in sizes {
            draw(sample, drawn..size)?;
            drawn = size;
            clauses = judge(sample, each);
            if clauses.iter().all(|clause| clause.verdict != Verdict::NotDecided) {
                break;
            }
        }
        Ok(clauses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::Estimate;

    fn run(looks: Looks, shift: f64, seed: u64) -> (usize, Verdict) {
        // Values of a multiplicative generator, even between -0.5 and 0.5.
        let value = |at: usize| {
            let mixed = (seed * 1_000_003 + at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            ((mixed ^ (mixed >> 32)) >> 11) as f64 / (1u64 << 53) as f64 - 0.5 + shift
        };
        let mut sample = Vec::new();
        let draw = |sample: &mut Vec<f64>, range: Range<usize>| {
            sample.extend(range.map(value));
            Ok::<(), ()>(())
        };
        let judge = |sample: &Vec<f64>, confidence| {
            vec![Clause::paper("the mean is positive").above(Estimate::mean(sample, confidence, "draws"), 0.0)]
        };
        let clauses = looks.until_decided(0.95, &mut sample, draw, judge).unwrap();
        (sample.len(), clauses[0].verdict)
    }

    #[test]
    fn draws_stop_once_decided_and_at_the_most() {
        let looks = Looks { first: 8, most: 100 };
        assert_eq!(looks.sizes(), [8, 16, 32, 64, 100]);
        assert_eq!(Looks { first: 8, most: 8 }.sizes(), [8]);
        assert_eq!(run(looks, 2.0, 1), (8, Verdict::Holds));
        assert_eq!(run(looks, -2.0, 1), (8, Verdict::DoesNotHold));
        let far = run(Looks { first: 8, most: 4096 }, 0.1, 1);
        assert!(far.1 == Verdict::Holds && far.0 > 8 && far.0 < 4096, "{far:?}");
    }

    /// Without an effect, at most 5 % of runs may decide anything, however often they look: of 1,000, 50, and three
    /// standard deviations of that, 21.
    #[test]
    fn looking_more_than_once_does_not_find_what_is_not_there() {
        let looks = Looks { first: 8, most: 512 };
        let wrong = (0..1000).filter(|seed| run(looks, 0.0, *seed).1 != Verdict::NotDecided).count();
        assert!(wrong <= 71, "{wrong} of 1,000");
    }
}
