//! Parallel generation of pictures, with the same result for any number of threads.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::{
    CLASSES, PathfinderConfig,
    contour::{Contour, Pen},
    draw::Canvas,
};
use crate::data::{DataError, Progress, Sequences, Streams, TaskOptions};

/// Pictures between two progress reports.
const BLOCK: u64 = 4096;

/// Draws of a distractor before it is left out.
const DISTRACTOR_TRIES: usize = 5;

/// An item of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Grey values, row by row.
    pub greys: Vec<u8>,
    /// Whether one contour joins the discs.
    pub joined: bool,
}

/// `test + valid + train` pictures, in this order, so that a smaller training set leaves the other two unchanged.
///
/// Picture `i` is drawn from stream `i` of `seed`, so the number of threads changes nothing. `progress` counts pictures.
///
/// # Errors
/// Options that fail [`TaskOptions::check`].
pub fn generate(config: &PathfinderConfig, seed: u64, progress: Progress<'_>) -> Result<Sequences, DataError> {
    config.check()?;
    let (pens, total) = (pens(config)?, config.total()? as u64);
    let streams = streams(seed);
    let paddles = config.difficulty.paddles();
    let mut pictures = Sequences::new(CLASSES);
    progress(0, total);
    for start in (0..total).step_by(BLOCK as usize) {
        let block = start..(start + BLOCK).min(total);
        let drawn: Vec<Picture> =
            block.clone().into_par_iter().map(|i| draw(&pens, paddles, &mut streams.at(i))).collect();
        for Picture { greys, joined } in &drawn {
            pictures.push(greys, usize::from(*joined))?;
        }
        progress(block.end, total);
    }
    Ok(pictures)
}

/// Picture `index` of the set of `seed`.
///
/// ```
/// use regard_tasks::data::pathfinder::{PathfinderConfig, picture};
///
/// let config = PathfinderConfig::default();
/// let first = picture(&config, 1, 0)?;
/// assert_eq!(first.greys.len(), 32 * 32);
/// assert_eq!(first, picture(&config, 1, 0)?);
/// # Ok::<(), regard_tasks::data::DataError>(())
/// ```
///
/// # Errors
/// Options that fail [`TaskOptions::check`].
pub fn picture(config: &PathfinderConfig, seed: u64, index: u64) -> Result<Picture, DataError> {
    config.check()?;
    Ok(draw(&pens(config)?, config.difficulty.paddles(), &mut streams(seed).at(index)))
}

fn streams(seed: u64) -> Streams {
    Streams::new(seed, "pathfinder")
}

/// One pen for each margin.
fn pens(config: &PathfinderConfig) -> Result<Vec<Pen>, DataError> {
    let geometry = config.geometry()?;
    Ok(geometry.margins.iter().map(|margin| Pen::new(geometry, *margin)).collect())
}

fn draw(pens: &[Pen], paddles: usize, random: &mut ChaCha8Rng) -> Picture {
    let joined = random.random::<bool>();
    let pen = &pens[random.random_range(0..pens.len())];
    let geometry = &pen.geometry;
    let (mut canvas, contours) = loop {
        let mut canvas = Canvas::new(geometry.size, geometry.padding);
        if let Some(contours) = two_contours(pen, paddles, &mut canvas, random) {
            break (canvas, contours);
        }
    };
    let length = paddles / 3;
    for _ in 0..geometry.distractor_paddles / length {
        for _ in 0..DISTRACTOR_TRIES {
            let mut trial = canvas.clone();
            if distractor(pen, length, &mut trial, random).is_some() {
                canvas = trial;
                break;
            }
        }
    }
    let first = usize::from(random.random::<bool>());
    let second = if joined { first } else { 1 - first };
    canvas.disc(contours[first].origin, geometry.marker_radius);
    canvas.disc(contours[second].tip, geometry.marker_radius);
    Picture { greys: canvas.greys(), joined }
}

/// Two contours of `paddles` that start near each other and take turns; `None` if one of them comes to a dead end.
fn two_contours(pen: &Pen, paddles: usize, canvas: &mut Canvas, random: &mut ChaCha8Rng) -> Option<[Contour; 2]> {
    let first = pen.anywhere(canvas, 2 * pen.geometry.seed_distance, random)?;
    let second = pen.beside(canvas, &first, random)?;
    let mut contours = [first, second];
    for _ in 1..paddles {
        for contour in &mut contours {
            pen.extend(canvas, contour, random)?;
        }
    }
    contours.iter().for_each(|contour| pen.finish(canvas, contour));
    Some(contours)
}

