//! Growing contours paddle by paddle without touching what is there.

use std::f64::consts::{FRAC_PI_2, PI, TAU};

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::{
    config::Geometry,
    draw::{Canvas, Paddle, Point, SLACK, direction, step},
};

/// Draws of a first paddle, and of a next one, before a contour is given up.
const PADDLE_TRIES: usize = 3;

/// A paddle is refused where its own claim and what is taken add up to this.
const OVERLAP: f32 = 1.8;

/// A pixel is free for a first paddle where nothing it claims whole is taken by more than this.
const FREE: f32 = 0.3;

/// Random pixels that are tried before all free ones are listed, which takes longer. Both choose among the free ones
/// with equal probability.
const DRAWS_BEFORE_SEARCH: usize = 32;

/// Sums of candidate weights below this are a dead end.
const DEAD_END: f64 = 1e-4;

/// What the pictures of one margin are drawn with.
#[derive(Clone, Debug)]
pub(super) struct Pen {
    pub geometry: Geometry,
    pub margin: usize,
    /// First paddles, by whole degrees.
    first: Vec<Paddle>,
    /// Where a next paddle may end.
    next: Vec<Candidate>,
}

/// An end of a next paddle.
#[derive(Clone, Debug)]
struct Candidate {
    /// Its place, relative to the middle of the gap before the paddle.
    offset: Point,
    /// Its angle from there.
    angle: f64,
    /// The paddle, drawn back from it.
    paddle: Paddle,
}

/// A contour while it grows. Its last paddle is drawn but not claimed: the next one starts beside it.
#[derive(Clone, Debug)]
pub(super) struct Contour {
    /// Where it starts.
    pub origin: Point,
    /// Where it ends.
    pub tip: Point,
    /// Where the last paddle was drawn from, and which one of the pen's it is.
    last: (Point, Index),
    /// The middle of the gap before the last paddle.
    pivot: Point,
    /// Direction of the last paddle.
    angle: f64,
}

/// A paddle of a pen.
#[derive(Clone, Copy, Debug)]
enum Index {
    First(usize),
    Next(usize),
}

impl Pen {
    pub fn new(geometry: Geometry, margin: usize) -> Self {
        let Geometry { length, thickness, contrast, .. } = geometry;
        let paddle = |angle: f64| Paddle::new(angle, length, thickness, margin, contrast);
        let next = around(length + margin).into_iter().map(|offset| {
            let angle = f64::from(offset.0).atan2(f64::from(offset.1));
            Candidate { offset, angle, paddle: paddle(angle + PI) }
        });
        let first = (0..360u32).map(|degrees| paddle(f64::from(degrees).to_radians()));
        Self { geometry, margin, first: first.collect(), next: next.collect() }
    }

    fn paddle(&self, index: Index) -> &Paddle {
        match index {
            Index::First(degrees) => &self.first[degrees],
            Index::Next(i) => &self.next[i].paddle,
        }
    }

    /// A contour of one paddle from `tail`, if its end and the middle of the gap before it lie in the picture.
    fn start(&self, canvas: &mut Canvas, tail: Point, degrees: usize) -> Option<Contour> {
        let angle = (degrees as f64).to_radians();
        let tip = step(tail, angle, self.geometry.length);
        let pivot = step(tip, angle + PI, self.geometry.length + self.margin);
        if !canvas.contains(tip) || !canvas.contains(pivot) {
            return None;
        }
        canvas.draw(&self.first[degrees], tail);
        Some(Contour { origin: tail, tip, last: (tail, Index::First(degrees)), pivot, angle })
    }

    /// A contour from a random free pixel at least `border` pixels away from the sides.
    pub fn anywhere(&self, canvas: &mut Canvas, border: usize, random: &mut ChaCha8Rng) -> Option<Contour> {
        for _ in 0..PADDLE_TRIES {
            let degrees = random.random_range(0..360);
            let tail = self.free(canvas, border, degrees, random)?;
            if let Some(contour) = self.start(canvas, tail, degrees) {
                return Some(contour);
            }
        }
        None
    }

    /// A contour that starts at the seed distance from another one.
    pub fn beside(&self, canvas: &mut Canvas, other: &Contour, random: &mut ChaCha8Rng) -> Option<Contour> {
        for _ in 0..PADDLE_TRIES {
            let (degrees, way) = (random.random_range(0..360), random.random_range(0..360u32));
            let (dy, dx) = direction(f64::from(way).to_radians());
            let distance = self.geometry.seed_distance as f64;
            let place = |start: i32, part: f64| start + (part * distance).round() as i32;
            let tail = (place(other.origin.0, dy), place(other.origin.1, dx));
            if let Some(contour) = self.start(canvas, tail, degrees) {
                return Some(contour);
            }
        }
        None
    }

