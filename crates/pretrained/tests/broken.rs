//! Broken folders: one clear error each, never a panic.

mod support;

use std::{
    fs::{self, File},
    path::Path,
};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use regard_pretrained::{Folder, PretrainedError, TensorProblem, Tokenizer};
use serde_json::json;
use support::{copy, edit, edit_header, folders, golden, put, stories};

const WEIGHTS: &str = "model.safetensors";

fn refused(folder: &Path) -> String {
    Folder::open(folder).unwrap_err().to_string()
}

#[test]
fn folders_that_are_not_there_or_lack_files_are_told() {
    let message = refused(Path::new("/no/such/folder"));
    assert!(message.starts_with("cannot read /no/such/folder: ") && message.ends_with("; check the path"), "{message}");
    let message = refused(&golden("vit/config.json"));
    assert!(message.starts_with("cannot read "), "{message}");
    let copy = copy(&golden("vit"));
    fs::remove_file(copy.path().join(WEIGHTS)).unwrap();
    let message = refused(copy.path());
    assert!(message.contains("no weights, expected model.safetensors or model.safetensors.index.json"), "{message}");
    fs::write(copy.path().join("pytorch_model.bin"), b"PK").unwrap();
    let message = refused(copy.path());
    assert!(message.contains("weights only in pytorch_model.bin, expected model.safetensors"), "{message}");
    assert!(message.contains("save_pretrained"), "{message}");
    fs::remove_file(copy.path().join("config.json")).unwrap();
    assert!(refused(copy.path()).contains("config.json: No such file"), "{}", refused(copy.path()));
}

#[test]
fn configurations_that_are_broken_or_unknown_are_told() {
    let copy = copy(&golden("vit"));
    let path = copy.path().join("config.json");
    let sound = fs::read(&path).unwrap();
    for (content, expected) in [
        (&b""[..], "not sound JSON"),
        (&sound[..sound.len() / 2], "not sound JSON"),
        (b"\xff\xfe{}", "not sound JSON"),
        (b"[1, 2]", "the file is [1,2]; expected an object with keys"),
        (b"{}", "model_type is missing; expected one of \"bert\""),
        (b"{\"model_type\": \"mamba\"}", "model_type is \"mamba\"; expected one of \"bert\""),
    ] {
        fs::write(&path, content).unwrap();
        let message = refused(copy.path());
        assert!(message.contains("config.json: ") && message.contains(expected), "{message}");
    }
}

