//! Assignment of items to batches: the order of an epoch.

use rand::seq::SliceRandom;

use super::Streams;

/// A random part of the items `0 .. count`, of which there are two or more, to hold out for validation, and the rest for
/// training; each has at least one, in order.
pub(super) fn hold_out(count: usize, fraction: f64, seed: u64) -> [Vec<usize>; 2] {
    let mut held: Vec<usize> = (0..count).collect();
    held.shuffle(&mut Streams::new(seed, "validation split").at(0));
    let mut rest = held.split_off(((count as f64 * fraction).round() as usize).clamp(1, count - 1));
    held.sort_unstable();
    rest.sort_unstable();
    [held, rest]
}

/// Endless batches over items `0 .. count`: the batch of step `t` is a pure function of the items, the seed and `t`.
///
/// An epoch shuffles the items, sorts by length within pools of batches, cuts them into batches and shuffles those. The
/// items that do not fill a last batch are dropped, different ones in each epoch; fewer items than a batch are one
/// batch.
#[derive(Clone, Debug)]
pub(super) struct EpochOrder {
    count: usize,
    rows: usize,
    pool: usize,
    streams: Streams,
    /// The order of the last requested epoch.
    order: Option<(u64, Vec<usize>)>,
}

impl EpochOrder {
    /// Batches of `rows` of `count` items, both at least 1, sorted by length in pools of `pool` batches.
    pub fn new(count: usize, rows: usize, pool: usize, streams: Streams) -> Self {
        Self { count, rows, pool, streams, order: None }
    }

    /// Batches per epoch, at least 1.
    pub fn steps_per_epoch(&self) -> u64 {
        (self.count / self.rows).max(1) as u64
    }

    /// Items of the batch of step `step`, counted from 0 over all epochs. Sorts by `length` once per epoch.
    pub fn batch<K: Ord>(&mut self, step: u64, length: impl Fn(usize) -> K) -> &[usize] {
        let (epoch, place) = (step / self.steps_per_epoch(), (step % self.steps_per_epoch()) as usize);
        if self.order.as_ref().is_none_or(|(known, _)| *known != epoch) {
            self.order = Some((epoch, self.epoch(epoch, length)));
        }
        let order = self.order.as_ref().map_or(&[][..], |(_, order)| order);
        let start = place * self.rows;
        &order[start..(start + self.rows).min(order.len())]
    }

    /// The items of an epoch, batch by batch.
    fn epoch<K: Ord>(&self, epoch: u64, length: impl Fn(usize) -> K) -> Vec<usize> {
        let mut stream = self.streams.at(epoch);
        let mut items: Vec<usize> = (0..self.count).collect();
        items.shuffle(&mut stream);
        items.truncate((self.steps_per_epoch() as usize).saturating_mul(self.rows));
        for pool in items.chunks_mut(self.rows.saturating_mul(self.pool)) {
            // Stable: equal lengths stay in random order.
            pool.sort_by_key(|&i| length(i));
        }
        let mut batches: Vec<&[usize]> = items.chunks(self.rows).collect();
        batches.shuffle(&mut stream);
        batches.concat()
    }
}
