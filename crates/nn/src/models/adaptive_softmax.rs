//! Adaptive softmax: an approximation-free softmax in clusters (Grave et al. 2017).

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::{Tensor, activation::log_softmax};

use super::{AdaptiveSoftmaxConfig, head_loss};
use crate::{
    blocks::Init,
    ops::{self, elementwise::IGNORE},
};

/// A softmax over the frequent tokens and one output for each cluster of rarer ones; the probability of a token of a cluster
/// is that of the cluster times that of the token in it. No weights are shared with the token embedding.
#[derive(Module, Debug)]
pub(super) struct AdaptiveSoftmax {
    /// `[d, cutoff + clusters]`
    head: Param<Tensor<2>>,
    tails: Vec<Tail>,
    /// First id of each cluster, ascending.
    #[module(skip)]
    cutoffs: Vec<usize>,
}

/// The outputs of a cluster: `x w_in w_out`.
#[derive(Module, Debug)]
struct Tail {
    /// `[d, d / factor^i]`
    w_in: Param<Tensor<2>>,
    /// `[d / factor^i, tokens]`
    w_out: Param<Tensor<2>>,
}

impl Tail {
    fn narrowed(&self, x: Tensor<2>) -> Tensor<2> {
        ops::linear(x, self.w_in.val(), None)
    }
}

/// Rows of a batch whose targets are in a cluster, and those targets from its first token.
struct Members {
    rows: Vec<i32>,
    targets: Vec<i32>,
}

impl Members {
    fn select(&self, x: &Tensor<2>) -> Tensor<2> {
        let (count, width) = (self.rows.len(), x.dims()[1]);
        ops::embedding(x.clone(), self.rows.clone(), [1, count]).reshape([count, width])
    }
}

impl AdaptiveSoftmax {
    /// For states of `width` channels. The sizes have passed [`ModelConfig::sizes`](super::ModelConfig::sizes).
    pub fn new(config: &AdaptiveSoftmaxConfig, width: usize, vocabulary: usize, init: &Init) -> Self {
        let outputs = config.cutoffs[0] + config.cutoffs.len();
        let tails = init.part("tails");
        let tail = |(i, [tokens, channels]): (usize, [usize; 2])| {
            let init = tails.part(i);
            Tail {
                w_in: init.projection("w_in", [width, channels], 1.0),
                w_out: init.projection("w_out", [channels, tokens], 1.0),
            }
        };
        Self {
            head: init.projection("head", [width, outputs], 1.0),
            tails: config.clusters(width, vocabulary).enumerate().map(tail).collect(),
            cutoffs: config.cutoffs.clone(),
        }
    }

    /// The cluster of a token.
    fn cluster(&self, token: i32) -> Option<usize> {
        self.cutoffs.partition_point(|first| *first as i64 <= i64::from(token)).checked_sub(1)
    }

    /// Targets in the head: tokens, or the output of their cluster.
    fn head_targets(&self, targets: &[i32]) -> Arc<[i32]> {
        let own = |&target: &i32| self.cluster(target).map_or(target.max(IGNORE), |i| (self.cutoffs[0] + i) as i32);
        targets.iter().map(own).collect()
    }

    fn members(&self, targets: &[i32], cluster: usize) -> Members {
        let own = |(row, target): (i32, &i32)| {
            (self.cluster(*target) == Some(cluster)).then(|| (row, target - self.cutoffs[cluster] as i32))
        };
        let (rows, targets) = (0..).zip(targets).filter_map(own).unzip();
        Members { rows, targets }
    }

    /// Mean cross entropy, `[1]`, of states `x [rows,d]` over the targets that are not negative. A cluster sees only the rows
    /// whose target is in it. At most `held` logits are in memory at once.
    pub fn loss(&self, x: Tensor<2>, targets: &[i32], held: usize) -> Tensor<1> {
        let counted = targets.iter().filter(|target| **target >= 0).count().max(1) as f64;
        let mut loss = head_loss::projected(x.clone(), self.head.val(), None, self.head_targets(targets), 0.0, held);
        for (i, tail) in self.tails.iter().enumerate() {
            let members = self.members(targets, i);
            if members.rows.is_empty() {
                continue;
            }
            let share = members.rows.len() as f64 / counted;
            let x = tail.narrowed(members.select(&x));
            loss = loss + head_loss::projected(x, tail.w_out.val(), None, members.targets.into(), 0.0, held) * share;
        }
        loss
    }

    /// Log probabilities `[..,vocabulary]` of all tokens after states `x [..,d]`.
    pub fn log_probabilities<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let mut shape = x.dims();
        let width = shape[D - 1];
        let rows = shape[..D - 1].iter().product();
        let x = x.reshape([rows, width]);
        let head = log_softmax(ops::linear(x.clone(), self.head.val(), None), 1);
        let first = self.cutoffs[0];
        let mut parts = vec![head.clone().narrow(1, 0, first)];
        for (i, tail) in self.tails.iter().enumerate() {
            let within = log_softmax(ops::linear(tail.narrowed(x.clone()), tail.w_out.val(), None), 1);
            parts.push(within + head.clone().narrow(1, first + i, 1));
        }
        let all = Tensor::cat(parts, 1);
        shape[D - 1] = all.dims()[1];
        all.reshape(shape)
    }

    /// Negative log probability, in nats, of each target, none of them ignored.
    pub fn nats(&self, x: &Tensor<2>, targets: &[i32]) -> Vec<f64> {
        let mut nats = head_loss::nats(x, &self.head.val(), None, &self.head_targets(targets));
        for (i, tail) in self.tails.iter().enumerate() {
            let members = self.members(targets, i);
            if members.rows.is_empty() {
                continue;
            }
            let x = tail.narrowed(members.select(x));
            let within = head_loss::nats(&x, &tail.w_out.val(), None, &members.targets);
            members.rows.iter().zip(within).for_each(|(row, own)| nats[*row as usize] += own);
        }
        nats
    }
}

#[cfg(test)]
mod tests;
