//! Shapes as SVG text, and the visual style: colours, dashes, markers, fonts.
//!
//! Written here rather than by a plotting crate: a report needs class names for dark pages, dashes and markers that
//! match colours, and non-overlapping labels, none of which such a crate provides; and text uses the reader's fonts, so
//! that none has to be found or linked.
//!
//! Every shape carries its light colour as an attribute, which any viewer reads, and a class, by which
//! [`dark_style`] recolours the charts of a page.

use super::escape::escape;

/// Font of every chart.
pub(super) const FONT: &str =
    "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif";

/// Left margin.
pub(super) const MARGIN: f64 = 14.0;

/// One way to draw a series.
struct Style {
    light: &'static str,
    dark: &'static str,
    dash: &'static str,
    marker: Marker,
}

#[derive(Clone, Copy)]
enum Marker {
    Circle,
    Square,
    Up,
    Diamond,
    Down,
    Cross,
    Plus,
    Hexagon,
}

const fn style(light: &'static str, dark: &'static str, dash: &'static str, marker: Marker) -> Style {
    Style { light, dark, dash, marker }
}

/// The colour-blind-safe palette of Okabe and Ito; yellow, too pale on white, is replaced by a brown. No two share both
/// dash and marker, so they differ in greyscale too.
const STYLES: [Style; 8] = [
    style("#0072b2", "#4ea8de", "", Marker::Circle),
    style("#d55e00", "#ff8a3d", "9 3", Marker::Square),
    style("#009e73", "#2fc79b", "3 2.5", Marker::Up),
    style("#b4598f", "#e39ac5", "9 3 2 3", Marker::Diamond),
    style("#c98500", "#f2b632", "14 4", Marker::Down),
    style("#3a9bd8", "#9ad4f7", "6 2.5", Marker::Cross),
    style("#444444", "#d8d8d8", "2 2", Marker::Plus),
    style("#8c510a", "#cf9f63", "12 3 2 3 2 3", Marker::Hexagon),
];

/// Colour role of a shape.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Paint {
    /// Main text and rules.
    Ink,
    /// Secondary text.
    Muted,
    /// Grid lines.
    Grid,
    /// Background.
    Paper,
    /// A series.
    Series(usize),
}

impl Paint {
    fn light(self) -> &'static str {
        match self {
            Self::Ink => "#1f2328",
            Self::Muted => "#59636e",
            Self::Grid => "#dde1e6",
            Self::Paper => "#ffffff",
            Self::Series(number) => STYLES[number % STYLES.len()].light,
        }
    }

    fn dark(self) -> &'static str {
        match self {
            Self::Ink => "#e6edf3",
            Self::Muted => "#9aa4af",
            Self::Grid => "#30363d",
            Self::Paper => "#14181d",
            Self::Series(number) => STYLES[number % STYLES.len()].dark,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Ink => "ink".into(),
            Self::Muted => "muted".into(),
            Self::Grid => "grid".into(),
            Self::Paper => "paper".into(),
            Self::Series(number) => (number % STYLES.len()).to_string(),
        }
    }

    fn fill(self) -> String {
        format!("class=\"f-{}\" fill=\"{}\"", self.name(), self.light())
    }

    fn stroke(self) -> String {
        format!("class=\"s-{}\" stroke=\"{}\"", self.name(), self.light())
    }
}

/// CSS rules that recolour every chart for a dark page; for use inside a media query.
pub(super) fn dark_style() -> String {
    let named = [Paint::Ink, Paint::Muted, Paint::Grid, Paint::Paper];
    let all = named.into_iter().chain((0..STYLES.len()).map(Paint::Series));
    let rules = all.map(|paint| {
        let (name, color) = (paint.name(), paint.dark());
        format!("svg .f-{name}{{fill:{color}}} svg .s-{name}{{stroke:{color}}}\n")
    });
    rules.collect::<String>() + &format!("svg .halo{{stroke:{}}}\n", Paint::Paper.dark())
}

/// Text anchor.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Text style.
#[derive(Clone, Copy)]
pub(super) struct Letters {
    pub size: f64,
    pub bold: bool,
    pub paint: Paint,
    pub anchor: Anchor,
    /// Whether to draw a background halo, for text over lines.
    pub halo: bool,
}

impl Letters {
    pub fn new(size: f64, paint: Paint, anchor: Anchor) -> Self {
        Self { size, bold: false, paint, anchor, halo: false }
    }
}

