//! Long Range Arena Pathfinder: whether two discs are joined by one dashed contour, read pixel by pixel.
//!
//! Source: Linsley et al., "Learning long-range spatial dependencies with horizontal gated recurrent units" (arXiv
//! 1805.08315), with the sizes of Tay et al., "Long Range Arena" (arXiv 2011.04006). A picture holds two contours of
//! short dashes (paddles), a few shorter contours as distractors, and two discs: one at the start of a contour, the
//! other at the end of the same contour (label 1) or of the other one (label 0).
//!
//! [`generate`] draws a set, [`picture`] one item of it, [`sheet()`] a page of pictures to look at. A token is the grey
//! value of a pixel, 0 to 255, row by row; there is no padding, as all pictures have one size.

mod config;
mod contour;
mod draw;
mod generate;
mod sheet;

pub use self::{
    config::{Difficulty, PathfinderConfig},
    generate::{Picture, generate, picture},
    sheet::sheet,
};

/// Labels: 0 for discs at two contours, 1 for discs at one.
pub const CLASSES: usize = 2;
