//! One long sequence forward and backward, on one process or spread over several.
//!
//! ```text
//! million MECHANISM TOKENS [held | drawn] [RANK ADDRESS ADDRESS ...]
//! ```
//!
//! Batch 1, 8 heads of 64, causal. Heads are independent, and taken one after another: an output and its gradients are
//! those of one head. With `held` the inputs of all heads are in memory and their gradients replace them; with `drawn` a
//! head's inputs are drawn when its turn comes. Every process takes its own tokens alone; the numbers of a token depend on
//! its place in the whole sequence, so that any number of ranks has the same.

#[path = "support/tcp.rs"]
mod tcp;

use std::{io::Write, ops::Range, sync::Arc, time::Instant};

use regard_alloc::{CountingAllocator, peak_bytes, peak_resident_bytes};
use regard_cluster::{Alone, Communicator};
use regard_kernels::{
    AttentionOptions, Call, Mask, View, draws,
    features::{RowNorms, RowsDrawn},
    mechanism::KeyDesign,
};
use regard_sequence::{SequenceError, SequenceParallel};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const HEADS: usize = 8;
const WIDTH: usize = 64;

/// A number in `[-1.7, 1.7)`, of variance near 1, for each place of a tensor.
fn number(tensor: u64, place: u64) -> f32 {
    let mut z = (tensor << 48 | place).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * 1.7
}

