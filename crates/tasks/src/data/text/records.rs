//! Records of a file, one by one, in any of the forms of files.

use std::{borrow::Cow, io::BufRead, path::Path};

use super::{
    csv,
    fields::{Fields, Record},
    format::TextFormat,
};
use crate::data::{DataError, plain_text::TextLines};

/// Passes every record of a file to `take`, with its line and the names of the columns, if the first line has them. An error of
/// `take` is reported with the line.
///
/// # Errors
/// A file that cannot be read or is not of this form, a line that is too long, and errors of `take`.
pub(super) fn each(
    source: impl BufRead,
    path: &Path,
    format: TextFormat,
    fields: &Fields,
    mut take: impl FnMut(u64, Record, &[String]) -> Result<(), String>,
) -> Result<(), DataError> {
    let mut lines = TextLines::new(source, path);
    let mut names: Option<Vec<String>> = None;
    let headed = fields.has_header();
    // A row with more columns has a separator in a text, which quotes would have kept, or which moves the columns that are
    // counted from the end. Sets that are known have their own broken rows, and know what to do with them.
    let even = format == TextFormat::Csv || format == TextFormat::Tsv && fields.count_from_end();
    let mut columns = None;
    // The first line, where it is a header, or the columns of a record.
    let mut record = |line: u64, values: Vec<Cow<[u8]>>, separator| {
        let (seen, expected) = (values.len(), *columns.get_or_insert(values.len()));
        if even && seen != expected {
            let first = if headed { "as the header has" } else { "as in the first row" };
            return Err(format!(
                "{seen} {separator}-separated columns, expected {expected} {first}; a {separator} within a text would cut it"
            ));
        }
        if headed && names.is_none() {
            names = Some(values.iter().map(|name| String::from_utf8_lossy(name.trim_ascii()).into_owned()).collect());
            return Ok(());
        }
        take(line, Record::Columns(values, separator), names.as_deref().unwrap_or_default())
    };
    match format {
        TextFormat::Csv | TextFormat::AgNews => {
            while let Some((line, values)) = csv::next(&mut lines)? {
                let values = values.into_iter().map(Cow::Owned).collect();
                record(line, values, "comma").map_err(|problem| lines.error_at(line, problem))?;
            }
        }
        TextFormat::JsonLines => {
            for line in 1.. {
                let Some(row) = lines.row()? else { break };
                if row.trim_ascii().is_empty() {
                    continue;
                }
                let parsed = serde_json::from_slice(row).map_err(|error| {
                    let problem = error.to_string();
                    let problem = problem.split(" at line ").next().unwrap_or_default();
                    format!("no JSON object ({problem}, column {}); expected one a line", error.column())
                });
                let taken = parsed.and_then(|object| take(line, Record::Object(object), &[]));
                taken.map_err(|problem| lines.error(problem))?;
            }
        }
        _ => {
            for line in 1.. {
                let Some(row) = lines.row()? else { break };
                let values = row.split(|byte| *byte == b'\t').map(Cow::Borrowed).collect();
                record(line, values, "tab").map_err(|problem| lines.error(problem))?;
            }
        }
    }
    Ok(())
}
