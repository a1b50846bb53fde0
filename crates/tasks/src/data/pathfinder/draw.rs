//! Drawing: the canvas, the paddles, the discs.

use std::f64::consts::FRAC_1_SQRT_2;

/// Samples per pixel along each axis. With 4 no sample lies on the edge of an upright paddle of 0.5, 1, 1.5 or 2 pixels.
const SAMPLES: usize = 4;

/// Added to distances before they are compared or rounded, so that errors of rounding in sines and cosines decide
/// nothing.
pub(super) const SLACK: f64 = 1e-9;

/// A pixel `(y, x)`, possibly outside of the picture.
pub(super) type Point = (i32, i32);

/// Direction `(y, x)` of an angle in radians.
pub(super) fn direction(angle: f64) -> (f64, f64) {
    angle.sin_cos()
}

/// The pixel `distance` away from `from` at `angle`, rounded up.
pub(super) fn step(from: Point, angle: f64, distance: usize) -> Point {
    let (dy, dx) = direction(angle);
    let move_by = |start: i32, part: f64| start + (part * distance as f64 - SLACK).ceil() as i32;
    (move_by(from.0, dy), move_by(from.1, dx))
}

/// What a paddle does to the pixels around its start.
#[derive(Clone, Debug)]
pub(super) struct Paddle {
    /// Offset from the start, brightness, and share of the pixel that no other contour may enter.
    pixels: Vec<(Point, f32, f32)>,
}

impl Paddle {
    /// A segment of `length` from the middle of a pixel at `angle`. It is drawn `thickness` wide with brightness
    /// `contrast`, and claims everything within `margin` of what is drawn.
    pub fn new(angle: f64, length: usize, thickness: f64, margin: usize, contrast: f64) -> Self {
        let (dy, dx) = direction(angle);
        let length = length as f64;
        let (drawn, claimed) = (thickness / 2.0 + SLACK, thickness / 2.0 + margin as f64 + SLACK);
        // Squared distance of a point from the segment.
        let distance = |y: f64, x: f64| {
            let along = (y * dy + x * dx).clamp(0.0, length);
            (y - along * dy).powi(2) + (x - along * dx).powi(2)
        };
        let bounds = |end: f64| {
            let (low, high) = (end.min(0.0) - claimed - 0.5, end.max(0.0) + claimed + 0.5);
            low.floor() as i32..=high.ceil() as i32
        };
        let mut pixels = Vec::new();
        for y in bounds(length * dy) {
            for x in bounds(length * dx) {
                let middle = distance(f64::from(y), f64::from(x)).sqrt();
                let share = |radius: f64| match middle {
                    // No sample is farther than this from the middle of its pixel.
                    _ if middle > radius + FRAC_1_SQRT_2 => 0.0,
                    _ if middle < radius - FRAC_1_SQRT_2 => 1.0,
                    _ => share(|sy, sx| distance(f64::from(y) + sy, f64::from(x) + sx) <= radius * radius),
                };
                let mask = share(claimed);
                if mask > 0.0 {
                    pixels.push(((y, x), share(drawn) * contrast as f32, mask));
                }
            }
        }
        Self { pixels }
    }

    /// Offsets of the pixels that the paddle claims whole.
    pub fn footprint(&self) -> impl Iterator<Item = Point> + '_ {
        self.pixels.iter().filter(|(.., mask)| *mask >= 1.0).map(|(offset, ..)| *offset)
    }
}

/// Share of the samples of a pixel that lie `inside`, given by their place relative to its middle.
fn share(inside: impl Fn(f64, f64) -> bool) -> f32 {
    let place = |i: usize| (i as f64 + 0.5) / SAMPLES as f64 - 0.5;
    let all = SAMPLES * SAMPLES;
    (0..all).filter(|i| inside(place(i / SAMPLES), place(i % SAMPLES))).count() as f32 / all as f32
}

/// A picture that is being drawn, and what of it is taken.
#[derive(Clone, Debug)]
pub(super) struct Canvas {
    size: i32,
    /// Brightness, from 0; above 1 is clipped in the end.
    image: Vec<f32>,
    /// Occupancy, 0 to 1.
    taken: Vec<f32>,
}

impl Canvas {
    /// An empty picture whose border of `padding` pixels is taken.
    pub fn new(size: usize, padding: usize) -> Self {
        let mut taken = vec![1.0; size * size];
        for row in taken.chunks_exact_mut(size).skip(padding).take(size - 2 * padding) {
            row[padding..size - padding].fill(0.0);
        }
        Self { size: size as i32, image: vec![0.0; size * size], taken }
    }

    /// Whether a pixel is in the picture.
    pub fn contains(&self, (y, x): Point) -> bool {
        (0..self.size).contains(&y) && (0..self.size).contains(&x)
    }

    /// Index of a pixel in the picture.
    fn at(&self, point: Point) -> Option<usize> {
        self.contains(point).then(|| (point.0 * self.size + point.1) as usize)
    }

    /// Occupancy of a pixel; 1 outside.
    pub fn taken(&self, point: Point) -> f32 {
        self.at(point).map_or(1.0, |i| self.taken[i])
    }

