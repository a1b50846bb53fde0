//! Matrices as coloured cells. [`HeatMap::to_svg`] draws all panels, [`Panel::to_png`] the cells of one.

use super::{draw, png};

/// How values map to colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shade {
    /// From white at 0 to dark blue at the largest value, by the square root: small weights stay visible next to large
    /// ones.
    Weights,
    /// White at 0, orange below, blue above, up to the largest magnitude.
    Signed,
}

/// One matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// Title above it.
    pub title: String,
    /// Number of cell rows.
    pub rows: usize,
    /// Number of cell columns.
    pub columns: usize,
    /// Cell values, row by row; non-finite ones are grey.
    pub values: Vec<f64>,
    /// Numbers of matrix rows and columns that the cells represent, for the labels along the edges.
    pub ends: [usize; 2],
}

/// Panels that share one colour scale.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatMap {
    /// Title.
    pub title: String,
    /// Second line: the setting.
    pub subtitle: String,
    /// Name of the horizontal axis.
    pub x: String,
    /// Name of the vertical axis.
    pub y: String,
    /// Colour mapping.
    pub shade: Shade,
    /// End of the scale; default: the largest magnitude. Values beyond have the colour of the end.
    pub end: Option<f64>,
    /// The matrices.
    pub panels: Vec<Panel>,
}

/// Red, green, blue.
pub(super) type Colour = [u8; 3];

impl Shade {
    /// The colour at `share` of the scale: 0 to 1, signed -1 to 1.
    pub(super) fn colour(self, share: f64) -> Colour {
        const WHITE: Colour = [255, 255, 255];
        // Blue and orange of the charts, and darker shades.
        const BLUE: [Colour; 4] = [WHITE, [146, 196, 229], [0, 114, 178], [0, 32, 72]];
        const ORANGE: [Colour; 4] = [WHITE, [246, 188, 140], [213, 94, 0], [94, 34, 0]];
        if !share.is_finite() {
            return [160, 160, 160];
        }
        let (ramp, share) = match self {
            Self::Weights => (&BLUE, share.clamp(0.0, 1.0).sqrt()),
            Self::Signed if share < 0.0 => (&ORANGE, share.max(-1.0).abs()),
            Self::Signed => (&BLUE, share.min(1.0)),
        };
        let place = share * (ramp.len() - 1) as f64;
        let below = (place as usize).min(ramp.len() - 2);
        let part = place - below as f64;
        let mix = |c: usize| f64::from(ramp[below][c]) * (1.0 - part) + f64::from(ramp[below + 1][c]) * part;
        [0, 1, 2].map(|c| mix(c).round() as u8)
    }

    /// Ends of the scale for a given largest magnitude.
    pub(super) fn ends(self, most: f64) -> [f64; 2] {
        match self {
            Self::Weights => [0.0, most],
            Self::Signed => [-most, most],
        }
    }
}

impl Panel {
    /// The cells as a PNG with `most` at the end of the scale, each cell a square, large enough that the image has at
    /// least 256 pixels per side.
    ///
    /// # Panics
    /// Without cells, or if there are not `rows * columns` values.
    pub fn to_png(&self, shade: Shade, most: f64) -> Vec<u8> {
        let side = 256usize.div_ceil(self.rows.min(self.columns)).clamp(1, 64);
        self.pixels(shade, most, side)
    }

    /// The cells as a PNG, each a square of `side` pixels.
    pub(super) fn pixels(&self, shade: Shade, most: f64, side: usize) -> Vec<u8> {
        assert_eq!(self.values.len(), self.rows * self.columns, "values of a panel");
        let [width, height] = [self.columns * side, self.rows * side];
        let mut bytes = Vec::with_capacity(3 * width * height);
        for y in 0..height {
            let row = &self.values[y / side * self.columns..][..self.columns];
            for value in row {
                let share = if most > 0.0 { value / most } else { *value };
                bytes.extend(std::iter::repeat_n(shade.colour(share), side).flatten());
            }
        }
        png::encode(width, height, &bytes)
    }
}

impl HeatMap {
    /// End of the scale.
    pub fn most(&self) -> f64 {
        self.end.unwrap_or_else(|| self.largest())
    }

    /// The largest magnitude of a finite value over all panels.
    pub(super) fn largest(&self) -> f64 {
        let values = self.panels.iter().flat_map(|panel| &panel.values);
        values.filter(|value| value.is_finite()).fold(0.0, |most: f64, value| most.max(value.abs()))
    }

    /// The image as a standalone file, on white.
    pub fn to_svg(&self) -> String {
        draw::heat_document(self, true)
    }

    /// The image for a page with the style sheet (see [`super::html`]).
    pub fn to_inline_svg(&self) -> String {
        draw::heat_document(self, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_of_the_scale() {
        assert_eq!(Shade::Weights.colour(0.0), [255, 255, 255]);
        assert_eq!(Shade::Weights.colour(1.0), [0, 32, 72]);
        // A ninth of the scale is a third of the ramp.
        assert_eq!(Shade::Weights.colour(1.0 / 9.0), [146, 196, 229]);
        assert_eq!(Shade::Signed.colour(-2.0), [94, 34, 0]);
        assert_eq!(Shade::Signed.colour(2.0 / 3.0), [0, 114, 178]);
        assert_eq!(Shade::Signed.colour(f64::NAN), [160; 3]);
    }

    #[test]
    fn cells_become_squares() {
        let panel = Panel { title: String::new(), rows: 1, columns: 2, values: vec![0.0, 4.0], ends: [1, 2] };
        let bytes = panel.pixels(Shade::Weights, 4.0, 2);
        let (width, height, pixels) = png::decode(&bytes);
        assert_eq!((width, height), (4, 2));
        let line: Vec<u8> = [[255, 255, 255], [255, 255, 255], [0, 32, 72], [0, 32, 72]].concat();
        assert_eq!(pixels, [line.clone(), line].concat());
    }

    #[test]
    fn pictures_are_well_formed() {
        let panel = |rows: usize, columns: usize, value: f64| Panel {
            title: "<head> & 1".into(),
            rows,
            columns,
            values: vec![value; rows * columns],
            ends: [rows, columns],
        };
        for shade in [Shade::Weights, Shade::Signed] {
            for value in [0.0, 1.0, -3.0, f64::NAN, f64::INFINITY] {
                let panels = vec![panel(3, 5, value), panel(1, 1, 1.0), panel(256, 2, value)];
                let (title, x, y) = ("<t>".to_owned(), "key".to_owned(), "query".to_owned());
                let map = HeatMap { title, subtitle: "&".into(), x, y, shade, end: None, panels };
                for svg in [map.to_svg(), map.to_inline_svg()] {
                    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
                    let document = roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{error}"));
                    let images = document.descendants().filter(|node| node.tag_name().name() == "image").count();
                    assert_eq!(images, 4, "three panels and the scale");
                }
            }
        }
    }
}
