//! Model folders put to use: texts continued, scored, embedded, classified.

use std::{fs, path::Path};

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use tempfile::TempDir;

use crate::program::{Ended, argument, regard, run};

const USAGE: i32 = 2;
const DATA: i32 = 3;
const BUDGET: i32 = 5;

/// A model folder of the tests of the crate that reads them.
fn model(name: &str) -> String {
    argument(Path::new(env!("CARGO_MANIFEST_DIR")).join("../pretrained/tests").join(name))
}

fn stories() -> String {
    model("stories260k")
}

#[track_caller]
fn refused(ended: Ended, code: i32, what: &str) {
    assert!(ended.code == Some(code) && ended.stderr.contains(what) && ended.stdout.is_empty(), "{what} in {ended:#?}");
}

#[test]
fn a_folder_tells_stories() {
    let story = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park.";
    let told = run(["generate", &stories(), "--temperature", "0", "--tokens", "60"]);
    assert!(told.stderr.starts_with("prompt: 1 tokens, ") && told.stderr.contains("as many as asked for"), "{told:#?}");
    assert!(told.success().starts_with(story));
    let arguments =
        ["generate", &stories(), "--prompt", "Once upon a time", "--temperature", "0", "--stop", " She loved"];
    let told = run([&arguments[..], &["--kv-cache", "bf16", "--json"]].concat()).json();
    assert_eq!(told["text"], ", there was a little girl named Lily.");
    assert!(told["finish"] == "stop" && told["prompt_tokens"].as_u64() > Some(3), "{told}");
    assert!(told["decode_tokens_per_second"].as_f64().unwrap() > 0.0, "{told}");
    let drawn = |seed: &str| {
        let options = ["--temperature", "1.2", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.01", "--seed", seed];
        let arguments = ["generate", &stories(), "--tokens", "20", "--repetition-penalty", "1.1", "--quiet"];
        let ended = run([&arguments[..], &options].concat());
        assert_eq!(ended.stderr, "");
        ended.success()
    };
    assert_eq!(drawn("3"), drawn("3"));
    assert_ne!(drawn("3"), drawn("4"));
}

#[cfg(not(feature = "hub"))]
#[test]
fn names_of_the_hub_need_the_feature() {
    for command in ["generate", "embed"] {
        refused(
            run([command, "hf:some/model"]),
            USAGE,
            "hf:some/model: models of the hub are fetched by builds with the feature",
        );
    }
}

#[test]
fn what_generation_cannot_do_is_told() {
    let long = "a girl ".repeat(600);
    for (arguments, code, what) in [
        (vec!["--prompt", &long], USAGE, "prompt is "),
        (vec!["--prompt", "a girl", "--context", "2"], USAGE, "at most 2, which the model takes"),
        (vec!["--temperature", "-1"], USAGE, "temperature is -1"),
        (vec!["--top-p", "2"], USAGE, "top-p is 2"),
        (vec!["--prompt", "hello", "--chat"], USAGE, "no chat template"),
        (vec!["--checkpoint", "best"], USAGE, "--checkpoint is of a run"),
        (vec!["--plan", "none.toml"], DATA, "cannot read none.toml"),
    ] {
        let ended = run([vec!["generate", &stories()[..], "--quiet"], arguments].concat());
        refused(ended, code, what);
    }
    let folder = TempDir::new().unwrap();
    let plan = folder.path().join("plan.toml");
    fs::write(&plan, "layers = 4\n").unwrap();
    refused(run(["generate", &stories(), "--plan", &argument(&plan)]), USAGE, "plan.toml: ");
    fs::write(&plan, "layer = 4\n").unwrap();
    refused(run(["generate", &stories(), "--plan", &argument(&plan)]), USAGE, "unknown field");
    refused(run(["generate", &model("golden/bert-masked")]), USAGE, "expected one that predicts the next token");
    refused(run(["generate", &argument(folder.path()), "--top-k", "3"]), USAGE, "--top-k is of a model folder");
    refused(run(["generate", "no-such-folder"]), DATA, "no-such-folder");
}

#[test]
fn perplexity_is_measured_over_documents_and_windows() {
    let folder = TempDir::new().unwrap();
    let (one, two) = (folder.path().join("one.txt"), folder.path().join("two.txt"));
    let story = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park.";
    fs::write(&one, format!("{story} {story} {story}")).unwrap();
    fs::write(&two, format!("{story}<|x|>\n{story}\n<|x|>")).unwrap();
    let (one, two) = (argument(&one), argument(&two));
    let measured = run(["perplexity", &stories(), "--text", &one, "--json"]).json();
    let nats = measured["nats"].as_f64().unwrap();
    assert!(nats > 0.3 && nats < 1.5 && measured["windows"] == 1 && measured["documents"] == 1, "{measured}");
    let arguments = ["perplexity", &stories(), "--text", &one, "--context", "16", "--stride", "8"];
    let windows = run([&arguments[..], &["--json"]].concat()).json();
    assert_eq!(windows["tokens"], measured["tokens"]);
    assert!(windows["nats"].as_f64().unwrap() > nats && windows["windows"].as_u64().unwrap() > 5, "{windows}");
    let told = run(arguments).success();
    assert!(
        told.starts_with("perplexity  ") && told.contains("context     16 tokens, stride 8, beginning: "),
        "{told}"
    );
    let arguments = ["perplexity", &stories(), "--text", &two, &two, "--separator", "<|x|>", "--tokens", "9", "--json"];
    let four = run([&arguments[..], &["--bos", "document"]].concat()).json();
    assert!(four["documents"] == 4 && four["tokens"] == 36, "{four}");
    let never = run([&arguments[..], &["--bos", "never"]].concat()).json();
    assert_eq!(never["tokens"], 32);
    // A plan that leaves a layer without attention.
    let plan = folder.path().join("plan.toml");
    fs::write(&plan, "layers = 5\n[[group]]\nlayer = 2\nkey_heads = [0, 1, 2, 3]\n").unwrap();
    let planned = run(["perplexity", &stories(), "--text", &one, "--json", "--plan", &argument(&plan)]).json();
    assert!(planned["nats"].as_f64().unwrap() > nats + 0.01, "{planned} {nats}");

    let empty = argument(folder.path().join("empty.txt"));
    fs::write(&empty, "").unwrap();
    refused(run(["perplexity", &stories(), "--text", &empty, "--bos", "never"]), USAGE, "without a token to score");
    refused(run(["perplexity", &stories(), "--text", "none.txt"]), DATA, "cannot read none.txt");
    refused(run(["perplexity", "none", "--text", &one]), DATA, "cannot read none");
    refused(run(["perplexity", &stories(), "--text", &one, "--stride", "600"]), USAGE, "stride is 600");
    refused(run(["perplexity", &model("golden/bert-masked"), "--text", &one]), USAGE, "predicts hidden tokens");
}

#[test]
fn a_run_is_no_folder() {
    let folder = TempDir::new().unwrap();
    let out = super::language::trained(folder.path(), "softmax");
    let text = argument(folder.path().join("text.txt"));
    refused(run(["perplexity", &out, "--text", &text]), USAGE, "is the directory of a run");
    refused(run(["embed", &out, "--input", &text]), USAGE, "is the directory of a run");
}

#[test]
fn texts_become_vectors() {
    let folder = TempDir::new().unwrap();
    let texts = folder.path().join("texts.txt");
    fs::write(&texts, "the fox\na dog jumps\nthe fox\n").unwrap();
    let (texts, encoder) = (argument(&texts), model("golden/bert-sentences"));
    let lines = run(["embed", &encoder, "--input", &texts]).success();
    let rows: Vec<Vec<f32>> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.len() == 3 && rows[0] != rows[1]);
    assert!((rows[0].iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
    let file = folder.path().join("vectors.safetensors");
    run(["embed", &encoder, "--input", &texts, "--output", &argument(&file)]).success();
    let bytes = fs::read(&file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.tensor("embeddings").unwrap().shape(), [3, rows[0].len()]);
    let json = run(["embed", &encoder, "--input", &texts, "--json", "--pooling", "class", "--raw"]).json();
    assert!(json["texts"] == 3 && json["embeddings"].as_array().unwrap().len() == 3, "{json}");

    let pairs = folder.path().join("pairs.txt");
    fs::write(&pairs, "the fox\tthe fox\nthe fox\ta dog jumps\n").unwrap();
    let told = run(["embed", &encoder, "--input", &argument(&pairs), "--pairs"]).success();
    let cosines: Vec<f64> = told.lines().map(|line| line.parse().unwrap()).collect();
    assert!((cosines[0] - 1.0).abs() < 1e-5 && cosines[1] < 0.99999, "{told}");
    refused(run(["embed", &encoder, "--input", &texts, "--pairs"]), DATA, "line 1 of the input has 1 columns");

    // What is cut is counted.
    fs::write(&pairs, "the fox ".repeat(3000)).unwrap();
    let ended = run(["embed", &encoder, "--input", &argument(&pairs), "--json"]);
    assert!(ended.stderr.contains("note: 1 texts are longer"), "{ended:#?}");
    assert!(ended.json()["dropped_tokens"].as_u64() > Some(2000));
    fs::write(&pairs, "\n\n").unwrap();
    refused(run(["embed", &encoder, "--input", &argument(&pairs)]), DATA, "holds no text");
    refused(run(["embed", &stories(), "--input", &texts]), USAGE, "expected an encoder of texts");
    refused(
        run(["embed", &model("golden/bert-masked"), "--input", &texts, "--pooling", "pooler"]),
        USAGE,
        "pooling is",
    );
}

#[test]
fn encoders_are_scored() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        argument(path)
    };
    let encoder = model("golden/bert-sentences");
    let pairs = write(
        "sts.tsv",
        "g\tf\t2015\t1\t5\tthe fox\tthe fox\ng\tf\t2015\t2\t1\tthe fox\ta dog\ng\tf\t2015\t3\t0\tfox\tjumps over the lazy dog\n",
    );
    let score = run(["score", &encoder, &pairs, "--task", "sts", "--json"]).json();
    assert!(score["pairs"] == 3 && score["spearman"].as_f64().unwrap() > 0.4, "{score}");
    let corpus = write("corpus", ".I 1\n.T\nthe fox\n.W\nthe fox jumps\n.I 2\n.W\na lazy dog\n");
    let queries = write("queries", ".I 007\n.W\nthe fox jumps\n.I 9\n.W\na lazy dog\n");
    let relevance = write("relevance", "1 1 1\n2 2 4\n1 2 -1\n");
    let files = ["--corpus", &corpus, "--queries", &queries, "--relevance", &relevance];
    let arguments = ["score", &encoder, "--task", "retrieval"];
    let score = run([&arguments[..], &files, &["--json"]].concat()).json();
    assert!(score["ndcg_10"] == 1.0 && score["map"] == 1.0 && score["queries"] == 2, "{score}");
    assert!(run([&arguments[..], &files].concat()).success().contains("nDCG@10    1.0000"));
    refused(run([&arguments[..], &files[..4]].concat()), USAGE, "needs --relevance");
    let wrong = write("wrong", "3 1 1\n");
    refused(run([&arguments[..], &files[..4], &["--relevance", &wrong]].concat()), DATA, "query 3 and document '1'");
    refused(run(["score", &encoder, &corpus, "--task", "sts"]), DATA, "line 1 has 1 columns");
    refused(run(["score", &encoder, "--task", "sts"]), USAGE, "needs a file");

    let masked = folder.path().join("masked.safetensors");
    let bytes = |values: &[i64]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let (ids, labels) = (bytes(&[5, 6, 7, 8, 9, 0]), bytes(&[-100, 11, -100, 12, -100, -100]));
    let real = bytes(&[1, 1, 1, 1, 1, 0]);
    let tensor = |data| TensorView::new(Dtype::I64, vec![2, 3], data).unwrap();
    let tensors = [("input_ids", tensor(&ids)), ("labels", tensor(&labels)), ("attention_mask", tensor(&real))];
    fs::write(&masked, safetensors::serialize(tensors, None).unwrap()).unwrap();
    let model = model("golden/bert-masked");
    let score = run(["score", &model, &argument(&masked), "--task", "masked", "--json"]).json();
    assert!(score["hidden"] == 2 && score["nats"].as_f64().unwrap() > 0.0, "{score}");
    refused(run(["score", &encoder, &argument(&masked), "--task", "masked"]), USAGE, "one that predicts hidden tokens");
    // Padding before the tokens would cut the text.
    let left = bytes(&[1, 1, 1, 0, 1, 1]);
    let tensors = [("input_ids", tensor(&ids)), ("labels", tensor(&labels)), ("attention_mask", tensor(&left))];
    fs::write(&masked, safetensors::serialize(tensors, None).unwrap()).unwrap();
    let padded = run(["score", &model, &argument(&masked), "--task", "masked"]);
    refused(padded, DATA, "'attention_mask' of text 2 has a 1 after a 0");
    let one = write("one", "3.0\tone thing\tanother\n");
    refused(run(["score", &encoder, &one, "--task", "sts"]), DATA, "needs pairs of different scores");
    let twice = write("twice", ".I 1\n.W\na wing\n.I 1\n.W\nanother\n");
    let arguments = [&arguments[..], &["--corpus", &twice], &files[2..]].concat();
    refused(run(arguments), DATA, "line 4: the number 1 is there twice");
}

