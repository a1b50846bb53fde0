//! Batches of impressions: titles, histories and what was offered.

use std::collections::{HashMap, hash_map::Entry};

use rand::seq::SliceRandom;
use regard_nn::models::{Readers, TokenBatch};

use super::log::{ImpressionLog, ImpressionPart};
use crate::data::{Batch, Batches, DataError, SplitBatches, Streams, order::EpochOrder, padded};

/// The titles that a batch names, each once.
#[derive(Debug, Default)]
pub(crate) struct NewsRows {
    rows: HashMap<u32, i32>,
    /// Pieces of news, by row.
    pub news: Vec<u32>,
}

impl NewsRows {
    /// The row of a piece of news.
    pub fn of(&mut self, news: u32) -> i32 {
        match self.rows.entry(news) {
            Entry::Occupied(row) => *row.get(),
            Entry::Vacant(place) => {
                self.news.push(news);
                *place.insert(self.news.len() as i32 - 1)
            }
        }
    }
}

/// Tokens of the titles of `news`.
pub(crate) fn titles(log: &ImpressionLog, news: &[u32]) -> TokenBatch {
    rectangle(news.iter().map(|&news| log.title(news as usize).to_vec()).collect())
}

/// Histories as rows of the titles that are numbered by `rows`.
pub(crate) fn histories<'h>(histories: impl Iterator<Item = &'h [u32]>, rows: &mut NewsRows) -> TokenBatch {
    rectangle(histories.map(|history| history.iter().map(|&news| rows.of(news)).collect()).collect())
}

/// Lists padded with 0 to the longest, at least to one place.
fn rectangle(lists: Vec<Vec<i32>>) -> TokenBatch {
    let lengths: Vec<usize> = lists.iter().map(Vec::len).collect();
    let length = lengths.iter().copied().max().unwrap_or(0).max(1);
    let mut ids = vec![0; lists.len() * length];
    for (row, list) in ids.chunks_exact_mut(length).zip(&lists) {
        row[..list.len()].copy_from_slice(list);
    }
    padded(ids, &lengths, length)
}

/// A batch of impressions with what each offers, equally many, and the place of the click.
fn gather(log: &ImpressionLog, items: &[(usize, Vec<u32>, i32)]) -> Batch {
    let mut rows = NewsRows::default();
    // What was offered comes first, so that row 0, which padding names, is there even if nobody has read anything.
    let candidates = items.iter().flat_map(|(_, offered, _)| offered).map(|&news| rows.of(news)).collect();
    let histories = histories(items.iter().map(|(item, ..)| log.impression(*item).history), &mut rows);
    Batch {
        tokens: titles(log, &rows.news),
        targets: items.iter().map(|(.., place)| *place).collect(),
        source: None,
        readers: Some(Readers { histories, candidates }),
    }
}

pub(super) fn training<'a>(
    log: &'a ImpressionLog,
    clicks: &'a [[u32; 2]],
    negatives: usize,
    seed: u64,
    rows: usize,
) -> Result<Batches<'a>, DataError> {
    check_rows(rows)?;
    let mut order = EpochOrder::new(clicks.len(), rows, 1, Streams::new(seed, "click order"));
    let draws = Streams::new(seed, "news not clicked on");
    Ok(Box::new(move |index| {
        let mut stream = draws.at(index);
        let item = |&click: &usize| {
            let [impression, place] = clicks[click];
            let of = log.impression(impression as usize);
            let mut others: Vec<u32> =
                of.offered.iter().zip(of.clicked).filter(|(_, clicked)| !**clicked).map(|(news, _)| *news).collect();
            others.shuffle(&mut stream);
            let offered = [of.offered[place as usize]].into_iter().chain(others.into_iter().cycle().take(negatives));
            (impression as usize, offered.collect(), 0)
        };
        let items: Vec<_> = order.batch(index, |_| ()).iter().map(item).collect();
        gather(log, &items)
    }))
}

pub(super) fn evaluation(part: ImpressionPart<'_>, rows: usize) -> Result<SplitBatches<'_>, DataError> {
    check_rows(rows)?;
    let ImpressionPart { log, chosen } = part;
    Ok(Box::new(chosen.chunks(rows).map(move |chosen| {
        let offered = |&i: &u32| log.impression(i as usize).offered;
        let most = chosen.iter().map(|i| offered(i).len()).max().unwrap_or(1);
        let item = |i: &u32| {
            let (offered, clicked) = (offered(i), log.impression(*i as usize).clicked);
            let last = offered.last().copied().unwrap_or_default();
            let mut all = offered.to_vec();
            all.resize(most, last);
            (*i as usize, all, clicked.iter().position(|clicked| *clicked).map_or(-1, |place| place as i32))
        };
        gather(log, &chosen.iter().map(item).collect::<Vec<_>>())
    })))
}

/// Refuses batches of nothing.
pub(crate) fn check_rows(rows: usize) -> Result<(), DataError> {
    if rows == 0 {
        return Err(DataError::Value("batches of 0 impressions; expected at least 1".into()));
    }
    Ok(())
}
