//! Counter-based random bits: a function of a key and a position, for masks that the backward pass regenerates.
//!
//! No state and no order: any part of a mask can be generated at any time by any thread. The functions use 32-bit
//! lanes, so that loops over positions vectorise.

/// 32 random bits for position `index` of stream `key`.
///
/// Two rounds of a 32-bit mixer, each of which starts with one half of the whitened key. For one key, no two positions
/// give the same bits. Whitening does not depend on the position, so that loops hoist it.
#[inline(always)]
pub fn bits(key: u64, index: u32) -> u32 {
    let key = whiten(key);
    mix(mix(index ^ key as u32) ^ (key >> 32) as u32)
}

/// Whether position `index` is kept when a fraction `threshold / 2^32` is dropped; see [`threshold`].
#[inline(always)]
pub fn keep(key: u64, index: u32, threshold: u32) -> bool {
    bits(key, index) >= threshold
}

/// The bound for [`keep`] that drops a fraction `rate` of the positions.
///
/// # Panics
/// If `rate` is not in `[0, 1)`.
pub fn threshold(rate: f32) -> u32 {
    assert!((0.0..1.0).contains(&rate), "dropout rate {rate}, expected one in [0, 1)");
    // Exact: the largest rate below 1 has 24 bits, of which 2^32 leaves no fraction.
    (f64::from(rate) * 4_294_967_296.0) as u32
}

/// A separate key for part `part` of a stream: rows of a matrix, blocks of a long tensor, layers of a model.
#[inline(always)]
pub fn substream(key: u64, part: u64) -> u64 {
    whiten(whiten(key) ^ part)
}

/// A uniform number in `(0, 1]` from 53 of these random bits.
pub fn unit(bits: u64) -> f64 {
    ((bits >> 11) + 1) as f64 * 0.5f64.powi(53)
}

/// A standard normal number from two uniform ones, the first in `(0, 1]` (Box and Muller 1958).
pub fn normal(radius: f64, angle: f64) -> f64 {
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

/// Finaliser of SplitMix64 (Steele, Lea and Flood 2014, with Stafford's constants): similar keys become unrelated.
#[inline(always)]
fn whiten(key: u64) -> u64 {
    let x = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A bijection of 32 bits in which each input bit flips each output bit half the time: constants of Wellons's
/// hash-prospector, bias 0.107.
#[inline(always)]
fn mix(x: u32) -> u32 {
    let x = (x ^ (x >> 16)).wrapping_mul(0x21f0_aaad);
    let x = (x ^ (x >> 15)).wrapping_mul(0x735a_2d97);
    x ^ (x >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u32 = 1 << 18;

    /// Distance of `hits` in `draws` from a rate `rate`, in standard deviations.
    fn deviation(hits: usize, draws: u32, rate: f64) -> f64 {
        let draws = f64::from(draws);
        (hits as f64 - draws * rate).abs() / (draws * rate * (1.0 - rate)).sqrt()
    }

    #[test]
    fn the_share_that_stays_is_the_one_asked_for() {
        for rate in [0.05f32, 0.1, 0.5, 0.9] {
            for key in [0, 1, 2, 1 << 32, u64::MAX] {
                let threshold = threshold(rate);
                let kept = (0..DRAWS).filter(|&i| keep(key, i, threshold)).count();
                let off = deviation(kept, DRAWS, 1.0 - f64::from(rate));
                assert!(off < 4.0, "rate {rate}, key {key}: {off} standard deviations off");
            }
        }
        assert!((0..DRAWS).all(|i| keep(7, i, threshold(0.0))));
        assert!(threshold(1.0 - f32::EPSILON) < u32::MAX);
    }

    #[test]
    fn neighbours_are_unrelated() {
        // Both of a pair are kept with probability 0.81 at rate 0.1.
        let threshold = threshold(0.1);
        for key in [0, 3, 1 << 40] {
            for distance in [1, 2, 3, 16, 64, 255, 1024] {
                let both = |&i: &u32| keep(key, i, threshold) && keep(key, i + distance, threshold);
                let off = deviation((0..DRAWS).filter(both).count(), DRAWS, 0.81);
                // Pairs overlap, which widens the spread by at most a factor of sqrt(3).
                assert!(off < 6.0, "distance {distance}, key {key}: {off} standard deviations off");
            }
        }
    }

    #[test]
    fn close_keys_and_substreams_are_unrelated_even_with_positions_permuted() {
        let threshold = threshold(0.5);
        let pairs = [(0, 1), (1, 2), (6, 7), (5, 5 ^ (1 << 32)), (9, !9), (4, substream(4, 0)), (4, substream(4, 1))];
        for (one, other) in pairs.into_iter().chain([(substream(4, 0), substream(4, 1))]) {
            // A key that only permuted the positions would agree with itself under one of these.
            for flip in [0, 1, 2, 3, (one ^ other) as u32] {
                let same = |&i: &u32| keep(one, i, threshold) == keep(other, i ^ flip, threshold);
                let off = deviation((0..DRAWS).filter(same).count(), DRAWS, 0.5);
                assert!(off < 4.5, "keys {one} and {other}, flip {flip}: {off} standard deviations off");
            }
        }
    }

    #[test]
    fn every_bit_of_the_position_reaches_every_bit_of_the_draw() {
        const BASES: u32 = 1 << 12;
        for bit in 0..32 {
            let mut flips = [0usize; 32];
            for base in 0..BASES {
                let changed = bits(11, base) ^ bits(11, base ^ (1 << bit));
                flips.iter_mut().enumerate().for_each(|(out, count)| *count += (changed >> out & 1) as usize);
            }
            for (out, &count) in flips.iter().enumerate() {
                let off = deviation(count, BASES, 0.5);
                assert!(off < 6.0, "input bit {bit}, output bit {out}: {off} standard deviations off");
            }
        }
    }
}
