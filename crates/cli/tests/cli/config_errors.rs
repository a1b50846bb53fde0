//! Layers of configuration: which one wins, what is read back, and what is said about mistakes.

use std::{fs, path::PathBuf};

use tempfile::TempDir;
use toml::Table;

use crate::program::{Ended, argument, names, regard, run, text};

const USAGE: i32 = 2;
const DATA: i32 = 3;
const BUDGET: i32 = 5;

/// A file of configuration in a directory of its own.
fn file(content: &str) -> (TempDir, String) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("run.toml");
    fs::write(&path, content).unwrap();
    (folder, argument(path))
}

/// Output of `regard config` as a table.
#[track_caller]
fn config(arguments: &[&str], environment: &[(&str, &str)]) -> Table {
    let mut command = regard(["config"]);
    command.args(arguments).envs(environment.iter().copied());
    Ended::of(&mut command).success().parse().expect("TOML")
}

/// `train` with these arguments must fail before it leaves anything in its directory.
#[track_caller]
fn train_fails(arguments: &[&str], code: i32, parts: &[&str]) {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("run");
    let mut command = regard(["train", "--preset", "smoke", "--cache", "none", "--quiet", "--out"]);
    Ended::of(command.arg(&out).args(arguments)).failure(code, parts);
    assert!(names(folder.path()).is_empty(), "left behind");
}

#[test]
fn variables_of_options_are_no_keys_and_empty_ones_none() {
    for name in ["REGARD_DATA", "REGARD_MODELS"] {
        config(&[], &[(name, "somewhere")]);
    }
    config(&[], &["REGARD_PRESET", "REGARD_CONFIG", "REGARD_THREADS", "REGARD_DEVICE"].map(|name| (name, "")));
}

#[test]
fn an_empty_path_is_told() {
    for command in ["train", "compare"] {
        run([command, "--preset", "smoke", "--out", ""]).failure(USAGE, &["--out is empty, expected a path"]);
        run([command, "--preset", "smoke", "--cache", ""]).failure(USAGE, &["--cache is empty, expected a path"]);
    }
    run(["train", "--preset", "mind"]).failure(USAGE, &["task.news.train", "is not set", "behaviors.tsv"]);
    run(["compare", "--mechanism", "mgk"]).failure(USAGE, &["--mechanism", "compare.mechanisms=softmax,mgk"]);
}

#[test]
fn unknown_keys_are_named_with_their_place_and_a_near_key() {
    let (_folder, path) = file("heads = 2\n\n[model]\n# wider\nwidht = 32\n");
    run(["config", "--config", &path]).failure(USAGE, &[&format!("{path}:5: "), "'model.widht'", "'model.width'?"]);
    let (_folder, path) = file("[train.optimizer]\nlearning_rates = 0.1\n");
    run(["train", "--config", &path]).failure(USAGE, &[&format!("{path}:2: "), "'train.optimizer.learning_rate'?"]);
    let (_folder, path) = file("[modle]\nwidth = 32\n");
    run(["config", "--config", &path]).failure(USAGE, &[&format!("{path}:1: "), "'modle'", "'model'?"]);
    run(["config", "--set", "train.stesp=3"]).failure(USAGE, &["--set: ", "'train.stesp'", "'train.steps'?"]);
    let mut command = regard(["config"]);
    Ended::of(command.env("REGARD_MODEL__WIDHT", "3")).failure(USAGE, &["REGARD_MODEL__WIDHT", "'model.width'?"]);
    run(["config", "--preset", "qiuck"]).failure(USAGE, &["preset is 'qiuck'", "did you mean 'quick'?", "lra-text"]);
    run(["config", "--mechanism", "fastfromer"]).failure(USAGE, &["'fastfromer'", "did you mean 'fastformer'?"]);
    run(["config", "--task", "list-ops"]).failure(USAGE, &["--task is 'list-ops'", "did you mean 'listops'?"]);
}

