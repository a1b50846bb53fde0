//! Halo: where queries see near keys alone, a rank fetches those beyond its own from their owners, and sends back their
//! gradients.

use std::{borrow::Cow, ops::Range, slice::from_ref};

use regard_cluster::ClusterError;
use regard_kernels::View;

use crate::{
    Split,
    part::{Lent, Part},
    pieces::Pieces,
    rows::{Rows, Scales},
    wire::{Peers, Tag},
};

/// Who fetches which keys.
#[derive(Clone, Debug)]
pub(crate) struct Fetch {
    pub keys: Split,
    pub peers: Peers,
    /// The keys that each rank holds while it computes, a run.
    pub held: Vec<Range<usize>>,
    pub tag: Tag,
}

impl Fetch {
    /// Keys of `owner` among those that `rank` holds.
    pub fn shared(&self, owner: usize, rank: usize) -> Range<usize> {
        let (own, held) = (&self.keys.of(owner)[0], &self.held[rank]);
        let start = own.start.max(held.start);
        start..own.end.min(held.end).max(start)
    }

    /// From this rank's inputs along keys, with their axes, to those that it holds.
    pub fn gather<'a>(&self, own: &[View<'a, f32>], axes: &[usize]) -> Result<Vec<Lent<'a>>, ClusterError> {
        let rank = self.peers.rank();
        for to in self.peers.others().filter(|to| !self.shared(rank, *to).is_empty()) {
            let range = local(&self.shared(rank, to), self.keys.of(rank)[0].start);
            let parts: Vec<_> = own.iter().zip(axes).map(|(own, axis)| Part::cut(own, *axis, &range)).collect();
            self.peers.send(to, self.tag, parts.iter().map(|part| &part.data[..]))?;
        }
        let (held, mine) = (&self.held[rank], &self.keys.of(rank)[0]);
        if held == mine {
            let lent = |own: &View<'a, f32>| Lent { data: Cow::Borrowed(own.data), shape: own.shape.to_vec() };
            return Ok(own.iter().map(lent).collect());
        }
        let mut all: Vec<_> =
            own.iter().zip(axes).map(|(own, axis)| Part::zeros(&resized(own.shape, *axis, held.len()))).collect();
        for owner in (0..self.peers.ranks()).filter(|owner| !self.shared(*owner, rank).is_empty()) {
            let shared = self.shared(owner, rank);
            let place = local(&shared, held.start);
            if owner == rank {
                let range = local(&shared, mine.start);
                let tensors = all.iter_mut().zip(own).zip(axes);
                tensors.for_each(|((all, own), axis)| all.copy(*axis, &place, own, &range));
                continue;
            }
            let data = self.peers.receive(owner, self.tag)?;
            each(&mut all, axes, shared.len(), &data, |all, axis, part| all.put(axis, &place, part));
        }
        Ok(all.into_iter().map(|Part { data, shape }| Lent { data: Cow::Owned(data), shape }).collect())
    }

    /// From gradients of the keys that this rank holds to those of its own keys: first its own, then those of the others,
    /// in their order.
    pub fn give_back(&self, held: Vec<Part>, axes: &[usize]) -> Result<Vec<Part>, ClusterError> {
        let rank = self.peers.rank();
        let (start, mine) = (self.held[rank].start, &self.keys.of(rank)[0]);
        for owner in self.peers.others().filter(|owner| !self.shared(*owner, rank).is_empty()) {
            let range = local(&self.shared(owner, rank), start);
            let parts: Vec<_> =
                held.iter().zip(axes).map(|(part, axis)| Part::cut(&part.view(), *axis, &range)).collect();
            self.peers.send(owner, self.tag, parts.iter().map(|part| &part.data[..]))?;
        }
        let shared = self.shared(rank, rank);
        let own = held.into_iter().zip(axes).map(|(part, axis)| {
            if self.held[rank] == *mine {
                return part;
            }
            let mut own = Part::zeros(&resized(&part.shape, *axis, mine.len()));
            if !shared.is_empty() {
                own.copy(*axis, &local(&shared, mine.start), &part.view(), &local(&shared, start));
            }
            own
        });
        let mut all: Vec<_> = own.collect();
        for from in self.peers.others().filter(|from| !self.shared(rank, *from).is_empty()) {
            let shared = self.shared(rank, from);
            let place = local(&shared, mine.start);
            let data = self.peers.receive(from, self.tag)?;
            each(&mut all, axes, shared.len(), &data, |all, axis, part| all.add(axis, &place, part));
        }
        Ok(all)
    }
}

