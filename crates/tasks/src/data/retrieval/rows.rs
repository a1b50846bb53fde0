//! Rows of a label, two identifiers and two documents.

use std::{borrow::Cow, io::BufRead, path::Path};

use super::{Collector, DocumentPairs};
use crate::data::{DataError, plain_text::each_line};

/// All pairs of a file; documents are cut to `max_length` bytes.
///
/// # Errors
/// A file that cannot be read, has no rows, or has a row of other columns, another label or an empty document.
pub(super) fn read(source: impl BufRead, path: &Path, max_length: usize) -> Result<DocumentPairs, DataError> {
    let mut collector = Collector::default();
    each_line(source, path, |_, row| {
        let (label, documents) = parse(row)?;
        let [first, second] = documents.each_ref().map(|document| &document[..document.len().min(max_length)]);
        collector.push([first, second], label);
        Ok(())
    })?;
    if collector.pairs.is_empty() {
        let problem = "has no rows; a row is a label, two identifiers and two documents, separated by tabs".into();
        return Err(DataError::Content { path: path.into(), problem });
    }
    Ok(collector.pairs)
}

/// The label, and both documents.
type Row<'a> = (bool, [Cow<'a, [u8]>; 2]);

fn parse(row: &[u8]) -> Result<Row<'_>, String> {
    let columns: Vec<&[u8]> = row.split(|byte| *byte == b'\t').collect();
    let [label, _, _, first, second] = columns[..] else {
        let count = columns.len();
        return Err(format!(
            "{count} tab-separated columns, expected 5: label, two identifiers, two documents; check the row and \
             task.retrieval.format"
        ));
    };
    let label = match label {
        b"0" | b"0.0" => false,
        b"1" | b"1.0" => true,
        other => {
            let shown = other[..other.len().min(20)].escape_ascii();
            return Err(format!("label `{shown}`; expected 0 or 1; check the row and task.retrieval.format"));
        }
    };
    let documents = [document(first), document(second)];
    if let Some(place) = documents.iter().position(|document| document.is_empty()) {
        return Err(format!("document {} is empty; remove the row", place + 1));
    }
    Ok((label, documents))
}

/// A document as it is, or, written as a literal of bytes in Python (`b'...'`), what that stands for.
fn document(field: &[u8]) -> Cow<'_, [u8]> {
    let quoted = |field: &[u8], quote: u8| field.len() >= 2 && field[0] == quote && field.ends_with(&[quote]);
    // A writer of tables may have put the literal into double quotes, and doubled those in it.
    let unquoted = (quoted(field, b'"') && field[1..].starts_with(b"b")).then(|| halved(&field[1..field.len() - 1]));
    let literal = unquoted.as_deref().unwrap_or(field);
    let inside = literal.strip_prefix(b"b").filter(|rest| quoted(rest, b'\'') || quoted(rest, b'"'));
    let Some(inside) = inside else { return Cow::Borrowed(field) };
    let mut rest = &inside[1..inside.len() - 1];
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some((&byte, after)) = rest.split_first() {
        let (value, taken) = match (byte, after) {
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [b'r', ..]) => (b'\r', 2),
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [other @ (b'\\' | b'\'' | b'"'), ..]) => (*other, 2),
            (b'\\', [b'x', high, low, ..]) => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => (16 * high + low, 4),
                _ => (byte, 1),
            },
            _ => (byte, 1),
        };
        bytes.push(value);
        rest = &rest[taken..];
    }
    Cow::Owned(bytes)
}

/// A quotation mark for every two that follow each other.
fn halved(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        out.push(byte);
        rest = if byte == b'"' { after.strip_prefix(b"\"").unwrap_or(after) } else { after };
    }
    out
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;
    use crate::data::Streams;

    fn pairs(text: &[u8]) -> Result<DocumentPairs, DataError> {
        read(text, Path::new("pairs.tsv"), 6)
    }

    #[test]
    fn documents_are_read_bare_or_as_literals_and_cut() {
        let text = b"1.0\tC1\tC2\tb'a\\nb'\tb\"it's\"\r\n0\t3\t4\tplain \xff and long\tb'\\xc3\\xa9\\\\'\n";
        let set = pairs(text).unwrap();
        assert_eq!((set.len(), set.label(0), set.label(1)), (2, 1, 0));
        assert_eq!(set.documents(0), [&b"a\nb"[..], b"it's"]);
        assert_eq!(set.documents(1), [&b"plain "[..], b"\xc3\xa9\\"]);
        // In double quotes of a table, and things that only look like literals.
        assert_eq!(&*document(b"\"b'say \"\"no\"\"'\""), b"say \"no\"");
        assert_eq!(&*document(b"\"b\"\"it's\"\"\""), b"it's");
        assert_eq!(&*document(b"\"b\"\"\"\"\""), b"");
        assert_eq!(&*document(b"b'open"), b"b'open");
        assert_eq!(&*document(b"b'\\q\\x9'"), b"\\q\\x9");
        assert_eq!(&*document(b"\"b\""), b"\"b\"");
    }

    #[test]
    fn bad_rows_are_named_by_file_and_line() {
        for (text, expected) in [
            (&b"1\ta\tb\tx\ty\n1\ta\tb\tx\n"[..], "pairs.tsv:2: 4 tab-separated columns, expected 5"),
            (b"2\ta\tb\tx\ty\n", "pairs.tsv:1: label `2`; expected 0 or 1"),
            (b"1\ta\tb\tx\tb''\n", "pairs.tsv:1: document 2 is empty"),
            (b"", "pairs.tsv: has no rows"),
        ] {
            let error = pairs(text).unwrap_err();
            assert!(!error.is_config() && error.to_string().starts_with(expected), "{error}");
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic() {
        let mut stream = Streams::new(0, "fuzz").at(0);
        let alphabet = b"\t\t\t\t\n01.b'\"\\x\xff ";
        let mut good = 0;
        for _ in 0..20_000 {
            let bytes: Vec<u8> =
                (0..stream.random_range(0..24)).map(|_| alphabet[stream.random_range(0..15)]).collect();
            document(&bytes);
            good += usize::from(pairs(&[b"1\t\t", &bytes[..]].concat()).is_ok());
        }
        assert!(good > 100, "{good} good");
    }
}
