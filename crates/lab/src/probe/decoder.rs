//! An untrained decoder: no positional embedding, all weights drawn from one distribution.

use std::sync::Arc;

use burn::tensor::{Tensor, TensorData};
use regard_kernels::{Error, Mask, Mechanism, mechanism::Position, random::substream};
use regard_nn::{
    attention::{Attention, AttentionConfig, KeyState},
    blocks::{ActivationLog, Context, Init, Part, Place, Positions},
    models::{ModelConfig, is_buffer, load_parameters, named_parameters},
    ops,
};

use super::{
    tally::{Axes, Quantity, Shares, Tally},
    weights::Distribution,
};

/// Epsilon of norms: inputs of deviation 0.002 have a variance below the usual epsilon.
pub(super) const EPSILON: f32 = 0.0;
/// Random stream of the inputs; those of the layers are their numbers, from 1.
const INPUTS: u64 = 0;
/// Random streams of a layer besides those of its attention.
const FEED_FORWARD: [u64; 2] = [1 << 32, 1 << 33];

/// A pre-norm decoder with random weights: `x += attention(norm(x)); x += ff(norm(x))`, norms without weight and bias.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// Attention options, including heads and causality.
    pub attention: AttentionConfig,
    /// Channels `d`.
    pub width: usize,
    /// Number of layers.
    pub layers: usize,
    /// Hidden channels of the feed-forward layer, with exact GELU; 0 for none.
    pub feed_forward: usize,
    /// Length `L`.
    pub length: usize,
    /// Standard deviation of inputs and weights.
    pub deviation: f64,
    /// Distribution of weights; inputs are normal.
    pub weights: Distribution,
    /// Queries are 0: attention is the mean over visible keys, as the lemmas assume.
    pub uniform: bool,
    /// Seed of the random draws. Decoders with other deviations have the same weights, scaled.
    pub seed: u64,
}

impl Decoder {
    /// Sequences `first .. first + count`, `[count,L,d]`.
    pub fn inputs(&self, first: usize, count: usize) -> Vec<f32> {
        let key = substream(self.seed, INPUTS);
        let one = |number| {
            let key = substream(key, number as u64);
            Distribution::Normal.draw(key, self.length * self.width, self.deviation)
        };
        (first..first + count).flat_map(one).collect()
    }

    /// Layer `number`, from 1.
    ///
    /// # Errors
    /// Options that do not fit each other or the sizes.
    pub fn layer(&self, number: usize) -> Result<Layer, Error> {
        let device = regard_nn::device::chosen();
        let key = substream(self.seed, number as u64);
        let model = ModelConfig {
            width: self.width,
            layers: self.layers,
            feed_forward: self.feed_forward.max(1),
            bias: false,
            ..ModelConfig::default()
        };
        let options = AttentionConfig { position: Position::None, ..self.attention.clone() };
        let attention = Attention::new(&model, &options, self.length, &Init::new(key, &device))?;
        let drawn = named_parameters(&attention).into_iter().enumerate().map(|(stream, parameter)| {
            let weight = parameter.name.starts_with("w_") && !is_buffer(&parameter.name);
            let values = match (weight, self.uniform && parameter.name == "w_q") {
                (false, _) => parameter.values,
                (true, true) => vec![0.0; parameter.values.len()],
                (true, false) => {
                    self.weights.draw(substream(key, stream as u64), parameter.values.len(), self.deviation)
                }
            };
            (parameter.name, (parameter.shape, values))
        });
        let drawn = drawn.collect();
        let attention = load_parameters(attention, drawn).expect("names and shapes of the layer itself");
        let matrix = |stream, shape: [usize; 2]| {
            let values = self.weights.draw(substream(key, stream), shape[0] * shape[1], self.deviation);
            Tensor::from_data(TensorData::new(values, shape), &device)
        };
        let (width, hidden) = (self.width, self.feed_forward);
        let [first, second] = FEED_FORWARD;
        Ok(Layer {
            feed_forward: (hidden > 0).then(|| [matrix(first, [width, hidden]), matrix(second, [hidden, width])]),
            mask: attention.mask(None),
            products: self.attention.mechanism == Mechanism::Softmax,
            attention,
            unit: Tensor::ones([width], &device),
            zero: Tensor::zeros([width], &device),
        })
    }

    /// Outputs of a layer for sequences `[count,L,d]`.
    ///
    /// # Panics
    /// If these are not whole sequences.
    pub fn after(&self, layer: &Layer, values: Vec<f32>) -> Vec<f32> {
        host(layer.forward(self.tensor(values)))
    }

    /// Axes of `count` sequences.
    pub(super) fn axes(&self, count: usize) -> Axes {
        Axes { batch: count, tokens: self.length }
    }

    /// `values [count,L,d]` as a tensor.
    pub(super) fn tensor(&self, values: Vec<f32>) -> Tensor<3> {
        let count = values.len() / (self.length * self.width);
        Tensor::from_data(TensorData::new(values, [count, self.length, self.width]), &regard_nn::device::chosen())
    }
}

/// One layer with its weights.
#[derive(Debug)]
pub struct Layer {
    pub(super) attention: Attention,
    pub(super) feed_forward: Option<[Tensor<2>; 2]>,
    mask: Mask,
    /// Whether logits are products of queries and keys.
    products: bool,
    unit: Tensor<1>,
    zero: Tensor<1>,
}

