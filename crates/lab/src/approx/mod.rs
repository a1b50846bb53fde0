//! How well sparse, low-rank and combined methods approximate attention matrices within one budget, compared with oracles
//! that see the whole matrix (Scatterbrain, arXiv 2110.15343, sections 3 and 5.1, appendix C).
//!
//! Matrices come from the paper's [`Process`], a safetensors [`dump`], or a model on its data ([`capture`]). All figures
//! except times are computed in float64.

mod capture;
mod cost;
mod dense;
mod dump;
mod entries;
mod head;
mod measure;
mod method;
mod oracle;
mod process;
mod report;

pub use capture::{Captured, capture, capture_folder};
pub use cost::Cost;
pub use dense::Dense;
pub use dump::dump;
pub use entries::{EntryCurve, EntryErrors};
pub use head::Head;
pub use measure::{Matrix, MatrixErrors, Mean, Measured, Plan, Related, Row, measure};
pub use method::{Estimate, Estimator, Method};
pub use oracle::{RobustPca, keep_in_all, keep_in_rows, robust_pca, truncate_to_rank};
pub use process::Process;
pub use report::Approximation;

use regard_tasks::{Class, Classed};

/// Why there are no matrices to approximate.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// An invalid file, or unusable tensors in it.
    #[error("{0}")]
    Data(String),
    /// A model whose attention cannot be captured, or layers that it does not have.
    #[error("{0}")]
    Model(String),
    /// Data that cannot be read.
    #[error(transparent)]
    Task(#[from] regard_tasks::data::DataError),
}

impl Classed for SourceError {
    fn class(&self) -> Class {
        match self {
            Self::Data(_) => Class::Data,
            Self::Model(_) => Class::Usage,
            Self::Task(error) => error.class(),
        }
    }
}
