//! Supports of tokens with similar hashes: clusters of SMYRF (Daras et al. 2020), chunks of Reformer (Kitaev et al.
//! 2020).
//!
//! Each query head hashes independently. A round sorts its tokens by one integer with the hash above the index, so ties
//! keep token order.

use super::groups::{Group, Labels, Lists, Pass, Positions, Support};
use crate::{
    Rows,
    gemm::{self, Matrix, Write},
    parallel,
    scatterbrain::Problem,
    simd,
};

/// Tokens hashed at a time.
const BLOCK: usize = 128;
/// Hash values closer than this, relatively, are recomputed in f64.
const CLOSE: f32 = 1e-5;

/// Queries or keys in the order of a round.
struct Order {
    tokens: Vec<u32>,
    labels: Vec<f32>,
}

impl Order {
    /// Sorts tokens by `codes`, which end in the token's index in `bits` bits, and cuts them into parts of `size`.
    fn new(mut codes: Vec<u64>, bits: u32, size: usize) -> Self {
        codes.sort_unstable();
        let mut tokens: Vec<u32> = codes.iter().map(|code| (code & ((1 << bits) - 1)) as u32).collect();
        let mut labels = vec![0.0; tokens.len()];
        for (part, tokens) in tokens.chunks_mut(size).enumerate() {
            tokens.sort_unstable();
            tokens.iter().for_each(|&token| labels[token as usize] = part as f32);
        }
        Self { tokens, labels }
    }

    /// The tokens that `keep` keeps, and the range of each of `parts` parts of `size` among them.
    fn parts(&self, size: usize, parts: usize, keep: impl Fn(u32) -> bool) -> (Vec<u32>, Vec<std::ops::Range<usize>>) {
        let mut kept = Vec::with_capacity(self.tokens.len());
        let ranges = (0..parts).map(|part| {
            let count = self.tokens.len();
            let from = kept.len();
            let part = (part * size).min(count)..((part + 1) * size).min(count);
            kept.extend(self.tokens[part].iter().copied().filter(|&token| keep(token)));
            from..kept.len()
        });
        let ranges = ranges.collect();
        (kept, ranges)
    }
}

/// Bits that hold the index of one of `count` tokens.
fn index_bits(count: usize) -> u32 {
    usize::BITS - count.saturating_sub(1).leading_zeros()
}

fn is_real(real: Option<&[u8]>, token: usize) -> bool {
    real.is_none_or(|real| real[token] != 0)
}

/// Runs `build(b, h, round)` for all batch rows, heads and rounds, and merges the rounds of each head.
fn rounds<T: Send>(
    problem: &Problem,
    rounds: usize,
    build: impl Fn(usize, usize, usize) -> T + Sync + Send,
) -> Vec<Vec<T>> {
    let heads = problem.shape.heads;
    let count = problem.shape.batch * heads;
    let built = parallel::map(count * rounds, |task| {
        let (head, round) = (task / rounds, task % rounds);
        build(head / heads, head % heads, round)
    });
    let mut built = built.into_iter();
    (0..count).map(|_| built.by_ref().take(rounds).collect()).collect()
}

