//! Work that ranks take in turn, and whose results all of them need.

use regard_cluster::{ClusterError, Communicator, gather_all};

use super::{Reader, Writer, tags};

/// The results of all pieces of work in order, of which this rank did every `ranks`-th from its own number on.
///
/// # Errors
/// A rank that has left the job.
pub fn spread(cluster: &dyn Communicator, own: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, ClusterError> {
    let mut writer = Writer::default();
    writer.count(own.len());
    own.iter().for_each(|result| writer.bytes(result));
    let messages = gather_all(cluster, tags::EVALUATION, writer.done())?;
    let mut readers: Vec<Reader> = messages.iter().map(|message| Reader::of(message)).collect();
    let total: usize = readers.iter_mut().map(Reader::count).sum();
    Ok((0..total).map(|number| readers[number % cluster.ranks()].bytes().to_vec()).collect())
}

#[cfg(test)]
mod tests {
    use regard_cluster::Threads;

    use super::*;

    #[test]
    fn every_rank_has_all_results_in_order() {
        let want: Vec<Vec<u8>> = (0..7).map(|number| vec![number; number as usize]).collect();
        for ranks in 1..9 {
            let seen = Threads::run(ranks, |cluster| {
                let own = want.iter().skip(cluster.rank()).step_by(ranks).cloned().collect();
                spread(&*cluster, own).unwrap()
            });
            assert!(seen.iter().all(|all| *all == want), "{ranks} ranks");
        }
    }
}
