//! The dense layer.

use super::{add, for_blocks, row_width, rows_per_block, sum_of_rows};
use crate::{
    Error, Operator, Reference, Saved, View,
    gemm::{Matrix, Write, product},
    memory::arbitrary,
    parallel::{Disjoint, for_each, with_scratch},
    simd::vectorize,
};
#[cfg(target_arch = "x86_64")]
use crate::{
    StoredView,
    stored::{Stored, widened},
    tools::bf16,
};

/// `out = x weight + bias`. Inputs `x [.., from]`, `weight [from, to]` and, with [`Affine::bias`], `bias [to]`.
#[derive(Clone, Copy, Debug)]
pub struct Affine {
    /// Whether there is a bias.
    pub bias: bool,
}

/// Result rows per task. Every task packs the other matrix again, which costs about 4 / rows of its time.
const ROWS: usize = 256;

/// Columns per task where there are too few rows for several tasks, as in decoding.
const COLUMNS: usize = 256;

/// Rows and columns of the weight gradient per task, each element a sum over all rows of `x`: smaller tiles only for
/// weights that would give too few tasks.
fn weight_tile(from: usize, to: usize) -> (usize, usize) {
    if from * to < 4 * 256 * 256 { (128, 128) } else { (256, 256) }
}

impl Operator for Affine {
    fn inputs(&self) -> Vec<&'static str> {
        if self.bias { vec!["x", "weight", "bias"] } else { vec!["x", "weight"] }
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        let from = row_width("x", shapes[0])?;
        let &[rows, to] = shapes[1] else { return Err(Error::rank("weight", shapes[1], 2)) };
        if rows != from {
            return Err(Error::shape("weight", shapes[1], format!("[{from}, ..], a row for each column of x")));
        }
        if self.bias {
            Error::check_shape("bias", shapes[2], &[to])?;
        }
        let mut shape = shapes[0].to_vec();
        *shape.last_mut().expect("at least one axis") = to;
        Ok(shape)
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        let Sizes { rows, from, to } = sizes(&shapes(inputs));
        let bias = self.bias.then(|| inputs[2].data);
        let (x, weight) = (Matrix::rows(inputs[0].data, from), Matrix::rows(inputs[1].data, to));
        multiply((rows, to, from), tile(rows, to), x, weight, bias, out);
        Saved::new()
    }

    fn backward(
        &self,
        inputs: &[View<f32>],
        _out: &[f32],
        _saved: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        let Sizes { rows, from, to } = sizes(&shapes(inputs));
        let [x, weight] = [(0, from), (1, to)].map(|(input, width)| Matrix::rows(inputs[input].data, width));
        let grad_out = Matrix::rows(grad_out, to);
        let x_grad = || {
            let mut grad = arbitrary(rows * from);
            // Packing columns is slow, and every task packs the weight again: transpose it once if there are many
            // tasks.
            let turned = if rows > 2 * ROWS { transpose(weight.data, to) } else { Vec::new() };
            let weight = if turned.is_empty() { weight.transposed() } else { Matrix::rows(&turned, from) };
            multiply((rows, from, to), tile(rows, from), grad_out, weight, None, &mut grad);
            grad
        };
        let weight_grad = || {
            let mut grad = arbitrary(from * to);
            multiply((from, to, rows), weight_tile(from, to), x.transposed(), grad_out, None, &mut grad);
            grad
        };
        let mut grads = vec![wanted[0].then(x_grad), wanted[1].then(weight_grad)];
        if self.bias {
            grads.push(wanted[2].then(|| sum_of_columns(grad_out.data, to)));
        }
        grads
    }

    #[cfg(target_arch = "x86_64")]
    fn forward_stored(&self, inputs: &[StoredView], out: &mut [f32]) -> Option<Saved> {
        let (x, weight) = brain_operands(inputs)?;
        let Sizes { rows, from, to } = sizes(&inputs.iter().map(|input| input.shape).collect::<Vec<_>>());
        let bias = match inputs.get(2).map(|bias| bias.data) {
            None => None,
            Some(Stored::F32(bias)) => Some(bias),
            Some(_) => return None,
        };
        bf16::product((rows, to, from), x, weight, out);
        if let Some(bias) = bias {
            for_blocks(rows.div_ceil(ROWS), [(out, ROWS * to)], |_, [out]| add_bias(out, bias));
        }
        Some(Saved::new())
    }

    #[cfg(target_arch = "x86_64")]
    fn backward_stored(
        &self,
        inputs: &[StoredView],
        grad_out: Stored,
        wanted: &[bool],
    ) -> Option<Vec<Option<Vec<f32>>>> {
        let (x, weight) = brain_operands(inputs)?;
        let Stored::Bf16(grad_numbers) = grad_out else { return None };
        let Sizes { rows, from, to } = sizes(&inputs.iter().map(|input| input.shape).collect::<Vec<_>>());
        let grad_out = bf16::Matrix::rows(bf16::Numbers::Bf16(grad_numbers), to);
        let product = |sizes: (usize, usize, usize), a, b| {
            let mut grad = arbitrary(sizes.0 * sizes.1);
            bf16::product(sizes, a, b, &mut grad);
            grad
        };
        let mut grads = vec![
            wanted[0].then(|| product((rows, from, to), grad_out, weight.transposed())),
            wanted[1].then(|| product((from, to, rows), x.transposed(), grad_out)),
        ];
        if self.bias {
            grads.push(wanted[2].then(|| sum_of_columns(&widened(grad_numbers), to)));
        }
        Some(grads)
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        let [x, weight] = [inputs[0].data, inputs[1].data];
        let bias = self.bias.then(|| inputs[2].data);
        let &[from, to] = inputs[1].shape else { unreachable!("a matrix") };
        let rows = x.len() / from;
        let mut out = Vec::with_capacity(rows * to);
        for row in x.chunks_exact(from) {
            for j in 0..to {
                let product: f64 = (0..from).map(|i| row[i] * weight[i * to + j]).sum();
                out.push(product + bias.map_or(0.0, |bias| bias[j]));
            }
        }
        let Some(grad_out) = grad_out else { return Reference { out, ..Reference::default() } };
        let mut grads = vec![vec![0.0; x.len()], vec![0.0; weight.len()]];
        for row in 0..rows {
            for i in 0..from {
                for j in 0..to {
                    grads[0][row * from + i] += grad_out[row * to + j] * weight[i * to + j];
                    grads[1][i * to + j] += x[row * from + i] * grad_out[row * to + j];
                }
            }
        }
        if self.bias {
            grads.push((0..to).map(|j| grad_out.iter().skip(j).step_by(to).sum()).collect());
        }
        Reference { out, lse: None, grads }
    }
}

