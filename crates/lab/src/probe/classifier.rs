//! A classifier that predicts a token's position from its hidden state.

use std::sync::atomic::AtomicBool;

use burn::tensor::{Device, Tensor, TensorData};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use regard_kernels::random::substream;
use regard_nn::ops;
use regard_tasks::train::{AdamW, OptimizerConfig};
use serde::Serialize;

use super::{ProbeError, check, decoder::host, weights::Distribution};

/// Rows per batch at evaluation.
const BLOCK: usize = 4096;

/// Two layers with a ReLU in between, trained on frozen hidden states (arXiv 2305.13571, section 3): `x w_1 + b_1`,
/// then `max(., 0) w_2 + b_2`, one class per position, by Adam.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Classifier {
    /// Number of updates.
    pub updates: usize,
    /// Sequences per update.
    pub batch: usize,
    /// Positions sampled from each sequence; 0: all.
    pub positions: usize,
    /// Learning rate of Adam.
    pub rate: f64,
    /// Hidden channels; 0: the width of the hidden states.
    pub hidden: usize,
    /// Number of training sequences.
    pub sequences: usize,
    /// Number of held-out sequences.
    pub held: usize,
    /// Seed of the random draws.
    pub seed: u64,
}

/// Frozen hidden states.
#[derive(Clone, Copy, Debug)]
pub struct Features<'a> {
    /// Training sequences, `[T,L,d]`.
    pub train: &'a [f32],
    /// Held-out sequences, `[T',L,d]`.
    pub held: &'a [f32],
    /// Length `L`.
    pub length: usize,
    /// Channels `d`.
    pub width: usize,
}

/// Accuracy of the position classifier on held-out sequences.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Accuracy {
    /// Mean distance between the most probable and the true position, in tokens.
    pub error: f64,
    /// The same for the best constant guess, the middle: about `L / 4`.
    pub chance: f64,
    /// Mean distance of the distribution's median, the guess with the lowest expected error under the classifier.
    pub median_error: f64,
    /// Fraction of positions predicted exactly.
    pub exact: f64,
    /// Mean distance at each position.
    pub by_position: Vec<f64>,
    /// Cross-entropy of the last updates, in nats.
    pub loss: f64,
}

/// Accuracies on the states of one decoder.
#[derive(Clone, Debug)]
pub(super) struct ByDepth<'a> {
    /// The decoder.
    pub label: String,
    /// Number of layers below the hidden states, and the accuracy there.
    pub accuracies: &'a [(usize, Accuracy)],
}

impl Classifier {
    /// Trains and evaluates the classifier.
    ///
    /// # Errors
    /// An interrupt, non-finite numbers.
    ///
    /// # Panics
    /// If the number of vectors does not match length and width.
    pub fn probe(&self, features: &Features, stop: &AtomicBool) -> Result<Accuracy, ProbeError> {
        let Features { train, held, length, width } = *features;
        assert!(train.len() % (length * width) == 0 && held.len() % (length * width) == 0, "whole sequences");
        let hidden = if self.hidden == 0 { width } else { self.hidden };
        let mut network = Network::new([width, hidden, length], self.seed);
        let config =
            OptimizerConfig { learning_rate: self.rate, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };
        let mut adam = AdamW::new(config);
        let mut recent = 0.0;
        for update in 1..=self.updates {
            check(stop)?;
            let (vectors, targets) = self.batch(features, update as u64);
            let loss = network.update(&mut adam, update, self.rate, vectors, targets);
            // Average over about the last hundred.
            recent = if update == 1 { loss } else { recent + 0.02 * (loss - recent) };
        }
        if !recent.is_finite() {
            return Err(ProbeError::Classifier);
        }
        let guesses = network.guesses(held);
        let distance = |(at, guess): (usize, &Guess)| (at % length).abs_diff(guess.most_probable);
        let from_median = |(at, guess): (usize, &Guess)| (at % length).abs_diff(guess.median);
        let median: usize = guesses.iter().enumerate().map(from_median).sum();
        let mut by_position = vec![0.0; length];
        let sequences = (held.len() / (length * width)) as f64;
        for (at, guess) in guesses.iter().enumerate() {
            by_position[at % length] += distance((at, guess)) as f64 / sequences;
        }
        let exact = guesses.iter().enumerate().filter(|pair| distance(*pair) == 0).count();
        Ok(Accuracy {
            error: by_position.iter().sum::<f64>() / length as f64,
            chance: (0..length).map(|at| at.abs_diff(length / 2)).sum::<usize>() as f64 / length as f64,
            median_error: median as f64 / guesses.len() as f64,
            exact: exact as f64 / guesses.len() as f64,
            by_position,
            loss: recent,
        })
    }

