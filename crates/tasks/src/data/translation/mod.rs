//! Translation: sentence pairs in two languages, encoded with one vocabulary.

mod config;

use std::{ops::Range, path::PathBuf, sync::Arc};

pub use config::TranslationConfig;
use regard_nn::models::TokenBatch;

use super::{
    Batch, Batches, DataError, Objective, Progress, Shape, Split, SplitBatches, Streams, Task, TextTokenizer,
    file::Meter,
    order::EpochOrder,
    padded,
    plain_text::read_lines,
    tokenizer::{BEGIN, END, PADDING, fewer},
};

/// Number of batches whose pairs are sorted by length together. On Multi30k in batches of 64 this gives 4 % padding.
const POOL: usize = 32;

/// Pairs of sentences in three splits.
#[derive(Clone, Debug)]
pub struct TranslationData {
    /// Training split.
    pub train: SentencePairs,
    /// Validation split, for model selection.
    pub valid: SentencePairs,
    /// Test split, for reported results.
    pub test: SentencePairs,
    /// The vocabulary of both languages.
    pub tokenizer: Arc<TextTokenizer>,
    /// Maximum tokens per sentence, including its end token.
    pub max_length: usize,
    /// Remarks for the user.
    pub notes: Vec<String>,
}

/// Sentences and their translations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentencePairs {
    /// Token ids of each sentence, without begin and end.
    source: Vec<Vec<i32>>,
    /// Token ids of its translation.
    target: Vec<Vec<i32>>,
    /// Reference translations as in the file; none for training pairs.
    references: Vec<String>,
    /// Whether sources are much longer than targets, so that batches are sorted by their lengths first.
    long_sources: bool,
}

/// A batch of pairs, each side padded to its longest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TranslationBatch {
    /// Sentences with end tokens, `[rows, source_length]`.
    pub source: Vec<i32>,
    /// Real tokens of each row.
    pub source_lengths: Vec<usize>,
    /// Translations after a begin token, `[rows, target_length]`.
    pub inputs: Vec<i32>,
    /// The token after each of `inputs`, the last one an end token; negative if ignored.
    pub targets: Vec<i32>,
    /// Real tokens of each row of `inputs` and of `targets`.
    pub target_lengths: Vec<usize>,
    /// Index of each row's pair in its set.
    pub items: Vec<usize>,
    /// Tokens per row of `source`.
    pub source_length: usize,
    /// Tokens per row of `inputs`.
    pub target_length: usize,
}

impl TranslationBatch {
    /// The source sentences.
    pub(crate) fn sources(&self) -> TokenBatch {
        padded(self.source.clone(), &self.source_lengths, self.source_length)
    }
}

impl From<TranslationBatch> for Batch {
    fn from(batch: TranslationBatch) -> Self {
        let source = Some(batch.sources());
        let tokens = padded(batch.inputs, &batch.target_lengths, batch.target_length);
        Self { tokens, targets: batch.targets.into(), source, readers: None }
    }
}

impl SentencePairs {
    /// Documents and their summaries, without begin and end.
    pub(in crate::data) fn of_documents(source: Vec<Vec<i32>>, target: Vec<Vec<i32>>) -> Self {
        Self { source, target, long_sources: true, ..Self::default() }
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.source.len()
    }

    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.source.is_empty()
    }

    /// Reference translations, one per pair; empty for training pairs.
    pub fn references(&self) -> &[String] {
        &self.references
    }

    /// Token ids of sentence `i`, without its end.
    pub fn source(&self, i: usize) -> &[i32] {
        &self.source[i]
    }

    /// Token ids of translation `i`, without begin and end.
    pub fn target(&self, i: usize) -> &[i32] {
        &self.target[i]
    }

    /// Tokens of the target and of the source.
    fn length(&self, i: usize) -> (usize, usize) {
        (self.target[i].len(), self.source[i].len())
    }

    /// Sort key of batches. The sides of a translation have similar lengths, so one order suits both.
    fn key(&self, i: usize) -> (usize, usize) {
        let (target, source) = self.length(i);
        if self.long_sources { (source, target) } else { (target, source) }
    }

    /// Pairs in batches of `rows`, every pair once, from the shortest to the longest.
    pub fn evaluation_batches(&self, rows: usize) -> impl ExactSizeIterator<Item = TranslationBatch> + '_ {
        let mut items: Vec<usize> = (0..self.len()).collect();
        items.sort_by_key(|&i| self.key(i));
        let batches: Vec<Vec<usize>> = items.chunks(rows.max(1)).map(<[usize]>::to_vec).collect();
        batches.into_iter().map(|items| self.gather(&items))
    }

    fn gather(&self, items: &[usize]) -> TranslationBatch {
        // An end token on one side, a begin token on the other.
        let lengths = |side: &[Vec<i32>]| items.iter().map(|&i| side[i].len() + 1).collect::<Vec<_>>();
        let (source_lengths, target_lengths) = (lengths(&self.source), lengths(&self.target));
        let longest = |lengths: &[usize]| lengths.iter().copied().max().unwrap_or(1);
        let (source_length, target_length) = (longest(&source_lengths), longest(&target_lengths));
        let mut batch = TranslationBatch {
            source: vec![PADDING; items.len() * source_length],
            inputs: vec![PADDING; items.len() * target_length],
            targets: vec![-1; items.len() * target_length],
            items: items.to_vec(),
            source_lengths,
            target_lengths,
            source_length,
            target_length,
        };
        for (row, &item) in items.iter().enumerate() {
            let (source, target) = (&self.source[item], &self.target[item]);
            let place = |length: usize| -> Range<usize> { row * length..(row + 1) * length };
            let out = &mut batch.source[place(source_length)];
            out[..source.len()].copy_from_slice(source);
            out[source.len()] = END;
            let out = &mut batch.inputs[place(target_length)];
            out[0] = BEGIN;
            out[1..=target.len()].copy_from_slice(target);
            let out = &mut batch.targets[place(target_length)];
            out[..target.len()].copy_from_slice(target);
            out[target.len()] = END;
        }
        batch
    }
}

