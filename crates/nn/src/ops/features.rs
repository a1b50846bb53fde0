//! Positive features instead of scores: sums over keys, for causal masks chunk by chunk with a running state.
//!
//! Features are logarithms until they are multiplied. Each feature of the keys has a scale, which the queries undo, and each
//! query has one, which cancels, so that exponentials stay in range.

use std::ops::Range;

use burn::tensor::{Bool, Tensor};
use regard_kernels::{Mask, features::FeatureKind};

use super::composed::padded;
#[cfg(feature = "cube")]
use super::fused;

/// A log scale below that of any feature.
const LOWEST: f64 = -1e30;
/// The log features of what is hidden: finite, and nothing even under [`LOWEST`].
pub(super) const HIDDEN: f64 = -3e38;
/// Queries and keys from one state of causal attention to the next.
const CHUNK: usize = 64;

/// `ln(elu(x) + 1)`.
pub(super) fn log_elu<const R: usize>(x: Tensor<R>) -> Tensor<R> {
    x.clone().clamp_max(0.0) + x.clamp_min(0.0).add_scalar(1.0).log()
}

/// `ln phi(x)` of `x [B,H,N,D]`: `[B,H,N,m]`, with rows `projection [R,D]` where the features have some.
pub(super) fn log_features(x: Tensor<4>, projection: Option<Tensor<2>>, kind: FeatureKind, scale: f64) -> Tensor<4> {
    if kind == FeatureKind::Elu {
        return log_elu(x);
    }
    let x = x.mul_scalar(scale.sqrt());
    let rows = projection.expect("features have a projection");
    let along = x.clone().matmul(rows.transpose().unsqueeze::<4>());
    let along = match kind {
        FeatureKind::Hyperbolic => Tensor::cat(vec![along.clone(), along.neg()], 3),
        _ => along,
    };
    let count = along.dims()[3] as f64;
    along - x.square().sum_dim(3).mul_scalar(0.5).add_scalar(0.5 * count.ln())
}

/// `ln phi(q_i).phi(k_j)`, `[B,H,N,S]`, of log features.
pub(super) fn log_products(q: Tensor<4>, k: Tensor<4>) -> Tensor<4> {
    let (most_q, most_k) = (q.clone().detach().max_dim(3), k.clone().detach().max_dim(3));
    let products = (q - most_q.clone()).exp().matmul((k - most_k.clone()).exp().transpose());
    // Where the largest features of a query and a key are far apart, their product may be below the smallest float.
    products.clamp_min(f32::MIN_POSITIVE).log() + most_q + most_k.transpose()
}

/// `phi(q_i) sum_j phi(k_j) v_j / phi(q_i) sum_j phi(k_j)` over the keys that each query sees, of log features `q [B,H,N,m]`
/// and `k [B,H,S,m]`, `v [B,H,S,Dv]`: `[B,H,N,Dv]`. The mask has no window.
pub(super) fn attend(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, mask: &Mask) -> Tensor<4> {
    let k = hide_padding(k, mask);
    #[cfg(feature = "cube")]
    if let Some(out) = mask.causal.then(|| fused::causal(&q, &k, &v)).flatten() {
        return out;
    }
    let v = with_ones(v);
    if mask.causal {
        return causal(q, k, v);
    }
    let state = Sums::of(k, v);
    let (features, _) = queries_under(q, &state.scale);
    divide(features.matmul(state.sums))
}

/// Averages of `x [B,H,N,D]` over the tokens that each position sees, weighted by a softmax of `logits [B,H,N]`:
/// `[B,H,N,D]`, or one for all positions, `[B,H,1,D]`, without a causal mask.
pub(super) fn averages(logits: Tensor<3>, x: Tensor<4>, mask: &Mask) -> Tensor<4> {
    // Features of one channel: 1 for every query, the weight for every token.
    let keys = logits.unsqueeze_dim::<4>(3);
    let queries = if mask.causal { keys.dims()[2] } else { 1 };
    attend(keys.clone().narrow(2, 0, queries).zeros_like(), keys, x, mask)
}

