//! Features of blocks of rows, in the logarithm.

use crate::{
    features::FeatureKind,
    gemm::{Matrix, Write, product},
    simd,
};

/// A feature map with its projection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FeatureMap<'a> {
    pub kind: FeatureKind,
    /// `[R,D]`; empty with `elu`.
    pub projection: &'a [f32],
    pub width: usize,
    /// Score scale `tau`.
    pub scale: f32,
}

impl<'a> FeatureMap<'a> {
    pub fn new(kind: FeatureKind, projection: &'a [f32], width: usize, scale: f32) -> Self {
        Self { kind, projection, width, scale }
    }

    /// Rows `R` of the projection.
    pub fn rows(&self) -> usize {
        self.projection.len() / self.width
    }

    /// Features `m`.
    pub fn count(&self) -> usize {
        self.kind.count(self.rows(), self.width)
    }
}