#[test]
fn weights_that_are_cut_off_or_damaged_are_told() {
    let copy = copy(&golden("vit"));
    let path = copy.path().join(WEIGHTS);
    let sound = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(sound[..8].try_into().unwrap()) as usize;
    let length = |n: u64| [&n.to_le_bytes()[..], &sound[8..]].concat();
    let garbled = |at: usize| {
        let mut bytes = sound.clone();
        bytes[at] = b'#';
        bytes
    };
    for (content, expected) in [
        (vec![], "0 bytes, expected a safetensors file"),
        (sound[..7].to_vec(), "7 bytes, expected a safetensors file"),
        (sound[..8].to_vec(), "8 bytes, of which its first eight claim"),
        (sound[..header].to_vec(), "no safetensors file, or cut off; fetch it again"),
        (sound[..sound.len() - 1].to_vec(), "not what its header asks for: cut off or damaged; fetch it again"),
        ([&sound[..], b"x"].concat(), "not what its header asks for"),
        (length(u64::MAX), "claim 18446744073709551615 for the header"),
        (length(header as u64 - 40), "not a sound safetensors file"),
        (length(0), "not a sound safetensors file"),
        (garbled(8), "not a sound safetensors file"),
        (garbled(9), "not a sound safetensors file"),
        (b"<!DOCTYPE html><html>Not found</html>".to_vec(), "no safetensors file, or cut off"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00".to_vec(), "no safetensors file, or cut off"),
    ] {
        fs::write(&path, content).unwrap();
        let message = refused(copy.path());
        assert!(message.contains("model.safetensors: ") && message.contains(expected), "{message}\n   {expected}");
    }
}

#[test]
fn all_tensors_that_do_not_fit_are_listed() {
    let copy = copy(&golden("llama-tied"));
    edit_header(&copy.path().join(WEIGHTS), |header| {
        let header = header.as_object_mut().unwrap();
        for (old, new) in [("model.norm.weight", "model.last.weight"), ("model.layers.1.mlp.up_proj.weight", "mine")] {
            let tensor = header.remove(old).unwrap();
            header.insert(new.into(), tensor);
        }
        header["model.layers.0.self_attn.q_proj.weight"]["shape"] = json!([16, 64]);
        let half = &mut header["model.layers.0.input_layernorm.weight"];
        half["dtype"] = "I8".into();
        half["shape"] = json!([128]);
    });
    let Err(PretrainedError::Tensors { problems, .. }) = Folder::open(copy.path()) else {
        panic!("tensors do not fit")
    };
    let missing =
        |name: &str, expected: &[usize]| TensorProblem::Missing { name: name.into(), expected: expected.into() };
    let unexpected = |name: &str, seen: &[usize]| TensorProblem::Unexpected { name: name.into(), seen: seen.into() };
    let shape = |name: &str, seen: &[usize], expected: &[usize]| TensorProblem::Shape {
        name: name.into(),
        seen: seen.into(),
        expected: expected.into(),
    };
    let expected = [
        shape("model.layers.0.input_layernorm.weight", &[128], &[32]),
        shape("model.layers.0.self_attn.q_proj.weight", &[16, 64], &[32, 32]),
        missing("model.layers.1.mlp.up_proj.weight", &[48, 32]),
        missing("model.norm.weight", &[32]),
        unexpected("mine", &[48, 32]),
        unexpected("model.last.weight", &[32]),
    ];
    assert_eq!(problems, expected);
    let message = refused(copy.path());
    assert!(message.contains("tensor 'model.norm.weight' is missing; expected shape [32]; tensor 'mine'"), "{message}");
    assert!(message.contains("has shape [16, 64]; by config.json expected [32, 32]"), "{message}");
    // A message stays readable; the error holds all.
    let copy = support::copy(&golden("bert-masked"));
    edit(copy.path(), "config.json", |value| value["num_hidden_layers"] = 40.into());
    assert!(refused(copy.path()).ends_with("; and 588 more"), "{}", refused(copy.path()));
}

#[test]
fn element_types_that_are_not_read_are_told() {
    let copy = copy(&golden("llama-grouped"));
    let path = copy.path().join("model-00002-of-00003.safetensors");
    let name = "model.norm.weight";
    edit_header(&path, |header| header[name]["dtype"] = "I16".into());
    let message = refused(copy.path());
    assert!(message.contains("tensor 'model.norm.weight' holds I16; expected F32, F16 or BF16"), "{message}");
}

#[test]
fn configurations_of_another_model_are_told() {
    for (model, key, value, expected) in [
        (
            "dinov2",
            "hidden_size",
            json!(64),
            "'embeddings.cls_token' has shape [1, 1, 32]; by config.json expected [1, 1, 64]",
        ),
        (
            "vit",
            "image_size",
            json!(16),
            "'vit.embeddings.position_embeddings' has shape [1, 10, 32]; by config.json expected [1, 17, 32]",
        ),
        (
            "vit",
            "qkv_bias",
            json!(false),
            "'vit.encoder.layer.0.attention.attention.key.bias' of shape [32] has no place",
        ),
        (
            "llama-grouped",
            "num_key_value_heads",
            json!(4),
            "'model.layers.0.self_attn.k_proj.weight' has shape [24, 32]; by config.json expected [48, 32]",
        ),
        (
            "llama-grouped",
            "tie_word_embeddings",
            json!(true),
            "tensor 'lm_head.weight' differs from 'model.embed_tokens.weight'",
        ),
        (
            "llama-tied",
            "tie_word_embeddings",
            json!(false),
            "tensor 'lm_head.weight' is missing; expected shape [80, 32]",
        ),
        ("llama-tied", "attention_bias", json!(true), "tensor 'model.layers.0.self_attn.q_proj.bias' is missing"),
        ("gpt2", "n_layer", json!(1), "tensor 'transformer.h.1.attn.c_attn.bias' of shape [96] has no place"),
        ("bert-classifier", "architectures", json!(["BertForMaskedLM"]), "tensor 'cls.predictions.bias' is missing"),
        (
            "bert-masked",
            "model_type",
            json!("roberta"),
            "tensor 'roberta.embeddings.word_embeddings.weight' is missing",
        ),
        (
            "albert",
            "embedding_size",
            json!(32),
            "'albert.embeddings.word_embeddings.weight' has shape [60, 16]; by config.json expected [60, 32]",
        ),
    ] {
        let copy = copy(&golden(model));
        edit(copy.path(), "config.json", |config| config[key] = value);
        let message = refused(copy.path());
        assert!(message.contains(expected), "{model}, {key}: {message}\n    expected {expected}");
    }
}

#[test]
fn parts_that_do_not_fit_together_are_told() {
    let index = "model.safetensors.index.json";
    let second = "model-00002-of-00003.safetensors";
    let copy = || copy(&golden("llama-grouped"));

    let folder = copy();
    fs::remove_file(folder.path().join(second)).unwrap();
    let message = refused(folder.path());
    assert!(message.contains(&format!("{index}: 1 of 3 files are missing: {second}; fetch them")), "{message}");

    let folder = copy();
    File::options().write(true).open(folder.path().join(second)).unwrap().set_len(1000).unwrap();
    assert!(refused(folder.path()).contains(&format!("{second}: 1000 bytes, ")), "{}", refused(folder.path()));

    for (change, expected) in [
        (
            json!("../other.safetensors"),
            "the file of tensor 'model.norm.weight' is \"../other.safetensors\"; expected a *.safetensors of this folder",
        ),
        (json!("config.json"), "expected a *.safetensors of this folder"),
        (json!(7), "the file of tensor 'model.norm.weight' is 7"),
        (
            json!("model-00001-of-00003.safetensors"),
            "tensor 'model.norm.weight' is in model-00002-of-00003.safetensors; expected in model-00001",
        ),
    ] {
        let folder = copy();
        edit(folder.path(), index, |value| value["weight_map"]["model.norm.weight"] = change);
        assert!(refused(folder.path()).contains(expected), "{}", refused(folder.path()));
    }
    let folder = copy();
    edit(folder.path(), index, |value| {
        value["weight_map"].as_object_mut().unwrap().remove("model.norm.weight");
    });
    let message = refused(folder.path());
    assert!(
        message.contains("tensor 'model.norm.weight' of model-00002-of-00003.safetensors is not listed"),
        "{message}"
    );
    edit(folder.path(), index, |value| value["weight_map"] = json!({}));
    assert!(
        refused(folder.path()).contains("weight_map is {}; expected an object that names the file"),
        "{}",
        refused(folder.path())
    );
    fs::copy(folder.path().join(second), folder.path().join("model-00001-of-00003.safetensors")).unwrap();
    edit(folder.path(), index, |value| {
        value["weight_map"] = json!({"a": second, "b": "model-00001-of-00003.safetensors"});
    });
    assert!(refused(folder.path()).contains("too, expected once"), "{}", refused(folder.path()));
}

/// Opens a folder and does all that can be done with it.
fn use_it(path: &Path) {
    let tokenizer = |tokenizer: Tokenizer| {
        if let Ok(encoded) = tokenizer.encode("Hello, world! 🙂", true, Some(9)) {
            assert!(encoded.ids.len() <= 9);
            let _ = tokenizer.decode(&encoded.ids, true);
            let mut stream = tokenizer.stream();
            let _ = encoded.ids.iter().try_for_each(|id| stream.push(*id).map(drop));
            let _ = stream.finish();
        }
        let _ = tokenizer.encode_pair("one two", "three", Some(6));
        let _ = tokenizer.chat(&[regard_pretrained::Message::new("user", "hello")], true);
    };
    if let Ok(folder) = Folder::open_allowing(path, &["*"]) {
        for parameter in folder.load() {
            assert_eq!(parameter.values().len() * parameter.element().bytes(), parameter.bytes().len());
        }
        let _ = folder.generation();
        let _ = folder.tokenizer().map(tokenizer);
    }
    let _ = Tokenizer::open(path).map(tokenizer);
}

#[test]
fn damaged_bytes_never_panic() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for source in folders() {
        let copy = copy(&source);
        for name in support::names(&source) {
            let path = copy.path().join(&name);
            let sound = fs::read(&path).unwrap();
            if !name.contains("safetensors") && !name.ends_with(".json") && name != "vocab.txt"
                || name.starts_with("tokens")
            {
                continue;
            }
            // Of weights the header is what is read; numbers may be any.
            let reach = match name.ends_with(".safetensors") {
                true => 8 + u64::from_le_bytes(sound[..8].try_into().unwrap()) as usize,
                false => sound.len(),
            };
            let times = if source == stories() { 12 } else { 40 };
            for _ in 0..times {
                let mut bytes = sound.clone();
                for _ in 0..random.random_range(1..4) {
                    let at = random.random_range(0..reach);
                    bytes[at] = match random.random_range(0..4) {
                        0 => bytes[at] ^ (1 << random.random_range(0..8)),
                        1 => random.random(),
                        // Other digits and signs leave sound JSON with other values.
                        2 => b"0123456789"[random.random_range(0..10)],
                        _ => b"-[]{}\",:. e"[random.random_range(0..11)],
                    };
                }
                if random.random_bool(0.1) {
                    bytes.truncate(random.random_range(0..bytes.len()));
                }
                put(&path, &bytes);
                use_it(copy.path());
            }
            put(&path, &sound);
        }
        Folder::open_allowing(copy.path(), &[]).unwrap();
    }
}

