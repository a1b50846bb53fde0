//! `regard probe`: its theory, its files, a trained model, refusals.

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Ended, argument, assert_self_contained, names, regard, text};

const USAGE: i32 = 2;
const DATA: i32 = 3;
const BUDGET: i32 = 5;

const SMALL: [&str; 12] =
    ["probe", "--quiet", "--width", "32", "--heads", "2", "--length", "64", "--layers", "2", "--decoders", "4"];

fn curve<'a>(setting: &'a Value, layer: u64, quantity: &str, statistic: &str) -> &'a Value {
    let curves = setting["curves"].as_array().unwrap();
    let wanted =
        |curve: &&Value| curve["layer"] == layer && curve["quantity"] == quantity && curve["statistic"] == statistic;
    curves.iter().find(wanted).unwrap_or_else(|| panic!("{layer} {quantity} {statistic} in {setting}"))
}

#[test]
fn causal_attention_shows_positions_and_both_ways_does_not() {
    let mut command = regard(SMALL);
    command.args(["--json", "--deviation", "0.02", "--bidirectional", "--uniform", "--updates", "0"]);
    let json = Ended::of(&mut command).json();
    let settings = json["settings"].as_array().unwrap();
    let labels: Vec<&str> = settings.iter().map(|setting| setting["label"].as_str().unwrap()).collect();
    assert_eq!(labels, ["softmax", "both ways", "queries 0"]);
    let slope = |setting: &Value| setting["slopes"][0]["o_m"]["mean"].as_f64().unwrap();
    assert!((slope(&settings[0]) + 1.0).abs() < 0.1, "{}", slope(&settings[0]));
    assert!(slope(&settings[1]).abs() < 0.01, "{}", slope(&settings[1]));
    let values = curve(&settings[0], 1, "attention", "variance")["values"].as_array().unwrap();
    let (first, last) = (values[0].as_f64().unwrap(), values.last().unwrap().as_f64().unwrap());
    assert!(first > 30.0 * last, "{first} {last}");
    let table = &json["tables"][0]["rows"];
    let logits = table.as_array().unwrap().iter().find(|row| row["variance of"] == "q.k / sqrt(D)").unwrap();
    let ratio = logits["corrected"].as_f64().unwrap() / logits["printed"].as_f64().unwrap();
    assert!((ratio - 2.0).abs() < 1e-9, "the printed constant lacks a factor of the heads: {logits}");
}

#[test]
fn results_are_written_and_do_not_depend_on_threads() {
    let folder = TempDir::new().unwrap();
    let small = || {
        let mut command = regard(SMALL);
        command.args([
            "--deviation",
            "0.1",
            "--mechanism",
            "softmax",
            "--mechanism",
            "linear",
            "--channel-sequences",
            "8",
        ]);
        command.args(["--updates", "20", "--train-sequences", "8", "--held-sequences", "4", "--batch", "4"]);
        command
    };
    let run = |threads: &str, out: &str| {
        let out = folder.path().join(out);
        let stdout = Ended::of(small().args(["--threads", threads, "--out"]).arg(&out)).success();
        (stdout, out)
    };
    let (stdout, out) = run("1", "one");
    for word in ["Lemmas 1 to 4", "printed", "corrected", "slope of o_m", "Lemma 4", "always the middle", "linear"] {
        assert!(stdout.contains(word), "{word} in {stdout}");
    }
    assert_eq!(names(&out), ["plots", "report.html", "results.csv", "results.json", "results.md"]);
    assert_self_contained(&text(out.join("report.html")));
    let plots = names(&out.join("plots"));
    for plot in ["cumulative-0.svg", "lemma-3.svg", "neighbours-1.svg", "position-error.svg", "variance-1.svg"] {
        assert!(plots.iter().any(|name| name == plot), "{plot} in {plots:?}");
    }
    let (_, other) = run("2", "two");
    let settings = |out: &std::path::Path| -> Value {
        let json: Value = serde_json::from_str(&text(out.join("results.json"))).unwrap();
        json["settings"].clone()
    };
    assert_eq!(settings(&out), settings(&other));
}

/// A decoder without positions trains, with any mechanism, and shows its layers.
#[test]
fn a_trained_decoder_is_probed_layer_by_layer() {
    let folder = TempDir::new().unwrap();
    for mechanism in ["softmax", "fastformer"] {
        let out = folder.path().join(mechanism);
        let mut train = regard(["train", "--quiet", "--preset", "char-lm", "--mechanism", mechanism, "--out"]);
        train.arg(&out).args(["--set", "position=none", "--set", "task.char_lm.context=32", "--set", "train.steps=2"]);
        train.args([
            "--set",
            "train.schedule.warmup=1",
            "--set",
            "train.evaluate_batches=1",
            "--set",
            "model.width=16",
        ]);
        Ended::of(&mut train).success();
        let mut probe = regard(["probe", "--json", "--quiet", "--sequences", "16", "--updates", "10"]);
        probe.args(["--train-sequences", "8", "--held-sequences", "4"]).arg(&out);
        let json = Ended::of(&mut probe).json();
        assert_eq!(json["layers"], 4);
        assert_eq!(json["slopes"].as_array().unwrap().len(), 4);
        assert_eq!(json["accuracies"].as_array().unwrap().len(), 5);
        let values = curve(&json, 1, "attention", "variance")["values"].as_array().unwrap();
        assert!(values.iter().all(|value| value.as_f64().unwrap() > 0.0), "{values:?}");
    }
}

#[test]
fn refusals() {
    let refused = |arguments: &[&str], code: i32, words: &str| {
        let mut command = regard(["probe", "--quiet"]);
        Ended::of(command.args(arguments)).failure(code, &[words]);
    };
    refused(&["--width", "0"], USAGE, "--width is 0");
    refused(&["--width", "30", "--heads", "4"], USAGE, "a multiple of heads (4)");
    refused(&["--deviation", "0.1,-1"], USAGE, "--deviation has -1");
    refused(&["--weights", "cauchy"], USAGE, "one of normal, uniform, sign, laplace");
    refused(&["--mechanism", "softmax", "--mechanism", "softmax"], USAGE, "names 'softmax' twice");
    refused(&["--mechanism", "nothing"], USAGE, "--mechanism is 'nothing'");
    let sum = ["--mechanism", "fastformer:fastformer.interaction=sum"];
    refused(&sum, USAGE, "fastformer.interaction is 'sum' with causal attention, expected 'product'");
    refused(&["--set", "position=learned"], USAGE, "no option of a probe");
    refused(&["--layers", "2", "--classified-layers", "3"], USAGE, "--classified-layers has 3");
    for more in [
        &["--train-sequences", "100000000"][..],
        &["--hidden", "1073741824"],
        &["--batch", "1073741824"],
        &["--decoders", "1073741824", "--updates", "0"],
    ] {
        refused(more, BUDGET, "--train-sequences, --hidden or --batch");
    }
    refused(&["--reference", "--mechanism", "linear", "--layers", "1"], USAGE, "softmax in double precision");
    let folder = TempDir::new().unwrap();
    refused(&[&argument(folder.path())], DATA, "holds no run");
    let out = folder.path().join("run");
    let mut train = regard(["train", "--quiet", "--preset", "smoke", "--cache", "none", "--out"]);
    Ended::of(train.arg(&out)).success();
    refused(&["--cache", "none", &argument(&out)], USAGE, "expected a decoder");
}
