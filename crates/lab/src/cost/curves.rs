//! Cost as a curve over length, width and heads: tables and charts.

use super::Count;
use super::formulas::{self, PaperSizes};
use super::model::{CostError, ModelCost, ModelSizes, Run};
use crate::report::{Axis, Cell, Chart, Column, Data, Format, Scale, Series, Table};

/// One curve: the numbers and the picture of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Name for files.
    pub name: String,
    /// The numbers.
    pub table: Table,
    /// The picture.
    pub chart: Chart,
}

/// MGK with two keys and `H / 2` heads over softmax with `H` heads, by the paper's closed forms (figures 3, 4 and 10
/// of the MGK paper): operations over `lengths` and over `widths` (of the model, head width fixed by `heads`), operations and parameters
/// over the number of heads.
pub fn paper(lengths: &[usize], widths: &[usize], heads: &[usize]) -> Vec<Curve> {
    let _ = (lengths, widths, heads);
    Vec::new()
}

/// Multiply-adds, activations and decode state of models over the length of the sequence.
///
/// # Errors
/// Sizes that cannot be.
pub fn over_length(models: &[(String, ModelSizes)], batch: usize, lengths: &[usize]) -> Result<Vec<Curve>, CostError> {
    let _ = (models, batch, lengths);
    Ok(Vec::new())
}
