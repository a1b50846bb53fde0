//! Elements in the order of a file, and in ours.

use super::{Entry, How};
use crate::shards::Element;

/// Side of the squares in which matrices are turned, so that both sides stay in the cache.
const TILE: usize = 32;

/// Calls `pair(ours, theirs)` with the places of each element of a parameter.
fn pairs(entry: &Entry, mut pair: impl FnMut(usize, usize)) {
    match &entry.how {
        How::AsIs => (0..entry.source_shape.iter().product()).for_each(|i| pair(i, i)),
        How::Transposed => {
            let rows = entry.source_shape[0];
            let columns: usize = entry.source_shape[1..].iter().product();
            for top in (0..rows).step_by(TILE) {
                for left in (0..columns).step_by(TILE) {
                    for column in left..columns.min(left + TILE) {
                        for row in top..rows.min(top + TILE) {
                            pair(column * rows + row, row * columns + column);
                        }
                    }
                }
            }
        }
        How::Columns(range) => {
            let (columns, rows) = entry.source_shape.split_last().expect("a tensor of columns has an axis");
            for row in 0..rows.iter().product() {
                for (i, column) in range.clone().enumerate() {
                    pair(row * range.len() + i, row * columns + column);
                }
            }
        }
    }
}

/// The numbers of a parameter, from the bytes of its tensor.
pub(crate) fn arrange(entry: &Entry, element: Element, source: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; entry.shape.iter().product()];
    pairs(entry, |ours, theirs| out[ours] = element.get(source, theirs));
    out
}

/// The same in the type of the file.
pub(crate) fn arrange_bytes(entry: &Entry, element: Element, source: &[u8]) -> Vec<u8> {
    let size = element.bytes();
    let mut out = vec![0; entry.shape.iter().product::<usize>() * size];
    pairs(entry, |ours, theirs| {
        out[ours * size..][..size].copy_from_slice(&source[theirs * size..][..size]);
    });
    out
}

/// Writes a parameter over the bytes of its tensor; says whether all numbers stayed numbers.
pub(crate) fn scatter(entry: &Entry, element: Element, values: &[f32], target: &mut [u8]) -> bool {
    let mut finite = true;
    pairs(entry, |ours, theirs| finite &= element.put(target, theirs, values[ours]));
    finite
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(shape: &[usize], source_shape: &[usize], how: How) -> Entry {
        let source_shape = source_shape.to_vec();
        Entry { name: "w".into(), shape: shape.into(), source: "v".into(), source_shape, how, copies: vec![] }
    }

    fn bytes(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
        values.into_iter().flat_map(f32::to_le_bytes).collect()
    }

    #[test]
    fn elements_find_their_places_and_back() {
        let cases = [
            (entry(&[6], &[1, 1, 6], How::AsIs), vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
            (entry(&[3, 2], &[2, 3], How::Transposed), vec![0.0, 3.0, 1.0, 4.0, 2.0, 5.0]),
            (entry(&[2, 1], &[2, 3], How::Columns(1..2)), vec![1.0, 4.0]),
            (entry(&[2], &[6], How::Columns(2..4)), vec![2.0, 3.0]),
        ];
        for (entry, expected) in cases {
            let source = bytes((0..6).map(|i| i as f32));
            assert_eq!(arrange(&entry, Element::F32, &source), expected, "{entry:?}");
            assert_eq!(arrange_bytes(&entry, Element::F32, &source), bytes(expected.iter().copied()));
            let mut back = source.clone();
            let negative: Vec<f32> = expected.iter().map(|x| -1.0 - x).collect();
            assert!(scatter(&entry, Element::F32, &negative, &mut back));
            let changed = back.chunks(4).zip(source.chunks(4)).filter(|(a, b)| a != b).count();
            assert_eq!(changed, expected.len());
            assert_eq!(arrange(&entry, Element::F32, &back), negative);
        }
    }

    #[test]
    fn matrices_larger_than_a_square_are_turned() {
        let (rows, columns) = (TILE + 3, 2 * TILE + 1);
        let entry = entry(&[columns, rows], &[rows, columns], How::Transposed);
        let out = arrange(&entry, Element::F32, &bytes((0..rows * columns).map(|i| i as f32)));
        for row in 0..rows {
            for column in 0..columns {
                assert_eq!(out[column * rows + row], (row * columns + column) as f32);
            }
        }
    }

    #[test]
    fn numbers_beyond_the_type_are_seen() {
        let entry = entry(&[2], &[2], How::AsIs);
        let mut out = [0; 4];
        assert!(scatter(&entry, Element::F16, &[1.5, f32::INFINITY], &mut out));
        assert!(!scatter(&entry, Element::F16, &[1.5, 1e6], &mut out));
        assert!(scatter(&entry, Element::Bf16, &[1.5, 1e6], &mut out));
    }
}
