//! Files of text.

use std::{fs, io::Read, path::Path};

use flate2::read::MultiGzDecoder;

use crate::PretrainedError;

/// The first bytes of gzip (RFC 1952, section 2.3.1).
const GZIP: &[u8] = &[0x1f, 0x8b];

/// The text of a file, decompressed where it is gzip.
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
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        PretrainedError::content(path, format!("byte {at} is not UTF-8, expected text; convert it"))
    })
}
