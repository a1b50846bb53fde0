//! Sound folders: all tensors find their places, and back.

mod support;

use std::{collections::BTreeMap, fs};

use regard_pretrained::{Architecture, Element, Folder, Generation, Head, How, mapping};
use safetensors::SafeTensors;
use support::{copy, edit, edit_header, folders, golden, names, stories};

#[test]
fn every_number_of_a_file_has_its_place() {
    for path in folders() {
        let folder = Folder::open(&path).unwrap();
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for parameter in folder.load() {
            let (entry, values) = (parameter.entry(), parameter.values());
            assert_eq!(values.len(), parameter.shape().iter().product::<usize>(), "{}", parameter.name());
            assert!(values.iter().all(|x| x.is_finite()), "{}", parameter.name());
            assert_eq!(parameter.bytes().len(), values.len() * parameter.element().bytes());
            *seen.entry(entry.source.clone()).or_default() += values.len();
        }
        let mut files = 0;
        for name in names(&path).into_iter().filter(|name| name.ends_with(".safetensors")) {
            let bytes = fs::read(path.join(name)).unwrap();
            for (name, view) in SafeTensors::deserialize(&bytes).unwrap().iter() {
                let expected: usize = view.shape().iter().product();
                let left_out = folder.ignored().iter().any(|ignored| ignored == name);
                assert_eq!(seen.remove(name), (!left_out).then_some(expected), "{name} of {}", path.display());
            }
            files += 1;
        }
        assert!(seen.is_empty() && files > 0, "{seen:?}");
        let mut own: Vec<_> = folder.entries().iter().map(|entry| &entry.name).collect();
        own.sort();
        own.dedup();
        assert_eq!(own.len(), folder.entries().len(), "names are given twice");
    }
}

/// The numbers of a parameter are those of another reader, put where the layout says.
#[test]
fn numbers_lie_where_the_layout_says() {
    let read = |folder: &str, tensor: &str| -> Vec<f32> {
        let bytes = fs::read(golden(folder).join("model.safetensors")).unwrap();
        let view = SafeTensors::deserialize(&bytes).unwrap();
        let view = view.tensor(tensor).unwrap();
        match view.dtype() {
            safetensors::Dtype::F32 => {
                view.data().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
            }
            safetensors::Dtype::BF16 => view
                .data()
                .chunks(2)
                .map(|b| f32::from_bits(u32::from(u16::from_le_bytes(b.try_into().unwrap())) << 16))
                .collect(),
            other => panic!("{other:?}"),
        }
    };
    let ours = |folder: &str, name: &str| Folder::open(golden(folder)).unwrap().parameter(name).unwrap().values();

    let (up, theirs) = (ours("llama-tied", "layers.1.ff.w_1"), read("llama-tied", "model.layers.1.mlp.up_proj.weight"));
    for input in 0..32 {
        for output in 0..48 {
            assert_eq!(up[input * 48 + output], theirs[output * 32 + input]);
        }
    }
    let fused = read("gpt2", "transformer.h.1.attn.c_attn.weight");
    for (part, letter) in ["q", "k", "v"].iter().enumerate() {
        let own = ours("gpt2", &format!("layers.1.attention.w_{letter}"));
        for input in 0..32 {
            assert_eq!(own[input * 32..][..32], fused[input * 96 + part * 32..][..32], "{letter}");
        }
        let (own, fused) =
            (ours("gpt2", &format!("layers.1.attention.b_{letter}")), read("gpt2", "transformer.h.1.attn.c_attn.bias"));
        assert_eq!(own, fused[part * 32..][..32]);
    }
    let (patch, theirs) = (ours("vit", "w_patch"), read("vit", "vit.embeddings.patch_embeddings.projection.weight"));
    for output in 0..32 {
        for pixel in 0..48 {
            assert_eq!(patch[pixel * 32 + output], theirs[output * 48 + pixel]);
        }
    }
    assert_eq!(ours("vit", "class_token"), read("vit", "vit.embeddings.cls_token"));
    let theirs = read("albert", "albert.encoder.albert_layer_groups.0.albert_layers.0.full_layer_layer_norm.weight");
    assert_eq!(ours("albert", "layers.0.norm_2.weight"), theirs);
    assert_eq!(
        ours("bert-masked", "layers.0.norm_1.bias"),
        read("bert-masked", "bert.encoder.layer.0.attention.output.LayerNorm.bias")
    );
}

