//! Ring: keys and values travel from rank to rank, each of which attends to those it holds, and their gradients travel with
//! them (ring attention, Liu et al. 2023). Outputs over the blocks are merged by the logs of their denominators.

use std::ops::Range;

use regard_cluster::ClusterError;
use regard_kernels::View;

use crate::{
    Split,
    part::Part,
    pieces::{Pieces, out_axis},
    rows::{Rows, Scales},
    wire::{Peers, Tag},
};

/// Exact attention on a ring.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    pub pieces: Pieces,
    pub queries: Split,
    pub keys: Split,
    pub peers: Peers,
}

/// Keys on their way: for each chunk of their owner the inputs along them.
type Block = Vec<Vec<Part>>;

impl Ring {
    /// Fills `out`; the denominators of each chunk of queries.
    pub fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Result<Vec<Scales>, ClusterError> {
        let (own, places) = self.chunks();
        let cut = self.pieces.cut(inputs, &places);
        let mut block = self.own_block(inputs);
        let mut sums: Vec<Option<Rows>> = vec![None; own.len()];
        for step in 0..self.peers.ranks() {
            let owner = self.owner(step);
            self.pass_on(step, &block)?;
            for (n, queries) in own.iter().enumerate() {
                for (keys, parts) in self.keys.of(owner).iter().zip(&block) {
                    // One pair at least, so that there are outputs where nothing is visible.
                    if self.pieces.meet(queries, keys) || (sums[n].is_none() && step + 1 == self.peers.ranks()) {
                        let rows = self.pieces.attend(&cut, n, [queries, keys], parts);
                        self.pieces.add(&cut, n, parts, &mut sums[n], rows);
                    }
                }
            }
            self.take_next(step, inputs, &mut block)?;
        }
        let mut whole = Part { data: Vec::new(), shape: self.out_shape(inputs) };
        whole.data = vec![0.0; out.len()];
        let scales = sums.into_iter().zip(&places).map(|(rows, place)| {
            let rows = rows.expect("a pair for every chunk");
            whole.put(out_axis(self.pieces.call.layout), place, &rows.out);
            rows.scales
        });
        let scales = scales.collect();
        out.copy_from_slice(&whole.data);
        Ok(scales)
    }

    /// Gradients of the inputs of this rank; of those that belong to no token its share.
    pub fn backward(
        &self,
        inputs: &[View<f32>],
        (out, scales): (&[f32], &[Scales]),
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Result<Vec<Option<Vec<f32>>>, ClusterError> {
        let (own, places) = self.chunks();
        let cut = self.pieces.cut(inputs, &places);
        let shape = self.out_shape(inputs);
        let axis = out_axis(self.pieces.call.layout);
        let chunk = |data: &[f32], place: &Range<usize>| Part::cut(&View::new(data, &shape), axis, place).data;
        let rows = places
            .iter()
            .zip(scales)
            .map(|(place, scales)| (Rows { out: chunk(out, place), scales: scales.clone() }, chunk(grad_out, place)));
        let rows: Vec<_> = rows.collect();
        let mut grads = cut.grads(wanted);
        let mut block = self.own_block(inputs);
        let mut of_block = zeros(&block);
        for step in 0..self.peers.ranks() {
            let owner = self.owner(step);
            self.pass_on(step, &block)?;
            for (n, queries) in own.iter().enumerate() {
                for ((keys, parts), of_keys) in self.keys.of(owner).iter().zip(&block).zip(&mut of_block) {
                    if self.pieces.meet(queries, keys) {
                        let (rows, grad_out) = &rows[n];
                        let runs = [queries, keys];
                        self.pieces.backward(&cut, n, runs, parts, rows, grad_out, wanted, &mut grads, of_keys);
                    }
                }
            }
            self.take_next(step, inputs, &mut block)?;
            // After the last step the gradients have one more hop to go: home.
            if self.peers.ranks() > 1 {
                self.send(&of_block)?;
                of_block = self.receive(inputs, self.owner(step + 1))?;
            }
        }
        let key_places: Vec<_> = self.keys.places(self.peers.rank()).into_iter().map(|(_, place)| place).collect();
        let mut of_keys = Vec::new();
        for (n, (input, axis)) in self.pieces.keys(inputs).enumerate() {
            let mut whole = Part::zeros(input.shape);
            key_places.iter().zip(&of_block).for_each(|(place, parts)| whole.put(axis, place, &parts[n].data));
            of_keys.push(whole);
        }
        Ok(cut.finish(grads, &places, of_keys, wanted))
    }

    /// Chunks of this rank's queries in the sequence, and in its tensors.
    fn chunks(&self) -> (Vec<Range<usize>>, Vec<Range<usize>>) {
        self.queries.places(self.peers.rank()).into_iter().unzip()
    }

    /// Owner of the block that this rank holds at a step.
    fn owner(&self, step: usize) -> usize {
        let ranks = self.peers.ranks();
        (self.peers.rank() + ranks - step % ranks) % ranks
    }

    fn own_block(&self, inputs: &[View<f32>]) -> Block {
        let places: Vec<_> = self.keys.places(self.peers.rank()).into_iter().map(|(_, place)| place).collect();
        let chunk = |place| self.pieces.keys(inputs).map(|(input, axis)| Part::cut(&input, axis, place)).collect();
        places.iter().map(chunk).collect()
    }

    fn send(&self, block: &Block) -> Result<(), ClusterError> {
        let next = (self.peers.rank() + 1) % self.peers.ranks();
        self.peers.send(next, Tag::Ring, block.iter().flatten().map(|part| &part.data[..]))
    }

    fn receive(&self, inputs: &[View<f32>], owner: usize) -> Result<Block, ClusterError> {
        let previous = (self.peers.rank() + self.peers.ranks() - 1) % self.peers.ranks();
        let data = self.peers.receive(previous, Tag::Ring)?;
        let mut rest = &data[..];
        let mut block = Vec::new();
        for chunk in self.keys.of(owner) {
            let parts = self.pieces.keys(inputs).map(|(input, axis)| {
                let mut shape = input.shape.to_vec();
                shape[axis] = chunk.len();
                let (first, others) = rest.split_at(shape.iter().product());
                rest = others;
                Part { data: first.to_vec(), shape }
            });
            block.push(parts.collect());
        }
        Ok(block)
    }

    /// Sends a block to the next rank before this one works on it, so that it travels meanwhile.
    fn pass_on(&self, step: usize, block: &Block) -> Result<(), ClusterError> {
        if step + 1 < self.peers.ranks() { self.send(block) } else { Ok(()) }
    }

    fn take_next(&self, step: usize, inputs: &[View<f32>], block: &mut Block) -> Result<(), ClusterError> {
        if step + 1 < self.peers.ranks() {
            *block = self.receive(inputs, self.owner(step + 1))?;
        }
        Ok(())
    }

    /// Shape of the output of this rank.
    fn out_shape(&self, inputs: &[View<f32>]) -> Vec<usize> {
        let (q, v) = (inputs[0].shape, inputs[2].shape);
        vec![q[0], q[1], q[2], v[3]]
    }
}

fn zeros(block: &Block) -> Block {
    block.iter().map(|parts| parts.iter().map(|part| Part::zeros(&part.shape)).collect()).collect()
}
