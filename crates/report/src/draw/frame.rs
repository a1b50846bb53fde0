//! Common parts of all charts: the plot area, axes, reference lines, names and error bars.

use super::super::axis::{Ruler, drawable};
use super::super::chart::{Axis, Chart, Mark, Scale};
use super::super::labels::Area;
use super::super::number::{bytes, count, significant, whole};
use super::super::svg::{Anchor, Canvas, Letters, MARGIN, Paint, text_width};

/// Width of every chart.
pub const WIDTH: f64 = 760.0;
/// Height of the plot area of line and scatter charts.
pub const HEIGHT: f64 = 300.0;
/// Row height of one bar.
pub const ROW: f64 = 30.0;
/// Font sizes.
pub const TITLE: f64 = 16.0;
pub const TEXT: f64 = 13.0;
pub const TICK: f64 = 12.0;
/// Space above the plot area: title, subtitle, name of the vertical axis.
pub const TOP: f64 = 84.0;
/// Space below the plot area: ticks and name of the horizontal axis.
pub const BOTTOM: f64 = 50.0;

/// The plot area and its rulers.
pub struct Frame {
    pub left: f64,
    pub right: f64,
    pub top: f64,
    pub bottom: f64,
    pub x: Ruler,
    pub y: Ruler,
}

impl Frame {
    /// Position of a point; `None` if it cannot be drawn.
    pub fn at(&self, x: f64, y: f64) -> Option<(f64, f64)> {
        // Clamp points far outside, which keeps numbers short.
        let limit = |place: f64| place.clamp(-50.0, 50.0);
        let (x, y) = (limit(self.x.place(x)?), limit(self.y.place(y)?));
        Some((self.left + x * (self.right - self.left), self.bottom - y * (self.bottom - self.top)))
    }

    pub fn holds(&self, place: (f64, f64)) -> bool {
        let (x, y) = place;
        x >= self.left - 0.5 && x <= self.right + 0.5 && y >= self.top - 0.5 && y <= self.bottom + 0.5
    }

    /// Ends of an error bar that extends `below` and `above` `y`, clamped to the frame.
    pub fn bar(&self, x: f64, y: f64, below: f64, above: f64) -> Option<(f64, f64)> {
        if !spreads(below, above) {
            return None;
        }
        let high = self.at(x, y + above)?.1;
        let low = self.at(x, y - below).map_or(self.bottom, |place| place.1);
        Some((high.clamp(self.top, self.bottom), low.clamp(self.top, self.bottom)))
    }
}

/// Whether there is a band or bar to draw.
pub fn spreads(below: f64, above: f64) -> bool {
    below.is_finite() && above.is_finite() && below >= 0.0 && above >= 0.0 && below + above > 0.0
}

/// Name and unit of an axis.
pub fn name(axis: &Axis) -> String {
    // Ticks in bytes carry their unit.
    if axis.unit.is_empty() || axis.unit == "B" {
        axis.label.clone()
    } else {
        format!("{} ({})", axis.label, axis.unit)
    }
}

/// A value as shown in a tooltip and at the end of a bar.
pub fn written(value: f64, axis: &Axis) -> String {
    match axis.unit.as_str() {
        "%" => format!("{} %", significant(100.0 * value, 3)),
        "B" => bytes(value),
        unit => {
            let number = if value.fract() == 0.0 && (0.0..1e6).contains(&value) {
                whole(value as u128)
            } else if value.abs() >= 1e6 {
                count(value)
            } else {
                significant(value, 3)
            };
            if unit.is_empty() { number } else { format!("{number} {unit}") }
        }
    }
}

