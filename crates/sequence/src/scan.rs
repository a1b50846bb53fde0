//! Scan: states of constant size go from rank to rank, and meet those of each rank on the way.
//!
//! Linear attention and the mixture of linear keys exchange sums over keys, Fastformer its two averages. A rank receives at
//! most one message from below and one from above, whatever the length of the sequence.

use regard_cluster::ClusterError;
use regard_kernels::{Additive, Linear, Saved, ScaledSums, View};

use crate::{
    part::add,
    wire::{Peers, Tag},
};

/// A direction along the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From lower ranks to higher ones.
    Up,
    /// From higher ranks to lower ones.
    Down,
}

impl Peers {
    /// Receives the state of the ranks that come before this one on the way, none at its start, and sends the next rank the
    /// state that `own` makes of it; returns the one received.
    pub fn scan(
        &self,
        way: Way,
        own: impl FnOnce(Option<&[f32]>) -> Vec<f32>,
    ) -> Result<Option<Vec<f32>>, ClusterError> {
        let (rank, last) = (self.rank(), self.ranks() - 1);
        let (from, to, tag) = match way {
            Way::Up => (rank.checked_sub(1), (rank < last).then_some(rank + 1), Tag::Up),
            Way::Down => ((rank < last).then_some(rank + 1), rank.checked_sub(1), Tag::Down),
        };
        let received = from.map(|from| self.receive(from, tag)).transpose()?;
        if let Some(to) = to {
            self.send(to, tag, [&own(received.as_deref())[..]])?;
        }
        Ok(received)
    }

    /// What a rank sees of the states of all: those before it if `causal`, else all, its own included. `join` puts states
    /// together, the lower rank's first.
    pub fn seen(
        &self,
        causal: bool,
        own: Vec<f32>,
        nothing: Vec<f32>,
        join: impl Fn(Vec<f32>, &[f32]) -> Vec<f32>,
    ) -> Result<Vec<f32>, ClusterError> {
        let with = |before: Option<&[f32]>| match before {
            Some(before) => join(before.to_vec(), &own),
            None => own.clone(),
        };
        let before = self.scan(Way::Up, with)?;
        if causal {
            return Ok(before.unwrap_or(nothing));
        }
        let after = self.scan(Way::Down, |after| match after {
            Some(after) => join(own.clone(), after),
            None => own.clone(),
        })?;
        let all = with(before.as_deref());
        Ok(match after {
            Some(after) => join(all, &after),
            None => all,
        })
    }
}

fn plus(mut sums: Vec<f32>, more: &[f32]) -> Vec<f32> {
    add(&mut sums, more);
    sums
}

/// Linear attention over contiguous chunks.
pub(crate) fn linear_forward(
    operator: &Linear,
    peers: &Peers,
    inputs: &[View<f32>],
    out: &mut [f32],
) -> Result<Saved, ClusterError> {
    let causal = operator.mask.causal;
    let exchange = |own: Vec<f32>| {
        let nothing = vec![0.0; own.len()];
        peers.seen(causal, own, nothing, plus)
    };
    operator.forward_through(inputs, exchange, out)
}

/// Gradients of the inputs of this rank; of those that belong to no token its share.
pub(crate) fn linear_backward(
    operator: &Linear,
    peers: &Peers,
    inputs: &[View<f32>],
    (out, saved): (&[f32], &Saved),
    grad_out: &[f32],
    wanted: &[bool],
) -> Result<Vec<Option<Vec<f32>>>, ClusterError> {
    let causal = operator.mask.causal;
    let exchange = |own: Vec<f32>| match causal {
        true => {
            let with = |after: Option<&[f32]>| after.map_or_else(|| own.clone(), |after| plus(own.clone(), after));
            Ok(peers.scan(Way::Down, with)?.unwrap_or_else(|| vec![0.0; own.len()]))
        }
        false => peers.seen(false, own, Vec::new(), plus),
    };
    operator.backward_through(inputs, (out, saved), grad_out, exchange, wanted)
}

/// Additive attention over contiguous chunks.
pub(crate) fn additive_forward(
    operator: &Additive,
    peers: &Peers,
    inputs: &[View<f32>],
    out: &mut [f32],
) -> Result<Saved, ClusterError> {
    let causal = operator.mask.causal;
    let exchange = |own: ScaledSums| {
        let (len, width) = (own.row_len(), own.row_len() - 2);
        let mut nothing = vec![0.0; own.as_slice().len()];
        nothing.iter_mut().step_by(len).for_each(|top| *top = f32::NEG_INFINITY);
        let join = |sums: Vec<f32>, more: &[f32]| {
            let mut sums = ScaledSums::new(sums, width);
            sums.add(&ScaledSums::new(more.to_vec(), width));
            sums.into_vec()
        };
        Ok(ScaledSums::new(peers.seen(causal, own.into_vec(), nothing, join)?, width))
    };
    operator.forward_through(inputs, exchange, out)
}

/// As [`linear_backward`].
pub(crate) fn additive_backward(
    operator: &Additive,
    peers: &Peers,
    inputs: &[View<f32>],
    saved: &Saved,
    grad_out: &[f32],
    wanted: &[bool],
) -> Result<Vec<Option<Vec<f32>>>, ClusterError> {
    let exchange = |pass_on: &dyn Fn(Option<&[f32]>) -> Vec<f32>| match operator.mask.causal {
        true => peers.scan(Way::Down, pass_on),
        false => peers.seen(false, pass_on(None), Vec::new(), plus).map(Some),
    };
    operator.backward_through(inputs, saved, grad_out, exchange, wanted)
}