#[test]
fn values_of_the_wrong_kind_are_named_with_their_place() {
    for (content, line, key) in [
        ("\n\nheads = \"many\"\n", 3, "heads"),
        ("heads = 2.5\n", 1, "heads"),
        ("[model]\nwidth = -64\n", 2, "model.width"),
        ("[model]\nnorm = \"middle\"\n", 2, "model.norm"),
        ("[model]\nwidth = [64]\n", 2, "model.width"),
        ("causal = 1\n", 1, "causal"),
        ("[task.listops]\ntrain = 10\nmax_length = -5\n", 3, "task.listops.max_length"),
        ("[train]\nsteps = 18446744073709551616\n", 2, "train.steps"),
        ("[compare]\nseeds = [1, \"two\"]\n", 2, "compare.seeds"),
        ("seed = -1\n", 1, "seed"),
        ("[mixture]\nvariances = \"paper-2\"\n", 2, "mixture.variances"),
    ] {
        let (_folder, path) = file(content);
        run(["config", "--config", &path]).failure(USAGE, &[&format!("{path}:{line}: "), key]);
    }
    let (_folder, path) = file("model = 3\n");
    run(["config", "--config", &path]).failure(USAGE, &[&format!("{path}:1: "), "model is a single value"]);
    let (_folder, path) = file("heads = 2\nwidth = = 3\n");
    run(["config", "--config", &path]).failure(USAGE, &[&format!("{path}:2: "), "expected TOML"]);
    let (_folder, path) = file("heads = 2\nheads = 4\n");
    run(["config", "--config", &path]).failure(USAGE, &[&format!("{path}:2: ")]);
}

#[test]
fn files_that_cannot_be_read() {
    let folder = TempDir::new().unwrap();
    let absent = argument(folder.path().join("absent.toml"));
    run(["config", "--config", &absent]).failure(DATA, &["cannot read", &absent]);
    run(["config", "--config", &argument(folder.path())]).failure(DATA, &["cannot read"]);
    fs::write(folder.path().join("latin1.toml"), b"# caf\xe9\n").unwrap();
    let latin1 = run(["config", "--config", &argument(folder.path().join("latin1.toml"))]);
    latin1.failure(DATA, &["latin1.toml:1: is not UTF-8 from byte 5 (0xe9) on", "iconv"]);
}

#[test]
fn sizes_that_cannot_be() {
    train_fails(&["--set", "heads=3"], USAGE, &["model.width is 16", "multiple of heads (3)"]);
    train_fails(&["--set", "heads=0"], USAGE, &["heads is 0", "at least 1"]);
    train_fails(&["--set", "key_value_heads=0"], USAGE, &["key_value_heads is 0"]);
    train_fails(&["--set", "model.width=0"], USAGE, &["model.width is 0"]);
    train_fails(&["--set", "model.layers=0"], USAGE, &["model.layers is 0"]);
    train_fails(&["--set", "model.dropout=1"], USAGE, &["model.dropout is 1"]);
    train_fails(&["--mechanism", "mgk", "--set", "keys.components=0"], USAGE, &["keys.components is 0", "at least 1"]);
    train_fails(&["--set", "task.listops.max_length=-40"], USAGE, &["task.listops.max_length", "-40"]);
    train_fails(&["--set", "task.listops.max_length=0"], USAGE, &["task.listops.min_length: is 5 and max_length is 0"]);
    train_fails(&["--set", "task.listops.train=0"], USAGE, &["task.listops.train: is 0"]);
    train_fails(&["--set", "train.steps=0"], USAGE, &["train.steps is 0"]);
    train_fails(&["--set", "train.batch=0"], USAGE, &["train.batch is 0"]);
    train_fails(&["--set", "train.schedule.warmup=21"], USAGE, &["train.schedule.warmup is 21", "20"]);
    train_fails(&["--mechanism", "linear", "--set", "window=3"], USAGE, &["window is set with linear"]);
    train_fails(&["--mechanism", "mgk", "--set", "position=alibi"], USAGE, &["position is 'alibi' with mgk"]);
    train_fails(
        &["--set", "mixture.variances=[1.0]", "--mechanism", "mgk"],
        USAGE,
        &["mixture.variances", "list of 1"],
    );
    train_fails(&["--threads", "5000"], USAGE, &["--threads is 5000"]);
    let mut command = regard(["list"]);
    Ended::of(command.env("REGARD_THREADS", "several")).usage_failure(&["several"]);
}

#[test]
fn interactions_of_fastformer_that_are_for_comparison_are_refused_where_attention_is_causal() {
    let sum = ["--mechanism", "fastformer", "--set", "fastformer.interaction=sum"];
    let said = ["fastformer.interaction is 'sum' with causal attention", "expected 'product'"];
    for further in [["--set", "causal=true"], ["--task", "char-lm"]] {
        train_fails(&[&further, &sum[..]].concat(), USAGE, &said);
    }
    run([&["cost", "--preset", "char-lm"], &sum[..]].concat()).failure(USAGE, &said);
    let unknown = ["--mechanism", "fastformer", "--set", "fastformer.interaction=mean"];
    run([&["config"], &unknown[..]].concat()).failure(USAGE, &["fastformer.interaction", "`mean`", "`concatenation`"]);
}

