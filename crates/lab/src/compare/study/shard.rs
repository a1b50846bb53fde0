//! Cells dealt to several processes or machines.

use std::{cmp::Reverse, str::FromStr};

use regard_tasks::run::RunConfig;

use super::{Cell, Study};
use crate::cost::{Count, ModelCost, ModelSizes, Run};

/// One of several parts of a study. All parts together hold every cell once, whoever deals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Which part, from 1.
    pub number: usize,
    /// How many parts.
    pub of: usize,
}

/// More parts than any study has cells.
const MOST: usize = 100_000;

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match parts {
            Some((number, of)) if (1..=of).contains(&number) && of <= MOST => Ok(Self { number, of }),
            _ => Err(format!("is {text}, expected I/N, part I of N, as in 1/4 (from 1/1 to {MOST}/{MOST})")),
        }
    }
}

impl Study {
    /// The cells of a part: the most expensive first, each to the part that has least to do so far, by the operations of its
    /// training (the cells of a model that cannot be counted are free). A function of the study alone.
    pub fn dealt(&self, shard: Option<Shard>) -> Vec<Cell<'_>> {
        let Some(shard) = shard else { return self.cells().collect() };
        let costs: Vec<Count> = self.groups.iter().map(|group| group.config().map_or(0, |c| operations(&c))).collect();
        let groups = self.groups.iter().zip(costs);
        let cells: Vec<(Count, Cell)> = groups
            .flat_map(|(group, cost)| group.seeds.iter().map(move |&seed| (cost, Cell { group, seed })))
            .collect();
        let mut order: Vec<usize> = (0..cells.len()).collect();
        order.sort_by_key(|&cell| (Reverse(cells[cell].0), cell));
        // Work and number of cells of each part: the number decides where work is unknown.
        let mut parts = vec![(0 as Count, 0usize); shard.of];
        let mut own = Vec::new();
        for cell in order {
            let (part, work) = parts.iter_mut().enumerate().min_by_key(|(_, work)| **work).expect("at least one part");
            *work = (work.0.saturating_add(cells[cell].0), work.1 + 1);
            if part + 1 == shard.number {
                own.push(cell);
            }
        }
        own.sort_unstable();
        own.into_iter().map(|cell| cells[cell].1).collect()
    }
}

/// Multiply-adds of the forward passes of a training run on sequences of the longest length.
fn operations(config: &RunConfig) -> Count {
    let length = config.task.options().shape().max_length;
    let cost = ModelCost::of(&ModelSizes::of(config, None, length), Run { batch: 1, length, decoded: 0 });
    let sequences =
        (config.train.steps as Count).saturating_mul((config.train.batch * config.train.accumulate) as Count);
    cost.map_or(0, |cost| cost.total().multiply_adds.saturating_mul(sequences))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read() {
        assert_eq!("2/3".parse(), Ok(Shard { number: 2, of: 3 }));
        for wrong in ["0/3", "4/3", "3", "a/b", "1/0", "-1/2", "1/2/3", ""] {
            assert!(wrong.parse::<Shard>().unwrap_err().contains("expected I/N"), "{wrong}");
        }
    }
}