struct Sizes {
    rows: usize,
    from: usize,
    to: usize,
}

fn sizes(shapes: &[&[usize]]) -> Sizes {
    let &[from, to] = shapes[1] else { unreachable!("a matrix") };
    Sizes { rows: shapes[0].iter().rev().skip(1).product(), from, to }
}

fn shapes<'a>(inputs: &[View<'a, f32>]) -> Vec<&'a [usize]> {
    inputs.iter().map(|input| input.shape).collect()
}

/// `x` in bf16 and the weight, where the processor multiplies such numbers.
#[cfg(target_arch = "x86_64")]
fn brain_operands<'a>(inputs: &[StoredView<'a>]) -> Option<(bf16::Matrix<'a>, bf16::Matrix<'a>)> {
    let (x, weight) = (inputs[0], inputs[1]);
    let numbers = |stored| match stored {
        Stored::Bf16(numbers) => Some(bf16::Numbers::Bf16(numbers)),
        Stored::F32(numbers) => Some(bf16::Numbers::F32(numbers)),
        _ => None,
    };
    let is_half = matches!(x.data, Stored::Bf16(_)) && bf16::available();
    let rows = |view: StoredView<'a>| Some(bf16::Matrix::rows(numbers(view.data)?, *view.shape.last()?));
    if is_half { rows(x).zip(rows(weight)) } else { None }
}

