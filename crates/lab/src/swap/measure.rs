//! What each candidate would cost in each group of heads: error, predicted loss, time and bytes.

use std::{sync::Arc, time::Instant};

use burn::tensor::Tensor;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use regard_kernels::{AttentionOptions, Call, Error, InputSizes, Layout, Operator, Role, Storage, View};
use regard_nn::{
    attention::AttentionLog,
    blocks::{Context, HeadTaps},
    models::TokenBatch,
    ops,
};
use regard_pretrained::{Model, Pretrained};
use serde::Serialize;

use super::{SwapError, candidates::Candidate};

/// A sequence of the sample.
#[derive(Clone, Debug)]
pub enum Example {
    /// One row of tokens without padding.
    Text(TokenBatch),
    /// One image, `[channels,height,width]`.
    Image(Vec<f32>),
}

/// Key heads of a layer, with the query heads that read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Group {
    /// Layer with weights of its own, from 1.
    pub layer: usize,
    /// Key head, from 0.
    pub key_head: usize,
}

/// What a candidate does to a group, over the sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Effect {
    /// Mean squared error of the heads' outputs, relative to the mean square of the exact ones.
    pub error: f64,
    /// First-order change of the loss, its size: `|sum g . d|` of gradients `g` and errors `d`.
    pub first: f64,
    /// Second-order change of the loss by the gradients alone: `sum (g . d)^2 / 2` over tokens (Fisher information).
    pub fisher: f64,
}

/// Effects of all candidates on a group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The group.
    pub group: Group,
    /// Mean entropy of the exact weights, relative to that of equal weights over all keys a query sees.
    pub entropy: f64,
    /// By candidate.
    pub effects: Vec<Effect>,
}

/// Time and bytes of a candidate in one group, at the length that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Price {
    /// Seconds of a forward pass.
    pub seconds: f64,
    /// Bytes of decode state where attention is causal, of the entries of its matrix where it is not.
    pub bytes: f64,
}

/// Positions whose logits are computed at a time: all at once would be the largest thing in memory.
const HEAD_ROWS: usize = 512;

/// Positions of a sequence for which entropy is computed.
const ENTROPY_QUERIES: usize = 64;

/// Mean losses of the tokens of a text, some positions at a time, to `visit` with how many they are; returns how many there are in
/// all. `None` where the model has no head over tokens.
fn token_losses(
    pretrained: &Pretrained,
    states: &Tensor<3>,
    example: &Example,
    mut visit: impl FnMut(Tensor<1>, usize),
) -> Option<usize> {
    let Example::Text(batch) = example else { return None };
    let width = states.dims()[2];
    let (logits, targets): (&dyn Fn(Tensor<2>) -> Tensor<2>, &[i32]) = match &pretrained.model {
        Model::Language(model) => (&|x| model.logits(x), &batch.ids[1..]),
        Model::Masked(model) => (&|x| model.logits(x), &batch.ids),
        _ => return None,
    };
    for (number, targets) in targets.chunks(HEAD_ROWS).enumerate() {
        let rows = targets.len();
        let logits = logits(states.clone().narrow(1, number * HEAD_ROWS, rows).reshape([rows, width]));
        visit(ops::cross_entropy(logits, targets, 0.0), rows);
    }
    Some(targets.len())
}

/// How many tokens count, and the gradient of an objective in the states after the last layer: of the summed loss for models with
/// a head over tokens, of a drawn direction of the result for others.
fn objective(pretrained: &Pretrained, states: Tensor<3>, example: &Example, draw: u64) -> (usize, Tensor<3>) {
    let width = states.dims()[2];
    let leaf = states.detach().require_grad();
    let mut gradient = leaf.clone().inner().zeros_like();
    let counted = token_losses(pretrained, &leaf, example, |loss, rows| {
        let gradients = loss.mul_scalar(rows as f32).backward();
        gradient = gradient.clone() + leaf.grad(&gradients).expect("the leaf is tracked");
    });
    if let Some(tokens) = counted {
        return (tokens, Tensor::from_inner(gradient));
    }
    // One direction of the normalised mean of all states: errors along it are as large as those of the whole on average.
    let mut draws = ChaCha8Rng::seed_from_u64(draw);
    let direction: Vec<f32> = (0..width).map(|_| if draws.random::<bool>() { 1.0 } else { -1.0 }).collect();
    let direction = Tensor::<1>::from_floats(direction.as_slice(), &leaf.device()).reshape([1, width]);
    let mean = leaf.clone().mean_dim(1).reshape([1, width]);
    let norm = mean.clone().square().sum().sqrt().reshape([1, 1]);
    let gradients = (mean / norm * direction).sum().backward();
    (1, Tensor::from_inner(leaf.grad(&gradients).expect("the leaf is tracked")))
}

