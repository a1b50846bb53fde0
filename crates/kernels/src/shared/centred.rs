//! Distances do not depend on where the origin lies, but their rounding does: `|q|^2 - 2 q.k + |k|^2` of vectors that share an
//! offset is a small difference of large numbers. Where the keys of a head lie together away from the origin, they and the
//! queries that read them are moved there.

use std::borrow::Cow;

use crate::{AttentionShape, Mask, simd};

/// Keys, spread over all, that tell where those of a head lie.
const SAMPLE: usize = 16;

/// `q` and `k`, those of each head less the mean of its keys, where that is longer than keys are apart. Under a causal mask they
/// stay: no row may depend on a key to come, not even in its last bit.
pub(crate) fn centred<'a>(shape: &AttentionShape, mask: &Mask, q: &'a [f32], k: &'a [f32]) -> [Cow<'a, [f32]>; 2] {
    if mask.causal {
        return [q, k].map(Cow::Borrowed);
    }
    let mut moved: Option<[Vec<f32>; 2]> = None;
    for (b, hk) in (0..shape.batch).flat_map(|b| (0..shape.key_heads).map(move |hk| (b, hk))) {
        let Some(centre) = centre(shape, mask, k, (b, hk)) else { continue };
        let [moved_q, moved_k] = moved.get_or_insert_with(|| [q.to_vec(), k.to_vec()]);
        for r in 0..shape.components {
            subtract(moved_k, &shape.key_rows(b, hk, r), &centre);
        }
        for h in hk * shape.group()..(hk + 1) * shape.group() {
            subtract(moved_q, &shape.query_rows(b, h), &centre);
        }
    }
    match moved {
        Some(moved) => moved.map(Cow::Owned),
        None => [q, k].map(Cow::Borrowed),
    }
}

/// The mean of a head's keys, if it is longer than their mean distance from it.
fn centre(shape: &AttentionShape, mask: &Mask, k: &[f32], (b, hk): (usize, usize)) -> Option<Vec<f32>> {
    let real = mask.valid_row(b);
    let (mut sum, mut squares, mut count) = (vec![0.0; shape.head_width], 0.0, 0.0);
    for j in (0..shape.keys).step_by(shape.keys.div_ceil(SAMPLE)).filter(|j| real.is_none_or(|real| real[*j] != 0)) {
        for r in 0..shape.components {
            let key = shape.key_rows(b, hk, r).row(k, j);
            simd::vectorize(
                #[inline(always)]
                || {
                    simd::add_scaled(&mut sum, 1.0, key);
                    squares += simd::dot(key, key);
                },
            );
            count += 1.0;
        }
    }
    sum.iter_mut().for_each(|x| *x /= count);
    // Numbers that are none, and squares that overflow, move nothing.
    let square = simd::dot(&sum, &sum);
    (square.is_finite() && 2.0 * square > squares / count).then_some(sum)
}

fn subtract(data: &mut [f32], rows: &crate::Rows, centre: &[f32]) {
    for i in 0..rows.count {
        for (x, c) in rows.row_mut(data, i).iter_mut().zip(centre) {
            *x -= c;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layout, random::bits};

    fn shape(q: &[usize], k: &[usize]) -> AttentionShape {
        AttentionShape::from_tensors(q, k, &[k[0], k[1], k[3], 1], Layout::HeadFirst, true).unwrap()
    }

    #[test]
    fn only_heads_away_from_the_origin_move_and_distances_stay() {
        let shape = shape(&[1, 4, 3, 2], &[1, 2, 2, 40, 2]);
        let number = |i: usize| (bits(1, i as u32) % 64) as f32 / 16.0 - 2.0;
        let q: Vec<f32> = (0..24).map(|i| number(i) + if i < 12 { 0.0 } else { 64.0 }).collect();
        let k: Vec<f32> = (0..320).map(|i| number(i + 50) + if i < 160 { 0.0 } else { 64.0 }).collect();
        let [moved_q, moved_k] = centred(&shape, &Mask::none(), &q, &k);
        assert_eq!((&moved_q[..12], &moved_k[..160]), (&q[..12], &k[..160]), "the first head lies at the origin");
        assert!(moved_q[12..].iter().chain(&moved_k[160..]).all(|x| x.abs() < 8.0));
        for (i, j) in [(12, 160), (23, 319), (17, 255)] {
            assert!(((moved_q[i] - moved_k[j]) - (q[i] - k[j])).abs() < 1e-5);
        }
        assert!(matches!(centred(&shape, &Mask::none(), &q, &[0.0; 320]), [Cow::Borrowed(_), _]));
        assert!(matches!(centred(&shape, &Mask::causal(), &q, &k), [Cow::Borrowed(_), _]));
    }

    #[test]
    fn padded_and_wild_keys_move_nothing() {
        let shape = shape(&[1, 1, 1, 1], &[1, 1, 1, 2, 1]);
        let q = [3.0];
        for wild in [f32::NAN, f32::INFINITY, 1e30] {
            let k = [wild, 1.0];
            assert!(matches!(centred(&shape, &Mask::none(), &q, &k), [Cow::Borrowed(_), _]), "{wild}");
        }
        let padding = crate::Padding::new(1, 2, vec![0, 0]).unwrap();
        let mask = Mask::none().with_valid(Some(std::sync::Arc::new(padding)));
        assert!(matches!(centred(&shape, &mask, &q, &[5.0, 5.0]), [Cow::Borrowed(_), _]), "no key to be seen");
    }
}