#[test]
fn what_is_saved_unchanged_is_equal_byte_for_byte() {
    for path in folders() {
        let out = tempfile::tempdir().unwrap();
        let target = out.path().join("new/model");
        Folder::open(&path).unwrap().save(&target, |_| None).unwrap();
        let weights = |name: &String| name.contains("safetensors") || name == "config.json" || name == "tokenizer.json";
        for name in names(&path).iter().filter(|name| weights(name)) {
            assert_eq!(fs::read(path.join(name)).unwrap(), fs::read(target.join(name)).unwrap(), "{name}");
        }
        assert_eq!(names(&out.path().join("new")), ["model"], "nothing is left beside it");
        // All numbers given anew, rounded to what they were.
        let again = out.path().join("again");
        let folder = Folder::open(&path).unwrap();
        folder.save(&again, |entry| folder.parameter(&entry.name).map(|parameter| parameter.values())).unwrap();
        for name in names(&path).iter().filter(|name| weights(name)) {
            assert_eq!(fs::read(path.join(name)).unwrap(), fs::read(again.join(name)).unwrap(), "{name}");
        }
    }
}

#[test]
fn changed_numbers_come_back_alone() {
    for (model, name) in [
        ("llama-grouped", "layers.2.attention.w_k"),
        ("gpt2", "layers.0.attention.b_k"),
        ("gpt2", "token_embedding"),
        ("bert-masked", "b_head"),
        ("vit", "position_embedding"),
        ("albert", "w_embedding"),
    ] {
        let folder = Folder::open(golden(model)).unwrap();
        let out = tempfile::tempdir().unwrap();
        let changed = |entry: &regard_pretrained::Entry| {
            let count: usize = entry.shape.iter().product();
            (entry.name == name).then(|| (0..count).map(|i| (i % 128) as f32 - 64.0).collect())
        };
        folder.save(out.path(), changed).unwrap();
        let back = Folder::open(out.path()).unwrap();
        for (old, new) in folder.load().zip(back.load()) {
            let expected = changed(old.entry()).unwrap_or_else(|| old.values());
            assert_eq!(new.values(), expected, "{}", old.name());
            assert_eq!(new.element(), old.element());
        }
    }
}

#[test]
fn saving_refuses_what_would_be_lost() {
    let folder = Folder::open(golden("llama-grouped")).unwrap();
    let out = tempfile::tempdir().unwrap();
    fs::write(out.path().join("mine"), "text").unwrap();
    let error = folder.save(out.path(), |_| None).unwrap_err().to_string();
    assert!(error.contains("not an empty folder"), "{error}");
    let target = out.path().join("model");
    let error =
        folder.save(&target, |entry| (entry.name == "norm_f.weight").then(|| vec![1.0])).unwrap_err().to_string();
    assert!(error.starts_with("1 values for 'norm_f.weight'; expected 32"), "{error}");
    let error =
        folder.save(&target, |entry| (entry.name == "norm_f.weight").then(|| vec![1e6; 32])).unwrap_err().to_string();
    assert!(error.starts_with("values of tensor 'model.norm.weight' are beyond F16; expected smaller ones"), "{error}");
    assert_eq!(names(out.path()), ["mine"]);
}

#[test]
fn tied_tables_are_taken_once_or_twice() {
    let copy = copy(&golden("llama-tied"));
    let path = copy.path().join("model.safetensors");
    let folder = Folder::open(copy.path()).unwrap();
    assert!(folder.parameter("head").is_none() && folder.architecture().tied());
    let table = folder.parameter("token_embedding").unwrap();
    assert_eq!(table.entry().copies, ["lm_head.weight"]);
    let expected = table.values();
    drop(folder);
    // Only under the name of the head.
    edit_header(&path, |header| {
        let header = header.as_object_mut().unwrap();
        let table = header.remove("model.embed_tokens.weight").unwrap();
        header.insert("lm_head.weight".into(), table);
    });
    let folder = Folder::open(copy.path()).unwrap();
    assert_eq!(folder.parameter("token_embedding").unwrap().values(), expected);
    drop(folder);
    // Both, behind the numbers that are there.
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len() - 8 - u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes.extend(expected.iter().flat_map(|x| x.to_le_bytes()));
    fs::write(&path, &bytes).unwrap();
    edit_header(&path, |header| {
        let mut table = header["lm_head.weight"].clone();
        table["data_offsets"] = serde_json::json!([end, end + 4 * expected.len()]);
        header["model.embed_tokens.weight"] = table;
    });
    let folder = Folder::open(copy.path()).unwrap();
    assert_eq!(folder.parameter("token_embedding").unwrap().values(), expected);
    // A change goes to both.
    let out = tempfile::tempdir().unwrap();
    let ones = vec![1.0; expected.len()];
    folder.save(out.path(), |entry| (entry.name == "token_embedding").then(|| ones.clone())).unwrap();
    assert_eq!(Folder::open(out.path()).unwrap().parameter("token_embedding").unwrap().values(), ones);
    drop(folder);
    // Different ones.
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = Folder::open(copy.path()).unwrap_err().to_string();
    assert!(error.contains("tensor 'lm_head.weight' differs from 'model.embed_tokens.weight'"), "{error}");
}

