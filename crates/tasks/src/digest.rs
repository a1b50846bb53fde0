//! SHA-256 of files.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// What a file must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSum {
    /// Its bytes.
    pub bytes: u64,
    /// Its SHA-256 in hexadecimal digits.
    pub sha256: String,
}

impl FileSum {
    /// That of a content.
    pub(crate) fn of(content: &[u8]) -> Self {
        Self { bytes: content.len() as u64, sha256: hexadecimal(&Sha256::digest(content)) }
    }
}

/// The digits of a digest.
pub(crate) fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