    /// Hidden states and positions of one update.
    fn batch(&self, features: &Features, update: u64) -> (Vec<f32>, Vec<i32>) {
        let Features { train, length, width, .. } = *features;
        let mut stream = ChaCha8Rng::seed_from_u64(substream(self.seed, update));
        let sequences = train.len() / (length * width);
        let mut targets = Vec::new();
        let mut vectors = Vec::new();
        for _ in 0..self.batch {
            let sequence = stream.random_range(0..sequences);
            let positions: Vec<usize> = match self.positions {
                0 => (0..length).collect(),
                some => (0..some).map(|_| stream.random_range(0..length)).collect(),
            };
            for position in positions {
                let start = (sequence * length + position) * width;
                vectors.extend_from_slice(&train[start..start + width]);
                targets.push(position as i32);
            }
        }
        (vectors, targets)
    }
}

/// Weights and biases, flat, in the order of [`NAMES`].
struct Network {
    sizes: [usize; 3],
    parameters: Vec<Tensor<1>>,
}

impl Network {
    /// Uniform within `1 / sqrt(inputs)`, biases too.
    fn new(sizes: [usize; 3], seed: u64) -> Self {
        let [width, hidden, classes] = sizes;
        let counts = [width * hidden, hidden, hidden * classes, classes];
        let mut stream = 0;
        let draw = |count| {
            let inputs = if stream < 2 { width } else { hidden };
            stream += 1;
            let key = substream(seed ^ START, stream);
            let values: Vec<f32> = Distribution::Uniform.draw(key, count, (3.0 * inputs as f64).sqrt().recip());
            Tensor::from_data(values.as_slice(), &Device::flex())
        };
        Self { sizes, parameters: counts.map(draw).into() }
    }

    fn tensors(&self) -> (Tensor<2>, Tensor<1>, Tensor<2>, Tensor<1>) {
        let [width, hidden, classes] = self.sizes;
        let parameter = |i: usize| self.parameters[i].clone();
        let (w_1, w_2) = (parameter(0).reshape([width, hidden]), parameter(2).reshape([hidden, classes]));
        (w_1, parameter(1), w_2, parameter(3))
    }

    /// One step of Adam; returns the mean cross-entropy before it.
    fn update(&mut self, adam: &mut AdamW, t: usize, rate: f64, vectors: Vec<f32>, targets: Vec<i32>) -> f64 {
        let (loss, gradients) = self.gradients(vectors, targets);
        let parameters = std::mem::take(&mut self.parameters).into_iter();
        let updated = NAMES.into_iter().zip(parameters).zip(&gradients);
        self.parameters = updated.map(|((name, own), grad)| adam.update(name, t, rate, 1.0, own, grad)).collect();
        loss
    }

    /// The mean cross entropy and its gradients, flat.
    fn gradients(&self, vectors: Vec<f32>, targets: Vec<i32>) -> (f64, [Tensor<1>; 4]) {
        let (w_1, b_1, w_2, b_2) = self.tensors();
        let (w_1, b_1) = (w_1.autodiff().require_grad(), b_1.autodiff().require_grad());
        let (w_2, b_2) = (w_2.autodiff().require_grad(), b_2.autodiff().require_grad());
        let device = w_1.device();
        let x = Tensor::<2>::from_data(TensorData::new(vectors, [targets.len(), self.sizes[0]]), &device);
        let hidden = ops::activation(ops::linear(x, w_1.clone(), None), Some(b_1.clone()), ops::Curve::Relu);
        let logits = ops::linear(hidden, w_2.clone(), Some(b_2.clone()));
        let loss = ops::cross_entropy(logits, targets, 0.0);
        let mut grads = loss.backward();
        let gradients = [
            w_1.grad_remove(&mut grads).map(|grad| grad.flatten(0, 1)),
            b_1.grad_remove(&mut grads),
            w_2.grad_remove(&mut grads).map(|grad| grad.flatten(0, 1)),
            b_2.grad_remove(&mut grads),
        ];
        (f64::from(host(loss)[0]), gradients.map(|gradient| gradient.expect("all parameters are tracked")))
    }

