//! Every mechanism on every task, a few updates each: one that cannot be there is refused by its name.

use std::{fs, path::Path};

use burn::tensor::Device;
use regard_kernels::{AttentionOptions, Mechanism};
use regard_nn::{attention::Attentions, models::ModelConfig};
use regard_tasks::{
    data::{
        CharLmConfig, CopyConfig, GeneratedNews, ImageConfig, ListOpsConfig, LmConfig, MaskedLmConfig, NewsConfig,
        Objective, PathfinderConfig, RetrievalConfig, Split, SummaryConfig, TaskConfig, TaskName, TextConfig,
        TranslationConfig,
    },
    train::{Model, Outcome, TrainConfig, Trainer},
};

/// The smallest data of a task, in files below `folder` where it reads files.
fn small(name: TaskName, folder: &Path) -> TaskConfig {
    let file = |name: &str, content: String| {
        let path = folder.join(name);
        fs::write(&path, content).unwrap();
        Some(path)
    };
    let words = |i: usize| format!("the {} word is here and so on {}", i * 7 % 13, "more ".repeat(i % 4));
    let each = |count: usize, row: &dyn Fn(usize) -> String| (0..count).map(row).collect::<String>();
    let mut task = TaskConfig { name, ..TaskConfig::default() };
    match name {
        TaskName::Listops => {
            task.listops =
                ListOpsConfig { depth: 3, max_length: 32, min_length: 4, train: 24, valid: 4, test: 4, ..task.listops };
        }
        TaskName::Pathfinder => task.pathfinder = PathfinderConfig { train: 8, valid: 1, test: 1, ..task.pathfinder },
        TaskName::Text => {
            let rows = |count| each(count, &|i| format!("{}\t{}\n", i % 2, words(i)));
            let (train, test) = (file("train.tsv", rows(40)), file("test.tsv", rows(8)));
            task.text = TextConfig { train, test, max_length: 24, ..task.text };
        }
        TaskName::Retrieval => {
            let rows = |count| each(count, &|i| format!("{}.0\ta\tb\t{}\t{}\n", i % 2, words(i), words(i + i % 2)));
            let (train, test) = (file("train.tsv", rows(40)), file("test.tsv", rows(8)));
            task.retrieval = RetrievalConfig { train, test, max_length: 24, ..task.retrieval };
        }
        TaskName::Image => {
            // Files in the form of MNIST, of 4 x 4 pixels.
            let head = |magic: u32, sizes: &[u32]| {
                [magic].iter().chain(sizes).flat_map(|n| n.to_be_bytes()).collect::<Vec<u8>>()
            };
            for (part, count) in [("train", 24u32), ("t10k", 4)] {
                let mut pixels = head(0x803, &[count, 4, 4]);
                pixels.extend((0..16 * count).map(|i| (i * 11 % 251) as u8));
                let mut labels = head(0x801, &[count]);
                labels.extend((0..count).map(|i| (i % 10) as u8));
                fs::write(folder.join(format!("{part}-images-idx3-ubyte")), pixels).unwrap();
                fs::write(folder.join(format!("{part}-labels-idx1-ubyte")), labels).unwrap();
            }
            task.image = ImageConfig { path: Some(folder.into()), valid_fraction: 0.2, ..task.image };
        }
        TaskName::CharLm => task.char_lm = CharLmConfig { context: 16, valid_fraction: 0.0005, ..task.char_lm },
        TaskName::MaskedLm => task.masked_lm = MaskedLmConfig { context: 16, valid_fraction: 0.0005, ..task.masked_lm },
        TaskName::Copy => task.copy = CopyConfig { length: 16, symbols: 4, train: 16, valid: 2, test: 2 },
        TaskName::Translation => {
            for part in ["train", "val", "test_2016_flickr"] {
                file(&format!("{part}.en"), each(20, &|i| format!("{}\n", words(i))));
                file(&format!("{part}.de"), each(20, &|i| format!("{}\n", words(i + 1))));
            }
            task.translation =
                TranslationConfig { directory: Some(folder.into()), vocabulary: 280, ..task.translation };
        }
        TaskName::Summary => {
            for part in ["train", "valid", "test"] {
                let row = |i| format!("{{\"document\": \"{}\", \"summary\": \"word {}\"}}\n", words(i), i % 5);
                file(&format!("{part}.jsonl"), each(16, &row));
            }
            let directory = Some(folder.into());
            task.summary =
                SummaryConfig { directory, vocabulary: 280, max_document: 20, max_summary: 6, ..task.summary };
        }
        TaskName::Lm => {
            let train = file("text.txt", each(400, &|i| format!("{}\n", words(i)))).into_iter().collect();
            task.lm = LmConfig { train, context: 12, vocabulary: 280, ..task.lm };
        }
        TaskName::News => {
            let generated = GeneratedNews { topics: 3, users: 12, news: 20, impressions: 40, test_impressions: 8 };
            task.news = NewsConfig { max_length: 8, history: 6, vocabulary: 400, generated, ..task.news };
        }
    }
    task
}

#[test]
fn every_mechanism_trains_on_every_task_or_is_refused_by_name() {
    for &name in TaskName::ALL {
        let folder = tempfile::tempdir().unwrap();
        let data =
            small(name, folder.path()).load(3, None, &|_, _| {}).unwrap_or_else(|error| panic!("{name}: {error}"));
        let config = TrainConfig { steps: 2, batch: 2, evaluate_batches: 1, ..TrainConfig::default() };
        let writes = matches!(data.shape().objective, Objective::Translate | Objective::Summarize { .. });
        for &mechanism in Mechanism::ALL {
            let own = AttentionOptions { mechanism, heads: 2, ..AttentionOptions::default() };
            // Few mechanisms read a second sequence: softmax does it for all.
            let cross = AttentionOptions { heads: 2, ..AttentionOptions::default() };
            let attentions = Attentions { encoder: own.clone(), decoder: own, cross };
            let model = ModelConfig { width: 16, layers: 1, feed_forward: 16, ..ModelConfig::default() };
            let model = match Model::build(&model, attentions, &data, 5, &Device::flex().autodiff()) {
                Ok(model) => model,
                Err(error) => {
                    let error = error.to_string();
                    let decodes = !matches!(mechanism, Mechanism::Sparse | Mechanism::Scatterbrain);
                    assert!(error.contains(mechanism.name()) && writes && !decodes, "{name}, {mechanism}: {error}");
                    continue;
                }
            };
            let mut trainer = Trainer::new(model, &data, &config, 1).unwrap();
            assert_eq!(trainer.run().unwrap(), Outcome::Finished { step: 2 }, "{name}, {mechanism}");
            let test = trainer.evaluate_best(Split::Test).unwrap();
            assert!(test.loss.is_finite() && test.items > 0, "{name}, {mechanism}: {test:?}");
        }
    }
}
