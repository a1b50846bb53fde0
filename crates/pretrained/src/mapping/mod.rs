//! Which tensor of a file is which parameter.

mod families;
mod layout;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::Architecture;

pub(crate) use self::layout::{arrange, arrange_bytes, scatter};

/// A parameter under our name, and where it lies in the files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Our name, such as `layers.0.attention.w_q`.
    pub name: String,
    /// Sizes of its axes: matrices are `[in, out]`.
    pub shape: Vec<usize>,
    /// The name of the tensor in the files.
    pub source: String,
    /// Sizes of its axes there.
    pub source_shape: Vec<usize>,
    /// How one becomes the other.
    pub how: How,
    /// Other tensors of the files, if they are there, that hold the same: a table of tokens under the name of the head.
    pub copies: Vec<String>,
}

/// How a tensor becomes a parameter, and back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// The same numbers in the same order, whatever the axes.
    AsIs,
    /// The first axis becomes the last, the others become the first.
    Transposed,
    /// These places of the last axis; others are of other parameters.
    Columns(Range<usize>),
}

/// The parameters of an architecture, in the order of the computation.
///
/// `present` says which tensors there are: files of a family differ in whether names begin with that of the base model
/// (`bert.`), and in some old names. With none at all, the names are those that `save_pretrained` gives.
pub fn mapping(architecture: &Architecture, present: impl Fn(&str) -> bool) -> Vec<Entry> {
    families::entries(architecture, &present)
}

/// Whether a tensor that is no parameter may be left out: constants, and parts of the training that the model has no use for.
pub(crate) fn ignorable(architecture: &Architecture, name: &str) -> bool {
    families::ignorable(architecture, name)
}
