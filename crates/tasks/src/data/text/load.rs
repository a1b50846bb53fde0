//! Loading: the rows of the files, in three parts, as data of the task.

use std::path::{Path, PathBuf};

use super::{
    Encoded, TextConfig, TextData, TextEncoder, TextFormat,
    fields::Fields,
    folder::Folder,
    rows::{Form, Labels, Reading, Rows},
};
use crate::data::{
    ClassificationData, DataError, Progress, Sequences, TaskData, TokenKind, file::Meter, order::hold_out,
    sequences::Symbol,
};

/// Token ids of bytes: padding and one for each byte.
pub(super) const BYTES: usize = 257;

/// The files of a set, and what they hold.
#[derive(Clone, Debug)]
struct Source {
    /// Training, validation and test rows.
    files: [Option<PathBuf>; 3],
    format: Option<TextFormat>,
    fields: Fields,
    labels: Labels,
}

/// Reads and encodes the rows of all parts.
///
/// # Errors
/// Missing or corrupt data.
pub(super) fn load(config: &TextConfig, seed: u64, progress: Progress<'_>) -> Result<TaskData, DataError> {
    let rows = read(config, seed, progress)?;
    let (fields, labels) = config.known();
    let pairs = fields.second.is_some();
    let encoder = TextEncoder::learn(config, &rows[0].texts, pairs)?;
    let unused = config.unused();
    Ok(match (labels.classes(), config.tokens) {
        (Some(classes), TokenKind::Bytes) if !pairs => Box::new(in_bytes(config, &rows, classes)?.noting(unused)),
        (Some(classes), _) if !pairs => Box::new(in_pieces(config, &rows, classes, &encoder)?.noting(unused)),
        _ => Box::new(TextData::of(&rows, &labels, &encoder)?.noting(unused)),
    })
}

/// The files and what they hold.
fn source(config: &TextConfig) -> Result<Source, DataError> {
    if let Some(path) = &config.path {
        let Folder { format, train, test, fields, labels } = Folder::of(path, config.format)?;
        let labels = config.labels_of(labels);
        return Ok(Source { files: [Some(train), None, Some(test)], format: Some(format), fields, labels });
    }
    config.check_files()?;
    let (fields, labels) = config.known();
    let files = [&config.train, &config.valid, &config.test].map(Clone::clone);
    Ok(Source { files, format: config.format, fields, labels })
}

/// Training, validation and test rows; without a validation file, rows of the training file are held out.
pub(super) fn read(config: &TextConfig, seed: u64, progress: Progress<'_>) -> Result<[Rows; 3], DataError> {
    let Source { files, format, fields, labels } = source(config)?;
    let meter = Meter::new(files.iter().flatten().map(PathBuf::as_path), progress);
    // Of bytes no more are kept than will be read, and one that says whether there were more.
    let most = if config.tokens == TokenKind::Bytes { config.max_length.saturating_add(1) } else { usize::MAX };
    let read = |path: &Path| {
        let format = format.unwrap_or_else(|| TextFormat::of_file(path));
        let (fields, labels) = (fields.clone(), labels.clone());
        Form { format, fields, labels, reading: Reading::Labelled, most }.read(&meter, path)
    };
    let [train, valid, test] = files.each_ref().map(|file| file.as_deref().map(read).transpose());
    let (all, valid, test) = (train?.unwrap_or_default(), valid?, test?.unwrap_or_default());
    let (train, valid) = match valid {
        Some(valid) => (all, valid),
        None if all.texts.len() < 2 => {
            let problem = "has a single row, of which none can be held out for validation; set task.text.valid".into();
            return Err(DataError::Content { path: all.path, problem });
        }
        None => {
            let [valid, train] = hold_out(all.texts.len(), config.valid_fraction, seed);
            (Rows { skipped: all.skipped, ..all.select(&train) }, all.select(&valid))
        }
    };
    Ok([train, valid, test])
}

/// Byte `b` is symbol `b`.
pub(super) fn in_bytes(config: &TextConfig, rows: &[Rows; 3], classes: usize) -> Result<ClassificationData, DataError> {
    let encode = |texts: &[Box<[u8]>]| {
        let kept = texts[0].len().min(config.max_length);
        (texts[0][..kept].to_vec(), kept < texts[0].len())
    };
    encoded(config, rows, classes, BYTES, 1, encode)
}

/// Words or subwords of a vocabulary that the training rows give.
pub(super) fn in_pieces(
    config: &TextConfig,
    rows: &[Rows; 3],
    classes: usize,
    encoder: &TextEncoder,
) -> Result<ClassificationData<u16>, DataError> {
    let encode = |texts: &[Box<[u8]>]| {
        let Encoded { symbols, dropped, .. } = encoder.encode(texts);
        (symbols, dropped > 0)
    };
    let data = encoded(config, rows, classes, encoder.vocabulary(), encoder.first_id(), encode)?;
    Ok(ClassificationData { units: Some(encoder.units().clone()), ..data })
}

fn encoded<S: Symbol>(
    config: &TextConfig,
    rows: &[Rows; 3],
    classes: usize,
    vocabulary: usize,
    first_id: i32,
    encode: impl Fn(&[Box<[u8]>]) -> (Vec<S>, bool),
) -> Result<ClassificationData<S>, DataError> {
    let of = |rows: &Rows| {
        let (mut sequences, mut truncated) = (Sequences::new(classes), 0);
        for (i, texts) in rows.texts.iter().enumerate() {
            let (symbols, cut) = encode(texts);
            truncated += usize::from(cut);
            let pushed = sequences.push(&symbols, rows.class(i));
            pushed.map_err(|error| DataError::Content { path: rows.place(i), problem: error.to_string() })?;
        }
        Ok::<_, DataError>((sequences, truncated))
    };
    let [train, valid, test] = rows.each_ref().map(of);
    let ((train, first), (valid, second), (test, third)) = (train?, valid?, test?);
    Ok(ClassificationData {
        train,
        valid,
        test,
        classes,
        vocabulary,
        first_id,
        max_length: config.max_length,
        about: String::new(),
        units: None,
        notes: too_long([first, second, third], config.max_length).into_iter().collect(),
    })
}

/// What is said of rows that are longer than a model takes, by part.
pub(super) fn too_long(truncated: [usize; 3], longest: usize) -> Option<String> {
    let [train, valid, test] = truncated;
    (truncated != [0; 3]).then(|| {
        format!(
            "{train} training, {valid} validation and {test} test rows are longer than the {longest} tokens of \
             task.text.max_length; their ends are left out"
        )
    })
}
