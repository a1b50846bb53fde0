//! Routing: the experts of each token, and the tokens of each expert.

use std::{ops::Range, sync::Arc};

use super::noise::gumbel;
use crate::{Error, Padding, parallel};

/// The choice of `k` experts per token, and its inverse: the assignments sorted by expert.
///
/// An assignment is a pair of token and slot, numbered `token k + slot`. Padded tokens have choices, but belong to no
/// group.
#[derive(Clone, Debug)]
pub struct Routing {
    batch: usize,
    queries: usize,
    experts: usize,
    active: usize,
    /// `[B,N,k]`.
    chosen: Vec<u32>,
    padding: Option<Arc<Padding>>,
    real: usize,
    /// Start of each expert's group in `pairs`, and the end of the last.
    starts: Vec<usize>,
    /// Assignments grouped by expert, in ascending order within each.
    pairs: Vec<u32>,
}

/// Random sampling of a part of the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Number of sampled experts per token; the other slots go to the most probable experts first.
    pub slots: usize,
    /// Random key.
    pub key: u64,
}

/// Tokens per task.
const BLOCK: usize = 256;

impl Routing {
    /// The `active` largest of `logits`, one row of `experts` per token, largest first, ties broken by the lowest
    /// index.
    ///
    /// `sampling` draws without replacement, with the softmax probabilities of the logits: the largest after adding
    /// Gumbel noise (Kool et al. 2019, section 3). `padding` says which tokens are real.
    ///
    /// # Errors
    /// Sizes that do not fit.
    pub fn new<T: Copy + Into<f64> + Sync>(
        logits: &[T],
        [batch, queries, experts]: [usize; 3],
        active: usize,
        sampling: Option<Sampling>,
        padding: Option<Arc<Padding>>,
    ) -> Result<Self, Error> {
        if active == 0 || active > experts {
            return Err(Error::option("moa.active", active, format!("at least 1 and at most {experts}, the experts")));
        }
        Error::check_shape("logits", &[logits.len()], &[batch * queries * experts])?;
        if let Some(padding) = &padding {
            Error::check_shape("query_valid", &[padding.batch(), padding.length()], &[batch, queries])?;
        }
        let tokens = batch * queries;
        if tokens.checked_mul(active).is_none_or(|pairs| u32::try_from(pairs).is_err()) {
            return Err(Error::option("tokens", tokens, format!("at most {}", u32::MAX as usize / active)));
        }
        let mut chosen = vec![0; tokens * active];
        parallel::for_each_part(&mut chosen, BLOCK * active, |block, chosen| {
            let mut best = Vec::with_capacity(active);
            for (t, slots) in (block * BLOCK..).zip(chosen.chunks_exact_mut(active)) {
                choose(&logits[t * experts..(t + 1) * experts], t, sampling, &mut best, slots);
            }
        });
        let mut routing =
            Self { batch, queries, experts, active, chosen, padding, real: 0, starts: Vec::new(), pairs: Vec::new() };
        routing.real = (0..tokens).filter(|t| routing.is_real(*t)).count();
        routing.sort();
        Ok(routing)
    }

    /// Counting sort of the assignments of real tokens by expert; stable.
    fn sort(&mut self) {
        let mut starts = vec![0; self.experts + 1];
        let real = (0..self.tokens()).filter(|t| self.is_real(*t));
        for t in real.clone() {
            self.of(t).iter().for_each(|expert| starts[*expert as usize + 1] += 1);
        }
        for expert in 0..self.experts {
            starts[expert + 1] += starts[expert];
        }
        let mut next = starts.clone();
        let mut pairs = vec![0; starts[self.experts]];
        for t in real {
            for (slot, expert) in self.of(t).iter().enumerate() {
                let place = &mut next[*expert as usize];
                pairs[*place] = (t * self.active + slot) as u32;
                *place += 1;
            }
        }
        (self.starts, self.pairs) = (starts, pairs);
    }

    /// Batch rows `B`.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Queries per batch row `N`.
    pub fn queries(&self) -> usize {
        self.queries
    }

    /// `B N`.
    pub fn tokens(&self) -> usize {
        self.batch * self.queries
    }

    /// Experts `E`.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// Experts per token, `k`.
    pub fn active(&self) -> usize {
        self.active
    }

    /// Tokens that are not padding.
    pub fn real(&self) -> usize {
        self.real
    }

    /// Whether token `t` of `0 .. B N` is not padding.
    #[inline(always)]
    pub fn is_real(&self, t: usize) -> bool {
        self.padding.as_ref().is_none_or(|padding| padding.as_slice()[t] != 0)
    }

    /// The experts of every token, padding included, `[B,N,k]`.
    pub fn chosen(&self) -> &[u32] {
        &self.chosen
    }

    /// The experts of token `t`.
    #[inline(always)]
    pub fn of(&self, t: usize) -> &[u32] {
        &self.chosen[t * self.active..(t + 1) * self.active]
    }

    /// Assignments of an expert, in ascending order.
    pub fn group(&self, expert: usize) -> &[u32] {
        &self.pairs[self.starts[expert]..self.starts[expert + 1]]
    }

    /// The assignments of an expert whose tokens are in `tokens`.
    pub fn group_within(&self, expert: usize, tokens: &Range<usize>) -> &[u32] {
        let group = self.group(expert);
        let before = |token: usize| group.partition_point(|pair| (*pair as usize) < token * self.active);
        &group[before(tokens.start)..before(tokens.end)]
    }

    /// Fraction of assignments per expert: sums to 1, or to 0 without a real token.
    pub fn load(&self) -> Vec<f64> {
        let all = self.pairs.len().max(1) as f64;
        (0..self.experts).map(|expert| self.group(expert).len() as f64 / all).collect()
    }
}

