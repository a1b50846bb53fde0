//! A tensor in float64 that knows its axes.

use regard_kernels::{Layout, View};
use regard_testkit::Random;

/// A tensor in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    pub shape: Vec<usize>,
    pub data: Vec<f64>,
}

impl Array {
    pub fn new(shape: &[usize], data: Vec<f64>) -> Self {
        assert_eq!(data.len(), shape.iter().product::<usize>());
        Self { shape: shape.to_vec(), data }
    }

    /// Standard normal elements times `scale`, each exactly a float32.
    pub fn normal(shape: &[usize], scale: f64, random: &mut Random) -> Self {
        let count = shape.iter().product();
        let data = (0..count).map(|_| f64::from((scale * random.normal()) as f32)).collect();
        Self::new(shape, data)
    }

    pub fn view(&self) -> View<'_, f64> {
        View::new(&self.data, &self.shape)
    }

    pub fn f32(&self) -> Vec<f32> {
        self.data.iter().map(|&x| x as f32).collect()
    }

    /// Index of every element.
    fn indices(&self) -> impl Iterator<Item = Vec<usize>> + '_ {
        (0..self.data.len()).map(|flat| {
            let mut rest = flat;
            let mut index = vec![0; self.shape.len()];
            for (i, size) in index.iter_mut().zip(&self.shape).rev() {
                *i = rest % size;
                rest /= size;
            }
            index
        })
    }

    /// This tensor with `value` at every index that `chosen` names.
    #[must_use]
    pub fn with(&self, value: f64, chosen: impl Fn(&[usize]) -> bool) -> Self {
        let data = self.indices().zip(&self.data).map(|(ix, &x)| if chosen(&ix) { value } else { x }).collect();
        Self::new(&self.shape, data)
    }

    /// The elements at every index that `chosen` names, in order.
    pub fn only(&self, chosen: impl Fn(&[usize]) -> bool) -> Vec<f64> {
        self.indices().zip(&self.data).filter(|(ix, _)| chosen(ix)).map(|(_, &x)| x).collect()
    }

    /// Entries `order` of axis `axis`, in that order.
    #[must_use]
    pub fn select(&self, axis: usize, order: &[usize]) -> Self {
        let inner: usize = self.shape[axis + 1..].iter().product();
        let mut shape = self.shape.clone();
        shape[axis] = order.len();
        let mut data = Vec::with_capacity(shape.iter().product());
        for outer in self.data.chunks_exact(self.shape[axis] * inner) {
            for &i in order {
                data.extend_from_slice(&outer[i * inner..(i + 1) * inner]);
            }
        }
        Self::new(&shape, data)
    }

    /// Axis `i` of the result is axis `axes[i]` of this.
    #[must_use]
    pub fn permuted(&self, axes: &[usize]) -> Self {
        let shape: Vec<usize> = axes.iter().map(|&a| self.shape[a]).collect();
        let strides: Vec<usize> = axes.iter().map(|&a| self.shape[a + 1..].iter().product()).collect();
        let mut result = Self::new(&shape, vec![0.0; self.data.len()]);
        let source: Vec<usize> =
            result.indices().map(|ix| ix.iter().zip(&strides).map(|(i, stride)| i * stride).sum()).collect();
        result.data = source.into_iter().map(|flat| self.data[flat]).collect();
        result
    }

    /// Tensor `name` from head-first order to `layout`, or back: both ways swap the same axes. Tensors without a head
    /// and a token axis stay as they are.
    #[must_use]
    pub fn swapped(&self, name: &str, layout: Layout) -> Self {
        let moves = layout == Layout::TokenFirst && matches!(name, "q" | "k" | "v" | "out");
        match (moves, self.shape.len()) {
            (true, 4) => self.permuted(&[0, 2, 1, 3]),
            (true, 5) => self.permuted(&[0, 3, 2, 1, 4]),
            _ => self.clone(),
        }
    }
}

/// Axis of the tokens in head-first tensor `name` of `rank` axes: queries in `q` and `out`, keys in the others.
pub fn token_axis(name: &str, rank: usize) -> Option<usize> {
    match (name, rank) {
        ("q" | "v" | "out", 4) | ("k", 4 | 5) => Some(rank - 2),
        ("out" | "x" | "x_kv", 3) => Some(1),
        ("bias" | "log_prior", 3) => Some(2),
        _ => None,
    }
}
