//! Exact attention over all ranks: on a ring, or with a halo where a window limits it.

use regard_cluster::ClusterError;
use regard_kernels::{AttentionOptions, Call, View};

use crate::{Split, error::SequenceError, halo::Halo, pieces::Pieces, ring::Ring, rows::Scales, wire::Peers};

/// Which way keys come to the queries that see them.
#[derive(Clone, Debug)]
pub(crate) enum Exact {
    Ring(Ring),
    Halo(Halo),
}

impl Exact {
    /// For a call over so many queries and keys.
    pub fn new(
        options: &AttentionOptions,
        call: &Call,
        [queries, keys]: [usize; 2],
        peers: Peers,
    ) -> Result<Self, SequenceError> {
        let pieces = Pieces::new(options, call, queries, keys)?;
        let ranks = peers.ranks();
        if call.mask.window.is_some() {
            let [queries, keys] = [Split::contiguous(queries, ranks)?, Split::contiguous(keys, ranks)?];
            return Ok(Self::Halo(Halo::new(pieces, queries, keys, peers)));
        }
        let cut = if call.mask.causal { Split::zigzag } else { Split::contiguous };
        Ok(Self::Ring(Ring { pieces, queries: cut(queries, ranks)?, keys: cut(keys, ranks)?, peers }))
    }

    pub fn splits(&self) -> [&Split; 2] {
        match self {
            Self::Ring(ring) => [&ring.queries, &ring.keys],
            Self::Halo(halo) => [&halo.queries, &halo.fetch.keys],
        }
    }

    pub fn rank(&self) -> usize {
        match self {
            Self::Ring(ring) => ring.peers.rank(),
            Self::Halo(halo) => halo.fetch.peers.rank(),
        }
    }

    /// Fills `out`; the denominators of each chunk of queries.
    pub fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Result<Vec<Scales>, ClusterError> {
        match self {
            Self::Ring(ring) => ring.forward(inputs, out),
            Self::Halo(halo) => halo.forward(inputs, out),
        }
    }

    /// Gradients of the inputs of this rank; of those that belong to no token its share.
    pub fn backward(
        &self,
        inputs: &[View<f32>],
        results: (&[f32], &[Scales]),
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Result<Vec<Option<Vec<f32>>>, ClusterError> {
        match self {
            Self::Ring(ring) => ring.backward(inputs, results, grad_out, wanted),
            Self::Halo(halo) => halo.backward(inputs, results, grad_out, wanted),
        }
    }
}
