//! Models of every family, run by our layers: states and logits against those of `transformers` in float64.

mod support;

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use regard_kernels::{Padding, Storage};
use regard_nn::{
    attention::{AttentionConfig, HeadPlan},
    blocks::Context,
    models::{LanguageModel, TokenBatch},
};
use regard_pretrained::{Folder, LoadOptions, Model, Pretrained};
use support::{Golden, MODELS, golden, stories};

fn load(name: &str) -> Pretrained {
    Folder::open(golden(name)).unwrap().model(LoadOptions::default(), &Device::flex()).unwrap()
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data_as::<f32>().try_to_vec().unwrap()
}

/// Largest difference over the rows that count, relative to the largest number expected.
#[track_caller]
fn close(what: &str, seen: &[f32], expected: &[f64], counts: impl Fn(usize) -> bool) {
    assert_eq!(seen.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
    for (i, (seen, expected)) in seen.iter().zip(expected).enumerate() {
        let far = (f64::from(*seen) - expected).abs() > 1e-5 * largest;
        assert!(!(counts(i) && far), "{what}, number {i} is {seen}, expected {expected}");
    }
}

/// The batch of a golden file, and which tokens are real.
fn batch(golden: &Golden) -> (TokenBatch, Vec<bool>) {
    let ints = |name: &str| golden.0.get(name).map(|(_, data)| data.iter().map(|x| *x as i32).collect::<Vec<i32>>());
    let shape = golden.0["input_ids"].0.clone();
    let real: Vec<u8> = ints("attention_mask").unwrap().into_iter().map(|x| x as u8).collect();
    let counts = real.iter().map(|real| *real == 1).collect();
    let padding = Padding::new(shape[0], shape[1], real).unwrap();
    let tokens = TokenBatch::new(ints("input_ids").unwrap(), shape[0], shape[1], Some(Arc::new(padding))).unwrap();
    match ints("token_type_ids") {
        Some(types) => (tokens.with_types(types).unwrap(), counts),
        None => (tokens, counts),
    }
}

#[test]
fn models_agree_with_transformers() {
    for name in MODELS {
        let pretrained = load(name);
        let golden = Golden::read(&golden(&format!("{name}.safetensors")));
        let context = Context::evaluation();
        let expected = |tensor: &str| golden.0.get(tensor).map(|(_, data)| &data[..]);
        let states = |seen: Vec<f32>, real: &[bool], width: usize| {
            close(&format!("{name}, states"), &seen, expected("last_hidden").unwrap(), |i| real[i / width]);
        };
        match &pretrained.model {
            Model::Image(model) => {
                let pixels: Vec<f32> = golden.0["pixel_values"].1.iter().map(|x| *x as f32).collect();
                let x = model.forward(&pixels, &context).unwrap();
                let [batch, tokens, width] = x.dims();
                states(values(x.clone()), &vec![true; batch * tokens], width);
                if let Some(logits) = model.logits(x) {
                    close(&format!("{name}, logits"), &values(logits), expected("logits").unwrap(), |_| true);
                }
            }
            model => {
                let (tokens, real) = batch(&golden);
                let x = pretrained.states(&tokens, &context).unwrap();
                let width = x.dims()[2];
                states(values(x.clone()), &real, width);
                let logits = match model {
                    Model::Language(model) => Some(values(model.logits(x))),
                    Model::Masked(model) => Some(values(model.logits(x))),
                    Model::Features(model) => match model.logits(x.clone(), &tokens) {
                        Some(logits) => Some(values(logits)),
                        None => {
                            let pooled = values(model.pooled(x).unwrap());
                            close(&format!("{name}, pooled"), &pooled, expected("pooled").unwrap(), |_| true);
                            None
                        }
                    },
                    Model::Image(_) => unreachable!("seen above"),
                };
                if let Some(logits) = logits {
                    let each = logits.len() / real.len().min(logits.len());
                    let per_token = golden.0["logits"].0.len() == 3;
                    let counts = |i: usize| !per_token || real[i / each];
                    close(&format!("{name}, logits"), &logits, expected("logits").unwrap(), counts);
                }
            }
        }
    }
}

fn greedy(model: &LanguageModel, prompt: &[i32], length: usize) -> Vec<i32> {
    let mut state = model.decoder(1, Storage::F32).unwrap();
    let mut tokens = prompt.to_vec();
    let mut logits = values(model.extend(prompt, &mut state).unwrap());
    while tokens.len() < length {
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as i32;
        tokens.push(best);
        logits = values(model.step(&[best], &mut state).unwrap());
    }
    tokens
}

#[test]
fn decoding_writes_what_transformers_writes() {
    for name in ["gpt2", "llama-tied", "llama-grouped"] {
        let Model::Language(model) = load(name).model else { panic!("{name} is a language model") };
        let golden = Golden::read(&golden(&format!("{name}.safetensors")));
        let expected: Vec<i32> = golden.0["generated"].1.iter().map(|x| *x as i32).collect();
        assert_eq!(greedy(&model, &expected[..4], expected.len()), expected, "{name}");
    }
}

#[test]
fn a_plan_that_hides_nothing_changes_nothing() {
    let tokens: Vec<i32> = (0..24).map(|i| 1 + 7 * i % 300).collect();
    let folder = Folder::open(stories()).unwrap();
    let whole = |plan: Option<Vec<HeadPlan>>| {
        let pretrained = folder.model(LoadOptions::default(), &Device::flex()).unwrap();
        let pretrained = match plan {
            Some(plan) => pretrained.planned(&vec![plan; 5], 3).unwrap(),
            None => pretrained,
        };
        let Model::Language(model) = pretrained.model else { panic!("a language model") };
        let batch = TokenBatch::full(tokens.clone(), 1).unwrap();
        let logits = values(model.forward(&batch, &Context::evaluation()));
        let mut state = model.decoder(1, Storage::F32).unwrap();
        let mut decoded = Vec::new();
        for token in &tokens {
            decoded.extend(values(model.step(&[*token], &mut state).unwrap()));
        }
        let wide: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
        close("decoded", &decoded, &wide, |_| true);
        wide
    };
    let exact = whole(None);
    let options = |text: &str| -> AttentionConfig { toml::from_str(text).unwrap() };
    let windowed = HeadPlan { key_heads: vec![3, 1], attention: Some(options("window = 40")) };
    let sparse = HeadPlan {
        key_heads: vec![0],
        attention: Some(options("mechanism = 'sparse'\nsupport = { kind = 'local', radius = 40 }")),
    };
    let seen: Vec<f32> = whole(Some(vec![windowed, sparse])).iter().map(|x| *x as f32).collect();
    close("planned", &seen, &exact, |_| true);
    // What does change something does.
    let narrow = HeadPlan { key_heads: vec![0, 2], attention: Some(options("window = 2")) };
    let dropped = HeadPlan { key_heads: vec![1], attention: None };
    let seen = whole(Some(vec![narrow, dropped]));
    assert!(seen.iter().zip(&exact).any(|(seen, exact)| (seen - exact).abs() > 1e-2));
}

#[test]
fn a_longer_context_needs_a_stretched_table() {
    let folder = Folder::open(golden("gpt2")).unwrap();
    let context = folder.architecture().context;
    let load = |context, stretch| folder.model(LoadOptions { context: Some(context), stretch }, &Device::flex());
    let error = load(2 * context, false).unwrap_err().to_string();
    assert!(error.contains("the table stretched"), "{error}");
    assert_eq!(load(2 * context, true).unwrap().context, 2 * context);
    let shorter = load(context / 2, false).unwrap();
    let error = shorter.states(&TokenBatch::full(vec![1; context], 1).unwrap(), &Context::evaluation()).unwrap_err();
    assert!(error.to_string().contains("length of the sequences"), "{error}");
}

#[test]
fn planned_blocks_decode_as_the_whole_and_after_a_prompt() {
    let tokens: Vec<i32> = (0..24).map(|i| 1 + 7 * i % 300).collect();
    let options = |text: &str| -> AttentionConfig { toml::from_str(text).unwrap() };
    // Blocks of 5 for the 30 tokens of the context; the second row does not see itself.
    let layout = "support.layout = ['100000', '100000', '101000', '010100', '110110', '011011']";
    let blocks = |mechanism: &str| {
        let text = format!("mechanism = '{mechanism}'\nsupport.kind = 'block'\nsupport.block = 5\n{layout}");
        HeadPlan { key_heads: vec![], attention: Some(options(&text)) }
    };
    let plan = [
        HeadPlan { key_heads: vec![0, 3], ..blocks("sparse") },
        HeadPlan { key_heads: vec![1], ..blocks("scatterbrain") },
    ];
    let folder = Folder::open(stories()).unwrap();
    let load = |context: usize| {
        let load = LoadOptions { context: Some(context), ..LoadOptions::default() };
        folder.model(load, &Device::flex()).unwrap()
    };
    let Model::Language(model) = load(30).planned(&vec![plan.to_vec(); 5], 3).unwrap().model else {
        panic!("a language model")
    };
    let batch = TokenBatch::full(tokens.clone(), 1).unwrap();
    let logits = values(model.forward(&batch, &Context::evaluation()));
    let vocabulary = logits.len() / tokens.len();
    let wide: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
    let mut state = model.decoder(1, Storage::F32).unwrap();
    for (at, token) in tokens.iter().enumerate() {
        let row = values(model.step(&[*token], &mut state).unwrap());
        close("token by token", &row, &wide[at * vocabulary..(at + 1) * vocabulary], |_| true);
    }
    let mut chunked = model.decoder(1, Storage::F32).unwrap();
    for (from, to) in [(0, 12), (12, 18), (18, 24)] {
        let row = values(model.extend(&tokens[from..to], &mut chunked).unwrap());
        close("in chunks", &row, &wide[(to - 1) * vocabulary..to * vocabulary], |_| true);
    }
    assert!(model.decoder(1, Storage::Int8).unwrap().bytes() == 0 && chunked.bytes() == state.bytes());
    for _ in 24..30 {
        model.step(&[1], &mut chunked).unwrap();
    }
    assert!(model.step(&[1], &mut chunked).unwrap_err().to_string().contains("position is 30, expected below 30"));
    let error = load(31).planned(&vec![plan.to_vec(); 5], 3).unwrap_err().to_string();
    assert!(error.contains("support.layout is 6 x 6 blocks of 5, expected at least 7 x 7"), "{error}");
}
