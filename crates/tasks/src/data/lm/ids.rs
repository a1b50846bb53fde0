//! Token ids of a text, in memory or in a file that is mapped into it.

use std::{fmt, fs::File, io, ops::Range, path::Path, sync::Arc};

use memmap2::Mmap;

/// Bytes of an id in a file, the least that hold every id of a vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    One,
    Two,
    Four,
}

impl Width {
    /// For ids below `vocabulary`.
    pub fn of(vocabulary: usize) -> Self {
        match vocabulary {
            0..=0x100 => Self::One,
            0x101..=0x1_0000 => Self::Two,
            _ => Self::Four,
        }
    }

    pub fn bytes(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Four => 4,
        }
    }

    /// Appends ids, little-endian; each must be below the vocabulary that the width is for.
    pub fn write(self, ids: &[u32], out: &mut Vec<u8>) {
        match self {
            Self::One => out.extend(ids.iter().map(|id| *id as u8)),
            Self::Two => out.extend(ids.iter().flat_map(|id| (*id as u16).to_le_bytes())),
            Self::Four => out.extend(ids.iter().flat_map(|id| id.to_le_bytes())),
        }
    }
}

/// Token ids, in order. A clone of ids in a file shares the map.
#[derive(Clone)]
pub struct TokenIds(Inner);

#[derive(Clone)]
enum Inner {
    Owned(Vec<u32>),
    Mapped { map: Arc<Mmap>, width: Width },
}

impl TokenIds {
    /// Maps a file of ids. Nothing is read before it is used, and the system may forget what was read. The file must not be
    /// changed meanwhile: files of a prepared folder are replaced, never written to.
    pub(super) fn map(path: &Path, width: Width) -> io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: the map is only read. That nobody else changes the file meanwhile is asked of the user (`docs/src/data.md`).
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self(Inner::Mapped { map: Arc::new(map), width }))
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        match &self.0 {
            Inner::Owned(ids) => ids.len(),
            Inner::Mapped { map, width } => map.len() / width.bytes(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `take` with each id of a range, in order.
    fn each(&self, range: Range<usize>, mut take: impl FnMut(u32)) {
        match &self.0 {
            Inner::Owned(ids) => ids[range].iter().for_each(|id| take(*id)),
            Inner::Mapped { map, width } => {
                let bytes = &map[range.start * width.bytes()..range.end * width.bytes()];
                match width {
                    Width::One => bytes.iter().for_each(|byte| take(u32::from(*byte))),
                    Width::Two => {
                        bytes.as_chunks().0.iter().for_each(|id| take(u32::from(u16::from_le_bytes(*id))));
                    }
                    Width::Four => bytes.as_chunks().0.iter().for_each(|id| take(u32::from_le_bytes(*id))),
                }
            }
        }
    }

    /// The ids of a range.
    ///
    /// # Panics
    /// If it ends after the last id.
    pub fn range(&self, range: Range<usize>) -> Vec<u32> {
        let mut ids = Vec::with_capacity(range.len());
        self.each(range, |id| ids.push(id));
        ids
    }

    /// Appends the ids of a range as a batch has them.
    pub(super) fn append(&self, range: Range<usize>, out: &mut Vec<i32>) {
        self.each(range, |id| out.push(id as i32));
    }
}

impl From<Vec<u32>> for TokenIds {
    fn from(ids: Vec<u32>) -> Self {
        Self(Inner::Owned(ids))
    }
}

impl PartialEq for TokenIds {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.range(0..self.len()) == other.range(0..other.len())
    }
}

impl<const N: usize> PartialEq<[u32; N]> for TokenIds {
    fn eq(&self, other: &[u32; N]) -> bool {
        self.len() == N && self.range(0..N) == other
    }
}

impl fmt::Debug for TokenIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mapped = matches!(self.0, Inner::Mapped { .. });
        f.debug_struct("TokenIds").field("len", &self.len()).field("mapped", &mapped).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_in_a_file_are_those_that_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ids");
        for (vocabulary, bytes) in [(2, 1), (256, 1), (257, 2), (65_536, 2), (65_537, 4), (1 << 20, 4)] {
            let ids: Vec<u32> =
                (0..999).map(|i| (i * i * 977) % vocabulary as u32).chain([vocabulary as u32 - 1]).collect();
            let width = Width::of(vocabulary);
            let mut written = Vec::new();
            width.write(&ids, &mut written);
            assert_eq!(written.len(), bytes * ids.len());
            std::fs::write(&path, written).unwrap();
            let mapped = TokenIds::map(&path, width).unwrap();
            assert!(mapped == TokenIds::from(ids.clone()) && mapped.range(7..20) == ids[7..20], "{vocabulary}");
            assert!(mapped != TokenIds::from(ids[1..].to_vec()));
        }
    }
}