/// Estimated width of a text in a sans-serif font, from typical widths of Latin letters; rather too wide than too
/// narrow.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    let em = |letter: char| match letter {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' => 0.28,
        ' ' | 't' | 'f' | 'r' | '(' | ')' | '[' | ']' | '/' | '-' => 0.36,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 0.88,
        'A'..='Z' => 0.68,
        letter if (letter as u32) > 0x2e80 => 1.0,
        _ => 0.57,
    };
    // Allows for the widest common font.
    1.1 * size * text.chars().map(em).sum::<f64>()
}

/// Shapes in painting order.
#[derive(Default)]
pub(super) struct Canvas {
    body: String,
}

/// A length to a tenth of a pixel; non-finite values must not get here, and would be drawn at the corner.
fn px(value: f64) -> String {
    let value = if value.is_finite() { value } else { 0.0 };
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

impl Canvas {
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), paint: Paint, width: f64, dash: &str) {
        let dash = if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
        self.body += &format!(
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" {} stroke-width=\"{width}\"{dash}/>\n",
            px(from.0),
            px(from.1),
            px(to.0),
            px(to.1),
            paint.stroke()
        );
    }

    /// A line of a series through these points, with its dash.
    pub fn curve(&mut self, places: &[(f64, f64)], number: usize) {
        let Some(path) = path(places) else { return };
        let dash = STYLES[number % STYLES.len()].dash;
        let dash = if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
        self.body += &format!(
            "<path d=\"{path}\" fill=\"none\" {} stroke-width=\"2\" stroke-linejoin=\"round\"{dash}/>\n",
            Paint::Series(number).stroke()
        );
    }

    /// The area inside these points, lightly in the colour of a series.
    pub fn band(&mut self, places: &[(f64, f64)], number: usize) {
        let Some(path) = path(places) else { return };
        self.body += &format!("<path d=\"{path}Z\" {} fill-opacity=\"0.16\"/>\n", Paint::Series(number).fill());
    }

    pub fn rect(&mut self, corner: (f64, f64), size: (f64, f64), paint: Paint) {
        self.body += &format!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" {}/>\n",
            px(corner.0),
            px(corner.1),
            px(size.0.max(0.0)),
            px(size.1.max(0.0)),
            paint.fill()
        );
    }

    pub fn text(&mut self, at: (f64, f64), text: &str, letters: Letters) {
        let anchor = match letters.anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let weight = if letters.bold { " font-weight=\"600\"" } else { "" };
        let (x, y, size) = (px(at.0), px(at.1), px(letters.size));
        let text = escape(text);
        if letters.halo {
            // Drawn twice, since not every viewer can paint a stroke below the text.
            let ground = Paint::Paper.light();
            self.body += &format!(
                "<text class=\"f-paper halo\" x=\"{x}\" y=\"{y}\" font-size=\"{size}\"{anchor}{weight} fill=\"{ground}\" stroke=\"{ground}\" stroke-width=\"4\" stroke-linejoin=\"round\" aria-hidden=\"true\">{text}</text>\n"
            );
        }
        let fill = letters.paint.fill();
        self.body += &format!("<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\"{anchor}{weight} {fill}>{text}</text>\n");
    }

    /// A text turned to read upwards.
    pub fn upwards(&mut self, at: (f64, f64), text: &str, letters: Letters) {
        self.body += &format!("<g transform=\"translate({} {}) rotate(-90)\">\n", px(at.0), px(at.1));
        self.text((0.0, 0.0), text, letters);
        self.body += "</g>\n";
    }

    /// Everything that `draw` draws, lower by `down`.
    pub fn lowered<T>(&mut self, down: f64, draw: impl FnOnce(&mut Self) -> T) -> T {
        if down == 0.0 {
            return draw(self);
        }
        self.body += &format!("<g transform=\"translate(0 {})\">\n", px(down));
        let drawn = draw(self);
        self.body += "</g>\n";
        drawn
    }

    /// The marker of a series, with a tooltip.
    pub fn marker(&mut self, at: (f64, f64), number: usize, radius: f64, hint: &str) {
        let (x, y) = at;
        let polygon = |corners: &[(f64, f64)]| {
            let corners: Vec<_> = corners.iter().map(|c| (x + radius * c.0, y + radius * c.1)).collect();
            path(&corners).unwrap_or_default() + "Z"
        };
        let bar = 0.38;
        let plus = [
            (-bar, -1.15),
            (bar, -1.15),
            (bar, -bar),
            (1.15, -bar),
            (1.15, bar),
            (bar, bar),
            (bar, 1.15),
            (-bar, 1.15),
            (-bar, bar),
            (-1.15, bar),
            (-1.15, -bar),
            (-bar, -bar),
        ];
        let turned = plus.map(|(x, y)| ((x - y) * 0.707, (x + y) * 0.707));
        let path = match STYLES[number % STYLES.len()].marker {
            Marker::Circle => {
                let r = px(radius);
                format!(
                    "M{} {}a{r} {r} 0 1 0 {} 0a{r} {r} 0 1 0 -{} 0Z",
                    px(x - radius),
                    px(y),
                    px(2.0 * radius),
                    px(2.0 * radius)
                )
            }
            Marker::Square => polygon(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
            Marker::Up => polygon(&[(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)]),
            Marker::Down => polygon(&[(0.0, 1.2), (1.1, -0.8), (-1.1, -0.8)]),
            Marker::Diamond => polygon(&[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)]),
            Marker::Cross => polygon(&turned),
            Marker::Plus => polygon(&plus),
            Marker::Hexagon => {
                polygon(&[(-1.1, 0.0), (-0.55, -0.95), (0.55, -0.95), (1.1, 0.0), (0.55, 0.95), (-0.55, 0.95)])
            }
        };
        let hint = if hint.is_empty() { String::new() } else { format!("<title>{}</title>", escape(hint)) };
        let fill = Paint::Series(number).fill();
        let ground = Paint::Paper.light();
        // The ring separates overlapping markers; no other class applies to it, so dark pages recolour it by `halo`.
        let (class, fill) = fill.split_once("\" ").unwrap_or((&fill, ""));
        self.body +=
            &format!("<path d=\"{path}\" {class} halo\" {fill} stroke=\"{ground}\" stroke-width=\"1\">{hint}</path>\n");
    }

    /// An embedded raster image, stretched to this size.
    pub fn image(&mut self, corner: (f64, f64), size: (f64, f64), address: &str) {
        self.body += &format!(
            "<image x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" preserveAspectRatio=\"none\" \
             style=\"image-rendering:pixelated\" href=\"{address}\"/>\n",
            px(corner.0),
            px(corner.1),
            px(size.0),
            px(size.1)
        );
    }

    /// Everything that `draw` draws, clipped to this rectangle.
    pub fn clipped(&mut self, corner: (f64, f64), size: (f64, f64), draw: impl FnOnce(&mut Self)) {
        let (x, y, wide, high) = (px(corner.0), px(corner.1), px(size.0), px(size.1));
        // A nested viewport clips without an identifier, which charts on one page would share.
        self.body += &format!(
            "<svg x=\"{x}\" y=\"{y}\" width=\"{wide}\" height=\"{high}\" viewBox=\"{x} {y} {wide} {high}\" overflow=\"hidden\">\n"
        );
        draw(self);
        self.body += "</svg>\n";
    }

    /// The image with this size. `file`: a standalone document on white, else an element of a page.
    pub fn finish(self, size: (f64, f64), title: &str, description: &str, file: bool) -> String {
        // A page has its own margin.
        let left = if file { 0.0 } else { MARGIN };
        let (left, wide, high) = (px(left), px(size.0 - left), px(size.1));
        let mut ground = Self::default();
        if file {
            ground.rect((0.0, 0.0), size, Paint::Paper);
        }
        let prolog = if file { "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n" } else { "" };
        let class = if file { "" } else { " class=\"chart\"" };
        let (font, title, description) = (escape(FONT), escape(title), escape(description));
        format!(
            "{prolog}<svg xmlns=\"http://www.w3.org/2000/svg\"{class} role=\"img\" width=\"{wide}\" height=\"{high}\" \
             viewBox=\"{left} 0 {wide} {high}\" font-family=\"{font}\">\n\
             <title>{title}</title>\n<desc>{description}</desc>\n{}{}</svg>\n",
            ground.body, self.body
        )
    }
}

fn path(places: &[(f64, f64)]) -> Option<String> {
    let (first, rest) = places.split_first()?;
    let mut path = format!("M{} {}", px(first.0), px(first.1));
    for place in rest {
        path += &format!("L{} {}", px(place.0), px(place.1));
    }
    Some(path)
}
