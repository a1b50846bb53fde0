//! `support.*`: the keys with exact weights for each query.

use serde::{Deserialize, Serialize};

use crate::Error;

/// `support.*`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SupportOptions {
    /// The kind of support.
    pub kind: SupportKind,
    /// `local`, `longformer`, `bigbird`: largest distance between a query's position and a visible key.
    pub radius: usize,
    /// `longformer`, `bigbird`: number of first tokens, which see and are seen by all.
    pub globals: usize,
    /// `bigbird`: random key blocks per query block.
    pub random: usize,
    /// `bigbird`, `block`: tokens per block.
    pub block: usize,
    /// `block`: one string per block of queries, one character per block of keys, `1` where the queries see the keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<Vec<String>>,
    /// `smyrf`, `lsh`: rounds of hashing; the support is their union.
    pub rounds: usize,
    /// `smyrf`: maximum keys per cluster.
    pub cluster: usize,
    /// `lsh`: tokens per chunk.
    pub bucket: usize,
    /// `lsh`: number of hash values, even; default: twice the number of chunks, at least 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash_values: Option<usize>,
    /// `lsh`: the first chunk of a round looks back at the last.
    pub cyclic: bool,
    /// `bigbird`: seed for the random blocks.
    pub seed: u64,
}

impl Default for SupportOptions {
    fn default() -> Self {
        Self {
            kind: SupportKind::default(),
            radius: 32,
            globals: 16,
            random: 3,
            block: 64,
            layout: None,
            rounds: 2,
            cluster: 64,
            bucket: 64,
            hash_values: None,
            cyclic: true,
            seed: 0,
        }
    }
}

/// `support.kind`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SupportKind {
    /// Keys within a radius.
    #[default]
    Local,
    /// Keys within a radius, and global tokens (Beltagy et al. 2020).
    Longformer,
    /// Keys within a radius, global tokens, and random blocks (Zaheer et al. 2020).
    Bigbird,
    /// Blocks of a given layout.
    Block,
    /// Clusters of queries and keys with similar projections (SMYRF, Daras et al. 2020).
    Smyrf,
    /// Chunks of tokens with similar hashes (Reformer, Kitaev et al. 2020); queries are the keys.
    Lsh,
    /// Every key.
    Full,
    /// No key.
    Empty,
}

impl SupportKind {
    /// Whether queries and keys are grouped by content.
    pub fn hashes(self) -> bool {
        matches!(self, Self::Smyrf | Self::Lsh)
    }
}

impl SupportOptions {
    /// Name of the kind.
    pub fn name(&self) -> &'static str {
        match self.kind {
            SupportKind::Local => "local",
            SupportKind::Longformer => "longformer",
            SupportKind::Bigbird => "bigbird",
            SupportKind::Block => "block",
            SupportKind::Smyrf => "smyrf",
            SupportKind::Lsh => "lsh",
            SupportKind::Full => "full",
            SupportKind::Empty => "empty",
        }
    }

    /// Checks the sizes that the kind uses.
    ///
    /// # Errors
    /// A size of 0, an odd number of hash values, a layout that is missing or not rectangular.
    pub fn check(&self) -> Result<(), Error> {
        let positive = |key: &str, size: usize| {
            if size == 0 { Err(Error::option(format!("support.{key}"), 0, "at least 1")) } else { Ok(()) }
        };
        match self.kind {
            SupportKind::Bigbird | SupportKind::Block => positive("block", self.block)?,
            SupportKind::Smyrf => positive("rounds", self.rounds).and(positive("cluster", self.cluster))?,
            SupportKind::Lsh => positive("rounds", self.rounds).and(positive("bucket", self.bucket))?,
            _ => {}
        }
        if let (SupportKind::Lsh, Some(values)) = (self.kind, self.hash_values)
            && (values == 0 || values % 2 == 1)
        {
            return Err(Error::option("support.hash_values", values, "an even number, at least 2"));
        }
        if self.kind == SupportKind::Block {
            self.blocks()?;
        }
        Ok(())
    }

    /// The block layout, row by row: which blocks of keys each block of queries sees.
    ///
    /// # Errors
    /// A layout that is missing, empty, not rectangular, or holds other characters than `0` and `1`.
    pub fn blocks(&self) -> Result<Vec<Vec<bool>>, Error> {
        const EXPECTED: &str = "strings of 0 and 1 of equal length, one a block of queries";
        let Some(layout) = &self.layout else {
            return Err(Error::option("support.layout", "missing", format!("{EXPECTED}, as support.kind is 'block'")));
        };
        let bad = layout.is_empty()
            || layout[0].is_empty()
            || layout.iter().any(|row| row.len() != layout[0].len() || row.chars().any(|c| c != '0' && c != '1'));
        if bad {
            return Err(Error::option("support.layout", format!("{layout:?}"), EXPECTED));
        }
        Ok(layout.iter().map(|row| row.chars().map(|c| c == '1').collect()).collect())
    }

    /// Number of hash values of LSH for a sequence of `tokens`.
    pub fn hash_values(&self, tokens: usize) -> usize {
        self.hash_values.unwrap_or_else(|| (2 * tokens.div_ceil(self.bucket)).max(2))
    }
}
