//! `regard bench`: its table, files and limits.

use std::{fs, path::Path, process::Command};

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Ended, argument, assert_self_contained, names, regard, run, text};

const USAGE: i32 = 2;
const DATA: i32 = 3;
const BUDGET: i32 = 5;

/// Two short lengths.
const SHORT: [&str; 11] =
    ["bench", "--quiet", "--lengths", "32,64", "--heads", "2", "--head-width", "8", "--repeats", "2", "--causal"];

#[test]
fn the_default_mechanisms_are_measured_and_reported() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("bench");
    let mut command = regard(SHORT);
    let ended = Ended::of(command.args(["--longest-quadratic", "32", "--out"]).arg(&out));
    assert_eq!(ended.stderr, "");
    let stdout = ended.success();
    for word in [
        "batch 1, 2 heads of 8, causal",
        "softmax",
        "performer",
        "smyrf",
        "local",
        "scatterbrain-local",
        "32 rows",
        "×",
        "p10–p90",
        "over softmax",
        "ok, ",
    ] {
        assert!(stdout.contains(word), "{word} in {stdout}");
    }
    assert_eq!(names(&out), ["plots", "report.html", "results.csv", "results.json", "results.md"]);
    let plots = ["memory-both.svg", "memory-forward.svg", "time-both.svg", "time-forward.svg"];
    assert_eq!(names(&out.join("plots")), plots);
    let page = text(out.join("report.html"));
    assert_self_contained(&page);
    let json: Value = serde_json::from_str(&text(out.join("results.json"))).unwrap();
    let points: Vec<_> = json["measurements"].as_array().unwrap().iter().collect();
    let lengths = |label: &str| -> Vec<u64> {
        points.iter().filter(|m| m["label"] == label).map(|m| m["length"].as_u64().unwrap()).collect()
    };
    assert_eq!((lengths("softmax"), lengths("scatterbrain-local")), (vec![32], vec![32, 64]));
    assert_eq!(points.len(), 9);
    for point in points {
        // At least the output is there in the forward pass, and three gradients more in both.
        let tensor = 4 * 16 * point["length"].as_u64().unwrap();
        assert!(point["forward_bytes"].as_u64().unwrap() >= tensor, "{point}");
        assert!(point["both_bytes"].as_u64().unwrap() >= 4 * tensor, "{point}");
        assert!(point["both"]["median"].as_f64().unwrap() > 0.0 && point["runs"] == 2, "{point}");
        assert!(point["check"]["passed"] == true && point["warm_ups"] == 1, "{point}");
    }
    assert!(json["environment"]["processor"].is_string() && json["environment"]["threads"] == 1);
}

/// A tiny benchmark as JSON.
fn tiny(further: &[&str]) -> Value {
    let sizes = ["bench", "--quiet", "--json", "--lengths", "16", "--repeats", "2"];
    Ended::of(regard(sizes).args(further)).json()
}

/// The measurements of a result.
fn points(json: &Value) -> &Vec<Value> {
    json["measurements"].as_array().unwrap()
}

