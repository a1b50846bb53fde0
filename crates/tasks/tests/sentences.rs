//! Pairs of texts and scores: every mechanism on both, what they learn, and predictions that agree with evaluations.

use std::{fs, io::empty, path::Path};

use burn::tensor::Device;
use regard_kernels::{AttentionOptions, Mechanism, support::SupportOptions};
use regard_nn::models::ModelConfig;
use regard_tasks::{
    Class,
    data::{InputOptions, Objective, Split, TaskConfig, TaskData, TaskName, TextConfig, TextFormat, TokenKind},
    run::{Predictions, Run, RunConfig, Stored, Which},
    train::{Evaluation, Model, Outcome, TrainConfig, Trainer, evaluate},
};

const WORDS: [&str; 6] = ["red", "blue", "green", "grey", "pink", "gold"];

/// Rows of a label and two texts: whether the last word of the one is the first of the other.
fn pairs(count: usize, start: usize) -> String {
    let row = |i: usize| {
        let (label, word) = (i % 2, WORDS[i / 2 % 6]);
        let other = if label == 1 { word } else { WORDS[(i / 2 + 1 + i / 12 % 5) % 6] };
        format!("{label}\tA {} {word}\t{other} it is{}\n", WORDS[i * 7 % 6], " so".repeat(i % 4))
    };
    (start..start + count).map(row).collect()
}

/// Rows of a score and a text: a half for each `yes`.
fn scores(count: usize, start: usize) -> String {
    let row = |i: usize| {
        let yes = i % 7;
        format!("{}\tSaid {} and no{}\n", yes as f32 / 2.0, "yes ".repeat(yes), " no".repeat(i * 5 % 3))
    };
    (start..start + count).map(row).collect()
}

fn files(directory: &Path, rows: fn(usize, usize) -> String) -> TextConfig {
    let [train, test] = [("train.tsv", rows(120, 0)), ("test.tsv", rows(30, 500))].map(|(name, rows)| {
        let path = directory.join(name);
        fs::write(&path, rows).unwrap();
        Some(path)
    });
    TextConfig { train, test, tokens: TokenKind::Words, max_length: 12, ..TextConfig::default() }
}

fn pair_config(directory: &Path) -> TextConfig {
    TextConfig { text_column: 1.into(), second_column: Some(2.into()), ..files(directory, pairs) }
}

fn score_config(directory: &Path) -> TextConfig {
    TextConfig { regression: true, ..files(directory, scores) }
}

fn load(text: TextConfig) -> TaskData {
    TaskConfig { name: TaskName::Text, text, ..TaskConfig::default() }.load(3, None, &|_, _| {}).unwrap()
}

fn model(token_types: usize) -> ModelConfig {
    ModelConfig { width: 16, layers: 2, feed_forward: 32, token_types, ..ModelConfig::default() }
}

fn build(mechanism: Mechanism, data: &TaskData) -> Model {
    let support = SupportOptions { radius: 2, cluster: 4, ..SupportOptions::default() };
    let attention = AttentionOptions { mechanism, heads: 2, support, ..AttentionOptions::default() };
    Model::build(&model(2), &attention, data, 5, &Device::flex().autodiff()).unwrap()
}

#[test]
fn every_mechanism_trains_on_pairs_and_on_scores() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let data = [load(pair_config(directories[0].path())), load(score_config(directories[1].path()))];
    assert_eq!((data[0].shape().objective, data[0].token_types()), (Objective::Classify { classes: 2 }, 2));
    assert_eq!((data[1].shape().objective, data[1].token_types()), (Objective::Regress, 1));
    for (data, scores) in data.iter().zip([false, true]) {
        for &mechanism in Mechanism::ALL {
            let model = build(mechanism, data);
            let before = model.to_host();
            let mut config = TrainConfig { steps: 2, batch: 3, ..TrainConfig::default() };
            config.optimizer.weight_decay = 0.0;
            let mut trainer = Trainer::new(model, data, &config, 9).unwrap();
            assert_eq!(trainer.run().unwrap(), Outcome::Finished { step: 2 });
            let test = trainer.evaluate_best(Split::Test).unwrap();
            assert!(test.loss.is_finite() && test.sequences == 30 && test.perplexity.is_none(), "{mechanism:?}");
            assert_eq!((test.accuracy.is_some(), test.values.is_some()), (!scores, scores), "{mechanism:?}");
            let after = trainer.model().to_host();
            let types = &before["token_type_embedding"];
            assert_ne!(after["token_type_embedding"].data[..16], types.data[..16], "{mechanism:?}");
            // The second type occurs in pairs alone.
            assert_eq!(after["token_type_embedding"].data[16..] == types.data[16..], scores, "{mechanism:?}");
        }
    }
    let one = Model::build(&model(1), &AttentionOptions::default(), &data[0], 5, &Device::flex()).unwrap_err();
    assert!(
        one.to_string().contains("model.token_types is 1") && one.to_string().contains("0 for none, or 2"),
        "{one}"
    );
}

