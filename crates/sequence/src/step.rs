//! A step of attention over ranks: what it takes, and what the cost model says it would take on others.

use std::{sync::Arc, time::Instant};

use regard_cluster::{ClusterError, Communicator, barrier};
use regard_kernels::{
    AttentionOptions, Call, Error, Layout, Mask, View, inputs::InputSizes, mechanism::Mechanism, random,
};

use crate::{Network, SequenceError, SequenceParallel};

/// Tag of barriers.
const TURN: u32 = 0x5e20;
/// Tries, of which the best counts.
const TRIES: usize = 3;

/// Causal self-attention of one sequence, forward and backward.
#[derive(Clone, Debug)]
pub struct Step {
    options: AttentionOptions,
    call: Call,
    width: usize,
}

impl Step {
    /// Of these options, with heads of this width.
    pub fn new(options: AttentionOptions, width: usize) -> Self {
        let call = Call { mask: Mask { window: options.window, ..Mask::causal() }, ..Call::default() };
        Self { options, call, width }
    }

    /// Whether its time grows as the square of the length, and not as the length.
    pub fn is_quadratic(&self) -> bool {
        match self.options.mechanism {
            Mechanism::Softmax | Mechanism::Cosine | Mechanism::Gaussian | Mechanism::Mgk => {
                self.call.mask.window.is_none()
            }
            _ => false,
        }
    }

    /// Seconds forward and backward on the ranks of a job: the best of three tries, of the slowest rank. All ranks have to call
    /// it.
    ///
    /// # Errors
    /// Options that are not spread over ranks, or a rank that has left.
    pub fn measure(&self, tokens: usize, peers: &Arc<dyn Communicator>) -> Result<[f64; 2], SequenceError> {
        let attention = SequenceParallel::new(&self.options, &self.call, [tokens; 2], peers.clone())?;
        let operator = self.options.operator(self.call.clone())?;
        let specs = self.options.inputs(&*operator, &self.sizes(attention.queries().count(peers.rank())));
        let mut data: Vec<Vec<f32>> = Vec::new();
        for spec in &specs {
            let numbers = spec.numbers(1)?.map(|numbers| numbers.into_iter().map(|x| x as f32).collect());
            data.push(numbers.unwrap_or_else(|| drawn(spec.shape.iter().product())));
        }
        let views: Vec<_> = data.iter().zip(&specs).map(|(data, spec)| View::new(data, &spec.shape)).collect();
        // Queries, keys and values.
        let wanted: Vec<bool> = (0..views.len()).map(|input| input < 3).collect();
        let mut best = [f64::INFINITY; 2];
        for _ in 0..TRIES {
            barrier(&**peers, TURN)?;
            let start = Instant::now();
            let (out, state) = attention.forward(&views)?;
            barrier(&**peers, TURN)?;
            let forward = start.elapsed().as_secs_f64();
            let start = Instant::now();
            attention.backward(&views, &out, &state, &out, &wanted)?;
            barrier(&**peers, TURN)?;
            best = [best[0].min(forward), best[1].min(start.elapsed().as_secs_f64())];
        }
        Ok(best)
    }

    /// Seconds forward and backward of `ranks` ranks on `network`, of which each computes so long, and bytes that the one of the two
    /// in the middle sends in both passes that sends more.
    ///
    /// # Errors
    /// Options that are not spread over ranks, or fewer tokens than chunks.
    pub fn predict(
        &self,
        tokens: usize,
        ranks: usize,
        compute: [f64; 2],
        network: &Network,
    ) -> Result<([f64; 2], u64), SequenceError> {
        // Of two ranks the last one sends nothing forward along a causal sequence.
        let (mut both, mut message) = (0, 0.0_f64);
        for rank in [(ranks - 1) / 2, ranks / 2] {
            let attention =
                SequenceParallel::new(&self.options, &self.call, [tokens; 2], Arc::new(OnPaper { rank, ranks }))?;
            let shapes = self.shapes(attention.queries().count(rank))?;
            let traffic = attention.traffic(&shapes.iter().map(|shape| &shape[..]).collect::<Vec<_>>());
            (both, message) = (both.max(traffic.forward + traffic.backward), message.max(traffic.forward as f64));
        }
        let seconds = match self.options.mechanism {
            _ if ranks == 1 => compute,
            // Of Scatterbrain one state goes through all ranks, after keys near the border went to a neighbour.
            Mechanism::Linear | Mechanism::Mlk | Mechanism::Performer | Mechanism::Scatterbrain => {
                network.scan(ranks, compute, message)
            }
            // Two averages, each with a message of its own through all ranks.
            Mechanism::Fastformer => network.scan(2 * ranks - 1, compute, message / 2.0),
            Mechanism::Sparse => network.halo(ranks, compute, message),
            _ if self.call.mask.window.is_some() => network.halo(ranks, compute, message),
            _ => network.ring(ranks, compute, message / (ranks - 1) as f64),
        };
        Ok((seconds, both))
    }

    fn sizes(&self, tokens: usize) -> InputSizes {
        InputSizes::new(Layout::HeadFirst, 1, tokens, self.options.heads, self.width)
    }

    /// Shapes of its inputs for so many tokens.
    fn shapes(&self, tokens: usize) -> Result<Vec<Vec<usize>>, Error> {
        let operator = self.options.operator(self.call.clone())?;
        Ok(self.options.inputs(&*operator, &self.sizes(tokens)).into_iter().map(|spec| spec.shape).collect())
    }
}

/// Numbers from -1 to 1.
fn drawn(count: usize) -> Vec<f32> {
    (0..count as u64).map(|at| 2.0 * random::unit(random::substream(1, at)) as f32 - 1.0).collect()
}

/// A rank that is on paper alone.
#[derive(Clone, Copy, Debug)]
struct OnPaper {
    rank: usize,
    ranks: usize,
}

impl Communicator for OnPaper {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn send(&self, to: usize, _: u32, _: Vec<u8>) -> Result<(), ClusterError> {
        Err(ClusterError::Lost { rank: to })
    }

    fn receive(&self, from: usize, _: u32) -> Result<Vec<u8>, ClusterError> {
        Err(ClusterError::Lost { rank: from })
    }

    fn bytes_sent(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two ranks the first sends its state forward: 2 heads of 4 x (4 + 1) floats, each way.
    #[test]
    fn a_scan_over_two_ranks_waits_for_one_message_each_way() {
        let options = AttentionOptions { mechanism: Mechanism::Linear, heads: 2, ..AttentionOptions::default() };
        let network = Network { latency: 1.0, bandwidth: 160.0 };
        let (seconds, bytes) = Step::new(options, 4).predict(64, 2, [3.0, 5.0], &network).unwrap();
        assert_eq!((seconds, bytes), ([3.0 + 2.0, 5.0 + 2.0], 160));
    }
}