#[test]
fn a_list_of_shapes_is_a_table_by_itself() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("shapes");
    let mut command = regard(["bench", "--shapes", "--quiet", "--seconds", "0", "--out"]);
    let table = Ended::of(command.arg(&out)).success();
    for words in ["9 on 3", "keys and values read (GB/s)", "A plain read of memory"] {
        assert!(table.contains(words), "{words} in {table}");
    }
    let text = fs::read_to_string(out.join("results.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let shapes = json["shapes"].as_array().unwrap();
    assert!(shapes.len() == 15 && shapes.iter().all(|shape| shape["runs"] == 3), "{json}");
    let ended = run(["bench", "--shapes", "--lengths", "5"]);
    assert!(
        ended.code == Some(USAGE) && ended.stderr.contains("'--shapes' cannot be used with '--lengths"),
        "{ended:?}"
    );
}

#[test]
fn every_level_has_times_of_its_own() {
    let small = ["--heads", "2", "--head-width", "4", "--mechanism", "mgk"];
    let layer = tiny(&[&["--level", "layer"], &small[..]].concat());
    let point = &points(&layer)[0];
    assert!(point["level"] == "layer" && point["both"]["p90"].as_f64().unwrap() > 0.0, "{point}");
    assert!(point["both_bytes"].as_u64().unwrap() > point["forward_bytes"].as_u64().unwrap(), "{point}");

    let inference = tiny(&[&["--level", "inference"], &small[..]].concat());
    let alone = &points(&inference)[0];
    assert!(alone["level"] == "inference" && alone["forward"]["p90"].as_f64().unwrap() > 0.0, "{alone}");
    assert!(alone.get("both").is_none() && alone["check"]["passed"] == true, "{alone}");
    // What a backward pass would need is not kept.
    assert!(alone["forward_bytes"].as_u64().unwrap() < point["forward_bytes"].as_u64().unwrap(), "{alone} {point}");

    let decode = tiny(&[&["--level", "decode", "--mechanism", "linear"], &small[..]].concat());
    for point in points(&decode) {
        assert!(point["causal"] == true && point["token"]["median"].as_f64().unwrap() > 0.0, "{point}");
        assert!(point["state_bytes"].as_u64().unwrap() > 0 && point.get("forward").is_none(), "{point}");
    }

    let halves = tiny(&["--level", "decode", "--mechanism", "softmax", "--head-width", "4", "--kv-cache", "bf16"]);
    let whole = tiny(&["--level", "decode", "--mechanism", "softmax", "--head-width", "4"]);
    assert_eq!(points(&halves)[0]["state_bytes"].as_u64().map(|b| 2 * b), points(&whole)[0]["state_bytes"].as_u64());
    assert!(halves["setting"].as_str().unwrap().ends_with("keys and values in bf16"), "{halves}");

    let model = ["--set", "model.width=8", "--set", "model.layers=1", "--set", "heads=2", "--batch", "2"];
    let step = tiny(&[&["--level", "step", "--mechanism", "linear", "--vocabulary", "150000"], &model[..]].concat());
    let point = &points(&step)[0];
    assert!(point["level"] == "step" && point["step"]["median"].as_f64().unwrap() > 0.0, "{point}");
    // Parameters, gradients and two moments of the token embedding alone.
    assert!(point["head_width"] == 4 && point["step_bytes"].as_u64().unwrap() > 4 * 4 * 150_000 * 8, "{point}");
    assert!(step["setting"].as_str().unwrap().contains("language model, 1 layers 8 wide, vocabulary 150000"), "{step}");
    let preset = tiny(&["--level", "step", "--preset", "lra-text", "--mechanism", "mgk", "--batch", "1"]);
    assert!(preset["setting"].as_str().unwrap().contains("classifier, 2 layers 64 wide, vocabulary 257"), "{preset}");
}

#[test]
fn sizes_are_swept_and_threads_take_turns() {
    let folder = TempDir::new().unwrap();
    let sweep = ["--heads", "1,2", "--head-width", "4,8", "--batch", "1,3", "--threads-sweep", "1,2"];
    let out = argument(folder.path().join("sweep"));
    let json = tiny(&[&sweep[..], &["--mechanism", "softmax", "--mechanism", "linear", "--out", &out]].concat());
    assert_eq!(points(&json).len(), 32);
    let titles = json["table"]["columns"].to_string();
    for title in ["head width", "heads", "batch", "threads", "over fewest threads", "over softmax"] {
        assert!(titles.contains(title), "{title} in {titles}");
    }
    let picture = text(folder.path().join("sweep/plots/time-forward.svg"));
    assert!(picture.contains("over head width") && picture.contains("threads 2"), "{picture}");
}

#[test]
fn the_crossover_needs_exact_attention_and_takes_it() {
    let sizes = ["bench", "--quiet", "--lengths", "8,16", "--heads", "1", "--head-width", "4", "--repeats", "2"];
    let stdout = run([&sizes[..], &["--crossover", "--mechanism", "linear"]].concat()).success();
    assert!(stdout.contains("overtake exact attention") && stdout.contains("softmax"), "{stdout}");
    let row = |pass: &str| stdout.lines().any(|line| line.starts_with("linear") && line.contains(pass));
    assert!(row(" forward ") && row(" forward+backward "), "{stdout}");
    let json = Ended::of(regard(sizes).args(["--json", "--crossover", "--mechanism", "linear"])).json();
    let crossover = json["crossover"].as_array().unwrap();
    assert!(
        crossover.len() == 2 && crossover[0]["label"] == "linear" && crossover[0]["wrong"] == false,
        "{crossover:?}"
    );
    assert!(crossover[0]["crossing"]["kind"].is_string(), "{crossover:?}");
}

#[test]
fn an_earlier_result_gives_ratios_and_warnings() {
    let folder = TempDir::new().unwrap();
    let small = ["--heads", "2", "--head-width", "4", "--mechanism", "softmax"];
    let out = argument(folder.path().join("old"));
    tiny(&[&small[..], &["--out", &out]].concat());
    let old = folder.path().join("old/results.json");
    let json = tiny(&[&small[..], &["--compare", &argument(&old)]].concat());
    let row = &json["comparison"]["rows"][0];
    assert!(row["both"]["ratio"].as_f64().unwrap() > 0.0, "{row}");
    assert!(["faster", "slower", "overlap"].contains(&row["forward"]["intervals"].as_str().unwrap()), "{row}");
    assert_eq!(json["comparison"]["warnings"].as_array().unwrap().len(), 0);

    // Of another machine, and of before there was anything but times.
    let mut changed: Value = serde_json::from_str(&text(&old)).unwrap();
    changed["environment"]["processor"] = "abacus".into();
    for key in ["heads", "head_width", "batch", "threads", "causal", "check", "level", "exact", "warm_ups"] {
        changed["measurements"][0].as_object_mut().unwrap().remove(key);
    }
    fs::write(&old, changed.to_string()).unwrap();
    let arguments = ["bench", "--quiet", "--lengths", "16", "--repeats", "2", "--compare", &argument(&old)];
    let ended = Ended::of(regard(arguments).args(small));
    assert!(ended.stderr.starts_with("warning: ") && ended.stderr.contains("'abacus'"), "{}", ended.stderr);
    let stdout = ended.success();
    assert!(stdout.contains("Beside ") && stdout.contains("forward before"), "{stdout}");
}

#[test]
fn entries_have_options_of_their_own_and_names_apart() {
    let mut command = regard(SHORT);
    command.args(["--json", "--set", "features.rows=4", "--mechanism", "performer", "--mechanism"]);
    let json = Ended::of(command.args(["performer:features.rows=6", "--mechanism", "sparse:budget=1/4"])).json();
    let seen: Vec<(String, String)> = json["measurements"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|m| m["length"] == 64)
        .map(|m| (m["label"].as_str().unwrap().to_owned(), m["sizes"].as_str().unwrap().to_owned()))
        .collect();
    let sizes: Vec<_> = seen.iter().map(|(_, sizes)| sizes.as_str()).collect();
    assert_eq!(sizes, ["4 rows", "6 rows", "radius 15"]);
    assert!(seen[0].0 != seen[1].0 && seen[1].0.contains("features.rows=6") && seen[2].0 == "local", "{seen:?}");
}

#[test]
fn a_line_a_measurement_goes_to_standard_error() {
    let ended = run(["bench", "--mechanism", "linear", "--lengths", "16,8", "--heads", "1", "--head-width", "4"]);
    let lines: Vec<_> = ended.stderr.lines().collect();
    assert!(
        lines.len() == 2 && lines[0].starts_with("linear at 8 tokens: ") && lines[1].contains("at 16"),
        "{lines:?}"
    );
    ended.success();
}

#[test]
fn what_cannot_be_compared_with_is_said() {
    let folder = TempDir::new().unwrap();
    let compare = |name: &str, place: &Path| {
        let arguments = ["bench", "--quiet", "--lengths", "8", "--mechanism", "linear", "--compare", name];
        Ended::of(regard(arguments).current_dir(place).env("GIT_CEILING_DIRECTORIES", place.parent().unwrap()))
    };
    fs::write(folder.path().join("other.json"), "{\"a\": 1}").unwrap();
    compare("other.json", folder.path()).failure(DATA, &["other.json: no result of 'regard bench'"]);
    compare("none.json", folder.path()).failure(DATA, &["cannot read none.json"]);
    compare("v1", folder.path()).failure(USAGE, &["--compare v1: no such file", "in no git checkout"]);
    let git = Command::new("git").args(["init", "--quiet"]).current_dir(folder.path()).status();
    assert!(git.expect("git").success());
    compare("v1", folder.path()).failure(USAGE, &["is not of Regard"]);
    fs::create_dir_all(folder.path().join("crates/cli")).unwrap();
    fs::write(folder.path().join("crates/cli/Cargo.toml"), "").unwrap();
    compare("v1", folder.path()).failure(USAGE, &["no revision in", "git log"]);
    let ended = Ended::of(
        regard(["bench", "--quiet", "--lengths", "8", "--compare", "v1"]).current_dir(folder.path()).env("PATH", ""),
    );
    ended.failure(USAGE, &["cannot run git", "install it"]);
}

#[test]
fn what_cannot_be_is_refused() {
    let bench = |further: &[&str]| Ended::of(regard(["bench", "--quiet"]).args(further));
    bench(&["--lengths", "0"]).failure(USAGE, &["--lengths has 0"]);
    bench(&["--heads", "4,0"]).failure(USAGE, &["--heads has 0"]);
    bench(&["--threads-sweep", "1,0"]).failure(USAGE, &["--threads-sweep has 0"]);
    bench(&["--threads-sweep", "2000"]).failure(USAGE, &["--threads-sweep has 2000", "1 to 1024"]);
    bench(&["--warm-up", "0"]).failure(USAGE, &["--warm-up is 0"]);
    for flag in ["--warm-up", "--repeats"] {
        let most = "18446744073709551615";
        bench(&["--level", "decode", flag, most]).failure(USAGE, &[&format!("{flag} is {most}, expected 1 to 10000")]);
    }
    bench(&["--preset", "quick"]).failure(USAGE, &["--preset", "--level operator", "expected --level step"]);
    bench(&["--vocabulary", "9", "--level", "layer"]).failure(USAGE, &["--vocabulary", "--level layer"]);
    bench(&["--level", "step", "--head-width", "8"]).failure(USAGE, &["--head-width", "model.head_width"]);
    bench(&["--level", "step", "--heads", "4,3"]).failure(USAGE, &["softmax: model.width is 256", "heads (3)"]);
    bench(&["--level", "step", "--preset", "translation"]).failure(USAGE, &["task translation", "char-lm"]);
    bench(&["--set", "key_value_heads=2", "--heads", "4,3"]).failure(USAGE, &["key_value_heads is 2", "heads (3)"]);
    let smyrf = ["--level", "decode", "--mechanism", "sparse:support.kind=smyrf", "--lengths", "8"];
    bench(&smyrf).failure(USAGE, &["smyrf at 8 tokens", "decode state"]);
    bench(&["--repeats", "0"]).failure(USAGE, &["--repeats is 0"]);
    bench(&["--seconds=-1"]).failure(USAGE, &["--seconds is -1"]);
    bench(&["--level", "step", "--vocabulary", "2147483647"]).failure(BUDGET, &["the embedding needs", "--vocabulary"]);
    bench(&["--level", "step", "--vocabulary", "2147483648"]).usage_failure(&["--vocabulary", "2147483647"]);
    bench(&["--lengths", "99999999999"]).failure(BUDGET, &["99999999999 tokens need", "--lengths"]);
    bench(&["--mechanism", "softmaks"]).failure(USAGE, &["--mechanism is 'softmaks'", "did you mean 'softmax'"]);
    bench(&["--mechanism", "mgk", "--mechanism", "mgk"]).failure(USAGE, &["'mgk' twice"]);
    bench(&["--mechanism", "softmax:model.width=8"]).failure(USAGE, &["changes the model"]);
    bench(&["--set", "train.steps=8"]).failure(USAGE, &["train.steps", "a key of the attention"]);
    let window = ["--mechanism", "linear:window=4", "--lengths", "8"];
    bench(&window).failure(USAGE, &["window"]);
    for level in ["operator", "layer", "inference", "step", "decode"] {
        let sum = ["--level", level, "--mechanism", "fastformer:fastformer.interaction=sum", "--lengths", "8"];
        bench(&sum).failure(USAGE, &["fastformer.interaction is 'sum'", "expected 'product'"]);
    }
    let budget = ["--mechanism", "performer:budget=0.001", "--lengths", "8"];
    bench(&budget).failure(BUDGET, &["performer at 8 tokens", "budget"]);
}
