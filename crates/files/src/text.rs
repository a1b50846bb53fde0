//! Decoding of text, the same for all input.
//!
//! Text is UTF-8. A leading byte-order mark is skipped, and `\r\n` ends a line as `\n` does. A lone `\r` is an ordinary
//! character: no system has used it as a line ending for decades, and translation files must keep their lines.

use std::{borrow::Cow, fmt};

/// The byte-order mark in UTF-8.
pub const MARK: &[u8] = "\u{feff}".as_bytes();

/// Byte-order marks of other encodings; the longer ones first, since one is a prefix of another.
const OTHER_MARKS: [(&[u8], &str); 4] = [
    (&[0xff, 0xfe, 0, 0], "UTF-32LE"),
    (&[0, 0, 0xfe, 0xff], "UTF-32BE"),
    (&[0xff, 0xfe], "UTF-16LE"),
    (&[0xfe, 0xff], "UTF-16BE"),
];

/// Why bytes are not text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotText {
    /// Line, counted from 1.
    pub line: u64,
    /// Offset of the invalid byte, from 0.
    at: u64,
    /// The byte, or the encoding indicated by the first bytes.
    seen: Result<u8, &'static str>,
}

impl fmt::Display for NotText {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seen {
            Ok(byte) => write!(
                out,
                "is not UTF-8 from byte {} (0x{byte:02x}) on; convert the file to UTF-8: iconv -f ENCODING -t UTF-8",
                self.at
            ),
            Err(encoding) => write!(
                out,
                "is {encoding} by its first bytes, expected UTF-8; convert it: iconv -f {encoding} -t UTF-8"
            ),
        }
    }
}

/// Checks the first bytes of a text.
///
/// # Errors
/// The byte-order mark of another encoding.
pub fn check_mark(start: &[u8]) -> Result<(), NotText> {
    let other = OTHER_MARKS.iter().find(|(mark, _)| start.starts_with(mark));
    other.map_or(Ok(()), |(_, encoding)| Err(NotText { line: 1, at: 0, seen: Err(encoding) }))
}

/// Bytes as text. They begin at `offset`, in `line`, of what an error names.
///
/// # Errors
/// Bytes that are not UTF-8.
pub fn utf8(bytes: &[u8], line: u64, offset: u64) -> Result<&str, NotText> {
    std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        let lines = bytes[..at].iter().filter(|&&byte| byte == b'\n').count() as u64;
        NotText { line: line + lines, at: offset + at as u64, seen: Ok(bytes[at]) }
    })
}

/// The text of a whole file.
///
/// # Errors
/// Bytes that are not UTF-8.
pub fn decode_text(bytes: &[u8]) -> Result<Cow<'_, str>, NotText> {
    check_mark(bytes)?;
    let (content, offset) = bytes.strip_prefix(MARK).map_or((bytes, 0), |rest| (rest, MARK.len() as u64));
    let text = utf8(content, 1, offset)?;
    Ok(if text.contains("\r\n") { text.replace("\r\n", "\n").into() } else { text.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_text_is_what_its_lines_are() {
        assert_eq!(decode_text("\u{feff}a\r\nb\rc\r\r\n".as_bytes()).unwrap(), "a\nb\rc\r\n");
        assert!(matches!(decode_text(b"a\nb").unwrap(), Cow::Borrowed("a\nb")));
        // The mark of the middle is a character.
        assert_eq!(decode_text("a\u{feff}".as_bytes()).unwrap(), "a\u{feff}");
        for (bytes, expected) in [
            (&b"ab\ncd\n\xe9t\xe9"[..], "3: is not UTF-8 from byte 6 (0xe9)"),
            (b"ab\xe2\x82", "1: is not UTF-8 from byte 2 (0xe2)"),
            (b"\xff\xfea\0", "1: is UTF-16LE"),
            (b"\xfe\xff\0a", "1: is UTF-16BE"),
            (b"\xff\xfe\0\0a\0\0\0", "1: is UTF-32LE"),
            (b"\0\0\xfe\xff\0\0\0a", "1: is UTF-32BE"),
        ] {
            let error = decode_text(bytes).unwrap_err();
            let seen = format!("{}: {error}", error.line);
            assert!(seen.starts_with(expected) && seen.contains("iconv"), "{seen}");
        }
    }
}