/// Endless training batches: batch `t` is a pure function of the pairs, the number of rows, the seed and `t`. Epochs
/// are as in [`TrainBatches`](super::TrainBatches).
#[derive(Clone, Debug)]
pub struct TranslationBatches<'a> {
    pairs: &'a SentencePairs,
    order: EpochOrder,
}

impl<'a> TranslationBatches<'a> {
    /// Batches of `rows` pairs.
    ///
    /// # Errors
    /// No pairs, or no rows.
    pub fn new(pairs: &'a SentencePairs, rows: usize, seed: u64) -> Result<Self, DataError> {
        if pairs.is_empty() || rows == 0 {
            let problem = format!("batches of {rows} from {} pairs of sentences; both must be at least 1", pairs.len());
            return Err(DataError::Value(problem));
        }
        let order = EpochOrder::new(pairs.len(), rows, POOL, Streams::new(seed, "pair order"));
        Ok(Self { pairs, order })
    }

    /// Batches per epoch, at least 1.
    pub fn steps_per_epoch(&self) -> u64 {
        self.order.steps_per_epoch()
    }

    /// Batch of step `step`, counted from 0 over all epochs.
    pub fn batch(&mut self, step: u64) -> TranslationBatch {
        let items = self.order.batch(step, |i| self.pairs.key(i));
        self.pairs.gather(items)
    }
}

impl TranslationData {
    fn measured(&self, split: Split) -> &SentencePairs {
        match split {
            Split::Valid => &self.valid,
            Split::Test => &self.test,
        }
    }
}

impl Task for TranslationData {
    fn shape(&self) -> Shape {
        let (vocabulary, max_length) = (self.tokenizer.vocabulary(), self.max_length);
        Shape { objective: Objective::Translate, vocabulary, max_length }
    }

    fn batches(&self, seed: u64, rows: usize) -> Result<Batches<'_>, DataError> {
        let mut batches = TranslationBatches::new(&self.train, rows, seed)?;
        Ok(Box::new(move |index| batches.batch(index).into()))
    }

    fn split(&self, split: Split, rows: usize) -> Result<SplitBatches<'_>, DataError> {
        Ok(Box::new(self.measured(split).evaluation_batches(rows).map(Batch::from)))
    }

    fn setting(&self) -> String {
        format!(
            "{} training pairs of sentences of at most {} tokens, {} for the test, a vocabulary of {}",
            self.train.len(),
            self.max_length,
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
        Some(self.measured(split))
    }
}

