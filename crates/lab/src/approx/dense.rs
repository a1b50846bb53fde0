//! Dense matrices in float64.

use faer::MatRef;

/// A matrix in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Elements, row by row.
    pub data: Vec<f64>,
}

impl Dense {
    /// # Panics
    /// If there are not `rows * columns` elements.
    pub fn new(rows: usize, columns: usize, data: Vec<f64>) -> Self {
        assert_eq!(data.len(), rows * columns, "elements of a {rows} x {columns} matrix");
        Self { rows, columns, data }
    }

    /// Element `(i, j)` is `f(i, j)`.
    pub fn from_fn(rows: usize, columns: usize, mut f: impl FnMut(usize, usize) -> f64) -> Self {
        let mut data = Vec::with_capacity(rows * columns);
        for i in 0..rows {
            data.extend((0..columns).map(|j| f(i, j)));
        }
        Self { rows, columns, data }
    }

    /// Row `i`.
    pub fn row(&self, i: usize) -> &[f64] {
        &self.data[i * self.columns..(i + 1) * self.columns]
    }

    /// The same shape with other elements.
    pub fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        Self { data: self.data.iter().map(|x| f(*x)).collect(), ..*self }
    }

    /// Combines two matrices of one shape element by element.
    pub fn zip(&self, other: &Self, f: impl Fn(f64, f64) -> f64) -> Self {
        let data = self.data.iter().zip(&other.data).map(|(x, y)| f(*x, *y)).collect();
        Self { data, ..*self }
    }

    /// The Frobenius norm. Elements are scaled by the largest first, so that large ones do not overflow.
    pub fn norm(&self) -> f64 {
        let top = self.data.iter().fold(0.0f64, |top, x| top.max(x.abs()));
        if top == 0.0 || !top.is_finite() {
            return if self.data.iter().any(|x| x.is_nan()) { f64::NAN } else { top };
        }
        top * self.data.iter().map(|x| (x / top).powi(2)).sum::<f64>().sqrt()
    }

    /// `self * other`, or `self * other^T`.
    pub fn product(&self, other: &Self, transposed: bool) -> Self {
        let right = other.view();
        let product = if transposed { self.view() * right.transpose() } else { self.view() * right };
        Self::from_fn(product.nrows(), product.ncols(), |i, j| product[(i, j)])
    }

    /// `|self - exact|_F / |exact|_F`; the norm itself if the exact matrix is 0.
    pub fn relative_error(&self, exact: &Self) -> f64 {
        let (difference, norm) = (self.zip(exact, |x, y| x - y).norm(), exact.norm());
        if norm > 0.0 { difference / norm } else { difference }
    }

    /// Row-wise softmax; a row without a finite logit is 0.
    pub fn softmax(&self) -> Self {
        let mut data = self.data.clone();
        for row in data.chunks_exact_mut(self.columns.max(1)) {
            let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let shift = if top.is_finite() { top } else { 0.0 };
            row.iter_mut().for_each(|x| *x = (*x - shift).exp());
            let sum: f64 = row.iter().sum();
            if sum > 0.0 {
                row.iter_mut().for_each(|x| *x /= sum);
            }
        }
        Self { data, ..*self }
    }

    /// Mean entropy in nats of rows of weights.
    pub fn mean_row_entropy(&self) -> f64 {
        let entropy: f64 = self.data.iter().filter(|w| **w > 0.0).map(|w| -w * w.ln()).sum();
        entropy / self.rows as f64
    }

    /// Its singular values; `None` if they do not converge.
    pub fn singular_values(&self) -> Option<Vec<f64>> {
        self.view().singular_values().ok()
    }

    pub(super) fn view(&self) -> MatRef<'_, f64> {
        MatRef::from_row_major_slice(&self.data, self.rows, self.columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_norms_and_errors() {
        let a = Dense::new(2, 3, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let b = Dense::new(3, 1, vec![1.0, 0.0, -1.0]);
        assert_eq!(a.product(&b, false), Dense::new(2, 1, vec![-2.0, -2.0]));
        assert_eq!(a.product(&a, true), Dense::new(2, 2, vec![14.0, 32.0, 32.0, 77.0]));
        assert_eq!(Dense::new(1, 2, vec![3e300, 4e300]).norm(), 5e300);
        assert!(Dense::new(1, 2, vec![f64::NAN, 1.0]).norm().is_nan());
        assert_eq!(Dense::new(1, 2, vec![3.0, 3.0]).relative_error(&Dense::new(1, 2, vec![3.0, 4.0])), 0.2);
    }

    #[test]
    fn rows_are_weights_with_an_entropy() {
        let logs = Dense::new(3, 2, vec![1000.0, 1000.0, 0.0, 3f64.ln(), f64::NEG_INFINITY, f64::NEG_INFINITY]);
        let weights = logs.softmax();
        let want = [0.5, 0.5, 0.25, 0.75, 0.0, 0.0];
        assert!(weights.data.iter().zip(want).all(|(x, y)| (x - y).abs() < 1e-15), "{weights:?}");
        let entropy = (2f64.ln() + 0.25 * 4f64.ln() + 0.75 * (4.0f64 / 3.0).ln()) / 3.0;
        assert!((weights.mean_row_entropy() - entropy).abs() < 1e-15);
    }
}
