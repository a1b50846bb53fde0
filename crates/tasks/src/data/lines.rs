//! Lines of UTF-8 text from files of any size.

use std::{
    io::{BufRead, Read},
    path::Path,
};

use super::{DataError, file::Meter};

/// Longest line accepted, so that a file without line ends cannot fill the memory.
pub(super) const LONGEST_LINE: usize = 1 << 24;

/// Gives `take` every line of a file that is open at `source`, without its end; what `take` finds wrong is an error at the line.
///
/// # Errors
/// A file that cannot be read, a line that is too long, and those of `take`.
pub(super) fn each_line(
    mut source: impl BufRead,
    path: &Path,
    mut take: impl FnMut(u64, &[u8]) -> Result<(), String>,
) -> Result<(), DataError> {
    let mut bytes = Vec::new();
    for line in 1.. {
        let error = |problem: String| DataError::Row { path: path.into(), line, problem };
        bytes.clear();
        let limit = LONGEST_LINE as u64 + 2;
        source.by_ref().take(limit).read_until(b'\n', &mut bytes).map_err(|source| DataError::read(path, source))?;
        if bytes.is_empty() {
            break;
        }
        let row = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let row = row.strip_suffix(b"\r").unwrap_or(row);
        let row = if line == 1 { row.strip_prefix("\u{feff}".as_bytes()).unwrap_or(row) } else { row };
        if row.len() > LONGEST_LINE {
            return Err(error(format!("more than {LONGEST_LINE} bytes without a line end; is this a text file?")));
        }
        take(line, row).map_err(error)?;
    }
    Ok(())
}

/// The lines of a file, decompressed, without their ends.
///
/// # Errors
/// A file that cannot be read, is empty or is not UTF-8.
pub(super) fn read_lines(meter: &Meter, path: &Path) -> Result<Vec<String>, DataError> {
    let mut lines = Vec::new();
    each_line(meter.open(path)?, path, |_, row| {
        let text = std::str::from_utf8(row).map_err(|_| "is not UTF-8; convert the file to UTF-8")?;
        lines.push(text.to_owned());
        Ok(())
    })?;
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
        assert!(read(b"one\ntwo\xff\n").unwrap_err().to_string().contains("text:2: is not UTF-8"));
        assert!(read(b"").unwrap_err().to_string().contains("has no lines"));
    }
}
