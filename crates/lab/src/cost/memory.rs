//! Checks whether a model and its data can fit into memory, before anything is built.

use regard_nn::config::Precision;
use regard_tasks::{Class, Failure, data::Held, run::RunConfig};

use super::{Count, ModelCost, ModelSizes, Run};

/// Bytes per parameter in training: value, gradient and the two moments of AdamW.
pub const TRAINING: Count = 16;
/// Bytes per parameter at inference.
const INFERENCE: Count = 4;
/// Maximum batches per update: far more than anyone accumulates.
const MOST_ACCUMULATED: usize = 1 << 20;

/// Checks a training run by so many ranks.
///
/// # Errors
/// Sizes out of range; parameters or data that exceed memory.
pub fn check_training(config: &RunConfig, ranks: usize) -> Result<(), Failure> {
    let accumulate = config.train.accumulate;
    if accumulate > MOST_ACCUMULATED {
        return Err(Failure::usage(format!("train.accumulate is {accumulate}, expected at most {MOST_ACCUMULATED}")));
    }
    check(config, TRAINING, ranks, "train")
}

/// Checks a trained model.
///
/// # Errors
/// As [`check_training`].
pub fn check_inference(config: &RunConfig) -> Result<(), Failure> {
    check(config, INFERENCE, 1, "run")
}

/// These are lower bounds: a model that passes may still need more, one that fails cannot fit.
fn check(config: &RunConfig, bytes_each: Count, ranks: usize, verb: &str) -> Result<(), Failure> {
    let task = config.task.options();
    let length = task.shape().max_length;
    let sizes = ModelSizes::of(config, None, length);
    let cost = ModelCost::of(&sizes, Run { batch: config.train.batch, length, decoded: length })?;
    if bytes_each == TRAINING {
        let [batch, length] = task.smallest_batch(config.train.batch);
        // The parts of a batch take their turns, or are on other ranks.
        let groups = ranks / config.parallel.sequence.max(1);
        let together = batch.div_ceil(config.train.parts.max(groups).max(1));
        let step = ModelCost::of(&sizes, Run { batch: together, length, decoded: 0 })?;
        let half = if config.train.precision == Precision::F32 { 1 } else { 2 };
        let activations = step.total().activation_bytes / (half * config.parallel.sequence as Count);
        // All batches of an update are made before it, with four bytes per token id.
        let ids = config.train.accumulate as Count * batch as Count * length as Count * 4;
        let what = format!("updates on {together} sequences of at least {length} tokens at once need at least");
        let remedy = "lower train.batch, train.accumulate or the length of the sequences, or raise train.parts";
        fits(&what, activations + ids, remedy)?;
    }
    let parameters = cost.total().parameters;
    let what = format!("{parameters} parameters need, to {verb}, at least");
    fits(&what, parameters * bytes_each, "lower model.width, model.layers or the longest sequence")?;
    task.held().map_or(Ok(()), |Held { what, bytes, remedy }| fits(&what, bytes, remedy))
}

/// Checks that this machine has the minimum bytes that `what` needs; passes if the memory size is unknown.
///
/// # Errors
/// More bytes than available.
pub fn fits(what: &str, bytes: Count, remedy: &str) -> Result<(), Failure> {
    let gib = |bytes: Count| bytes as f64 / f64::from(1 << 30);
    match total_memory() {
        Some(memory) if bytes > memory => {
            let (needed, there) = (gib(bytes), gib(memory));
            let message = format!("{what} {needed:.1} GiB, this machine has {there:.1} GiB; {remedy}");
            Err(Failure::new(Class::Budget, message))
        }
        _ => Ok(()),
    }
}

/// Total memory of the machine in bytes, if known.
pub fn total_memory() -> Option<Count> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: Count = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}
