//! A trained model adapted to other attention, from outside.

use std::{fs, path::Path};

use tempfile::TempDir;

use crate::program::{argument, run};

fn model(name: &str) -> String {
    argument(Path::new(env!("CARGO_MANIFEST_DIR")).join("../pretrained/tests").join(name))
}

fn stories() -> String {
    model("stories260k")
}

/// Texts by the model itself, which it finds likely, and a plan that takes most of what its heads see.
fn prepared(folder: &TempDir) -> [String; 2] {
    let told = run(["generate", &stories(), "--tokens", "480", "--seed", "1", "--quiet"]).success();
    let [text, plan] = ["story.txt", "plan.toml"].map(|name| folder.path().join(name));
    fs::write(&text, told).unwrap();
    let attention = "attention = { mechanism = 'sparse', support = { kind = 'longformer', globals = 1, radius = 3 } }";
    let group = |layer| format!("[[group]]\nlayer = {layer}\nkey_heads = [0, 1, 2, 3]\n{attention}\n");
    fs::write(&plan, format!("layers = 5\n{}", (1..=5).map(group).collect::<String>())).unwrap();
    [text, plan].map(argument)
}

const SHORT: [&str; 8] = ["--length", "64", "--held-out", "1", "--match-steps", "6", "--steps", "6"];

#[test]
fn a_planned_model_is_adapted_written_and_used() {
    let folder = TempDir::new().unwrap();
    let [text, plan] = prepared(&folder);
    let out = argument(folder.path().join("out"));
    let arguments = ["adapt", &stories(), "--plan", &plan, "--text", &text, "--out", &out, "--json", "--quiet"];
    let adapted = run([&arguments[..], &SHORT, &["--control"]].concat()).json();
    let loss = |name: &str| {
        let row = adapted["rows"].as_array().unwrap().iter().find(|row| row["name"] == name);
        row.unwrap_or_else(|| panic!("no row {name} in {adapted}"))["loss"].as_f64().unwrap()
    };
    assert!(loss("exact") < loss("planned") && loss("planned, adapted") < loss("planned"), "{adapted}");
    assert!(loss("exact, tuned alike") > 0.0 && adapted["losses"].as_array().unwrap().len() == 12, "{adapted}");
    for file in ["plan.toml", "model/model.safetensors", "model/tokenizer.json", "report.html", "results.json"] {
        assert!(Path::new(&out).join(file).is_file(), "{file}");
    }
    let written = argument(Path::new(&out).join("model"));
    let nats = |folder: &str, plan: &str| {
        let arguments = ["perplexity", folder, "--text", &text, "--context", "64", "--plan", plan, "--json", "--quiet"];
        run(arguments).json()["nats"].as_f64().unwrap()
    };
    assert!(nats(&written, &argument(Path::new(&out).join("plan.toml"))) < nats(&stories(), &plan));

    // The same again does not touch it, and with other options it is not gone on with.
    let again = run([&arguments[..], &SHORT, &["--control"]].concat());
    assert!(again.code == Some(2) && again.stderr.contains("is not empty"), "{again:#?}");
    let other = run([&arguments[..], &SHORT, &["--control", "--resume", "--rank", "2"]].concat());
    assert!(other.code == Some(2) && other.stderr.contains("rank is 2, but"), "{other:#?}");
    let resumed = run([&arguments[..], &SHORT, &["--control", "--resume"]].concat()).json();
    assert_eq!(resumed["rows"], adapted["rows"]);
    // Nor with other texts or another model, and never into the folder that it comes from.
    let longer = fs::read_to_string(&text).unwrap() + " and more of it";
    let before = fs::read(Path::new(&written).join("model.safetensors")).unwrap();
    let with = |from: &str, texts: &str| {
        let named = arguments.map(|word| {
            if word == stories() {
                from
            } else if word == text {
                texts
            } else {
                word
            }
        });
        run([&named[..], &SHORT, &["--control", "--resume"]].concat())
    };
    let other = argument(folder.path().join("longer.txt"));
    fs::write(&other, longer).unwrap();
    with(&stories(), &other).failure(2, &["texts is ", "resume with the same value"]);
    with(&written, &text).failure(3, &["model: is in ", "which is written to"]);
    let moved = argument(folder.path().join("moved"));
    fs::rename(&written, &moved).unwrap();
    with(&moved, &text).failure(2, &["model is ", "resume with the same value"]);
    assert_eq!(fs::read(Path::new(&moved).join("model.safetensors")).unwrap(), before);
}

