//! Tensors for any mechanism, by name and shape.

use std::{collections::BTreeMap, sync::Arc};

use regard_kernels::{
    AttentionOptions, Error, Mechanism, View, draws,
    mechanism::{AdditiveScores, Prior},
    random::{bits, substream},
};

use super::Sizes;

/// One tensor, shared by the mechanisms that take the same.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub data: Arc<[f32]>,
    pub shape: Vec<usize>,
}

impl Tensor {
    /// As operators take it.
    pub fn view(&self) -> View<'_, f32> {
        View::new(&self.data, &self.shape)
    }
}

/// The tensors of one length. Two mechanisms that take a tensor of the same name and shape get the same one.
pub(super) struct Tensors {
    seed: u64,
    drawn: BTreeMap<(&'static str, Vec<usize>), Arc<[f32]>>,
}

/// Names in the order of their streams.
const NAMES: [&str; 14] =
    ["q", "k", "v", "grad_out", "shift", "w_q", "w_k", "w_t", "x", "w_gate", "w_query", "w_key", "w_value", "w_out"];

impl Tensors {
    pub fn new(seed: u64) -> Self {
        Self { seed, drawn: BTreeMap::new() }
    }

    /// The input `name` of the mechanism of `options`, token first; heads are those of the options.
    ///
    /// # Errors
    /// An input that no benchmark can make up, options that do not fit each other.
    pub fn input(&mut self, name: &'static str, options: &AttentionOptions, sizes: Sizes) -> Result<Tensor, Error> {
        let Sizes { batch, length, head_width, .. } = sizes;
        let (heads, key_heads, components) = (options.heads, options.key_heads(), options.components());
        let width = heads * head_width;
        let (experts, share) = (options.moa.experts, (width as f32).sqrt().recip());
        let support = &options.support;
        let seen = match options.fastformer.scores {
            AdditiveScores::Paper => head_width,
            AdditiveScores::Released => width,
        };
        let own = |data: Vec<f32>, shape: Vec<usize>| Ok(Tensor { data: data.into(), shape });
        match name {
            "q" => Ok(self.uniform(name, vec![batch, length, heads, head_width], 1.0)),
            // The Gaussian kernel is a mixture of one.
            "k" if options.mechanism == Mechanism::Gaussian
                || (options.mechanism.is_mixture() && !options.shifted()) =>
            {
                Ok(self.uniform(name, vec![batch, length, components, key_heads, head_width], 1.0))
            }
            "k" | "v" => Ok(self.uniform(name, vec![batch, length, key_heads, head_width], 1.0)),
            "shift" => Ok(self.uniform(name, vec![key_heads, components, head_width], 0.1)),
            "x" => Ok(self.uniform(name, vec![batch, length, width], 1.0)),
            "w_gate" => Ok(self.uniform(name, vec![width, experts], share)),
            "w_query" => Ok(self.uniform(name, vec![experts, width, head_width], share)),
            "w_key" | "w_value" => Ok(self.uniform(name, vec![width, head_width], share)),
            "w_out" => Ok(self.uniform(name, vec![experts, head_width, width], share)),
            "w_q" | "w_k" => Ok(self.uniform(name, vec![heads, seen], 1.0)),
            "w_t" => Ok(self.uniform(name, vec![width, width], (width as f32).sqrt().recip())),
            "log_prior" => {
                let mut shape = vec![heads, components];
                if options.mixture.prior == Prior::PerPosition && options.mechanism.facts().time == "N^2" {
                    shape.push(length);
                }
                let value = -(components as f32).ln();
                own(vec![value; shape.iter().product()], shape)
            }
            "variance" => {
                let variances = options.mixture.variances.resolve(components, head_width)?;
                own(variances.into_iter().map(|s| s as f32).collect(), vec![components])
            }
            "projection" => {
                let features = &options.features;
                let drawn =
                    draws::projection(features.rows, head_width, features.rows_drawn, features.row_norms, self.seed);
                own(drawn, vec![features.rows, head_width])
            }
            "directions" => {
                own(draws::directions(support.rounds, head_width, self.seed), vec![support.rounds, head_width + 2])
            }
            "rotations" => {
                let values = support.hash_values(length);
                let drawn = draws::rotations(support.rounds, head_width, values, self.seed);
                own(drawn, vec![support.rounds, head_width, values / 2])
            }
            _ => Err(Error::missing(name, "a benchmark draws no such tensor")),
        }
    }

    /// The gradient of an output of this shape.
    pub fn gradient(&mut self, shape: Vec<usize>) -> Tensor {
        self.uniform("grad_out", shape, 1.0)
    }

    /// Tokens `[B,N,d]`.
    pub fn tokens(&mut self, shape: Vec<usize>) -> Tensor {
        self.uniform("x", shape, 1.0)
    }

    /// Numbers of mean 0 and this deviation, equally likely within their bounds.
    fn uniform(&mut self, name: &'static str, shape: Vec<usize>, deviation: f32) -> Tensor {
        let stream = NAMES.iter().position(|known| *known == name).expect("a name of the list");
        let key = substream(self.seed, stream as u64);
        // Uniform numbers in [-1, 1) have deviation 1/sqrt(3).
        let scale = deviation * 3f32.sqrt() / 2f32.powi(31);
        let count: usize = shape.iter().product();
        let drawn = self.drawn.entry((name, shape.clone()));
        let data = drawn.or_insert_with(|| (0..count).map(|i| scale * (bits(key, i as u32) as i32) as f32).collect());
        Tensor { data: data.clone(), shape }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_deviation_asked_for_and_are_shared() {
        let mut tensors = Tensors::new(3);
        let options = AttentionOptions::default();
        let sizes = Sizes { batch: 2, length: 100, head_width: 16, heads: 4, threads: 1 };
        let q = tensors.input("q", &options, sizes).unwrap();
        assert_eq!(q.shape, [2, 100, 4, 16]);
        let mean = |power: i32| q.data.iter().map(|x| f64::from(*x).powi(power)).sum::<f64>() / q.data.len() as f64;
        assert!(mean(1).abs() < 0.05 && (mean(2) - 1.0).abs() < 0.05, "{} {}", mean(1), mean(2));
        assert!(Arc::ptr_eq(&q.data, &tensors.input("q", &options, sizes).unwrap().data));
        let k = tensors.input("k", &options, sizes).unwrap();
        assert_ne!(k.data, q.data);
        assert!(tensors.input("bias", &options, sizes).is_err());
    }
}