/// Effects of `candidates` on every group over a sample. `pretrained` is on a device with autodiff and trains nothing.
///
/// # Errors
/// A model whose attention is not plain softmax, an example that does not fit, an interrupt.
pub fn measure(
    pretrained: &Pretrained,
    sample: &[Example],
    candidates: &[Candidate],
    seed: u64,
    progress: &dyn Fn(usize, usize) -> Result<(), SwapError>,
) -> Result<Vec<Measured>, SwapError> {
    let own_layers = if pretrained.config.shared_blocks { 1 } else { pretrained.config.layers };
    let key_heads = pretrained.attention.key_heads();
    let group_of = |layer: usize, key_head| Group { layer: (layer - 1) % own_layers + 1, key_head };
    let mut all: Vec<Measured> = (1..=own_layers)
        .flat_map(|layer| (0..key_heads).map(move |key_head| Group { layer, key_head }))
        .map(|group| Measured { group, entropy: 0.0, effects: vec![Effect::default(); candidates.len()] })
        .collect();
    let steps = sample.len() * pretrained.config.layers;
    for (number, example) in sample.iter().enumerate() {
        let (log, taps) = (Arc::new(AttentionLog::new()), Arc::new(HeadTaps::new()));
        let context = Context::evaluation().with_attention_log(log.clone()).with_taps(taps.clone());
        let states = match (&pretrained.model, example) {
            (Model::Image(model), Example::Image(pixels)) => model.forward(pixels, &context)?,
            (_, Example::Text(batch)) => pretrained.states(batch, &context)?,
            _ => return Err(Error::option("example", "an image", "a text, as the model reads").into()),
        };
        let (tokens, gradient) = objective(pretrained, states.clone(), example, seed ^ number as u64);
        let gradients = (states * gradient).sum().backward();
        for (at, (record, tap)) in log.take().into_iter().zip(taps.take()).enumerate() {
            progress(number * pretrained.config.layers + at, steps)?;
            let g = tap.leaf.grad(&gradients).expect("taps are tracked");
            let g: Vec<f32> = g.into_data_as::<f32>().try_to_vec().expect("f32, as asked");
            let [call] = &record.calls[..] else { return Err(SwapError::NotSoftmax) };
            let heads =
                Heads::new([call.input("q"), call.input("k"), call.input("v")], g).ok_or(SwapError::NotSoftmax)?;
            for key_head in 0..key_heads {
                let slot = all
                    .iter_mut()
                    .find(|measured| measured.group == group_of(record.layer, key_head))
                    .expect("every layer has its groups");
                let one = heads.group(key_head);
                let uses = (sample.len() * pretrained.config.layers / own_layers) as f64;
                slot.entropy += one.entropy(pretrained.attention.causal) / uses;
                let exact = one.output(&candidates[0], seed)?;
                // The first candidate is exact: it has no effect.
                for (effect, candidate) in slot.effects.iter_mut().zip(candidates).skip(1) {
                    let seen = one.effect(&one.output(candidate, seed)?, &exact, tokens);
                    effect.error += seen.error / uses;
                    // Losses of several uses of one layer add up.
                    effect.first += seen.first / sample.len() as f64;
                    effect.fisher += seen.fisher / sample.len() as f64;
                }
            }
        }
    }
    Ok(all)
}

/// Queries, keys, values of all heads and the gradients of their outputs, `[N,H,D]`.
struct Heads<'a> {
    inputs: [View<'a, f32>; 3],
    gradient: Vec<f32>,
}

/// The same of a key head and those that read it.
struct One {
    queries: usize,
    group: usize,
    width: usize,
    inputs: [Vec<f32>; 3],
    gradient: Vec<f32>,
}

