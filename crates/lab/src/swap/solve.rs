//! The choice of one candidate per group with the least predicted loss within a budget: a knapsack of several choices.
//!
//! A budget of memory is met by dynamic programming over shares of it, costs rounded up: the result fits, and is the best
//! of all whose rounded costs fit. A budget of time joins by a multiplier: time is priced into the loss at the lowest price at
//! which the result keeps to it.

/// What a candidate costs in a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Predicted change of the loss, at least 0.
    pub loss: f64,
    /// Bytes of decode state.
    pub bytes: f64,
    /// Seconds of attention.
    pub seconds: f64,
}

/// What all groups may cost together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Bytes of decode state.
    pub bytes: Option<f64>,
    /// Seconds of attention.
    pub seconds: Option<f64>,
}

/// Shares that a budget of memory is cut into, at least: groups that cost the same each take a whole number of them.
const SHARES: usize = 4096;

/// Halvings of the interval of prices.
const HALVINGS: usize = 40;

/// The candidate of each group; `None` where no choice keeps to the limits, or none was found that does.
pub fn solve(groups: &[Vec<Choice>], limits: Limits) -> Option<Vec<usize>> {
    let total = |chosen: &[usize], of: fn(&Choice) -> f64| -> f64 {
        groups.iter().zip(chosen).map(|(group, at)| of(&group[*at])).sum()
    };
    let free = cheapest(groups, limits.bytes, 0.0)?;
    let Some(seconds) = limits.seconds else { return Some(free) };
    let fits = |chosen: &[usize]| total(chosen, |choice| choice.seconds) <= seconds;
    if fits(&free) {
        return Some(free);
    }
    let loss: f64 = groups.iter().flatten().map(|choice| choice.loss).fold(0.0, f64::max);
    let shortest =
        groups.iter().flatten().map(|choice| choice.seconds).filter(|s| *s > 0.0).fold(f64::INFINITY, f64::min);
    let (mut low, mut high) = (0.0, 1.0 + 1e3 * loss / shortest);
    let mut best = cheapest(groups, limits.bytes, high).filter(|chosen| fits(chosen))?;
    for _ in 0..HALVINGS {
        let price = 0.5 * (low + high);
        match cheapest(groups, limits.bytes, price).filter(|chosen| fits(chosen)) {
            Some(chosen) => {
                if total(&chosen, |choice| choice.loss) <= total(&best, |choice| choice.loss) {
                    best = chosen;
                }
                high = price;
            }
            None => low = price,
        }
    }
    Some(best)
}

