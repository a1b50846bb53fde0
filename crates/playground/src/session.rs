//! Requests of the page and their answers.

use regard_kernels::AttentionOptions;
use serde::{Deserialize, Serialize};

use crate::{Comparison, Head, Model, Reading, Tokenizer, Writer, model::probabilities};

/// Most probable next tokens in an answer.
const NEXT: usize = 8;

/// Characters of a text that are read per position of the model: more than any piece of its vocabulary has on average.
const CHARACTERS: usize = 16;

/// A model, the text that it read last, and the text that it is writing.
#[derive(Debug)]
pub struct Playground {
    model: Model,
    tokenizer: Tokenizer,
    tokens: Vec<u32>,
    reading: Option<Reading>,
    writer: Option<Writer>,
    /// The text that was read, and what was written after it.
    written: Vec<u32>,
}

/// Text in JSON and numbers beside it.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// A JSON object.
    pub text: String,
    /// Numbers whose order depends on the request.
    pub numbers: Vec<f32>,
}

/// What the page may ask.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
enum Request {
    /// Sizes of the model.
    About,
    /// Read a text. Numbers: logits `[N,V]`.
    Read { text: String },
    /// One head beside a mechanism. Numbers: weights of softmax `[N,N]`, of the mechanism `[N,N]`, the outputs of both
    /// kernels `[N,D]` each.
    Compare { layer: usize, head: usize, options: AttentionOptions, seed: u64 },
    /// The error of a mechanism in every head. Numbers: `[layers, heads]`.
    Errors { options: AttentionOptions, seed: u64 },
    /// Begin to write on after the text.
    Begin { options: AttentionOptions, temperature: f64, seed: u64 },
    /// The next token.
    Write,
}

#[derive(Serialize)]
struct About {
    layers: usize,
    heads: usize,
    key_heads: usize,
    context: usize,
    vocabulary: usize,
    parameters: usize,
}

#[derive(Serialize)]
struct Read {
    tokens: Vec<u32>,
    pieces: Vec<String>,
    /// Whether the text was longer than the model can read.
    cut: bool,
    /// Characters that the model does not know, which are left out.
    unknown: usize,
    /// Mean of `-ln p` of the tokens of the text; none for an empty one.
    nats: Option<f64>,
    next: Vec<(String, f64)>,
}

#[derive(Serialize)]
struct Compared {
    tokens: usize,
    width: usize,
    label: String,
    sizes: String,
    entropy: [f64; 2],
    error: f64,
    weights_error: f64,
    on_support: Option<f64>,
}

#[derive(Serialize)]
struct Written {
    /// Everything so far, the text that was read included.
    text: String,
    /// Whether the text ends here: the model says so, or has no position left.
    done: bool,
    /// Bytes of the state of all layers.
    bytes: usize,
}

impl Playground {
    /// Reads a model and its tokenizer.
    ///
    /// # Errors
    /// Files that cannot be read or do not fit together.
    pub fn new(config: &[u8], weights: &[u8], tokenizer: &[u8]) -> Result<Self, String> {
        let (model, tokenizer) = (Model::new(config, weights)?, Tokenizer::new(tokenizer)?);
        let (seen, expected) = (tokenizer.len(), model.sizes.vocab_size);
        if seen != expected {
            return Err(format!("tokenizer: {seen} pieces, expected {expected} as in the model"));
        }
        Ok(Self { model, tokenizer, tokens: Vec::new(), reading: None, writer: None, written: Vec::new() })
    }

