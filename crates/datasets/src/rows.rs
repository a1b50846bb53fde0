//! Texts of a column of a Parquet file, if the crate was built for it.

use std::{ops::ControlFlow, path::Path};

/// Reads a column of texts: the file, the name of the column, and what is called with each text, in order, until it breaks.
/// Rows without a text are passed over. The error is a sentence without the name of the file.
pub type RowReader = fn(&Path, &str, &mut dyn FnMut(&str) -> ControlFlow<()>) -> Result<(), String>;

/// The reader of Parquet files, if this build has one (feature `parquet`).
pub fn parquet_reader() -> Option<RowReader> {
    #[cfg(feature = "parquet")]
    return Some(column::read);
    #[cfg(not(feature = "parquet"))]
    None
}

#[cfg(feature = "parquet")]
mod column {
    use std::{fs::File, ops::ControlFlow, path::Path};

    use parquet::{
        basic::Type,
        column::reader::ColumnReader,
        errors::ParquetError,
        file::reader::{FileReader, SerializedFileReader},
    };

    /// Rows read at a time.
    const ROWS: usize = 256;

    pub fn read(path: &Path, column: &str, take: &mut dyn FnMut(&str) -> ControlFlow<()>) -> Result<(), String> {
        let unread = |error: ParquetError| {
            format!(
                "cannot be read as Parquet ({error}); fetch it again, or convert it to JSON lines if this build lacks its codec"
            )
        };
        let file = File::open(path).map_err(|error| format!("cannot be read ({error}); check the path"))?;
        let reader = SerializedFileReader::new(file).map_err(unread)?;
        let schema = reader.metadata().file_metadata().schema_descr();
        let columns = schema.columns();
        let Some(index) = columns.iter().position(|own| own.path().string() == column) else {
            let names: Vec<String> = columns.iter().map(|own| format!("'{}'", own.path().string())).collect();
            return Err(format!("has no column '{column}', only {}; name that of the text", names.join(", ")));
        };
        let own = &columns[index];
        if own.physical_type() != Type::BYTE_ARRAY || own.max_rep_level() > 0 {
            let kind = if own.max_rep_level() > 0 { "lists".into() } else { own.physical_type().to_string() };
            return Err(format!("has {kind} in column '{column}', expected texts; name that of the text"));
        }
        let (mut row, mut levels, mut values) = (0, Vec::new(), Vec::new());
        for group in 0..reader.num_row_groups() {
            let group = reader.get_row_group(group).map_err(unread)?;
            let ColumnReader::ByteArrayColumnReader(mut pages) = group.get_column_reader(index).map_err(unread)? else {
                return Err(format!("has other than texts in column '{column}'; fetch it again"));
            };
            loop {
                levels.clear();
                values.clear();
                let (records, ..) = pages.read_records(ROWS, Some(&mut levels), None, &mut values).map_err(unread)?;
                if records == 0 {
                    break;
                }
                for value in &values {
                    let text = std::str::from_utf8(value.data()).map_err(|error| {
                        let place = error.valid_up_to();
                        format!("has bytes that are not UTF-8 from byte {place} of a text after row {row} on; write it again")
                    })?;
                    if take(text).is_break() {
                        return Ok(());
                    }
                }
                row += records;
            }
        }
        Ok(())
    }

    #[cfg(test)]
    mod tests {
        use std::sync::Arc;

        use parquet::{
            basic::Compression,
            data_type::{ByteArray, ByteArrayType, Int64Type},
            file::{properties::WriterProperties, writer::SerializedFileWriter},
            schema::parser::parse_message_type,
        };

        use super::*;

        /// A file with a number, a text that may be missing, in groups of 300 rows.
        fn write(path: &Path, texts: &[Option<&[u8]>], codec: Compression) {
            let schema =
                parse_message_type("message rows { required int64 id; optional binary text (UTF8); }").unwrap();
            let properties = WriterProperties::builder().set_compression(codec).build();
            let file = File::create(path).unwrap();
            let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties)).unwrap();
            for rows in texts.chunks(300) {
                let mut group = writer.next_row_group().unwrap();
                let mut column = group.next_column().unwrap().unwrap();
                let ids: Vec<i64> = (0..rows.len() as i64).collect();
                column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
                column.close().unwrap();
                let mut column = group.next_column().unwrap().unwrap();
                let values: Vec<ByteArray> = rows.iter().flatten().map(|text| text.to_vec().into()).collect();
                let levels: Vec<i16> = rows.iter().map(|text| i16::from(text.is_some())).collect();
                column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
                column.close().unwrap();
                group.close().unwrap();
            }
            writer.close().unwrap();
        }

        fn texts(path: &Path, column: &str, most: usize) -> Result<Vec<String>, String> {
            let mut seen = Vec::new();
            read(path, column, &mut |text| {
                seen.push(text.to_owned());
                if seen.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            Ok(seen)
        }

        #[test]
        fn a_column_of_texts_is_read_in_order_and_missing_ones_are_passed_over() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("rows.parquet");
            let all: Vec<String> = (0..1000).map(|i| format!("größer {}\n", i / 3)).collect();
            let rows: Vec<Option<&[u8]>> =
                all.iter().enumerate().map(|(i, text)| (i % 7 != 3).then_some(text.as_bytes())).collect();
            for codec in [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::GZIP(Default::default())] {
                write(&path, &rows, codec);
                let expected: Vec<&String> =
                    all.iter().enumerate().filter(|(i, _)| i % 7 != 3).map(|(_, t)| t).collect();
                assert_eq!(texts(&path, "text", 0).unwrap().iter().collect::<Vec<_>>(), expected);
                assert_eq!(texts(&path, "text", 400).unwrap().len(), 400);
            }
            let refused = |column: &str, expected: &str| {
                let error = texts(&path, column, 0).unwrap_err();
                assert!(error.contains(expected), "{error}");
            };
            refused("body", "has no column 'body', only 'id', 'text'");
            refused("id", "has INT64 in column 'id', expected texts");
            write(&path, &[Some(b"sound"), Some(b"bad\xff")], Compression::SNAPPY);
            refused("text", "not UTF-8 from byte 3 of a text");
            let whole = std::fs::read(&path).unwrap();
            std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
            refused("text", "cannot be read as Parquet");
            std::fs::remove_file(&path).unwrap();
            refused("text", "check the path");
        }
    }
}