fn run(directory: &Path, text: TextConfig, steps: usize) -> Run {
    let mut config = RunConfig::default();
    config.attention.heads = 2;
    config.model = model(2);
    config.task = TaskConfig { name: TaskName::Text, text, ..TaskConfig::default() };
    config.train = TrainConfig { steps, batch: 16, evaluate_every: steps / 2, ..TrainConfig::default() };
    config.train.optimizer.learning_rate = 1e-2;
    Run::train(directory.join("run"), config).unwrap()
}

/// Predictions of the rows of a file, by the directory of the run alone.
fn predict(directory: &Path, file: &Path, options: &InputOptions) -> Predictions {
    let predictor = Stored::open(&directory.join("run")).unwrap().predictor(Which::Last, options).unwrap();
    let input = predictor.read(Some(file), empty(), options).unwrap();
    predictor.predict(&input, |_, _| true).unwrap().unwrap()
}

/// Figures of the test file are those of the evaluation of the test split.
#[track_caller]
fn assert_agree(run: &Run, predictions: &Predictions) -> Evaluation {
    let test = evaluate(&run.model, &run.data, Split::Test, 16, 0, run.step).unwrap();
    let figures = predictions.figures.unwrap();
    assert_eq!((figures.rows, figures.accuracy, figures.classes), (test.items, test.accuracy, test.classes));
    assert_eq!(figures.values.is_some(), test.values.is_some());
    if let (Some(own), Some(other)) = (figures.values, test.values) {
        assert!((own.pearson.unwrap() - other.pearson.unwrap()).abs() < 1e-12);
        assert!((own.spearman.unwrap() - other.spearman.unwrap()).abs() < 1e-12);
    }
    assert!((figures.loss - test.loss).abs() < 1e-9 * test.loss.max(1.0), "{} {}", figures.loss, test.loss);
    test
}

#[test]
fn predictions_of_pairs_agree_with_the_evaluation() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path();
    let run = run(directory, pair_config(directory), 300);
    let test = directory.join("test.tsv");
    fs::remove_file(directory.join("train.tsv")).unwrap();
    let predictions = predict(directory, &test, &InputOptions::default());
    let evaluation = assert_agree(&run, &predictions);
    assert!(evaluation.accuracy.unwrap() > 0.9, "{evaluation:?}");
    assert_eq!((predictions.classes.join(" "), predictions.len()), ("0 1".to_owned(), 30));
    for row in 0..30 {
        assert!((predictions.row(row).iter().sum::<f32>() - 1.0).abs() < 1e-6);
        assert_eq!(predictions.target(row).unwrap(), (row % 2).to_string(), "rows keep their order");
    }
    // The same rows as JSON, and without labels, as two columns.
    let json: String = pairs(30, 500)
        .lines()
        .map(|line| {
            let [label, first, second] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
            format!("{{\"label\":{label},\"text\":\"{first}\",\"two\":\"{second}\"}}\n")
        })
        .collect();
    let file = directory.join("rows.tsv");
    let bare: String = pairs(30, 500).lines().map(|line| format!("{}\n", &line[2..])).collect();
    fs::write(&file, bare).unwrap();
    let unlabelled = predict(directory, &file, &InputOptions::default());
    assert_eq!((&unlabelled.values, unlabelled.figures, unlabelled.targets.len()), (&predictions.values, None, 0));
    let aside = predict(directory, &test, &InputOptions { unlabelled: true, ..InputOptions::default() });
    assert_eq!(aside, unlabelled);
    // A column given by place has no name in JSON.
    let file = directory.join("rows.jsonl");
    fs::write(&file, json).unwrap();
    let predictor =
        Stored::open(&directory.join("run")).unwrap().predictor(Which::Last, &InputOptions::default()).unwrap();
    let error = predictor.read(Some(&file), empty(), &InputOptions::default()).unwrap_err();
    assert!(error.class == Class::Data && error.message.contains("rows.jsonl:1: "), "{}", error.message);
    // Too long, by three words.
    let long = predictor.read(
        None,
        &b"one two three four five six\tseven eight nine ten eleven\n"[..],
        &InputOptions::default(),
    );
    let long = long.unwrap();
    assert_eq!((long.part.truncated, long.part.dropped), (0, 0));
    let words = "word ".repeat(12);
    let long = predictor.read(None, format!("{words}\tone two\n").as_bytes(), &InputOptions::default()).unwrap();
    assert_eq!((long.part.truncated, long.part.dropped), (1, 3));
    let scores = InputOptions { format: Some(TextFormat::Stsb), ..InputOptions::default() };
    let error = predictor.read(None, &b"sentence1\tsentence2\tscore\na\tb\t1\n"[..], &scores).unwrap_err();
    assert!(error.class == Class::Usage && error.message.contains("the model has 2 classes"), "{}", error.message);
}