    /// Predictions for every hidden state.
    fn guesses(&self, vectors: &[f32]) -> Vec<Guess> {
        let [width, _, classes] = self.sizes;
        let device = Device::flex();
        let (w_1, b_1, w_2, b_2) = self.tensors();
        let block = |vectors: &[f32]| {
            let x = Tensor::<2>::from_data(TensorData::new(vectors.to_vec(), [vectors.len() / width, width]), &device);
            let hidden = ops::activation(ops::linear(x, w_1.clone(), None), Some(b_1.clone()), ops::Curve::Relu);
            let logits = host(ops::linear(hidden, w_2.clone(), Some(b_2.clone())));
            logits.par_chunks(classes).map(Guess::of).collect::<Vec<_>>()
        };
        vectors.chunks(BLOCK * width).flat_map(block).collect()
    }
}

/// Point predictions from the classifier's distribution for one hidden state.
#[derive(Clone, Copy, Debug)]
struct Guess {
    most_probable: usize,
    median: usize,
}

impl Guess {
    /// Prediction from logits, one per position.
    fn of(logits: &[f32]) -> Self {
        let ahead = |a: usize, b: usize| if logits[b] > logits[a] { b } else { a };
        let most_probable = (0..logits.len()).reduce(ahead).unwrap_or(0);
        let most = f64::from(logits[most_probable]);
        let weights: Vec<f64> = logits.iter().map(|logit| (f64::from(*logit) - most).exp()).collect();
        let half = weights.iter().sum::<f64>() / 2.0;
        let mut before = 0.0;
        let reached = |weight: &f64| {
            before += weight;
            before >= half
        };
        Self { most_probable, median: weights.iter().position(reached).unwrap_or(most_probable) }
    }
}

/// Separates initial weights from batches ("start" in ASCII).
const START: u64 = 0x0073_7461_7274;
/// Parameter names for the optimizer.
const NAMES: [&str; 4] = ["w_1", "b_1", "w_2", "b_2"];

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: usize = 32;
    const WIDTH: usize = 16;

    fn classifier() -> Classifier {
        Classifier { updates: 400, batch: 16, positions: 0, rate: 1e-3, hidden: 0, sequences: 64, held: 16, seed: 3 }
    }

    fn accuracy(classifier: Classifier, vectors: &[f32]) -> Accuracy {
        let (train, held) = vectors.split_at(64 * LENGTH * WIDTH);
        let features = Features { train, held, length: LENGTH, width: WIDTH };
        classifier.probe(&features, &AtomicBool::new(false)).unwrap()
    }

    #[test]
    fn it_learns_a_planted_signal_and_no_noise() {
        let noise = Distribution::Normal.draw(1, 80 * LENGTH * WIDTH, 1.0);
        let found = accuracy(classifier(), &noise);
        assert_eq!(found.chance, LENGTH as f64 / 4.0);
        assert!(found.error > 0.9 * found.chance, "{} of {}", found.error, found.chance);
        // The first four channels grow or fall with the position.
        let mut planted = noise;
        for (at, row) in planted.chunks_exact_mut(WIDTH).enumerate() {
            let position = (at % LENGTH) as f32 / LENGTH as f32 - 0.5;
            row[..4].iter_mut().enumerate().for_each(|(c, x)| *x += if c % 2 == 0 { 12.0 } else { -12.0 } * position);
        }
        let found = accuracy(classifier(), &planted);
        assert!(found.error < 0.35 * found.chance, "{} of {}", found.error, found.chance);
        assert!(found.median_error < 0.35 * found.chance, "{} of {}", found.median_error, found.chance);
        assert!((found.by_position.iter().sum::<f64>() / LENGTH as f64 - found.error).abs() < 1e-9);
    }

    #[test]
    fn the_variance_of_a_vector_is_a_signal() {
        let mut vectors = Distribution::Normal.draw(2, 80 * LENGTH * WIDTH, 1.0);
        for (at, row) in vectors.chunks_exact_mut(WIDTH).enumerate() {
            row.iter_mut().for_each(|x| *x /= ((at % LENGTH + 1) as f32).sqrt());
        }
        let found = accuracy(Classifier { updates: 1500, rate: 5e-3, ..classifier() }, &vectors);
        assert!(found.error < 0.8 * found.chance, "{} of {}", found.error, found.chance);
    }
}