/// Values of other kinds and sizes in place of each value of a configuration.
#[test]
fn odd_values_never_panic() {
    let odd = [
        json!(null),
        json!(0),
        json!(-1),
        json!(1),
        json!(3),
        json!(1e308),
        json!(0.1),
        json!(u64::MAX),
        json!(1u64 << 28),
        json!("x"),
        json!([]),
        json!({}),
        json!(true),
        json!([null, 7]),
        json!({"rope_type": "yarn"}),
        json!({"0": "a"}),
    ];
    for source in folders() {
        let copy = copy(&source);
        for file in ["config.json", "generation_config.json", "tokenizer_config.json"] {
            let Ok(sound) = fs::read(source.join(file)) else { continue };
            let config: serde_json::Value = serde_json::from_slice(&sound).unwrap();
            for key in config.as_object().unwrap().keys() {
                for value in &odd {
                    let mut changed = config.clone();
                    changed[key] = value.clone();
                    put(&copy.path().join(file), changed.to_string());
                    if file == "tokenizer_config.json" {
                        use_it(copy.path());
                    } else if let Ok(folder) = Folder::open_allowing(copy.path(), &["*"]) {
                        let _ = folder.generation();
                    }
                }
            }
            put(&copy.path().join(file), sound);
        }
    }
}
