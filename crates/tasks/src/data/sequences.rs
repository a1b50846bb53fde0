//! Labelled sequences in compact storage.

use super::DataError;

/// A symbol as it is stored: one byte, or two where there are more than 256.
pub trait Symbol: Copy + Into<i32> + Send + Sync + std::fmt::Debug {}

impl Symbol for u8 {}
impl Symbol for u16 {}

/// Labelled sequences of symbols.
///
/// Symbol `s` is token id `s + 1` where id 0 is padding, else `s`
/// ([`BatchOptions::first_id`](super::BatchOptions::first_id)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequences<S = u8> {
    symbols: Vec<S>,
    /// Sequence `i` is `symbols[offsets[i]..offsets[i + 1]]`.
    offsets: Vec<usize>,
    labels: Vec<u16>,
    classes: usize,
}

impl<S: Symbol> Sequences<S> {
    /// An empty set with labels `0 .. classes`.
    ///
    /// # Panics
    /// If there are more than 65,536 classes.
    pub fn new(classes: usize) -> Self {
        assert!(classes <= 1 << 16, "labels are stored in 16 bits, {classes} classes do not fit");
        Self { symbols: Vec::new(), offsets: vec![0], labels: Vec::new(), classes }
    }

    /// Appends a sequence.
    ///
    /// # Errors
    /// A label that is not below `classes`; a sequence without symbols.
    pub fn push(&mut self, symbols: &[S], label: usize) -> Result<(), DataError> {
        if label >= self.classes {
            let classes = self.classes;
            return Err(DataError::Value(format!(
                "label {label} is out of range; {classes} classes need labels below {classes}"
            )));
        }
        if symbols.is_empty() {
            return Err(DataError::Value("a sequence without tokens, expected at least one; remove the row".into()));
        }
        self.symbols.extend_from_slice(symbols);
        self.offsets.push(self.symbols.len());
        self.labels.push(label as u16);
        Ok(())
    }

    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no sequence.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Symbols of sequence `i`.
    pub fn symbols(&self, i: usize) -> &[S] {
        &self.symbols[self.offsets[i]..self.offsets[i + 1]]
    }

    /// Tokens of sequence `i`.
    pub fn length(&self, i: usize) -> usize {
        self.offsets[i + 1] - self.offsets[i]
    }

    /// Label of sequence `i`.
    pub fn label(&self, i: usize) -> usize {
        usize::from(self.labels[i])
    }

    /// All labels, in order.
    pub fn labels(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.labels.iter().map(|&label| usize::from(label))
    }

    /// Labels are `0 .. classes`.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Total number of tokens.
    pub fn tokens(&self) -> usize {
        self.symbols.len()
    }

    /// Tokens of the longest sequence; 0 if there is none.
    pub fn longest(&self) -> usize {
        (0..self.len()).map(|i| self.length(i)).max().unwrap_or(0)
    }

    /// Sequences `range` as a separate set.
    pub(crate) fn slice(&self, range: std::ops::Range<usize>) -> Self {
        let start = self.offsets[range.start];
        Self {
            symbols: self.symbols[start..self.offsets[range.end]].to_vec(),
            offsets: self.offsets[range.start..=range.end].iter().map(|offset| offset - start).collect(),
            labels: self.labels[range].to_vec(),
            classes: self.classes,
        }
    }

    /// Removes the first `count` sequences.
    pub(crate) fn remove_first(&mut self, count: usize) {
        let start = self.offsets[count];
        self.symbols.drain(..start);
        self.offsets.drain(..count);
        self.offsets.iter_mut().for_each(|offset| *offset -= start);
        self.labels.drain(..count);
    }

    /// Removes and returns the last `count` sequences.
    pub(crate) fn split_last(&mut self, count: usize) -> Self {
        let rest = self.len() - count;
        let last = self.slice(rest..self.len());
        self.symbols.truncate(self.offsets[rest]);
        self.offsets.truncate(rest + 1);
        self.labels.truncate(rest);
        last
    }

    /// The sequences of `items`, in order.
    #[cfg(test)]
    pub(crate) fn select(&self, items: &[usize]) -> Self {
        let mut chosen = Self::new(self.classes);
        for &i in items {
            chosen.symbols.extend_from_slice(self.symbols(i));
            chosen.offsets.push(chosen.symbols.len());
            chosen.labels.push(self.labels[i]);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_out_of_range_and_empty_sequences_are_refused() {
        let mut set = Sequences::new(3);
        set.push(b"ab", 2).unwrap();
        assert!(set.push(b"ab", 3).unwrap_err().to_string().contains("label 3 is out of range"));
        assert!(set.push(b"", 0).is_err());
        assert_eq!((set.len(), set.tokens(), set.longest()), (1, 2, 2));
    }

    #[test]
    fn slices_and_selections_hold_the_same_sequences() {
        let mut set = Sequences::new(4);
        for (i, text) in ["a", "bcd", "ef", "g"].iter().enumerate() {
            set.push(text.as_bytes(), i).unwrap();
        }
        let slice = set.slice(1..3);
        assert_eq!((slice.len(), slice.symbols(0), slice.symbols(1), slice.label(1)), (2, &b"bcd"[..], &b"ef"[..], 2));
        assert_eq!(set.select(&[1, 2]), slice);
        assert_eq!(set.slice(0..0).len(), 0);
        let mut rest = set.clone();
        rest.remove_first(2);
        assert_eq!(rest, set.slice(2..4));
        rest.remove_first(2);
        assert!(rest.is_empty());
        let mut first = set.clone();
        assert_eq!((first.split_last(3), first), (set.slice(1..4), set.slice(0..1)));
    }
}