#[test]
fn scores_are_learned_and_predictions_agree_with_the_evaluation() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path();
    let run = run(directory, score_config(directory), 300);
    let predictions = predict(directory, &directory.join("test.tsv"), &InputOptions::default());
    let evaluation = assert_agree(&run, &predictions);
    let learned = evaluation.values.unwrap();
    assert!(learned.pearson.unwrap() > 0.95 && learned.spearman.unwrap() > 0.95, "{evaluation:?}");
    assert!(evaluation.loss < 0.1 && predictions.classes.is_empty() && predictions.class(0).is_none());
    assert_eq!(predictions.target(3).unwrap(), (((503 % 7) as f32) / 2.0).to_string());
    let own =
        Run::open(directory.join("run"), Which::Last).unwrap().predict(Split::Test, 16, |_, _| true).unwrap().unwrap();
    assert!((own.figures.unwrap().loss - evaluation.loss).abs() < 1e-9);
    assert_eq!(run.predict(Split::Test, 16, |_, _| false).unwrap(), None);
}

#[test]
fn predictions_of_a_task_of_glue_take_its_files_and_plain_lines() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path();
    let set = directory.join("RTE");
    fs::create_dir(&set).unwrap();
    let rows = |count, start| {
        let rows = pairs(count, start);
        let rows = rows.lines().enumerate().map(|(i, line)| {
            let (label, texts) = line.split_once('\t').unwrap();
            format!("{i}\t{texts}\t{}\n", ["not_entailment", "entailment"][label.parse::<usize>().unwrap()])
        });
        "index\tsentence1\tsentence2\tlabel\n".to_owned() + &rows.collect::<String>()
    };
    fs::write(set.join("train.tsv"), rows(120, 0)).unwrap();
    fs::write(set.join("dev.tsv"), rows(30, 500)).unwrap();
    let text = TextConfig {
        path: Some(set.clone()),
        tokens: TokenKind::Subwords,
        vocabulary: 300,
        max_length: 40,
        ..TextConfig::default()
    };
    let run = run(directory, text, 4);
    let file = directory.join("dev.tsv");
    fs::rename(set.join("dev.tsv"), &file).unwrap();
    let predictions = predict(directory, &file, &InputOptions::default());
    let evaluation = evaluate(&run.model, &run.data, Split::Test, 16, 0, run.step).unwrap();
    assert_eq!(predictions.figures.unwrap().accuracy, evaluation.accuracy);
    assert_eq!(predictions.classes, ["entailment", "not_entailment"]);
    // Its test file has no labels, and lines may be the texts alone.
    let whole = fs::read_to_string(&file).unwrap();
    let unlabelled: String = whole.lines().map(|line| line.rsplit_once('\t').unwrap().0.to_owned() + "\n").collect();
    let bare: String =
        unlabelled.lines().skip(1).map(|line| line.split_once('\t').unwrap().1.to_owned() + "\n").collect();
    for text in [unlabelled, bare] {
        fs::write(&file, text).unwrap();
        let same = predict(directory, &file, &InputOptions::default());
        assert_eq!((&same.values, same.figures), (&predictions.values, None));
    }
    // Without the folder the form of the task is not known, unless it is said.
    fs::remove_dir_all(&set).unwrap();
    let stored = Stored::open(&directory.join("run")).unwrap();
    let error = stored.predictor(Which::Last, &InputOptions::default()).unwrap_err();
    assert!(error.class == Class::Data && error.message.contains("give --format"), "{}", error.message);
    let said = InputOptions { format: Some(TextFormat::Rte), ..InputOptions::default() };
    assert_eq!(predict(directory, &file, &said).values, predictions.values);
}
