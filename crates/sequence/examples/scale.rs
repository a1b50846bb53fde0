//! The cost model against measurements, and beyond them.
//!
//! ```text
//! scale measure TOKENS RANK ADDRESS ADDRESS ...
//! scale paper LATENCY_SECONDS BYTES_A_SECOND
//! ```
//!
//! `measure`, started once for each rank, measures the network and a step of each mechanism that every rank computes for
//! itself, predicts that of all ranks together, and measures it. `paper` measures one rank and predicts what a million tokens take on up to 64 machines like
//! this one with such a network between them. Batch 1, 8 heads of 64, causal.

#[path = "support/tcp.rs"]
mod tcp;

use std::{io::Write, sync::Arc, time::Instant};

use regard_cluster::{Alone, ClusterError, Communicator};
use regard_kernels::{AttentionOptions, Call, Layout, Mask, View, inputs::InputSizes, mechanism::Mechanism};
use regard_sequence::{Network, SequenceError, SequenceParallel};

const HEADS: usize = 8;
const WIDTH: usize = 64;
const MECHANISMS: [&str; 8] =
    ["softmax", "mgk", "softmax, window", "linear", "mlk", "performer", "sparse", "scatterbrain"];

type Failure = Box<dyn std::error::Error>;

/// One of [`MECHANISMS`].
struct Subject {
    options: AttentionOptions,
    call: Call,
}

impl Subject {
    fn named(name: &str) -> Result<Self, Failure> {
        let (mechanism, window) = match name.split_once(',') {
            Some((mechanism, _)) => (mechanism, Some(32)),
            None => (name, None),
        };
        let options =
            AttentionOptions { mechanism: mechanism.parse()?, heads: HEADS, window, ..AttentionOptions::default() };
        Ok(Self { options, call: Call { mask: Mask { window, ..Mask::causal() }, ..Call::default() } })
    }

    /// Whether its time grows as the square of the length.
    fn quadratic(&self) -> bool {
        matches!(self.options.mechanism, Mechanism::Softmax | Mechanism::Mgk) && self.call.mask.window.is_none()
    }

    /// Shapes of its inputs for so many tokens.
    fn shapes(&self, tokens: usize) -> Result<Vec<Vec<usize>>, Failure> {
        let operator = self.options.operator(self.call.clone())?;
        let sizes = InputSizes::new(Layout::HeadFirst, 1, tokens, HEADS, WIDTH);
        Ok(self.options.inputs(&*operator, &sizes).into_iter().map(|spec| spec.shape).collect())
    }

    /// Seconds of a step forward and backward on the ranks of a job: the best of three, of the slowest rank.
    fn step(&self, tokens: usize, peers: &Arc<dyn Communicator>) -> Result<[f64; 2], Failure> {
        let attention = SequenceParallel::new(&self.options, &self.call, [tokens; 2], peers.clone())?;
        let own = attention.queries().count(peers.rank());
        let operator = self.options.operator(self.call.clone())?;
        let sizes = InputSizes::new(Layout::HeadFirst, 1, own, HEADS, WIDTH);
        let specs = self.options.inputs(&*operator, &sizes);
        let fill =
            |n: usize| (0..n).map(|i| (i.wrapping_mul(2_654_435_761) >> 9 & 1023) as f32 / 512.0 - 1.0).collect();
        let mut data: Vec<Vec<f32>> = Vec::new();
        for spec in &specs {
            let numbers = spec.numbers(1)?.map(|numbers| numbers.into_iter().map(|x| x as f32).collect());
            data.push(numbers.unwrap_or_else(|| fill(spec.shape.iter().product())));
        }
        let views: Vec<_> = data.iter().zip(&specs).map(|(data, spec)| View::new(data, &spec.shape)).collect();
        let mut wanted = vec![true; views.len()];
        wanted[3..].fill(false);
        let mut best = [f64::INFINITY; 2];
        for _ in 0..3 {
            barrier(&**peers)?;
            let start = Instant::now();
            let (out, state) = attention.forward(&views)?;
            barrier(&**peers)?;
            let forward = start.elapsed().as_secs_f64();
            let start = Instant::now();
            attention.backward(&views, &out, &state, &out, &wanted)?;
            barrier(&**peers)?;
            best = [best[0].min(forward), best[1].min(start.elapsed().as_secs_f64())];
        }
        Ok(best)
    }