/// Supports of all heads, `[B,H]`, under clusters of at most `cluster` keys along `directions [rounds,D+2]`.
pub fn smyrf(problem: &Problem, count: usize, cluster: usize, directions: &[f32]) -> Vec<Support> {
    let shape = &problem.shape;
    let clusters = shape.keys.div_ceil(cluster);
    let (query_size, key_size) = (shape.queries.div_ceil(clusters), shape.keys.div_ceil(clusters));
    let built = rounds(problem, count, |b, h, round| {
        let direction = &directions[round * (shape.head_width + 2)..][..shape.head_width + 2];
        let (real, real_queries) = (problem.mask.valid_row(b), problem.mask.query_row(b, shape.queries));
        let queries = lifted(problem.q, shape.query_rows(b, h), direction, real_queries);
        let keys = lifted(problem.k, shape.key_rows(b, h / shape.group(), 0), direction, real);
        let bound = queries.largest + keys.largest;
        let queries = Order::new(queries.codes(bound, direction[direction.len() - 1]), queries.bits, query_size);
        let keys = Order::new(keys.codes(bound, direction[direction.len() - 2]), keys.bits, key_size);
        let (query_list, query_ranges) = queries.parts(query_size, clusters, |_| true);
        let (key_list, key_ranges) = keys.parts(key_size, clusters, |j| is_real(real, j as usize));
        let labels = Labels { queries: queries.labels, keys: keys.labels, before_first: None };
        let groups = query_ranges
            .into_iter()
            .zip(key_ranges)
            .filter(|(queries, keys)| !queries.is_empty() && !keys.is_empty())
            .map(|(queries, keys)| Group { queries, keys, radius: None, not_self: false })
            .collect();
        (Lists { queries: query_list, keys: key_list, labels }, Pass { lists: round, earlier: round, groups })
    });
    built
        .into_iter()
        .map(|rounds| {
            let (lists, passes) = rounds.into_iter().unzip();
            Support { lists, passes }
        })
        .collect()
}

/// Projections of the queries or keys, before the last coordinate is added.
struct Lifted<'a> {
    projections: Vec<f64>,
    squares: Vec<f64>,
    /// Largest squared norm among real tokens.
    largest: f64,
    real: Option<&'a [u8]>,
    bits: u32,
}

fn lifted<'a>(data: &[f32], rows: Rows, direction: &[f32], real: Option<&'a [u8]>) -> Lifted<'a> {
    let direction: Vec<f64> = direction[..rows.width].iter().map(|&a| f64::from(a)).collect();
    let mut projections = vec![0.0; rows.count];
    let mut squares = vec![0.0; rows.count];
    simd::vectorize(
        #[inline(always)]
        || {
            for (i, (projection, square)) in projections.iter_mut().zip(&mut squares).enumerate() {
                simd::prefetch(data, &rows, i);
                (*projection, *square) = project(rows.row(data, i), &direction);
            }
        },
    );
    let real_squares = squares.iter().enumerate().filter(|(i, _)| is_real(real, *i));
    let largest = real_squares.fold(0.0, |largest: f64, (_, &square)| largest.max(square));
    Lifted { projections, squares, largest, real, bits: index_bits(rows.count) }
}

/// `x.a` and `x.x`.
#[inline(always)]
fn project(x: &[f32], a: &[f64]) -> (f64, f64) {
    const LANES: usize = 8;
    let (mut along, mut square) = ([0.0f64; LANES], [0.0f64; LANES]);
    let (x_blocks, x_rest) = x.as_chunks::<LANES>();
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    for (x, a) in x_blocks.iter().zip(a_blocks) {
        for l in 0..LANES {
            let x = f64::from(x[l]);
            along[l] = x.mul_add(a[l], along[l]);
            square[l] = x.mul_add(x, square[l]);
        }
    }
    for (l, (&x, &a)) in x_rest.iter().zip(a_rest).enumerate() {
        let x = f64::from(x);
        along[l] = x.mul_add(a, along[l]);
        square[l] = x.mul_add(x, square[l]);
    }
    (along.iter().sum(), square.iter().sum())
}

impl Lifted<'_> {
    /// Sorting codes of `x.a + sqrt(bound - |x|^2) last`; padded tokens come last.
    fn codes(&self, bound: f64, last: f32) -> Vec<u64> {
        let last = f64::from(last);
        let code = |i: usize| {
            let lift = (bound - self.squares[i]).max(0.0).sqrt();
            let above = if is_real(self.real, i) { ordered(lift.mul_add(last, self.projections[i])) } else { u64::MAX };
            above >> self.bits << self.bits | i as u64
        };
        (0..self.projections.len()).map(code).collect()
    }
}

