//! Preparing a text: passes over its files in memory that does not grow with them.

use std::{
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use super::{
    super::{
        LmConfig, TextUnits, TokenKind, fewer,
        source::{self, NEAR, PARTS, RowReader},
    },
    Counts, FORMAT, FileSum, HEADER, IDS, PrepareError, Prepared, SUMS, SourceFile,
    encode::{Encoder, PartWriter},
    folder::{Making, sums},
    learn::{Sample, WordCounts},
    pieces::{Piece, Reader},
};
use crate::data::{DataError, Progress, TextTokenizer, Vocabulary, file::Meter};

/// Bytes of the training text from which subwords are learned. Natural text of this size gives the same pairs but for the
/// rarest, and the memory of the learner is several times that of its distinct words.
pub(super) const SAMPLE: u64 = 64 << 20;

/// Bytes around the place of a cut that are kept: the cut needs the character before it, and looks [`NEAR`] ahead.
const AROUND: u64 = 64;

/// Prepares the text of `config` in a new folder `out`: encodes it and writes ids, vocabulary, sizes and checksums. The parts
/// and their tokens are those that the task reads from the same files, but that subwords are learned from a sample of 64 MiB
/// of a larger training text.
///
/// The files are read two or three times, in memory that does not depend on their size. The folder is there whole or not at
/// all. `progress` is told the bytes read, out of a total, on the calling thread; `stop` ends the work. `rows` reads
/// Parquet files, if there is such a reader.
///
/// # Errors
/// Options or files that the task refuses; a text in words without white space over 16 MiB; a folder that is not empty, unless
/// it is a prepared one and `overwrite`; a full disk; a stop.
pub fn prepare(
    config: &LmConfig,
    out: &Path,
    overwrite: bool,
    rows: Option<RowReader>,
    stop: &AtomicBool,
    progress: Progress<'_>,
) -> Result<Prepared, PrepareError> {
    prepare_sampled(config, out, overwrite, rows, stop, progress, SAMPLE)
}

/// The same with a sample of another size.
pub(super) fn prepare_sampled(
    config: &LmConfig,
    out: &Path,
    overwrite: bool,
    rows: Option<RowReader>,
    stop: &AtomicBool,
    progress: Progress<'_>,
    sample: u64,
) -> Result<Prepared, PrepareError> {
    if config.prepared.is_some() {
        return Err(DataError::config("lm.prepared", "is set, expected texts to prepare; leave it out").into());
    }
    if config.min_count == 0 {
        return Err(DataError::config("lm.min_count", "is 0; must be at least 1").into());
    }
    config.check_texts(true)?;
    let files = source::files(config)?;
    if let Some(path) = files.iter().flatten().find(|path| rows.is_none() && source::is_parquet(path)) {
        return Err(source::parquet(path, "build this program with --features parquet").into());
    }
    let making = Making::begin(out, overwrite)?;
    let learns = match config.tokens {
        TokenKind::Words => true,
        TokenKind::Subwords => config.tokenizer.is_none(),
        TokenKind::Characters | TokenKind::Bytes => false,
    };
    let cuts = files[1].is_empty() || files[2].is_empty();
    let passes = [true, learns || cuts, true];
    let read = passes.iter().zip([0..3, 0..1, 0..3]).filter(|(pass, _)| **pass).flat_map(|(_, parts)| parts);
    let meter = Meter::new(read.flat_map(|part| &files[part]).map(PathBuf::as_path), progress);
    let reader = Reader { config, meter, rows, stop };

    let Survey { sizes, characters } = survey(&reader, &files)?;
    let mut learner = Learner::of(config, learns, sample, certain(config, &files, sizes[0]));
    let ends = if passes[1] { learn(&reader, &files, sizes[0], &mut learner)? } else { [sizes[0]; 2] };
    let (units, sampled, notes) = learner.units(config, characters)?;
    let (parts, mut sums_of) = encode(&reader, &files, &sizes, ends, &units, &making)?;

    let kept = units.file();
    if let Some((name, content)) = &kept {
        making.write(name, content.as_bytes())?;
        sums_of.push(((*name).to_owned(), FileSum::of(content.as_bytes())));
    }
    let characters = match &units {
        TextUnits::Characters(characters) => Some(characters.characters().iter().collect()),
        _ => None,
    };
    let sources = files.iter().zip(PARTS).flat_map(|(files, part)| files.iter().map(move |path| (part, path)));
    let source = |(part, path): (&str, &PathBuf)| {
        let bytes = std::fs::metadata(path).map_err(|source| DataError::read(path, source))?.len();
        Ok(SourceFile { part: part.into(), path: path.clone(), bytes })
    };
    let prepared = Prepared {
        format: FORMAT,
        tokens: config.tokens,
        vocabulary: units.vocabulary(),
        characters,
        sampled,
        parts,
        files: sums_of.into_iter().collect(),
        sources: sources.map(source).collect::<Result<_, DataError>>()?,
        notes,
    };
    let header = serde_json::to_string_pretty(&prepared).expect("strings and numbers") + "\n";
    making.write(HEADER, header.as_bytes())?;
    let of_header = (HEADER.to_owned(), FileSum::of(header.as_bytes()).sha256);
    let all = prepared.files.iter().map(|(name, file)| (name, file.sha256.as_str()));
    making.write(SUMS, sums(all.chain([(&of_header.0, of_header.1.as_str())])).as_bytes())?;
    making.finish()?;
    Ok(prepared)
}

/// The sizes of the texts of each part's own files, and the characters that occur.
struct Survey {
    sizes: [u64; 3],
    /// By code; of no length where units are no characters.
    characters: Vec<bool>,
}

fn survey(reader: &Reader, files: &[Vec<PathBuf>; 3]) -> Result<Survey, PrepareError> {
    let of_characters = reader.config.tokens == TokenKind::Characters;
    let mut survey =
        Survey { sizes: [0; 3], characters: vec![false; if of_characters { char::MAX as usize + 1 } else { 0 }] };
    for part in (0..3).filter(|part| *part == 0 || !files[*part].is_empty()) {
        let mut blank = true;
        survey.sizes[part] = reader.each(&files[part], |pieces| {
            for Piece { text, .. } in pieces {
                blank = blank && text.trim().is_empty();
                if of_characters {
                    text.chars().for_each(|character| survey.characters[character as usize] = true);
                }
            }
            Ok(())
        })?;
        if blank {
            return Err(source::no_text(files, part).into());
        }
    }
    Ok(survey)
}

/// Bytes that the validation and the test text are short of, cut off the end of a training text of `whole` bytes.
fn cut_off(config: &LmConfig, files: &[Vec<PathBuf>; 3], whole: u64) -> [Option<f64>; 2] {
    let of = |own: &[PathBuf], fraction: f64| own.is_empty().then(|| (whole as f64 * fraction).round());
    [of(&files[1], config.valid_fraction), of(&files[2], config.test_fraction)]
}

/// Bytes that surely belong to the training text, wherever the lines end at which the others are cut off.
fn certain(config: &LmConfig, files: &[Vec<PathBuf>; 3], whole: u64) -> u64 {
    let cut = cut_off(config, files, whole).into_iter().flatten().collect::<Vec<_>>();
    if cut.is_empty() { whole } else { ((whole as f64 - cut.iter().sum::<f64>()) as u64).saturating_sub(AROUND) }
}

/// A stretch of a text, of whole pieces.
struct Stretch {
    from: u64,
    to: u64,
    /// Bytes of the text before what is kept.
    start: u64,
    text: String,
}

impl Stretch {
    fn new(from: u64, to: u64) -> Self {
        Self { from, to, start: 0, text: String::new() }
    }

    fn keep(&mut self, piece: &Piece) {
        if piece.end() > self.from && piece.start < self.to {
            if self.text.is_empty() {
                self.start = piece.start;
            }
            self.text.push_str(&piece.text);
        }
    }

    /// Where the text is cut at about `place`, if `text` is kept of it from `start`.
    fn cut(&self, place: f64) -> u64 {
        self.start + source::cut(&self.text, (place as u64).saturating_sub(self.start) as usize) as u64
    }

    /// The text ends at `end`, with a line end. Returns its bytes.
    fn truncate(&mut self, end: u64) -> u64 {
        self.text.truncate((end - self.start) as usize);
        source::end_line(&mut self.text);
        self.start + self.text.len() as u64
    }
}

/// Learns from the training text, and finds where it and the validation text end in what the training files hold.
///
/// The test text is cut off first, then the validation text from what is left: its place depends on the first cut, which comes
/// later. So the text around both places is kept.
fn learn(
    reader: &Reader,
    files: &[Vec<PathBuf>; 3],
    whole: u64,
    learner: &mut Learner,
) -> Result<[u64; 2], PrepareError> {
    let cut = cut_off(reader.config, files, whole);
    let [valid, test] = cut;
    let certain = if cut == [None; 2] { u64::MAX } else { certain(reader.config, files, whole) };
    let place = |cut: f64| whole as f64 - cut;
    let near = NEAR as u64 + AROUND;
    let test_place = test.map(place);
    let mut around_test = Stretch::new(
        test_place.map_or(u64::MAX, |place| (place as u64).saturating_sub(AROUND)),
        test_place.map_or(0, |place| place as u64 + near),
    );
    let mut last = Stretch::new(certain, certain.saturating_add(2 * near + AROUND));
    let seen = reader.each(&files[0], |pieces| {
        for piece in &pieces {
            around_test.keep(piece);
            last.keep(piece);
        }
        let learned = pieces.iter().filter(|piece| piece.end() <= certain);
        learner.add(&learned.collect::<Vec<_>>());
        Ok(())
    })?;
    if seen != whole {
        return Err(changed(files));
    }
    if cut == [None; 2] {
        return Ok([whole; 2]);
    }
    let (mut valid_end, mut length) = (whole, whole);
    if let Some(place) = test_place {
        valid_end = around_test.cut(place);
        length = around_test.truncate(valid_end);
        if last.start + last.text.len() as u64 >= valid_end {
            last.truncate(valid_end);
        }
    }
    let train_end = match valid {
        Some(cut) => last.cut(length as f64 - cut),
        None => valid_end,
    };
    last.truncate(train_end);
    learner.add_rest(&last.text);
    Ok([train_end, valid_end])
}

fn changed(files: &[Vec<PathBuf>; 3]) -> PrepareError {
    let path = files.iter().flatten().next().cloned().unwrap_or_default();
    let problem = "or another file of the text was changed while it was read; prepare it when nobody writes to it";
    DataError::Content { path, problem: problem.into() }.into()
}

/// What is learned from a training text.
enum Learner {
    Nothing,
    Sample(Sample),
    Words(WordCounts),
}

impl Learner {
    fn of(config: &LmConfig, learns: bool, sample: u64, of: u64) -> Self {
        match config.tokens {
            TokenKind::Words => Self::Words(WordCounts::default()),
            TokenKind::Subwords if learns => Self::Sample(Sample::new(sample, of)),
            _ => Self::Nothing,
        }
    }

    fn add(&mut self, pieces: &[&Piece]) {
        match self {
            Self::Nothing => {}
            Self::Sample(sample) => pieces.iter().for_each(|piece| sample.add(piece)),
            Self::Words(counts) => counts.add(&pieces.iter().map(|piece| piece.text.as_str()).collect::<Vec<_>>()),
        }
    }

    fn add_rest(&mut self, rest: &str) {
        match self {
            Self::Nothing => {}
            Self::Sample(sample) => sample.add_rest(rest),
            Self::Words(counts) => counts.add(&[rest]),
        }
    }

    /// The units; bytes of the sample, if it is not the whole text; remarks for the user.
    fn units(
        self,
        config: &LmConfig,
        characters: Vec<bool>,
    ) -> Result<(TextUnits, Option<usize>, Vec<String>), DataError> {
        let (mut sampled, mut notes) = (None, Vec::new());
        let units = match (self, config.tokens) {
            (Self::Sample(sample), _) => {
                sampled = (!sample.is_whole()).then_some(sample.bytes());
                if let Some(bytes) = sampled {
                    notes.push(format!(
                        "subwords were learned from {bytes} bytes, the first lines of every stretch of the training text"
                    ));
                }
                TextUnits::Subwords(sample.tokenizer(config.vocabulary)?)
            }
            (Self::Words(counts), _) => {
                if counts.short() > 0 {
                    notes.push(format!(
                        "too many words to count them all: those that were rare were forgotten on the way, and counts may be \
                         too low by {}",
                        counts.short()
                    ));
                }
                TextUnits::Words(counts.vocabulary(config.vocabulary, config.min_count))
            }
            (Self::Nothing, TokenKind::Subwords) => {
                let path = config.tokenizer.as_deref().unwrap_or(Path::new(""));
                return Ok((TextUnits::Subwords(TextTokenizer::load(path)?), None, notes));
            }
            (Self::Nothing, TokenKind::Characters) => {
                let present = characters.iter().zip(0u32..).filter(|(seen, _)| **seen);
                let characters = present.filter_map(|(_, code)| char::from_u32(code)).collect();
                TextUnits::Characters(Vocabulary::new(characters)?)
            }
            (Self::Nothing, _) => TextUnits::Bytes,
        };
        notes.extend(fewer(config, &units));
        Ok((units, sampled, notes))
    }
}

/// The sizes of the training, validation and test text.
type Parts = [Counts; 3];

/// Files by their names.
type Files = Vec<(String, FileSum)>;

/// Writes the ids of all parts. `ends`: where the training and the validation text end in the training files' text.
fn encode(
    reader: &Reader,
    files: &[Vec<PathBuf>; 3],
    sizes: &[u64; 3],
    ends: [u64; 2],
    units: &TextUnits,
    making: &Making,
) -> Result<(Parts, Files), PrepareError> {
    let encoder = Encoder::new(units);
    let (mut parts, mut blank, mut sums) = ([Counts::default(); 3], [true; 3], Vec::new());
    // The parts that the training files hold, with their ends.
    let all = [(0, ends[0]), (1, ends[1]), (2, sizes[0])];
    let cut: Vec<(usize, u64)> = all.into_iter().filter(|(part, _)| *part == 0 || files[*part].is_empty()).collect();
    let own = |part: usize| (part > 0 && !files[part].is_empty()).then(|| (part, vec![(part, sizes[part])]));
    for (source, cut) in [(0, cut)].into_iter().chain([1, 2].into_iter().filter_map(own)) {
        let mut places = cut.iter();
        let mut place = places.next().copied();
        let mut writer: Option<(usize, PartWriter)> = None;
        let mut finish = |(part, writer): (usize, PartWriter)| {
            blank[part] = writer.is_blank();
            let (counts, sum) = writer.finish(&encoder)?;
            parts[part] = counts;
            sums.push((IDS[part].to_owned(), sum));
            Ok::<_, PrepareError>(())
        };
        let seen = reader.each(&files[source], |pieces| {
            let (mut of, mut texts) = (Vec::new(), Vec::new());
            for mut piece in pieces {
                while let Some((part, end)) = place {
                    if piece.text.is_empty() {
                        break;
                    }
                    if piece.start >= end {
                        place = places.next().copied();
                        continue;
                    }
                    let head = piece.text.len().min((end - piece.start) as usize);
                    let rest = piece.text.split_off(head);
                    of.push(part);
                    texts.push(std::mem::replace(&mut piece.text, rest));
                    piece.start += head as u64;
                }
            }
            for (part, encoded) in of.into_iter().zip(encoder.encode_all(texts)?) {
                if writer.as_ref().is_none_or(|(current, _)| *current != part) {
                    writer.take().map_or(Ok(()), &mut finish)?;
                    writer = Some((part, PartWriter::create(making.path(IDS[part]))?));
                }
                if let Some((_, writer)) = &mut writer {
                    writer.write(&encoded)?;
                }
            }
            Ok(())
        })?;
        writer.take().map_or(Ok(()), &mut finish)?;
        if seen != sizes[source] {
            return Err(changed(files));
        }
    }
    match blank.iter().position(|blank| *blank) {
        Some(part) => Err(source::no_text(files, part).into()),
        None => Ok((parts, sums)),
    }
}
