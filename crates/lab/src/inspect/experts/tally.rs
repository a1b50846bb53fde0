//! Counts of tokens per expert.

use std::collections::BTreeMap;

use serde::Serialize;

/// Choices of one router over many batches.
#[derive(Clone, Debug)]
pub struct Tally {
    experts: usize,
    active: usize,
    /// Number of routed positions.
    tokens: u64,
    /// (Position, slot) pairs per expert.
    load: Vec<u64>,
    /// The same, per token id.
    by_token: BTreeMap<i32, Vec<u64>>,
    /// Sums over batches of per-position figures, weighted by positions: router entropy, balance loss, z-loss.
    sums: [f64; 3],
}

/// How evenly a router spreads its tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Load {
    /// Experts `E`.
    pub experts: usize,
    /// Experts per token, `k`.
    pub active: usize,
    /// Number of routed positions.
    pub tokens: u64,
    /// Fraction of (position, slot) pairs per expert, summing to 1.
    pub shares: Vec<f64>,
    /// Mean entropy of the router's distribution in nats, at most `ln E`.
    pub entropy: f64,
    /// Mean balance loss: 1 when balanced, `E / k` when collapsed.
    pub balance: f64,
    /// Mean z-loss.
    pub z: f64,
}

/// A token that an expert sees more often than by chance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Preference {
    /// The token.
    pub token: i32,
    /// Pointwise mutual information with the expert, `ln p(token, expert) / (p(token) p(expert))`, in nats.
    pub information: f64,
    /// Positions with this token that the expert saw.
    pub seen: u64,
}

impl Tally {
    /// An empty tally for a router with `active` of `experts` experts.
    pub fn new(experts: usize, active: usize) -> Self {
        Self { experts, active, tokens: 0, load: vec![0; experts], by_token: BTreeMap::new(), sums: [0.0; 3] }
    }

    /// Adds a batch: `chosen [positions, k]` of `tokens [positions]`, `None` for padding; `means` over its real
    /// positions of entropy, balance loss and z-loss.
    ///
    /// # Panics
    /// If there are not `k` choices per token, or an expert does not exist.
    pub fn add(&mut self, chosen: &[u32], tokens: &[Option<i32>], means: [f64; 3]) {
        assert_eq!(chosen.len(), tokens.len() * self.active, "choices and tokens disagree");
        let before = self.tokens;
        for (slots, token) in chosen.chunks_exact(self.active).zip(tokens) {
            let Some(token) = *token else { continue };
            self.tokens += 1;
            let own = self.by_token.entry(token).or_insert_with(|| vec![0; self.experts]);
            for &expert in slots {
                self.load[expert as usize] += 1;
                own[expert as usize] += 1;
            }
        }
        let positions = (self.tokens - before) as f64;
        self.sums.iter_mut().zip(means).for_each(|(sum, mean)| *sum += positions * mean);
    }

    /// How evenly tokens are spread.
    pub fn load(&self) -> Load {
        let pairs = (self.tokens * self.active as u64) as f64;
        let [entropy, balance, z] = self.sums.map(|sum| sum / self.tokens as f64);
        Load {
            experts: self.experts,
            active: self.active,
            tokens: self.tokens,
            shares: self.load.iter().map(|count| *count as f64 / pairs).collect(),
            entropy,
            balance,
            z,
        }
    }

    /// Mutual information of token and expert over (position, slot) pairs, in nats: how much the token says of where it goes.
    /// Less what chance gives counts like these, `(T - 1)(E - 1) / 2 pairs` for `T` tokens (Miller 1955).
    pub fn information(&self) -> f64 {
        let pairs = (self.tokens * self.active as u64) as f64;
        let of_token = |counts: &Vec<u64>| -> f64 {
            let all = counts.iter().sum::<u64>() as f64;
            let seen = counts.iter().zip(&self.load).filter(|(seen, _)| **seen > 0);
            seen.map(|(seen, load)| *seen as f64 * (*seen as f64 * pairs / (all * *load as f64)).ln()).sum()
        };
        let chance = self.by_token.len().saturating_sub(1) * (self.experts - 1);
        (self.by_token.values().map(of_token).sum::<f64>() - 0.5 * chance as f64) / pairs
    }

    /// For each expert its `most` preferred tokens among those that occur at least `least` times; ties by frequency.
    pub fn preferences(&self, most: usize, least: u64) -> Vec<Vec<Preference>> {
        let pairs = (self.tokens * self.active as u64) as f64;
        let one = |expert: usize| {
            let seen_by = self.load[expert] as f64;
            let mut all: Vec<Preference> = self
                .by_token
                .iter()
                .map(|(token, counts)| (token, counts[expert], counts.iter().sum::<u64>()))
                .filter(|&(_, seen, all)| seen > 0 && all >= least * self.active as u64)
                .map(|(&token, seen, all)| Preference {
                    token,
                    information: (seen as f64 * pairs / (all as f64 * seen_by)).ln(),
                    seen,
                })
                .collect();
            let order = |a: &Preference, b: &Preference| b.information.total_cmp(&a.information);
            all.sort_by(|a, b| order(a, b).then(b.seen.cmp(&a.seen)).then(a.token.cmp(&b.token)));
            all.truncate(most);
            all
        };
        (0..self.experts).map(one).collect()
    }
}

impl Load {
    /// The smallest and the largest share, times the number of experts: 1 and 1 when balanced.
    pub fn extremes(&self) -> (f64, f64) {
        let ends = self.shares.iter().fold((f64::INFINITY, 0.0f64), |(low, high), x| (low.min(*x), high.max(*x)));
        (ends.0 * self.experts as f64, ends.1 * self.experts as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_information_of_a_small_table() {
        let mut tally = Tally::new(3, 2);
        // Token 5 always goes to experts 0 and 1, token 7 to 0 and 2 or 1 and 2.
        tally.add(&[0, 1, 1, 0, 0, 1], &[Some(5), Some(5), None], [1.0, 1.5, 0.25]);
        tally.add(&[0, 2, 2, 1], &[Some(7), Some(7)], [0.5, 0.5, 0.75]);
        let load = tally.load();
        assert_eq!((load.tokens, load.shares.clone()), (4, vec![3.0 / 8.0, 3.0 / 8.0, 2.0 / 8.0]));
        assert_eq!((load.entropy, load.balance, load.z), (0.75, 1.0, 0.5));
        assert_eq!(load.extremes(), (0.75, 1.125));
        let preferred = tally.preferences(2, 1);
        // p(5, 0) = 2/8, p(5) = 4/8, p(0) = 3/8; p(7, 0) = 1/8.
        let information: Vec<f64> = preferred[0].iter().map(|p| p.information).collect();
        assert_eq!(preferred[0].iter().map(|p| p.token).collect::<Vec<_>>(), [5, 7]);
        assert!((information[0] - (4.0f64 / 3.0).ln()).abs() < 1e-12);
        assert!((information[1] - (2.0f64 / 3.0).ln()).abs() < 1e-12);
        assert_eq!(preferred[2].len(), 1);
        assert!((preferred[2][0].information - 2.0f64.ln()).abs() < 1e-12 && preferred[2][0].seen == 2);
        assert!(tally.preferences(2, 3).iter().all(Vec::is_empty));
        // Of 8 pairs: twice 2 of token 5, twice 1 and once 2 of token 7; 1 x 2 / 16 by chance.
        let by_hand = 0.5 * (4.0f64 / 3.0).ln() + 0.25 * (2.0f64 / 3.0).ln() + 0.25 * 2.0f64.ln() - 0.125;
        assert!((tally.information() - by_hand).abs() < 1e-12);
    }
}