    /// Answers a request in JSON.
    ///
    /// # Errors
    /// A request that is not one, or that cannot be done; in words.
    pub fn answer(&mut self, request: &str) -> Result<Answer, String> {
        match serde_json::from_str(request).map_err(|error| format!("request: {error}"))? {
            Request::About => json(&self.about(), Vec::new()),
            Request::Read { text } => self.read(&text),
            Request::Compare { layer, head, options, seed } => {
                let head = self.head(layer, head)?;
                let compared = head.compare(&options, seed)?;
                let numbers = numbers(&compared);
                let Comparison { other, entropy, error, weights_error, on_support, .. } = compared;
                let (label, sizes) = (other.label, other.sizes);
                let (tokens, width) = (head.tokens, head.width);
                json(&Compared { tokens, width, label, sizes, entropy, error, weights_error, on_support }, numbers)
            }
            Request::Errors { options, seed } => {
                let sizes = &self.model.sizes;
                let places = (0..sizes.num_hidden_layers)
                    .flat_map(|layer| (0..sizes.num_attention_heads).map(move |head| (layer, head)));
                let error = |(layer, head)| Ok(self.head(layer, head)?.error(&options, seed)? as f32);
                let errors = places.map(error).collect::<Result<_, String>>()?;
                json(&self.about(), errors)
            }
            Request::Begin { options, temperature, seed } => {
                if !(0.0..=10.0).contains(&temperature) {
                    return Err(format!("temperature is {temperature}, expected 0 to 10"));
                }
                let n = self.tokens.len();
                let depth = self.model.sizes.head_width();
                let sized = options.within_budget(n, n, depth).map_err(|error| error.to_string())?;
                let writer = Writer::new(&self.model, &sized, &self.tokens, temperature, seed)?;
                let bytes = writer.bytes();
                self.writer = Some(writer);
                self.written = self.tokens.clone();
                json(&Written { text: self.text(), done: false, bytes }, Vec::new())
            }
            Request::Write => {
                let writer = self.writer.as_mut().ok_or("nothing was begun")?;
                // A model ends a text with the token before the next, or with one of its own.
                let sizes = &self.model.sizes;
                let ends =
                    |token: &u32| sizes.eos_token_id.is_some_and(|end| [end, sizes.bos_token_id].contains(token));
                let token = writer.write(&self.model)?.filter(|token| !ends(token));
                let bytes = writer.bytes();
                self.written.extend(token);
                json(&Written { text: self.text(), done: token.is_none(), bytes }, Vec::new())
            }
        }
    }

    /// What is being written, without the token before every text.
    fn text(&self) -> String {
        self.tokenizer.decode(&self.written[1..])
    }

    fn about(&self) -> About {
        let sizes = &self.model.sizes;
        About {
            layers: sizes.num_hidden_layers,
            heads: sizes.num_attention_heads,
            key_heads: sizes.num_key_value_heads,
            context: sizes.max_position_embeddings,
            vocabulary: sizes.vocab_size,
            parameters: self.model.parameters(),
        }
    }

    fn read(&mut self, text: &str) -> Result<Answer, String> {
        let sizes = &self.model.sizes;
        let most = sizes.max_position_embeddings;
        let end = text.char_indices().nth(most * CHARACTERS).map_or(text.len(), |(end, _)| end);
        let mut tokens = vec![sizes.bos_token_id];
        tokens.extend(self.tokenizer.encode(&text[..end]));
        let cut = end < text.len() || tokens.len() > most;
        tokens.truncate(most);
        let reading = self.model.read(&tokens)?;
        let rows: Vec<_> = reading.logits.chunks_exact(sizes.vocab_size).map(|row| probabilities(row, 1.0)).collect();
        let lost = rows.iter().zip(&tokens[1..]).map(|(row, next)| -row[*next as usize].ln());
        let nats = (tokens.len() > 1).then(|| lost.sum::<f64>() / (tokens.len() - 1) as f64);
        let last = rows.last().map_or(&[][..], |row| row);
        let mut order: Vec<usize> = (0..last.len()).collect();
        order.sort_by(|a, b| last[*b].total_cmp(&last[*a]));
        let next = order.iter().take(NEXT).map(|&token| (self.tokenizer.piece(token as u32), last[token])).collect();
        let pieces = tokens.iter().map(|token| self.tokenizer.piece(*token)).collect();
        let logits = reading.logits.clone();
        (self.tokens, self.reading) = (tokens.clone(), Some(reading));
        let unknown = self.tokenizer.unknown(text);
        json(&Read { tokens, pieces, cut, unknown, nats, next }, logits)
    }

    /// Queries, keys and values of one head.
    fn head(&self, layer: usize, head: usize) -> Result<Head, String> {
        let reading = self.reading.as_ref().ok_or("no text was read")?;
        let sizes = &self.model.sizes;
        let (heads, key_heads, width) = (sizes.num_attention_heads, sizes.num_key_value_heads, sizes.head_width());
        if layer >= sizes.num_hidden_layers || head >= heads {
            return Err(format!("layer {layer}, head {head}, expected below {} and {heads}", sizes.num_hidden_layers));
        }
        let rows = |tensor: &[f32], heads: usize, head: usize| {
            tensor.chunks_exact(width).skip(head).step_by(heads).flatten().copied().collect::<Vec<f32>>()
        };
        let [q, k, v] = &reading.qkv[layer];
        let key_head = head / (heads / key_heads);
        let qkv = [rows(q, heads, head), rows(k, key_heads, key_head), rows(v, key_heads, key_head)];
        Ok(Head { tokens: self.tokens.len(), width, qkv })
    }
}