/// Values with a channel of ones, whose sum is the denominator.
pub(super) fn with_ones(v: Tensor<4>) -> Tensor<4> {
    let ones = v.clone().narrow(3, 0, 1).zeros_like().add_scalar(1.0);
    Tensor::cat(vec![v, ones], 3)
}

/// Log features `[B,H,S,m]` of keys, hidden where there is padding.
pub(super) fn hide_padding(k: Tensor<4>, mask: &Mask) -> Tensor<4> {
    let dims = k.dims();
    match padded(mask, [dims[0], 1, dims[2], 1], &k.device()) {
        Some(padded) => k.mask_fill(padded.expand(dims), HIDDEN),
        None => k,
    }
}

/// `sum_j phi(k_j) [v_j, 1]` for each feature, with the log scale of the feature.
#[derive(Clone)]
pub(super) struct Sums {
    /// `[B,H,1,m]`.
    pub scale: Tensor<4>,
    /// `[B,H,m,Dv+1]`, over `exp(scale)`.
    pub sums: Tensor<4>,
}

impl Sums {
    /// Of `k [B,H,S,m]` and `values [B,H,S,Dv+1]`.
    pub fn of(k: Tensor<4>, values: Tensor<4>) -> Self {
        let scale = k.clone().detach().max_dim(2).clamp_min(LOWEST);
        // The other product, transposed, would pass a transposed gradient on to `k`: where its features are a sum over
        // components, Burn 0.22 gets theirs wrong on wgpu.
        let sums = values.transpose().matmul((k - scale.clone()).exp()).transpose();
        Self { scale, sums }
    }

    /// Of some of the keys.
    pub fn of_range(k: &Tensor<4>, values: &Tensor<4>, range: Range<usize>) -> Self {
        let part = |x: &Tensor<4>| x.clone().narrow(2, range.start, range.len());
        Self::of(part(k), part(values))
    }

    /// Under a scale that is no smaller.
    fn under(&self, scale: &Tensor<4>) -> Tensor<4> {
        self.sums.clone() * (self.scale.clone() - scale.clone()).exp().transpose()
    }

    /// Of no keys, for features and values as these.
    pub fn none(k: &Tensor<4>, values: &Tensor<4>) -> Self {
        let [batch, heads, _, m] = k.dims();
        let (channels, device) = (values.dims()[3], k.device());
        Self {
            scale: Tensor::full([batch, heads, 1, m], LOWEST, &device),
            sums: Tensor::zeros([batch, heads, m, channels], &device),
        }
    }

    /// Of the keys of both.
    pub fn plus(&self, other: &Self) -> Self {
        let scale = self.scale.clone().max_pair(other.scale.clone());
        Self { sums: self.under(&scale) + other.under(&scale), scale }
    }
}

/// Features of queries `[B,H,N,m]` for keys under a scale `[B,H,1,m]`, and the log scale of each query.
fn queries_under(q: Tensor<4>, scale: &Tensor<4>) -> (Tensor<4>, Tensor<4>) {
    let lifted = q + scale.clone();
    let top = lifted.clone().detach().max_dim(3);
    ((lifted - top.clone()).exp(), top)
}

/// Sums by their last channel; 0 where there is nothing to divide by.
fn divide(sums: Tensor<4>) -> Tensor<4> {
    let width = sums.dims()[3] - 1;
    let total = sums.clone().narrow(3, width, 1);
    let none = total.clone().detach().lower_equal_elem(0.0);
    sums.narrow(3, 0, width) / total.mask_fill(none, 1.0)
}