    /// Predicted seconds forward and backward of `ranks` ranks, of which each computes so long, and bytes that a rank in
    /// the middle sends in both passes.
    fn predict(
        &self,
        tokens: usize,
        ranks: usize,
        compute: [f64; 2],
        network: &Network,
    ) -> Result<([f64; 2], u64), Failure> {
        let middle = Paper { rank: ranks / 2, ranks };
        let attention = SequenceParallel::new(&self.options, &self.call, [tokens; 2], Arc::new(middle))?;
        let own = self.shapes(attention.queries().count(middle.rank))?;
        let traffic = attention.traffic(&own.iter().map(|shape| &shape[..]).collect::<Vec<_>>());
        let both = traffic.forward + traffic.backward;
        let seconds = match self.options.mechanism {
            _ if ranks == 1 => compute,
            Mechanism::Linear | Mechanism::Mlk | Mechanism::Performer => {
                network.scan(ranks, compute, traffic.forward as f64)
            }
            Mechanism::Sparse => network.halo(ranks, compute, traffic.forward as f64),
            // One state goes through all ranks, after keys near the border went to a neighbour.
            Mechanism::Scatterbrain => network.scan(ranks, compute, traffic.forward as f64),
            _ if self.call.mask.window.is_some() => network.halo(ranks, compute, traffic.forward as f64),
            _ => network.ring(ranks, compute, traffic.forward as f64 / (ranks - 1) as f64),
        };
        Ok((seconds, both))
    }
}

/// A rank that only exists on paper.
#[derive(Clone, Copy, Debug)]
struct Paper {
    rank: usize,
    ranks: usize,
}

impl Communicator for Paper {
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

/// Nobody goes on before all are here.
fn barrier(peers: &dyn Communicator) -> Result<(), SequenceError> {
    let others = || (0..peers.ranks()).filter(|rank| *rank != peers.rank());
    others().try_for_each(|to| peers.send(to, 1, Vec::new()))?;
    others().try_for_each(|from| peers.receive(from, 1).map(drop))?;
    Ok(())
}

fn measure(tokens: usize, rank: usize, addresses: &[String]) -> Result<(), Failure> {
    let peers: Arc<dyn Communicator> = Arc::new(tcp::Tcp::join(rank, addresses)?);
    let (ranks, out) = (peers.ranks(), &mut std::io::stdout());
    let network = Network::measure(&*peers)?.expect("two ranks at least");
    if rank == 0 {
        writeln!(
            out,
            "{ranks} ranks, {:.1} us, {:.1} MB/s, {tokens} tokens",
            1e6 * network.latency,
            network.bandwidth / 1e6
        )?;
        writeln!(out, "| | bytes | one rank s | predicted s | measured s |\n|---|---:|---:|---:|---:|")?;
    }
    let alone: Arc<dyn Communicator> = Arc::new(Alone);
    for name in MECHANISMS {
        let subject = Subject::named(name)?;
        // Ranks of one machine share its processors: all compute the whole at the same time, each for itself.
        barrier(&*peers)?;
        let one = subject.step(tokens, &alone)?;
        let measured = subject.step(tokens, &peers)?;
        if rank == 0 {
            let compute = one.map(|seconds| seconds / ranks as f64);
            let (predicted, bytes) = subject.predict(tokens, ranks, compute, &network)?;
            let [one, predicted, measured] = [one, predicted, measured].map(|[forward, backward]| forward + backward);
            writeln!(out, "| {name} | {bytes} | {one:.3} | {predicted:.3} | {measured:.3} |")?;
        }
    }
    barrier(&*peers)?;
    Ok(())
}

fn paper(network: &Network) -> Result<(), Failure> {
    const LONG: usize = 1_000_000;
    const RANKS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
    let (alone, out): (Arc<dyn Communicator>, _) = (Arc::new(Alone), &mut std::io::stdout());
    writeln!(out, "| | {} | MB sent at 64 |", RANKS.map(|ranks| ranks.to_string()).join(" | "))?;
    writeln!(out, "|---|{}---:|", "---:|".repeat(RANKS.len()))?;
    for name in MECHANISMS {
        let subject = Subject::named(name)?;
        let tokens = if subject.quadratic() { 8192 } else { 65_536 };
        let more = (LONG as f64 / tokens as f64).powi(if subject.quadratic() { 2 } else { 1 });
        let one = subject.step(tokens, &alone)?.map(|seconds| seconds * more);
        let mut line = format!("| {name} |");
        let mut bytes = 0;
        for ranks in RANKS {
            let compute = one.map(|seconds| seconds / ranks as f64);
            let (seconds, sent) = subject.predict(LONG, ranks, compute, network)?;
            bytes = sent;
            line += &format!(" {:.2} |", seconds[0] + seconds[1]);
        }
        writeln!(out, "{line} {:.2} |", bytes as f64 / 1e6)?;
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words[0][..] {
        "measure" => measure(words[1].parse()?, words[2].parse()?, &words[3..]),
        _ => paper(&Network { latency: words[1].parse()?, bandwidth: words[2].parse()? }),
    }
}
