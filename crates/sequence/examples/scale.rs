//! The cost model against measurements, between ranks that talk over TCP, as from two network namespaces whose link is
//! limited. `mpirun regard bench --network` does the same between ranks of MPI, and predicts what other numbers of ranks take.
//!
//! ```text
//! scale TOKENS RANK ADDRESS ADDRESS ...
//! ```
//!
//! Started once for each rank, it measures the network and a step of each mechanism that every rank computes for itself,
//! predicts that of all ranks together, and measures it. Batch 1, 8 heads of 64, causal.

#[path = "support/tcp.rs"]
mod tcp;

use std::{io::Write, sync::Arc};

use regard_cluster::{Alone, Communicator, barrier};
use regard_kernels::AttentionOptions;
use regard_sequence::{Network, Step};

const MECHANISMS: [&str; 8] =
    ["softmax", "mgk", "softmax, window", "linear", "mlk", "performer", "sparse", "scatterbrain"];
const TURN: u32 = 1;

type Failure = Box<dyn std::error::Error>;

/// One of [`MECHANISMS`].
fn step(name: &str) -> Result<Step, Failure> {
    let (mechanism, window) = match name.split_once(',') {
        Some((mechanism, _)) => (mechanism, Some(32)),
        None => (name, None),
    };
    let options = AttentionOptions { mechanism: mechanism.parse()?, heads: 8, window, ..AttentionOptions::default() };
    Ok(Step::new(options, 64))
}

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (tokens, rank) = (words[0].parse()?, words[1].parse()?);
    let peers: Arc<dyn Communicator> = Arc::new(tcp::Tcp::join(rank, &words[2..])?);
    let (ranks, out) = (peers.ranks(), &mut std::io::stdout());
    let network = Network::measure(&*peers, 1)?;
    if rank == 0 {
        let (latency, bandwidth) = (1e6 * network.latency, network.bandwidth / 1e6);
        writeln!(out, "{ranks} ranks, {latency:.1} us, {bandwidth:.1} MB/s, {tokens} tokens")?;
        writeln!(out, "| | bytes | one rank s | predicted s | measured s |\n|---|---:|---:|---:|---:|")?;
    }
    let alone: Arc<dyn Communicator> = Arc::new(Alone);
    for name in MECHANISMS {
        let step = step(name)?;
        // Ranks of one machine share its processors: all compute the whole at the same time, each for itself.
        barrier(&*peers, TURN)?;
        let (one, measured) = (step.measure(tokens, &alone)?, step.measure(tokens, &peers)?);
        if rank == 0 {
            let compute = one.map(|seconds| seconds / ranks as f64);
            let (predicted, bytes) = step.predict(tokens, ranks, compute, &network)?;
            let [one, predicted, measured] = [one, predicted, measured].map(|[forward, backward]| forward + backward);
            writeln!(out, "| {name} | {bytes} | {one:.3} | {predicted:.3} | {measured:.3} |")?;
        }
    }
    barrier(&*peers, TURN)?;
    Ok(())
}
