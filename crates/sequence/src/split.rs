//! Which rank owns which tokens.

use std::{ops::Range, sync::Arc};

use regard_kernels::{Error, Padding};

/// The tokens of a sequence, spread over ranks in chunks whose sizes differ by one at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Chunks of each rank, in ascending order.
    chunks: Vec<Vec<Range<usize>>>,
    total: usize,
}

impl Split {
    /// One chunk a rank, in the order of the ranks.
    ///
    /// # Errors
    /// Fewer tokens than ranks.
    pub fn contiguous(tokens: usize, ranks: usize) -> Result<Self, Error> {
        let chunks = cut(tokens, ranks)?;
        Ok(Self { chunks: chunks.into_iter().map(|chunk| vec![chunk]).collect(), total: tokens })
    }

    /// Two chunks a rank, one from the start and one from the end: rank `r` of `R` owns chunks `r` and `2R - 1 - r` of `2R`.
    /// Under a causal mask all ranks then have equally many visible pairs.
    ///
    /// # Errors
    /// Fewer tokens than chunks.
    pub fn zigzag(tokens: usize, ranks: usize) -> Result<Self, Error> {
        if ranks == 1 {
            return Self::contiguous(tokens, 1);
        }
        let chunks = cut(tokens, 2 * ranks)?;
        let of_rank = |rank: usize| vec![chunks[rank].clone(), chunks[2 * ranks - 1 - rank].clone()];
        Ok(Self { chunks: (0..ranks).map(of_rank).collect(), total: tokens })
    }

    /// Tokens of the whole sequence.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.chunks.len()
    }

    /// The chunks of `rank`, in ascending order: its tensors hold their tokens one chunk after the other.
    pub fn of(&self, rank: usize) -> &[Range<usize>] {
        &self.chunks[rank]
    }

    /// Tokens of `rank`.
    pub fn count(&self, rank: usize) -> usize {
        self.of(rank).iter().map(Range::len).sum()
    }

    /// The padding of the tokens of `rank`, from that of all.
    pub(crate) fn padding(&self, padding: &Option<Arc<Padding>>, rank: usize) -> Option<Arc<Padding>> {
        let padding = padding.as_deref()?;
        let rows = (0..padding.batch()).flat_map(|b| {
            let row = padding.row(b);
            self.of(rank).iter().flat_map(move |chunk| &row[chunk.clone()])
        });
        let own = Padding::new(padding.batch(), self.count(rank), rows.copied().collect());
        Some(Arc::new(own.expect("the tokens of each row")))
    }

    /// The chunks of `rank` with the places of their tokens in its tensors.
    pub(crate) fn places(&self, rank: usize) -> Vec<(Range<usize>, Range<usize>)> {
        let mut next = 0;
        let chunks = self.of(rank).iter().map(|chunk| {
            let place = next..next + chunk.len();
            next = place.end;
            (chunk.clone(), place)
        });
        chunks.collect()
    }
}

/// `tokens` in `parts` chunks.
fn cut(tokens: usize, parts: usize) -> Result<Vec<Range<usize>>, Error> {
    if tokens < parts {
        let expected = format!("at least {parts}, one for each chunk: fewer ranks, or a longer sequence");
        return Err(Error::option("tokens", tokens, expected));
    }
    let start = |part: usize| (part as u128 * tokens as u128 / parts as u128) as usize;
    Ok((0..parts).map(|part| start(part)..start(part + 1)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_has_one_owner() {
        for (tokens, ranks) in [(12, 3), (13, 3), (17, 2), (6, 3), (5, 1)] {
            for split in [Split::contiguous(tokens, ranks).unwrap(), Split::zigzag(tokens, ranks).unwrap()] {
                let mut owners = vec![0; tokens];
                (0..ranks).flat_map(|rank| split.of(rank)).cloned().flatten().for_each(|token| owners[token] += 1);
                assert_eq!(owners, vec![1; tokens]);
            }
        }
        assert!(Split::zigzag(5, 3).is_err() && Split::contiguous(2, 3).is_err());
    }

    #[test]
    fn a_zigzag_shares_the_visible_pairs() {
        let split = Split::zigzag(24, 3).unwrap();
        let pairs = |rank: usize| split.of(rank).iter().cloned().flatten().map(|query| query + 1).sum::<usize>();
        assert_eq!([pairs(0), pairs(1), pairs(2)], [100; 3]);
        assert_eq!(split.places(1), [(4..8, 0..4), (16..20, 4..8)]);
    }
}