/// `out = a b + bias` with `a [m,k]`, `b [k,n]`, one task per tile of `out`; every task sums over all of `k`.
fn multiply(
    (m, n, k): (usize, usize, usize),
    (tall, wide): (usize, usize),
    a: Matrix,
    b: Matrix,
    bias: Option<&[f32]>,
    out: &mut [f32],
) {
    assert_eq!(out.len(), m * n, "product of another size");
    let across = n.div_ceil(wide);
    let out = Disjoint::new(out);
    for_each(m.div_ceil(tall) * across, |task| {
        let (top, left) = (task / across * tall, task % across * wide);
        let (height, width) = (tall.min(m - top), wide.min(n - left));
        let a = a.skip_rows(top);
        let b = Matrix { data: &b.data[left * b.column..], ..b };
        let fill = |tile: &mut [f32]| {
            product((height, width, k), 1.0, a, b, Write::Over, tile, width);
            if let Some(bias) = bias {
                add_bias(tile, &bias[left..left + width]);
            }
        };
        if width == n {
            // SAFETY: blocks of rows do not overlap.
            return fill(unsafe { out.range(top * n, height * n) });
        }
        // Rows of different tiles interleave in `out`, so no slice covers a tile.
        with_scratch(height * width, |tile| {
            fill(tile);
            for (row, tile) in tile.chunks_exact(width).enumerate() {
                // SAFETY: tiles do not overlap, and each task takes only its own rows, one at a time.
                unsafe { out.range((top + row) * n + left, width) }.copy_from_slice(tile);
            }
        });
    });
}

/// Tile of a product with `rows` rows of `width`: full rows, written in place, if that gives several tasks.
fn tile(rows: usize, width: usize) -> (usize, usize) {
    (ROWS, if rows > ROWS { width.max(1) } else { COLUMNS })
}

/// The transpose of a matrix with rows of `width`.
fn transpose(matrix: &[f32], width: usize) -> Vec<f32> {
    let height = matrix.len() / width.max(1);
    let mut turned = arbitrary(matrix.len());
    // Result rows that one task writes together: one cache line of each matrix row.
    const LINE: usize = 16;
    for_blocks(width.div_ceil(LINE), [(&mut turned, LINE * height)], |block, [turned]| {
        let left = block * LINE;
        let wide = LINE.min(width - left);
        for (i, row) in matrix.chunks_exact(width).enumerate() {
            for (j, &value) in row[left..left + wide].iter().enumerate() {
                turned[j * height + i] = value;
            }
        }
    });
    turned
}

/// Adds `bias` to every row.
fn add_bias(rows: &mut [f32], bias: &[f32]) {
    vectorize(
        #[inline(always)]
        || rows.chunks_exact_mut(bias.len().max(1)).for_each(|row| add(row, bias)),
    );
}

