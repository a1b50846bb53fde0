//! Whether a model and its data can fit into this machine, known before anything is built.

use regard_lab::cost::{Count, ModelCost, Run};
use regard_tasks::data::TaskName;

use super::cost::{longest, sizes};
use crate::{
    config::RunConfig,
    error::{Code, Failure, Outcome},
};

/// Bytes of a learned number in training: itself, its gradient and the two moments of AdamW.
const TRAINING: Count = 16;
/// Bytes of a learned number of a finished model.
const INFERENCE: Count = 4;
/// Most batches whose gradients make one update: far more than anybody accumulates.
const MOST_ACCUMULATED: usize = 1 << 20;

/// Checks a run that trains.
///
/// # Errors
/// Sizes out of all range; parameters or data that need more memory than there is.
pub fn check_training(config: &RunConfig) -> Outcome {
    let accumulate = config.train.accumulate;
    if accumulate > MOST_ACCUMULATED {
        return Err(Failure::usage(format!("train.accumulate is {accumulate}, expected at most {MOST_ACCUMULATED}")));
    }
    check(config, TRAINING, "train")
}

/// Checks a finished model.
///
/// # Errors
/// As [`check_training`].
pub fn check_inference(config: &RunConfig) -> Outcome {
    check(config, INFERENCE, "run")
}

/// Sequences of the smallest batch that a run has, and their length.
fn smallest_batch(config: &RunConfig) -> (usize, usize) {
    let task = &config.task;
    match task.name {
        TaskName::Listops => (config.train.batch.min(task.listops.train), task.listops.min_length.saturating_add(1)),
        TaskName::CharLm => (config.train.batch, task.char_lm.context),
        TaskName::Copy => (config.train.batch, task.copy.length),
        // How many there are, and how long they are, is in the files.
        TaskName::Text | TaskName::Translation | TaskName::MaskedLm => (1, 1),
    }
}

/// These are lower bounds: a model that passes may still need more, one that does not cannot be.
fn check(config: &RunConfig, bytes_each: Count, verb: &str) -> Outcome {
    let length = longest(config);
    let run = Run { batch: config.train.batch, length, decoded: length };
    let cost = ModelCost::of(&sizes(config, None, length), run)?;
    let Some(memory) = total_memory() else { return Ok(()) };
    let gib = |bytes: Count| bytes as f64 / f64::from(1 << 30);
    let beyond = |what: String, bytes: Count, remedy: &str| Failure {
        code: Code::Budget,
        message: format!("{what} {:.1} GiB, this machine has {:.1} GiB; {remedy}", gib(bytes), gib(memory)),
    };
    if bytes_each == TRAINING {
        let (batch, length) = smallest_batch(config);
        let step = ModelCost::of(&sizes(config, None, longest(config)), Run { batch, length, decoded: 0 })?;
        // All batches of an update are made before it, an id of four bytes a token.
        let ids = config.train.accumulate as Count * batch as Count * length as Count * 4;
        let bytes = step.total().activation_bytes + ids;
        if bytes > memory {
            let what = format!("updates on {batch} sequences of at least {length} tokens need at least");
            return Err(beyond(what, bytes, "lower train.batch, train.accumulate or the length of the sequences"));
        }
    }
    let parameters = cost.total().parameters;
    let bytes = parameters * bytes_each;
    if bytes > memory {
        let what = format!("{parameters} parameters need, to {verb}, at least");
        return Err(beyond(what, bytes, "lower model.width, model.layers or the longest sequence"));
    }
    if config.task.name == TaskName::Listops {
        let data = &config.task.listops;
        let trees: Count = [data.train, data.valid, data.test].iter().map(|count| *count as Count).sum();
        let bytes = trees * (data.min_length as Count + 1);
        if bytes > memory {
            let what = format!("{trees} trees of more than {} tokens need at least", data.min_length);
            return Err(beyond(what, bytes, "lower task.listops.train"));
        }
    }
    Ok(())
}

/// Bytes of memory of the machine, where the system tells.
pub fn total_memory() -> Option<Count> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: Count = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}
