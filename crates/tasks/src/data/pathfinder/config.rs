//! Options of Pathfinder, and the sizes that go with each size of picture.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::CLASSES;
use crate::data::{DataError, GREYS, Held, Objective, Progress, Shape, TaskData, TaskOptions, cache};

/// The Pathfinder generator; the defaults are those of Long Range Arena.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PathfinderConfig {
    /// Side of a picture in pixels: 32, 64, 128 or 256. A sequence has `size * size` tokens.
    pub size: usize,
    /// How long the contours are.
    pub difficulty: Difficulty,
    /// Number of training pictures.
    pub train: usize,
    /// Number of validation pictures.
    pub valid: usize,
    /// Number of test pictures.
    pub test: usize,
}

/// Length of the two contours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Difficulty {
    /// 6 paddles.
    Easy,
    /// 9 paddles.
    Intermediate,
    /// 14 paddles, as in Long Range Arena.
    #[default]
    Hard,
}

/// What a picture is drawn with. Lengths are in pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    /// Side of the picture.
    pub size: usize,
    /// Width of the border that no paddle may touch.
    pub padding: usize,
    /// Length of a paddle.
    pub length: usize,
    /// Half the gap between paddles, and the least distance to another contour; one of these for each picture.
    pub margins: &'static [usize],
    /// Radius of a disc.
    pub marker_radius: f64,
    /// Thickness of a paddle.
    pub thickness: f64,
    /// Distance between the starts of the two contours.
    pub seed_distance: usize,
    /// How straight contours are: angles count this many times.
    pub continuity: f64,
    /// Brightness of a paddle before values are clipped to 1.
    pub contrast: f64,
    /// Paddles of all distractors together.
    pub distractor_paddles: usize,
}

/// By size. The four that Long Range Arena lists, with the defaults of the generator that it used where it lists
/// nothing (paddles of 5 pixels from 64 up; border and seed distance at 256).
const GEOMETRIES: [Geometry; 4] = [
    Geometry {
        size: 32,
        padding: 1,
        length: 2,
        margins: &[1],
        marker_radius: 1.5,
        thickness: 0.5,
        seed_distance: 7,
        continuity: 1.0,
        contrast: 1.5,
        distractor_paddles: 20,
    },
    Geometry {
        size: 64,
        padding: 1,
        length: 5,
        margins: &[1],
        marker_radius: 2.5,
        thickness: 1.0,
        seed_distance: 12,
        continuity: 1.8,
        contrast: 0.8,
        distractor_paddles: 22,
    },
    Geometry {
        size: 128,
        padding: 1,
        length: 5,
        margins: &[2, 3],
        marker_radius: 3.0,
        thickness: 1.5,
        seed_distance: 20,
        continuity: 1.8,
        contrast: 0.9,
        distractor_paddles: 35,
    },
    Geometry {
        size: 256,
        padding: 22,
        length: 5,
        margins: &[3],
        marker_radius: 5.0,
        thickness: 2.0,
        seed_distance: 27,
        continuity: 1.8,
        contrast: 1.0,
        distractor_paddles: 30,
    },
];

impl Default for PathfinderConfig {
    fn default() -> Self {
        Self { size: 32, difficulty: Difficulty::Hard, train: 160_000, valid: 20_000, test: 20_000 }
    }
}

impl Difficulty {
    /// Paddles of each of the two contours.
    pub fn paddles(self) -> usize {
        match self {
            Self::Easy => 6,
            Self::Intermediate => 9,
            Self::Hard => 14,
        }
    }

    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Easy => "easy",
            Self::Intermediate => "intermediate",
            Self::Hard => "hard",
        }
    }
}

impl PathfinderConfig {
    /// What pictures of this size are drawn with.
    pub(super) fn geometry(&self) -> Result<Geometry, DataError> {
        GEOMETRIES.into_iter().find(|geometry| geometry.size == self.size).ok_or_else(|| {
            let sizes = "expected 32 (Long Range Arena), 64, 128 or 256";
            DataError::config("pathfinder.size", format!("is {}, {sizes}", self.size))
        })
    }

    /// Total number of pictures over the three splits.
    pub(in crate::data) fn total(&self) -> Result<usize, DataError> {
        let total = self.test.checked_add(self.valid).and_then(|sum| sum.checked_add(self.train));
        total.filter(|total| total.checked_mul(self.size * self.size).is_some()).ok_or_else(|| {
            DataError::config("pathfinder.train", "train + valid + test overflow; ask for fewer pictures")
        })
    }

    /// Tokens of a picture.
    pub(in crate::data) fn tokens(&self) -> usize {
        self.size.saturating_mul(self.size)
    }
}

impl TaskOptions for PathfinderConfig {
    fn summary(&self) -> &'static str {
        "Long Range Arena Pathfinder, generated: whether one dashed contour joins two discs, pixel by pixel"
    }

    fn check(&self) -> Result<(), DataError> {
        self.geometry()?;
        for (key, count) in [("train", self.train), ("valid", self.valid), ("test", self.test)] {
            if count == 0 {
                return Err(DataError::config(&format!("pathfinder.{key}"), "is 0; must be at least 1"));
            }
        }
        self.total().map(|_| ())
    }

    fn load(&self, seed: u64, cache_dir: Option<&Path>, progress: Progress<'_>) -> Result<TaskData, DataError> {
        Ok(Box::new(cache::load_pathfinder(self, seed, cache_dir, progress)?))
    }

    fn shape(&self) -> Shape {
        Shape { objective: Objective::Classify { classes: CLASSES }, vocabulary: GREYS, max_length: self.tokens() }
    }

    fn smallest_batch(&self, rows: usize) -> [usize; 2] {
        [rows.min(self.train), self.tokens()]
    }

    fn held(&self) -> Option<Held> {
        let pictures: u128 = [self.train, self.valid, self.test].iter().map(|count| *count as u128).sum();
        Some(Held {
            what: format!("{pictures} pictures of {} x {} pixels need at least", self.size, self.size),
            bytes: pictures * self.tokens() as u128,
            remedy: "lower task.pathfinder.train",
        })
    }
}
