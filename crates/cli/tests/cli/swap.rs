//! Other attention in a trained model: measured, planned, and run by the other commands.

use std::{collections::BTreeMap, fs, path::Path};

use safetensors::{Dtype, tensor::TensorView};
use serde_json::Value;
use tempfile::TempDir;

use crate::program::{argument, run};

fn model(name: &str) -> String {
    argument(Path::new(env!("CARGO_MANIFEST_DIR")).join("../pretrained/tests").join(name))
}

fn stories() -> String {
    model("stories260k")
}

/// A file of text by the model itself, which it finds likely.
fn text(folder: &TempDir) -> String {
    let told = run(["generate", &stories(), "--tokens", "400", "--seed", "1", "--quiet"]).success();
    let path = folder.path().join("story.txt");
    fs::write(&path, told).unwrap();
    argument(path)
}

#[test]
fn a_plan_within_a_budget_is_measured_written_and_used() {
    let folder = TempDir::new().unwrap();
    let (text, out) = (text(&folder), argument(folder.path().join("out")));
    let arguments = ["swap", &stories(), "--text", &text, "--length", "96", "--sequences", "1", "--memory", "1/4"];
    let options = ["--candidates", "window,drop", "--divisors", "4,8", "--compare", "--validate", "4", "--out", &out];
    let swapped = run([&arguments[..], &options, &["--json", "--quiet"]].concat()).json();
    let rows = swapped["rows"].as_array().unwrap();
    assert_eq!((&rows[0]["name"], rows[0]["predicted"]["bytes"].as_f64()), (&"exact".into(), Some(1.0)));
    let chosen = rows.iter().find(|row| row["name"].as_str().unwrap().starts_with("* ")).expect("a choice");
    assert!(chosen["predicted"]["bytes"].as_f64().unwrap() <= 0.25, "{chosen}");
    let sample = |row: &serde_json::Value| row["sample_loss"].as_f64().unwrap();
    assert!(rows[1..].iter().all(|row| sample(row) >= sample(chosen)), "{rows:?}");
    assert_eq!(swapped["validation"].as_array().unwrap().len(), 4);
    for file in ["plan.toml", "report.html", "results.json", "results.csv", "results.md"] {
        assert!(Path::new(&out).join(file).is_file(), "{file}");
    }
    // Plans are edited by hand: what is there is replaced only if that is asked for, and then as a whole.
    let edited = Path::new(&out).join("plan-1-8.toml");
    fs::write(&edited, "mine").unwrap();
    let again =
        || run([&arguments[..], &["--candidates", "drop", "--predictor", "error", "--quiet", "--out", &out]].concat());
    again().failure(2, &["plan-1-8.toml is there, expected a directory without plans"]);
    assert_eq!(fs::read_to_string(&edited).unwrap(), "mine");
    let replaced = [&arguments[..], &options, &["--quiet", "--overwrite"]].concat();
    run(replaced).success();
    assert!(!edited.exists());
    // A plan changes what the model says, prefill and decoding alike, and takes less memory.
    let plan = argument(Path::new(&out).join("plan.toml"));
    let told = |plan: &[&str]| {
        let arguments =
            ["generate", &stories()[..], "--prompt", "Once upon a time", "--temperature", "0", "--tokens", "200"];
        run([&arguments[..], plan, &["--json"]].concat()).json()
    };
    let (exact, planned) = (told(&[]), told(&["--plan", &plan]));
    assert!(2 * planned["state_bytes"].as_u64().unwrap() < exact["state_bytes"].as_u64().unwrap(), "{planned} {exact}");
    let loss = |plan: &[&str]| {
        let arguments = ["perplexity", &stories()[..], "--text", &text, "--context", "96", "--json", "--quiet"];
        run([&arguments[..], plan].concat()).json()
    };
    assert_ne!(loss(&[])["nats"], loss(&["--plan", &plan])["nats"]);
}

