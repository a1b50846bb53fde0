//! Products with weights in their storage format, for inference.

use super::Stored;
use crate::{
    Rows,
    gemm::{self, Matrix, Write},
    parallel::{Disjoint, for_each, with_parts},
    simd::{FEW, dots_stored, multiply, row_stride, transpose},
};

/// Weight elements per task if rows are few: a few microseconds' worth, in full groups of rows that are multiplied
/// together.
const SHARE: usize = 1 << 16;
const ALIGNED: usize = 24;

/// Rows of `x` that are multiplied together: more rows of common widths do not stay in the L1 cache, and a second pass
/// over a task's share of the weight finds it in the L2 cache.
const PASS: usize = 5;

/// Result and weight rows per tile, and row elements at a time: the converted part stays in the L2 cache.
const TALL: usize = 512;
const WIDE: usize = 128;
const DEEP: usize = 1024;

/// `out = x weight^T + bias` with `x [rows,from]`, `weight [to,from]`, `bias [to]`, `out [rows,to]`.
///
/// For a few rows the time is that of reading the weight from memory. Any number of threads gives the same bits, and so
/// does any number of rows up to 8: batched decoding equals decoding alone.
///
/// # Panics
/// If a buffer has the wrong size.
pub fn product([rows, from, to]: [usize; 3], x: &[f32], weight: Stored, bias: Option<&[f32]>, out: &mut [f32]) {
    let is = |len: usize, a: usize, b: usize| Some(len) == a.checked_mul(b);
    assert!(is(x.len(), rows, from) && is(out.len(), rows, to), "rows outside their buffer");
    assert!(is(weight.len(), to, from), "weight of another size");
    if let Stored::Int8 { scales, width, .. } = weight {
        assert!(width == from && scales.len() == to, "scales for another weight");
    }
    assert!(bias.is_none_or(|bias| bias.len() == to), "bias of another size");
    let product = Product { rows, from, to, x, weight, bias, out: Disjoint::new(out) };
    if rows <= FEW { product.few() } else { product.many() }
}

/// Arguments of [`product`], checked.
struct Product<'a> {
    rows: usize,
    from: usize,
    to: usize,
    x: &'a [f32],
    weight: Stored<'a>,
    bias: Option<&'a [f32]>,
    out: Disjoint<'a, f32>,
}