/// A run within one that begins at `start`.
pub(crate) fn local(range: &Range<usize>, start: usize) -> Range<usize> {
    range.start - start..range.end - start
}

fn resized(shape: &[usize], axis: usize, len: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    shape[axis] = len;
    shape
}

/// Hands each tensor its part of a message with `len` tokens.
fn each(all: &mut [Part], axes: &[usize], len: usize, data: &[f32], mut write: impl FnMut(&mut Part, usize, &[f32])) {
    let mut rest = data;
    for (all, axis) in all.iter_mut().zip(axes) {
        let (first, others) = rest.split_at(resized(&all.shape, *axis, len).iter().product());
        write(all, *axis, first);
        rest = others;
    }
}

/// Exact attention within a window.
#[derive(Clone, Debug)]
pub(crate) struct Halo {
    pub pieces: Pieces,
    pub queries: Split,
    pub fetch: Fetch,
}

impl Halo {
    /// For a mask with a window.
    pub fn new(pieces: Pieces, queries: Split, keys: Split, peers: Peers) -> Self {
        let reach = |rank: usize| {
            let seen = pieces.call.mask.visible_to(queries.of(rank)[0].clone(), pieces.queries, pieces.keys);
            // Kernels take no call without keys.
            let start = seen.start.min(pieces.keys - 1);
            start..seen.end.max(start + 1)
        };
        let held = (0..peers.ranks()).map(reach).collect();
        Self { fetch: Fetch { keys, peers, held, tag: Tag::Halo }, pieces, queries }
    }

    fn run(&self) -> &Range<usize> {
        &self.queries.of(self.fetch.peers.rank())[0]
    }

    fn held(&self) -> &Range<usize> {
        &self.fetch.held[self.fetch.peers.rank()]
    }

    fn gather(&self, inputs: &[View<f32>]) -> Result<(Vec<Part>, Vec<usize>), ClusterError> {
        let (own, axes): (Vec<_>, Vec<_>) = self.pieces.keys(inputs).unzip();
        let held = self.fetch.gather(&own, &axes)?.into_iter().map(Lent::into_part);
        Ok((held.collect(), axes))
    }

    pub fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Result<Vec<Scales>, ClusterError> {
        let all = 0..self.run().len();
        let cut = self.pieces.cut(inputs, from_ref(&all));
        let (keys, _) = self.gather(inputs)?;
        let rows = self.pieces.attend(&cut, 0, [self.run(), self.held()], &keys);
        out.copy_from_slice(&rows.out);
        Ok(vec![rows.scales])
    }

    pub fn backward(
        &self,
        inputs: &[View<f32>],
        (out, scales): (&[f32], &[Scales]),
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Result<Vec<Option<Vec<f32>>>, ClusterError> {
        let all = 0..self.run().len();
        let cut = self.pieces.cut(inputs, from_ref(&all));
        let (keys, axes) = self.gather(inputs)?;
        let mut grads = cut.grads(wanted);
        let mut of_keys: Vec<_> = keys.iter().map(|part| Part::zeros(&part.shape)).collect();
        let rows = Rows { out: out.to_vec(), scales: scales[0].clone() };
        let runs = [self.run(), self.held()];
        self.pieces.backward(&cut, 0, runs, &keys, &rows, grad_out, wanted, &mut grads, &mut of_keys);
        let of_keys = self.fetch.give_back(of_keys, &axes)?;
        Ok(cut.finish(grads, from_ref(&all), of_keys, wanted))
    }
}