#[test]
fn older_names_and_missing_prefixes_are_read() {
    let copy = copy(&golden("bert-masked"));
    let path = copy.path().join("model.safetensors");
    edit_header(&path, |header| {
        let tensors = std::mem::take(header.as_object_mut().unwrap());
        let renamed = |name: String| {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        };
        *header.as_object_mut().unwrap() = tensors.into_iter().map(|(name, info)| (renamed(name), info)).collect();
    });
    let values = |folder: &Folder| folder.load().map(|p| (p.name().to_string(), p.values())).collect::<Vec<_>>();
    let expected = values(&Folder::open(golden("bert-masked")).unwrap());
    assert_eq!(values(&Folder::open(copy.path()).unwrap()), expected);
    edit_header(&path, |header| {
        let tensors = std::mem::take(header.as_object_mut().unwrap());
        let renamed = |name: String| name.strip_prefix("bert.").map_or(name.clone(), str::to_string);
        *header.as_object_mut().unwrap() = tensors.into_iter().map(|(name, info)| (renamed(name), info)).collect();
    });
    assert_eq!(values(&Folder::open(copy.path()).unwrap()), expected);
}

#[test]
fn what_has_no_use_is_left_out_only_where_that_is_known_or_allowed() {
    let folder = Folder::open(golden("dinov2")).unwrap();
    assert_eq!(folder.ignored(), ["embeddings.mask_token"]);
    let copy = copy(&golden("bert-sentences"));
    // A sentence encoder without its pooler has one parameter less.
    assert!(Folder::open(copy.path()).unwrap().parameter("pooler.w").is_some());
    edit_header(&copy.path().join("model.safetensors"), |header| {
        let header = header.as_object_mut().unwrap();
        for part in ["weight", "bias"] {
            let tensor = header.remove(&format!("pooler.dense.{part}")).unwrap();
            header.insert(format!("decoder.bn.{part}"), tensor);
        }
    });
    let error = Folder::open(copy.path()).unwrap_err().to_string();
    assert!(
        error.contains("'decoder.bn.weight' of shape [32, 32] has no place") && error.contains("'decoder.bn.bias'"),
        "{error}"
    );
    for allowed in [&["decoder.*"][..], &["decoder.bn.weight", "decoder.bn.bias"]] {
        let folder = Folder::open_allowing(copy.path(), allowed).unwrap();
        assert_eq!(folder.ignored(), ["decoder.bn.bias", "decoder.bn.weight"]);
        assert!(!folder.architecture().pooler && folder.parameter("pooler.w").is_none());
    }
}

#[test]
fn names_without_a_file_are_those_of_save_pretrained() {
    for path in folders() {
        let folder = Folder::open(&path).unwrap();
        let made = mapping(folder.architecture(), |_| false);
        let sources =
            |entries: &[regard_pretrained::Entry]| entries.iter().map(|e| e.source.clone()).collect::<Vec<_>>();
        assert_eq!(sources(&made), sources(folder.entries()), "{}", path.display());
    }
}

#[test]
fn architectures_and_entries_survive_json() {
    for path in folders() {
        let folder = Folder::open(&path).unwrap();
        let text = serde_json::to_string(folder.architecture()).unwrap();
        assert_eq!(&serde_json::from_str::<Architecture>(&text).unwrap(), folder.architecture());
        for entry in folder.entries() {
            let text = serde_json::to_string(entry).unwrap();
            assert_eq!(&serde_json::from_str::<regard_pretrained::Entry>(&text).unwrap(), entry);
        }
    }
}