fn distractor(pen: &Pen, paddles: usize, canvas: &mut Canvas, random: &mut ChaCha8Rng) -> Option<()> {
    // The sides themselves are no place to start.
    let mut contour = pen.anywhere(canvas, 1, random)?;
    for _ in 1..paddles {
        pen.extend(canvas, &mut contour, random)?;
    }
    pen.finish(canvas, &contour);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::pathfinder::Difficulty;

    fn small(size: usize, difficulty: Difficulty) -> PathfinderConfig {
        PathfinderConfig { size, difficulty, train: 60, valid: 20, test: 20 }
    }

    #[test]
    fn any_number_of_threads_draws_the_same_pictures_and_more_training_leaves_the_rest() {
        let config = small(32, Difficulty::Hard);
        let with = |threads: usize, config: &PathfinderConfig| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| generate(config, 5, &|_, _| {}).unwrap())
        };
        let one = with(1, &config);
        assert_eq!(one, with(3, &config));
        let more = with(3, &PathfinderConfig { train: 100, ..config.clone() });
        assert_eq!(more.slice(0..100), one);
        assert_ne!(generate(&config, 6, &|_, _| {}).unwrap(), one);
        let seventh = picture(&config, 5, 7).unwrap();
        assert_eq!((one.symbols(7), one.label(7)), (&seventh.greys[..], usize::from(seventh.joined)));
    }

    /// Every size and difficulty: half of the pictures joined, in each the discs of full brightness, and the more paddles
    /// the brighter.
    #[test]
    fn pictures_of_every_size_and_difficulty() {
        for (size, count) in [(32, 400), (64, 60), (128, 20), (256, 4)] {
            let mut last = 0.0;
            for difficulty in [Difficulty::Easy, Difficulty::Intermediate, Difficulty::Hard] {
                let config = PathfinderConfig { train: count - 2, valid: 1, test: 1, ..small(size, difficulty) };
                let drawn = generate(&config, 3, &|_, _| {}).unwrap();
                assert_eq!(drawn.tokens(), count * size * size);
                // Four standard errors.
                let (joined, expected) = (drawn.labels().sum::<usize>() as f64, count as f64 / 2.0);
                assert!((joined - expected).abs() <= 2.0 * (count as f64).sqrt(), "{joined} of {count} joined");
                let bright = |i: usize| drawn.symbols(i).iter().filter(|grey| **grey == 255).count() as f64;
                let disc = std::f64::consts::PI * config.geometry().unwrap().marker_radius.powi(2);
                // One disc but for its edge, in case the other lies on it.
                assert!((0..count).all(|i| bright(i) > disc / 2.0), "size {size}");
                let pictures = (0..count).flat_map(|i| drawn.symbols(i));
                let mean = pictures.map(|grey| f64::from(*grey)).sum::<f64>() / count as f64;
                assert!(mean > last, "{size} {difficulty:?}: {mean} after {last}");
                last = mean;
            }
        }
    }

    /// The two contours keep their length and do not run over each other: nothing is claimed twice but at the edges.
    #[test]
    fn contours_have_their_paddles_and_keep_apart() {
        let config = small(32, Difficulty::Hard);
        let geometry = config.geometry().unwrap();
        let pen = Pen::new(geometry, 1);
        let mut found = 0;
        for i in 0..400 {
            let random = &mut streams(8).at(i);
            let mut canvas = Canvas::new(geometry.size, geometry.padding);
            let Some(contours) = two_contours(&pen, 14, &mut canvas, random) else { continue };
            found += 1;
            for contour in &contours {
                assert!(canvas.contains(contour.origin) && canvas.contains(contour.tip));
                assert!(canvas.taken(contour.origin) >= 1.0 && canvas.taken(contour.tip) >= 1.0);
            }
            // Fourteen paddles of two pixels and their gaps, at least half a pixel thick.
            let ink: f64 = canvas.greys().iter().map(|grey| f64::from(*grey) / 255.0).sum();
            let whole = 2.0 * 14.0 * (2.0 * 0.5 + 0.2) * 1.5;
            assert!((0.85 * whole..1.1 * whole).contains(&ink), "{ink} of {whole}");
        }
        assert!(found >= 4, "{found} of 400");
    }
}
