//! `regard inspect`: what it says of two small trained models, its files and its refusals.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Ended, assert_self_contained, names, regard, run, text};

const USAGE: i32 = 2;
const DATA: i32 = 3;

fn train(folder: &Path, mechanism: &str) {
    train_with(folder, mechanism, &[]);
}

fn train_with(folder: &Path, mechanism: &str, further: &[&str]) {
    let mut command = regard(["train", "--quiet", "--preset", "quick", "--mechanism", mechanism, "--cache", "none"]);
    let small = [
        "model.width=16",
        "model.feed_forward=16",
        "task.listops.max_length=40",
        "task.listops.train=64",
        "task.listops.valid=16",
        "task.listops.test=16",
        "train.steps=2",
        "train.evaluate_every=2",
        "train.checkpoint_every=2",
        "train.schedule.warmup=1",
    ];
    for setting in small.iter().chain(further) {
        command.args(["--set", setting]);
    }
    Ended::of(command.arg("--out").arg(folder)).success();
}

#[test]
fn softmax_and_a_mixture_are_looked_into() {
    let folder = TempDir::new().unwrap();
    for (mechanism, panels) in [("softmax", 2), ("smgk", 4)] {
        let path = folder.path().join(mechanism);
        train(&path, mechanism);
        let out = folder.path().join(format!("{mechanism}-out"));
        let mut command = regard(["inspect", "--quiet", "--cache", "none", "--what", "all", "--sequences", "3"]);
        let stdout = Ended::of(command.arg(&path).arg("--out").arg(&out)).success();
        for word in ["Entropy", "effective rank", "Redundancy", "likelihood", "learned", "layer 2", "report:"] {
            assert!(stdout.contains(word), "{word} in {stdout}");
        }
        assert_eq!(names(&out), ["plots", "report.html", "results.csv", "results.json", "results.md"]);
        let plots = names(&out.join("plots"));
        let keys = (1..=panels).map(|n| format!("keys-layer-2-{n}.png"));
        let fixed = ["attention-layer-1.svg", "attention-layer-1-2.png", "entropy-layer-2.svg", "rank.svg"];
        for plot in fixed.into_iter().map(str::to_owned).chain(keys) {
            assert!(plots.contains(&plot), "{plot} in {plots:?}");
        }
        assert!(!plots.contains(&format!("keys-layer-2-{}.png", panels + 1)), "{plots:?}");
        assert_self_contained(&text(out.join("report.html")));
        let json: Value = serde_json::from_str(&text(out.join("results.json"))).unwrap();
        let layers = json["survey"]["attentions"].as_array().unwrap();
        assert_eq!(layers.len(), 2);
        let layer = &layers[0];
        assert_eq!(layer["ranks"].as_array().unwrap().len(), 2 * 3, "{layer}");
        let entropy = layer["entropy"][1]["normalised"]["mean"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&entropy), "{entropy}");
        let shifts = layer["learned"][0]["shifts"].as_array().unwrap().len();
        assert_eq!(shifts, if mechanism == "smgk" { 2 } else { 0 });
    }
    let path = folder.path().join("softmax");
    let few = Ended::of(regard(["inspect", "--quiet", "--cache", "none", "--json", "--layers", "2"]).arg(&path)).json();
    assert_eq!(few["parts"], serde_json::json!(["entropy", "redundancy", "likelihood", "learned"]));
    assert_eq!(few["survey"]["attentions"].as_array().unwrap().len(), 1);

    let refused = |arguments: &[&str], parts: &[&str]| {
        let mut command = regard(["inspect", "--quiet", "--cache", "none"]);
        Ended::of(command.arg(&path).args(arguments)).failure(USAGE, parts);
    };
    refused(&["--layers", "3"], &["layer 3", "expected 1 to 2"]);
    refused(&["--heads", "0"], &["--heads has 0", "at least 1"]);
    refused(&["--what", "colour"], &["--what", "'colour'", "entropy, rank"]);
    refused(&["--what", "maps"], &["maps", "--out"]);
    refused(&["--sequences", "0"], &["--sequences is 0"]);
    refused(&["--experts"], &["without a mixture of heads"]);
    let composed = folder.path().join("composed");
    train_with(&composed, "fastformer", &["fastformer.interaction=concatenation"]);
    let mut command = regard(["inspect", "--quiet", "--cache", "none"]);
    let parts = ["fastformer.interaction is 'concatenation'", "expected 'product' here", "weights to look at"];
    Ended::of(command.arg(&composed)).failure(USAGE, &parts);
    run(["inspect", "/nowhere"]).failure(DATA, &["/nowhere", "no run"]);
}
