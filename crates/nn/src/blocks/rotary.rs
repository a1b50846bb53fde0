//! Tables of rotary positions.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};

use regard_kernels::{Error, elementwise::Rotate};

use super::Positions;
use crate::config::RotaryConfig;

/// Cosines and sines `[context, pairs]` of all positions of a model.
#[derive(Debug)]
pub struct Rotary {
    cosine: Arc<[f32]>,
    sine: Arc<[f32]>,
    pairs: usize,
}

/// Tables in use, by what they depend on: the layers of a model, and models of the same sizes, share one.
static TABLES: Mutex<Option<HashMap<String, Weak<Rotary>>>> = Mutex::new(None);

impl Rotary {
    /// For heads of `head_width` channels in sequences of at most `context` tokens.
    ///
    /// # Errors
    /// Channels that are not pairs.
    pub fn shared(config: &RotaryConfig, head_width: usize, context: usize) -> Result<Arc<Self>, Error> {
        let pairs = config.pairs(head_width)?;
        let key = format!("{config:?} {pairs} {context}");
        let mut tables = TABLES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let tables = tables.get_or_insert_default();
        if let Some(table) = tables.get(&key).and_then(Weak::upgrade) {
            return Ok(table);
        }
        tables.retain(|_, table| table.strong_count() > 0);
        let (frequencies, magnitude) = (config.frequencies(pairs, context), config.magnitude());
        let table = |function: fn(f64) -> f64| {
            let angles = (0..context).flat_map(|at| frequencies.iter().map(move |frequency| at as f64 * frequency));
            angles.map(|angle| (magnitude * function(angle)) as f32).collect()
        };
        let rotary = Arc::new(Self { cosine: table(f64::cos), sine: table(f64::sin), pairs });
        tables.insert(key, Arc::downgrade(&rotary));
        Ok(rotary)
    }

    /// The rotation of tokens at these positions.
    pub fn rotation(&self, at: Positions) -> Rotate {
        match at {
            Positions::From(from) => Rotate::new(self.cosine.clone(), self.sine.clone(), self.pairs, from),
            Positions::At(places) => {
                let rows = |table: &[f32]| -> Arc<[f32]> {
                    places.iter().flat_map(|place| &table[place * self.pairs..][..self.pairs]).copied().collect()
                };
                Rotate::new(rows(&self.cosine), rows(&self.sine), self.pairs, 0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor};

    use super::*;
    use crate::config::RotaryScaling;
    use crate::ops;

    fn frequencies(config: RotaryConfig, context: usize) -> Vec<f64> {
        config.check().unwrap();
        config.frequencies(4, context)
    }

    #[test]
    fn rotated_products_depend_on_the_distance_only() {
        let device = Device::flex();
        let x = |values: [f32; 6]| Tensor::<1>::from_data(values, &device).reshape([1, 1, 1, 6]);
        let (q, k) = (x([0.3, -1.0, 0.5, 2.0, 0.1, -0.7]), x([1.0, 0.2, -0.4, 0.6, -1.5, 0.9]));
        for share in [1.0, 0.67] {
            let rotary = Rotary::shared(&RotaryConfig { share, ..RotaryConfig::default() }, 6, 16).unwrap();
            let product = |i, j| -> f32 {
                let [q, k] =
                    [(&q, i), (&k, j)].map(|(x, at)| ops::rotate(x.clone(), rotary.rotation(Positions::At(&[at]))));
                (q * k).sum().into_scalar::<f32>()
            };
            assert!((product(5, 2) - product(13, 10)).abs() < 1e-5);
            assert!((product(5, 5) - (q.clone() * k.clone()).sum().into_scalar::<f32>()).abs() < 1e-5);
            assert!((product(5, 2) - product(5, 3)).abs() > 1e-2);
        }
    }

    #[test]
    fn tables_are_shared_while_they_are_used() {
        let config = RotaryConfig { base: 777.0, ..RotaryConfig::default() };
        let [first, second] = [(); 2].map(|()| Rotary::shared(&config, 8, 5).unwrap());
        assert!(Arc::ptr_eq(&first, &second));
        let other = Rotary::shared(&config, 8, 6).unwrap();
        assert!(!Arc::ptr_eq(&first, &other));
    }

    #[test]
    fn scaling_stretches_long_wavelengths() {
        let plain = frequencies(RotaryConfig::default(), 64);
        assert_eq!(plain[0], 1.0);
        let with = |scaling| RotaryConfig { scaling, factor: 4.0, original_context: 64, ..RotaryConfig::default() };
        let linear = frequencies(with(RotaryScaling::Linear), 256);
        assert!(plain.iter().zip(&linear).all(|(plain, linear)| plain / 4.0 == *linear));
        // Not longer than the original context: unchanged.
        assert_eq!(frequencies(with(RotaryScaling::Dynamic), 64), plain);
        assert!(frequencies(with(RotaryScaling::Dynamic), 256)[3] < plain[3]);
        for scaling in [RotaryScaling::Llama3, RotaryScaling::Yarn] {
            let scaled = frequencies(with(scaling), 256);
            assert!((scaled[0] / plain[0] - 1.0).abs() < 1e-12, "the shortest wavelength stays: {scaled:?}");
            assert!((4.0 * scaled[3] / plain[3] - 1.0).abs() < 1e-12, "the longest is stretched: {scaled:?}");
        }
        assert!((with(RotaryScaling::Yarn).magnitude() - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
    }

    /// Expected numbers are those of `ROPE_INIT_FUNCTIONS["yarn"]` of transformers 5.24, in float32.
    #[test]
    fn yarn_rounds_its_bounds_only_where_it_is_asked_to() {
        let yarn =
            RotaryConfig { scaling: RotaryScaling::Yarn, factor: 4.0, original_context: 64, ..RotaryConfig::default() };
        let exact = RotaryConfig { truncate: false, ..yarn };
        for (config, second, third) in [
            (yarn, 0.237_170_82, 0.049_999_997),
            (exact, 0.198_583_53, 0.025_595_25),
            (RotaryConfig { fast: 8.0, slow: 2.0, ..exact }, 0.160_589_16, 0.025),
        ] {
            config.check().unwrap();
            let [first, rest @ ..] = &config.frequencies(8, 200)[..] else { panic!("eight pairs") };
            let tail = [7.905_694_7e-3, 2.5e-3, 7.905_694_7e-4, 2.5e-4, 7.905_694_7e-5];
            assert_eq!(*first, 1.0);
            for (seen, want) in rest.iter().zip([second, third].into_iter().chain(tail)) {
                assert!((seen / want - 1.0).abs() < 1e-6, "{config:?}: {seen} against {want}");
            }
        }
    }

    #[test]
    fn numbers_out_of_range_are_named() {
        let error = |config: RotaryConfig| config.check().unwrap_err().to_string();
        let base = RotaryConfig::default;
        assert!(error(RotaryConfig { base: 0.0, ..base() }).contains("model.rotary.base is 0"));
        assert!(error(RotaryConfig { share: 1.5, ..base() }).contains("model.rotary.share is 1.5"));
        assert!(RotaryConfig { share: 0.5, ..base() }.pairs(6).unwrap_err().to_string().contains("share of 0.5"));
        assert_eq!(RotaryConfig { share: 0.5, ..base() }.pairs(8).unwrap(), 2);
    }
}