/// The rows of these tokens, for `components` of a head.
fn draw(tensor: u64, head: usize, components: usize, tokens: &Range<usize>, total: usize, to: &mut [f32]) {
    let rows = (0..components).flat_map(|r| tokens.clone().map(move |token| (r, token)));
    for ((r, token), row) in rows.zip(to.chunks_exact_mut(WIDTH)) {
        let first = (((head * components + r) * total + token) * WIDTH) as u64;
        row.iter_mut().enumerate().for_each(|(c, x)| *x = number(tensor, first + c as u64));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (mechanism, tokens) = (words[0].as_str(), words[1].parse::<usize>()?);
    let held = words.get(2).is_none_or(|word| word == "held");
    let peers: Arc<dyn Communicator> = match words.get(3) {
        None => Arc::new(Alone),
        Some(rank) => Arc::new(tcp::Tcp::join(rank.parse()?, &words[4..])?),
    };
    let mut options = AttentionOptions { heads: 1, ..AttentionOptions::default() };
    match mechanism {
        "mlk-shifted" => {
            options.mechanism = "mlk".parse()?;
            options.keys.design = KeyDesign::Shifted;
        }
        other => options.mechanism = other.parse()?,
    }
    let call = Call { mask: Mask::causal(), ..Call::default() };
    let attention = SequenceParallel::new(&options, &call, [tokens; 2], peers.clone())?;
    let rank = peers.rank();
    let own = attention.queries().of(rank)[0].clone();
    let names = attention.inputs().to_vec();
    let components = if mechanism == "mlk" { options.keys.components } else { 1 };
    let parameter = |name: &str, head: usize| -> Option<(Vec<f32>, Vec<usize>)> {
        let key = head as u64;
        match name {
            "log_prior" => Some((
                vec![-(options.keys.components as f32).ln(); options.keys.components],
                vec![1, options.keys.components],
            )),
            "shift" => {
                let count = options.keys.components * WIDTH;
                Some(((0..count as u64).map(|n| number(9 + key, n)).collect(), vec![1, options.keys.components, WIDTH]))
            }
            "projection" => {
                let rows = options.features.rows;
                let drawn = draws::projection(rows, WIDTH, RowsDrawn::Orthogonal, RowNorms::Gaussian, key);
                Some((drawn, vec![rows, WIDTH]))
            }
            _ => None,
        }
    };
    let counts = [1, components, 1].map(|count| count * own.len() * WIDTH);
    let row = [1, 1, own.len(), WIDTH];
    let keys = if mechanism == "mlk" { vec![1, 1, components, own.len(), WIDTH] } else { row.to_vec() };
    let shapes = [row.to_vec(), keys, row.to_vec()];
    let drawn = |head: usize| -> Vec<Vec<f32>> {
        let tensors = counts.iter().zip([1, components, 1]).enumerate().map(|(n, (count, components))| {
            let mut data = vec![0.0; *count];
            draw(n as u64, head, components, &own, tokens, &mut data);
            data
        });
        tensors.collect()
    };
    let mut inputs: Vec<Vec<Vec<f32>>> = if held { (0..HEADS).map(drawn).collect() } else { Vec::new() };
    let before = peers.bytes_sent();
    let start = Instant::now();
    let (mut passes, mut sums) = ([0.0f64; 2], vec![0.0f64; 4]);
    for head in 0..HEADS {
        let mut data = if held { std::mem::take(&mut inputs[head]) } else { drawn(head) };
        let parameters: Vec<_> = names[3..].iter().filter_map(|name| parameter(name, head)).collect();
        let mut views: Vec<_> = data.iter().zip(&shapes).map(|(data, shape)| View::new(data, shape)).collect();
        views.extend(parameters.iter().map(|(data, shape)| View::new(data, shape)));
        let started = Instant::now();
        let (out, state) = attention.forward(&views)?;
        passes[0] += started.elapsed().as_secs_f64();
        let mut grad_out = vec![0.0; out.len()];
        draw(7, head, 1, &own, tokens, &mut grad_out);
        let mut wanted = vec![true; views.len()];
        wanted[3..].fill(false);
        let started = Instant::now();
        let grads = attention.backward(&views, &out, &state, &grad_out, &wanted)?;
        passes[1] += started.elapsed().as_secs_f64();
        drop(state);
        let squares = |data: &[f32]| data.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        sums[0] += squares(&out);
        let grads: Vec<_> = grads.into_iter().take(3).flatten().collect();
        grads.iter().zip(&mut sums[1..]).for_each(|(grad, sum)| *sum += squares(grad));
        if held {
            data.iter_mut().zip(grads).for_each(|(data, grad)| data.copy_from_slice(&grad));
            inputs[head] = data;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let sent = peers.bytes_sent() - before;
    let sums = total(&*peers, &sums)?;
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    let mut line = format!(
        "{mechanism} {tokens} tokens, {}, rank {rank} of {}: peak {:.2} GiB (resident {:.2}), forward {:.1} s, backward {:.1} s, all {seconds:.1} s, sent {sent} bytes",
        if held { "held" } else { "drawn" },
        peers.ranks(),
        gib(peak_bytes().unwrap_or(0)),
        gib(peak_resident_bytes().unwrap_or(0)),
        passes[0],
        passes[1],
    );
    if rank == 0 {
        line += &format!("; squares of out, q, k, v: {:.6e} {:.6e} {:.6e} {:.6e}", sums[0], sums[1], sums[2], sums[3]);
    }
    writeln!(std::io::stdout(), "{line}")?;
    Ok(())
}

/// Sums over all ranks; nobody leaves before all have come here.
fn total(peers: &dyn Communicator, own: &[f64]) -> Result<Vec<f64>, SequenceError> {
    let bytes: Vec<u8> = own.iter().flat_map(|x| x.to_le_bytes()).collect();
    let others = || (0..peers.ranks()).filter(|rank| *rank != peers.rank());
    others().try_for_each(|to| peers.send(to, 1, bytes.clone()))?;
    let mut sums = own.to_vec();
    for from in others() {
        let bytes = peers.receive(from, 1)?;
        for (sum, bytes) in sums.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *sum += f64::from_le_bytes(*bytes);
        }
    }
    for to in others() {
        peers.send(to, 2, Vec::new())?;
    }
    for from in others() {
        peers.receive(from, 2)?;
    }
    Ok(sums)
}
