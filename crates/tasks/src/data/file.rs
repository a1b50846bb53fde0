//! Plain and compressed files, distinguished by their first bytes.

use std::{
    cell::Cell,
    fs::File,
    io::{self, BufRead, BufReader, Cursor, Read},
    path::Path,
};

use bzip2::read::MultiBzDecoder;
use flate2::read::MultiGzDecoder;

use super::{DataError, Progress};

/// Bytes read from disk at a time, and so between two progress reports.
const BUFFER: usize = 1 << 16;

/// First bytes of a gzip member (RFC 1952, section 2.3.1).
const GZIP: &[u8] = &[0x1f, 0x8b];

/// What follows `BZh` and a digit in a bzip2 stream: the start of a block, or of the end if there is none.
const BZIP2: [&[u8]; 2] = [&[0x31, 0x41, 0x59, 0x26, 0x53, 0x59], &[0x17, 0x72, 0x45, 0x38, 0x50, 0x90]];

/// First bytes of what is not unpacked here, and what unpacks it.
const PACKED: [(&[u8], &str); 4] = [
    (b"PK\x03\x04", "a zip archive; unpack it: unzip FILE"),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], "compressed by xz; unpack it: xz -dk FILE"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "compressed by zstd; unpack it: zstd -dk FILE"),
    (&[b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c], "a 7z archive; unpack it: 7z x FILE"),
];

/// Counts the bytes read from several files, before decompression.
pub(super) struct Meter<'a> {
    done: Cell<u64>,
    total: u64,
    progress: Progress<'a>,
}

impl<'a> Meter<'a> {
    /// A meter for these files; a missing one counts as empty.
    pub fn new<'p>(paths: impl IntoIterator<Item = &'p Path>, progress: Progress<'a>) -> Self {
        let total = paths.into_iter().filter_map(|path| std::fs::metadata(path).ok()).map(|about| about.len()).sum();
        progress(0, total);
        Self { done: Cell::new(0), total, progress }
    }

    /// Counts a file that was read by other means.
    pub fn count(&self, path: &Path) {
        self.add(std::fs::metadata(path).map_or(0, |about| about.len()));
    }

    fn add(&self, bytes: u64) {
        let done = self.done.get() + bytes;
        self.done.set(done);
        (self.progress)(done, self.total.max(done));
    }

    /// Opens a file, decompressing gzip and bzip2.
    pub fn open<'m>(&'m self, path: &Path) -> Result<Box<dyn BufRead + 'm>, DataError> {
        let file = File::open(path).map_err(|source| DataError::read(path, source))?;
        self.decode(file).map_err(|source| DataError::read(path, source))
    }

    fn decode<'m>(&'m self, source: impl Read + 'm) -> io::Result<Box<dyn BufRead + 'm>> {
        let mut source = BufReader::with_capacity(BUFFER, Counted { source, meter: self });
        let mut head = Vec::new();
        source.by_ref().take(10).read_to_end(&mut head)?;
        if let Some((_, what)) = PACKED.iter().find(|(first, _)| head.starts_with(first)) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it is {what}")));
        }
        let gzip = head.starts_with(GZIP);
        let bzip2 = head.starts_with(b"BZh") && head.get(4..).is_some_and(|rest| BZIP2.contains(&rest));
        let all = Cursor::new(head).chain(source);
        Ok(match (gzip, bzip2) {
            (true, _) => Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(all))),
            (_, true) => Box::new(BufReader::with_capacity(BUFFER, MultiBzDecoder::new(all))),
            _ => Box::new(all),
        })
    }
}

/// A source whose bytes a meter counts.
struct Counted<'m, 'a, R> {
    source: R,
    meter: &'m Meter<'a>,
}

impl<R: Read> Read for Counted<'_, '_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.meter.add(count as u64);
        Ok(count)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;

    use super::*;

    pub fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    pub fn bzip2(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let meter = Meter::new([], &|_, _| {});
        let mut all = Vec::new();
        meter.decode(bytes)?.read_to_end(&mut all)?;
        Ok(all)
    }

    #[test]
    fn every_format_gives_the_same_bytes() {
        for text in ["", "x", "BZh9 is how bzip2 starts, but not this\n", &"a line\n".repeat(100_000)] {
            let bytes = text.as_bytes();
            for file in [bytes.to_vec(), gzip(bytes), bzip2(bytes)] {
                assert!(read(&file).unwrap() == bytes);
            }
            // Files joined end to end, as parallel compressors write them.
            let twice = [bytes, bytes].concat();
            assert!(read(&[gzip(bytes), gzip(bytes)].concat()).unwrap() == twice);
            assert!(read(&[bzip2(bytes), bzip2(bytes)].concat()).unwrap() == twice);
        }
    }

    #[test]
    fn what_is_packed_in_other_ways_is_named() {
        for (first, how) in PACKED {
            let error = read(&[first, b" and more"].concat()).unwrap_err().to_string();
            assert!(error.contains(how) && how.contains("FILE"), "{error}");
        }
    }

    #[test]
    fn truncated_and_damaged_files_are_errors() {
        let text: Vec<u8> = (0..200_000u32).map(|i| (i.wrapping_mul(i) % 251) as u8).collect();
        for mut file in [gzip(&text), bzip2(&text)] {
            assert!(read(&file[..file.len() / 2]).is_err());
            assert!(read(&file[..file.len() - 1]).is_err());
            let middle = file.len() / 2;
            file[middle] ^= 0x55;
            assert!(read(&file).is_err());
        }
    }

    #[test]
    fn progress_counts_bytes_on_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file.gz");
        let file = gzip(&b"some text\n".repeat(1000));
        std::fs::write(&path, &file).unwrap();
        let last = Cell::new((0, 0));
        let progress = |done, total| last.set((done, total));
        let meter = Meter::new([path.as_path()], &progress);
        let mut text = String::new();
        meter.open(&path).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!((text.len(), last.get()), (10_000, (file.len() as u64, file.len() as u64)));
    }
}
