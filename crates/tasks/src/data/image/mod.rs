//! Long Range Arena image: the class of a small picture, from its grey values one after another.
//!
//! [`ImageConfig::load`](super::TaskOptions::load) finds out by the files of a directory what it holds: the binary files
//! of CIFAR-10, an archive of JPEG files, or the idx files of MNIST. A token is the grey value of a pixel, 0 to 255, row
//! by row; there is no padding, as all pictures of a set have one size.

mod cifar;
mod idx;
mod jpeg;

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    ClassificationData, DataError, GREYS, Objective, Progress, Sequences, Shape, TaskData, TaskOptions,
    config::check_fraction, file::Meter,
};

/// Classes of all the formats.
const CLASSES: usize = 10;

/// Pixels of a side of a picture of CIFAR-10.
const CIFAR_SIDE: usize = 32;

/// Classification of pictures, read pixel by pixel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ImageConfig {
    /// The directory of the files, or one of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Fraction of the training pictures held out for validation, in (0, 1): the last ones in the order of the files, as
    /// in Long Range Arena.
    pub valid_fraction: f64,
    /// Pictures used of those for training and validation, the first ones; 0: all.
    pub train: usize,
    /// Pictures used of those for the test, the first ones; 0: all.
    pub test: usize,
}

impl Default for ImageConfig {
    fn default() -> Self {
        Self { path: None, valid_fraction: 0.1, train: 0, test: 0 }
    }
}

/// What a directory holds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    /// Records of a label and three planes of 32 x 32 bytes.
    Cifar { train: Vec<PathBuf>, test: PathBuf },
    /// Records of a label, a length and a JPEG file.
    Jpeg { train: PathBuf, test: PathBuf },
    /// Pictures and labels of each part.
    Idx { train: [PathBuf; 2], test: [PathBuf; 2] },
}

/// Pictures of one size.
#[derive(Debug)]
struct Pictures {
    sequences: Sequences,
    /// Height and width; none before the first picture.
    sides: Option<[usize; 2]>,
}

impl Pictures {
    fn new() -> Self {
        Self { sequences: Sequences::new(CLASSES), sides: None }
    }

    /// Appends a picture.
    ///
    /// # Errors
    /// A label out of range, or another size than the first picture's, as a sentence.
    fn push(&mut self, greys: &[u8], sides: [usize; 2], label: usize) -> Result<(), String> {
        let [height, width] = *self.sides.get_or_insert(sides);
        if sides != [height, width] {
            let [own_height, own_width] = sides;
            return Err(format!("is {own_width} x {own_height} pixels; expected {width} x {height} as the first one"));
        }
        self.sequences.push(greys, label).map_err(|problem| problem.to_string())
    }
}

/// Grey value of a pixel, as `tf.image.rgb_to_grayscale` of Long Range Arena's reader makes it of bytes: weights of luma,
/// the result scaled by 255.5 / 255 and cut to a whole number.
fn grey([red, green, blue]: [u8; 3]) -> u8 {
    let luma = 0.2989 * f32::from(red) + 0.587 * f32::from(green) + 0.114 * f32::from(blue);
    (luma / 255.0 * 255.5) as u8
}