/// Draws ticks, grid and names of both axes.
pub fn axes(canvas: &mut Canvas, chart: &Chart, frame: &Frame) {
    let tick = |anchor| Letters::new(TICK, Paint::Muted, anchor);
    for (value, text) in &frame.y.ticks {
        let Some(place) = frame.y.place(*value) else { continue };
        let y = frame.bottom - place * (frame.bottom - frame.top);
        canvas.line((frame.left, y), (frame.right, y), Paint::Grid, 1.0, "");
        canvas.text((frame.left - 8.0, y + 4.0), text, tick(Anchor::End));
    }
    for (value, text) in &frame.x.ticks {
        let Some(place) = frame.x.place(*value) else { continue };
        let x = frame.left + place * (frame.right - frame.left);
        canvas.line((x, frame.bottom), (x, frame.bottom + 5.0), Paint::Muted, 1.0, "");
        canvas.text((x, frame.bottom + 19.0), text, tick(Anchor::Middle));
    }
    canvas.line((frame.left, frame.bottom), (frame.right, frame.bottom), Paint::Muted, 1.0, "");
    let ink = |anchor| Letters::new(TEXT, Paint::Ink, anchor);
    canvas.text((MARGIN, TOP - 12.0), &name(&chart.y), ink(Anchor::Start));
    canvas.text(((frame.left + frame.right) / 2.0, frame.bottom + 40.0), &name(&chart.x), ink(Anchor::Middle));
}

/// Draws the reference line, with its name where it covers the least of `data`. Returns the position of the name.
pub fn rule(canvas: &mut Canvas, chart: &Chart, frame: &Frame, data: &[(f64, f64)]) -> Option<Area> {
    let (value, text) = chart.rule.as_ref()?;
    let place = frame.y.place(*value).filter(|place| (0.0..=1.0).contains(place))?;
    let y = frame.bottom - place * (frame.bottom - frame.top);
    canvas.line((frame.left, y), (frame.right, y), Paint::Muted, 1.2, "5 4");
    let wide = text_width(text, TICK);
    let sides = [(frame.right - 6.0 - wide, y - 5.0), (frame.left + 6.0, y - 5.0)];
    let below = sides.map(|(left, _)| (left, y + TICK + 3.0)).into_iter().filter(|(_, base)| *base < frame.bottom);
    let area = |(left, base): (f64, f64)| Area { left, top: base - TICK, right: left + wide, bottom: base + 3.0 };
    let covered = |area: &Area| data.iter().filter(|place| area.holds(**place)).count();
    let area = sides.into_iter().chain(below).map(area).min_by_key(covered)?;
    let letters = Letters { halo: true, ..Letters::new(TICK, Paint::Muted, Anchor::Start) };
    canvas.text((area.left, area.bottom - 3.0), text, letters);
    Some(area)
}

/// Room for the tick labels of a vertical axis.
pub fn tick_room(ruler: &Ruler) -> f64 {
    ruler.ticks.iter().map(|tick| text_width(&tick.1, TICK)).fold(0.0, f64::max) + 22.0
}

/// A name truncated to fit, with an ellipsis.
pub fn fitted(name: &str, room: f64) -> String {
    if text_width(name, TEXT) <= room {
        return name.to_owned();
    }
    let mut short = String::new();
    for letter in name.chars() {
        if text_width(&short, TEXT) + text_width("m…", TEXT) > room {
            break;
        }
        short.push(letter);
    }
    short + "…"
}

/// A line between two points with a cap at each end.
pub fn error_bar(canvas: &mut Canvas, style: usize, from: (f64, f64), to: (f64, f64)) {
    let paint = if style == usize::MAX { Paint::Ink } else { Paint::Series(style) };
    canvas.line(from, to, paint, 1.5, "");
    let (x, y) = if from.0 == to.0 { (4.0, 0.0) } else { (0.0, 4.0) };
    for end in [from, to] {
        canvas.line((end.0 - x, end.1 - y), (end.0 + x, end.1 + y), paint, 1.5, "");
    }
}

/// The deviation if it can be drawn, else 0.
pub fn spread_of(mark: &Mark) -> f64 {
    if drawable(mark.deviation, Scale::Linear) { mark.deviation.max(0.0) } else { 0.0 }
}
