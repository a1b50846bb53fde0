//! Makes the second model of the page of a run: `cargo run -p regard-playground --example char_lm -- RUN`.
//!
//! RUN is the directory of a character language model with the blocks of a Llama, trained on the embedded text:
//! [the book](../../../docs/src/playground.md) has the command. Writes `docs/playground/char-lm.*` and prints the loss on the
//! test split, which is that of `regard eval RUN`.

#![allow(clippy::print_stdout)]

use std::{fs, io::Read, path::Path};

use flate2::read::GzDecoder;
use regard_playground::Model;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Map, Value, json};

/// Names in a Hugging Face file and in a checkpoint; the matrices of the latter are `[inputs, outputs]`.
const NAMES: [(&str, &str); 9] = [
    ("input_layernorm", "norm_1.weight"),
    ("self_attn.q_proj", "attention.w_q"),
    ("self_attn.k_proj", "attention.w_k"),
    ("self_attn.v_proj", "attention.w_v"),
    ("self_attn.o_proj", "attention.w_o"),
    ("post_attention_layernorm", "norm_2.weight"),
    ("mlp.gate_proj", "ff.w_gate"),
    ("mlp.up_proj", "ff.w_1"),
    ("mlp.down_proj", "ff.w_2"),
];

fn main() {
    let run = std::env::args().nth(1).expect("the directory of a run");
    let run = Path::new(&run);
    let config: toml::Value =
        toml::from_str(&fs::read_to_string(run.join("config.toml")).expect("config.toml")).expect("TOML");
    let number = |path: &[&str]| {
        path.iter().try_fold(&config, |value, key| value.get(key)).and_then(toml::Value::as_integer).expect("a number")
            as usize
    };
    let best = fs::read_to_string(run.join("checkpoints/best")).expect("a best checkpoint");
    let checkpoint =
        fs::read(run.join("checkpoints").join(best.trim()).join("model.safetensors")).expect("a checkpoint");
    let checkpoint = SafeTensors::deserialize(&checkpoint).expect("safetensors");
    let text = text();
    let mut characters: Vec<char> = text.chars().collect();
    characters.sort_unstable();
    characters.dedup();

    let layers = number(&["model", "layers"]);
    let mut names = vec![
        ("model.embed_tokens".to_owned(), "token_embedding".to_owned()),
        ("model.norm".into(), "norm_f.weight".into()),
    ];
    for layer in 0..layers {
        names.extend(
            NAMES.map(|(there, here)| (format!("model.layers.{layer}.{there}"), format!("layers.{layer}.{here}"))),
        );
    }
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = names
        .iter()
        .map(|(there, here)| {
            let tensor = checkpoint.tensor(here).unwrap_or_else(|error| panic!("{here}: {error}"));
            let (shape, data) =
                if here.contains(".w_") { turned(&tensor) } else { (tensor.shape().to_vec(), tensor.data().to_vec()) };
            (format!("{there}.weight"), shape, data)
        })
        .collect();
    assert_eq!(checkpoint.len(), tensors.len(), "tensors that a Llama does not have: {:?}", checkpoint.names());
    let views = tensors
        .iter()
        .map(|(name, shape, data)| (name, TensorView::new(Dtype::F32, shape.clone(), data).expect("sizes")));
    let weights = safetensors::serialize(views, None).expect("tensors");

    let heads = number(&["heads"]);
    let context = number(&["task", "char_lm", "context"]);
    let newline = characters.binary_search(&'\n').expect("lines");
    // A text begins as a line does, and has no end.
    let sizes = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": number(&["model", "width"]), "intermediate_size": number(&["model", "feed_forward"]),
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads,
        "vocab_size": characters.len(), "max_position_embeddings": context, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": false,
        "bos_token_id": newline, "eos_token_id": null, "torch_dtype": "float32",
    });
    let vocabulary: Map<String, Value> =
        (0..).zip(&characters).map(|(id, c): (usize, _)| (c.to_string(), id.into())).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/playground");
    let sizes = serde_json::to_string_pretty(&sizes).expect("JSON") + "\n";
    let vocabulary = json!({ "model": { "type": "WordLevel", "vocab": vocabulary } }).to_string() + "\n";
    for (end, bytes) in
        [("config.json", sizes.as_bytes()), ("safetensors", &weights), ("tokenizer.json", vocabulary.as_bytes())]
    {
        fs::write(folder.join(format!("char-lm.{end}")), bytes).expect("a place for the model");
    }

    let model = Model::new(sizes.as_bytes(), &weights).expect("the model of the run");
    let ids: Vec<u32> = text.chars().map(|c| characters.binary_search(&c).expect("of this text") as u32).collect();
    // The second half of the last tenth, in windows whose last character is the first of the next.
    let test = &ids[ids.len() - ids.len() / 20..];
    let (mut lost, mut count) = (0.0, 0);
    for start in (0..test.len() - 1).step_by(context) {
        let end = (start + context).min(test.len() - 1);
        let logits = model.read(&test[start..end]).expect("a window").logits;
        for (row, next) in logits.chunks_exact(characters.len()).zip(&test[start + 1..]) {
            let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total: f64 = row.iter().map(|x| f64::from(x - top).exp()).sum();
            lost += total.ln() - f64::from(row[*next as usize] - top);
            count += 1;
        }
    }
    println!(
        "{} bytes of weights; {count} characters of the test split, {:.6} nats each",
        weights.len(),
        lost / f64::from(count)
    );
}

/// The text that is embedded in the program.
fn text() -> String {
    let packed = include_bytes!("../../tasks/data/tinyshakespeare.txt.gz");
    let mut text = String::new();
    GzDecoder::new(&packed[..]).read_to_string(&mut text).expect("text");
    text
}

/// A matrix `[inputs, outputs]` as `[outputs, inputs]`.
fn turned(tensor: &TensorView) -> (Vec<usize>, Vec<u8>) {
    let [rows, columns] = *tensor.shape() else { panic!("{:?} is no matrix", tensor.shape()) };
    let numbers = tensor.data().as_chunks::<4>().0;
    let data = (0..columns).flat_map(|c| (0..rows).flat_map(move |r| numbers[r * columns + c])).collect();
    (vec![columns, rows], data)
}