    /// A random one of the pixels from which a first paddle claims nothing that is taken or in the border.
    fn free(&self, canvas: &Canvas, border: usize, degrees: usize, random: &mut ChaCha8Rng) -> Option<Point> {
        let footprint: Vec<Point> = self.first[degrees].footprint().collect();
        let inside = border as i32..(self.geometry.size - border) as i32;
        let fits = |&(y, x): &Point| {
            footprint
                .iter()
                .map(|(dy, dx)| (y + dy, x + dx))
                .all(|point| inside.contains(&point.0) && inside.contains(&point.1) && canvas.taken(point) <= FREE)
        };
        for _ in 0..DRAWS_BEFORE_SEARCH {
            let point = (random.random_range(inside.clone()), random.random_range(inside.clone()));
            if fits(&point) {
                return Some(point);
            }
        }
        let all = inside.clone().flat_map(|y| inside.clone().map(move |x| (y, x)));
        let free: Vec<Point> = all.filter(fits).collect();
        (!free.is_empty()).then(|| free[random.random_range(0..free.len())])
    }

    /// Adds a paddle to a contour; `None` in a dead end.
    pub fn extend(&self, canvas: &mut Canvas, contour: &mut Contour, random: &mut ChaCha8Rng) -> Option<()> {
        let pivot = step(contour.pivot, contour.angle, self.geometry.length + 2 * self.margin);
        let weights: Vec<f64> =
            self.next.iter().map(|candidate| self.weight(canvas, pivot, candidate, contour.angle)).collect();
        let total: f64 = weights.iter().sum();
        if total < DEAD_END {
            return None;
        }
        for _ in 0..PADDLE_TRIES {
            let i = chosen(&weights, random.random::<f64>() * total);
            let Candidate { offset, angle, paddle } = &self.next[i];
            let tip = (pivot.0 + offset.0, pivot.1 + offset.1);
            if canvas.overlap(paddle, tip) < OVERLAP {
                canvas.draw(paddle, tip);
                let (start, last) = std::mem::replace(&mut contour.last, (tip, Index::Next(i)));
                canvas.claim(self.paddle(last), start);
                (contour.tip, contour.pivot, contour.angle) = (tip, pivot, *angle);
                return Some(());
            }
        }
        None
    }

    /// Weight of a candidate around `pivot`: large in the direction `ahead`, 0 where the picture is taken and outside.
    fn weight(&self, canvas: &Canvas, pivot: Point, Candidate { offset, angle, .. }: &Candidate, ahead: f64) -> f64 {
        let point = (pivot.0 + offset.0, pivot.1 + offset.1);
        let turn = (angle - ahead).rem_euclid(TAU);
        let turn = turn.min(TAU - turn) * self.geometry.continuity;
        if turn >= FRAC_PI_2 || !canvas.contains(point) {
            return 0.0;
        }
        f64::from(1.0 - canvas.taken_around(point, self.margin)) * turn.cos().powi(2)
    }

    /// Claims the place of the last paddle of a contour too.
    pub fn finish(&self, canvas: &mut Canvas, contour: &Contour) {
        canvas.claim(self.paddle(contour.last.1), contour.last.0);
    }
}

/// The distinct pixels on a circle around a pixel, one for each pixel of its length, relative to its middle.
///
/// Pixels are named by their lower corner: [`step`] rounds up, so that neither direction is favoured.
fn around(radius: usize) -> Vec<Point> {
    let radius = radius as f64;
    let count = (TAU * radius).ceil() as usize;
    let on_circle = (0..count).map(|i| direction(i as f64 / radius));
    let mut points: Vec<Point> = on_circle
        .map(|(dy, dx)| ((dy * radius + SLACK).floor() as i32, (dx * radius + SLACK).floor() as i32))
        .collect();
    points.sort_unstable();
    points.dedup();
    points
}

/// The place at which the running sum of weights passes `level`.
fn chosen(weights: &[f64], level: f64) -> usize {
    let mut sum = 0.0;
    let passes = |weight: &f64| {
        sum += weight;
        sum > level
    };
    let last = weights.iter().rposition(|weight| *weight > 0.0);
    weights.iter().position(passes).or(last).expect("weights with a positive sum")
}
