//! Outputs of queries with the denominators of their softmax: what lets two sets of keys be attended one after the other.

use std::f32::consts::LN_2;

use regard_kernels::{AttentionShape, Layout, Saved, parallel::for_each_part};

/// Elements of an output per task.
const TASK: usize = 1 << 16;

/// Denominators of queries, `[B,H,N]` each: a weight is `2^(l - top) |inverse|` for a score `l` in base 2.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Scales {
    pub tops: Vec<f32>,
    /// 0 for a query that sees no key.
    pub inverses: Vec<f32>,
}

impl Scales {
    /// Of a forward pass, whose state begins with the log of the denominators, tops and inverses.
    pub fn of(saved: &Saved) -> Self {
        Self { tops: saved[1].to_vec(), inverses: saved[2].to_vec() }
    }

    /// Natural log of the denominators.
    pub fn lse(&self) -> Vec<f32> {
        let log = |(top, inverse): (&f32, &f32)| match *inverse {
            0.0 => f32::NEG_INFINITY,
            inverse => (top - inverse.abs().log2()) * LN_2,
        };
        self.tops.iter().zip(&self.inverses).map(log).collect()
    }

    /// The state of a backward pass over some of the keys.
    pub fn saved(&self) -> Saved {
        vec![Vec::new(), self.tops.clone(), self.inverses.clone()].into()
    }

    /// These denominators for a pass that has found `own` ones, relative to its own tops. An inverse keeps its sign, by
    /// which a band marks rows that it computes weight by weight.
    pub fn relative_to(&self, own: &Self) -> Self {
        let rows = self.tops.iter().zip(&self.inverses).zip(own.tops.iter().zip(&own.inverses));
        let inverses = rows.map(|((top, inverse), (own_top, own_inverse))| match *own_inverse {
            0.0 => 0.0,
            sign => (own_top - top).exp2() * inverse.abs() * sign.signum(),
        });
        Self { inverses: inverses.collect(), tops: own.tops.clone() }
    }
}

/// Outputs over the keys so far.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// In the layout of the call.
    pub out: Vec<f32>,
    pub scales: Scales,
}

impl Rows {
    /// Adds the outputs of the same queries over other keys: both in proportion to their denominators.
    pub fn merge(&mut self, shape: &AttentionShape, other: &Rows) {
        let count = self.scales.tops.len();
        let mut shares = vec![[1.0f32, 0.0]; count];
        for (row, share) in shares.iter_mut().enumerate() {
            let (top, inverse) = (self.scales.tops[row], self.scales.inverses[row].abs());
            let (other_top, other_inverse) = (other.scales.tops[row], other.scales.inverses[row].abs());
            if other_inverse == 0.0 {
                continue;
            }
            let both = if inverse == 0.0 { other_top } else { top.max(other_top) };
            let total = |top: f32, inverse: f32| if inverse == 0.0 { 0.0 } else { (top - both).exp2() / inverse };
            let (old, new) = (total(top, inverse), total(other_top, other_inverse));
            let inverse = 1.0 / (old + new);
            *share = [old * inverse, new * inverse];
            (self.scales.tops[row], self.scales.inverses[row]) = (both, inverse);
        }
        let AttentionShape { heads, queries, value_width: width, layout, .. } = *shape;
        // Row of `[B,H,N]` at place `at` of the output.
        let row = |at: usize| match layout {
            Layout::HeadFirst => at,
            Layout::TokenFirst => {
                let (token, head) = (at / heads, at % heads);
                (token / queries * heads + head) * queries + token % queries
            }
        };
        let per_task = (TASK / width).max(1);
        for_each_part(&mut self.out, per_task * width, |task, out| {
            let from = other.out[task * per_task * width..].chunks_exact(width);
            for ((at, out), from) in (task * per_task..).zip(out.chunks_exact_mut(width)).zip(from) {
                let [old, new] = shares[row(at)];
                if new != 0.0 {
                    out.iter_mut().zip(from).for_each(|(out, from)| *out = old * *out + new * from);
                }
            }
        });
    }
}
