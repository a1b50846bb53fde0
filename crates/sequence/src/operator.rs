//! Attention over ranks as operators on the tokens of one of them, for a framework that records gradients.

use std::sync::{Arc, OnceLock};

use regard_cluster::{ClusterError, Communicator};
use regard_kernels::{Error, Operator, Reference, Saved, View};

use crate::{SequenceError, SequenceParallel, SequenceState, wire::Peers};

/// The first message that did not arrive. An operator has no errors: after one it and all others of the same rank give zeros
/// without waiting, and whoever ran the pass looks here.
#[derive(Clone, Debug, Default)]
pub struct Failed(Arc<OnceLock<ClusterError>>);

impl Failed {
    /// The error, if there was one.
    pub fn error(&self) -> Option<ClusterError> {
        self.0.get().cloned()
    }

    /// The result, or `None` with the error kept; `None` at once after an earlier one.
    ///
    /// # Panics
    /// If it fails for another reason than a rank that has left: inputs have passed [`Operator::out_shape`].
    fn watch<T>(&self, work: impl FnOnce() -> Result<T, SequenceError>) -> Option<T> {
        if self.0.get().is_some() {
            return None;
        }
        match work() {
            Ok(result) => Some(result),
            Err(SequenceError::Cluster(error)) => {
                self.0.get_or_init(|| error);
                None
            }
            Err(SequenceError::Call(error)) => panic!("{error}"),
        }
    }
}

/// One call of [`SequenceParallel`] on this rank's tokens.
///
/// All ranks have to run the same operators in the same order, forward and backward. One operator is one call: it keeps what its
/// forward pass leaves for its backward pass.
#[derive(Debug)]
pub struct OnRank {
    attention: SequenceParallel,
    state: OnceLock<SequenceState>,
    failed: Failed,
}

impl OnRank {
    /// The call of `attention`; errors go to `failed`.
    pub fn new(attention: SequenceParallel, failed: Failed) -> Self {
        Self { attention, state: OnceLock::new(), failed }
    }
}

impl Operator for OnRank {
    fn inputs(&self) -> Vec<&'static str> {
        self.attention.inputs().to_vec()
    }

    fn constants(&self) -> &'static [&'static str] {
        self.attention.constants()
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        self.attention.out_shape(shapes).map_err(|error| match error {
            SequenceError::Call(error) => error,
            SequenceError::Cluster(error) => unreachable!("no message is needed for shapes: {error}"),
        })
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        match self.failed.watch(|| self.attention.forward(inputs)) {
            Some((result, state)) => {
                out.copy_from_slice(&result);
                self.state.set(state).expect("one forward pass");
            }
            None => out.fill(0.0),
        }
        Saved::new()
    }

    fn backward(
        &self,
        inputs: &[View<f32>],
        out: &[f32],
        _: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        let state = self.state.get();
        let grads =
            state.and_then(|state| self.failed.watch(|| self.attention.backward(inputs, out, state, grad_out, wanted)));
        let names = self.attention.inputs();
        let zeros = || {
            let learned = names.iter().map(|name| !self.constants().contains(name));
            let all = inputs.iter().zip(wanted).zip(learned);
            all.map(|((input, wanted), learned)| (*wanted && learned).then(|| vec![0.0; input.data.len()])).collect()
        };
        grads.unwrap_or_else(zeros)
    }

    /// # Panics
    /// Always: the twin is that of one process, [`AttentionOptions::operator`](regard_kernels::AttentionOptions::operator).
    fn reference(&self, _: &[View<f64>], _: Option<&[f64]>) -> Reference {
        panic!("one rank alone has no twin")
    }
}

/// The sum of a tensor over all ranks; its gradient is the sum of theirs.
#[derive(Debug)]
pub struct SumOverRanks {
    peers: Peers,
    failed: Failed,
}

impl SumOverRanks {
    /// Over the ranks of `communicator`; errors go to `failed`.
    pub fn new(communicator: Arc<dyn Communicator>, failed: Failed) -> Self {
        Self { peers: Peers(communicator), failed }
    }

    /// The largest of each value over all ranks; this rank's own where one has left.
    pub fn largest(&self, own: Vec<f32>) -> Vec<f32> {
        self.failed.watch(|| Ok(self.peers.merged(&own, f32::max)?)).unwrap_or(own)
    }

    fn total(&self, own: &[f32]) -> Option<Vec<f32>> {
        self.failed.watch(|| Ok(self.peers.total(own)?))
    }
}

impl Operator for SumOverRanks {
    fn inputs(&self) -> Vec<&'static str> {
        vec!["x"]
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        Ok(shapes[0].to_vec())
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        match self.total(inputs[0].data) {
            Some(total) => out.copy_from_slice(&total),
            None => out.fill(0.0),
        }
        Saved::new()
    }

    fn backward(
        &self,
        _: &[View<f32>],
        _: &[f32],
        _: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        // Every rank asks: the others wait for its gradient, wanted here or not.
        let total = self.total(grad_out).unwrap_or_else(|| vec![0.0; grad_out.len()]);
        vec![wanted[0].then_some(total)]
    }

    /// # Panics
    /// Always: one rank alone has no sum.
    fn reference(&self, _: &[View<f64>], _: Option<&[f64]>) -> Reference {
        panic!("one rank alone has no twin")
    }
}
