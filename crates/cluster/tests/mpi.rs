//! Ranks under `mpirun`: this program starts itself with two and three of them. Skipped where there is no `mpirun`.

#![allow(clippy::print_stdout)] // What ranks print is what the test reads.

use std::{
    process::{Command, Output},
    sync::{Arc, atomic::AtomicBool},
};

use regard_cluster::{ClusterError, Communicator, Launch, Mpi, barrier, gather_all};
use signal_hook::{consts::SIGTERM, flag};

/// Bytes of a part of a message: small, so that messages have several.
const PART: usize = 1000;

fn main() {
    match (Launch::of_process(), std::env::args().nth(1).as_deref()) {
        (Some(_), Some("talk")) => talk(),
        (Some(_), Some("die")) => die(),
        (Some(_), Some("refuse")) => refuse(),
        _ => launch(),
    }
}

fn launch() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        println!("skipped: there is no mpirun");
        return;
    }
    let talked = mpirun(3, "talk");
    assert!(talked.status.success(), "{talked:?}");
    let died = mpirun(3, "die");
    assert!(!died.status.success());
    let told = String::from_utf8_lossy(&died.stdout).into_owned();
    for rank in [0, 2] {
        assert!(told.contains(&format!("rank {rank}: rank 1 is gone")), "{died:?}");
    }
    let refused = mpirun(2, "refuse");
    let told = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(told.contains("rank 0: rank 1 stopped with 3"), "{refused:?}");
    println!("ranks of mpirun talk, and notice those that are gone: ok");
}

fn mpirun(ranks: usize, what: &str) -> Output {
    let own = std::env::current_exe().expect("a path");
    let mut command = Command::new("mpirun");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1").env("OMPI_MCA_hwloc_base_binding_policy", "none");
    // On a busy machine a second may not be enough to tell which rank is gone.
    command.env("OMPI_MCA_odls_base_sigkill_timeout", "5");
    command.args(["-n", &ranks.to_string()]).arg(own).arg(what).output().expect("mpirun runs")
}

fn join() -> Mpi {
    let stop = Arc::new(AtomicBool::new(false));
    flag::register(SIGTERM, stop.clone()).expect("a handler");
    Mpi::with_parts(stop, Box::new(|_| ()), PART).expect("ranks that are threads")
}

/// Everybody sends to everybody before anybody receives, messages of all sizes.
fn talk() {
    let cluster = join();
    let (own, ranks) = (cluster.rank(), cluster.ranks());
    let sizes = [0, 5, PART - 1, PART, PART + 1, 3 * PART, 5_000_000];
    let message = |from: usize, to: usize, size: usize| -> Vec<u8> {
        (0..size).map(|i| (i * 31 + 7 * from + to) as u8).collect()
    };
    for size in sizes {
        for to in 0..ranks {
            cluster.send(to, 9, message(own, to, size)).unwrap();
            cluster.send(to, 4, vec![to as u8]).unwrap();
        }
    }
    for from in 0..ranks {
        for _ in sizes {
            assert_eq!(cluster.receive(from, 4), Ok(vec![own as u8]));
        }
        for size in sizes {
            assert!(cluster.receive(from, 9).unwrap() == message(from, own, size), "{size} bytes of rank {from}");
        }
    }
    let all = gather_all(&cluster, 1, vec![own as u8; own]).unwrap();
    assert_eq!(all, (0..ranks).map(|rank| vec![rank as u8; rank]).collect::<Vec<_>>());
    assert_eq!(cluster.bytes_sent(), (ranks - 1) as u64 * (sizes.iter().sum::<usize>() + sizes.len() + own) as u64);
    barrier(&cluster, 2).unwrap();
    cluster.finish();
}

/// Rank 1 is killed.
fn die() {
    let cluster = join();
    barrier(&cluster, 2).unwrap();
    if cluster.rank() == 1 {
        let _ = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
    }
    if cluster.receive(1, 0) == Err(ClusterError::Lost { rank: 1 }) {
        println!("rank {}: rank 1 is gone", cluster.rank());
    }
    std::process::exit(1);
}

/// Rank 1 ends with an error.
fn refuse() {
    let cluster = join();
    if cluster.rank() == 1 {
        cluster.abandon(3);
        std::process::exit(3);
    }
    if let Err(ClusterError::Stopped { rank, code }) = cluster.receive(1, 0) {
        println!("rank {}: rank {rank} stopped with {code}", cluster.rank());
        std::process::exit(code.into());
    }
    std::process::exit(1);
}
