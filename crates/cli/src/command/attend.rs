//! `regard attend`

use std::{fs, path::PathBuf, sync::Arc};

use clap::Args;
use regard_files::write_whole;
use regard_lab::attend::{Ranks, Request, attend};
use regard_tasks::run::{Layers, SECTIONS};

use crate::{
    args::Common,
    error::{Failure, Outcome},
    job, output,
    values::{Real, seed, within},
};

/// Help text on the tensors.
pub const TENSORS: &str = "Tensors of the input: q [B,H,N,D], k [B,Hk,S,D] (mixtures [B,Hk,M,S,D]), v [B,Hk,S,Dv], F32 or \
F64; optional valid [B,S] and query_valid [B,N] (U8), bias [H,N,S] (softmax), log_prior [H,M] or [H,M,S], variance [M], \
shift [Hk,M,D], prior [H,M,S] (soft-em), projection [R,D] (performer, scatterbrain), directions [rounds,D+2] (smyrf), \
rotations [rounds,D,hash values/2] (lsh, which takes no k: queries are the keys), layout [blocks,blocks] (block), w_q, w_k and \
w_t (fastformer), grad_out. Tensors of the output: out, lse where it exists, prior_after (soft-em), balance_loss and z_loss \
(moa), and, where grad_out is given, grad.NAME of each input that is learned, grad_balance.NAME and grad_z.NAME of x and w_gate \
(moa).";

#[derive(Debug, Args)]
pub struct Attend {
    /// Attention mechanism.
    #[arg(long, value_name = "NAME")]
    pub mechanism: String,
    /// Each query sees only keys up to its own position (bottom-right aligned).
    #[arg(long)]
    pub causal: bool,
    /// Set one option of the mechanism, as in keys.design=shifted; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Safetensors file to read.
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    /// Safetensors file to write.
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Score scale instead of 1/sqrt(D); softmax, performer, sparse and scatterbrain.
    #[arg(long, value_parser = Real, value_name = "NUMBER")]
    pub scale: Option<f64>,
    /// Run the float64 twin instead of the kernel.
    #[arg(long)]
    pub reference: bool,
    /// Seed for shifts, projections, directions and rotations that are missing from the file.
    #[arg(long, value_parser = seed(), value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Spread the sequence over N ranks, here threads of this process, as over N machines; under mpirun over its ranks.
    #[arg(long, value_parser = within(1, Ranks::MOST as u64), value_name = "N", conflicts_with = "reference")]
    pub ranks: Option<usize>,
}

/// Who computes: the ranks of the job where this process is one of several.
fn ranks(args: &Attend) -> Outcome<Ranks> {
    match args.ranks {
        _ if !job::is_shared() => Ok(args.ranks.map_or(Ranks::One, Ranks::Threads)),
        Some(_) => Err(Failure::usage("--ranks is given under mpirun, which has started the ranks; leave it out")),
        None if args.reference => Err(Failure::usage(
            "--reference is given under mpirun; the twin runs in one process: start it without mpirun",
        )),
        None => Ok(Ranks::Job(job::join(&Arc::default())?)),
    }
}

/// Applies one mechanism to a file.
///
/// # Errors
/// Options that do not exist, a file that cannot be read or written, tensors that do not fit.
pub fn run(args: &Attend, common: &Common) -> Outcome {
    let mut layers = Layers::new();
    layers.set_named("mechanism", &args.mechanism, "--mechanism")?;
    for assignment in &args.set {
        let key = assignment.split(['.', '=']).next().unwrap_or_default().trim();
        layers.assign(assignment, "--set")?;
        if SECTIONS.contains(&key) || ["seed", "position"].contains(&key) {
            return Err(Failure::usage(format!(
                "--set: {assignment} is no option of a mechanism, expected one as keys.design"
            )));
        }
    }
    if let Some(scale) = args.scale.filter(|scale| !scale.is_finite()) {
        return Err(Failure::usage(format!("--scale is {scale}, expected a finite number")));
    }
    if args.causal {
        layers.set("causal", "true", "--causal")?;
    }
    let config = layers.resolve()?;
    let [input, output] = [&args.input, &args.output].map(|path| fs::canonicalize(path).ok());
    if input.is_some() && input == output {
        let path = args.output.display();
        return Err(Failure::usage(format!("--output is {path}, the input; expected another file")));
    }
    let file = fs::read(&args.input).map_err(|error| Failure::reading(&args.input, &error))?;
    let request = Request {
        options: config.attention,
        chosen: &|key| layers.is_set(key),
        scale: args.scale,
        reference: args.reference,
        seed: args.seed,
        ranks: ranks(args)?,
    };
    let written = attend(&file, &request).map_err(|error| Failure::from(error).at(args.input.display()))?;
    if job::rank() > 0 {
        // All ranks have the whole result; the first one writes it.
        return Ok(());
    }
    write_whole(&args.output, &written).map_err(|error| Failure::written(&error))?;
    if common.json {
        output::json(&serde_json::json!({ "output": args.output.to_string_lossy(), "bytes": written.len() }))?;
    }
    Ok(())
}
