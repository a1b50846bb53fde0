//! The cost model: bytes on the wire of every rank, by formula.
//!
//! Nothing here looks at a message; the tests hold the bytes that ranks count against these formulas.

use regard_kernels::{AttentionOptions, Layout, mechanism::Mechanism};

use crate::{band::Band, exact::Exact, halo::Fetch, part::Along};

/// Bytes that a rank sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// In a forward pass.
    pub forward: u64,
    /// In a backward pass.
    pub backward: u64,
}

/// Sizes of a call that traffic depends on, in floats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Of the inputs along keys, for one key of all batch rows: `B Hk (M D + Dv)`, and `H M` with a prior a key.
    per_key: usize,
    /// Of a query for one token of all batch rows, `B H D`.
    per_query: usize,
    /// Of an output, `B H Dv`.
    per_output: usize,
    /// Rows of `[B,H]`.
    heads: usize,
    /// Of the sums over features, `B Hk m (Dv + 2)`.
    features: usize,
    /// Of the sums of linear attention, `B Hk D (Dv + 1)`, with a mixture `B H D (Dv + 1)`.
    sums: usize,
    /// Of an average of Fastformer forward, `B H (D + 2)`, and backward, `B H (D + 1)`.
    average: [usize; 2],
}

const FLOAT: usize = 4;

impl Sizes {
    pub fn of(options: &AttentionOptions, names: &[&'static str], layout: Layout, shapes: &[&[usize]]) -> Self {
        let batch = shapes[0][0];
        if options.mechanism == Mechanism::Moa {
            // One head of keys and values.
            let width = shapes[names.iter().position(|name| *name == "w_query").expect("an input of moa")][2];
            let heads = batch * options.moa.active;
            let (per_query, per_key) = (heads * width, batch * 2 * width);
            return Self { per_key, per_query, per_output: per_query, heads, features: 0, sums: 0, average: [0; 2] };
        }
        let along_keys =
            names.iter().zip(shapes).filter_map(|(name, shape)| match Along::of(name, layout, shape.len()) {
                Along::Keys(axis) => Some(shape.iter().product::<usize>() / shape[axis]),
                _ => None,
            });
        let (head_axis, v) =
            (if layout == Layout::HeadFirst { 1 } else { 2 }, names.iter().position(|name| *name == "v"));
        let (heads, width) = (batch * shapes[0][head_axis], shapes[0][3]);
        let (key_heads, values) = match v {
            Some(v) => (batch * shapes[v][head_axis], shapes[v][3]),
            None => (heads, width),
        };
        let mixed = options.mechanism == Mechanism::Mlk && options.components() > 1;
        Self {
            per_key: along_keys.sum(),
            per_query: heads * width,
            per_output: heads * values,
            heads,
            features: key_heads * options.features.count(width) * (values + 2),
            sums: if mixed { heads } else { key_heads } * width * (values + 1),
            average: [width + 2, width + 1].map(|floats| heads * floats),
        }
    }

    pub fn exact(&self, exact: &Exact, rank: usize) -> Traffic {
        match exact {
            Exact::Ring(ring) => {
                let (keys, ranks) = (&ring.keys, ring.keys.ranks());
                // At step `t` a rank holds the block of the rank `t` before it.
                let held = |step: usize| keys.count((rank + ranks - step) % ranks);
                let passed: usize = (0..ranks - 1).map(held).sum();
                // Gradients go on with their keys, and after the last step home.
                let back = if ranks > 1 { 2 * passed + held(ranks - 1) } else { 0 };
                traffic(passed * self.per_key, back * self.per_key)
            }
            Exact::Halo(halo) => {
                let [lent, borrowed] = halo_tokens(&halo.fetch, rank);
                traffic(lent * self.per_key, (lent + borrowed) * self.per_key)
            }
        }
    }

    pub fn band(&self, band: &Band, rank: usize) -> Traffic {
        let [lent, borrowed] = halo_tokens(&band.fetch, rank);
        let [forward, backward] = band.messages(rank).map(|states| states * self.features);
        let mut floats = [lent * self.per_key + forward, (lent + borrowed) * self.per_key + backward];
        if let Some(globals) = band.global_tokens() {
            let ranks = globals.keys.ranks();
            let [lent, borrowed] = halo_tokens(&globals, rank);
            let own = globals.shared(rank, rank).len();
            let answer = self.per_output + 2 * self.heads;
            // Global tokens to all, and answers for the global queries of others to them.
            floats[0] += lent * (self.per_key + self.per_query) + borrowed * answer;
            // Again, with the gradients of what was borrowed, and what an owner knows of its global queries to all.
            floats[1] += (lent + borrowed) * (self.per_key + self.per_query);
            floats[1] += (ranks - 1) * own * (answer + self.per_output);
        }
        traffic(floats[0], floats[1])
    }

    pub fn linear(&self, causal: bool, place: [usize; 2]) -> Traffic {
        states([self.sums; 2], causal, place)
    }

    /// Two averages.
    pub fn additive(&self, causal: bool, place: [usize; 2]) -> Traffic {
        states(self.average.map(|floats| 2 * floats), causal, place)
    }
}

fn traffic(forward: usize, backward: usize) -> Traffic {
    Traffic { forward: (FLOAT * forward) as u64, backward: (FLOAT * backward) as u64 }
}

/// A message to the neighbour above, and unless `causal` one to that below; backward the other way round.
fn states([forward, backward]: [usize; 2], causal: bool, [rank, ranks]: [usize; 2]) -> Traffic {
    let (above, below) = (usize::from(rank + 1 < ranks), usize::from(rank > 0));
    match causal {
        true => traffic(above * forward, below * backward),
        false => traffic((above + below) * forward, (above + below) * backward),
    }
}

/// Tokens that a rank sends to others, and that it gets from them.
fn halo_tokens(fetch: &Fetch, rank: usize) -> [usize; 2] {
    let others = (0..fetch.keys.ranks()).filter(|other| *other != rank);
    others.fold([0, 0], |[lent, borrowed], other| {
        [lent + fetch.shared(rank, other).len(), borrowed + fetch.shared(other, rank).len()]
    })
}