#[test]
fn sizes_beyond_all_range_or_this_machine() {
    let most = "9223372036854775807";
    for key in ["model.width", "model.layers", "model.feed_forward", "train.batch", "train.accumulate", "heads"] {
        let name = key.split('.').next_back().unwrap();
        train_fails(&["--set", &format!("{key}={most}")], USAGE, &[name, most]);
    }
    train_fails(&["--set", &format!("task.listops.max_length={most}")], USAGE, &["task.listops.max_length: is", most]);
    let components = format!("keys.components={most}");
    train_fails(&["--mechanism", "smgk", "--set", &components], USAGE, &["keys.components: is", most]);
    if cfg!(target_os = "linux") {
        let wide = ["--set", "model.width=1048576", "--set", "heads=16"];
        train_fails(&wide, BUDGET, &["parameters need", "GiB", "lower model.width"]);
        train_fails(&["--set", "task.listops.train=1000000000000"], BUDGET, &["trees", "GiB", "task.listops.train"]);
        let long = [
            "--task",
            "copy",
            "--set",
            "task.copy.length=1048576",
            "--set",
            "position=none",
            "--set",
            "train.batch=1024",
        ];
        train_fails(&long, BUDGET, &["updates on 1024 sequences", "GiB", "lower train.batch"]);
        let many = [
            "--set",
            "train.accumulate=1048576",
            "--set",
            "train.batch=1048576",
            "--set",
            "task.listops.train=1000000",
        ];
        train_fails(&many, BUDGET, &["updates on 1000000 sequences of at least 6 tokens", "train.accumulate"]);
        let entry = "compare.mechanisms=[\"softmax\", \"mgk:model.width=1048576,heads=16\"]";
        run(["compare", "--preset", "smoke", "--quiet", "--set", entry]).failure(BUDGET, &["parameters need"]);
    }
}

#[test]
fn data_that_are_missing_or_corrupt() {
    let folder = TempDir::new().unwrap();
    let absent = argument(folder.path().join("absent.tsv"));
    let present = argument(folder.path().join("present.tsv"));
    fs::write(&present, "0\ta text\n1\tanother\n").unwrap();
    let train = format!("task.text.train={present}");
    let test = format!("task.text.test={absent}");
    train_fails(&["--task", "text"], USAGE, &["task.text.train: is not set", "--set task.text.train=FILE"]);
    train_fails(&["--task", "text", "--set", &train], USAGE, &["task.text.test: is not set"]);
    train_fails(&["--task", "text", "--set", &train, "--set", &test], DATA, &["cannot read", &absent]);
    let path = format!("task.char_lm.path={absent}");
    train_fails(&["--task", "char-lm", "--set", "causal=true", "--set", &path], DATA, &["cannot read", &absent]);
    let path = format!("task.char_lm.path={}", argument(folder.path()));
    train_fails(&["--task", "char-lm", "--set", "causal=true", "--set", &path], DATA, &["is a directory"]);
    // Damage shows only while the file is read, when the directory is there already: the sentence is what counts.
    fs::write(&present, "0\ta text\nseven\tanother\n").unwrap();
    let test = format!("task.text.test={present}");
    let out = argument(folder.path().join("run"));
    let arguments = ["train", "--preset", "smoke", "--quiet", "--out", &out, "--task", "text"];
    let mut command = regard(arguments);
    Ended::of(command.args(["--set", &train, "--set", &test])).failure(DATA, &[&format!("{present}:2: "), "seven"]);
}

