use std::{fs, path::Path};

use serde_json::{Value, json};

use super::*;

fn config(model: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(model).join("config.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn read(model: &str, changes: Value) -> Result<Architecture, ConfigProblem> {
    let mut config = config(model);
    for (key, value) in changes.as_object().unwrap() {
        // As where the key is not there at all.
        if *value == json!("MISSING") {
            config.as_object_mut().unwrap().remove(key);
        } else {
            config[key] = value.clone();
        }
    }
    Architecture::from_config(&config)
}

fn refused(model: &str, changes: Value) -> String {
    read(model, changes).unwrap_err().to_string()
}

#[test]
fn families_are_described_in_shared_terms() {
    let bert = read("bert-masked", json!({})).unwrap();
    assert_eq!((bert.family, bert.width, bert.layers, bert.heads, bert.head_width), (Family::Bert, 32, 2, 4, 8));
    assert_eq!((bert.norm.place, bert.norm.kind, bert.norm.epsilon), (NormPlace::Post, NormKind::Layer, 1e-12));
    assert!(bert.embedding_norm && !bert.final_norm && !bert.causal && !bert.pooler);
    assert_eq!((bert.head, bert.token_types), (Head::Masked { tied: true, bias: true }, 2));
    let sentences = read("bert-sentences", json!({})).unwrap();
    assert_eq!((sentences.head, sentences.pooler), (Head::None, true));
    let classifier = read("bert-classifier", json!({})).unwrap();
    assert_eq!(classifier.head, Head::Classifier { classes: 3, features: Features::First, bias: true });
    assert_eq!(classifier.labels[&2], "perhaps");
    let roberta = read("roberta", json!({})).unwrap();
    assert_eq!(
        (roberta.position, roberta.context, roberta.padding),
        (Position::Learned { offset: 2, rows: 26 }, 24, Some(1))
    );
    let albert = read("albert", json!({})).unwrap();
    assert_eq!((albert.embedding_width, albert.own_layers(), albert.layers), (16, 1, 3));
    assert_eq!((albert.activation, albert.embedding_projection), (Activation::GeluTanh, true));
    let gpt2 = read("gpt2", json!({})).unwrap();
    assert_eq!((gpt2.feed_forward, gpt2.activation, gpt2.causal), (128, Activation::GeluTanh, true));
    assert_eq!((gpt2.norm.place, gpt2.final_norm, gpt2.tied()), (NormPlace::Pre, true, true));
    let llama = read("llama-grouped", json!({})).unwrap();
    assert_eq!((llama.heads, llama.key_value_heads, llama.head_width, llama.gated), (4, 2, 12, true));
    assert_eq!(llama.biases, Biases { query_key_value: true, out: true, feed_forward: true });
    let rotary = RotaryConfig {
        base: 500.0,
        scaling: RotaryScaling::Llama3,
        factor: 4.0,
        original_context: 32,
        ..RotaryConfig::default()
    };
    assert_eq!(llama.position, Position::Rotary(rotary));
    let vit = read("vit", json!({})).unwrap();
    assert_eq!((vit.context, vit.vocabulary, vit.class_token, vit.layer_scale), (10, 0, true, false));
    assert_eq!(vit.patch, Some(Patch { image: 12, patch: 4, channels: 3 }));
    let dinov2 = read("dinov2-classifier", json!({})).unwrap();
    assert_eq!(dinov2.head, Head::Classifier { classes: 3, features: Features::FirstAndMean, bias: true });
    assert!(dinov2.layer_scale && dinov2.feed_forward == 64);
}

#[test]
fn older_keys_and_defaults_mean_the_same() {
    let new = read("llama-grouped", json!({})).unwrap();
    let old = json!({
        "rope_parameters": "MISSING",
        "rope_theta": 500.0,
        "rope_scaling": {"type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 32},
    });
    assert_eq!(read("llama-grouped", old).unwrap(), new);
    let plain = json!({"rope_parameters": "MISSING", "head_dim": null, "num_key_value_heads": "MISSING"});
    let plain = read("llama-tied", plain).unwrap();
    assert_eq!(plain, read("llama-tied", json!({})).unwrap());
    assert!(!read("llama-tied", json!({"tie_word_embeddings": "MISSING"})).unwrap().tied());
    assert!(read("gpt2", json!({"tie_word_embeddings": "MISSING"})).unwrap().tied());
    assert_eq!(read("gpt2", json!({"n_inner": 48})).unwrap().feed_forward, 48);
    let vit = read("vit", json!({"image_size": [12, 12], "layer_norm_eps": "MISSING"})).unwrap();
    assert_eq!(vit, read("vit", json!({})).unwrap());
    assert_eq!(read("bert-masked", json!({"hidden_act": "gelu_new"})).unwrap().activation, Activation::GeluTanh);
    assert_eq!(read("bert-masked", json!({"architectures": "MISSING"})).unwrap().head, Head::None);
    let labels = read("bert-classifier", json!({"id2label": "MISSING", "num_labels": 4})).unwrap().labels;
    assert_eq!((labels.len(), labels[&3].as_str()), (4, "LABEL_3"));
    assert_eq!(read("llama-tied", json!({"pad_token_id": -1})).unwrap().padding, None);
    let scored = read("llama-tied", json!({"architectures": ["LlamaForSequenceClassification"]})).unwrap();
    assert_eq!(scored.head, Head::Classifier { classes: 2, features: Features::Last, bias: false });
}

#[test]
fn refusals_name_key_value_and_what_is_expected() {
    for (model, changes, expected) in [
        ("bert-masked", json!({"model_type": "t5"}), "model_type is \"t5\"; expected one of \"bert\", \"roberta\", "),
        ("bert-masked", json!({"model_type": "MISSING"}), "model_type is missing; expected one of"),
        (
            "bert-masked",
            json!({"hidden_size": "MISSING"}),
            "hidden_size is missing; expected a whole number from 1 to 268435456",
        ),
        ("bert-masked", json!({"hidden_size": null}), "hidden_size is null; expected a whole number"),
        ("bert-masked", json!({"hidden_size": "32"}), "hidden_size is \"32\"; expected a whole number"),
        ("bert-masked", json!({"hidden_size": 32.5}), "hidden_size is 32.5; expected a whole number"),
        (
            "bert-masked",
            json!({"num_hidden_layers": 0}),
            "num_hidden_layers is 0; expected a whole number from 1 to 268435456",
        ),
        ("bert-masked", json!({"num_hidden_layers": 100000}), "num_hidden_layers is 100000; expected at most 4096"),
        (
            "bert-masked",
            json!({"num_attention_heads": 5}),
            "num_attention_heads is 5; expected a divisor of hidden_size = 32",
        ),
        ("bert-masked", json!({"hidden_act": "quick_gelu"}), "hidden_act is \"quick_gelu\"; expected \"gelu\""),
        ("bert-masked", json!({"layer_norm_eps": -1.0}), "layer_norm_eps is -1.0; expected a number above 0"),
        ("bert-masked", json!({"is_decoder": true}), "is_decoder is true; expected false, the only one read"),
        (
            "bert-masked",
            json!({"position_embedding_type": "relative_key"}),
            "position_embedding_type is \"relative_key\"",
        ),
        (
            "bert-masked",
            json!({"architectures": ["BertForQuestionAnswering"]}),
            "architectures is [\"BertForQuestionAnswering\"]; expected a class whose name ends with Model, ForMaskedLM",
        ),
        ("bert-masked", json!({"architectures": "BertModel"}), "architectures is \"BertModel\"; expected a list"),
        ("bert-masked", json!({"vocab_size": 1u64 << 40}), "vocab_size is 1099511627776"),
        ("bert-classifier", json!({"id2label": {"0": "no", "2": "yes"}}), "id2label is "),
        ("bert-classifier", json!({"num_labels": 5}), "num_labels is 5; expected 3, as many as id2label has"),
        (
            "roberta",
            json!({"pad_token_id": 40}),
            "max_position_embeddings is 26; expected more than pad_token_id + 1 = 41",
        ),
        ("albert", json!({"num_hidden_groups": 2}), "num_hidden_groups is 2; expected 1"),
        (
            "gpt2",
            json!({"scale_attn_by_inverse_layer_idx": true}),
            "scale_attn_by_inverse_layer_idx is true; expected false",
        ),
        ("gpt2", json!({"n_head": 7}), "n_head is 7; expected a divisor of n_embd = 32"),
        (
            "llama-tied",
            json!({"num_key_value_heads": 3}),
            "num_key_value_heads is 3; expected a divisor of num_attention_heads = 4",
        ),
        ("llama-tied", json!({"head_dim": 7}), "head_dim is 7; expected one that makes heads of even width"),
        (
            "llama-tied",
            json!({"rope_parameters": {"rope_type": "longrope"}}),
            "rope_parameters.rope_type is \"longrope\"; expected \"default\", \"linear\"",
        ),
        (
            "llama-tied",
            json!({"rope_parameters": {"rope_type": "linear"}}),
            "rope_parameters.factor is missing; expected a number above 0",
        ),
        ("llama-tied", json!({"rope_parameters": [1]}), "rope_parameters is [1]; expected an object with keys"),
        (
            "llama-tied",
            json!({"rope_parameters": {"rope_type": "llama3", "low_freq_factor": 4, "high_freq_factor": 1}}),
            "rope_parameters.high_freq_factor is 1; expected more than low_freq_factor = 4",
        ),
        ("vit", json!({"patch_size": 13}), "patch_size is 13; expected at most image_size = 12"),
        ("vit", json!({"image_size": [12, 16]}), "image_size is [12,16]; expected one whole number, or two equal ones"),
        ("vit", json!({"pooler_output_size": 5}), "pooler_output_size is 5; expected hidden_size = 32"),
        ("dinov2", json!({"use_swiglu_ffn": true}), "use_swiglu_ffn is true; expected false"),
    ] {
        let message = refused(model, changes);
        assert!(message.starts_with(expected), "{message}\n    expected {expected}");
    }
    let message = Architecture::from_config(&json!([1])).unwrap_err().to_string();
    assert_eq!(message, "the file is [1]; expected an object with keys");
}

#[test]
fn frequencies_are_those_of_transformers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/rotary.json");
    let rows: Vec<Value> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        let mut scaling = row["scaling"].clone();
        scaling["rope_theta"] = 10000.0.into();
        let changes = json!({"rope_parameters": scaling, "head_dim": 16, "max_position_embeddings": 64});
        // What the model is built with.
        let rotary = read("llama-tied", changes).unwrap().model_config().rotary;
        let seen = rotary.frequencies(8, 200);
        let expected: Vec<f64> = row["frequencies"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        assert_eq!(seen.len(), expected.len());
        for (seen, expected) in seen.iter().zip(&expected) {
            assert!((seen / expected - 1.0).abs() < 2e-6, "{rotary:?}: {seen} {expected}");
        }
        assert!((rotary.magnitude() - row["factor"].as_f64().unwrap()).abs() < 1e-9, "{rotary:?}");
        // Short texts need no larger base.
        if rotary.scaling == RotaryScaling::Dynamic {
            let plain = RotaryConfig { scaling: RotaryScaling::None, ..rotary };
            assert_eq!(rotary.frequencies(8, 64), plain.frequencies(8, 64));
        }
    }
}
