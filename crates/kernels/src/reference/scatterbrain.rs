//! Float64 twin of sparse and low-rank attention.

use crate::{Reference, Scatterbrain, View};

pub(crate) fn scatterbrain(_operator: &Scatterbrain, _inputs: &[View<f64>], _grad_out: Option<&[f64]>) -> Reference {
    unimplemented!()
}