/// Bits that sort like the floats.
fn ordered(x: f64) -> u64 {
    // Adding 0 merges the two zeros.
    let bits = (x + 0.0).to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

/// Supports of all heads, `[B,H]`, under chunks of `chunk` tokens sorted by hash, with `rotations [rounds,D,values/2]`.
pub fn lsh(problem: &Problem, count: usize, chunk: usize, cyclic: bool, rotations: &[f32]) -> Vec<Support> {
    let shape = &problem.shape;
    let tokens = shape.queries;
    let chunks = tokens.div_ceil(chunk);
    let half = rotations.len() / (count * shape.head_width);
    let bits = index_bits(tokens);
    let built = rounds(problem, count, |b, h, round| {
        let real = problem.mask.valid_row(b);
        let rotation = &rotations[round * shape.head_width * half..][..shape.head_width * half];
        let hashes = hashes(problem.q, shape.query_rows(b, h), rotation, half);
        let code = |(i, hash)| (if is_real(real, i) { hash } else { u64::MAX >> bits }) << bits | i as u64;
        let order = Order::new(hashes.into_iter().enumerate().map(code).collect(), bits, chunk);
        let (queries, query_ranges) = order.parts(chunk, chunks, |_| true);
        let (keys, key_ranges) = order.parts(chunk, chunks, |j| is_real(real, j as usize));
        let before_first = if cyclic && chunks > 1 { chunks - 1 } else { chunks };
        let group = |queries: usize, keys: usize| Group {
            queries: query_ranges[queries].clone(),
            keys: key_ranges[keys].clone(),
            radius: None,
            not_self: true,
        };
        let own = (0..chunks).map(|c| group(c, c)).collect();
        let before = |c: usize| if c > 0 { c - 1 } else { before_first };
        let back = (0..chunks).filter(|&c| before(c) < chunks).map(|c| group(c, before(c))).collect();
        let passes = [own, back].map(|mut groups: Vec<Group>| {
            groups.retain(|group| !group.queries.is_empty() && !group.keys.is_empty());
            Pass { lists: round, earlier: round, groups }
        });
        let before_first = Some(if before_first < chunks { before_first as f32 } else { -1.0 });
        let labels = Labels { queries: order.labels.clone(), keys: order.labels, before_first };
        (Lists { queries, keys, labels }, passes)
    });
    let positions = Positions::new(problem.mask, tokens, tokens);
    let supports: Vec<Support> = built
        .into_iter()
        .map(|rounds| {
            let (lists, passes): (Vec<_>, Vec<_>) = rounds.into_iter().unzip();
            Support { lists, passes: passes.into_iter().flatten().collect() }
        })
        .collect();
    let lonely = parallel::map(supports.len(), |head| {
        let real = problem.mask.valid_row(head / shape.heads);
        lonely(&supports[head], tokens, positions, |i| is_real(real, i))
    });
    supports.into_iter().zip(lonely).map(|(support, alone)| support.with_lonely(alone)).collect()
}

/// Real tokens that see no other token.
fn lonely(support: &Support, tokens: usize, positions: Positions, is_real: impl Fn(usize) -> bool) -> Vec<u32> {
    let mut alone: Vec<bool> = (0..tokens).map(is_real).collect();
    for pass in &support.passes {
        let lists = &support.lists[pass.lists];
        for group in &pass.groups {
            let keys = &lists.keys[group.keys.clone()];
            for &i in &lists.queries[group.queries.clone()] {
                let seen = &keys[positions.seen(i, None, keys)];
                alone[i as usize] &= seen.iter().take(2).all(|&j| j == i);
            }
        }
    }
    (0..tokens as u32).filter(|&i| alone[i as usize]).collect()
}

impl Support {
    /// Adds a pass in which these tokens attend to themselves.
    fn with_lonely(mut self, alone: Vec<u32>) -> Self {
        let single = |at| Group { queries: at..at + 1, keys: at..at + 1, radius: None, not_self: false };
        let groups = (0..alone.len()).map(single).collect();
        self.passes.push(Pass { lists: self.lists.len(), earlier: 0, groups });
        self.lists.push(Lists { queries: alone.clone(), keys: alone, labels: Labels::default() });
        self
    }
}

/// Index of the largest of `[x R, -x R]` for every row `x`; ties go to the lowest.
fn hashes(data: &[f32], rows: Rows, rotation: &[f32], half: usize) -> Vec<u64> {
    let mut hashes = Vec::with_capacity(rows.count);
    parallel::with_scratch(BLOCK * half, |turned| {
        for start in (0..rows.count).step_by(BLOCK) {
            let n = BLOCK.min(rows.count - start);
            let x = Matrix::rows(&data[rows.start(start)..], rows.stride);
            gemm::product((n, half, rows.width), 1.0, x, Matrix::rows(rotation, half), Write::Over, turned, half);
            simd::vectorize(
                #[inline(always)]
                || {
                    for (i, turned) in turned.chunks_exact(half).take(n).enumerate() {
                        let careful = || careful_hash(rows.row(data, start + i), rotation, half);
                        hashes.push(clear_hash(turned).unwrap_or_else(careful) as u64);
                    }
                },
            );
        }
    });
    hashes
}

/// The index of the largest of `values` and their negatives, if no other is close.
#[inline(always)]
fn clear_hash(values: &[f32]) -> Option<usize> {
    let mut lanes = [0.0f32; simd::LANES];
    let (blocks, rest) = values.as_chunks::<{ simd::LANES }>();
    for block in blocks {
        for (lane, value) in lanes.iter_mut().zip(block) {
            *lane = if value.abs() > *lane { value.abs() } else { *lane };
        }
    }
    let best = lanes.iter().chain(rest).fold(0.0f32, |best, value| best.max(value.abs()));
    let close = best - CLOSE * best;
    let (mut count, mut at) = (0, 0);
    for (a, value) in values.iter().enumerate() {
        let hit = value.abs() >= close;
        count += u32::from(hit);
        at = if hit { a as u32 } else { at };
    }
    let at = at as usize;
    (count == 1).then(|| if values[at] < 0.0 { values.len() + at } else { at })
}

/// The hash of one row in f64.
fn careful_hash(x: &[f32], rotation: &[f32], half: usize) -> usize {
    let (mut index, mut best) = (0, f64::NEG_INFINITY);
    let turned = |a: usize| -> f64 {
        x.iter().zip(rotation[a..].iter().step_by(half)).map(|(&x, &r)| f64::from(x) * f64::from(r)).sum()
    };
    let turned: Vec<f64> = (0..half).map(turned).collect();
    for (at, value) in turned.iter().copied().chain(turned.iter().map(|value| -value)).enumerate() {
        if value > best {
            (index, best) = (at, value);
        }
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_keep_the_order_of_numbers_and_of_equal_tokens() {
        let numbers = [f64::NEG_INFINITY, -2.5, -1e-300, 0.0, 1e-300, 2.5, 1e300];
        assert!(numbers.is_sorted_by(|a, b| ordered(*a) < ordered(*b)));
        assert_eq!(ordered(-0.0), ordered(0.0));
        let (hashes, bits) = ([3u64, 1, 3, 1, 0], index_bits(5));
        let codes = hashes.iter().enumerate().map(|(i, hash)| hash << bits | i as u64).collect();
        let order = Order::new(codes, bits, 2);
        assert_eq!(order.tokens, [1, 4, 0, 3, 2], "parts (4, 1), (3, 0), (2) ascend");
        assert_eq!(order.labels, [1.0, 0.0, 2.0, 1.0, 0.0]);
    }

    #[test]
    fn a_close_hash_is_decided_like_a_clear_one() {
        let rotation = [0.6, -0.8, 0.1, 0.3, 0.2, -0.9];
        for x in [[1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [-1.0, 0.2]] {
            let turned: Vec<f32> = (0..3).map(|a| x[0] * rotation[a] + x[1] * rotation[3 + a]).collect();
            assert_eq!(clear_hash(&turned), Some(careful_hash(&x, &rotation, 3)));
        }
        assert_eq!(clear_hash(&[0.5, -0.7]), Some(3));
        assert_eq!(clear_hash(&[0.7, -0.7, 0.1]), None);
        assert_eq!(careful_hash(&[0.0, 0.0], &rotation, 3), 0, "the lowest of equal hashes");
    }
}