fn numbers(compared: &Comparison) -> Vec<f32> {
    let weights = compared.weights.iter().flatten().map(|x| *x as f32);
    weights.chain(compared.softmax.out.iter().copied()).chain(compared.other.out.iter().copied()).collect()
}

fn json(value: &impl Serialize, numbers: Vec<f32>) -> Result<Answer, String> {
    let text = serde_json::to_string(value).map_err(|error| error.to_string())?;
    Ok(Answer { text, numbers })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use crate::model::tests::playground;

    fn parsed(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_visit() {
        let mut page = playground();
        let about = parsed(&page.answer(r#"{"do": "about"}"#).unwrap().text);
        assert_eq!((&about["layers"], &about["heads"], &about["parameters"]), (&5.into(), &8.into(), &260_032.into()));
        let local = r#"{"mechanism": "sparse", "support": {"kind": "local"}, "budget": 0.25}"#;
        let compare = format!(r#"{{"do": "compare", "layer": 2, "head": 5, "options": {local}, "seed": 0}}"#);
        assert_eq!(page.answer(&compare).unwrap_err(), "no text was read");
        let read = page.answer(r#"{"do": "read", "text": "Once upon a time, there was a big dog"}"#).unwrap();
        let n = parsed(&read.text)["tokens"].as_array().unwrap().len();
        assert_eq!(read.numbers.len(), n * 512);
        assert!(parsed(&read.text)["nats"].as_f64().unwrap() < 2.0);

        let answer = page.answer(&compare).unwrap();
        let compared = parsed(&answer.text);
        assert_eq!((&compared["tokens"], &compared["width"]), (&n.into(), &8.into()));
        assert_eq!(answer.numbers.len(), 2 * n * n + 2 * n * 8);
        assert!(answer.numbers[1..n].iter().all(|x| *x == 0.0), "the first token sees itself alone");
        let error = compared["error"].as_f64().unwrap();
        assert!(error > 0.0 && compared["on_support"].as_f64().unwrap() < 1.0);

        let errors = page.answer(&format!(r#"{{"do": "errors", "options": {local}, "seed": 0}}"#)).unwrap().numbers;
        assert_eq!(errors.len(), 40);
        assert!((f64::from(errors[2 * 8 + 5]) - error).abs() < 1e-6);

        assert_eq!(page.answer(r#"{"do": "write"}"#).unwrap_err(), "nothing was begun");
        page.answer(r#"{"do": "begin", "options": {}, "temperature": 0, "seed": 0}"#).unwrap();
        let written = parsed(&page.answer(r#"{"do": "write"}"#).unwrap().text);
        // Without temperature the most probable token follows.
        let next = parsed(&read.text)["next"][0][0].as_str().unwrap().to_owned();
        assert_eq!(written["text"], format!("Once upon a time, there was a big dog{next}"));
        assert_eq!(written["done"], false);
    }

    #[test]
    fn long_texts_are_cut_and_empty_ones_are_read() {
        let mut page = playground();
        let long = "a dog ".repeat(4000);
        let read = parsed(&page.answer(&format!(r#"{{"do": "read", "text": "{long}"}}"#)).unwrap().text);
        assert_eq!((read["tokens"].as_array().unwrap().len(), &read["cut"]), (512, &true.into()));
        let read = parsed(&page.answer(r#"{"do": "read", "text": ""}"#).unwrap().text);
        assert_eq!(
            (&read["tokens"], &read["nats"], &read["cut"]),
            (&serde_json::json!([1]), &Value::Null, &false.into())
        );
    }

    #[test]
    fn wrong_requests_are_answered_in_words() {
        let mut page = playground();
        page.answer(r#"{"do": "read", "text": "a dog"}"#).unwrap();
        for (request, words) in [
            ("{", "request: "),
            (r#"{"do": "sing"}"#, "unknown variant `sing`"),
            (
                r#"{"do": "compare", "layer": 9, "head": 0, "options": {}, "seed": 0}"#,
                "layer 9, head 0, expected below 5",
            ),
            (r#"{"do": "errors", "options": {"mechanism": "linaer"}, "seed": 0}"#, "linaer"),
            (
                r#"{"do": "errors", "options": {"mechanism": "performer", "budget": 0.001}, "seed": 0}"#,
                "budget is 0.001",
            ),
            (r#"{"do": "begin", "options": {}, "temperature": -1, "seed": 0}"#, "temperature is -1"),
        ] {
            let error = page.answer(request).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