impl<'a> Heads<'a> {
    fn new(inputs: [Option<View<'a, f32>>; 3], gradient: Vec<f32>) -> Option<Self> {
        let [Some(q), Some(k), Some(v)] = inputs else { return None };
        Some(Self { inputs: [q, k, v], gradient })
    }

    fn group(&self, key_head: usize) -> One {
        let [q, k, v] = &self.inputs;
        let (heads, key_heads) = (q.shape[2], k.shape[2]);
        let (group, width) = (heads / key_heads, q.shape[3]);
        let slice = |data: &[f32], all: usize, from: usize, count: usize| {
            data.chunks_exact(all * width)
                .flat_map(|row| row[from * width..(from + count) * width].iter().copied())
                .collect()
        };
        One {
            queries: q.shape[1],
            group,
            width,
            inputs: [
                slice(q.data, heads, key_head * group, group),
                slice(k.data, key_heads, key_head, 1),
                slice(v.data, key_heads, key_head, 1),
            ],
            gradient: slice(&self.gradient, heads, key_head * group, group),
        }
    }
}

impl One {
    fn output(&self, candidate: &Candidate, seed: u64) -> Result<Vec<f32>, Error> {
        let Some(options) = &candidate.attention else { return Ok(vec![0.0; self.gradient.len()]) };
        let [q, k, v] = &self.inputs;
        run(options, [q, k, v], self.queries, self.width, seed)
    }

    /// Effect of outputs that should be the exact ones.
    fn effect(&self, seen: &[f32], exact: &[f32], tokens: usize) -> Effect {
        let (mut error, mut size, mut first, mut fisher) = (0.0, 0.0, 0.0, 0.0);
        let token = self.group * self.width;
        let rows = seen.chunks_exact(token).zip(exact.chunks_exact(token)).zip(self.gradient.chunks_exact(token));
        for ((seen, exact), gradient) in rows {
            let mut along = 0.0;
            for ((seen, exact), gradient) in seen.iter().zip(exact).zip(gradient) {
                let difference = f64::from(seen - exact);
                error += difference * difference;
                size += f64::from(*exact) * f64::from(*exact);
                along += f64::from(*gradient) * difference;
            }
            first += along;
            fisher += 0.5 * along * along;
        }
        let tokens = tokens as f64;
        Effect {
            error: error / f64::max(size, f64::MIN_POSITIVE),
            first: first.abs() / tokens,
            fisher: fisher / tokens,
        }
    }