#[test]
fn a_flag_beats_set_beats_the_environment_beats_the_file_beats_the_preset() {
    let (_folder, path) = file("preset = \"smoke\"\nseed = 10\nheads = 4\n[model]\nwidth = 32\n");
    let at = |table: &Table, section: &str, key: &str| table[section][key].as_integer().unwrap();
    let seed = |table: &Table| table["seed"].as_integer().unwrap();
    let preset = config(&["--preset", "smoke"], &[]);
    assert_eq!((seed(&preset), at(&preset, "model", "width"), at(&preset, "train", "steps")), (1, 16, 20));
    let from_file = config(&["--config", &path], &[]);
    assert_eq!((seed(&from_file), at(&from_file, "model", "width"), at(&from_file, "train", "steps")), (10, 32, 20));
    let environment = [("REGARD_SEED", "20"), ("REGARD_MODEL__WIDTH", "48"), ("REGARD_MECHANISM", "linear")];
    let from_environment = config(&["--config", &path], &environment);
    assert_eq!((seed(&from_environment), at(&from_environment, "model", "width")), (20, 48));
    assert_eq!(from_environment["mechanism"].as_str(), Some("linear"));
    let set = ["--config", &path, "--set", "seed=30", "--set", "mechanism=mlk", "--set", "heads=1", "--set", "heads=8"];
    let from_set = config(&set, &environment);
    assert_eq!((seed(&from_set), at(&from_set, "model", "width")), (30, 48));
    assert_eq!((from_set["mechanism"].as_str(), from_set["heads"].as_integer()), (Some("mlk"), Some(8)));
    let flags = [&set[..], &["--seed", "40", "--mechanism", "smgk", "--task", "char-lm"]].concat();
    let from_flags = config(&flags, &environment);
    assert_eq!((seed(&from_flags), at(&from_flags, "model", "width")), (40, 48));
    assert_eq!(
        (from_flags["mechanism"].as_str(), from_flags["keys"]["design"].as_str()),
        (Some("mgk"), Some("shifted"))
    );
    assert_eq!(from_flags["task"]["name"].as_str(), Some("char-lm"));
}

#[test]
fn variables_stand_for_flags_too() {
    let (_folder, path) = file("heads = 8\n");
    let mut command = regard(["config"]);
    command.env("REGARD_PRESET", "char-lm").env("REGARD_CONFIG", &path).env("REGARD_CACHE", "none");
    // Read while the binary was built; meaningless, but not a mistake, while it runs.
    command.env("REGARD_COMMIT", "abc");
    let table: Table = Ended::of(&mut command).success().parse().unwrap();
    assert_eq!((table["heads"].as_integer(), table["model"]["width"].as_integer()), (Some(8), Some(128)));
    let table = config(&["--preset", "smoke"], &[("REGARD_PRESET", "char-lm")]);
    assert_eq!(table["model"]["width"].as_integer(), Some(16));
}

#[test]
fn what_config_prints_reads_back_as_the_same() {
    for arguments in [
        &["--preset", "quick"][..],
        &["--preset", "lra-listops", "--mechanism", "smlk", "--seed", "9223372036854775807"],
        &["--preset", "lra-text", "--set", "task.text.train=a b.tsv", "--set", "task.text.label_column=-2"],
        &["--preset", "char-lm", "--set", "window=7", "--set", "key_value_heads=2", "--set", "position=rotary"],
        &["--mechanism", "fastformer", "--set", "fastformer.interaction=sum"],
        &["--mechanism", "mgk", "--set", "mixture.variances=[1.5, 3.0]", "--set", "model.head_width=12"],
        &["--set", "compare.mechanisms=softmax,mgk", "--set", "compare.seeds=3,1", "--set", "task.seed=5"],
        &["--set", "compare.mechanisms=[\"mgk:heads=1,keys.components=3\"]", "--set", "train.clip=0"],
    ] {
        let first = run(["config"].iter().chain(arguments)).success();
        let (_folder, path) = file(&first);
        assert_eq!(run(["config", "--config", &path]).success(), first, "{arguments:?}");
        let json = run(["config", "--json"].iter().chain(arguments)).json();
        let table: Table = first.parse().unwrap();
        assert_eq!(serde_json::to_value(&table).unwrap(), json, "{arguments:?}");
    }
}

#[test]
fn the_directory_of_a_run_must_be_one() {
    let folder = TempDir::new().unwrap();
    let taken = folder.path().join("file");
    fs::write(&taken, "in the way").unwrap();
    for command in ["train", "compare"] {
        for out in [taken.clone(), taken.join("run"), PathBuf::from("/proc/regard/run")] {
            if out.starts_with("/proc") && !cfg!(target_os = "linux") {
                continue;
            }
            let out = argument(out);
            let ended = run([command, "--preset", "smoke", "--cache", "none", "--quiet", "--out", &out]);
            ended.failure(DATA, &["cannot", &out]);
        }
    }
    assert_eq!(text(&taken), "in the way");
    assert_eq!(names(folder.path()), ["file"]);
}