impl Found {
    /// Looks for the files of a format in `directory`.
    ///
    /// # Errors
    /// A directory that cannot be read, or holds none of the formats.
    fn look(directory: &Path) -> Result<Self, DataError> {
        let entries = fs::read_dir(directory).map_err(|source| DataError::read(directory, source))?;
        let mut paths = entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|source| DataError::read(directory, source))?;
        paths.sort();
        let named = |fits: &dyn Fn(&str) -> bool| -> Vec<PathBuf> {
            let plain = |path: &PathBuf| {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                fits(name.strip_suffix(".gz").unwrap_or(name))
            };
            let mut found: Vec<PathBuf> = paths.iter().filter(|path| plain(path)).cloned().collect();
            // A file and its compressed copy are one, of which the plain one comes first.
            found.dedup_by(|later, earlier| {
                later.extension() == Some("gz".as_ref()) && later.with_extension("") == *earlier
            });
            found
        };
        let one = |fits: &dyn Fn(&str) -> bool| named(fits).into_iter().next();
        let batches = named(&|name| name.starts_with("data_batch_") && name.ends_with(".bin"));
        if let (false, Some(test)) = (batches.is_empty(), one(&|name| name == "test_batch.bin")) {
            return Ok(Self::Cifar { train: batches, test });
        }
        let idx = |part: &str| {
            let of = |kind: &str| one(&|name| name.starts_with(part) && name.contains(kind));
            Some([of("images-idx3-ubyte")?, of("labels-idx1-ubyte")?])
        };
        if let (Some(train), Some(test)) = (idx("train"), idx("t10k")) {
            return Ok(Self::Idx { train, test });
        }
        if let (Some(train), Some(test)) = (one(&|name| name == "train.bin"), one(&|name| name == "test.bin")) {
            return Ok(Self::Jpeg { train, test });
        }
        let problem = "holds no pictures that are known here; expected data_batch_1.bin to data_batch_5.bin and \
                       test_batch.bin (CIFAR-10), train.bin and test.bin (an archive of JPEG files), or \
                       train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and \
                       t10k-labels-idx1-ubyte (MNIST), each plain or with .gz";
        Err(DataError::Content { path: directory.into(), problem: problem.into() })
    }

    /// All files.
    fn files(&self) -> Vec<&Path> {
        match self {
            Self::Cifar { train, test } => train.iter().chain([test]).map(PathBuf::as_path).collect(),
            Self::Jpeg { train, test } => vec![train, test],
            Self::Idx { train, test } => train.iter().chain(test).map(PathBuf::as_path).collect(),
        }
    }

    /// What it is, for reports.
    fn about(&self) -> &'static str {
        match self {
            Self::Cifar { .. } => "CIFAR-10 in grey",
            Self::Jpeg { .. } => "pictures from JPEG files (not the pixels of the original) in grey",
            Self::Idx { .. } => "idx pictures in grey",
        }
    }

    /// Training and test pictures, at most so many if that is not 0.
    fn read(&self, meter: &Meter, most: [usize; 2]) -> Result<[Pictures; 2], DataError> {
        let [train, test] = most.map(|most| if most == 0 { usize::MAX } else { most });
        Ok(match self {
            Self::Cifar { train: files, test: file } => {
                [cifar::read(meter, files, train)?, cifar::read(meter, std::slice::from_ref(file), test)?]
            }
            Self::Jpeg { train: file, test: other } => {
                [jpeg::read(meter, file, train)?, jpeg::read(meter, other, test)?]
            }
            Self::Idx { train: files, test: others } => {
                [idx::read(meter, files, train)?, idx::read(meter, others, test)?]
            }
        })
    }
}

impl ImageConfig {
    fn directory(&self) -> Result<PathBuf, DataError> {
        let Some(path) = &self.path else {
            let problem = "is not set; give the directory of CIFAR-10 or MNIST: --set task.image.path=DIRECTORY";
            return Err(DataError::config("image.path", problem));
        };
        let about = fs::metadata(path).map_err(|source| DataError::read(path, source))?;
        Ok(if about.is_dir() { path.clone() } else { path.parent().unwrap_or(Path::new("")).into() })
    }

    fn found(&self) -> Result<Found, DataError> {
        let directory = self.directory()?;
        Found::look(if directory.as_os_str().is_empty() { Path::new(".") } else { &directory })
    }
}