/// Column sums of a matrix with rows of `width`: first per block of rows, then over the blocks in order.
fn sum_of_columns(rows: &[f32], width: usize) -> Vec<f32> {
    let block = rows_per_block(width) * width;
    let count = rows.len().div_ceil(block.max(1));
    let mut sums = vec![0.0; count * width];
    for_blocks(count, [(&mut sums, width)], |index, [sums]| {
        let rows = &rows[index * block..rows.len().min((index + 1) * block)];
        vectorize(
            #[inline(always)]
            || rows.chunks_exact(width).for_each(|row| add(sums, row)),
        );
    });
    sum_of_rows(&sums, width)
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn values_and_gradients_agree_with_the_twin() {
        for (shape, to) in
            [(vec![1], 1), (vec![3, 5], 7), (vec![2, 150, 40], 300), (vec![530, 40], 9), (vec![3, 520], 510)]
        {
            let from = shape[shape.len() - 1];
            let (x, weight) = (check::draw(&shape, 1.0, 1), check::draw(&[from, to], 1.0 / (from as f32).sqrt(), 2));
            check::all(&Affine { bias: true }, &[x.clone(), weight.clone(), check::draw(&[to], 1.0, 3)]);
            check::all(&Affine { bias: false }, &[x, weight]);
        }
    }

    /// Numbers that bf16 holds: both forms multiply the same, and differ by the order of sums.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn numbers_read_as_they_are_stored_give_what_converted_ones_give() {
        use crate::stored::{bf16 as Number, narrowed};
        for (rows, from, to) in [(1, 1, 1), (150, 40, 70), (7, 33, 5), (4, 0, 3)] {
            let [x, weight, bias, grad] =
                [(rows * from, 1), (from * to, 2), (to, 3), (rows * to, 4)].map(|(count, salt)| {
                    let drawn = if count == 0 { Vec::new() } else { check::draw(&[count], 1.0, salt).data };
                    narrowed::<Number>(&drawn)
                });
            let wide = [&x, &weight, &bias, &grad].map(|numbers| widened(numbers));
            let shapes = [vec![rows, from], vec![from, to], vec![to]];
            let operator = Affine { bias: true };
            let views: Vec<_> = wide.iter().zip(&shapes).map(|(data, shape)| View::new(data, shape)).collect();
            let stored = [Stored::Bf16(&x), Stored::F32(&wide[1]), Stored::F32(&wide[2])];
            let stored: Vec<_> =
                stored.into_iter().zip(&shapes).map(|(data, shape)| StoredView { data, shape }).collect();
            let [mut out, mut expected] = [(); 2].map(|()| vec![f32::NAN; rows * to]);
            if operator.forward_stored(&stored, &mut out).is_none() {
                return assert!(!bf16::available(), "where there are instructions, they are used");
            }
            let saved = operator.forward(&views, &mut expected);
            let grads = operator.backward_stored(&stored, Stored::Bf16(&grad), &[true; 3]).expect("as forward");
            let wanted = operator.backward(&views, &[], &saved, &wide[3], &[true; 3]);
            let pairs = grads.into_iter().zip(wanted).map(|(grad, wanted)| (grad.unwrap(), wanted.unwrap()));
            for (seen, wanted) in pairs.chain([(out, expected)]) {
                let most = wanted.iter().fold(1e-6f32, |most, x| most.max(x.abs()));
                assert!(seen.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-5 * most), "{rows} x {from} x {to}");
            }
        }
    }

    #[test]
    fn empty_tensors_are_fine() {
        for (rows, from, to) in [(0, 3, 2), (3, 0, 2), (3, 2, 0)] {
            let (x, weight, bias) = (vec![1.0; rows * from], vec![1.0; from * to], vec![0.5; to]);
            let shapes = [vec![rows, from], vec![from, to], vec![to]];
            let inputs = [View::new(&x, &shapes[0]), View::new(&weight, &shapes[1]), View::new(&bias, &shapes[2])];
            let mut out = vec![f32::NAN; rows * to];
            let saved = Affine { bias: true }.forward(&inputs, &mut out);
            let grads = Affine { bias: true }.backward(&inputs, &[], &saved, &vec![1.0; rows * to], &[true; 3]);
            assert_eq!(out, vec![if from == 0 { 0.5 } else { f32::NAN }; rows * to]);
            assert_eq!(grads[0], Some(vec![0.0; rows * from]));
            assert_eq!(grads[1], Some(vec![0.0; from * to]));
            assert_eq!(grads[2], Some(vec![rows as f32; to]));
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_errors() {
        let error = |shapes: &[&[usize]]| Affine { bias: true }.out_shape(shapes).unwrap_err().to_string();
        assert!(error(&[&[2, 3], &[4, 5], &[5]]).contains("'weight' has shape [4, 5], expected [3, ..]"));
        assert!(error(&[&[2, 3], &[3], &[3]]).contains("2 axes"));
        assert!(error(&[&[2, 3], &[3, 5], &[4]]).contains("'bias' has shape [4], expected [5]"));
    }
}
