//! Summarisation: documents and their summaries, encoded with one vocabulary.

mod config;
mod read;

use std::{path::PathBuf, sync::Arc};

pub use config::SummaryConfig;
use read::Collection;

use super::{
    Batch, Batches, DataError, Objective, Progress, SentencePairs, Shape, Split, SplitBatches, Task, TextTokenizer,
    TranslationBatches,
    file::Meter,
    tokenizer::{END, fewer},
};

/// Documents with summaries in three splits.
#[derive(Clone, Debug)]
pub struct SummaryData {
    /// Training split: one pair for each reference summary.
    pub train: SentencePairs,
    /// Validation split, for model selection: each document with its first reference.
    pub valid: SentencePairs,
    /// Test split, for reported results.
    pub test: SentencePairs,
    /// What summaries of the validation split are measured against.
    pub valid_references: References,
    /// What summaries of the test split are measured against.
    pub test_references: References,
    /// The vocabulary of documents and summaries.
    pub tokenizer: Arc<TextTokenizer>,
    /// Maximum tokens per document, including its end token.
    pub max_document: usize,
    /// Maximum tokens per summary, including its end token.
    pub max_summary: usize,
    /// Remarks for the user.
    pub notes: Vec<String>,
}

/// What summaries of a split are measured against, in the order of its pairs. Texts are as in the file, whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Reference summaries of each document, at least one.
    pub summaries: Vec<Vec<String>>,
    /// The first sentences of each document, the baseline.
    pub leads: Vec<String>,
    /// Number of those sentences.
    pub sentences: usize,
}

/// Token ids of a document as models see it: after a query, if there is one, and an end token.
pub(crate) fn with_query(tokenizer: &TextTokenizer, query: Option<&str>, document: &[i32]) -> Vec<i32> {
    let mut ids = query.map_or(Vec::new(), |query| tokenizer.encode(query));
    if query.is_some() {
        ids.push(END);
    }
    ids.extend(document);
    ids
}

impl SummaryData {
    fn measured(&self, split: Split) -> (&SentencePairs, &References) {
        match split {
            Split::Valid => (&self.valid, &self.valid_references),
            Split::Test => (&self.test, &self.test_references),
        }
    }
}

impl Task for SummaryData {
    fn shape(&self) -> Shape {
        let objective = Objective::Summarize { longest: self.max_summary };
        Shape { objective, vocabulary: self.tokenizer.vocabulary(), max_length: self.max_document }
    }

    fn batches(&self, seed: u64, rows: usize) -> Result<Batches<'_>, DataError> {
        let mut batches = TranslationBatches::new(&self.train, rows, seed)?;
        Ok(Box::new(move |index| batches.batch(index).into()))
    }

    fn split(&self, split: Split, rows: usize) -> Result<SplitBatches<'_>, DataError> {
        Ok(Box::new(self.measured(split).0.evaluation_batches(rows).map(Batch::from)))
    }

    fn setting(&self) -> String {
        format!(
            "{} training documents of at most {} tokens with summaries of at most {}, {} for the test, a vocabulary of {}",
            self.train.len(),
            self.max_document,
            self.max_summary,
            self.test.len(),
            self.tokenizer.vocabulary()
        )
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn tokenizer(&self) -> Option<&TextTokenizer> {
        Some(&self.tokenizer)
    }

    fn pairs(&self, split: Split) -> Option<&SentencePairs> {
        Some(self.measured(split).0)
    }

    fn summaries(&self, split: Split) -> Option<&References> {
        Some(self.measured(split).1)
    }
}

/// Reads the files, learns the vocabulary from the training split, and encodes.
fn load(config: &SummaryConfig, progress: Progress<'_>) -> Result<SummaryData, DataError> {
    let files = config.files()?;
    let meter = Meter::new(files.iter().map(PathBuf::as_path), progress);
    let read = |path: &PathBuf| read::read(meter.open(path)?, path);
    let [training, valid, test] = [read(&files[0])?, read(&files[1])?, read(&files[2])?];
    let tokenizer = Arc::new(TextTokenizer::train(training.texts(), config.vocabulary)?);
    let mut encoder = Encoder { tokenizer: &tokenizer, config, notes: Vec::new() };
    let train = encoder.training(&training);
    if train.is_empty() {
        let problem = format!(
            "none of its {} summaries has 1 to {} tokens; raise task.summary.max_summary or check the file",
            training.items.iter().map(|item| item.references.len()).sum::<usize>(),
            config.max_summary - 1
        );
        return Err(DataError::Content { path: files[0].clone(), problem });
    }
    let (valid, valid_references) = encoder.measured(valid, "validation");
    let (test, test_references) = encoder.measured(test, "test");
    let mut notes = encoder.notes;
    let more = "the training documents have no more pairs of tokens";
    notes.extend(fewer(tokenizer.vocabulary(), config.vocabulary, more));
    let (max_document, max_summary) = (config.max_document, config.max_summary);
    Ok(SummaryData {
        train,
        valid,
        test,
        valid_references,
        test_references,
        tokenizer,
        max_document,
        max_summary,
        notes,
    })
}

