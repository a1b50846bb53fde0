//! Text classification, and scores of texts: byte by byte, by words or by pieces of words; of single texts or of pairs.
//!
//! Every form of file becomes [`Rows`](rows::Rows) of texts and targets: [`TextFormat`] says which form a file or a folder
//! has, a reader of each form hands over records, and [`Fields`](fields::Fields) takes texts and target out of a record.

mod config;
mod csv;
mod encode;
mod fields;
mod folder;
mod format;
mod input;
mod load;
mod records;
mod rows;
mod set;
#[cfg(test)]
mod tests;

pub(super) use self::encode::words_of;
pub(crate) use self::input::expressions;
pub use self::{
    config::TextConfig,
    encode::{Encoded, TextEncoder},
    fields::{Column, Columns},
    format::{FORMATS, TextFormat},
    input::{InputOptions, TextInput},
    rows::Target,
    set::{TextData, TextPart},
};
