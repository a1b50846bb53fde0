//! Files of text.

use std::{fs, io::Read, path::Path};

use flate2::read::MultiGzDecoder;
use regard_files::text::decode_text;

use crate::PretrainedError;

/// The first bytes of gzip (RFC 1952, section 2.3.1).
const GZIP: &[u8] = &[0x1f, 0x8b];

/// The text of a file, decompressed where it is gzip, without a byte order mark and with `\n` at the ends of lines.
///
/// # Errors
/// A file that cannot be read, is damaged, or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, PretrainedError> {
    let mut bytes = fs::read(path).map_err(PretrainedError::reading(path))?;
    if bytes.starts_with(GZIP) {
        let mut plain = Vec::new();
        MultiGzDecoder::new(&bytes[..])
            .read_to_end(&mut plain)
            .map_err(|error| PretrainedError::content(path, format!("damaged gzip: {error}; fetch it again")))?;
        bytes = plain;
    }
    let text =
        decode_text(&bytes).map_err(|error| PretrainedError::content(path, format!("line {} {error}", error.line)))?;
    Ok(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_and_ends_of_lines_of_other_systems_are_no_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.txt");
        for (bytes, expected) in [("\u{feff}a\r\nb\r\n", "a\nb\n"), ("a\nb\u{feff}", "a\nb\u{feff}"), ("a\rb", "a\rb")]
        {
            fs::write(&path, bytes).unwrap();
            assert_eq!(read_text(&path).unwrap(), expected);
        }
    }
}