#[test]
fn several_budgets_give_a_plan_each_and_a_curve() {
    let folder = TempDir::new().unwrap();
    let (text, out) = (text(&folder), argument(folder.path().join("out")));
    let arguments =
        ["swap", &stories(), "--text", &text, "--length", "96", "--sequences", "1", "--memory", "1/2, 0.125,1/4"];
    let options = ["--candidates", "window,performer", "--divisors", "2,4,8,16", "--out", &out, "--json", "--quiet"];
    let swapped = run([&arguments[..], &options].concat()).json();
    let rows = swapped["rows"].as_array().unwrap();
    let text_of = |value: &Value| value.as_str().unwrap().to_owned();
    // By budget: what the choice loses on the sample, and single candidates.
    let mut of: BTreeMap<String, (f64, Vec<f64>)> = BTreeMap::new();
    for row in &rows[1..] {
        let slot = of.entry(text_of(&row["budget"])).or_insert((f64::NAN, Vec::new()));
        let loss = row["sample_loss"].as_f64().unwrap();
        match text_of(&row["name"]).starts_with("* ") {
            true => slot.0 = loss,
            false => slot.1.push(loss),
        }
    }
    assert_eq!(of.keys().collect::<Vec<_>>(), ["0.125", "1/2", "1/4"]);
    for (budget, (choice, singles)) in &of {
        assert!(!singles.is_empty() && singles.iter().all(|single| single >= choice), "{budget}: {choice} {singles:?}");
    }
    assert!(of["0.125"].0 >= of["1/4"].0 && of["1/4"].0 >= of["1/2"].0, "{of:?}");
    let plan = |name: &str| fs::read_to_string(Path::new(&out).join(name)).unwrap();
    assert_eq!(plan("plan.toml"), plan("plan-1-2.toml"));
    let sizes: Vec<u64> = ["plan-1-2.toml", "plan-1-4.toml", "plan-0.125.toml"]
        .map(|name| {
            let plan = argument(Path::new(&out).join(name));
            let arguments =
                ["generate", &stories()[..], "--tokens", "95", "--temperature", "0", "--plan", &plan, "--json"];
            run(arguments).json()["state_bytes"].as_u64().unwrap()
        })
        .to_vec();
    assert!(sizes[0] > sizes[1] && sizes[1] > sizes[2], "{sizes:?}");
    let chart = fs::read_to_string(Path::new(&out).join("plots/budgets.svg")).unwrap();
    for name in ["choice", "window", "performer"] {
        assert!(chart.contains(name), "{name}");
    }
    // One predictor runs nothing on the sample, and single candidates have their curves all the same.
    let one =
        run([&arguments[..], &["--candidates", "window", "--predictor", "error", "--json", "--quiet"]].concat()).json();
    let names: Vec<String> = one["rows"].as_array().unwrap().iter().map(|row| text_of(&row["name"])).collect();
    assert_eq!(names.iter().filter(|name| *name == "* mix by error").count(), 3, "{names:?}");
    assert_eq!(names.iter().filter(|name| name.starts_with("window")).count(), 3, "{names:?}");
}

#[test]
fn images_stand_in_place_of_texts() {
    let folder = TempDir::new().unwrap();
    let vision = model("golden/dinov2");
    let config: Value = serde_json::from_slice(&fs::read(Path::new(&vision).join("config.json")).unwrap()).unwrap();
    let size = config["image_size"].as_u64().unwrap() as usize;
    let pixels = |images: usize| {
        let numbers = (0..images * 3 * size * size).map(|i| (i as f32 * 0.37).sin() + (i % (5 * images)) as f32 * 0.1);
        let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
        let view = TensorView::new(Dtype::F32, vec![images, 3, size, size], &bytes).unwrap();
        let path = folder.path().join(format!("{images}.safetensors"));
        fs::write(&path, safetensors::serialize([("pixel_values", view)], None).unwrap()).unwrap();
        argument(path)
    };
    let (four, three) = (pixels(4), pixels(3));
    let out = argument(folder.path().join("out"));
    let arguments = ["swap", &vision, "--memory", "1/2", "--candidates", "window", "--divisors", "2,4"];
    let with = |more: &[&str]| run([&arguments[..], more, &["--quiet"]].concat());
    let swapped = with(&["--pixels", &four, "--compare", "--out", &out, "--json"]).json();
    let rows = swapped["rows"].as_array().unwrap();
    let loss = |row: &Value| row["loss"].as_f64().unwrap();
    assert!(loss(&rows[0]).abs() < 1e-6 && rows[1..].iter().all(|row| loss(row) > 1e-6), "{rows:?}");
    assert_eq!(swapped["length"], 1 + (size / config["patch_size"].as_u64().unwrap() as usize).pow(2));
    assert!(fs::read_to_string(Path::new(&out).join("plan.toml")).unwrap().contains("longformer"));
    with(&["--pixels", &three]).failure(3, &["expected at least 4 whole images"]);
    with(&["--text", &four]).failure(2, &["expected --pixels"]);
    with(&[]).usage_failure(&["--pixels", "--text"]);
    let arguments = ["swap", &stories(), "--memory", "1/2", "--pixels", &four];
    run(arguments).failure(2, &["one of texts, expected --text"]);
}

