//! A run directory whose files are damaged, deleted or swapped: resuming it is an error, or goes on from a checkpoint as it
//! was written. Bytes of an input come in fours: what to do, with which file, where.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use rand::Rng;
use regard_tasks::train::{
    Best, Checkpoint, Checkpoints, Environment, Existing, HostTensor, HostTensors, Moments, Record, RunDirectory,
    RunState,
};

use super::{Target, scratch};

fn checkpoint(step: usize) -> Checkpoint {
    let tensor = HostTensor { shape: vec![2, 2], data: vec![step as f32; 4] };
    Checkpoint {
        model: HostTensors::from([("w".into(), tensor)]),
        moments: BTreeMap::from([("w".into(), Moments { first: vec![0.1; 4], second: vec![0.2; 4] })]),
        state: RunState {
            step,
            seed: 7,
            batch: 2,
            accumulate: 1,
            best: Some(Best { step: 20, score: 0.5 }),
            ..RunState::default()
        },
    }
}

fn open(path: &Path, existing: Existing) -> Option<RunDirectory> {
    RunDirectory::open(path, existing, 3, "steps = 3\n", &Environment::capture(None)).ok()
}

/// Files below a directory, in order.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path()).collect();
    all.sort();
    all.into_iter().flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Applies one change.
fn damage(all: &[PathBuf], change: [u8; 4]) {
    let [what, which, at, value] = change;
    let path = &all[usize::from(which) % all.len()];
    let Ok(mut bytes) = fs::read(path) else { return };
    let at = usize::from(at) * bytes.len() / 256;
    match what % 8 {
        0 => drop(fs::remove_file(path)),
        1 => bytes.truncate(at),
        2 | 3 if !bytes.is_empty() => bytes[at] ^= value.max(1),
        4 => bytes.insert(at, value),
        // Another file in its place, as that of another checkpoint.
        5 => bytes = fs::read(&all[usize::from(value) % all.len()]).unwrap_or_default(),
        6 => drop(fs::remove_dir_all(path.parent().expect("a directory"))),
        _ => bytes.extend_from_slice(&bytes.clone()),
    }
    if path.parent().is_some_and(Path::exists) && what % 8 != 0 {
        let _ = fs::write(path, bytes);
    }
}

/// Damaged directories.
pub fn target() -> Target {
    let directory = scratch();
    let run = directory.path().join("run");
    let metrics = b"{\"kind\":\"evaluation\",\"step\":20,\"split\":\"valid\",\"loss\":0.5,\"accuracy\":0.5,\"perplexity\":null,\"items\":1,\"sequences\":1,\"seconds\":1.0}\n";
    drop(open(&run, Existing::Refuse).expect("a new directory"));
    fs::write(run.join("metrics.jsonl"), metrics).expect("a file");
    for step in [10, 20, 30] {
        fs::create_dir_all(run.join("checkpoints")).expect("a directory");
        Checkpoints::new(run.join("checkpoints"), 3).save(&checkpoint(step)).expect("a checkpoint");
    }
    let sound: Vec<(PathBuf, Vec<u8>)> =
        files(&run).into_iter().map(|path| (path.clone(), fs::read(path).expect("a file"))).collect();
    let make =
        |stream: &mut crate::mutate::Stream| (0..4 * stream.random_range(1..5)).map(|_| stream.random()).collect();
    Target::new("run-directory", vec![vec![]], &[], move |input| {
        let _keep = &directory;
        let _ = fs::remove_dir_all(&run);
        for (path, bytes) in &sound {
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, bytes).expect("a file");
        }
        let all: Vec<PathBuf> = sound.iter().map(|(path, _)| path.clone()).collect();
        input.as_chunks::<4>().0.iter().for_each(|change| damage(&all, *change));
        let checkpoints = Checkpoints::new(run.join("checkpoints"), 3);
        for path in [checkpoints.last(), checkpoints.best()].into_iter().flatten() {
            if let Ok(seen) = Checkpoint::load(&path) {
                assert_eq!(seen, checkpoint(seen.state.step), "a damaged checkpoint was read");
            }
        }
        let _ = Record::read(&run.join("metrics.jsonl"));
        open(&run, Existing::Resume).is_some()
    })
    .making(make)
}
