//! `regard bench --network`

use regard_lab::bench::{NetworkPlan, NetworkReport};

use crate::{
    args::Common,
    command::{bench::Bench, command_line, environment, make_out, show},
    console,
    error::{Failure, Outcome},
    job, signal,
};

/// What is measured unless `--mechanism` names others.
const MECHANISMS: [&str; 9] =
    ["softmax", "mgk", "softmax:window=32", "linear", "mlk", "fastformer", "performer", "sparse", "scatterbrain"];

/// Measures the network between the ranks of a job, and attention over them.
///
/// # Errors
/// One rank alone, a mechanism that is not spread over ranks, a rank that has left.
pub(super) fn run(args: &Bench, common: &Common) -> Outcome {
    if !job::is_shared() {
        return Err(Failure::usage(
            "--network in one process, expected several ranks; start it as 'mpirun -n 2 regard bench --network' in a build with \
             the feature mpi",
        ));
    }
    let cluster = job::join(&signal::stop_flag())?;
    let entries = match args.mechanism.is_empty() {
        true => MECHANISMS.to_vec(),
        false => args.mechanism.iter().map(String::as_str).collect(),
    };
    let plan = NetworkPlan {
        subjects: super::subjects::attentions(args, &entries)?,
        head_width: args.head_width.first().copied().unwrap_or(64),
        tokens: args.lengths.first().copied().unwrap_or(8192),
        predicted: args.lengths.get(1).copied().unwrap_or(1_000_000),
    };
    let leads = cluster.rank() == 0;
    let note = |what: &str| {
        if leads && !common.quiet {
            console::line(format_args!("measuring {what}"));
        }
    };
    if leads {
        make_out(args.out.as_deref())?;
    }
    let origin = (command_line(), environment());
    let report = NetworkReport::measure(plan, &cluster, origin, &note)?;
    if leads { show(common, args.out.as_deref(), &report) } else { Ok(()) }
}
