//! Long Range Arena ListOps: the value of a nested expression such as `[MAX 2 9 [MIN 4 7 ] 0 ]`.
//!
//! Source: Nangia and Bowman, "ListOps" (arXiv 1804.06028), with the sizes of Tay et al., "Long Range Arena" (arXiv
//! 2011.04006). [`generate`] generates the trees; [`parse`], [`format()`] and [`evaluate`] handle the text form.
//!
//! Symbols, one per token: the digits 0 to 9 are 0 to 9, the opening operators `[MIN`, `[MAX`, `[MED`, `[SM` 10 to 13,
//! the closing `]` 14. Token ids are one higher, since id 0 is padding.

mod config;
mod generate;
mod text;

pub use self::{
    config::ListOpsConfig,
    generate::generate,
    text::{evaluate, format, parse},
};

/// The tokens, by symbol.
pub const TOKENS: [&str; 15] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "[MIN", "[MAX", "[MED", "[SM", "]"];

/// Values of an expression: 0 to 9.
pub const CLASSES: usize = 10;

/// Symbol of the first opening operator.
const FIRST_OPENER: u8 = 10;

/// Symbol of the closing bracket.
const CLOSER: u8 = 14;

/// An operator over one or more digits; its value is a digit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The median; for an even count the mean of the two middle ones, truncated.
    Median,
    /// The sum, modulo 10.
    SumModulo,
}

impl Operator {
    /// By symbol, [`FIRST_OPENER`] upwards.
    const ALL: [Operator; 4] = [Self::Min, Self::Max, Self::Median, Self::SumModulo];
}
