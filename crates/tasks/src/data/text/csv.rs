//! Records of comma-separated values, as RFC 4180 has them.

use std::io::BufRead;

use crate::data::{
    DataError,
    plain_text::{LONGEST_LINE, TextLines},
};

/// Where a reader stands in a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// At its start.
    Start,
    /// In one without quotes.
    Plain,
    /// In one with quotes.
    Quoted,
    /// After a quote in one with quotes: its end, or the first of two.
    Quote,
}

/// The columns of a record, and the line on which it begins.
pub(super) type Columns = (u64, Vec<Vec<u8>>);

/// The next record, and the line on which it begins; a field in quotes may hold line ends.
///
/// # Errors
/// A file that cannot be read; a quote that is never closed, or is followed by more of the field.
pub(super) fn next(lines: &mut TextLines<impl BufRead>) -> Result<Option<Columns>, DataError> {
    let (mut fields, mut field, mut state) = (Vec::new(), Vec::new(), State::Start);
    let (mut began, mut bytes) = (None, 0);
    loop {
        let Some(row) = lines.row()? else {
            let Some(line) = began else { return Ok(None) };
            return Err(lines.error_at(line, unclosed()));
        };
        let mut problem = None;
        bytes += row.len();
        for &byte in row {
            state = match (state, byte) {
                (State::Start, b'"') => State::Quoted,
                (State::Quoted, b'"') => State::Quote,
                (State::Quote, b'"') => {
                    field.push(b'"');
                    State::Quoted
                }
                (State::Start | State::Plain | State::Quote, b',') => {
                    fields.push(std::mem::take(&mut field));
                    State::Start
                }
                (State::Quote, _) => {
                    let place = fields.len() + 1;
                    problem.get_or_insert_with(|| {
                        format!(
                            "column {place} goes on after its closing quote; a quote inside a column is written twice"
                        )
                    });
                    State::Plain
                }
                (State::Start, _) => {
                    field.push(byte);
                    State::Plain
                }
                (state, _) => {
                    field.push(byte);
                    state
                }
            };
        }
        let line = *began.get_or_insert(lines.number());
        if let Some(problem) = problem {
            return Err(lines.error(problem));
        }
        if state != State::Quoted {
            fields.push(field);
            return Ok(Some((line, fields)));
        }
        field.push(b'\n');
        if bytes > LONGEST_LINE {
            return Err(lines.error_at(line, unclosed()));
        }
    }
}

fn unclosed() -> String {
    "a quote is opened and never closed; close it, or set task.text.format=tsv if quotes mean nothing here".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(text: &[u8]) -> Result<Vec<(u64, Vec<String>)>, String> {
        let mut lines = TextLines::new(text, "rows.csv");
        let mut all = Vec::new();
        while let Some((line, fields)) = next(&mut lines).map_err(|error| error.to_string())? {
            all.push((line, fields.iter().map(|field| String::from_utf8_lossy(field).into_owned()).collect()));
        }
        Ok(all)
    }

    #[test]
    fn quotes_hold_commas_quotes_and_line_ends() {
        let text = b"3,\"Who won, and how\",\"She said \"\"we did\"\".\"\r\n1,a\"b,\n\"2\",\"two\r\nlines\",\"\"\n";
        let expected = [
            (1, vec!["3", "Who won, and how", "She said \"we did\"."]),
            (2, vec!["1", "a\"b", ""]),
            (3, vec!["2", "two\nlines", ""]),
        ];
        let seen = records(text).unwrap();
        let seen: Vec<(u64, Vec<&str>)> =
            seen.iter().map(|(line, fields)| (*line, fields.iter().map(String::as_str).collect())).collect();
        assert_eq!(seen, expected);
        assert_eq!(records(b"").unwrap(), []);
    }

    #[test]
    fn quotes_that_do_not_close_are_named_by_the_line_of_their_record() {
        let cut = records(b"1,a\n2,\"b\nc,d\n").unwrap_err();
        assert!(cut.starts_with("rows.csv:2: a quote is opened and never closed"), "{cut}");
        let more = records(b"1,a\n2,\"b\" c\n").unwrap_err();
        assert!(more.starts_with("rows.csv:2: column 2 goes on after its closing quote"), "{more}");
    }
}
