//! `regard predict` on a run: rows in, labels and figures out.

use std::fs::{self, File};

use tempfile::TempDir;

use crate::program::{Ended, argument, regard, run};

const USAGE: i32 = 2;
const DATA: i32 = 3;

/// Rows of two classes that one word tells.
fn rows(count: usize) -> String {
    (0..count).map(|i| format!("{},\"It is {}, {i}\"\n", i % 2, ["dull", "fine"][i % 2])).collect()
}

#[test]
fn labels_of_texts_are_predicted_with_probabilities_and_figures() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| argument(folder.path().join(name));
    fs::write(folder.path().join("train.csv"), rows(80)).unwrap();
    fs::write(folder.path().join("test.csv"), rows(20)).unwrap();
    let out = path("run");
    let sets = [
        format!("task.text.train={}", path("train.csv")),
        format!("task.text.test={}", path("test.csv")),
        "task.text.tokens=words".into(),
        "task.text.max_length=8".into(),
        "model.width=16".into(),
        "train.steps=40".into(),
        "train.batch=16".into(),
        "train.schedule.warmup=0".into(),
        "train.optimizer.learning_rate=1e-2".into(),
    ];
    let mut train =
        regard(["train", "--preset", "lra-text", "--mechanism", "softmax", "--quiet", "--json", "--out", &out]);
    let trained = Ended::of(train.args(sets.iter().flat_map(|set| ["--set", set]))).json();
    assert_eq!(trained["test"]["accuracy"], 1.0, "{trained}");

    let predicted = run(["predict", &out, "--input", &path("test.csv")]).success();
    let lines: Vec<&str> = predicted.lines().collect();
    assert_eq!((lines[0], lines.len()), ("label\t0\t1\tgiven", 21 + 6));
    for (i, line) in lines[1..21].iter().enumerate() {
        let columns: Vec<&str> = line.split('\t').collect();
        let label = (i % 2).to_string();
        let [zero, one] = [1, 2].map(|at| columns[at].parse::<f64>().unwrap());
        assert!(columns[0] == label && columns[3] == label && (zero + one - 1.0).abs() < 1e-5, "{line}");
    }
    assert!(predicted.contains("# accuracy    100.00 %\n") && predicted.contains("# rows        20\n"), "{predicted}");
    let json = run(["predict", &out, "--input", &path("test.csv"), "--json"]).json();
    assert_eq!((&json["figures"]["accuracy"], &json["predictions"][1]["label"]), (&1.0.into(), &"1".into()), "{json}");
    let own = run(["predict", &out, "--split", "test"]).success();
    assert!(own.contains("# accuracy    100.00 %\n"), "{own}");

    // Standard input, one text a line, of which one is too long.
    fs::write(folder.path().join("lines"), "it is fine\nso dull , it is all too dull and dull\n").unwrap();
    let mut command = regard(["predict", &out]);
    let ended = Ended::of(command.stdin(File::open(folder.path().join("lines")).unwrap()));
    assert!(ended.stderr.contains("1 texts are longer than the model takes; 2 tokens"), "{ended:?}");
    let text = ended.success();
    assert!(text.starts_with("label\t0\t1\n1\t") && text.contains("\n0\t") && !text.contains('#'), "{text}");

    // A text with a tab in it would lose its beginning.
    fs::write(folder.path().join("uneven.tsv"), "fine\nso\tdull\n").unwrap();
    run(["predict", &out, "--input", &path("uneven.tsv")])
        .failure(DATA, &["uneven.tsv:2: 2 tab-separated columns, expected 1 as in the first row"]);
    fs::write(folder.path().join("bad.csv"), "1,\"open\n").unwrap();
    run(["predict", &out, "--input", &path("bad.csv")])
        .failure(DATA, &["bad.csv:1: a quote is opened and never closed"]);
    fs::write(folder.path().join("bad.csv"), "1,fine\n7,fine\n").unwrap();
    run(["predict", &out, "--input", &path("bad.csv")]).failure(DATA, &["bad.csv:2: label `7`"]);
    assert!(run(["predict", &out, "--input", &path("bad.csv"), "--unlabelled"]).success().lines().count() == 3);
    run(["predict", &out, "--input", &path("none")]).failure(DATA, &["none", "check the path"]);
    run(["predict", &out, "--top", "2"]).failure(USAGE, &["--top is for a model folder"]);
    run(["predict", &out, "--split", "test", "--unlabelled"]).usage_failure(&["--unlabelled"]);
    run(["predict", &path("lines")]).failure(DATA, &["lines", "'regard train --out' wrote"]);
}

#[test]
fn expressions_are_predicted_and_other_tasks_by_their_own_data() {
    let folder = TempDir::new().unwrap();
    let train = |preset: &str, sets: &[&str]| {
        let out = argument(folder.path().join(preset));
        let mut command = regard(["train", "--preset", preset, "--mechanism", "softmax", "--quiet", "--cache", "none"]);
        command.args([
            "--out",
            &out,
            "--set",
            "train.steps=2",
            "--set",
            "train.batch=4",
            "--set",
            "train.schedule.warmup=0",
        ]);
        Ended::of(command.args(sets.iter().flat_map(|set| ["--set", set]))).success();
        out
    };
    let listops = train("smoke", &[]);
    let file = folder.path().join("rows");
    fs::write(&file, "[MAX 2 9 ]\n[MIN 3 [SM 1 2 ] ]\n").unwrap();
    let text = run(["predict", &listops, "--input", &argument(&file)]).success();
    assert!(text.starts_with("label\t0\t1\t2\t") && text.lines().count() == 3, "{text}");
    fs::write(&file, "9\t[MAX 2 9 ]\n3\t[MIN 3 [SM 1 2 ] ]\n").unwrap();
    let json = run(["predict", &listops, "--input", &argument(&file), "--json"]).json();
    assert_eq!((&json["figures"]["rows"], &json["predictions"][0]["given"]), (&2.into(), &"9".into()), "{json}");
    for (rows, problem) in
        [("[MAX 2", "rows:1: token"), ("1\t2\n3\n", "rows:2: some rows have a value"), ("", "has no lines")]
    {
        fs::write(&file, rows).unwrap();
        run(["predict", &listops, "--input", &argument(&file)]).failure(DATA, &[problem]);
    }
    let sizes = ["task.pathfinder.train=8", "task.pathfinder.valid=2", "task.pathfinder.test=5", "model.width=16"];
    let pathfinder = train("lra-pathfinder", &sizes);
    run(["predict", &pathfinder]).failure(USAGE, &["pathfinder", "--split"]);
    let text = run(["predict", &pathfinder, "--split", "test"]).success();
    assert!(text.starts_with("label\t0\t1\tgiven\n") && text.contains("# rows        5\n"), "{text}");
}
