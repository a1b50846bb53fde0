//! Batches cut into parts.

use std::{collections::HashMap, ops::Range, sync::Arc};

use regard_kernels::Padding;
use regard_nn::models::{Readers, TokenBatch};

use super::Batch;

impl Batch {
    /// Part `number` of `of`: sequences in order, equally many but for one, each with `rows` rows; `None` where there is none.
    /// Of readers, with the titles that they name.
    pub(crate) fn part(&self, number: usize, of: usize, rows: usize) -> Option<Self> {
        let items = self.readers.as_ref().map_or(self.tokens.batch / rows, |readers| readers.histories.batch);
        // Rounded up, so that the first part has some.
        let border = |part: usize| (part * items).div_ceil(of);
        let own = border(number)..border(number + 1);
        if own.is_empty() {
            return None;
        }
        let each = self.targets.len() / items;
        let targets = self.targets[own.start * each..own.end * each].into();
        if let Some(readers) = &self.readers {
            let (tokens, readers) = read_by(&self.tokens, readers, own, items);
            return Some(Self { tokens, targets, source: None, readers: Some(readers) });
        }
        let chosen = |tokens: &TokenBatch| select(tokens, own.start * rows..own.end * rows);
        Some(Self { tokens: chosen(&self.tokens), targets, source: self.source.as_ref().map(chosen), readers: None })
    }
}

/// Rows of a batch.
fn select(tokens: &TokenBatch, rows: impl IntoIterator<Item = usize>) -> TokenBatch {
    let length = tokens.length;
    let rows: Vec<usize> = rows.into_iter().collect();
    let of = |all: &[i32]| rows.iter().flat_map(|row| &all[row * length..(row + 1) * length]).copied().collect();
    let padding = tokens.padding.as_ref().and_then(|padding| {
        let real: Vec<u8> = rows.iter().flat_map(|&row| padding.row(row)).copied().collect();
        let padded = real.contains(&0);
        padded.then(|| Arc::new(Padding::new(rows.len(), length, real).expect("as many as the rows have")))
    });
    TokenBatch { ids: of(&tokens.ids), batch: rows.len(), length, padding, types: tokens.types.as_deref().map(of) }
}

/// Some readers, and the titles that they name, in the order in which what they are offered and what they have read names them.
fn read_by(titles: &TokenBatch, readers: &Readers, own: Range<usize>, items: usize) -> (TokenBatch, Readers) {
    let each = readers.candidates.len() / items;
    let offered = &readers.candidates[own.start * each..own.end * each];
    let mut histories = select(&readers.histories, own);
    let (mut named, mut rows) = (Vec::new(), HashMap::new());
    let mut row_of = |title: i32| {
        *rows.entry(title).or_insert_with(|| {
            named.push(title as usize);
            named.len() as i32 - 1
        })
    };
    let candidates = offered.iter().map(|&title| row_of(title)).collect();
    let real = |place: usize| histories.padding.as_ref().is_none_or(|padding| padding.as_slice()[place] != 0);
    // Padding names row 0, which is there.
    let ids = histories.ids.iter().enumerate().map(|(place, &title)| if real(place) { row_of(title) } else { 0 });
    histories.ids = ids.collect();
    (select(titles, named), Readers { histories, candidates })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::padded;

    fn tokens(ids: &[i32], lengths: &[usize]) -> TokenBatch {
        padded(ids.to_vec(), lengths, ids.len() / lengths.len())
    }

    #[test]
    fn parts_hold_every_sequence_once_with_its_padding_and_targets() {
        let batch = Batch {
            tokens: tokens(&[1, 2, 3, 4, 5, 0, 6, 7], &[2, 2, 1, 2]),
            targets: [1, 2, 3, 4, 5, -1, 6, 7].into(),
            source: Some(tokens(&[8, 0, 9, 9, 7, 7, 6, 6], &[1, 2, 2, 2])),
            readers: None,
        };
        let [first, second] = [0, 1].map(|number| batch.part(number, 2, 1).unwrap());
        assert_eq!((&first.tokens.ids[..], first.tokens.padding.is_none()), (&[1, 2, 3, 4][..], true));
        assert_eq!(second.tokens.padding.unwrap().as_slice(), [1, 0, 1, 1]);
        assert_eq!((&first.targets[..], &second.targets[..]), (&[1, 2, 3, 4][..], &[5, -1, 6, 7][..]));
        assert_eq!(first.source.unwrap().padding.unwrap().as_slice(), [1, 0, 1, 1]);
        assert_eq!(&second.source.unwrap().ids[..], [7, 7, 6, 6]);
        assert_eq!((0..6).filter_map(|number| batch.part(number, 6, 1)).count(), 4);
    }

    #[test]
    fn pairs_stay_together() {
        let batch = Batch {
            tokens: tokens(&[1, 2, 3, 4, 5, 6], &[1; 6]),
            targets: [0, 1, 0].into(),
            source: None,
            readers: None,
        };
        let [first, second] = [0, 1].map(|number| batch.part(number, 2, 2).unwrap());
        assert_eq!((&first.tokens.ids[..], &first.targets[..]), (&[1, 2, 3, 4][..], &[0, 1][..]));
        assert_eq!((&second.tokens.ids[..], &second.targets[..]), (&[5, 6][..], &[0][..]));
    }

    #[test]
    fn readers_take_their_titles_along() {
        let batch = Batch {
            tokens: tokens(&[10, 11, 12, 13], &[1; 4]),
            targets: [1, 0].into(),
            source: None,
            readers: Some(Readers { histories: tokens(&[3, 0, 1, 3], &[1, 2]), candidates: [0, 1, 2, 3].into() }),
        };
        let part = batch.part(1, 2, 1).unwrap();
        assert_eq!((&part.tokens.ids[..], &part.targets[..]), (&[12, 13, 11][..], &[0][..]));
        let readers = part.readers.unwrap();
        assert_eq!((&readers.candidates[..], &readers.histories.ids[..]), (&[0, 1][..], &[2, 1][..]));
        let first = batch.part(0, 2, 1).unwrap();
        assert_eq!(
            (&first.tokens.ids[..], &first.readers.unwrap().histories.ids[..]),
            (&[10, 11, 13][..], &[2, 0][..])
        );
    }
}