impl Collection {
    /// All of its texts.
    fn texts(&self) -> impl Iterator<Item = &str> + Send {
        let items = self.items.iter().flat_map(|item| item.query.iter().chain(&item.references));
        self.documents.iter().map(|document| document.text.as_str()).chain(items.map(String::as_str))
    }
}

/// Token ids of texts, and what had to be left out.
struct Encoder<'a> {
    tokenizer: &'a TextTokenizer,
    config: &'a SummaryConfig,
    notes: Vec<String>,
}

impl Encoder<'_> {
    /// Documents as the model sees them, one for each item.
    fn sources(&mut self, all: &Collection, name: &str) -> Vec<Vec<i32>> {
        if all.empty > 0 {
            let (empty, whole) = (all.empty, all.items.len() + all.empty);
            self.notes
                .push(format!("{empty} of {whole} {name} documents left out: no words in them or their summaries"));
        }
        let longest = self.config.max_document - 1;
        let texts: Vec<&str> = all.documents.iter().map(|document| document.text.as_str()).collect();
        let documents = self.tokenizer.encode_all(&texts);
        let (mut cut, mut most) = (0, 0);
        let mut source = |item: &read::Item| {
            let mut ids = with_query(self.tokenizer, item.query.as_deref(), &documents[item.document]);
            cut += usize::from(ids.len() > longest);
            most = most.max(ids.len());
            ids.truncate(longest);
            ids.shrink_to_fit();
            ids
        };
        let sources = all.items.iter().map(&mut source).collect();
        if cut > 0 {
            let count = all.items.len();
            self.notes
                .push(format!("{cut} of {count} {name} documents cut to {longest} tokens; the longest has {most}"));
        }
        sources
    }

    /// One pair for each summary that is short enough.
    fn training(&mut self, all: &Collection) -> SentencePairs {
        let longest = self.config.max_summary - 1;
        let (mut source, mut target, mut before) = (Vec::new(), Vec::new(), 0);
        for (ids, item) in self.sources(all, "training").into_iter().zip(&all.items) {
            before += item.references.len();
            let summaries = self.tokenizer.encode_all(&item.references).into_iter();
            for summary in summaries.filter(|summary| (1..=longest).contains(&summary.len())) {
                source.push(ids.clone());
                target.push(summary);
            }
        }
        let left = before - target.len();
        if left > 0 {
            self.notes.push(format!("{left} of {before} training summaries left out: more than {longest} tokens"));
        }
        SentencePairs::of_documents(source, target)
    }

    /// Each document with its first summary, for the loss, and all that ROUGE needs.
    fn measured(&mut self, all: Collection, name: &str) -> (SentencePairs, References) {
        let (longest, sentences) = (self.config.max_summary - 1, self.config.lead);
        let source = self.sources(&all, name);
        let firsts: Vec<&str> = all.items.iter().map(|item| item.references[0].as_str()).collect();
        let mut target = self.tokenizer.encode_all(&firsts);
        let cut = target.iter_mut().filter(|ids| ids.len() > longest).map(|ids| ids.truncate(longest)).count();
        if cut > 0 {
            let count = target.len();
            self.notes
                .push(format!("{cut} of {count} {name} summaries cut to {longest} tokens for the loss, not for ROUGE"));
        }
        let leads = all.items.iter().map(|item| all.documents[item.document].lead(sentences)).collect();
        let summaries = all.items.into_iter().map(|item| item.references).collect();
        (SentencePairs::of_documents(source, target), References { summaries, leads, sentences })
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use serde_json::json;

    use super::*;
    use crate::data::file::tests::gzip;

    const WORDS: [&str; 5] = ["alpha", "beta", "gamma", "delta", "epsilon"];

    /// `count` documents of one to nine words; a summary is the first word, or one that is long.
    fn write(path: &Path, count: usize) {
        let line = |i: usize| {
            let words: Vec<_> = (0..1 + i % 9).map(|j| WORDS[(i + j * j) % 5]).collect();
            let long = [words[0]; 6].join(" ");
            json!({ "document": format!("{}.", words.join(" ")), "summary": [words[0], long] }).to_string() + "\n"
        };
        fs::write(path, gzip((0..count).map(line).collect::<String>().as_bytes())).unwrap();
    }

    fn config(directory: &Path) -> SummaryConfig {
        for (split, count) in [("train", 90), ("dev", 9), ("test", 18)] {
            write(&directory.join(format!("{split}.jsonl.gz")), count);
        }
        let directory = Some(directory.into());
        SummaryConfig { directory, vocabulary: 300, max_document: 8, max_summary: 5, ..Default::default() }
    }

    #[test]
    fn long_documents_and_summaries_are_cut_or_left_out_and_counted() {
        let directory = tempfile::tempdir().unwrap();
        let data = load(&config(directory.path()), &|_, _| {}).unwrap();
        // Of two summaries each, the long one is not trained on.
        assert_eq!((data.train.len(), data.valid.len(), data.test.len()), (90, 9, 18));
        let longest = (0..18).map(|i| data.test.source(i).len()).max();
        assert_eq!((longest, data.test.target(3).len()), (Some(7), 1));
        // A document of w words has w + 1 tokens: those of 7 to 9 words are cut.
        let expected = [
            "30 of 90 training documents cut to 7 tokens; the longest has 10",
            "90 of 180 training summaries left out: more than 4 tokens",
            "3 of 9 validation documents cut to 7 tokens; the longest has 10",
            "6 of 18 test documents cut to 7 tokens; the longest has 10",
        ];
        assert_eq!(data.notes[..4], expected);
        assert!(data.notes[4].contains("a vocabulary of 2") && data.notes.len() == 5, "{:?}", data.notes);
        // Texts that ROUGE sees are whole.
        let References { summaries, leads, sentences } = data.summaries(Split::Test).unwrap();
        assert_eq!((&*leads[1], *sentences), ("beta gamma.", 1));
        assert_eq!(summaries[1], ["beta", "beta beta beta beta beta beta"]);
        assert_eq!(leads[17].split(' ').count(), 9);
    }

    #[test]
    fn a_query_comes_first_and_batches_are_sorted_by_documents() {
        let directory = tempfile::tempdir().unwrap();
        let turn = json!({ "speaker": "A", "content": "alpha beta gamma delta epsilon alpha beta gamma" });
        let query = json!({ "query": "gamma?", "answer": "beta" });
        let meeting = json!({ "meeting_transcripts": [turn], "general_query_list": [query] });
        let config = config(directory.path());
        fs::write(directory.path().join("mine.jsonl"), meeting.to_string()).unwrap();
        let config = SummaryConfig { test: Some("mine.jsonl".into()), ..config };
        let data = load(&config, &|_, _| {}).unwrap();
        let seen = data.test.source(0);
        let own = data.tokenizer.encode("gamma?");
        assert_eq!((&seen[..own.len()], seen[own.len()], seen.len()), (&own[..], END, 7));
        let lengths = |batch: Batch| batch.source.unwrap().real_tokens();
        let all: Vec<usize> = data.split(Split::Valid, 1).unwrap().map(lengths).collect();
        assert!(all.is_sorted() && all[0] < all[8], "{all:?}");
    }

    #[test]
    fn summaries_that_are_all_too_long_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let config = SummaryConfig { max_summary: 2, ..config(directory.path()) };
        fs::write(directory.path().join("train.jsonl.gz"), r#"{"document": "a b c", "summary": "a b c"}"#).unwrap();
        let error = load(&config, &|_, _| {}).unwrap_err().to_string();
        assert!(error.contains("none of its 1 summaries has 1 to 1 tokens; raise task.summary.max_summary"), "{error}");
        let whole = fs::read(directory.path().join("dev.jsonl.gz")).unwrap();
        fs::write(directory.path().join("train.jsonl.gz"), &whole[..whole.len() / 2]).unwrap();
        let error = load(&config, &|_, _| {}).unwrap_err().to_string();
        assert!(error.contains("train.jsonl.gz") && error.contains("truncated or damaged: fetch it again"), "{error}");
    }
}