/// The choice of the least loss plus `price` times seconds within a budget of bytes.
fn cheapest(groups: &[Vec<Choice>], bytes: Option<f64>, price: f64) -> Option<Vec<usize>> {
    let value = |choice: &Choice| choice.loss + price * choice.seconds;
    let Some(bytes) = bytes else {
        let best =
            |group: &Vec<Choice>| (0..group.len()).min_by(|a, b| value(&group[*a]).total_cmp(&value(&group[*b])));
        return groups.iter().map(best).collect();
    };
    let all = SHARES.next_multiple_of(groups.len().max(1));
    let shares = |choice: &Choice| match choice.bytes {
        0.0 => 0,
        cost if cost > bytes => usize::MAX,
        cost => (cost / bytes * all as f64 * (1.0 - 1e-12)).ceil() as usize,
    };
    // best[s]: the least value of the groups so far in at most s shares.
    let mut best = vec![0.0; all + 1];
    let mut chosen = Vec::with_capacity(groups.len());
    for group in groups {
        let mut next = vec![f64::INFINITY; all + 1];
        let mut at = vec![usize::MAX; all + 1];
        for (number, choice) in group.iter().enumerate() {
            let cost = shares(choice);
            for s in cost..=all {
                let total = best[s - cost] + value(choice);
                if total < next[s] {
                    (next[s], at[s]) = (total, number);
                }
            }
        }
        best = next;
        chosen.push(at);
    }
    let mut left = all;
    let mut result = vec![0; groups.len()];
    for (group, at) in chosen.iter().enumerate().rev() {
        let number = at[left];
        if number == usize::MAX {
            return None;
        }
        result[group] = number;
        left -= shares(&groups[group][number]);
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use regard_kernels::random::{bits, substream};

    /// Groups of numbers between 0 and 1; bytes are whole shares of 5 groups, so that rounding changes nothing.
    fn drawn(seed: u64, groups: usize, choices: usize) -> Vec<Vec<Choice>> {
        let number = |group: usize, choice: usize, which: u64| {
            let key = substream(substream(seed, group as u64), which);
            f64::from(bits(key, choice as u32) % 50) / 50.0
        };
        let choice = |group, at| Choice {
            loss: number(group, at, 0),
            bytes: number(group, at, 1) * SHARES as f64,
            seconds: number(group, at, 2),
        };
        (0..groups).map(|group| (0..choices).map(|at| choice(group, at)).collect()).collect()
    }

    /// All choices that keep to the limits, the best of them.
    fn by_force(groups: &[Vec<Choice>], limits: Limits) -> Option<f64> {
        let count = groups.iter().map(Vec::len).product::<usize>();
        let mut best = None::<f64>;
        for mut number in 0..count {
            let mut sum = Choice { loss: 0.0, bytes: 0.0, seconds: 0.0 };
            for group in groups {
                let choice = group[number % group.len()];
                number /= group.len();
                sum = Choice {
                    loss: sum.loss + choice.loss,
                    bytes: sum.bytes + choice.bytes,
                    seconds: sum.seconds + choice.seconds,
                };
            }
            let within = |sum: f64, limit: Option<f64>| limit.is_none_or(|limit| sum <= limit * (1.0 + 1e-12));
            let fits = within(sum.bytes, limits.bytes) && within(sum.seconds, limits.seconds);
            if fits && best.is_none_or(|best| sum.loss < best) {
                best = Some(sum.loss);
            }
        }
        best
    }

    fn loss(groups: &[Vec<Choice>], chosen: &[usize]) -> f64 {
        groups.iter().zip(chosen).map(|(group, at)| group[*at].loss).sum()
    }

    #[test]
    fn one_budget_is_solved_as_by_trying_everything() {
        for seed in 0..40 {
            let groups = drawn(seed, 5, 4);
            for share in [0.2, 0.91, 2.0, 4.0] {
                let limits = Limits { bytes: Some(share * SHARES as f64), seconds: None };
                // A budget of share shares: costs are whole numbers of 1/50 of it only where share is 1.
                let exact = by_force(&groups, limits);
                let found = solve(&groups, limits).map(|chosen| loss(&groups, &chosen));
                match (found, exact) {
                    (Some(found), Some(exact)) => {
                        assert!(found >= exact - 1e-9 && found <= exact + 0.05, "{found} {exact}")
                    }
                    (found, exact) => assert_eq!(found.is_some(), exact.is_some()),
                }
            }
            let limits = Limits { bytes: Some(SHARES as f64), seconds: None };
            let found = solve(&groups, limits).map(|chosen| loss(&groups, &chosen));
            assert_eq!(found.map(|x| (x * 1e6).round()), by_force(&groups, limits).map(|x| (x * 1e6).round()));
        }
    }

    #[test]
    fn two_budgets_are_kept_and_little_is_lost() {
        let mut lost = 0.0;
        for seed in 0..40 {
            let groups = drawn(seed, 6, 4);
            let limits = Limits { bytes: Some(2.0 * SHARES as f64), seconds: Some(2.0) };
            let Some(chosen) = solve(&groups, limits) else { continue };
            let sum =
                |of: fn(&Choice) -> f64| groups.iter().zip(&chosen).map(|(group, at)| of(&group[*at])).sum::<f64>();
            assert!(sum(|c| c.bytes) <= limits.bytes.unwrap() && sum(|c| c.seconds) <= limits.seconds.unwrap());
            lost += loss(&groups, &chosen) - by_force(&groups, limits).expect("the found one");
        }
        assert!(lost / 40.0 < 0.1, "{}", lost / 40.0);
    }

    #[test]
    fn what_fills_the_budget_in_any_number_of_groups_is_found() {
        for groups in [1, 7, 72, 90] {
            let choice = Choice { loss: 1.0, bytes: 1.0 / 3.0, seconds: 0.0 };
            let bytes = Some(choice.bytes * groups as f64);
            assert_eq!(solve(&vec![vec![choice]; groups], Limits { bytes, seconds: None }), Some(vec![0; groups]));
        }
    }

    #[test]
    fn a_budget_that_nothing_keeps_to_has_no_solution() {
        let groups = vec![vec![Choice { loss: 0.0, bytes: 10.0, seconds: 1.0 }]];
        assert_eq!(solve(&groups, Limits { bytes: Some(9.0), seconds: None }), None);
        assert_eq!(solve(&groups, Limits { bytes: None, seconds: Some(0.5) }), None);
        assert_eq!(solve(&groups, Limits::default()), Some(vec![0]));
    }
}