/// `values` have a channel of ones.
fn causal(q: Tensor<4>, k: Tensor<4>, values: Tensor<4>) -> Tensor<4> {
    let device = q.device();
    let [batch, heads, n, _] = q.dims();
    let [s, channels] = [k.dims()[2], values.dims()[3]];
    // All queries see the keys before the first one's position; queries before the first key see nothing.
    let (early, blind) = (s.saturating_sub(n), n.saturating_sub(s));
    let tokens = n - blind;
    let chunk = CHUNK.min(tokens);
    let chunks = tokens.div_ceil(chunk);
    let fold = |x: Tensor<4>, skip: usize, fill: f64| {
        let width = x.dims()[3];
        let x = x.narrow(2, skip, tokens);
        let further = chunks * chunk - tokens;
        let x = match further {
            0 => x,
            _ => Tensor::cat(vec![x, Tensor::full([batch, heads, further, width], fill, &device)], 2),
        };
        x.reshape([batch, heads * chunks, chunk, width])
    };
    let before = (early > 0).then(|| Sums::of_range(&k, &values, 0..early).folded(1).repeated(chunks));
    let (q, k, v) = (fold(q, blind, 0.0), fold(k, early, HIDDEN), fold(values, early, 0.0));
    let far = states(&Sums::of(k.clone(), v.clone()), chunks);
    let far = match before {
        Some(before) => far.plus(&before),
        None => far,
    };
    let later = Tensor::<2, Bool>::tril_mask([chunk, chunk], 0, &device).unsqueeze::<4>();
    let logs = log_products(q.clone(), k);
    let later = later.expand(logs.dims());
    let out = join(logs.mask_fill(later, HIDDEN), v, q, &far);
    let out = out.reshape([batch, heads, chunks * chunk, channels - 1]).narrow(2, 0, tokens);
    match blind {
        0 => out,
        _ => Tensor::cat(vec![Tensor::zeros([batch, heads, blind, channels - 1], &device), out], 2),
    }
}

/// Averages of `values [B,H,S,Dv+1]`, which have a channel of ones, with weights `exp(logs)`, `logs [B,H,N,S]` being
/// [`HIDDEN`] where nothing is seen, and of the keys in `far` with those of the log features `q [B,H,N,m]`: `[B,H,N,Dv]`.
pub(super) fn join(logs: Tensor<4>, values: Tensor<4>, q: Tensor<4>, far: &Sums) -> Tensor<4> {
    let channels = values.dims()[3];
    let (features, top) = queries_under(q, &far.scale);
    let far = features.matmul(far.sums.clone());
    // Where there is nothing, its scale means nothing.
    let nothing = far.clone().detach().narrow(3, channels - 1, 1).lower_equal_elem(0.0);
    let top = top.mask_fill(nothing, LOWEST);
    let near_top = logs.clone().detach().max_dim(3).clamp_min(LOWEST);
    let near = (logs - near_top.clone()).exp().matmul(values);
    let common = top.clone().max_pair(near_top.clone());
    divide(far * (top - common.clone()).exp() + near * (near_top - common).exp())
}

/// The sums before each chunk, `[B,H*C,..]`, of those `each` chunk adds: pairs of chunks are summed, the sums before each
/// pair are those before its first chunk, and with that chunk those before its second. No sum is made twice, and all of
/// one step are made at once.
fn states(each: &Sums, chunks: usize) -> Sums {
    if chunks == 1 {
        return each.emptied();
    }
    if chunks % 2 == 1 {
        let padded = states(&each.with_another(chunks), chunks + 1);
        return padded.folded(chunks + 1).cut(0..chunks).unfolded();
    }
    let pairs = each.folded(2);
    let (first, second) = (pairs.cut(0..1).unfolded(), pairs.cut(1..2).unfolded());
    let before = states(&first.plus(&second), chunks / 2);
    let between = before.plus(&first);
    let stack = |first: &Tensor<4>, second: &Tensor<4>| {
        Tensor::cat([first, second].map(|x| x.clone().unsqueeze_dim::<5>(2)).to_vec(), 2)
    };
    Folded { scale: stack(&before.scale, &between.scale), sums: stack(&before.sums, &between.sums) }.unfolded()
}