/// Reads the files, learns the vocabulary from the training pairs, and encodes.
fn load(config: &TranslationConfig, progress: Progress<'_>) -> Result<TranslationData, DataError> {
    let files = config.files()?;
    let meter = Meter::new(files.iter().flatten().map(PathBuf::as_path), progress);
    let read = |[source, target]: &[PathBuf; 2]| -> Result<[Vec<String>; 2], DataError> {
        let lines = [read_lines(&meter, source)?, read_lines(&meter, target)?];
        let [a, b] = [lines[0].len(), lines[1].len()];
        if a != b {
            let problem = format!(
                "has {b} lines, but {} has {a}; line i of one must be the translation of line i of the other",
                source.display()
            );
            return Err(DataError::Content { path: target.clone(), problem });
        }
        Ok(lines)
    };
    let [train, valid, test] = [read(&files[0])?, read(&files[1])?, read(&files[2])?];
    let texts = train.iter().flatten().map(String::as_str);
    let tokenizer = Arc::new(TextTokenizer::train(texts, config.vocabulary)?);

    let mut notes = Vec::new();
    let longest = config.max_length - 1;
    let mut pairs = encode(&tokenizer, &train);
    let before = pairs.len();
    let usable = |i: &usize| {
        let (target, source) = pairs.length(*i);
        source > 0 && target > 0 && source <= longest && target <= longest
    };
    let kept: Vec<usize> = (0..before).filter(usable).collect();
    if kept.is_empty() {
        let problem = format!(
            "none of its {before} pairs has 1 to {longest} tokens a side; raise task.translation.max_length or check the file"
        );
        return Err(DataError::Content { path: files[0][0].clone(), problem });
    }
    if kept.len() < before {
        let left = before - kept.len();
        notes.push(format!("{left} of {before} training pairs left out: an empty side, or more than {longest} tokens"));
        pairs.source = kept.iter().map(|&i| std::mem::take(&mut pairs.source[i])).collect();
        pairs.target = kept.iter().map(|&i| std::mem::take(&mut pairs.target[i])).collect();
    }
    let mut measured = |lines: [Vec<String>; 2], name: &str| {
        let mut pairs = encode(&tokenizer, &lines);
        let sentences = pairs.source.iter_mut().chain(&mut pairs.target);
        let cut = sentences.filter(|ids| ids.len() > longest).map(|ids| ids.truncate(longest)).count();
        if cut > 0 {
            notes.push(format!("{cut} sentences of the {name} pairs cut to {longest} tokens"));
        }
        let [_, references] = lines;
        SentencePairs { references, ..pairs }
    };
    let (valid, test) = (measured(valid, "validation"), measured(test, "test"));
    let more = "the training pairs have no more pairs of tokens";
    notes.extend(fewer(tokenizer.vocabulary(), config.vocabulary, more));
    Ok(TranslationData { train: pairs, valid, test, tokenizer, max_length: config.max_length, notes })
}

