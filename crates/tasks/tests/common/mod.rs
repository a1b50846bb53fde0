//! What tests of training share.

#![allow(dead_code)] // Each test binary uses some of it.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use regard_tasks::train::{
    Checkpoint, Environment, Evaluation, Existing, Progress, Record, RunDirectory, StepReport, TrainError,
};

/// A run directory that keeps two checkpoints.
pub fn open(path: &Path, existing: Existing) -> Result<RunDirectory, TrainError> {
    RunDirectory::open(path, existing, 2, "", &Environment::capture(None))
}

/// Raises the stop flag after a step.
pub struct StopAfter(pub usize, pub Arc<AtomicBool>);

impl Progress for StopAfter {
    fn step(&self, report: &StepReport) {
        if report.step == self.0 {
            self.1.store(true, Ordering::Relaxed);
        }
    }

    fn evaluated(&self, _: &Evaluation) {}

    fn message(&self, _: &str) {}
}

fn bits(checkpoint: &Checkpoint) -> BTreeMap<String, Vec<u32>> {
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let mut all: BTreeMap<_, _> = checkpoint.model.iter().map(|(name, t)| (name.clone(), bits(&t.data))).collect();
    for (name, moments) in &checkpoint.moments {
        all.insert(format!("first {name}"), bits(&moments.first));
        all.insert(format!("second {name}"), bits(&moments.second));
    }
    all
}

/// Parameters and moments are the same to the last bit.
#[track_caller]
pub fn assert_same(one: &Checkpoint, other: &Checkpoint) {
    let (one, other) = (bits(one), bits(other));
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    let different: Vec<_> = one.keys().filter(|name| one[*name] != other[*name]).collect();
    assert!(different.is_empty(), "these differ: {different:?}");
}

/// What a metrics file says apart from times and memory.
pub fn figures(path: &Path) -> Vec<String> {
    let figure = |record: &Record| match record {
        Record::Step(r) => format!("{} {:x} {:x}", r.step, r.loss.to_bits(), r.gradient_norm.to_bits()),
        Record::Evaluation(e) => format!("{} {:?} {:x} {:?}", e.step, e.split, e.loss.to_bits(), e.accuracy),
    };
    Record::read(&path.join("metrics.jsonl")).unwrap().iter().map(figure).collect()
}