/// Fills `slots` with the experts of token `t`. `best` is scratch.
fn choose<T: Copy + Into<f64>>(
    logits: &[T],
    t: usize,
    sampling: Option<Sampling>,
    best: &mut Vec<(f64, u32)>,
    slots: &mut [u32],
) {
    let drawn = sampling.map_or(0, |sampling| sampling.slots.min(slots.len()));
    let (likeliest, rest) = slots.split_at_mut(slots.len() - drawn);
    // Treat NaN logits as minus infinity.
    let value = |logit: T| {
        let logit: f64 = logit.into();
        if logit.is_nan() { f64::NEG_INFINITY } else { logit }
    };
    largest(logits.iter().map(|logit| value(*logit)), likeliest.len(), best);
    likeliest.iter_mut().zip(&*best).for_each(|(slot, (_, expert))| *slot = *expert);
    if let Some(Sampling { key, .. }) = sampling.filter(|_| drawn > 0) {
        let noisy = logits.iter().enumerate().map(|(expert, logit)| {
            let taken = likeliest.contains(&(expert as u32));
            if taken { f64::NAN } else { value(*logit) + gumbel(key, t, expert) }
        });
        largest(noisy, drawn, best);
        rest.iter_mut().zip(&*best).for_each(|(slot, (_, expert))| *slot = *expert);
    }
}

/// The `count` largest values and their indices, largest first, ties by lowest index; NaN is skipped.
fn largest(values: impl Iterator<Item = f64>, count: usize, best: &mut Vec<(f64, u32)>) {
    best.clear();
    for (place, value) in values.enumerate().filter(|(_, value)| !value.is_nan()) {
        if best.len() == count {
            if best.last().is_none_or(|(last, _)| value <= *last) {
                continue;
            }
            best.pop();
        }
        let at = best.partition_point(|(other, _)| *other >= value);
        best.insert(at, (value, place as u32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routing(logits: &[f32], experts: usize, active: usize) -> Routing {
        Routing::new(logits, [1, logits.len() / experts, experts], active, None, None).unwrap()
    }

    #[test]
    fn the_largest_come_first_and_ties_go_to_the_lowest_index() {
        let logits = [0.0, 3.0, 1.0, 3.0, /**/ 0.0, 0.0, 0.0, 0.0, /**/ -1.0, -2.0, f32::NEG_INFINITY, -0.5];
        let routing = routing(&logits, 4, 3);
        assert_eq!(routing.chosen(), [1, 3, 2, 0, 1, 2, 3, 0, 1]);
        let nothing = self::routing(&[f32::NAN; 4], 4, 2);
        assert_eq!(nothing.chosen(), [0, 1], "numbers or not, every slot has an expert of its own");
    }

    #[test]
    fn groups_hold_the_assignments_of_real_tokens_in_order() {
        let logits = [1.0, 0.0, 0.5, /**/ 0.0, 1.0, 0.5, /**/ 1.0, 0.9, 0.0, /**/ 1.0, 0.0, 0.9];
        let padding = Arc::new(Padding::new(2, 2, vec![1, 1, 0, 1]).unwrap());
        let routing = Routing::new(&logits, [2, 2, 3], 2, None, Some(padding)).unwrap();
        assert_eq!((routing.real(), routing.tokens()), (3, 4));
        let groups = [0, 1, 2].map(|expert| routing.group(expert).to_vec());
        assert_eq!(groups, [vec![0, 6], vec![2], vec![1, 3, 7]]);
        assert_eq!(routing.group_within(2, &(1..3)), [3]);
        assert_eq!(routing.load(), [2.0 / 6.0, 1.0 / 6.0, 0.5]);
    }

    #[test]
    fn draws_follow_the_probabilities_without_replacement() {
        const TOKENS: usize = 20_000;
        let logits: Vec<f32> = (0..TOKENS).flat_map(|_| [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()]).collect();
        let draw = |slots, active, key| {
            let sampling = Some(Sampling { slots, key });
            Routing::new(&logits, [1, TOKENS, 3], active, sampling, None).unwrap()
        };
        let share = |hits: usize| hits as f64 / TOKENS as f64;
        let close = |seen: f64, want: f64| (seen - want).abs() < 4.5 * (want * (1.0 - want) / TOKENS as f64).sqrt();
        let both = draw(2, 2, 1);
        for (pair, want) in [([0, 1], 0.5 * 0.6), ([1, 0], 0.3 * 0.5 / 0.7), ([2, 1], 0.2 * 0.3 / 0.8)] {
            let hits = both.chosen().chunks_exact(2).filter(|chosen| **chosen == pair).count();
            assert!(close(share(hits), want), "{pair:?}: {} instead of {want}", share(hits));
        }
        let second = draw(1, 2, 2);
        assert!(second.chosen().chunks_exact(2).all(|chosen| chosen[0] == 0 && chosen[1] > 0));
        let hits = second.chosen().chunks_exact(2).filter(|chosen| chosen[1] == 1).count();
        assert!(close(share(hits), 0.6), "{}", share(hits));
        assert_eq!(draw(2, 2, 1).chosen(), both.chosen());
        assert_ne!(draw(2, 2, 3).chosen(), both.chosen());
    }

    #[test]
    fn sizes_that_do_not_fit_are_errors() {
        let new =
            |active, padding| Routing::new(&[0.0f32; 6], [1, 2, 3], active, None, padding).unwrap_err().to_string();
        assert!(new(4, None).contains("moa.active is 4, expected at least 1 and at most 3"));
        assert!(new(0, None).contains("moa.active is 0"));
        let padding = Some(Arc::new(Padding::new(1, 3, vec![1; 3]).unwrap()));
        assert!(new(1, padding).contains("query_valid"));
    }
}
