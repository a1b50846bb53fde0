//! Event files for TensorBoard: scalars only.
//!
//! A file is a sequence of TFRecords, each an `Event` message of TensorFlow's `event.proto`, of which only the fields
//! used here are written, by hand.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use super::TrainError;

/// An event file, appended to.
#[derive(Debug)]
pub struct EventWriter {
    file: File,
    path: PathBuf,
}

impl EventWriter {
    /// A new event file in `directory`. Events of earlier files from `restart` on, if any, are declared invalid, as those
    /// that an interrupted run wrote after its last checkpoint.
    ///
    /// # Errors
    /// A directory that cannot be written.
    pub fn create(directory: &Path, restart: Option<usize>) -> Result<Self, TrainError> {
        let seconds = now() as u64;
        // Names sort by time; two runs of one second get different names.
        let mut attempt = 0;
        let (file, path) = loop {
            let path = directory.join(format!("events.out.tfevents.{seconds:010}.regard.{attempt}"));
            match File::create_new(&path) {
                Ok(file) => break (file, path),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && attempt < 1000 => attempt += 1,
                Err(error) => return Err(TrainError::writing(&path)(error)),
            }
        };
        let mut writer = Self { file, path };
        // file_version = 3, without which readers refuse the file.
        writer.event(0, |event| bytes_field(event, 3, b"brain.Event:2"))?;
        if let Some(step) = restart {
            // session_log = 7 { status = 1: START (1) }.
            writer.event(step, |event| bytes_field(event, 7, &[0x08, 1]))?;
        }
        Ok(writer)
    }

    /// Writes values at `step`, by tag.
    ///
    /// # Errors
    /// A full disk.
    pub fn scalars(&mut self, step: usize, values: &[(&str, f64)]) -> Result<(), TrainError> {
        let mut summary = Vec::new();
        for (tag, value) in values {
            // Value { tag = 1, simple_value = 2 }.
            let mut message = Vec::new();
            bytes_field(&mut message, 1, tag.as_bytes());
            message.push(2 << 3 | 5);
            message.extend((*value as f32).to_le_bytes());
            bytes_field(&mut summary, 1, &message);
        }
        self.event(step, |event| bytes_field(event, 5, &summary))
    }

    /// An `Event { wall_time = 1, step = 2, .. }`.
    fn event(&mut self, step: usize, content: impl FnOnce(&mut Vec<u8>)) -> Result<(), TrainError> {
        let mut event = vec![1 << 3 | 1];
        event.extend(now().to_le_bytes());
        event.push(2 << 3);
        varint(&mut event, step as u64);
        content(&mut event);
        self.file.write_all(&record(&event)).map_err(TrainError::writing(&self.path))
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A length-delimited field.
fn bytes_field(out: &mut Vec<u8>, number: u8, content: &[u8]) {
    out.push(number << 3 | 2);
    varint(out, content.len() as u64);
    out.extend(content);
}

/// TFRecord: length, its checksum, content, its checksum.
fn record(content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(content.len() + 16);
    record.extend(length);
    record.extend(masked(&length).to_le_bytes());
    record.extend(content);
    record.extend(masked(content).to_le_bytes());
    record
}

/// The checksum as TFRecords store it, rotated and shifted so that checksums of data that contain checksums stay sound.
fn masked(content: &[u8]) -> u32 {
    crc32c(content).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), bit by bit: records are short.
fn crc32c(content: &[u8]) -> u32 {
    let byte = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    };
    !content.iter().fold(!0, byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_equals_known_vectors() {
        // RFC 3720, section B.4, and the check value of the catalogue of CRCs.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        // The masked value of leveldb's test of "foo" reads back.
        let mask = masked(b"foo");
        assert_eq!(mask.wrapping_sub(0xa282_ead8).rotate_left(15), crc32c(b"foo"));
    }

    #[test]
    fn a_file_reads_back_record_by_record() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(directory.path(), Some(301)).unwrap();
        writer.scalars(300, &[("train/loss", 0.5), ("valid/accuracy", 0.25)]).unwrap();
        let bytes = std::fs::read(&writer.path).unwrap();
        let mut rest = bytes.as_slice();
        let mut events = Vec::new();
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            assert_eq!(rest[8..12], masked(&rest[..8]).to_le_bytes());
            let content = &rest[12..12 + length];
            assert_eq!(rest[12 + length..16 + length], masked(content).to_le_bytes());
            events.push(content);
            rest = &rest[16 + length..];
        }
        assert_eq!(events.len(), 3);
        for event in &events {
            assert_eq!(event[0], 0x09, "wall_time is a double in field 1");
            assert!(f64::from_le_bytes(event[1..9].try_into().unwrap()) > 1.7e9);
        }
        assert_eq!(events[0][9..], [&[0x10, 0, 0x1a, 13][..], b"brain.Event:2"].concat());
        assert_eq!(events[1][9..], [0x10, 0xad, 2, 0x3a, 2, 0x08, 1]);
        let value = |tag: &str, value: f32| {
            let length = tag.len() as u8;
            let head = [0x0a, length + 7, 0x0a, length];
            [&head[..], tag.as_bytes(), &[0x15], &value.to_le_bytes()].concat()
        };
        let summary = [value("train/loss", 0.5), value("valid/accuracy", 0.25)].concat();
        assert_eq!(events[2][9..], [&[0x10, 0xac, 2, 0x2a, summary.len() as u8][..], &summary].concat());
    }

    #[test]
    fn files_of_one_second_do_not_overwrite_each_other() {
        let directory = tempfile::tempdir().unwrap();
        for _ in 0..3 {
            EventWriter::create(directory.path(), None).unwrap();
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 3);
    }
}
