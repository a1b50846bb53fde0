//! Writing on, token by token, with any mechanism that has a decode state.

use std::fmt;

use regard_kernels::{
    AttentionOptions, Call, Decode, InputSizes, Layout, Mask, Storage, View,
    inputs::{Fill, Role},
    random::{substream, unit},
};

use crate::{Model, model::probabilities};

/// A text that is being written.
pub struct Writer {
    /// One state per layer.
    decoders: Vec<Box<dyn Decode>>,
    /// What the mechanism needs besides queries, keys and values, with shapes.
    others: Vec<(Vec<f32>, Vec<usize>)>,
    position: usize,
    last: u32,
    temperature: f64,
    seed: u64,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writer {{ position: {} }}", self.position)
    }
}

impl Writer {
    /// Reads all but the last of `tokens` with the mechanism of `options` in every layer and head.
    ///
    /// `options` has sizes, no budget. At temperature 0 the most probable token follows.
    ///
    /// # Errors
    /// No tokens, options without a decode state, and as for [`Model::read`].
    pub fn new(
        model: &Model,
        options: &AttentionOptions,
        tokens: &[u32],
        temperature: f64,
        seed: u64,
    ) -> Result<Self, String> {
        let words = |error: regard_kernels::Error| error.to_string();
        let (&last, before) = tokens.split_last().ok_or("nothing to go on from")?;
        let AttentionOptions { heads, key_value_heads, .. } = model.attention();
        let options = AttentionOptions { heads, key_value_heads, causal: true, ..options.clone() };
        let call = Call { layout: Layout::TokenFirst, mask: Mask::causal(), ..Call::default() };
        let operator = options.operator(call).map_err(words)?;
        let decoder = || operator.decoder(Storage::F32).ok_or_else(|| words(options.no_decoder("mechanism")));
        let sizes = InputSizes::new(Layout::TokenFirst, 1, 1, heads, model.sizes.head_width());
        let mut others = Vec::new();
        for spec in options.inputs(&*operator, &sizes) {
            match (spec.role, &spec.fill) {
                (Role::Data { .. }, _) => {}
                (_, Fill::Given) => return Err(format!("{} needs a learned '{}'", options.label(), spec.name)),
                _ => {
                    let numbers = spec.numbers(seed).map_err(words)?.unwrap_or_default();
                    others.push((numbers.into_iter().map(|x| x as f32).collect(), spec.shape));
                }
            }
        }
        let decoders = (0..model.sizes.num_hidden_layers).map(|_| decoder()).collect::<Result<_, String>>()?;
        let mut writer = Self { decoders, others, position: 0, last, temperature, seed };
        for &token in before {
            writer.step(model, token)?;
        }
        Ok(writer)
    }

    /// Logits of the token after `token`.
    fn step(&mut self, model: &Model, token: u32) -> Result<Vec<f32>, String> {
        let Self { decoders, others, position, .. } = self;
        let logits = model.logits(&[token], *position, |layer, shapes, qkv, out| {
            let data = qkv.iter().zip(shapes).map(|(data, shape)| View::new(&data[..], &shape[..]));
            let views: Vec<_> =
                data.chain(others.iter().map(|(data, shape)| View::new(&data[..], &shape[..]))).collect();
            decoders[layer].step(&views, out);
        })?;
        *position += 1;
        Ok(logits)
    }

    /// The next token; none where the model has no position left.
    ///
    /// # Errors
    /// As for [`Model::read`].
    pub fn write(&mut self, model: &Model) -> Result<Option<u32>, String> {
        if self.position >= model.sizes.max_position_embeddings {
            return Ok(None);
        }
        let logits = self.step(model, self.last)?;
        let draw = unit(substream(self.seed, self.position as u64));
        self.last = sample(&logits, self.temperature, draw);
        Ok(Some(self.last))
    }

    /// Bytes of the state that the mechanism keeps of the text.
    pub fn bytes(&self) -> usize {
        self.decoders.iter().map(|decoder| decoder.bytes()).sum()
    }
}

/// A token with the probability of its logit: the first whose cumulative probability reaches `draw`, in `(0, 1]`.
fn sample(logits: &[f32], temperature: f64, draw: f64) -> u32 {
    let best = || (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap_or(0);
    if temperature <= 0.0 {
        return best() as u32;
    }
    let mut sum = 0.0;
    let reached = probabilities(logits, temperature).iter().position(|p| {
        sum += p;
        sum >= draw
    });
    reached.unwrap_or_else(best) as u32
}

#[cfg(test)]
mod tests {
    use regard_kernels::{Mechanism, support::SupportKind};

    use super::*;
    use crate::model::tests::{CONFIG, WEIGHTS, tokenizer};

    #[test]
    fn decoding_agrees_with_reading() {
        let (model, tokenizer) = (Model::new(CONFIG, WEIGHTS).unwrap(), tokenizer());
        let mut tokens = vec![1];
        tokens.extend(tokenizer.encode("Tom and Lily went to the park."));
        let whole = model.read(&tokens).unwrap().logits;
        let mut writer = Writer::new(&model, &AttentionOptions::default(), &tokens, 0.0, 0).unwrap();
        let last = *tokens.last().unwrap();
        let logits = writer.step(&model, last).unwrap();
        let want = &whole[whole.len() - 512..];
        assert!(logits.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-4));
    }

    #[test]
    fn every_mechanism_with_a_state_writes() {
        let model = Model::new(CONFIG, WEIGHTS).unwrap();
        let tokens: Vec<u32> = vec![1, 403, 407, 261, 378];
        for mechanism in [
            Mechanism::Softmax,
            Mechanism::Cosine,
            Mechanism::Linear,
            Mechanism::Performer,
            Mechanism::Sparse,
            Mechanism::Scatterbrain,
        ] {
            let options = AttentionOptions { mechanism, ..AttentionOptions::default() };
            let mut writer = Writer::new(&model, &options, &tokens, 0.8, 1).unwrap();
            for _ in 0..3 {
                assert!(writer.write(&model).unwrap().is_some_and(|token| token < 512), "{mechanism}");
            }
            assert!(writer.bytes() > 0);
        }
        let mut smyrf = AttentionOptions { mechanism: Mechanism::Sparse, ..AttentionOptions::default() };
        smyrf.support.kind = SupportKind::Smyrf;
        assert!(Writer::new(&model, &smyrf, &tokens, 0.8, 1).unwrap_err().contains("those still to come"));
    }

    #[test]
    fn writing_ends_with_the_context() {
        let model = Model::new(CONFIG, WEIGHTS).unwrap();
        let mut writer = Writer::new(&model, &AttentionOptions::default(), &[1; 511], 1.0, 0).unwrap();
        assert!(writer.write(&model).unwrap().is_some() && writer.write(&model).unwrap().is_some());
        assert_eq!(writer.write(&model).unwrap(), None);
    }

    #[test]
    fn tokens_are_drawn_as_often_as_they_are_probable() {
        let logits = [0.0, 2f32.ln(), f32::NEG_INFINITY];
        assert_eq!(sample(&logits, 0.0, 0.01), 1);
        let ones = (1..=300).filter(|i| sample(&logits, 1.0, f64::from(*i) / 300.0) == 1).count();
        assert!(ones.abs_diff(200) <= 1, "{ones}");
        assert_ne!(sample(&logits, 1.0, 1.0), 2);
    }
}