impl Layer {
    /// `x [B,N,d]` to the same shape.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let normal = self.norm(x.clone());
        let context = Context::evaluation();
        let out = self.attention.forward(normal.clone(), normal, &self.mask, &context, Place::Weights);
        let y = x + out;
        let z = self.norm(y.clone());
        self.feed(y, z)
    }

    /// As [`Layer::forward`], with the moments of all intermediates added to `tally` as layer `number`.
    pub fn watched(&self, x: Tensor<3>, number: usize, tally: &mut Tally) -> Tensor<3> {
        let [batch, tokens, _] = x.dims();
        let axes = Axes { batch, tokens };
        let normal = self.norm(x.clone());
        let log = Arc::new(ActivationLog::new());
        let context = Context::evaluation().with_activation_log(log.clone());
        let out = self.attention.forward(normal.clone(), normal.clone(), &self.mask, &context, Place::Weights);
        if let Some(heads) = heads(&log) {
            tally.add(number, Quantity::Heads, &heads, axes);
        }
        if let Attention::MultiHead(attention) = &self.attention {
            let [q, k, v] = attention.project(normal.clone(), normal.clone(), 0);
            let [heads, key_heads, width] = [q.dims()[2], k.dims()[2], q.dims()[3]];
            let [q, k, v] = [q, k, v].map(host);
            for (quantity, values) in [(Quantity::Query, &q), (Quantity::Key, &k), (Quantity::Value, &v)] {
                tally.add(number, quantity, values, axes);
            }
            // Its sums are over all keys before a query; cosines are no products.
            if self.mask.window.is_none() && self.products {
                tally.add_logits(number, (&q, &k), axes, [heads, key_heads, width], self.mask.causal);
            }
        }
        if let Some(shares) = self.cumulative(normal) {
            tally.add_cumulative(number, &shares);
        }
        tally.add(number, Quantity::Attention, &host(out.clone()), axes);
        let y = x + out;
        tally.add(number, Quantity::Residual, &host(y.clone()), axes);
        let z = self.norm(y.clone());
        tally.add(number, Quantity::Normalised, &host(z.clone()), axes);
        let next = self.feed(y, z);
        let values = host(next.clone());
        tally.add(number, Quantity::Output, &values, axes);
        tally.add_neighbours(number, &values, axes);
        next
    }

    /// Attention of the last query to the keys before each of `D` thresholds, for every head and sequence; `None` for a
    /// mechanism that is not a weighted mean of values.
    ///
    /// With values that are 1 before a threshold and 0 after it, any mechanism outputs the weight before it.
    fn cumulative(&self, normal: Tensor<3>) -> Option<Shares> {
        let keys = self.attention.project_keys(normal.clone(), Positions::START);
        let [batch, tokens, heads, width] = match &keys {
            KeyState::Single { v, .. } | KeyState::Components { v, .. } => v.dims(),
            KeyState::States(_) => return None,
        };
        let row = |j: usize| (0..width).map(move |c| f32::from(u8::from(j < Shares::before(c, tokens, width))));
        let values: Vec<f32> =
            (0..batch * tokens).flat_map(|at| (0..heads).flat_map(move |_| row(at % tokens))).collect();
        let values = Tensor::from_data(TensorData::new(values, [batch, tokens, heads, width]), &normal.device());
        let log = Arc::new(ActivationLog::new());
        let context = Context::evaluation().with_activation_log(log.clone());
        self.attention.attend(normal, keys.with_values(values)?, &self.mask, &context, Place::Weights);
        let out = heads_of_last(&log, [batch, tokens, width])?;
        Some(Shares { tokens, thresholds: width, values: out.into_iter().map(f64::from).collect() })
    }

    /// The feed-forward layer of `z`, added to `y`.
    fn feed(&self, y: Tensor<3>, z: Tensor<3>) -> Tensor<3> {
        match self.feed_forward.clone() {
            Some([first, second]) => {
                y + ops::linear(ops::activation(ops::linear(z, first, None), None, ops::Curve::Gelu), second, None)
            }
            None => y,
        }
    }

    pub(super) fn norm(&self, x: Tensor<3>) -> Tensor<3> {
        ops::layer_norm(x, self.unit.clone(), self.zero.clone(), EPSILON)
    }
}

/// Elements on the host.
pub(super) fn host<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data_as::<f32>().try_into_vec().expect("f32, as asked")
}

/// Head outputs, if the mechanism has them.
fn heads(log: &ActivationLog) -> Option<Vec<f32>> {
    log.take().into_iter().find(|record| record.part == Part::Heads).map(|record| record.values)
}

/// The same for the last query of each sequence.
fn heads_of_last(log: &ActivationLog, [batch, tokens, width]: [usize; 3]) -> Option<Vec<f32>> {
    let heads = heads(log)?;
    let token = heads.len() / (batch * tokens);
    debug_assert_eq!(token % width, 0);
    let last = |b: usize| &heads[((b + 1) * tokens - 1) * token..][..token];
    Some((0..batch).flat_map(last).copied().collect())
}