#[test]
fn classes_are_predicted() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pretrained/tests/golden/dinov2-classifier.safetensors");
    let folder = TempDir::new().unwrap();
    let bytes = fs::read(golden).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let pixels = tensors.tensor("pixel_values").unwrap();
    let plain: Vec<u8> = match pixels.dtype() {
        Dtype::F64 => pixels
            .data()
            .chunks_exact(8)
            .flat_map(|x| (f64::from_le_bytes(x.try_into().unwrap()) as f32).to_le_bytes())
            .collect(),
        _ => pixels.data().to_vec(),
    };
    let images = folder.path().join("images.safetensors");
    let view = TensorView::new(Dtype::F32, pixels.shape().to_vec(), &plain).unwrap();
    fs::write(&images, safetensors::serialize([("pixel_values", view)], None).unwrap()).unwrap();
    let arguments = ["predict", &model("golden/dinov2-classifier"), "--input", &argument(&images)];
    let json = run([&arguments[..], &["--json", "--top", "2"]].concat()).json();
    let first = &json["predictions"][0];
    assert!(
        first.as_array().unwrap().len() == 2 && first[0]["probability"].as_f64() >= first[1]["probability"].as_f64()
    );
    let told = run(arguments).success();
    assert_eq!(told.lines().count(), pixels.shape()[0], "{told}");
    assert!(told.starts_with(&format!("1\t{} ", first[0]["label"].as_str().unwrap())), "{told} {json}");
    refused(run(["predict", &model("golden/dinov2-classifier")]), USAGE, "expected --input");
    // The same numbers in another order are no such images.
    let [count, channels, size, _] = pixels.shape()[..] else { panic!("images") };
    let view = TensorView::new(Dtype::F32, vec![count, size, size, channels], &plain).unwrap();
    let last = folder.path().join("last.safetensors");
    fs::write(&last, safetensors::serialize([("pixel_values", view)], None).unwrap()).unwrap();
    let expected = format!("expected [images, {channels}, {size}, {size}]");
    refused(run(["predict", &model("golden/dinov2-classifier"), "--input", &argument(&last)]), DATA, &expected);
    // Several classes at once are no distribution over them.
    let several = folder.path().join("several");
    fs::create_dir(&several).unwrap();
    for file in fs::read_dir(model("golden/dinov2-classifier")).unwrap() {
        let file = file.unwrap().path();
        fs::copy(&file, several.join(file.file_name().unwrap())).unwrap();
    }
    let config = fs::read(several.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    config["problem_type"] = "multi_label_classification".into();
    fs::write(several.join("config.json"), config.to_string()).unwrap();
    let ended = run(["predict", &argument(&several), "--input", &argument(&images)]);
    refused(ended, USAGE, "has classes of which several may be right (problem_type)");
    refused(run(["predict", &stories()]), USAGE, "expected a classifier of texts or images");
    let mut command = regard(["predict", &model("golden/dinov2"), "--input", &argument(&images)]);
    refused(Ended::of(&mut command), USAGE, "is an encoder of images");
}

