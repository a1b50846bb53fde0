//! Processes that a launcher of MPI started, as far as they can be tested without one, and studies for schedulers.

use std::{fs, process::Command};

use crate::program::{Ended, regard};

const USAGE: i32 = 2;

/// A command as rank `rank` of two.
fn ranked(rank: &str, arguments: &[&str]) -> Command {
    let mut command = regard(arguments);
    command.env("OMPI_COMM_WORLD_RANK", rank).env("OMPI_COMM_WORLD_SIZE", "2");
    command
}

#[test]
fn what_ranks_do_not_share_is_refused_once() {
    Ended::of(&mut ranked("0", &["list"])).failure(USAGE, &["one of 2 ranks, expected one", "without mpirun"]);
    // The other rank says nothing.
    let other = Ended::of(&mut ranked("1", &["list"]));
    assert_eq!((other.code, other.stdout.as_str(), other.stderr.as_str()), (Some(USAGE), "", ""), "{other:?}");
}

#[test]
fn what_takes_several_ranks_is_refused_alone() {
    Ended::of(&mut regard(["bench", "--network"])).failure(USAGE, &["--network in one process", "mpirun -n 2"]);
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("run");
    for (set, parts) in [
        ("parallel.sequence=2", &["parallel.sequence is 2", "a divisor of 1", "mpirun -n 2"][..]),
        ("parallel.sequence=0", &["parallel.sequence is 0", "at least 1"]),
    ] {
        let mut command = regard(["train", "--preset", "smoke", "--cache", "none", "--set", set, "--out"]);
        Ended::of(command.arg(&out)).failure(USAGE, parts);
        assert!(!out.exists(), "{set} left a directory");
    }
    let shared = ["--set", "parallel.sequence=2", "--set", "model.attention_dropout=0.1"];
    let mut command = regard(["train", "--preset", "smoke", "--cache", "none"]);
    Ended::of(command.args(shared)).failure(USAGE, &["model.attention_dropout is 0.1", "parallel.sequence = 2"]);
    let mut command = regard(["compare", "--preset", "smoke", "--cache", "none"]);
    Ended::of(command.args(&shared[..2])).failure(USAGE, &["parallel.sequence is 2; expected 1", "regard train"]);
}

#[cfg(not(feature = "mpi"))]
#[test]
fn a_program_without_mpi_is_no_rank() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("run");
    let path = out.to_str().expect("UTF-8");
    let command = &mut ranked("0", &["train", "--preset", "smoke", "--cache", "none", "--out", path]);
    Ended::of(command).failure(USAGE, &["one of 2 ranks", "no MPI", "--features mpi"]);
    assert!(!out.exists());
}

#[test]
fn a_study_is_printed_as_an_array_job() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("two models.toml");
    let study = "[study]\ntitle = \"Two\"\nseeds = [1]\n[[study.task]]\npreset = \"smoke\"\n[[study.model]]\nmechanism = \"softmax\"\n";
    fs::write(&file, study).expect("a file");
    let file = file.to_str().expect("UTF-8");
    let arguments =
        ["compare", "--study", file, "--slurm", "3", "--out=runs/the two", "--set", "train.steps=4", "--threads", "2"];
    let script = Ended::of(&mut regard(arguments)).success();
    let quoted = format!("'{file}'");
    for part in [
        "#!/bin/bash\n",
        "#SBATCH --array=1-3\n",
        "#SBATCH --cpus-per-task=2\n",
        &format!(
            "srun regard compare --study {quoted} --set train.steps=4 --threads 2 --shard \"$SLURM_ARRAY_TASK_ID\"/3 --out \
             'runs/the two'-\"$SLURM_ARRAY_TASK_ID\"-of-3"
        ),
        "regard compare --merge 'runs/the two'-{1..3}-of-3 --out 'runs/the two'\n",
    ] {
        assert!(script.contains(part), "{part} in {script}");
    }
    assert!(!script.contains("--slurm"), "{script}");
    Ended::of(&mut regard(["compare", "--study", file, "--slurm", "0"])).failure(USAGE, &["--slurm"]);
}