fn encode(tokenizer: &TextTokenizer, [source, target]: &[Vec<String>; 2]) -> SentencePairs {
    let (source, target) = (tokenizer.encode_all(source), tokenizer.encode_all(target));
    SentencePairs { source, target, ..SentencePairs::default() }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::data::file::tests::gzip;

    /// Two files per split, `pairs` pairs each: numbers in words, and the same reversed.
    fn write(directory: &std::path::Path, split: &str, pairs: usize) {
        const DIGITS: [&str; 10] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
        let sentence = |i: usize| -> Vec<&str> { (0..1 + i % 7).map(|j| DIGITS[(i * 7 + j * j) % 10]).collect() };
        let side = |reversed: bool| -> String {
            let line = |i: usize| {
                let mut words = sentence(i);
                if reversed {
                    words.reverse();
                }
                words.join(" ") + "\n"
            };
            (0..pairs).map(line).collect()
        };
        fs::write(directory.join(format!("{split}.en.gz")), gzip(side(false).as_bytes())).unwrap();
        fs::write(directory.join(format!("{split}.de")), side(true)).unwrap();
    }

    fn config(directory: &std::path::Path) -> TranslationConfig {
        for (split, pairs) in [("train", 300), ("val", 20), ("test_2016_flickr", 33)] {
            write(directory, split, pairs);
        }
        TranslationConfig { directory: Some(directory.into()), vocabulary: 300, ..Default::default() }
    }

    fn data() -> TranslationData {
        let directory = tempfile::tempdir().unwrap();
        load(&config(directory.path()), &|_, _| {}).unwrap()
    }

    #[test]
    fn splits_are_read_and_encoded_in_one_vocabulary() {
        let data = data();
        assert_eq!((data.train.len(), data.valid.len(), data.test.len()), (300, 20, 33));
        assert_eq!(data.tokenizer.decode(data.test.source(1)), "seven eight");
        assert_eq!(data.tokenizer.decode(data.test.target(1)), "eight seven");
        assert_eq!((data.test.references().len(), data.train.references().len()), (33, 0));
        assert_eq!(data.test.references()[1], "eight seven");
        assert!(data.notes.iter().all(|note| note.contains("vocabulary")), "{:?}", data.notes);
    }

    #[test]
    fn rows_begin_and_end_and_are_padded_on_both_sides() {
        let data = data();
        let mut batches = TranslationBatches::new(&data.train, 8, 5).unwrap();
        let batch = batches.batch(3);
        let (m, n) = (batch.source_length, batch.target_length);
        assert_eq!((batch.source.len(), batch.inputs.len(), batch.targets.len()), (8 * m, 8 * n, 8 * n));
        assert_eq!(batch.source_lengths.iter().max(), Some(&m));
        assert_eq!(batch.target_lengths.iter().max(), Some(&n));
        for (row, &item) in batch.items.iter().enumerate() {
            let (source, target) = (data.train.source(item), data.train.target(item));
            let padded = |ids: Vec<i32>, length: usize, padding: i32| {
                let mut ids = ids;
                ids.resize(length, padding);
                ids
            };
            assert_eq!(batch.source[row * m..][..m], padded([source, &[END]].concat(), m, PADDING));
            assert_eq!(batch.inputs[row * n..][..n], padded([&[BEGIN], target].concat(), n, PADDING));
            assert_eq!(batch.targets[row * n..][..n], padded([target, &[END]].concat(), n, -1));
            assert_eq!(batch.source_lengths[row], source.len() + 1);
            assert_eq!(batch.target_lengths[row], target.len() + 1);
        }
    }

    #[test]
    fn batches_depend_on_seed_and_step_and_an_epoch_holds_every_pair() {
        let data = data();
        let new = |seed| TranslationBatches::new(&data.train, 8, seed).unwrap();
        let (mut one, mut two) = (new(5), new(5));
        let later = two.batch(90);
        assert_eq!(one.steps_per_epoch(), 37);
        let mut items: Vec<usize> = (37..74).flat_map(|step| one.batch(step).items).collect();
        assert_eq!(one.batch(90), later);
        assert_ne!(new(6).batch(90), later);
        items.sort_unstable();
        items.dedup();
        assert_eq!(items.len(), 296);
        // Batches of similar lengths have little padding.
        let (mut real, mut all) = (0, 0);
        for step in 0..37 {
            let batch = one.batch(step);
            real += batch.target_lengths.iter().sum::<usize>();
            all += batch.inputs.len();
        }
        assert!(real as f64 > 0.9 * all as f64, "{real} of {all}");
        let evaluated: Vec<usize> = data.test.evaluation_batches(10).flat_map(|batch| batch.items).collect();
        assert_eq!(evaluated.len(), 33);
        assert!((0..33).all(|item| evaluated.contains(&item)));
        assert!(TranslationBatches::new(&SentencePairs::default(), 8, 1).is_err());
    }

    #[test]
    fn files_that_do_not_pair_or_are_empty_are_refused_with_their_name() {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path());
        fs::write(directory.path().join("val.de"), "eins\nzwei\n").unwrap();
        let error = load(&config, &|_, _| {}).unwrap_err().to_string();
        assert!(error.contains("val.de: has 2 lines, but ") && error.contains("val.en.gz has 20"), "{error}");
        fs::write(directory.path().join("val.de"), "").unwrap();
        let error = load(&config, &|_, _| {}).unwrap_err().to_string();
        assert!(error.contains("val.de: has no lines"), "{error}");
        fs::remove_file(directory.path().join("val.de")).unwrap();
        let error = load(&config, &|_, _| {}).unwrap_err().to_string();
        assert!(error.contains("val.de") && error.contains("check task.translation"), "{error}");
    }

    #[test]
    fn long_and_empty_pairs_do_not_train_and_are_cut_to_be_measured() {
        let directory = tempfile::tempdir().unwrap();
        let config = TranslationConfig { max_length: 5, vocabulary: 300, ..config(directory.path()) };
        fs::write(directory.path().join("train.de"), format!("\n{}", "one two\n".repeat(299))).unwrap();
        let data = load(&config, &|_, _| {}).unwrap();
        let lengths = |pairs: &SentencePairs| (0..pairs.len()).map(|i| pairs.length(i)).max().unwrap();
        assert!(data.train.len() < 299 && lengths(&data.train) <= (4, 4));
        assert!(data.notes[0].contains("of 300 training pairs left out"), "{:?}", data.notes);
        assert_eq!((data.test.len(), lengths(&data.test).0), (33, 4));
        assert!(data.notes.iter().any(|note| note.contains("test pairs cut to 4 tokens")), "{:?}", data.notes);
        // References are not cut.
        assert_eq!(data.test.references()[6].split(' ').count(), 7);
    }
}
