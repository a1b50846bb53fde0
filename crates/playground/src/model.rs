//! A Llama: RMS norms, rotary positions, grouped softmax attention and gated feed-forward layers, over kernels.

use std::sync::Arc;

use regard_kernels::{
    AttentionOptions, Call, Layout, Mask, Operator, View,
    elementwise::{Affine, Curve, Gated, RmsNorm, Rotate},
};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

/// Sizes of the model, as in a `config.json` of Hugging Face.
#[derive(Clone, Debug, Deserialize)]
pub struct Sizes {
    /// Channels of a token.
    pub hidden_size: usize,
    /// Channels inside the feed-forward layers.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Tokens.
    pub vocab_size: usize,
    /// Longest text in tokens.
    pub max_position_embeddings: usize,
    /// Added to mean squares.
    pub rms_norm_eps: f32,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// The token before every text.
    pub bos_token_id: u32,
    /// The token after every text; absent where texts do not end.
    pub eos_token_id: Option<u32>,
}

impl Sizes {
    /// Width of a head.
    pub fn head_width(&self) -> usize {
        self.hidden_size / self.num_attention_heads
    }

    fn check(&self) -> Result<(), String> {
        let Self { hidden_size, num_attention_heads: heads, num_key_value_heads: key_heads, .. } = *self;
        let divides = |a: usize, b: usize| b > 0 && a > 0 && a.is_multiple_of(b);
        if !divides(hidden_size, heads) || !divides(heads, key_heads) || !divides(hidden_size / heads, 2) {
            return Err(format!(
                "config: {hidden_size} channels, {heads} heads and {key_heads} key heads do not divide"
            ));
        }
        if self.max_position_embeddings == 0 || self.bos_token_id as usize >= self.vocab_size {
            return Err("config: no positions, or a beginning-of-text token outside the vocabulary".into());
        }
        Ok(())
    }
}

/// A matrix `[from, to]`.
#[derive(Clone, Debug)]
struct Dense {
    weight: Vec<f32>,
    shape: [usize; 2],
}

impl Dense {
    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let [from, to] = self.shape;
        let rows = x.len() / from;
        let mut out = vec![0.0; rows * to];
        let shape = [rows, from];
        Affine { bias: false }.forward(&[View::new(x, &shape), View::new(&self.weight, &self.shape)], &mut out);
        out
    }
}

#[derive(Clone, Debug)]
struct Layer {
    attention_norm: Vec<f32>,
    /// Projections to queries, keys and values.
    qkv: [Dense; 3],
    out: Dense,
    feed_forward_norm: Vec<f32>,
    gate: Dense,
    up: Dense,
    down: Dense,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its sizes.
    pub sizes: Sizes,
    embedding: Vec<f32>,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    head: Dense,
    /// Cosines and sines of the angles of all positions.
    rotary: [Arc<[f32]>; 2],
}

/// What a model did with a text: token first, one entry per layer.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Queries `[N,H,D]`, keys `[N,Hk,D]` and values `[N,Hk,D]`, with positions, of each layer.
    pub qkv: Vec<[Vec<f32>; 3]>,
    /// Logits of the token after each, `[N,V]`.
    pub logits: Vec<f32>,
}