    /// Largest occupancy within `radius` of a pixel, in the picture.
    pub fn taken_around(&self, (y, x): Point, radius: usize) -> f32 {
        let r = radius as i32;
        let disc =
            (-r..=r).flat_map(|dy| (-r..=r).map(move |dx| (dy, dx))).filter(|(dy, dx)| dy * dy + dx * dx <= r * r);
        disc.filter_map(|(dy, dx)| self.at((y + dy, x + dx))).map(|i| self.taken[i]).fold(0.0, f32::max)
    }

    /// Largest sum of occupancy and a paddle's own.
    pub fn overlap(&self, paddle: &Paddle, start: Point) -> f32 {
        self.pixels(paddle, start).map(|(i, _, mask)| self.taken[i] + mask).fold(0.0, f32::max)
    }

    /// Draws a paddle, without claiming its place.
    pub fn draw(&mut self, paddle: &Paddle, start: Point) {
        for (offset, line, _) in &paddle.pixels {
            if let Some(i) = self.at((start.0 + offset.0, start.1 + offset.1)) {
                self.image[i] = self.image[i].max(*line);
            }
        }
    }

    /// Claims the place of a paddle.
    pub fn claim(&mut self, paddle: &Paddle, start: Point) {
        for (offset, _, mask) in &paddle.pixels {
            if let Some(i) = self.at((start.0 + offset.0, start.1 + offset.1)) {
                self.taken[i] = self.taken[i].max(*mask);
            }
        }
    }

    /// Draws a disc around the middle of a pixel.
    pub fn disc(&mut self, (y, x): Point, radius: f64) {
        let reach = radius.ceil() as i32;
        for (dy, dx) in (-reach..=reach).flat_map(|dy| (-reach..=reach).map(move |dx| (dy, dx))) {
            let from_middle = |sy: f64, sx: f64| (f64::from(dy) + sy).powi(2) + (f64::from(dx) + sx).powi(2);
            let share = share(|sy, sx| from_middle(sy, sx) <= radius * radius + SLACK);
            if let Some(i) = self.at((y + dy, x + dx)) {
                self.image[i] = self.image[i].max(share);
            }
        }
    }

    /// Grey values, 0 to 255, row by row.
    pub fn greys(&self) -> Vec<u8> {
        self.image.iter().map(|value| (value.min(1.0) * 255.0).round() as u8).collect()
    }

    fn pixels<'a>(&'a self, paddle: &'a Paddle, start: Point) -> impl Iterator<Item = (usize, f32, f32)> + 'a {
        let place = move |(offset, line, mask): &(Point, f32, f32)| {
            self.at((start.0 + offset.0, start.1 + offset.1)).map(|i| (i, *line, *mask))
        };
        paddle.pixels.iter().filter_map(place)
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::PI;

    use super::*;

    #[test]
    fn steps_round_up_and_right_angles_are_exact() {
        assert_eq!(step((5, 5), 0.0, 3), (5, 8));
        assert_eq!(step((5, 5), PI, 3), (5, 2));
        assert_eq!(step((5, 5), PI / 2.0, 3), (8, 5));
        assert_eq!(step((5, 5), -PI / 2.0, 3), (2, 5));
        // 3 / sqrt 2 = 2.12.
        assert_eq!(step((5, 5), PI / 4.0, 3), (8, 8));
        assert_eq!(step((5, 5), -3.0 * PI / 4.0, 3), (3, 3));
    }

    /// Half a pixel wide along the middle of pixels: half of each is covered.
    #[test]
    fn a_paddle_covers_its_segment_and_claims_its_margin() {
        let paddle = Paddle::new(0.0, 4, 0.5, 1, 1.5);
        let value = |y: i32, x: i32| {
            paddle
                .pixels
                .iter()
                .find(|(offset, ..)| *offset == (y, x))
                .map_or((0.0, 0.0), |(_, line, mask)| (*line, *mask))
        };
        assert_eq!(value(0, 2), (0.75, 1.0));
        assert_eq!(value(1, 2), (0.0, 0.75));
        assert_eq!(value(2, 2), (0.0, 0.0));
        assert_eq!(value(0, -1), (0.0, 0.75));
        assert!(value(0, 5).1 > 0.0 && value(0, 6).1 == 0.0);
        let whole: Vec<Point> = paddle.footprint().collect();
        assert_eq!(whole, [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]);
    }

    #[test]
    fn what_is_drawn_keeps_its_length_at_every_angle() {
        for degrees in 0..360 {
            let paddle = Paddle::new(f64::from(degrees).to_radians(), 5, 1.0, 2, 1.0);
            let area: f32 = paddle.pixels.iter().map(|(_, line, _)| line).sum();
            // 5 x 1 and two half discs.
            assert!((area - 5.785).abs() < 0.7, "{area} at {degrees} degrees");
        }
    }

    #[test]
    fn discs_and_claims_end_at_the_border() {
        let mut canvas = Canvas::new(8, 1);
        canvas.disc((0, 0), 1.5);
        canvas.claim(&Paddle::new(0.0, 3, 1.0, 1, 1.0), (4, 6));
        assert_eq!(canvas.greys()[0], 255);
        assert_eq!(
            (canvas.taken((0, 3)), canvas.taken((4, 6)), canvas.taken((4, 2)), canvas.taken((-1, 0))),
            (1.0, 1.0, 0.0, 1.0)
        );
        assert_eq!(canvas.taken_around((4, 3), 1), 0.0);
        assert_eq!(canvas.taken_around((4, 3), 2), canvas.taken((4, 5)));
    }
}
