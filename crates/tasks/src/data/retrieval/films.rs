//! Pairs of reviews: of one film or of two.

use std::{
    collections::{HashMap, HashSet},
    io::BufRead,
    path::Path,
};

use rand::{Rng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use super::{Collector, DocumentPairs, PairData, RetrievalConfig};
use crate::data::{DataError, Streams, file::Meter, plain_text::each_line};

/// The reviews of a film.
#[derive(Debug)]
struct Film {
    name: Vec<u8>,
    reviews: Vec<Box<[u8]>>,
}

/// Reads the files and pairs the reviews. No film is in two splits: those of the test are left out of the others, those
/// of validation out of training.
pub(super) fn load(
    config: &RetrievalConfig,
    train: &Path,
    test: &Path,
    meter: &Meter,
    seed: u64,
) -> Result<PairData, DataError> {
    let read = |path: &Path| read(meter.open(path)?, path, config.max_length);
    let mut notes = Vec::new();
    let (mut training, tests) = (read(train)?, read(test)?);
    let mut leave_out = |films: &mut Vec<Film>, of: &[Film], what: &str| {
        let names: HashSet<&[u8]> = of.iter().map(|film| &film.name[..]).collect();
        let before = films.len();
        films.retain(|film| !names.contains(&film.name[..]));
        let left = before - films.len();
        if left > 0 {
            notes.push(format!("{left} of {before} films left out of {what}: another split has them"));
        }
    };
    leave_out(&mut training, &tests, "training");
    let (valid_path, validation) = match &config.valid {
        Some(path) => {
            let mut validation = read(path)?;
            leave_out(&mut validation, &tests, "validation");
            leave_out(&mut training, &validation, "training");
            (path.as_path(), validation)
        }
        None => {
            training.shuffle(&mut Streams::new(seed, "validation films").at(0));
            let count = (training.len() as f64 * config.valid_fraction).round() as usize;
            let validation = training.split_off(training.len() - count);
            (train, validation)
        }
    };
    let streams = Streams::new(seed, "review pairs");
    let pair = |films: &[Film], path: &Path, split: u64| paired(films, path, &mut streams.at(split));
    Ok(PairData {
        train: pair(&training, train, 0)?,
        valid: pair(&validation, valid_path, 1)?,
        test: pair(&tests, test, 2)?,
        max_length: config.max_length,
        notes,
    })
}

/// The films of a file that have two reviews or more, in order of their first.
fn read(source: impl BufRead, path: &Path, max_length: usize) -> Result<Vec<Film>, DataError> {
    let mut films: Vec<Film> = Vec::new();
    let mut known = HashMap::new();
    each_line(source, path, |_, row| {
        let columns: Vec<&[u8]> = row.split(|byte| *byte == b'\t').collect();
        let [_, _, _, film, text] = columns[..] else {
            let count = columns.len();
            return Err(format!(
                "{count} tab-separated columns, expected 5: label, stars, identifier, film, text; check the row and \
                 task.retrieval.format"
            ));
        };
        if film.is_empty() || text.is_empty() {
            let which = if film.is_empty() { "film" } else { "text" };
            return Err(format!("the {which} is empty; remove the row"));
        }
        let place = *known.entry(film.to_vec()).or_insert_with(|| {
            films.push(Film { name: film.to_vec(), reviews: Vec::new() });
            films.len() - 1
        });
        films[place].reviews.push(text[..text.len().min(max_length)].into());
        Ok(())
    })?;
    films.retain(|film| film.reviews.len() > 1);
    Ok(films)
}

/// Each review twice as the first document: with another one of its film, and with one of another film.
fn paired(films: &[Film], path: &Path, random: &mut ChaCha8Rng) -> Result<DocumentPairs, DataError> {
    if films.len() < 2 {
        let problem = format!(
            "{} films of a split have two reviews or more; expected at least 2; give more rows or check \
             task.retrieval.valid_fraction",
            films.len()
        );
        return Err(DataError::Content { path: path.into(), problem });
    }
    let all: Vec<(usize, &[u8])> = films
        .iter()
        .enumerate()
        .flat_map(|(film, of)| of.reviews.iter().map(move |review| (film, &**review)))
        .collect();
    let mut collector = Collector::default();
    let mut start = 0;
    for (film, Film { reviews, .. }) in films.iter().enumerate() {
        for (own, review) in reviews.iter().enumerate() {
            // One of the others of the film, and one of those of the other films.
            let same = (own + random.random_range(1..reviews.len())) % reviews.len();
            let other = (start + reviews.len() + random.random_range(0..all.len() - reviews.len())) % all.len();
            debug_assert_ne!(all[other].0, film);
            collector.push([review, &reviews[same]], true);
            collector.push([review, all[other].1], false);
        }
        start += reviews.len();
    }
    Ok(collector.pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{TaskOptions, file::tests::bzip2, retrieval::RetrievalFormat};

    /// Rows of `films`, the reviews of which start with their name.
    fn rows(films: std::ops::Range<usize>) -> Vec<u8> {
        let review = |film: usize, i: usize| format!("{}\t7\t{i}\ttt{film:03}\ttt{film:03} review {i} of it\n", i % 2);
        films.flat_map(|film| (0..1 + film % 4).map(move |i| review(film, i))).collect::<String>().into_bytes()
    }

    fn config(directory: &Path) -> RetrievalConfig {
        let write = |name: &str, bytes: Vec<u8>| {
            std::fs::write(directory.join(name), bytes).unwrap();
            Some(directory.join(name))
        };
        let (train, test) = (write("train.tsv", rows(0..60)), write("test.tsv.bz2", bzip2(&rows(55..80))));
        RetrievalConfig { format: RetrievalFormat::Films, train, test, max_length: 16, ..RetrievalConfig::default() }
    }

    fn films(pairs: &DocumentPairs) -> HashSet<&[u8]> {
        (0..pairs.len()).flat_map(|i| pairs.documents(i)).map(|document| &document[..5]).collect()
    }

    #[test]
    fn pairs_are_balanced_and_no_film_is_in_two_splits() {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path());
        config.check().unwrap();
        let load = |seed| {
            let meter = Meter::new([], &|_, _| {});
            let [train, test] = [&config.train, &config.test].map(|path| path.clone().unwrap());
            super::load(&config, &train, &test, &meter, seed).unwrap()
        };
        let data = load(1);
        assert_eq!(data.notes, ["4 of 45 films left out of training: another split has them"]);
        for set in [&data.train, &data.valid, &data.test] {
            let joined = (0..set.len()).filter(|&i| set.label(i) == 1).count();
            assert!(joined > 0 && 2 * joined == set.len());
            for i in 0..set.len() {
                let [first, second] = set.documents(i);
                assert_eq!(first[..5] == second[..5], set.label(i) == 1);
                assert!(first != second && first.len() == 16);
            }
        }
        let [train, valid, test] = [&data.train, &data.valid, &data.test].map(films);
        assert!(train.is_disjoint(&valid) && train.is_disjoint(&test) && valid.is_disjoint(&test));
        assert_eq!((train.len(), valid.len(), test.len()), (37, 4, 19));
        assert_eq!(load(1).train, data.train);
        assert_ne!(load(2).train, data.train);
    }

    #[test]
    fn bad_rows_and_too_few_films_are_named() {
        let read = |text: &[u8]| read(text, Path::new("reviews.tsv"), 9);
        for (text, expected) in [
            (&b"1\t2\tgood\n"[..], "reviews.tsv:1: 3 tab-separated columns, expected 5"),
            (b"1\t2\t3\t\tgood\n", "reviews.tsv:1: the film is empty"),
            (b"1\t2\t3\ttt1\tgood\n1\t2\t3\ttt1\t\n", "reviews.tsv:2: the text is empty"),
        ] {
            let error = read(text).unwrap_err();
            assert!(!error.is_config() && error.to_string().starts_with(expected), "{error}");
        }
        let one = read(&rows(3..5)).unwrap();
        let error = paired(&one, Path::new("reviews.tsv"), &mut Streams::new(1, "test").at(0)).unwrap_err();
        assert!(error.to_string().contains("1 films of a split have two reviews or more"), "{error}");
    }
}