impl Model {
    /// Reads a Llama with tied embeddings from a `config.json` and a `model.safetensors` in float32.
    ///
    /// # Errors
    /// A file that cannot be read, or tensors that are missing or of other sizes.
    pub fn new(config: &[u8], weights: &[u8]) -> Result<Self, String> {
        let sizes: Sizes = serde_json::from_slice(config).map_err(|error| format!("config: {error}"))?;
        sizes.check()?;
        let file = SafeTensors::deserialize(weights).map_err(|error| format!("weights: {error}"))?;
        let tensor = |name: &str, shape: &[usize]| -> Result<Vec<f32>, String> {
            let tensor = file.tensor(&format!("model.{name}.weight")).map_err(|error| format!("weights: {error}"))?;
            if tensor.shape() != shape || tensor.dtype() != Dtype::F32 {
                let (seen, kind) = (tensor.shape(), tensor.dtype());
                return Err(format!("weights: '{name}' is {kind:?} {seen:?}, expected F32 {shape:?}"));
            }
            Ok(tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
        };
        // Files hold `[to, from]`.
        let dense = |name: &str, from: usize, to: usize| {
            tensor(name, &[to, from]).map(|weight| Dense { weight: turned(&weight, from), shape: [from, to] })
        };
        let (width, inner) = (sizes.hidden_size, sizes.intermediate_size);
        let keys = sizes.num_key_value_heads * sizes.head_width();
        let layer = |n: usize| {
            let name = |part: &str| format!("layers.{n}.{part}");
            Ok(Layer {
                attention_norm: tensor(&name("input_layernorm"), &[width])?,
                qkv: [
                    dense(&name("self_attn.q_proj"), width, width)?,
                    dense(&name("self_attn.k_proj"), width, keys)?,
                    dense(&name("self_attn.v_proj"), width, keys)?,
                ],
                out: dense(&name("self_attn.o_proj"), width, width)?,
                feed_forward_norm: tensor(&name("post_attention_layernorm"), &[width])?,
                gate: dense(&name("mlp.gate_proj"), width, inner)?,
                up: dense(&name("mlp.up_proj"), width, inner)?,
                down: dense(&name("mlp.down_proj"), inner, width)?,
            })
        };
        let embedding = tensor("embed_tokens", &[sizes.vocab_size, width])?;
        let head = Dense { weight: turned(&embedding, width), shape: [width, sizes.vocab_size] };
        Ok(Self {
            layers: (0..sizes.num_hidden_layers).map(layer).collect::<Result<_, String>>()?,
            norm: tensor("norm", &[width])?,
            rotary: angles(&sizes),
            embedding,
            head,
            sizes,
        })
    }

    /// Number of learned numbers.
    pub fn parameters(&self) -> usize {
        let layer = |layer: &Layer| {
            let dense = layer.qkv.iter().chain([&layer.out, &layer.gate, &layer.up, &layer.down]);
            dense.map(|dense| dense.weight.len()).sum::<usize>()
                + layer.attention_norm.len()
                + layer.feed_forward_norm.len()
        };
        self.embedding.len() + self.norm.len() + self.layers.iter().map(layer).sum::<usize>()
    }

    /// Runs over the tokens of a text with the softmax attention that the model was trained with.
    ///
    /// # Errors
    /// No tokens, more than the model has positions for, or ids outside the vocabulary.
    pub fn read(&self, tokens: &[u32]) -> Result<Reading, String> {
        let options = AttentionOptions { causal: true, ..self.attention() };
        let call = Call { layout: Layout::TokenFirst, mask: Mask::causal(), ..Call::default() };
        let softmax = options.operator(call).map_err(|error| error.to_string())?;
        let mut qkv = Vec::new();
        let logits = self.logits(tokens, 0, |_, shapes, tensors, out| {
            let views: Vec<_> = tensors.iter().zip(shapes).map(|(data, shape)| View::new(&data[..], shape)).collect();
            softmax.forward(&views, out);
            qkv.push(tensors.clone());
        })?;
        Ok(Reading { qkv, logits })
    }

    /// Heads and key heads as options of attention.
    pub fn attention(&self) -> AttentionOptions {
        let Sizes { num_attention_heads: heads, num_key_value_heads, .. } = self.sizes;
        AttentionOptions { heads, key_value_heads: Some(num_key_value_heads), ..AttentionOptions::default() }
    }

    /// Logits `[N,V]` of the tokens after `tokens`, the first of which is at position `from`. `attend` gets a layer,
    /// the shapes of its `q`, `k`, `v`, these tensors, and the output `[N,H,D]` to fill.
    ///
    /// # Errors
    /// As for [`Model::read`].
    pub fn logits(
        &self,
        tokens: &[u32],
        from: usize,
        mut attend: impl FnMut(usize, &[[usize; 4]; 3], &[Vec<f32>; 3], &mut [f32]),
    ) -> Result<Vec<f32>, String> {
        let Sizes { hidden_size: width, num_attention_heads: heads, num_key_value_heads: key_heads, .. } = self.sizes;
        let (n, most) = (tokens.len(), self.sizes.max_position_embeddings);
        if n == 0 || from + n > most {
            return Err(format!("{} tokens, expected 1 to {most}", from + n));
        }
        let mut x = Vec::with_capacity(n * width);
        for &token in tokens {
            let row = self.embedding.chunks_exact(width).nth(token as usize);
            x.extend_from_slice(row.ok_or_else(|| format!("token {token} is outside the vocabulary"))?);
        }
        let [cosine, sine] = &self.rotary;
        let depth = self.sizes.head_width();
        let rotate = Rotate::new(cosine.clone(), sine.clone(), depth / 2, from);
        let shapes = [heads, key_heads, key_heads].map(|heads| [1, n, heads, depth]);
        for (index, layer) in self.layers.iter().enumerate() {
            let normed = self.normed(&x, &layer.attention_norm);
            let mut qkv = layer.qkv.each_ref().map(|dense| dense.apply(&normed));
            for (tensor, shape) in qkv.iter_mut().zip(&shapes).take(2) {
                let mut turned = vec![0.0; tensor.len()];
                rotate.forward(&[View::new(tensor, shape)], &mut turned);
                *tensor = turned;
            }
            let mut attended = vec![0.0; n * width];
            attend(index, &shapes, &qkv, &mut attended);
            add(&mut x, &layer.out.apply(&attended));
            let normed = self.normed(&x, &layer.feed_forward_norm);
            let [gate, up] = [&layer.gate, &layer.up].map(|dense| dense.apply(&normed));
            let mut inner = vec![0.0; gate.len()];
            let shape = [n, gate.len() / n];
            Gated { curve: Curve::Silu }.forward(&[View::new(&gate, &shape), View::new(&up, &shape)], &mut inner);
            add(&mut x, &layer.down.apply(&inner));
        }
        Ok(self.head.apply(&self.normed(&x, &self.norm)))
    }

    fn normed(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        let (width, epsilon) = (weight.len(), self.sizes.rms_norm_eps);
        RmsNorm { epsilon }.forward(&[View::new(x, &[x.len() / width, width]), View::new(weight, &[width])], &mut out);
        out
    }
}

/// The transpose of rows of `columns`.
fn turned(matrix: &[f32], columns: usize) -> Vec<f32> {
    let rows = matrix.len() / columns;
    (0..columns).flat_map(|c| (0..rows).map(move |r| matrix[r * columns + c])).collect()
}

/// Cosines and sines of `position * theta^(-2 pair / D)`, `[positions, D / 2]` (Su et al. 2021).
fn angles(sizes: &Sizes) -> [Arc<[f32]>; 2] {
    let pairs = sizes.head_width() / 2;
    let angle = |i: usize| {
        let (position, pair) = (i / pairs, i % pairs);
        position as f64 * sizes.rope_theta.powf(-(pair as f64) / pairs as f64)
    };
    let table = |f: fn(f64) -> f64| (0..sizes.max_position_embeddings * pairs).map(|i| f(angle(i)) as f32).collect();
    [table(f64::cos), table(f64::sin)]
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// Probabilities of logits at a temperature.
pub(crate) fn probabilities(logits: &[f32], temperature: f64) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut exps: Vec<f64> = logits.iter().map(|x| (f64::from(x - top) / temperature).exp()).collect();
    let total: f64 = exps.iter().sum();
    exps.iter_mut().for_each(|x| *x /= total);
    exps
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Playground, Tokenizer};