impl Product<'_> {
    /// Dot products with the rows of the weight, which are converted in registers.
    fn few(&self) {
        let wide = (SHARE / self.from.max(1)).max(1).next_multiple_of(ALIGNED);
        for_each(self.to.div_ceil(wide), |task| {
            let left = task * wide;
            let width = wide.min(self.to - left);
            with_parts!(tile = self.rows * width, {
                let pass = self.rows.div_ceil(self.rows.div_ceil(PASS).max(1)).max(1);
                for first in (0..self.rows).step_by(pass) {
                    let (sizes, at) = ((pass.min(self.rows - first), width, self.from), left * self.from);
                    let (x, tile) = (&self.x[first * self.from..], &mut tile[first * width..]);
                    match self.weight {
                        Stored::F32(weight) => dots_stored(sizes, x, &weight[at..], tile, width),
                        Stored::Bf16(weight) => dots_stored(sizes, x, &weight[at..], tile, width),
                        Stored::F16(weight) => dots_stored(sizes, x, &weight[at..], tile, width),
                        Stored::Int8 { numbers, .. } => dots_stored(sizes, x, &numbers[at..], tile, width),
                    }
                }
                if let Stored::Int8 { scales, .. } = self.weight {
                    tile.chunks_exact_mut(width).for_each(|tile| multiply(tile, &scales[left..left + width]));
                }
                self.write(0, left, width, tile);
            });
        });
    }

    /// Tile by tile, with tiles as large as the L2 cache allows.
    fn many(&self) {
        let across = self.to.div_ceil(WIDE);
        for_each(self.rows.div_ceil(TALL) * across, |task| {
            let (top, left) = (task / across * TALL, task % across * WIDE);
            let (height, width) = (TALL.min(self.rows - top), WIDE.min(self.to - left));
            let deep = DEEP.min(self.from);
            let room = if self.weight.is_plain() { 0 } else { width * deep };
            let stride = row_stride(width);
            with_parts!(tile = height * width, room = room, turned = stride * deep, {
                tile.fill(0.0);
                for start in (0..self.from).step_by(DEEP) {
                    let depth = DEEP.min(self.from - start);
                    let offset = left * self.from + start;
                    let rows = Rows { offset, stride: self.from, count: width, width: depth };
                    // Matrix products pack columns slowly.
                    transpose(self.weight.rows(&rows, room), (width, depth), turned, stride);
                    let x = Matrix::rows(&self.x[top * self.from + start..], self.from);
                    let weight = Matrix::rows(turned, stride);
                    gemm::product((height, width, depth), 1.0, x, weight, Write::Add, tile, width);
                }
                self.write(top, left, width, tile);
            });
        });
    }

    /// Writes rows of `tile` plus the bias to the result.
    fn write(&self, top: usize, left: usize, width: usize, tile: &[f32]) {
        for (row, tile) in tile.chunks_exact(width).enumerate() {
            // SAFETY: tiles do not overlap, and each task takes only its own rows, one at a time.
            let out = unsafe { self.out.range((top + row) * self.to + left, width) };
            match self.bias {
                None => out.copy_from_slice(tile),
                Some(bias) => (0..width).for_each(|j| out[j] = tile[j] + bias[left + j]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Storage, parallel::Team, random, stored::Numbers};

    fn draw(len: usize, key: u64) -> Vec<f32> {
        (0..len as u32).map(|i| random::bits(key, i) as f32 / 2f32.powi(31) - 1.0).collect()
    }

    /// The stored weight, and the values it represents.
    fn store(weight: &[f32], [from, to]: [usize; 2], storage: Storage) -> (Numbers, Vec<f64>) {
        let mut numbers = Numbers::new(storage, from);
        let mut exact = Vec::new();
        for row in (0..to).map(|o| &weight[o * from..][..from]) {
            numbers.push(row);
            let most = row.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            exact.extend(row.iter().map(|&x| match storage {
                Storage::F32 => f64::from(x),
                Storage::Bf16 => super::super::bf16::from_f32(x).to_f64(),
                Storage::F16 => super::super::f16::from_f32(x).to_f64(),
                Storage::Int8 => f64::from((x * (127.0 / most)).round()) * f64::from(most / 127.0),
            }));
        }
        (numbers, exact)
    }

    #[test]
    fn agrees_with_the_definition_at_every_size_and_storage() {
        for &storage in Storage::ALL {
            for rows in (0..=9).chain([70, 520]) {
                for (from, to) in [(0, 3), (1, 1), (5, 0), (37, 17), (64, 130), (1030, 12), (3, 300)] {
                    let (x, bias) = (draw(rows * from, 1), draw(to, 2));
                    let (numbers, weight) = store(&draw(from * to, 3), [from, to], storage);
                    for bias in [None, Some(&bias[..])] {
                        let mut out = vec![f32::NAN; rows * to];
                        product([rows, from, to], &x, numbers.stored(), bias, &mut out);
                        for (i, &seen) in out.iter().enumerate() {
                            let (r, o) = (i / to, i % to);
                            let terms = (0..from).map(|c| f64::from(x[r * from + c]) * weight[o * from + c]);
                            let want = terms.sum::<f64>() + bias.map_or(0.0, |bias| f64::from(bias[o]));
                            let off = (f64::from(seen) - want).abs();
                            assert!(off < 2e-6 * (1.0 + from as f64).sqrt(), "{storage:?} {rows} {from} {to}: {off}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn threads_and_rows_beside_it_do_not_change_a_row() {
        let (from, to) = (300, 1000);
        for &storage in Storage::ALL {
            let (numbers, _) = store(&draw(from * to, 5), [from, to], storage);
            for rows in [FEW, 600] {
                let x = draw(rows * from, 4);
                let run = |threads: usize, x: &[f32]| {
                    let mut out = vec![f32::NAN; x.len() / from * to];
                    let sizes = [x.len() / from, from, to];
                    Team::new(threads).unwrap().run(|| product(sizes, x, numbers.stored(), None, &mut out));
                    out
                };
                let out = run(1, &x);
                assert!([2, 7].iter().all(|&threads| run(threads, &x) == out), "{storage:?} {rows}");
                if rows <= FEW {
                    let alone = x.chunks_exact(from).flat_map(|x| run(1, x)).collect::<Vec<_>>();
                    assert_eq!(alone, out, "{storage:?}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "scales for another weight")]
    fn one_scale_per_row_of_the_weight() {
        let weight = Stored::Int8 { numbers: &[1; 6], scales: &[1.0; 3], width: 2 };
        product([1, 3, 2], &[0.0; 3], weight, None, &mut [0.0; 2]);
    }
}
