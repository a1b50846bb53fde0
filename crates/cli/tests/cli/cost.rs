//! `regard cost`: what a model takes before it is run.

use std::path::Path;

use regard_kernels::Mechanism;
use tempfile::TempDir;

use crate::program::{Ended, argument, assert_self_contained, names, regard, run, text};

const USAGE: i32 = 2;

#[test]
fn parameters_are_those_of_the_trained_model() {
    let folder = TempDir::new().unwrap();
    let plain = Mechanism::ALL.iter().map(|mechanism| (mechanism.name(), "seed=0"));
    let others = [
        ("smgk", "seed=0"),
        ("fastformer", "fastformer.interaction=sum"),
        ("fastformer", "fastformer.interaction=concatenation"),
    ];
    for (n, (mechanism, option)) in plain.chain(others).enumerate() {
        let what = ["--preset", "smoke", "--mechanism", mechanism, "--set", option];
        let cost = run(["cost", "--json"].iter().chain(&what)).json();
        let out = argument(folder.path().join(n.to_string()));
        let mut command = regard(["train", "--cache", "none", "--json", "--quiet", "--out", &out]);
        let run = Ended::of(command.args(what).args(["--set", "train.steps=4"])).json();
        assert_eq!(cost["total"]["parameters"], run["parameters"], "{mechanism}, {option}");
        let parts = cost["cost"]["parts"].as_array().unwrap();
        let sum: u64 = parts.iter().map(|part| part["parameters"].as_u64().unwrap()).sum();
        assert_eq!(cost["total"]["parameters"], sum, "{mechanism}, {option}");
    }
}

#[test]
fn time_and_memory_grow_as_the_mechanism_says() {
    let total = |mechanism: &str, length: &str, key: &str| {
        let arguments = ["cost", "--preset", "quick", "--json", "--mechanism", mechanism, "--length", length];
        run(arguments).json()["total"][key].as_f64().unwrap()
    };
    let growth = |mechanism: &str, key: &str| total(mechanism, "32768", key) / total(mechanism, "16384", key);
    assert!(growth("softmax", "multiply_adds") > 3.5);
    assert!(growth("linear", "multiply_adds") < 2.1);
    // No mechanism keeps N x N numbers.
    assert!(growth("scatterbrain", "multiply_adds") < 2.1);
    for mechanism in ["softmax", "mgk", "linear", "scatterbrain", "fastformer"] {
        assert!(growth(mechanism, "activation_bytes") < 2.1, "{mechanism}");
    }
    assert!(growth("performer", "state_bytes") < 1.01 && growth("scatterbrain", "state_bytes") < 1.01);
    assert!(growth("linear", "state_bytes") < 1.01 && growth("softmax", "state_bytes") > 1.9);
}

#[test]
fn a_budget_is_shown_as_the_sizes_that_it_sets() {
    let cost = |further: &[&str]| {
        let mut command = regard(["cost", "--preset", "quick", "--length", "800", "--mechanism", "scatterbrain"]);
        Ended::of(command.args(further)).success()
    };
    let budgeted = cost(&["--set", "budget=1/8"]);
    assert!(budgeted.contains("scatterbrain-local, radius 37, 12 rows"), "{budgeted}");
    let sized = cost(&["--set", "support.radius=37", "--set", "features.rows=12"]);
    assert_eq!(budgeted, sized);
    let arguments = ["cost", "--preset", "quick", "--mechanism", "sparse", "--set", "budget=0.0001"];
    run(arguments).failure(5, &["budget is 0.0001", "the support would have 0"]);
    // Before anything is written or read.
    let folder = TempDir::new().unwrap();
    let out = argument(folder.path().join("run"));
    let arguments = ["train", "--preset", "smoke", "--quiet", "--out", &out, "--mechanism", "performer"];
    let mut command = regard(arguments);
    Ended::of(command.args(["--set", "budget=0.0001"])).failure(5, &["budget is 0.0001", "the features"]);
    assert!(names(folder.path()).is_empty());
}

#[test]
fn curves_are_drawn_into_a_directory() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("curves");
    let ended = run(["cost", "--preset", "smoke", "--curves", "--out", &argument(&out)]);
    let stdout = ended.success();
    let page = out.join("report.html");
    assert!(stdout.contains(&argument(&page)) && stdout.contains("smgk"), "{stdout}");
    let pictures = pictures(&out);
    assert!(pictures.len() >= 5, "{pictures:?}");
    assert_self_contained(&text(page));
    let json = run(["cost", "--preset", "smoke", "--curves", "--json"]).json();
    assert!(json["curves"].as_array().is_some_and(|curves| curves.len() >= 5), "{json}");
}

/// SVG files of a report.
fn pictures(out: &Path) -> Vec<String> {
    names(&out.join("plots")).into_iter().filter(|name| name.ends_with(".svg")).collect()
}

#[test]
fn sizes_that_cannot_be() {
    let cost = |further: &[&str]| {
        let mut command = regard(["cost", "--preset", "smoke"]);
        Ended::of(command.args(further))
    };
    cost(&["--length", "0"]).failure(USAGE, &["length is 0"]);
    cost(&["--batch", "0"]).failure(USAGE, &["batch is 0"]);
    cost(&["--vocabulary", "0"]).failure(USAGE, &["vocabulary is 0"]);
    cost(&["--length", "18446744073709551615"]).failure(USAGE, &["18446744073709551615", "expected"]);
    cost(&["--set", "model.width=9223372036854775806"]).failure(USAGE, &["9223372036854775806", "expected"]);
    cost(&["--set", "heads=3"]).failure(USAGE, &["multiple of heads (3)"]);
    cost(&["--length", "-3"]).failure(USAGE, &["--length is -3, expected at least 1"]);
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "in the way").unwrap();
    let ended = run(["cost", "--preset", "smoke", "--curves", "--json", "--out", &argument(file.join("report"))]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stderr.starts_with("error: cannot write") && ended.stderr.lines().count() == 1, "{ended:?}");
}