/// [`Sums`] in groups of consecutive ones: `[B,groups,size,..]`.
struct Folded {
    scale: Tensor<5>,
    sums: Tensor<5>,
}

impl Sums {
    fn folded(&self, size: usize) -> Folded {
        let [batch, count, m, channels] = self.sums.dims();
        Folded {
            scale: self.scale.clone().reshape([batch, count / size, size, 1, m]),
            sums: self.sums.clone().reshape([batch, count / size, size, m, channels]),
        }
    }

    /// Of no keys, in the same shape.
    fn emptied(&self) -> Self {
        Self { scale: self.scale.zeros_like().add_scalar(LOWEST), sums: self.sums.zeros_like() }
    }

    /// One of no keys after each `chunks`.
    fn with_another(&self, chunks: usize) -> Self {
        let own = self.folded(chunks);
        let none = own.cut(0..1).unfolded().emptied().folded(1);
        Folded { scale: Tensor::cat(vec![own.scale, none.scale], 2), sums: Tensor::cat(vec![own.sums, none.sums], 2) }
            .unfolded()
    }
}

impl Folded {
    /// Some of each group.
    fn cut(&self, range: Range<usize>) -> Self {
        let cut = |x: &Tensor<5>| x.clone().narrow(2, range.start, range.len());
        Self { scale: cut(&self.scale), sums: cut(&self.sums) }
    }

    /// Each `count` times.
    fn repeated(self, count: usize) -> Sums {
        Self { scale: self.scale.repeat_dim(2, count), sums: self.sums.repeat_dim(2, count) }.unfolded()
    }

    fn unfolded(self) -> Sums {
        let [batch, groups, size, m, channels] = self.sums.dims();
        Sums {
            scale: self.scale.reshape([batch, groups * size, 1, m]),
            sums: self.sums.reshape([batch, groups * size, m, channels]),
        }
    }
}

/// Sums over any ranges of keys, from sums over spans of 1, 2, 4.. times [`SPAN`] keys.
pub(super) struct Spans<'a> {
    k: &'a Tensor<4>,
    values: &'a Tensor<4>,
    levels: Vec<Vec<Sums>>,
}

/// Keys of the shortest span.
const SPAN: usize = 64;

impl<'a> Spans<'a> {
    /// Of log features `k [B,H,S,m]` and `values [B,H,S,Dv+1]`.
    pub fn new(k: &'a Tensor<4>, values: &'a Tensor<4>) -> Self {
        let mut spans = Self { k, values, levels: Vec::new() };
        let count = k.dims()[2] / SPAN;
        let mut level: Vec<Sums> = (0..count).map(|at| Sums::of_range(k, values, at * SPAN..(at + 1) * SPAN)).collect();
        while !level.is_empty() {
            let next = level.chunks_exact(2).map(|pair| pair[0].plus(&pair[1])).collect();
            spans.levels.push(std::mem::replace(&mut level, next));
        }
        spans
    }

    /// `state` with the keys of `range`.
    pub fn add(&self, mut state: Sums, mut range: Range<usize>) -> Sums {
        while !range.is_empty() {
            let fits = |level: &usize| {
                let length = SPAN << level;
                range.start.is_multiple_of(length) && range.start + length <= range.end
            };
            let part = match (0..self.levels.len()).rev().find(fits) {
                Some(level) => {
                    let part = self.levels[level][range.start / (SPAN << level)].clone();
                    range.start += SPAN << level;
                    part
                }
                None => {
                    let next = (range.start / SPAN + 1) * SPAN;
                    let short = range.start..next.min(range.end);
                    range.start = short.end;
                    Sums::of_range(self.k, self.values, short)
                }
            };
            state = state.plus(&part);
        }
        state
    }
}