#[test]
fn what_cannot_be_planned_is_told() {
    let folder = TempDir::new().unwrap();
    let text = text(&folder);
    let stories = stories();
    let swap = |arguments: &[&str], code: i32, what: &str| {
        let ended = run([&["swap", &stories, "--text", &text, "--quiet"], arguments].concat());
        assert!(ended.code == Some(code) && ended.stderr.contains(what), "{what} in {ended:#?}");
    };
    swap(&[], 2, "no budget is given");
    swap(&["--memory", "2"], 2, "--memory");
    swap(&["--memory", "1/4,0.25"], 2, "has 1/4 and 0.25, expected each share once");
    swap(&["--memory", "1/4", "--candidates", "windows"], 2, "did you mean 'window'?");
    swap(&["--memory", "1/4", "--predictor", "errors"], 2, "did you mean 'error'?");
    swap(&["--memory", "1/4", "--length", "400"], 3, "sequences of 400");
    swap(&["--memory", "1/64", "--length", "64", "--sequences", "1", "--divisors", "4"], 5, "no choice of candidates");
    let several = ["--memory", "1/4,1/64", "--length", "64", "--sequences", "1", "--divisors", "4"];
    swap(&several, 5, "keeps to the budget of 1/64 of the memory");
    swap(&["--memory", "1", "--candidates", "window,smyrf"], 2, "--candidates smyrf: clusters need all tokens");
    // No share fits: exact attention alone is left, and nothing to validate.
    let alone = ["--memory", "1", "--length", "64", "--sequences", "1", "--divisors", "4096", "--validate", "3"];
    swap(&alone, 0, "");
    let missing = run(["swap", "nowhere", "--text", &text, "--memory", "1/4"]);
    assert!(missing.code == Some(3) && missing.stderr.contains("nowhere"), "{missing:#?}");
}

/// A plan of one group in the first layer of the stories model.
fn plan(folder: &TempDir, attention: &str) -> String {
    let path = folder.path().join("plan.toml");
    fs::write(&path, format!("layers = 5\n[[group]]\nlayer = 1\nkey_heads = [0, 1]\n[group.attention]\n{attention}\n"))
        .unwrap();
    argument(path)
}

#[test]
fn a_plan_of_blocks_generates_and_kinds_that_need_the_whole_are_refused() {
    let folder = TempDir::new().unwrap();
    // Every second block of 64 of the 512 tokens, and the last two.
    let row = |i: usize| (0..8).map(|j| if j + 1 >= i || j % 2 == 0 { '1' } else { '0' }).collect::<String>();
    let rows: Vec<String> = (0..8).map(|i| format!("'{}'", row(i))).collect();
    let layout = format!("support.layout = [{}]\nsupport.kind = 'block'", rows.join(", "));
    let stories = stories();
    let generate = |plan: &str, more: &[&str]| {
        let arguments = ["generate", &stories, "--tokens", "200", "--temperature", "0", "--plan", plan];
        run([&arguments[..], more].concat())
    };
    for mechanism in ["sparse", "scatterbrain"] {
        let plan = plan(&folder, &format!("mechanism = '{mechanism}'\n{layout}"));
        let told = generate(&plan, &["--json"]).json();
        assert_eq!(told["tokens"].as_array().unwrap().len(), 200, "{told}");
        let small = generate(&plan, &["--json", "--kv-cache", "int8"]).json();
        assert!(small["state_bytes"].as_u64() < told["state_bytes"].as_u64(), "{small} {told}");
        generate(&plan, &["--context", "513"]).failure(2, &["support.layout is 8 x 8 blocks of 64", "at least 9 x 9"]);
    }
    for (attention, why) in [
        ("mechanism = 'sparse'\nsupport.kind = 'smyrf'", "depends on all tokens of a sequence"),
        ("mechanism = 'scatterbrain'\nsupport.kind = 'bigbird'", "drawn among those of the whole sequence"),
    ] {
        generate(&plan(&folder, attention), &[]).failure(2, &["mechanism of a plan is", "decode state", why]);
    }
    let lsh = plan(&folder, "mechanism = 'sparse'\nsupport.kind = 'lsh'");
    generate(&lsh, &[]).failure(2, &["key_value_heads", "the queries are the keys"]);
}
