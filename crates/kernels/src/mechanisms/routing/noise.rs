//! Random draws of a router in training: functions of a key and an index, like every draw.

use crate::random::{bits, normal, substream};

/// A uniform number in `(0, 1)` for index `index` of stream `key`.
fn uniform(key: u64, index: usize) -> f64 {
    (f64::from(bits(key, index as u32)) + 0.5) / 4_294_967_296.0
}

/// A standard Gumbel sample for expert `expert` of token `token`.
pub(super) fn gumbel(key: u64, token: usize, expert: usize) -> f64 {
    -(-uniform(substream(key, token as u64), expert).ln()).ln()
}

/// Gaussian noise of standard deviation `deviation` for logits `[tokens, experts]`.
pub fn logit_noise(tokens: usize, experts: usize, deviation: f64, key: u64) -> Vec<f32> {
    let row = |token| {
        let key = substream(key, token as u64);
        (0..experts)
            .map(move |expert| (deviation * normal(uniform(key, 2 * expert), uniform(key, 2 * expert + 1))) as f32)
    };
    (0..tokens).flat_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_has_the_deviation_asked_for() {
        let noise = logit_noise(500, 40, 0.25, 9);
        let count = noise.len() as f64;
        let mean = noise.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
        let square = noise.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / count;
        assert!(mean.abs() < 4.5 * 0.25 / count.sqrt(), "{mean}");
        assert!((square / 0.0625 - 1.0).abs() < 4.5 * (2.0 / count).sqrt(), "{square}");
        assert_eq!(noise, logit_noise(500, 40, 0.25, 9));
        assert_ne!(noise, logit_noise(500, 40, 0.25, 10));
        assert_eq!(noise[..80], logit_noise(2, 40, 0.25, 9), "tokens draw for themselves");
    }
}
