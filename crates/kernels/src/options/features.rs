//! `features.*`: the feature map whose products approximate `exp(tau q.k)` off the support.

use serde::{Deserialize, Serialize};

use crate::Error;

/// `features.*`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FeatureOptions {
    /// The map.
    pub kind: FeatureKind,
    /// Rows `R` of the projection; there are twice as many hyperbolic features.
    pub rows: usize,
    /// How the rows are drawn.
    pub rows_drawn: RowsDrawn,
    /// Norms of orthogonal rows.
    pub row_norms: RowNorms,
    /// In training, redraw the projection after this many updates; never when 0.
    pub redraw: usize,
}

impl Default for FeatureOptions {
    fn default() -> Self {
        Self {
            kind: FeatureKind::default(),
            rows: 32,
            rows_drawn: RowsDrawn::default(),
            row_norms: RowNorms::default(),
            redraw: 0,
        }
    }
}

/// `features.kind`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FeatureKind {
    /// `exp(+-w.x - |x|^2 / 2)`, both signs (Choromanski et al. 2021).
    #[default]
    Hyperbolic,
    /// `exp(w.x - |x|^2 / 2)`.
    Plain,
    /// `elu(x) + 1`, without a projection.
    Elu,
}

/// `features.rows_drawn`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RowsDrawn {
    /// Blocks of orthogonal rows, of the head width.
    #[default]
    Orthogonal,
    /// Independent Gaussian rows.
    Iid,
}

/// `features.row_norms`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RowNorms {
    /// Norms of Gaussian rows: feature products are unbiased.
    #[default]
    Gaussian,
    /// `sqrt(D)`: less variance, but biased.
    SqrtWidth,
}

impl FeatureOptions {
    /// # Errors
    /// No rows.
    pub fn check(&self) -> Result<(), Error> {
        if self.rows == 0 && self.kind != FeatureKind::Elu {
            return Err(Error::option("features.rows", 0, "at least 1"));
        }
        Ok(())
    }

    /// Number of features `m` for a vector of `width`.
    pub fn count(&self, width: usize) -> usize {
        self.kind.count(self.rows, width)
    }
}

impl FeatureKind {
    /// Number of features `m` for a vector of `width` with a projection of `rows`.
    pub fn count(self, rows: usize, width: usize) -> usize {
        match self {
            Self::Hyperbolic => 2 * rows,
            Self::Plain => rows,
            Self::Elu => width,
        }
    }
}