    pub(crate) const WEIGHTS: &[u8] = include_bytes!("../../../docs/playground/stories260k.safetensors");
    pub(crate) const TOKENIZER: &[u8] = include_bytes!("../../../docs/playground/stories260k.tokenizer.json");
    pub(crate) const CONFIG: &[u8] = include_bytes!("../../../docs/playground/stories260k.config.json");

    pub(crate) fn tokenizer() -> Tokenizer {
        Tokenizer::new(TOKENIZER).unwrap()
    }

    pub(crate) fn playground() -> Playground {
        Playground::new(CONFIG, WEIGHTS, TOKENIZER).unwrap()
    }

    #[test]
    fn the_story_begins_as_it_does_elsewhere() {
        // What llama2.c writes with these weights, always with the most probable token.
        let (model, tokenizer) = (Model::new(CONFIG, WEIGHTS).unwrap(), tokenizer());
        let mut tokens = vec![model.sizes.bos_token_id];
        for _ in 0..30 {
            let reading = model.read(&tokens).unwrap();
            let last = reading.logits.chunks_exact(512).next_back().unwrap();
            let best = (0..512).max_by(|a, b| last[*a].total_cmp(&last[*b])).unwrap();
            tokens.push(best as u32);
        }
        let text = tokenizer.decode(&tokens);
        let known = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park";
        assert!(text.starts_with(known), "{text}");
    }

    #[test]
    fn probabilities_agree_with_the_command_line() {
        // What `regard --json perplexity --bos document` says of this text.
        let (model, tokenizer) = (Model::new(CONFIG, WEIGHTS).unwrap(), tokenizer());
        let mut tokens = vec![model.sizes.bos_token_id];
        tokens.extend(tokenizer.encode(TEXT));
        let reading = model.read(&tokens).unwrap();
        let lost: f64 = reading
            .logits
            .chunks_exact(512)
            .zip(&tokens[1..])
            .map(|(logits, next)| -probabilities(logits, 1.0)[*next as usize].ln())
            .sum();
        let mean = lost / (tokens.len() - 1) as f64;
        assert!((mean - MEAN).abs() < 1e-5, "{mean} over {} tokens", tokens.len() - 1);
    }

    const TEXT: &str =
        "Lily had a small red ball. One day the ball rolled under the big tree, and Tom could not find it.";
    const MEAN: f64 = 1.782_330_861_905_726;

    #[test]
    fn files_that_do_not_fit_are_refused() {
        let error = Model::new(CONFIG, &WEIGHTS[..100]).unwrap_err();
        assert!(error.starts_with("weights: "), "{error}");
        let wide = String::from_utf8(CONFIG.to_vec()).unwrap().replace("\"hidden_size\": 64", "\"hidden_size\": 128");
        let error = Model::new(wide.as_bytes(), WEIGHTS).unwrap_err();
        assert!(error.contains("expected F32 [512, 128]"), "{error}");
        let odd = wide.replace("\"hidden_size\": 128", "\"hidden_size\": 60");
        assert!(Model::new(odd.as_bytes(), WEIGHTS).unwrap_err().contains("do not divide"));
        let model = Model::new(CONFIG, WEIGHTS).unwrap();
        assert_eq!(model.read(&[]).unwrap_err(), "0 tokens, expected 1 to 512");
        assert_eq!(model.read(&[1; 513]).unwrap_err(), "513 tokens, expected 1 to 512");
        assert_eq!(model.read(&[512]).unwrap_err(), "token 512 is outside the vocabulary");
    }
}