impl TaskOptions for ImageConfig {
    fn summary(&self) -> &'static str {
        "Long Range Arena image: the class of a picture of CIFAR-10 or MNIST, pixel by pixel in grey"
    }

    fn check(&self) -> Result<(), DataError> {
        check_fraction("image.valid_fraction", self.valid_fraction)?;
        if self.train == 1 {
            return Err(DataError::config(
                "image.train",
                "is 1; expected 0 (all), or 2 or more: one is for validation",
            ));
        }
        self.found().map(|_| ())
    }

    fn load(&self, _: u64, _: Option<&Path>, progress: Progress<'_>) -> Result<TaskData, DataError> {
        let found = self.found()?;
        let meter = Meter::new(found.files(), progress);
        let [Pictures { mut sequences, sides }, test] = found.read(&meter, [self.train, self.test])?;
        let first = || found.files().first().map_or(PathBuf::new(), |path| path.to_path_buf());
        if sequences.len() < 2 || test.sequences.is_empty() || sides != test.sides {
            let problem = format!(
                "the set has {} pictures for training and {} for the test; expected at least 2 and 1, of one size",
                sequences.len(),
                test.sequences.len()
            );
            return Err(DataError::Content { path: first(), problem });
        }
        let held = ((sequences.len() as f64 * self.valid_fraction).round() as usize).clamp(1, sequences.len() - 1);
        let valid = sequences.split_last(held);
        let [height, width] = sides.unwrap_or_default();
        Ok(Box::new(ClassificationData {
            train: sequences,
            valid,
            test: test.sequences,
            classes: CLASSES,
            vocabulary: GREYS,
            first_id: 0,
            max_length: height * width,
            about: format!("{}, the last {held} of training for validation", found.about()),
            units: None,
            notes: Vec::new(),
        }))
    }

    fn shape(&self) -> Shape {
        let found = self.found().ok();
        let tokens = match &found {
            Some(Found::Idx { train: [pictures, _], .. }) => idx::sides(pictures).map(|[height, width]| height * width),
            _ => None,
        };
        Shape {
            objective: Objective::Classify { classes: CLASSES },
            vocabulary: GREYS,
            max_length: tokens.unwrap_or(CIFAR_SIDE * CIFAR_SIDE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Split, file::tests::gzip};

    fn write(directory: &Path, name: &str, bytes: &[u8]) {
        fs::write(directory.join(name), bytes).unwrap();
    }

    /// Records of CIFAR-10: picture `i` is `i` red, `2 i` green and `3 i` blue all over.
    fn cifar(range: std::ops::Range<u8>) -> Vec<u8> {
        let record = |i: u8| [[i % 10].as_slice(), &[i; 1024], &[2 * i; 1024], &[3 * i; 1024]].concat();
        range.flat_map(record).collect()
    }

    fn idx(count: u32, [height, width]: [u32; 2]) -> [Vec<u8>; 2] {
        let numbers = |magic: u32, sizes: &[u32]| -> Vec<u8> {
            [magic].iter().chain(sizes).flat_map(|number| number.to_be_bytes()).collect()
        };
        let pixels = (0..count * height * width).map(|i| (i % 251) as u8);
        let pictures = numbers(0x803, &[count, height, width]).into_iter().chain(pixels).collect();
        [pictures, numbers(0x801, &[count]).into_iter().chain((0..count).map(|i| (i % 10) as u8)).collect()]
    }

    /// A JPEG file of 32 x 32 pixels of one grey, by ISO/IEC 10918-1: sequential, not quantised, one code of each length.
    fn jpeg(grey: u8) -> Vec<u8> {
        let segment = |marker: u8, content: &[u8]| {
            [&[0xff, marker], &(content.len() as u16 + 2).to_be_bytes()[..], content].concat()
        };
        let lengths = |codes: u8, bits: usize| {
            let mut lengths = [0; 16];
            lengths[bits - 1] = codes;
            lengths
        };
        let categories: Vec<u8> = (0..12).collect();
        // The mean of the first block, then 0 more and the end for each block.
        let mean = (i32::from(grey) - 128) * 8;
        let category = 32 - mean.unsigned_abs().leading_zeros();
        let mut bits = format!("{category:04b}");
        if category > 0 {
            let value = if mean < 0 { mean + (1 << category) - 1 } else { mean };
            bits += &format!("{value:0width$b}", width = category as usize);
        }
        bits += "0";
        bits += &"00000".repeat(15);
        bits += &"1".repeat((8 - bits.len() % 8) % 8);
        let scan = bits.as_bytes().chunks(8).flat_map(|byte| {
            let byte = byte.iter().fold(0, |sum, bit| 2 * sum + (bit - b'0'));
            if byte == 0xff { vec![byte, 0] } else { vec![byte] }
        });
        [
            vec![0xff, 0xd8],
            segment(0xdb, &[&[0][..], &[1; 64]].concat()),
            segment(0xc0, &[8, 0, 32, 0, 32, 1, 1, 0x11, 0]),
            segment(0xc4, &[&[0x00][..], &lengths(12, 4), &categories].concat()),
            segment(0xc4, &[&[0x10][..], &lengths(1, 1), &[0]].concat()),
            segment(0xda, &[1, 1, 0x00, 0, 63, 0]),
            scan.collect(),
            vec![0xff, 0xd9],
        ]
        .concat()
    }

    fn jpegs(count: u8) -> Vec<u8> {
        let record = |i: u8| {
            let file = jpeg(20 * i);
            [[i % 10].as_slice(), &(file.len() as u16).to_le_bytes(), &file].concat()
        };
        (0..count).flat_map(record).collect()
    }

    fn config(path: &Path) -> ImageConfig {
        ImageConfig { path: Some(path.into()), valid_fraction: 0.2, ..ImageConfig::default() }
    }

    fn load(config: &ImageConfig) -> Result<TaskData, DataError> {
        config.check()?;
        config.load(1, None, &|_, _| {})
    }

    /// Targets and tokens of a split, and the length of a sequence.
    fn split(data: &TaskData, split: Split) -> (Vec<i32>, Vec<i32>, usize) {
        let batches: Vec<_> = data.split(split, 100).unwrap().collect();
        assert_eq!(batches.len(), 1);
        assert!(batches[0].tokens.padding.is_none());
        (batches[0].targets.to_vec(), batches[0].tokens.ids.to_vec(), batches[0].tokens.length)
    }

    /// Luma by hand: 0.2989 i + 0.587 * 2 i + 0.114 * 3 i = 1.8149 i.
    #[test]
    fn cifar_is_read_in_grey_and_its_last_pictures_are_for_validation() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "data_batch_1.bin", &cifar(0..6));
        write(directory.path(), "data_batch_2.bin", &cifar(6..10));
        write(directory.path(), "test_batch.bin.gz", &gzip(&cifar(20..23)));
        // A compressed copy beside a file is no second one.
        write(directory.path(), "data_batch_2.bin.gz", &gzip(&cifar(6..10)));
        write(directory.path(), "batches.meta.txt", b"names");
        let data = load(&config(directory.path())).unwrap();
        assert_eq!(data.shape().max_length, 1024);
        assert_eq!((data.shape().vocabulary, data.batches(1, 4).unwrap()(0).targets.len()), (256, 4));
        let (targets, ids, length) = split(&data, Split::Valid);
        assert_eq!((&targets[..], length, ids.len()), (&[8, 9][..], 1024, 2048));
        assert!(ids[..1024].iter().all(|id| *id == 14) && ids[1024..].iter().all(|id| *id == 16));
        let (targets, ids, _) = split(&data, Split::Test);
        assert_eq!((&targets[..], ids[0], ids[2047]), (&[0, 1, 2][..], 36, 38));
        let about = "CIFAR-10 in grey, the last 2 of training for validation: 8 training";
        assert!(data.setting().starts_with(about), "{}", data.setting());
        // A file of the directory stands for it, and parts of a set suffice.
        let part = ImageConfig { train: 5, test: 1, ..config(&directory.path().join("data_batch_1.bin")) };
        let part = load(&part).unwrap();
        assert_eq!((split(&part, Split::Valid).0, split(&part, Split::Test).0), (vec![4], vec![0]));
    }

    #[test]
    fn greys_are_those_of_the_usual_weights() {
        for (pixel, expected) in
            [([0, 0, 0], 0), ([255; 3], 255), ([255, 0, 0], 76), ([0, 255, 0], 149), ([0, 0, 255], 29)]
        {
            assert_eq!(grey(pixel), expected, "{pixel:?}");
        }
    }

    #[test]
    fn idx_files_have_their_own_size() {
        let directory = tempfile::tempdir().unwrap();
        let [pictures, labels] = idx(10, [4, 6]);
        write(directory.path(), "train20k-images-idx3-ubyte.gz", &gzip(&pictures));
        write(directory.path(), "train20k-labels-idx1-ubyte", &labels);
        let [pictures, labels] = idx(3, [4, 6]);
        write(directory.path(), "t10k-images-idx3-ubyte", &pictures);
        write(directory.path(), "t10k-labels-idx1-ubyte", &labels);
        let config = config(directory.path());
        assert_eq!(config.shape().max_length, 24);
        let data = load(&config).unwrap();
        let (targets, ids, length) = split(&data, Split::Test);
        assert_eq!((targets, length), (vec![0, 1, 2], 24));
        assert_eq!(ids, (0..72).collect::<Vec<_>>());
        assert_eq!(split(&data, Split::Valid).0, [8, 9]);
    }

    #[test]
    fn archives_of_jpeg_files_say_what_they_are() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "train.bin.gz", &gzip(&jpegs(10)));
        write(directory.path(), "test.bin", &jpegs(3));
        let data = load(&config(directory.path())).unwrap();
        let (targets, ids, length) = split(&data, Split::Test);
        assert_eq!((targets, length), (vec![0, 1, 2], 1024));
        for (i, picture) in ids.chunks(1024).enumerate() {
            assert!(picture.iter().all(|grey| (grey - 20 * i as i32).abs() <= 2), "{:?}", &picture[..4]);
        }
        assert!(data.setting().contains("JPEG"), "{}", data.setting());
    }

    #[test]
    fn truncated_and_malformed_files_are_named() {
        let error = |files: &[(&str, Vec<u8>)]| {
            let directory = tempfile::tempdir().unwrap();
            files.iter().for_each(|(name, bytes)| write(directory.path(), name, bytes));
            let error = load(&config(directory.path())).unwrap_err();
            assert!(!error.is_config(), "{error}");
            error.to_string()
        };
        assert!(error(&[]).contains("holds no pictures that are known here"));
        let sound = ("test_batch.bin", cifar(0..2));
        let mut labels = cifar(0..3);
        labels[3073] = 10;
        for (bytes, expected) in [
            (cifar(0..3)[..7000].to_vec(), "ends in picture 3"),
            (labels, "picture 2: label 10 is out of range"),
            (Vec::new(), "0 pictures for training"),
        ] {
            let error = error(&[("data_batch_1.bin", bytes), sound.clone()]);
            assert!(error.contains(expected), "{error}");
        }
        let [pictures, names] = idx(4, [2, 3]);
        let idx_set = |pictures: &[u8], labels: &[u8]| {
            vec![
                ("train-images-idx3-ubyte", pictures.to_vec()),
                ("train-labels-idx1-ubyte", labels.to_vec()),
                ("t10k-images-idx3-ubyte", idx(2, [2, 3])[0].clone()),
                ("t10k-labels-idx1-ubyte", idx(2, [2, 3])[1].clone()),
            ]
        };
        let mut huge = pictures.clone();
        huge[8..12].copy_from_slice(&[255; 4]);
        for (pictures, labels, expected) in [
            (&pictures[..pictures.len() - 1], &names[..], "train-images-idx3-ubyte: ends in picture 4"),
            (&pictures[..9], &names[..], "train-images-idx3-ubyte: ends in its header"),
            (&names[..], &names[..], "starts with 0x00000801, expected 0x00000803"),
            (&pictures[..], &idx(3, [1, 1])[1][..], "has 3 labels, but"),
            (&pictures[..], &names[..10], "ends in label 3"),
            (&huge[..], &names[..], "4294967295 pixels high"),
        ] {
            let error = error(&idx_set(pictures, labels));
            assert!(error.contains(expected), "{error}");
        }
        let archive = jpegs(4);
        let mut broken = archive.clone();
        broken[3..9].fill(0);
        for (bytes, expected) in [
            (archive[..archive.len() - 5].to_vec(), "ends in picture 4"),
            (archive[..2].to_vec(), "ends in picture 1"),
            (broken, "picture 1 is no JPEG"),
        ] {
            let error = error(&[("train.bin", bytes), ("test.bin", jpegs(1))]);
            assert!(error.contains(expected), "{error}");
        }
        let config = ImageConfig::default();
        assert!(config.check().unwrap_err().to_string().contains("task.image.path: is not set"));
    }
}