/// A folder whose weights are larger than the memory of this machine, of which the disk holds but the header.
fn too_large(folder: &Path) -> Option<String> {
    let memory = usize::try_from(regard_lab::cost::total_memory()?).unwrap();
    let from = model("golden/llama-tied");
    let read = |name: &str| fs::read(Path::new(&from).join(name)).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&read("config.json")).unwrap();
    let rows = memory / 4 / config["hidden_size"].as_u64().unwrap() as usize + 1;
    config["vocab_size"] = rows.into();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let weights = read("model.safetensors");
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, tensor) in SafeTensors::deserialize(&weights).unwrap().iter() {
        let mut shape = tensor.shape().to_vec();
        if name == "model.embed_tokens.weight" {
            shape[0] = rows;
        }
        let begin = end;
        end += 4 * shape.iter().product::<usize>();
        let tensor = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, end]});
        header.insert(name.to_string(), tensor);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let path = folder.join("model.safetensors");
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], &header].concat()).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len((8 + header.len() + end) as u64).unwrap();
    Some(argument(folder))
}

#[test]
fn a_model_larger_than_the_memory_is_refused_before_it_is_loaded() {
    let folder = TempDir::new().unwrap();
    let Some(large) = too_large(folder.path()) else { return };
    let what = "this machine has";
    refused(run(["generate", &large]), BUDGET, what);
    refused(run(["swap", &large, "--text", "none", "--memory", "1/8"]), BUDGET, "and the states of 64 tokens need");
    let out = argument(folder.path().join("out"));
    refused(run(["adapt", &large, "--text", "none", "--attention", "mgk", "--out", &out]), BUDGET, what);
    let table = ["embed", &model("golden/bert-sentences"), "--context", "1000000000000", "--stretch"];
    refused(run(table), BUDGET, what);
    let rotations = ["generate", &stories(), "--context", "1000000000000"];
    refused(run(rotations), BUDGET, "with its table of rotations need");
    let text = ["swap", &stories(), "--text", "none", "--memory", "1/8", "--length", "1000000000000"];
    refused(run(text), BUDGET, "and the states of 1000000000000 tokens need");
}
