//! Presentation of results: tables, charts and one self-contained HTML page.
//!
//! [`Table`] and [`Chart`] are plain data; each has a rendering for every place it is shown in. [`Report`] combines
//! them with prose and writes `report.html` with `plots/*.svg` next to it. No scripts, no external references.

mod axis;
pub mod chart;
mod draw;
mod escape;
pub mod heat_map;
pub mod html;
mod labels;
mod latex;
pub mod number;
pub mod png;
mod render;
mod sample;
mod svg;
pub mod table;

pub use chart::{Axis, Chart, Data, Mark, Point, Scale, Series};
pub use heat_map::{HeatMap, Panel, Shade};
pub use html::{Block, PAGE, PLOTS, Report, Section, Written};
pub use sample::Sample;
pub use table::{Align, Best, Cell, Column, Format, Table};

/// The README example is a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
