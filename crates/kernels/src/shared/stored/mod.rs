//! Storage formats of caches and weights: four, two or one byte per element.
//!
//! Decoding a token reads every key, value and weight once, so its time is that of reading memory: half the bytes, half
//! the time. Sums are always f32.

mod convert;
mod product;

pub use convert::{Half, narrowed, widened};
pub use half::{bf16, f16};
pub use product::product;

use serde::{Deserialize, Serialize};

use crate::{
    Rows,
    gemm::Matrix,
    simd::{self, Number},
};

/// Storage format.
///
/// The error is that of one stored element, relative to itself or to the largest of its row (one head of one token).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Storage {
    /// 32 bits, exact.
    #[default]
    F32,
    /// 16 bits with the range of f32: relative error 2^-8.
    Bf16,
    /// 16 bits: relative error 2^-11 for magnitudes from 6.1e-5 to 65,504; larger ones become infinite.
    F16,
    /// 8 bits and one scale per row: error 1/254 of the largest element of the row.
    Int8,
}

impl Storage {
    /// All variants.
    pub const ALL: &[Self] = &[Self::F32, Self::Bf16, Self::F16, Self::Int8];

    /// Its name in options.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        }
    }
}

/// Growable rows.
#[derive(Clone, Debug)]
pub enum Numbers {
    /// As [`Storage::F32`].
    F32(Vec<f32>),
    /// As [`Storage::Bf16`].
    Bf16(Vec<bf16>),
    /// As [`Storage::F16`].
    F16(Vec<f16>),
    /// As [`Storage::Int8`].
    Int8 {
        /// Integers up to 127 in magnitude.
        numbers: Vec<i8>,
        /// Scale of each row.
        scales: Vec<f32>,
        /// Elements per row.
        width: usize,
    },
}

/// A view of [`Numbers`], or of a memory-mapped file. [`Rows`] gives the location of elements.
#[derive(Clone, Copy, Debug)]
pub enum Stored<'a> {
    /// As [`Storage::F32`].
    F32(&'a [f32]),
    /// As [`Storage::Bf16`].
    Bf16(&'a [bf16]),
    /// As [`Storage::F16`].
    F16(&'a [f16]),
    /// As [`Storage::Int8`].
    Int8 {
        /// Integers up to 127 in magnitude.
        numbers: &'a [i8],
        /// Scale of each row.
        scales: &'a [f32],
        /// Elements that share a scale.
        width: usize,
    },
}

impl Numbers {
    /// Empty, with rows of `width`.
    pub fn new(storage: Storage, width: usize) -> Self {
        match storage {
            Storage::F32 => Self::F32(Vec::new()),
            Storage::Bf16 => Self::Bf16(Vec::new()),
            Storage::F16 => Self::F16(Vec::new()),
            Storage::Int8 => Self::Int8 { numbers: Vec::new(), scales: Vec::new(), width },
        }
    }

    /// Adds a row.
    pub fn push(&mut self, row: &[f32]) {
        match self {
            Self::F32(numbers) => numbers.extend_from_slice(row),
            Self::Bf16(numbers) => numbers.extend(row.iter().map(|x| bf16::from_f32(*x))),
            Self::F16(numbers) => numbers.extend(row.iter().map(|x| f16::from_f32(*x))),
            Self::Int8 { numbers, scales, .. } => {
                let (scale, inverse) = int8_scale(row);
                scales.push(scale);
                numbers.extend(row.iter().map(|x| (x * inverse).round() as i8));
            }
        }
    }

    /// Replaces row `i`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn set_row(&mut self, i: usize, row: &[f32]) {
        let at = i * row.len();
        match self {
            Self::F32(numbers) => numbers[at..at + row.len()].copy_from_slice(row),
            Self::Bf16(numbers) => {
                numbers[at..].iter_mut().zip(row).for_each(|(number, x)| *number = bf16::from_f32(*x));
            }
            Self::F16(numbers) => numbers[at..].iter_mut().zip(row).for_each(|(number, x)| *number = f16::from_f32(*x)),
            Self::Int8 { numbers, scales, .. } => {
                let (scale, inverse) = int8_scale(row);
                scales[i] = scale;
                numbers[at..].iter_mut().zip(row).for_each(|(number, x)| *number = (x * inverse).round() as i8);
            }
        }
    }

    /// Removes the first `count` elements, which must be full rows.
    pub fn drop_first(&mut self, count: usize) {
        match self {
            Self::F32(numbers) => drop(numbers.drain(..count)),
            Self::Bf16(numbers) => drop(numbers.drain(..count)),
            Self::F16(numbers) => drop(numbers.drain(..count)),
            Self::Int8 { numbers, scales, width } => {
                numbers.drain(..count);
                scales.drain(..count / *width);
            }
        }
    }

    /// View of all rows.
    pub fn stored(&self) -> Stored<'_> {
        match self {
            Self::F32(numbers) => Stored::F32(numbers),
            Self::Bf16(numbers) => Stored::Bf16(numbers),
            Self::F16(numbers) => Stored::F16(numbers),
            Self::Int8 { numbers, scales, width } => Stored::Int8 { numbers, scales, width: *width },
        }
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        match self {
            Self::F32(numbers) => size_of_val(&numbers[..]),
            Self::Bf16(numbers) => size_of_val(&numbers[..]),
            Self::F16(numbers) => size_of_val(&numbers[..]),
            Self::Int8 { numbers, scales, .. } => size_of_val(&numbers[..]) + size_of_val(&scales[..]),
        }
    }
}