#[test]
fn a_trained_model_becomes_a_mixture_that_commands_open() {
    let folder = TempDir::new().unwrap();
    let [text, _] = prepared(&folder);
    let out = argument(folder.path().join("out"));
    let arguments = ["adapt", &stories(), "--attention", "mgk", "--text", &text, "--out", &out, "--quiet"];
    let told = run([&arguments[..], &SHORT].concat()).success();
    assert!(told.contains("plan.toml") && told.contains("planned, adapted"), "{told}");
    let plan = argument(Path::new(&out).join("plan.toml"));
    let nats = |plan: &[&str]| {
        let arguments = ["perplexity", &stories()[..], "--text", &text, "--context", "64", "--json", "--quiet"];
        run([&arguments[..], plan].concat()).json()["nats"].as_f64().unwrap()
    };
    let (mixture, exact) = (nats(&["--plan", &plan]), nats(&[]));
    assert!(mixture != exact && (mixture - exact).abs() < 0.2, "{mixture} {exact}");
    let arguments = ["generate", &stories(), "--plan", &plan, "--temperature", "0", "--tokens", "8", "--quiet"];
    assert!(run(arguments).success().starts_with("Once upon a time"));
    fs::write(Path::new(&out).join("parameters.safetensors"), "no tensors").unwrap();
    let damaged = run(["perplexity", &stories(), "--text", &text, "--plan", &plan]);
    assert!(damaged.code == Some(3) && damaged.stderr.contains("not a sound safetensors file"), "{damaged:#?}");
}

#[test]
#[cfg(unix)]
fn a_signal_ends_an_adaptation_after_a_checkpoint() {
    use crate::program::{Running, regard};
    let folder = TempDir::new().unwrap();
    let [text, plan] = prepared(&folder);
    let out = argument(folder.path().join("out"));
    let arguments = ["adapt", &stories(), "--plan", &plan, "--text", &text, "--out", &out, "--quiet"];
    let many =
        ["--length", "64", "--held-out", "1", "--match-steps", "2", "--steps", "100000", "--checkpoint-every", "0"];
    let mut running = Running::start(&mut regard([&arguments[..], &many].concat()));
    let checkpoints = Path::new(&out).join("checkpoints/adapted");
    running.wait_until("the end of the first stage", || checkpoints.join("step-2").is_dir());
    running.signal("INT").failure(130, &["stopped", "--resume"]);
    let last = fs::read_to_string(checkpoints.join("last")).unwrap();
    assert!(last.trim() != "step-0" && checkpoints.join(last.trim()).join("state.json").is_file(), "{last}");
}

#[test]
fn what_cannot_be_adapted_is_told() {
    let folder = TempDir::new().unwrap();
    let [text, plan] = prepared(&folder);
    let stories = stories();
    let out = argument(folder.path().join("out"));
    let adapt = |arguments: &[&str], code: i32, what: &str| {
        let ended = run([&["adapt", "--text", &text, "--out", &out, "--quiet"], arguments].concat());
        assert!(ended.code == Some(code) && ended.stderr.contains(what), "{what} in {ended:#?}");
        assert!(!Path::new(&out).exists(), "{what}");
    };
    adapt(&[&stories], 2, "--plan");
    adapt(&[&stories, "--plan", &plan, "--attention", "mgk"], 2, "cannot be used with");
    adapt(&[&stories, "--attention", "softmax"], 2, "mgk, mlk");
    adapt(&[&stories, "--plan", "none.toml"], 3, "none.toml");
    adapt(&[&stories, "--plan", &text], 2, "story.txt");
    adapt(&[&stories, "--plan", &plan, "--distill", "2"], 2, "distill is 2");
    adapt(&[&stories, "--plan", &plan, "--distill", "2", "--train", "full"], 2, "distill is 2");
    adapt(&[&stories, "--plan", &plan, "--train", "half"], 2, "lora, full");
    adapt(&[&stories, "--plan", &plan, "--rank", "0"], 2, "--rank is 0");
    adapt(&[&stories, "--plan", &plan, "--rank", "999999999"], 2, "--rank is 999999999, expected at most 64");
    adapt(&[&stories, "--plan", &plan, "--length", "400"], 3, "sequences of 400");
    adapt(&["nowhere", "--plan", &plan], 3, "nowhere");
    adapt(&[&model("golden/bert-masked"), "--plan", &plan, "--length", "16"], 2, "number of layers of a plan is 5");
    adapt(&[&stories, "--plan", &plan, "--resume"], 3, "no adaptation to resume");
    let help = run(["adapt", "--help"]).success();
    assert!(["--match-steps", "--distill", "--control", "--resume"].iter().all(|flag| help.contains(flag)), "{help}");
}
