#![doc = include_str!("../README.md")]

mod catalogue;
mod error;
mod options;
mod rows;
mod source;
mod store;
mod sums;
mod unpack;

pub use catalogue::{CATALOGUE, Dataset, Download, find};
pub use error::Error;
pub use options::option;
pub use rows::{RowReader, parquet_reader};
pub use store::{Fetched, Progress, State, Store};
pub use sums::{Finding, MANIFEST, verify};
