//! One page that holds everything: `report.html`, readable without network, without scripts, on paper.

use std::io;
use std::path::{Path, PathBuf};

use super::{Chart, Table};

/// One piece of a section.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// A paragraph of plain text.
    Prose(String),
    /// Preformatted text: a configuration, a command.
    Code(String),
    /// A table.
    Table(Table),
    /// A chart, also written as `plots/NAME.svg`. Names hold letters, digits, `-` and `_`; others turn into `-`.
    Chart {
        /// Name of the file, without extension.
        name: String,
        /// The chart.
        chart: Chart,
    },
}

/// A section with a heading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// Heading; also in the table of contents.
    pub title: String,
    /// Content, top to bottom.
    pub blocks: Vec<Block>,
}

/// What [`Report::write`] has written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The page.
    pub page: PathBuf,
    /// The pictures, in order of appearance.
    pub plots: Vec<PathBuf>,
}

/// The whole report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Title.
    pub title: String,
    /// One paragraph under the title: the answer, before the evidence.
    pub summary: String,
    /// What makes it repeatable, as name and value: command, commit, processor, date.
    pub facts: Vec<(String, String)>,
    /// Content.
    pub sections: Vec<Section>,
}