#[test]
fn files_of_halves_and_of_several_parts_are_read() {
    let folder = Folder::open(golden("llama-grouped")).unwrap();
    let shards = names(folder.path()).iter().filter(|name| name.ends_with(".safetensors")).count();
    assert_eq!(shards, 3);
    assert!(folder.load().all(|parameter| parameter.element() == Element::F16));
    assert!(Folder::open(golden("gpt2")).unwrap().load().all(|parameter| parameter.element() == Element::Bf16));
    let architecture = folder.architecture();
    assert_eq!((architecture.query_width(), architecture.key_width()), (48, 24));
    assert_eq!(architecture.head, Head::Language { tied: false, bias: false });
    assert_eq!(folder.parameter("layers.0.attention.w_k").unwrap().shape(), [32, 24]);
    assert_eq!(folder.parameter("layers.0.attention.w_o").unwrap().shape(), [48, 32]);
    assert_eq!(folder.parameter("layers.0.attention.w_o").unwrap().entry().how, How::Transposed);
    assert_eq!(folder.parameter("head").unwrap().shape(), [32, 272]);
}

#[test]
fn continuations_are_set_by_either_file() {
    let copy = copy(&golden("llama-grouped"));
    let generation = Folder::open(copy.path()).unwrap().generation().unwrap();
    assert_eq!((generation.bos, &generation.eos[..], generation.sample), (Some(1), &[2][..], None));
    for (said, sample) in [
        (serde_json::json!({"do_sample": false}), Some(false)),
        (serde_json::json!({"do_sample": true, "temperature": 0.0}), Some(false)),
    ] {
        edit(copy.path(), "generation_config.json", |value| *value = said);
        assert_eq!(Folder::open(copy.path()).unwrap().generation().unwrap().sample, sample);
    }
    edit(copy.path(), "generation_config.json", |value| {
        *value = serde_json::json!({"eos_token_id": [2, 7], "do_sample": true, "temperature": 0.2, "top_p": 0.9, "top_k": 0, "min_p": 0.05, "max_new_tokens": 40});
    });
    let generation = Folder::open(copy.path()).unwrap().generation().unwrap();
    let expected = Generation {
        bos: Some(1),
        eos: vec![2, 7],
        padding: None,
        sample: Some(true),
        temperature: 0.2,
        top_k: None,
        top_p: Some(0.9),
        min_p: Some(0.05),
        repetition_penalty: 1.0,
        new_tokens: Some(40),
        length: None,
    };
    assert_eq!(generation, expected);
    for (key, value) in
        [("eos_token_id", serde_json::json!([2, "x"])), ("top_p", 1.5.into()), ("temperature", (-1).into())]
    {
        edit(copy.path(), "generation_config.json", |file| file[key] = value);
        let error = Folder::open(copy.path()).unwrap().generation().unwrap_err().to_string();
        assert!(error.contains(&format!("generation_config.json: {key} is ")), "{error}");
        edit(copy.path(), "generation_config.json", |file| file[key] = serde_json::Value::Null);
    }
    fs::remove_file(copy.path().join("generation_config.json")).unwrap();
    assert_eq!(Folder::open(stories()).unwrap().generation().unwrap().eos, [2]);
    assert_eq!(Folder::open(copy.path()).unwrap().generation().unwrap().eos, [2]);
}

#[test]
fn folders_are_written_in_another_type() {
    for (model, element) in [
        ("llama-grouped", Element::F32),
        ("gpt2", Element::F32),
        ("dinov2", Element::Bf16),
        ("bert-masked", Element::F16),
        ("llama-tied", Element::F32),
    ] {
        let folder = Folder::open(golden(model)).unwrap();
        let out = tempfile::tempdir().unwrap();
        let last = |entry: &regard_pretrained::Entry| {
            (entry.name == "layers.1.norm_2.weight").then(|| (0..32).map(|i| 1.0 + i as f32 / 4096.0).collect())
        };
        folder.save_as(out.path(), element, last).unwrap();
        let back = Folder::open(out.path()).unwrap();
        assert_eq!(back.ignored(), folder.ignored());
        for (old, new) in folder.load().zip(back.load()) {
            assert_eq!(new.element(), element);
            let expected = last(old.entry()).unwrap_or_else(|| old.values());
            let rounding = match element {
                Element::F32 => 0.0,
                Element::F16 => 1.0 / 2048.0,
                Element::Bf16 => 1.0 / 256.0,
            };
            for (new, old) in new.values().iter().zip(&expected) {
                assert!((new - old).abs() <= rounding * old.abs() + 1e-4 * rounding, "{model}: {new} {old}");
            }
        }
        let dtype = back.config()["dtype"].as_str().unwrap();
        assert_eq!(dtype, ["float32", "float16", "bfloat16"][element as usize]);
        // What was only written in another type is the same in the first one.
        let again = tempfile::tempdir().unwrap();
        back.save_as(again.path(), folder.load().next().unwrap().element(), |entry| {
            folder.parameter(&entry.name).map(|parameter| parameter.values())
        })
        .unwrap();
        for (old, new) in folder.load().zip(Folder::open(again.path()).unwrap().load()) {
            assert_eq!(old.bytes(), new.bytes());
        }
        if model == "llama-tied" {
            assert_eq!(
                fs::read(out.path().join("config.json")).unwrap(),
                fs::read(golden(model).join("config.json")).unwrap()
            );
        }
    }
    let total = |path: &std::path::Path| -> serde_json::Value {
        let index = fs::read(path.join("model.safetensors.index.json")).unwrap();
        serde_json::from_slice::<serde_json::Value>(&index).unwrap()["metadata"]["total_size"].clone()
    };
    let out = tempfile::tempdir().unwrap();
    Folder::open(golden("llama-grouped")).unwrap().save_as(out.path(), Element::F32, |_| None).unwrap();
    assert_eq!(total(out.path()).as_u64(), total(&golden("llama-grouped")).as_u64().map(|bytes| 2 * bytes));
}