/// The scale of a row of integers, and its inverse for quantisation.
fn int8_scale(row: &[f32]) -> (f32, f32) {
    let most = row.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    (most / 127.0, if most > 0.0 { 127.0 / most } else { 0.0 })
}

impl<'a> Stored<'a> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(numbers) => numbers.len(),
            Self::Bf16(numbers) => numbers.len(),
            Self::F16(numbers) => numbers.len(),
            Self::Int8 { numbers, .. } => numbers.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Row `i` of rows of `to.len()` elements, as f32.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn read_row(&self, i: usize, to: &mut [f32]) {
        let width = to.len();
        let row = Rows { offset: i * width, stride: width, count: 1, width };
        match self {
            Self::F32(numbers) => to.copy_from_slice(row.row(numbers, 0)),
            _ => drop(self.rows(&row, to)),
        }
    }

    /// Whether rows are read in place.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Self::F32(_))
    }

    /// The rows as f32: in place, or converted in `room`, contiguously.
    pub(crate) fn rows<'s>(&self, rows: &Rows, room: &'s mut [f32]) -> Matrix<'s>
    where
        'a: 's,
    {
        let width = rows.width;
        if let Self::F32(numbers) = self {
            return Matrix::rows(&numbers[rows.offset..], rows.stride);
        }
        match self {
            Self::F32(_) => {}
            Self::Bf16(numbers) => widen_rows(numbers, rows, room),
            Self::F16(numbers) => widen_rows(numbers, rows, room),
            Self::Int8 { numbers, scales, width } => widen_int8(numbers, (scales, *width), rows, room),
        }
        Matrix::rows(room, width)
    }
}

/// Converts rows of `from` to f32, contiguously.
///
/// # Panics
/// If a row is not within its slice, or `to` is too short.
fn widen_rows<T: Number>(from: &[T], rows: &Rows, to: &mut [f32]) {
    let to = &mut to[..rows.count * rows.width];
    simd::vectorize(
        #[inline(always)]
        || {
            for (i, to) in to.chunks_exact_mut(rows.width.max(1)).enumerate() {
                simd::prefetch(from, rows, i);
                to.iter_mut().zip(rows.row(from, i)).for_each(|(to, from)| *to = from.wide());
            }
        },
    );
}

fn widen_int8(from: &[i8], (scales, width): (&[f32], usize), rows: &Rows, to: &mut [f32]) {
    simd::vectorize(
        #[inline(always)]
        || {
            for (i, to) in to.chunks_exact_mut(rows.width.max(1)).take(rows.count).enumerate() {
                simd::prefetch(from, rows, i);
                let scale = scales[rows.start(i) / width];
                to.iter_mut().zip(rows.row(from, i)).for_each(|(to, from)| *to = scale * from.wide());
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_within_their_error() {
        let (count, heads, width) = (9, 3, 20);
        let number = |i: usize| ((i * 7919) % 2003) as f32 / 100.0 - 10.0;
        let data: Vec<f32> = (0..count * heads * width).map(number).collect();
        for (storage, relative, of_row) in [
            (Storage::F32, 0.0, 0.0),
            (Storage::Bf16, 2f32.powi(-8), 0.0),
            (Storage::F16, 2f32.powi(-11), 0.0),
            (Storage::Int8, 0.0, 1.0 / 253.9),
        ] {
            let mut numbers = Numbers::new(storage, width);
            data.chunks_exact(width).for_each(|row| numbers.push(row));
            numbers.drop_first(2 * heads * width);
            // The second head, token first, from the fourth token on.
            let rows = Rows { offset: heads * width + width, stride: heads * width, count: 5, width };
            let mut room = vec![f32::NAN; 5 * width];
            let matrix = numbers.stored().rows(&rows, &mut room);
            for i in 0..5 {
                let expected = &data[(3 + i) * heads * width + width..][..width];
                let most = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                for (c, x) in expected.iter().enumerate() {
                    let seen = matrix.data[i * matrix.row + c];
                    assert!((seen - x).abs() <= relative * x.abs() + of_row * most, "{storage:?}: {seen}, not {x}");
                }
            }
            let (at, mut row) = (2 * heads + 1, vec![f32::NAN; width]);
            numbers.stored().read_row(at, &mut row);
            let second = Rows { offset: at * width, stride: width, count: 1, width };
            assert_eq!(row, numbers.stored().rows(&second, &mut room).data[..width]);
            let rows = (count - 2) * heads;
            let bytes =
                rows * width * [4, 2, 2, 1][storage as usize] + usize::from(storage == Storage::Int8) * 4 * rows;
            assert_eq!(numbers.bytes(), bytes);
        }
    }

    #[test]
    fn a_row_of_zeros_stays_one() {
        let mut numbers = Numbers::new(Storage::Int8, 4);
        numbers.push(&[0.0; 4]);
        let mut room = [f32::NAN; 4];
        numbers.stored().rows(&Rows { offset: 0, stride: 4, count: 1, width: 4 }, &mut room);
        assert_eq!(room, [0.0; 4]);
    }
}
