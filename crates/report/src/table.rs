//! Tables as data: columns have a unit, a format and a rule for the best value; rows are cells.

use serde::Serialize;

use super::Sample;

/// Alignment of a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Align {
    /// Names and prose.
    #[default]
    Left,
    /// Numbers.
    Right,
}

/// Number format of a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Format {
    /// Plain: integers in groups of three, others with four significant digits.
    #[default]
    Plain,
    /// This many digits after the point.
    Fixed(usize),
    /// This many significant digits.
    Significant(usize),
    /// A fraction, times 100, with this many digits after the point and a percent sign.
    Percent(usize),
    /// A count with an SI prefix: `12.3 M`.
    Count,
    /// Bytes with an IEC prefix: `1.50 MiB`.
    Bytes,
    /// A ratio with three significant digits and a multiplication sign: `0.65×`.
    Ratio,
}

/// Which value of a column is best and highlighted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Best {
    /// Values are not ranked.
    #[default]
    None,
    /// The largest.
    Highest,
    /// The smallest.
    Lowest,
}

/// One column.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Column {
    /// Heading.
    pub title: String,
    /// Heading above those of neighbouring columns with the same one; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Unit, shown next to the heading; empty for none.
    pub unit: String,
    /// Alignment.
    pub align: Align,
    /// Number format.
    pub format: Format,
    /// Which value is highlighted.
    pub best: Best,
}

impl Column {
    /// A column of text.
    pub fn text(title: impl Into<String>) -> Self {
        let (group, unit, align) = (String::new(), String::new(), Align::Left);
        Self { title: title.into(), group, unit, align, format: Format::Plain, best: Best::None }
    }

    /// A column of numbers.
    pub fn number(title: impl Into<String>, format: Format) -> Self {
        Self { align: Align::Right, format, ..Self::text(title) }
    }

    /// With a unit.
    #[must_use]
    pub fn unit(mut self, unit: impl Into<String>) -> Self {
        self.unit = unit.into();
        self
    }

    /// Below a heading that it shares with its neighbours.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = group.into();
        self
    }

    /// With the best value highlighted.
    #[must_use]
    pub fn best(mut self, best: Best) -> Self {
        self.best = best;
        self
    }
}

/// One cell.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Cell {
    /// Empty: shown as a dash.
    #[default]
    Empty,
    /// Text.
    Text(String),
    /// A number; non-finite ones are shown as a dash.
    Number(f64),
    /// An exact integer.
    Whole(u128),
    /// A mean over runs with its deviation. A deviation of `None` (one run) shows the mean alone.
    Estimate {
        /// Mean over the runs.
        mean: f64,
        /// Standard deviation over the runs.
        deviation: Option<f64>,
    },
    /// Another cell with what is said of it.
    Marked {
        /// The cell.
        cell: Box<Cell>,
        /// A short remark after it; may be empty.
        mark: String,
        /// Whether it is highlighted, whatever the rule of its column says.
        best: bool,
    },
}

impl Cell {
    /// Its value, if finite.
    pub fn value(&self) -> Option<f64> {
        let value = match self {
            Self::Empty | Self::Text(_) => return None,
            Self::Number(value) => *value,
            Self::Whole(value) => *value as f64,
            Self::Estimate { mean, .. } => *mean,
            Self::Marked { cell, .. } => return cell.value(),
        };
        value.is_finite().then_some(value)
    }

    /// With a short remark, and highlighted if `best`.
    #[must_use]
    pub fn marked(self, mark: impl Into<String>, best: bool) -> Self {
        Self::Marked { cell: Box::new(self), mark: mark.into(), best }
    }

    /// Mean and sample deviation (n - 1) of the finite values; empty if there are none.
    pub fn estimate(values: &[f64]) -> Self {
        let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        let sample = Sample::of(&finite);
        if finite.is_empty() {
            Self::Empty
        } else {
            Self::Estimate { mean: sample.mean, deviation: sample.deviation() }
        }
    }
}

macro_rules! from_whole {
    ($($kind:ty),*) => {$(
        impl From<$kind> for Cell {
            fn from(value: $kind) -> Self { Self::Whole(value as u128) }
        }
    )*};
}
from_whole!(u32, u64, u128, usize);

impl From<f64> for Cell {
    fn from(value: f64) -> Self {
        Self::Number(value)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Empty, Into::into)
    }
}

/// A table. Renderings: [`Table::to_text`], [`Table::to_markdown`], [`Table::to_csv`], [`Table::to_latex`],
/// [`Table::to_html`], [`Table::to_json`].
///
/// ```
/// use regard_report::{Best, Column, Format, Table};
///
/// let time = Column::number("time", Format::Significant(3)).unit("ms").best(Best::Lowest);
/// let mut table = Table::new("A forward pass", vec![Column::text("mechanism"), time]);
/// table.push(vec!["softmax".into(), 12.5.into()]);
/// table.push(vec!["linear".into(), 3.25.into()]);
/// let table = table.note("medians of 15 runs");
/// assert!(table.to_text().contains("3.25 *")); // the best value
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Title above it; may be empty.
    pub title: String,
    /// Columns, left to right.
    pub columns: Vec<Column>,
    /// Rows, each as long as `columns` (missing cells read as empty, extra ones are not shown).
    pub rows: Vec<Vec<Cell>>,
    /// Remarks under it: number of runs, units, what is not counted.
    pub notes: Vec<String>,
}

impl Table {
    /// A table without rows.
    pub fn new(title: impl Into<String>, columns: Vec<Column>) -> Self {
        Self { title: title.into(), columns, ..Self::default() }
    }

    /// Adds a row.
    pub fn push(&mut self, row: Vec<Cell>) {
        self.rows.push(row);
    }

    /// With a remark under it.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// The cell at this position, empty if the row is short.
    pub(super) fn cell(&self, row: usize, column: usize) -> &Cell {
        static EMPTY: Cell = Cell::Empty;
        self.rows.get(row).and_then(|cells| cells.get(column)).unwrap_or(&EMPTY)
    }

    /// Whether this cell holds the best value of its column as formatted (ties share it). A column whose values all
    /// look the same has no best one. Of marked cells, what their mark says.
    pub(super) fn is_best(&self, row: usize, column: usize) -> bool {
        if let Cell::Marked { best, .. } = self.cell(row, column) {
            return *best;
        }
        let wanted = &self.columns[column];
        let sign = match wanted.best {
            Best::None => return false,
            Best::Highest => 1.0,
            Best::Lowest => -1.0,
        };
        let written = |row: usize| wanted.format.mean(self.cell(row, column));
        let ranked = (0..self.rows.len()).filter(|row| self.cell(*row, column).value().is_some());
        let key = |row: &usize| sign * self.cell(*row, column).value().unwrap_or(f64::NAN);
        let Some(best) = ranked.clone().max_by(|a, b| key(a).total_cmp(&key(b))) else { return false };
        self.cell(row, column).value().is_some()
            && written(row) == written(best)
            && ranked.clone().any(|other| written(other) != written(best))
    }
}
