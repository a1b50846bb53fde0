//! Tokens cut out of tensors, and put back.

use std::{borrow::Cow, ops::Range};

use regard_kernels::{Layout, View};

/// A tensor of its own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    pub data: Vec<f32>,
    pub shape: Vec<usize>,
}

impl Part {
    pub fn zeros(shape: &[usize]) -> Self {
        Self { data: vec![0.0; shape.iter().product()], shape: shape.to_vec() }
    }

    pub fn view(&self) -> View<'_, f32> {
        View::new(&self.data, &self.shape)
    }

    /// Entries `range` of `axis` of a tensor.
    pub fn cut(tensor: &View<f32>, axis: usize, range: &Range<usize>) -> Self {
        let mut shape = tensor.shape.to_vec();
        shape[axis] = range.len();
        let mut data = Vec::with_capacity(shape.iter().product());
        runs(tensor.shape, axis, range).for_each(|run| data.extend_from_slice(&tensor.data[run]));
        Self { data, shape }
    }

    /// Replaces entries `range` of `axis` by those of `part`.
    pub fn put(&mut self, axis: usize, range: &Range<usize>, part: &[f32]) {
        self.each(axis, range, part, |to, from| to.copy_from_slice(from));
    }

    /// Replaces entries `range` of `axis` by entries `from` of a tensor.
    pub fn copy(&mut self, axis: usize, range: &Range<usize>, tensor: &View<f32>, from: &Range<usize>) {
        let places = runs(&self.shape, axis, range).zip(runs(tensor.shape, axis, from));
        places.for_each(|(to, from)| self.data[to].copy_from_slice(&tensor.data[from]));
    }

    /// Adds `part` to entries `range` of `axis`.
    pub fn add(&mut self, axis: usize, range: &Range<usize>, part: &[f32]) {
        self.each(axis, range, part, add);
    }

    fn each(&mut self, axis: usize, range: &Range<usize>, part: &[f32], mut write: impl FnMut(&mut [f32], &[f32])) {
        let mut from = part;
        for run in runs(&self.shape, axis, range) {
            let (first, rest) = from.split_at(run.len());
            write(&mut self.data[run], first);
            from = rest;
        }
        assert!(from.is_empty(), "a part of another size");
    }
}

/// A tensor that may be another's.
#[derive(Clone, Debug)]
pub(crate) struct Lent<'a> {
    pub data: Cow<'a, [f32]>,
    pub shape: Vec<usize>,
}

impl Lent<'_> {
    pub fn view(&self) -> View<'_, f32> {
        View::new(&self.data, &self.shape)
    }

    pub fn into_part(self) -> Part {
        Part { data: self.data.into_owned(), shape: self.shape }
    }
}

/// Where entries `range` of `axis` lie in a tensor of this shape.
fn runs(shape: &[usize], axis: usize, range: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let inner: usize = shape[axis + 1..].iter().product();
    let (outer, stride) = (shape[..axis].iter().product(), shape[axis] * inner);
    let (start, end) = (range.start * inner, range.end * inner);
    (0..outer).map(move |n: usize| n * stride + start..n * stride + end)
}

/// `to += from`.
pub(crate) fn add(to: &mut [f32], from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

/// What the entries of an input belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Along {
    /// Queries, along this axis.
    Queries(usize),
    /// Keys, along this axis.
    Keys(usize),
    /// No token: every rank has the whole tensor.
    Nothing,
}

impl Along {
    /// Of an input of an operator by its name and number of axes.
    pub fn of(name: &str, layout: Layout, rank: usize) -> Self {
        let tokens = if layout == Layout::HeadFirst { rank.saturating_sub(2) } else { 1 };
        match (name, rank) {
            ("q", _) => Self::Queries(tokens),
            ("k" | "v", _) => Self::Keys(tokens),
            ("x", _) => Self::Queries(1),
            ("x_kv", _) => Self::Keys(1),
            // One prior a key.
            ("log_prior", 3) => Self::Keys(2),
            _ => Self::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_where_they_were() {
        let shape = [2, 3, 2];
        let data: Vec<f32> = (0..12).map(|x| x as f32).collect();
        let part = Part::cut(&View::new(&data, &shape), 1, &(1..3));
        assert_eq!(
            (&part.data[..], &part.shape[..]),
            (&[2.0, 3.0, 4.0, 5.0, 8.0, 9.0, 10.0, 11.0][..], &[2, 2, 2][..])
        );
        let mut whole = Part::zeros(&shape);
        whole.put(1, &(1..3), &part.data);
        whole.add(1, &(1..3), &part.data);
        assert_eq!(whole.data, [0.0, 0.0, 4.0, 6.0, 8.0, 10.0, 0.0, 0.0, 16.0, 18.0, 20.0, 22.0]);
    }
}
