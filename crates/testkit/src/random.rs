//! Reproducible random tensors.

/// A stream of random numbers: SplitMix64 (Steele, Lea and Flood 2014), the same on every machine.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The stream named `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = self.state;
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Uniform in `[0, 1)`.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform among `0 .. end`; the bias of the remainder is far below what a test can see.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// Standard normal (Box and Muller 1958), rounded to a float32.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        let angle = std::f64::consts::TAU * self.uniform();
        f64::from((radius * angle.cos()) as f32)
    }

    /// `count` standard normal numbers, each exactly a float32.
    pub fn normals(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.normal()).collect()
    }

    /// The numbers `0 .. count` in random order.
    pub fn permutation(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for i in (1..count).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normals_are_floats_with_mean_0_and_variance_1() {
        let draws = Random::new(3).normals(10_000);
        assert!(draws.iter().all(|&x| f64::from(x as f32) == x));
        let mean = draws.iter().sum::<f64>() / 1e4;
        let variance = draws.iter().map(|x| x * x).sum::<f64>() / 1e4;
        assert!(mean.abs() < 0.04 && (variance - 1.0).abs() < 0.06, "mean {mean}, variance {variance}");
        assert_eq!(draws[..5], Random::new(3).normals(5));
        assert_ne!(draws[..5], Random::new(4).normals(5));
    }

    #[test]
    fn a_permutation_holds_every_number_once() {
        let mut order = Random::new(1).permutation(50);
        assert_ne!(order, (0..50).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..50).collect::<Vec<_>>());
    }
}
