//! Files of text and their lines, decoded as [`regard_files::text`] says.

use std::{
    io::{BufRead, Read},
    path::{Path, PathBuf},
};

use regard_files::text::{MARK, check_mark, decode_text, utf8};

use super::{DataError, file::Meter};

/// Longest line accepted, so that a file without line endings cannot fill memory.
pub(super) const LONGEST_LINE: usize = 1 << 24;

/// Reads a text file, such as a configuration or a tokenizer.
///
/// # Errors
/// A file that cannot be read or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, DataError> {
    let bytes = std::fs::read(path).map_err(|source| DataError::read(path, source))?;
    Ok(decode_text(&bytes).map_err(|error| DataError::text(path, &error))?.into_owned())
}

/// The lines of a text, in order, without line endings.
#[derive(Debug)]
pub struct TextLines<R> {
    source: R,
    name: PathBuf,
    /// Number of lines read.
    number: u64,
    /// Number of bytes read.
    offset: u64,
    /// The last line with its ending.
    bytes: Vec<u8>,
}

impl<R: BufRead> TextLines<R> {
    /// Lines of `source`; `name` is its name in errors.
    pub fn new(source: R, name: impl Into<PathBuf>) -> Self {
        Self { source, name: name.into(), number: 0, offset: 0, bytes: Vec::new() }
    }

    /// The next line, as arbitrary bytes.
    pub(super) fn row(&mut self) -> Result<Option<&[u8]>, DataError> {
        self.offset += self.bytes.len() as u64;
        self.bytes.clear();
        let limit = LONGEST_LINE as u64 + 2;
        let read = self.source.by_ref().take(limit).read_until(b'\n', &mut self.bytes);
        read.map_err(|source| DataError::read(&self.name, source))?;
        if self.bytes.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        if self.number == 1 {
            check_mark(&self.bytes).map_err(|error| DataError::text(&self.name, &error))?;
            if self.bytes.starts_with(MARK) {
                self.bytes.drain(..MARK.len());
                self.offset = MARK.len() as u64;
            }
            if self.bytes.is_empty() {
                return Ok(None);
            }
        }
        let row = self.bytes.strip_suffix(b"\n").unwrap_or(&self.bytes);
        let row = row.strip_suffix(b"\r").unwrap_or(row);
        if row.len() > LONGEST_LINE {
            let problem = format!("more than {LONGEST_LINE} bytes without a line end; is this a text file?");
            return Err(self.error(problem));
        }
        Ok(Some(row))
    }

    /// Number of the last line, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// An error at the last line.
    pub(super) fn error(&self, problem: String) -> DataError {
        self.error_at(self.number, problem)
    }

    /// An error at a line.
    pub(super) fn error_at(&self, line: u64, problem: String) -> DataError {
        DataError::Row { path: self.name.clone(), line, problem }
    }
}

impl<R: BufRead> Iterator for TextLines<R> {
    type Item = Result<String, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = match self.row() {
            Ok(None) => return None,
            Err(error) => return Some(Err(error)),
            Ok(Some(row)) => row.to_vec(),
        };
        let text = utf8(&row, self.number, self.offset).map(str::to_owned);
        Some(text.map_err(|error| DataError::text(&self.name, &error)))
    }
}

/// Passes every line of the file `source` to `take`, without its ending; an error of `take` is reported with the line.
///
/// # Errors
/// A file that cannot be read or is in UTF-16, a line that is too long, and errors of `take`.
pub(super) fn each_line(
    source: impl BufRead,
    path: &Path,
    mut take: impl FnMut(u64, &[u8]) -> Result<(), String>,
) -> Result<(), DataError> {
    let mut lines = TextLines::new(source, path);
    for line in 1.. {
        let Some(row) = lines.row()? else { break };
        take(line, row).map_err(|problem| lines.error(problem))?;
    }
    Ok(())
}

/// The lines of a file, decompressed, without line endings.
///
/// # Errors
/// A file that cannot be read, is empty or is not UTF-8.
pub(super) fn read_lines(meter: &Meter, path: &Path) -> Result<Vec<String>, DataError> {
    let lines = TextLines::new(meter.open(path)?, path).collect::<Result<Vec<_>, _>>()?;
    if lines.is_empty() {
        return Err(DataError::Content { path: path.into(), problem: "has no lines; give a file with text".into() });
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_without_their_ends_and_faults_with_their_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("text");
        let read = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            read_lines(&Meter::new([], &|_, _| {}), &path)
        };
        assert_eq!(read("\u{feff}ein\r\n\nzwei größer".as_bytes()).unwrap(), ["ein", "", "zwei größer"]);
        // A lone carriage return ends no line, and only one is part of an end.
        assert_eq!(read(b"one\rtwo\r\r\n\r").unwrap(), ["one\rtwo\r", ""]);
        assert!(read(b"one\ntwo\xff\n").unwrap_err().to_string().contains("text:2: is not UTF-8 from byte 7 (0xff)"));
        assert!(read("\u{feff}\r\na\u{ff}".as_bytes()).is_ok());
        let marked = [MARK, b"a\r\nb\xe9"].concat();
        assert!(read(&marked).unwrap_err().to_string().contains("text:2: is not UTF-8 from byte 7 (0xe9)"));
        assert!(read(MARK).unwrap_err().to_string().contains("has no lines"));
        assert!(read(b"").unwrap_err().to_string().contains("has no lines"));
        let utf16 = read(b"\xff\xfeo\0n\0e\0\n\0").unwrap_err().to_string();
        assert!(utf16.contains("text:1: is UTF-16LE by its first bytes, expected UTF-8"), "{utf16}");
    }
}
