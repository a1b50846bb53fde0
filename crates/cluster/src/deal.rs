//! Work dealt to ranks piece by piece: whoever is free has the next.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use crate::{ClusterError, Communicator};

/// From a rank that is free, with the piece that it has done, if any.
const FREE: u32 = 0x300;
/// To a rank, with its next piece; without one there is none left.
const NEXT: u32 = 0x301;
/// Time between two looks at whether to go on.
const LOOK: Duration = Duration::from_millis(200);

/// What rank 0 knows.
#[derive(Debug, Default)]
struct Table {
    left: VecDeque<usize>,
    /// Pieces that other ranks have.
    away: usize,
    /// Pieces that other ranks have done, and that nobody was told of.
    done: Vec<usize>,
}

/// Deals `pieces`, known to rank 0, among all ranks, which call this together: each does `work` on those that it gets, and rank
/// 0 hears of each that is done by `done`. It returns on rank 0 when all are done, on others when none is left for them. A piece
/// of a rank that leaves the job is dealt again.
///
/// # Errors
/// Those of `work`, of `go_on`, which rank 0 asks while it waits for others, and of a rank other than 0 that has lost rank 0.
pub fn deal<E: From<ClusterError>>(
    cluster: &Arc<dyn Communicator>,
    pieces: Vec<usize>,
    mut work: impl FnMut(usize) -> Result<(), E>,
    mut done: impl FnMut(usize) -> Result<(), E>,
    go_on: impl Fn() -> Result<(), E>,
) -> Result<(), E> {
    if cluster.rank() > 0 {
        return serve(&**cluster, work);
    }
    let table = Arc::new((Mutex::new(Table { left: pieces.into(), ..Table::default() }), Condvar::new()));
    for rank in 1..cluster.ranks() {
        let (cluster, table) = (cluster.clone(), table.clone());
        // Not joined: it ends with its rank.
        thread::spawn(move || answer(&*cluster, rank, &table));
    }
    let (state, change) = &*table;
    loop {
        let (told, own, waiting) = {
            let mut table = lock(state);
            let told = std::mem::take(&mut table.done);
            (told, table.left.pop_front(), table.away > 0)
        };
        told.into_iter().try_for_each(&mut done)?;
        match own {
            Some(piece) => {
                work(piece)?;
                done(piece)?;
            }
            None if waiting => {
                go_on()?;
                let table = lock(state);
                if table.done.is_empty() && table.left.is_empty() {
                    drop(change.wait_timeout(table, LOOK).unwrap_or_else(PoisonError::into_inner));
                }
            }
            None if lock(state).done.is_empty() => return Ok(()),
            None => {}
        }
    }
}

/// A rank other than 0.
fn serve<E: From<ClusterError>>(
    cluster: &dyn Communicator,
    mut work: impl FnMut(usize) -> Result<(), E>,
) -> Result<(), E> {
    let mut before = Vec::new();
    loop {
        cluster.send(0, FREE, before)?;
        let next = cluster.receive(0, NEXT)?;
        let Ok(number) = next.as_slice().try_into() else { return Ok(()) };
        work(u64::from_le_bytes(number) as usize)?;
        before = next;
    }
}

/// Rank 0 for another one.
fn answer(cluster: &dyn Communicator, rank: usize, (state, change): &(Mutex<Table>, Condvar)) {
    let mut has: Option<usize> = None;
    loop {
        let free = cluster.receive(rank, FREE);
        let mut table = lock(state);
        if let Some(piece) = has.take() {
            table.away -= 1;
            match free {
                Ok(_) => table.done.push(piece),
                Err(_) => table.left.push_front(piece),
            }
            change.notify_all();
        }
        if free.is_err() {
            return;
        }
        has = table.left.pop_front();
        table.away += usize::from(has.is_some());
        drop(table);
        let next = has.map_or(Vec::new(), |piece| (piece as u64).to_le_bytes().to_vec());
        // Whether it has arrived, its next message tells.
        if cluster.send(rank, NEXT, next).is_ok() && has.is_none() {
            return;
        }
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::Threads;

    #[test]
    fn every_piece_is_done_once_and_told() {
        for ranks in 1..5 {
            let seen = Threads::run(ranks, |cluster| {
                let (mut own, mut told) = (Vec::new(), Vec::new());
                let pieces = if cluster.rank() == 0 { (0..20).collect() } else { Vec::new() };
                let work = |piece| {
                    own.push(piece);
                    thread::sleep(Duration::from_millis(1));
                    Ok(())
                };
                let done = |piece| {
                    told.push(piece);
                    Ok(())
                };
                deal::<ClusterError>(&cluster, pieces, work, done, || Ok(())).unwrap();
                (own, told)
            });
            let sorted = |mut all: Vec<usize>| {
                all.sort_unstable();
                all
            };
            assert_eq!(sorted(seen.iter().flat_map(|(own, _)| own.clone()).collect()), (0..20).collect::<Vec<_>>());
            assert_eq!(sorted(seen[0].1.clone()), (0..20).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_piece_of_a_rank_that_is_gone_is_dealt_again() {
        let begun = AtomicBool::new(false);
        let seen = Threads::run(3, |cluster| {
            let mut own = Vec::new();
            let gone = cluster.rank() == 1;
            let work = |piece| {
                begun.fetch_or(gone, Ordering::Relaxed);
                while !begun.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                }
                own.push(piece);
                if gone { Err(ClusterError::Lost { rank: 1 }) } else { Ok(()) }
            };
            let pieces = if cluster.rank() == 0 { (0..10).collect() } else { Vec::new() };
            let ended = deal(&cluster, pieces, work, |_| Ok(()), || Ok(()));
            assert_eq!(ended.is_err(), gone);
            own
        });
        let mut done = [seen[0].clone(), seen[2].clone()].concat();
        done.sort_unstable();
        assert_eq!((done, seen[1].len()), ((0..10).collect(), 1));
    }
}
