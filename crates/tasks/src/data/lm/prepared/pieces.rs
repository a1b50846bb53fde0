//! Texts in pieces, read while those before are worked on.

use std::{
    mem::replace,
    panic::resume_unwind,
    path::PathBuf,
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::sync_channel,
    },
    thread,
};

use super::{
    super::{
        LmConfig, TokenKind,
        joined::Joined,
        source::{RowReader, each_block},
    },
    PrepareError,
};
use crate::data::{DataError, file::Meter, plain_text::LONGEST_LINE};

/// Bytes of a piece: what one thread encodes at a time.
const PIECE: usize = 1 << 20;

/// Bytes after which pieces are passed on. Up to three such batches are in memory: read, waiting, worked on.
const BATCH: usize = 8 << 20;

/// A piece of a text. It ends after white space, so that the tokens of a text are those of its pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Bytes of the text before it.
    pub start: u64,
    pub text: String,
}

impl Piece {
    /// Bytes of the text up to its end.
    pub fn end(&self) -> u64 {
        self.start + self.text.len() as u64
    }
}

/// What every pass over the files needs.
pub(super) struct Reader<'a> {
    pub config: &'a LmConfig,
    pub meter: Meter<'a>,
    /// Reads Parquet files.
    pub rows: Option<RowReader>,
    pub stop: &'a AtomicBool,
}

impl Reader<'_> {
    /// Passes the text of files to `take`, in order, on another thread. Returns its bytes.
    ///
    /// # Errors
    /// Files that cannot be read or are no text; errors of `take`; a stop.
    pub fn each(
        &self,
        files: &[PathBuf],
        take: impl FnMut(Vec<Piece>) -> Result<(), PrepareError> + Send,
    ) -> Result<u64, PrepareError> {
        thread::scope(|scope| {
            let (sender, receiver) = sync_channel::<Vec<Piece>>(1);
            let taker = scope.spawn(|| receiver.into_iter().try_for_each(take));
            // A taker that has gone has an error of its own.
            let read = self.read(files, &mut |batch| sender.send(batch).map_err(|_| PrepareError::Stopped));
            drop(sender);
            taker.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            read
        })
    }

    fn read(
        &self,
        files: &[PathBuf],
        send: &mut dyn FnMut(Vec<Piece>) -> Result<(), PrepareError>,
    ) -> Result<u64, PrepareError> {
        let whole_words = matches!(self.config.tokens, TokenKind::Words | TokenKind::Subwords);
        let mut cutter = Cutter { size: PIECE, longest: LONGEST_LINE, whole_words, at: 0 };
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let too_long = |at| {
            let problem = format!(
                "the text has more than {LONGEST_LINE} bytes without white space from byte {at} on; is this a text in words? \
                 prepare it in bytes or characters"
            );
            DataError::Content { path: files.first().cloned().unwrap_or_default(), problem }
        };
        let mut joined = Joined::new(self.config.paragraphs);
        each_block(&self.meter, files, self.config, &mut joined, self.rows, &mut |text| {
            while let Some(piece) = cutter.next(text, false).map_err(too_long)? {
                bytes += piece.text.len();
                batch.push(piece);
                if bytes >= BATCH {
                    bytes = 0;
                    send(std::mem::take(&mut batch))?;
                }
            }
            if self.stop.load(Relaxed) { Err(PrepareError::Stopped) } else { Ok(()) }
        })?;
        while let Some(piece) = cutter.next(&mut joined.text, true).map_err(too_long)? {
            batch.push(piece);
        }
        send(batch)?;
        Ok(cutter.at)
    }
}

/// Cuts a text that grows at its end.
struct Cutter {
    /// Bytes of a piece.
    size: usize,
    /// Bytes without white space that are waited for.
    longest: usize,
    /// Whether a piece may not end within a word.
    whole_words: bool,
    /// Bytes that were cut off.
    at: u64,
}

impl Cutter {
    /// Takes a piece from the front of `text`, if there is enough of it or it is the `last` of it; or where a word began that
    /// does not end.
    fn next(&mut self, text: &mut String, last: bool) -> Result<Option<Piece>, u64> {
        if text.is_empty() || text.len() < self.size && !last {
            return Ok(None);
        }
        let Some(end) = self.end(text, last)? else { return Ok(None) };
        let rest = text.split_off(end);
        let piece = Piece { start: self.at, text: replace(text, rest) };
        self.at = piece.end();
        Ok(Some(piece))
    }

    fn end(&self, text: &str, last: bool) -> Result<Option<usize>, u64> {
        if text.len() <= self.size && last {
            return Ok(Some(text.len()));
        }
        let (head, rest) = text.split_at(text.floor_char_boundary(self.size));
        let after = |(at, found): (usize, &str)| at + found.len();
        let near = head.rfind('\n').map(|at| at + 1);
        let near = near.or_else(|| head.rmatch_indices(char::is_whitespace).next().map(after));
        let near = near.or_else(|| rest.match_indices(char::is_whitespace).next().map(|at| head.len() + after(at)));
        match near {
            Some(end) => Ok(Some(end)),
            None if text.len() > self.longest && self.whole_words => Err(self.at),
            None if text.len() > self.longest => Ok(Some(head.len())),
            None => Ok(last.then_some(text.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str, grown_by: usize, whole_words: bool) -> Result<Vec<Piece>, u64> {
        let mut cutter = Cutter { size: 8, longest: 20, whole_words, at: 0 };
        let (mut seen, mut held, mut rest) = (Vec::new(), String::new(), text);
        while !rest.is_empty() {
            let (head, tail) = rest.split_at(rest.ceil_char_boundary(grown_by.min(rest.len())));
            held.push_str(head);
            rest = tail;
            seen.extend(
                std::iter::from_fn(|| cutter.next(&mut held, false).transpose()).collect::<Result<Vec<_>, _>>()?,
            );
        }
        seen.extend(std::iter::from_fn(|| cutter.next(&mut held, true).transpose()).collect::<Result<Vec<_>, _>>()?);
        Ok(seen)
    }

    #[test]
    fn pieces_end_after_white_space_and_are_the_text() {
        for text in [
            "",
            "a\n",
            "one two\nthree four five\n\n six seven\n",
            "größer \u{2003}größer größer\n",
            "wide characters: 漢字 🦀\n",
        ] {
            for grown_by in 1..30 {
                let seen = pieces(text, grown_by, true).unwrap();
                assert_eq!(seen.iter().map(|piece| piece.text.as_str()).collect::<String>(), text);
                assert!(seen.iter().all(|piece| piece.text.ends_with(char::is_whitespace)), "{seen:?}");
                assert!(seen.windows(2).all(|pair| pair[0].end() == pair[1].start));
            }
        }
        assert_eq!(pieces("one two\nthree four five\n", 4, true).unwrap()[0].text, "one two\n");
    }

    #[test]
    fn what_has_no_white_space_is_cut_between_characters_or_refused() {
        let text = "a ".to_owned() + &"ö".repeat(40);
        for grown_by in [1, 7, 100] {
            assert_eq!(pieces(&text, grown_by, true), Err(2));
            let seen = pieces(&text, grown_by, false).unwrap();
            assert!(seen.iter().map(|piece| piece.text.as_str()).eq(seen.iter().map(|piece| piece.text.as_str())));
            assert_eq!(seen.iter().map(|piece| piece.text.as_str()).collect::<String>(), text);
            assert!(seen.len() > 4, "{seen:?}");
        }
    }
}