    /// Mean entropy of some queries' weights over that of equal ones.
    fn entropy(&self, causal: bool) -> f64 {
        let [q, k, _] = &self.inputs;
        let scale = (self.width as f32).sqrt().recip();
        let step = self.queries.div_ceil(ENTROPY_QUERIES).max(1);
        let (mut sum, mut count) = (0.0, 0.0);
        for query in (1..self.queries).step_by(step) {
            let keys = if causal { query + 1 } else { self.queries };
            for head in 0..self.group {
                let q = &q[(query * self.group + head) * self.width..][..self.width];
                let scores = k
                    .chunks_exact(self.width)
                    .take(keys)
                    .map(|k| f64::from(scale * q.iter().zip(k).map(|(q, k)| q * k).sum::<f32>()));
                let scores: Vec<f64> = scores.collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = scores.iter().map(|score| (score - most).exp()).sum();
                let mean: f64 = scores.iter().map(|score| (score - most).exp() / total * score).sum();
                sum += (total.ln() + most - mean) / (keys as f64).ln();
                count += 1.0;
            }
        }
        sum / f64::max(count, 1.0)
    }
}

/// The output `[N,H,D]` of a call of one key head.
fn run(
    options: &AttentionOptions,
    inputs: [&[f32]; 3],
    tokens: usize,
    width: usize,
    seed: u64,
) -> Result<Vec<f32>, Error> {
    let (operator, constants) = operator(options, tokens, width, seed)?;
    let shapes = [[1, tokens, options.heads, width], [1, tokens, 1, width], [1, tokens, 1, width]];
    let mut views: Vec<View<f32>> = inputs.iter().zip(&shapes).map(|(data, shape)| View::new(data, shape)).collect();
    views.extend(constants.iter().map(|(shape, data)| View::new(data, shape)));
    let mut out = vec![0.0; inputs[0].len()];
    operator.forward(&views, &mut out);
    Ok(out)
}

/// Shapes and numbers of what an operator draws.
type Constants = Vec<(Vec<usize>, Vec<f32>)>;

fn operator(
    options: &AttentionOptions,
    tokens: usize,
    width: usize,
    seed: u64,
) -> Result<(Arc<dyn Operator>, Constants), Error> {
    let operator = options.operator(Call { layout: Layout::TokenFirst, mask: options.mask(), ..Call::default() })?;
    let sizes = InputSizes::new(Layout::TokenFirst, 1, tokens, options.heads, width);
    let mut constants = Vec::new();
    for input in options.inputs(&*operator, &sizes).into_iter().filter(|input| input.role == Role::Constant) {
        let numbers = input.numbers(seed)?.unwrap_or_default();
        constants.push((input.shape, numbers.into_iter().map(|x| x as f32).collect()));
    }
    Ok((operator, constants))
}

/// Runs of which the median time counts.
const RUNS: usize = 3;

/// Time and bytes of a candidate for one key head at `length` tokens of random numbers.
///
/// # Errors
/// Options that do not fit.
pub fn price(candidate: &Candidate, length: usize, width: usize, storage: Storage, seed: u64) -> Result<Price, Error> {
    let Some(options) = &candidate.attention else { return Ok(Price { seconds: 0.0, bytes: 0.0 }) };
    let mut draws = ChaCha8Rng::seed_from_u64(seed);
    let mut numbers =
        |heads: usize| -> Vec<f32> { (0..length * heads * width).map(|_| 2.0 * draws.random::<f32>() - 1.0).collect() };
    let (q, k, v) = (numbers(options.heads), numbers(1), numbers(1));
    let mut times: Vec<f64> = (0..=RUNS)
        .map(|_| {
            let begin = Instant::now();
            run(options, [&q, &k, &v], length, width, seed).map(|_| begin.elapsed().as_secs_f64())
        })
        .skip(1)
        .collect::<Result<_, _>>()?;
    times.sort_by(f64::total_cmp);
    Ok(Price { seconds: times[RUNS / 2], bytes: bytes(candidate, length, width, storage)? })
}

/// Bytes of a candidate for one key head after `length` tokens: of its decode state where attention is causal, of the entries of its
/// matrix where it is not.
///
/// # Errors
/// A mechanism without a decode state.
pub(super) fn bytes(candidate: &Candidate, length: usize, width: usize, storage: Storage) -> Result<f64, Error> {
    Ok(match &candidate.attention {
        None => 0.0,
        Some(options) if options.causal => state_bytes(options, length, width, storage)? as f64,
        Some(options) => candidate.share * (length * length * options.heads * size_of::<f32>()) as f64,
    })
}

/// Bytes of the decode state of a key head after `length` tokens, whatever they hold.
fn state_bytes(options: &AttentionOptions, length: usize, width: usize, storage: Storage) -> Result<usize, Error> {
    let (operator, constants) = operator(options, length, width, 0)?;
    let Some(mut decoder) = operator.decoder(storage) else {
        return Err(options.no_decoder("candidate"));
    };
    let shapes = [options.heads, 1, 1].map(|heads| [1, 1, heads, width]);
    let (token, mut out) = (vec![0.0; options.heads * width], vec![0.0; options.heads * width]);
    let mut views: Vec<View<f32>> = shapes.iter().map(|shape| View::new(&token[..shape[2] * width], shape)).collect();
    views.extend(constants.iter().map(|(shape, data)| View::new(data, shape)));
    (0..length).for_each(|_| decoder.absorb(&views, &mut out));
    Ok(decoder.bytes())
}

/// Mean loss of texts in nats per token, of a model with a head over tokens.
///
/// # Errors
/// Another model, tokens that it does not have.
pub fn loss(pretrained: &Pretrained, sample: &[Example]) -> Result<f64, SwapError> {
    losses(pretrained, sample).map(|(loss, _)| loss)
}

/// Mean loss of texts in nats per token, and that of each of them.
pub(super) fn losses(pretrained: &Pretrained, sample: &[Example]) -> Result<(f64, Vec<f64>), SwapError> {
    let (mut total, mut count) = (0.0, 0.0);
    let mut each = Vec::with_capacity(sample.len());
    for example in sample {
        let Example::Text(batch) = example else { return Err(SwapError::NoLoss) };
        let states = pretrained.states(batch, &Context::evaluation())?;
        let mut own = 0.0;
        let counted = token_losses(pretrained, &states, example, |loss, rows| {
            let sum =
                rows as f64 * f64::from(loss.into_data_as::<f32>().try_to_vec::<f32>().expect("f32, as asked")[0]);
            total += sum;
            own += sum;
        });
        let counted = counted.ok_or(SwapError::NoLoss)? as f64;
        count += counted;
        each.push(own / counted.max(1.0));
    }
    Ok((total / f64::max(count, 1.0), each))
}
