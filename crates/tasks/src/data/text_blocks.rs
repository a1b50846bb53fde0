//! A text in blocks of bounded size.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use regard_files::text::{MARK, check_mark, utf8};

use super::DataError;

/// Bytes read at a time.
const BLOCK: usize = 1 << 18;

/// The text of a file, block by block: together what [`regard_files::text::decode_text`] gives of the whole.
#[derive(Debug)]
pub(super) struct TextBlocks<R> {
    source: R,
    name: PathBuf,
    /// Bytes of a block.
    size: usize,
    /// The line in which the next byte stands, from 1.
    line: u64,
    /// Bytes decoded.
    offset: u64,
    /// Read and not decoded: the beginning of a character, or a carriage return.
    rest: Vec<u8>,
}

impl<R: Read> TextBlocks<R> {
    /// Blocks of `source`; `name` is its name in errors.
    pub fn new(source: R, name: &Path) -> Self {
        Self { source, name: name.into(), size: BLOCK, line: 1, offset: 0, rest: Vec::new() }
    }

    /// Appends the next block to `text`; returns whether there may be more.
    ///
    /// # Errors
    /// A source that cannot be read or is not UTF-8.
    pub fn next(&mut self, text: &mut String) -> Result<bool, DataError> {
        let carried = self.rest.len();
        let read = self.source.by_ref().take(self.size as u64).read_to_end(&mut self.rest);
        read.map_err(|source| DataError::read(&self.name, source))?;
        let last = self.rest.len() - carried < self.size;
        if self.offset == 0 {
            check_mark(&self.rest).map_err(|error| DataError::text(&self.name, &error))?;
            if self.rest.starts_with(MARK) {
                self.rest.drain(..MARK.len());
                self.offset = MARK.len() as u64;
            }
        }
        let block = match std::str::from_utf8(&self.rest) {
            Ok(block) => block,
            // The rest of a character is in the next block.
            Err(error) if error.error_len().is_none() && !last => {
                utf8(&self.rest[..error.valid_up_to()], self.line, self.offset).unwrap_or_default()
            }
            Err(_) => {
                let error = utf8(&self.rest, self.line, self.offset).expect_err("it has just failed");
                return Err(DataError::text(&self.name, &error));
            }
        };
        // So may be the rest of a line end.
        let block = if last { block } else { block.strip_suffix('\r').unwrap_or(block) };
        // Looking for one byte is several times as fast.
        match block.contains('\r') {
            true => text.push_str(&block.replace("\r\n", "\n")),
            false => text.push_str(block),
        }
        let done = block.len();
        self.line += self.rest[..done].iter().filter(|byte| **byte == b'\n').count() as u64;
        self.offset += done as u64;
        self.rest.drain(..done);
        Ok(!last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regard_files::text::decode_text;

    fn in_blocks(bytes: &[u8], size: usize) -> Result<String, DataError> {
        let mut blocks = TextBlocks { size, ..TextBlocks::new(bytes, Path::new("text")) };
        let mut text = String::new();
        while blocks.next(&mut text)? {}
        Ok(text)
    }

    /// Characters and line ends lie across the borders of blocks.
    #[test]
    fn blocks_of_any_size_are_the_whole_text() {
        for text in ["", "\u{feff}", "größer\r\n\r\n漢字 🦀\r\r\n\u{feff}x\r", "\u{feff}a\r\nb", "\r\n", "\r"] {
            let whole = decode_text(text.as_bytes()).unwrap();
            for size in 4..40 {
                assert_eq!(in_blocks(text.as_bytes(), size).unwrap(), whole, "{text:?} in blocks of {size}");
            }
        }
    }

    #[test]
    fn what_is_not_text_is_told_with_its_place_whatever_the_size() {
        for bytes in [
            &b"ab\ncd\n\xe9t\xe9"[..],
            b"ab\xe2\x82",
            "\u{feff}\r\n\r\nzwei \u{e9}\n".as_bytes().split_last().unwrap().1.split_last().unwrap().1,
            b"\xff\xfea\0b\0",
            b"\0\0\xfe\xff\0\0\0a",
        ] {
            let error = decode_text(bytes).unwrap_err();
            let expected = DataError::text("text", &error).to_string();
            for size in 4..20 {
                assert_eq!(in_blocks(bytes, size).unwrap_err().to_string(), expected, "blocks of {size}");
            }
        }
    }
}