#[test]
fn what_older_files_hold_besides_is_left_out() {
    for (model, extra) in [
        ("bert-masked", &["bert.embeddings.position_ids", "bert.pooler.dense.weight", "cls.seq_relationship.bias"][..]),
        ("bert-sentences", &["embeddings.position_ids"]),
        ("roberta", &["roberta.embeddings.position_ids", "roberta.pooler.dense.bias"]),
        ("albert", &["albert.embeddings.position_ids", "albert.pooler.weight", "sop_classifier.classifier.weight"]),
        ("gpt2", &["transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"]),
        ("llama-tied", &["model.layers.0.self_attn.rotary_emb.inv_freq"]),
        ("vit", &["vit.embeddings.mask_token"]),
    ] {
        let copy = copy(&golden(model));
        edit_header(&copy.path().join("model.safetensors"), |header| {
            for name in extra {
                header[*name] = serde_json::json!({"dtype": "I64", "shape": [0], "data_offsets": [0, 0]});
            }
        });
        let folder = Folder::open(copy.path()).unwrap();
        assert_eq!(folder.ignored(), extra, "{model}");
        let out = tempfile::tempdir().unwrap();
        folder.save_as(out.path(), Element::F32, |_| None).unwrap();
        assert_eq!(Folder::open(out.path()).unwrap().ignored(), extra, "{model}");
    }
    // Not where the model has a use for it.
    let copy = copy(&golden("llama-tied"));
    edit_header(&copy.path().join("model.safetensors"), |header| {
        header["model.layers.0.attn.bias"] = serde_json::json!({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]});
    });
    assert!(Folder::open(copy.path()).is_err());
}

#[test]
fn heads_have_the_names_of_their_classes() {
    for (model, class, expected) in [
        ("roberta", "RobertaForSequenceClassification", &["classifier.dense.weight", "classifier.out_proj.weight"][..]),
        ("roberta", "RobertaForTokenClassification", &["classifier.weight"]),
        ("roberta", "RobertaModel", &["pooler.dense.weight"]),
        ("bert-masked", "BertForSequenceClassification", &["bert.pooler.dense.weight", "classifier.weight"]),
        ("bert-masked", "BertForTokenClassification", &["classifier.weight"]),
        ("albert", "AlbertForSequenceClassification", &["albert.pooler.weight", "classifier.weight"]),
        ("gpt2", "GPT2ForSequenceClassification", &["score.weight"]),
        ("gpt2", "GPT2Model", &[]),
        ("llama-grouped", "LlamaForSequenceClassification", &["score.weight"]),
        ("llama-grouped", "LlamaModel", &[]),
        ("vit", "ViTModel", &["pooler.dense.weight"]),
        ("dinov2", "Dinov2Backbone", &[]),
    ] {
        let mut config = Folder::open(golden(model)).unwrap().config().clone();
        config["architectures"] = serde_json::json!([class]);
        let entries = mapping(&Architecture::from_config(&config).unwrap(), |_| false);
        let of_head = |name: &str| name == "head" || name == "pooler.w";
        let sources: Vec<_> = entries.iter().filter(|e| of_head(&e.name)).map(|e| e.source.as_str()).collect();
        assert_eq!(sources, expected, "{class}");
        assert!(
            entries.iter().any(|e| e.name == "head" && e.shape.len() == 2)
                || !sources.iter().any(|s| s.contains("score"))
        );
    }
}

#[test]
fn folders_and_tokenizers_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Folder>();
    shared::<regard_pretrained::Tokenizer>();
}
