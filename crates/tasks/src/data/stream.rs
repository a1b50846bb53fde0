//! Counter-based random streams: one seed, named streams, a position in each.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

/// The streams with one name and seed.
///
/// Stream `i` is available without streams `0 .. i`, which makes parallel generation independent of the number of
/// threads and lets a resumed run start at any step.
#[derive(Clone, Debug)]
pub struct Streams {
    origin: ChaCha8Rng,
}

impl Streams {
    /// The key is SHA-256 over the seed (little-endian) and the name, so streams with different names are independent.
    pub fn new(seed: u64, name: &str) -> Self {
        let key = Sha256::new().chain_update(seed.to_le_bytes()).chain_update(name).finalize();
        Self { origin: ChaCha8Rng::from_seed(key.into()) }
    }

    /// Stream `index`, from its start.
    pub fn at(&self, index: u64) -> ChaCha8Rng {
        let mut stream = self.origin.clone();
        stream.set_stream(index);
        stream
    }
}

#[cfg(test)]
mod tests {
    use rand::RngCore;

    use super::*;

    #[test]
    fn streams_depend_on_seed_name_and_index_and_on_nothing_else() {
        let first = |seed, name: &str, index| Streams::new(seed, name).at(index).next_u64();
        let reference = first(7, "order", 3);
        assert_eq!(reference, first(7, "order", 3));
        assert_ne!(reference, first(8, "order", 3));
        assert_ne!(reference, first(7, "windows", 3));
        assert_ne!(reference, first(7, "order", 4));
    }
}
