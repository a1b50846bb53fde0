//! Charts as pictures.

use super::axis::{Ruler, drawable};
use super::chart::{Axis, Chart, Data, Mark, Point, Scale, Series};
use super::labels::{Area, beside, spread};
use super::number::{significant, whole};
use super::svg::{Anchor, Canvas, Letters, MARGIN, Paint, text_width};

/// Width of every chart.
const WIDTH: f64 = 760.0;
/// Height of the data area of lines and scatter.
const HEIGHT: f64 = 300.0;
/// Height of the row of one bar.
const ROW: f64 = 30.0;
/// Sizes of letters.
const TITLE: f64 = 16.0;
const TEXT: f64 = 13.0;
const TICK: f64 = 12.0;
/// Above the data: title, subtitle, name of the vertical axis.
const TOP: f64 = 84.0;
/// Below the data: ticks and name of the horizontal axis.
const BOTTOM: f64 = 50.0;
/// Markers on one line, at most.
const MARKERS: usize = 7;

/// The chart as a file.
pub(super) fn document(chart: &Chart) -> String {
    draw(chart, true)
}

/// The chart as an element of a page.
pub(super) fn inline(chart: &Chart) -> String {
    draw(chart, false)
}

/// The area of the data and the rulers along it.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x: Ruler,
    y: Ruler,
}

impl Frame {
    /// Place of a value; `None` when it has none.
    fn at(&self, x: f64, y: f64) -> Option<(f64, f64)> {
        // Far outside is as good as outside, and keeps numbers short.
        let limit = |place: f64| place.clamp(-50.0, 50.0);
        let (x, y) = (limit(self.x.place(x)?), limit(self.y.place(y)?));
        Some((self.left + x * (self.right - self.left), self.bottom - y * (self.bottom - self.top)))
    }

    fn holds(&self, place: (f64, f64)) -> bool {
        let (x, y) = place;
        x >= self.left - 0.5 && x <= self.right + 0.5 && y >= self.top - 0.5 && y <= self.bottom + 0.5
    }

    /// Ends of an error bar at `y`, kept inside the frame.
    fn bar(&self, x: f64, y: f64, deviation: f64) -> Option<(f64, f64)> {
        if !(deviation.is_finite() && deviation > 0.0) {
            return None;
        }
        let high = self.at(x, y + deviation)?.1;
        let low = self.at(x, y - deviation).map_or(self.bottom, |place| place.1);
        Some((high.clamp(self.top, self.bottom), low.clamp(self.top, self.bottom)))
    }
}

fn draw(chart: &Chart, file: bool) -> String {
    let mut canvas = Canvas::default();
    let heading = Letters::new(TITLE, Paint::Ink, Anchor::Start);
    canvas.text((MARGIN, 26.0), &chart.title, Letters { bold: true, ..heading });
    canvas.text((MARGIN, 46.0), &chart.subtitle, Letters::new(TEXT, Paint::Muted, Anchor::Start));
    let height = match &chart.data {
        Data::Lines(series) => lines(&mut canvas, chart, series),
        Data::Scatter(marks) => scatter(&mut canvas, chart, marks),
        Data::Bars(marks) => rows(&mut canvas, chart, marks, true),
        Data::Dots(marks) => rows(&mut canvas, chart, marks, false),
    };
    let height = height.unwrap_or_else(|| {
        canvas.text((WIDTH / 2.0, 110.0), "no values to show", Letters::new(TEXT, Paint::Muted, Anchor::Middle));
        150.0
    });
    canvas.finish((WIDTH, height), &chart.title, &chart.subtitle, file)
}

/// Name and unit of an axis.
fn name(axis: &Axis) -> String {
    // Ticks in bytes carry their unit.
    if axis.unit.is_empty() || axis.unit == "B" {
        axis.label.clone()
    } else {
        format!("{} ({})", axis.label, axis.unit)
    }
}

/// A value as a hint and at the end of a bar shows it.
fn written(value: f64, axis: &Axis) -> String {
    match axis.unit.as_str() {
        "%" => format!("{} %", significant(100.0 * value, 3)),
        "B" => super::number::bytes(value),
        unit => {
            let number = if value.fract() == 0.0 && (0.0..1e6).contains(&value) {
                whole(value as u128)
            } else if value.abs() >= 1e6 {
                super::number::count(value)
            } else {
                significant(value, 3)
            };
            if unit.is_empty() { number } else { format!("{number} {unit}") }
        }
    }
}

/// Ticks, grid and names of both axes.
fn axes(canvas: &mut Canvas, chart: &Chart, frame: &Frame) {
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

/// The rule across, with its name where it covers the least of `data`. Returns the place of the name.
fn rule(canvas: &mut Canvas, chart: &Chart, frame: &Frame, data: &[(f64, f64)]) -> Option<Area> {
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

/// Room for the texts of the ticks of a vertical axis.
fn tick_room(ruler: &Ruler) -> f64 {
    ruler.ticks.iter().map(|tick| text_width(&tick.1, TICK)).fold(0.0, f64::max) + 22.0
}

/// A name that fits: cut, with an ellipsis.
fn fitted(name: &str, room: f64) -> String {
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

fn lines(canvas: &mut Canvas, chart: &Chart, series: &[Series]) -> Option<f64> {
    let points = || series.iter().flat_map(|line| &line.points).filter(|p| drawable(p.x, chart.x.scale));
    let drawn = |p: &&Point| drawable(p.y, chart.y.scale);
    let ends = points().filter(drawn).flat_map(|p| {
        let deviation = if p.deviation.is_finite() { p.deviation } else { 0.0 };
        // On an axis of factors a deviation that reaches zero would stretch it without end.
        let low = if chart.y.scale == Scale::Linear { p.y - deviation } else { (p.y - deviation).max(p.y / 2.0) };
        [low, p.y, p.y + deviation]
    });
    let y = Ruler::fit(&chart.y, ends.chain(chart.rule.iter().map(|rule| rule.0)), false, true, 6)?;
    let x = Ruler::fit(&chart.x, points().filter(drawn).map(|p| p.x), false, false, 8)?;

    let shown: Vec<&Series> = series.iter().filter(|line| !line.points.is_empty()).collect();
    let names: Vec<String> = shown.iter().map(|line| fitted(&line.name, 190.0)).collect();
    let room = names.iter().map(|name| text_width(name, TEXT)).fold(0.0, f64::max) + 58.0;
    let height = HEIGHT.max(18.0 * shown.len() as f64);
    let frame = Frame { left: MARGIN + tick_room(&y), right: WIDTH - room, top: TOP, bottom: TOP + height, x, y };
    axes(canvas, chart, &frame);
    let data: Vec<_> = shown.iter().flat_map(|line| along(line, &frame)).collect();
    rule(canvas, chart, &frame, &data);

    let corner = (frame.left, frame.top - 1.0);
    canvas.clipped(corner, (frame.right - frame.left + 1.0, height + 2.0), |canvas| {
        for line in &shown {
            for piece in pieces(line, &frame) {
                band(canvas, &piece, line.style, &frame);
            }
        }
        for line in &shown {
            for piece in pieces(line, &frame) {
                let places: Vec<_> = piece.iter().filter_map(|p| frame.at(p.x, p.y)).collect();
                canvas.curve(&thinned(&places), line.style);
            }
        }
    });
    for (number, line) in shown.iter().enumerate() {
        markers(canvas, chart, line, number, &frame);
    }

    // Names stand where the lines end.
    let last = |line: &&Series| {
        let place = line.points.iter().rev().find_map(|p| frame.at(p.x, p.y));
        place.map_or((frame.right, frame.bottom), |(x, y)| (x.min(frame.right), y.clamp(frame.top, frame.bottom)))
    };
    let ends: Vec<(f64, f64)> = shown.iter().map(last).collect();
    let heights: Vec<f64> = ends.iter().map(|end| end.1).collect();
    let placed = spread(&heights, 18.0, frame.top + 4.0, frame.bottom - 4.0);
    for (((line, name), end), height) in shown.iter().zip(&names).zip(&ends).zip(placed) {
        let start = frame.right + 16.0;
        canvas.line((end.0 + 3.0, end.1), (start - 2.0, height), Paint::Grid, 1.0, "");
        canvas.curve(&[(start, height), (start + 26.0, height)], line.style);
        canvas.marker((start + 13.0, height), line.style, 4.0, "");
        canvas.text((start + 32.0, height + 4.5), name, Letters::new(TEXT, Paint::Ink, Anchor::Start));
    }
    Some(TOP + height + BOTTOM)
}

/// The parts of a series between values that have no place.
fn pieces<'a>(line: &'a Series, frame: &Frame) -> Vec<Vec<&'a Point>> {
    let mut pieces = vec![Vec::new()];
    for point in &line.points {
        if frame.at(point.x, point.y).is_some() {
            if let Some(piece) = pieces.last_mut() {
                piece.push(point);
            }
        } else {
            pieces.push(Vec::new());
        }
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

/// Places along the lines of a series, near enough to each other to tell what they cover.
fn along(line: &Series, frame: &Frame) -> Vec<(f64, f64)> {
    let mut places = Vec::new();
    for piece in pieces(line, frame) {
        let corners: Vec<_> = piece.iter().filter_map(|p| frame.at(p.x, p.y)).collect();
        for pair in thinned(&corners).windows(2) {
            let ((x, y), (to_x, to_y)) = (pair[0], pair[1]);
            let steps = ((to_x - x).hypot(to_y - y) / 4.0).clamp(1.0, 400.0).ceil();
            places.extend((0..steps as usize).map(|step| {
                let share = step as f64 / steps;
                (x + share * (to_x - x), y + share * (to_y - y))
            }));
        }
    }
    places
}

fn band(canvas: &mut Canvas, piece: &[&Point], style: usize, frame: &Frame) {
    if piece.iter().all(|p| !(p.deviation.is_finite() && p.deviation > 0.0)) {
        return;
    }
    let bar = |p: &&Point| {
        let (x, y) = frame.at(p.x, p.y)?;
        let (high, low) = frame.bar(p.x, p.y, p.deviation).unwrap_or((y, y));
        Some((x, high, low))
    };
    let bars: Vec<_> = piece.iter().filter_map(bar).collect();
    let upper: Vec<_> = bars.iter().map(|(x, high, _)| (*x, *high)).collect();
    let lower: Vec<_> = bars.iter().map(|(x, _, low)| (*x, *low)).collect();
    let mut outline = thinned(&upper);
    outline.extend(thinned(&lower).into_iter().rev());
    canvas.band(&outline, style);
}

/// Leaves out places that a reader could not tell from those around them: of each half pixel across, the first, the
/// last, the highest and the lowest stay.
fn thinned(places: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let column = |place: &(f64, f64)| (place.0 * 2.0).floor();
    let mut kept = Vec::new();
    for group in places.chunk_by(|a, b| column(a) == column(b)) {
        if group.len() <= 4 {
            kept.extend_from_slice(group);
            continue;
        }
        let by_height = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let picked = [group.first(), group.iter().min_by(by_height), group.iter().max_by(by_height), group.last()];
        kept.extend(picked.into_iter().flatten());
    }
    kept
}

/// A few markers along a line, shifted from series to series so that they do not hide each other.
fn markers(canvas: &mut Canvas, chart: &Chart, line: &Series, number: usize, frame: &Frame) {
    let count = line.points.len();
    let stride = count.div_ceil(MARKERS).max(1);
    for point in line.points.iter().skip(number * stride / 3 % stride).step_by(stride) {
        let Some(place) = frame.at(point.x, point.y).filter(|place| frame.holds(*place)) else { continue };
        let hint = format!("{}: {} at {}", line.name, written(point.y, &chart.y), written(point.x, &chart.x));
        canvas.marker(place, line.style, 4.0, &hint);
    }
}

fn scatter(canvas: &mut Canvas, chart: &Chart, marks: &[Mark]) -> Option<f64> {
    let shown: Vec<&Mark> =
        marks.iter().filter(|m| drawable(m.x, chart.x.scale) && drawable(m.y, chart.y.scale)).collect();
    let ends = shown.iter().flat_map(|m| [m.y - spread_of(m), m.y, m.y + spread_of(m)]);
    let ends = ends.chain(chart.rule.iter().map(|rule| rule.0));
    if shown.is_empty() {
        return None;
    }
    let y = Ruler::fit(&chart.y, ends, false, true, 6)?;
    let x = Ruler::fit(&chart.x, shown.iter().map(|m| m.x), false, true, 7)?;
    let frame =
        Frame { left: MARGIN + tick_room(&y), right: WIDTH - 24.0, top: TOP, bottom: TOP + HEIGHT + 20.0, x, y };
    axes(canvas, chart, &frame);
    let inside = |m: &Mark| frame.at(m.x, m.y).filter(|place| frame.holds(*place));
    let inside: Vec<(&Mark, (f64, f64))> = shown.iter().filter_map(|m| Some((*m, inside(m)?))).collect();
    let places: Vec<(f64, f64)> = inside.iter().map(|(_, place)| *place).collect();
    let mut obstacles: Vec<Area> = rule(canvas, chart, &frame, &places).into_iter().collect();
    for (mark, place) in &inside {
        if let Some((high, low)) = frame.bar(mark.x, mark.y, mark.deviation) {
            error_bar(canvas, mark.style, (place.0, high), (place.0, low));
            obstacles.push(Area { left: place.0 - 4.0, top: high, right: place.0 + 4.0, bottom: low });
        }
    }
    for (mark, place) in &inside {
        let deviation =
            if mark.deviation > 0.0 { format!(" ± {}", written(mark.deviation, &chart.y)) } else { String::new() };
        let hint = format!("{}: {}{deviation} at {}", mark.name, written(mark.y, &chart.y), written(mark.x, &chart.x));
        canvas.marker(*place, mark.style, 6.0, &hint);
    }
    let names: Vec<String> = inside.iter().map(|(mark, _)| fitted(&mark.name, 220.0)).collect();
    let sizes: Vec<(f64, f64)> = names.iter().map(|name| (text_width(name, TEXT), TEXT + 2.0)).collect();
    let area = Area { left: frame.left + 2.0, top: frame.top, right: frame.right, bottom: frame.bottom - 2.0 };
    for ((name, at), point) in names.iter().zip(beside(&places, &sizes, &obstacles, &area)).zip(&places) {
        let (x, y) = (at.left, at.bottom - 4.0);
        // A name that had to move away shows what it belongs to.
        let near = (point.0.clamp(at.left, at.right), point.1.clamp(at.top, at.bottom));
        if (near.0 - point.0).hypot(near.1 - point.1) > 13.0 {
            canvas.line(*point, near, Paint::Muted, 0.8, "");
        }
        canvas.text((x, y), name, Letters { halo: true, ..Letters::new(TEXT, Paint::Ink, Anchor::Start) });
    }
    Some(frame.bottom + BOTTOM)
}

/// A line between two places with a stroke across each end.
fn error_bar(canvas: &mut Canvas, style: usize, from: (f64, f64), to: (f64, f64)) {
    let paint = if style == usize::MAX { Paint::Ink } else { Paint::Series(style) };
    canvas.line(from, to, paint, 1.5, "");
    let (x, y) = if from.0 == to.0 { (4.0, 0.0) } else { (0.0, 4.0) };
    for end in [from, to] {
        canvas.line((end.0 - x, end.1 - y), (end.0 + x, end.1 + y), paint, 1.5, "");
    }
}

/// One named value a row: bars from zero, or dots.
fn rows(canvas: &mut Canvas, chart: &Chart, marks: &[Mark], bars: bool) -> Option<f64> {
    let scale = chart.y.scale;
    let values =
        marks.iter().filter(|m| drawable(m.y, scale)).flat_map(|m| [m.y - spread_of(m), m.y, m.y + spread_of(m)]);
    let values = values.chain(chart.rule.iter().map(|rule| rule.0));
    let ruler = marks.iter().any(|m| drawable(m.y, scale)).then(|| Ruler::fit(&chart.y, values, bars, true, 7))??;

    let names: Vec<String> = marks.iter().map(|mark| fitted(&mark.name, 220.0)).collect();
    let left = MARGIN + names.iter().map(|name| text_width(name, TEXT)).fold(0.0, f64::max) + 12.0;
    let texts: Vec<String> = marks.iter().map(|mark| fitted(&row_text(mark, chart), 220.0)).collect();
    let right = WIDTH - MARGIN - texts.iter().map(|text| text_width(text, TEXT)).fold(0.0, f64::max) - MARGIN;
    // The name of a rule stands above the rows.
    let top = if chart.rule.is_some() { 80.0 } else { 62.0 };
    let bottom = top + ROW * marks.len() as f64 + 6.0;
    let across = |value: f64| ruler.place(value).map(|place| left + place.clamp(0.0, 1.0) * (right - left));

    for (value, text) in &ruler.ticks {
        let Some(x) = across(*value) else { continue };
        canvas.line((x, top), (x, bottom), Paint::Grid, 1.0, "");
        canvas.text((x, bottom + 17.0), text, Letters::new(TICK, Paint::Muted, Anchor::Middle));
    }
    let base = left + ruler.base() * (right - left);
    if bars {
        canvas.line((base, top), (base, bottom), Paint::Muted, 1.0, "");
    }
    canvas.text(((left + right) / 2.0, bottom + 38.0), &name(&chart.y), Letters::new(TEXT, Paint::Ink, Anchor::Middle));
    for (row, ((mark, name), text)) in marks.iter().zip(&names).zip(&texts).enumerate() {
        let y = top + 3.0 + ROW * (row as f64 + 0.5);
        canvas.text((left - 10.0, y + 4.5), name, Letters::new(TEXT, Paint::Ink, Anchor::End));
        canvas.text((WIDTH - MARGIN, y + 4.5), text, Letters::new(TEXT, Paint::Ink, Anchor::End));
        let Some(x) = across(mark.y) else { continue };
        if bars {
            canvas.rect((x.min(base), y - 8.0), ((x - base).abs().max(1.0), 16.0), Paint::Series(mark.style));
        } else {
            canvas.line((left, y), (right, y), Paint::Grid, 1.0, "1 3");
        }
        if spread_of(mark) > 0.0 {
            let from = across(mark.y - spread_of(mark)).unwrap_or(left);
            let to = across(mark.y + spread_of(mark)).unwrap_or(right);
            error_bar(canvas, if bars { usize::MAX } else { mark.style }, (from, y), (to, y));
        }
        if !bars {
            canvas.marker((x, y), mark.style, 6.0, &format!("{}: {text}", mark.name));
        }
    }
    if let Some((value, text)) = &chart.rule
        && let Some(x) = across(*value)
    {
        canvas.line((x, top - 2.0), (x, bottom), Paint::Muted, 1.2, "5 4");
        let letters = Letters { halo: true, ..Letters::new(TICK, Paint::Muted, Anchor::Middle) };
        canvas.text((x, top - 4.0), text, letters);
    }
    Some(bottom + BOTTOM)
}

/// The value of a row in full, right of it.
fn row_text(mark: &Mark, chart: &Chart) -> String {
    if !drawable(mark.y, Scale::Linear) {
        return super::number::DASH.into();
    }
    let deviation = spread_of(mark);
    if chart.y.unit == "%" && mark.y.abs() < 1e3 && deviation < 1e3 {
        let format = super::Format::Percent(1);
        let deviation = (deviation > 0.0).then_some(deviation);
        return format.cell(&super::Cell::Estimate { mean: mark.y, deviation });
    }
    let value = written(mark.y, &chart.y);
    if deviation == 0.0 {
        return value;
    }
    let estimate = super::Cell::Estimate { mean: mark.y, deviation: Some(deviation) };
    match chart.y.unit.as_str() {
        "B" => super::Format::Bytes.cell(&estimate),
        unit => format!("{} {unit}", super::Format::Significant(3).cell(&estimate)).trim_end().to_owned(),
    }
}

/// The deviation where there is one that can be drawn, else 0.
fn spread_of(mark: &Mark) -> f64 {
    if drawable(mark.deviation, Scale::Linear) { mark.deviation.max(0.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn well_formed(chart: &Chart) -> usize {
        for svg in [chart.to_svg(), chart.to_inline_svg()] {
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{chart:?}");
            roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{error}: {chart:?}"));
        }
        chart.to_svg().matches("<path").count()
    }

    fn mark(name: &str, x: f64, y: f64, deviation: f64) -> Mark {
        Mark { name: name.into(), x, y, deviation, style: 0 }
    }

    #[test]
    fn odd_values_do_not_break_any_chart() {
        let values = [0.0, -1.0, 5.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e308, -1e308, 1e-308, 1e149, -1e149];
        let scales = [Scale::Linear, Scale::Log, Scale::Log2];
        for (x_scale, y_scale) in scales.iter().flat_map(|x| scales.map(|y| (*x, y))) {
            for unit in ["", "%", "B", "ms"] {
                let axes = |chart: Chart| {
                    chart
                        .axes(Axis::new("x<&\"", unit).scale(x_scale), Axis::new("y", unit).scale(y_scale))
                        .rule(f64::NAN, "<r>")
                };
                let marks: Vec<Mark> =
                    values.iter().flat_map(|x| values.map(|y| mark("<&'\u{1}\">", *x, y, *x))).collect();
                let points = marks.iter().map(|m| Point { x: m.x, y: m.y, deviation: m.deviation }).collect();
                let series = vec![Series { name: "</svg>".into(), points, style: usize::MAX }];
                for data in
                    [Data::Lines(series), Data::Scatter(marks.clone()), Data::Bars(marks.clone()), Data::Dots(marks)]
                {
                    well_formed(&axes(Chart::new("<title> & \"x\"", "]]>", data)));
                }
            }
        }
    }

    #[test]
    fn nothing_to_show_is_said() {
        let empty = [
            Data::Lines(vec![]),
            Data::Lines(vec![Series::new("a", 0, [])]),
            Data::Lines(vec![Series::new("a", 0, [(0.0, f64::NAN)])]),
            Data::Bars(vec![]),
            Data::Dots(vec![mark("a", 0.0, f64::INFINITY, 0.0)]),
            Data::Scatter(vec![mark("a", f64::NAN, 1.0, 0.0)]),
        ];
        for data in empty {
            let chart = Chart::new("t", "s", data).rule(0.5, "chance");
            assert!(chart.to_svg().contains("no values to show") || matches!(chart.data, Data::Lines(_)), "{chart:?}");
            well_formed(&chart);
        }
    }

    #[test]
    fn lines_break_where_values_are_missing() {
        let line = |values: &[f64]| {
            let points = values.iter().enumerate().map(|(x, y)| (x as f64, *y));
            well_formed(&Chart::new("", "", Data::Lines(vec![Series::new("a", 0, points)])))
        };
        // One more piece of line, one marker less.
        assert_eq!(line(&[1.0, 2.0, f64::NAN, 2.0, 1.0]), line(&[1.0, 2.0, 3.0, 2.0, 1.0]));
        assert_eq!(line(&[1.0, 2.0, 3.0, 2.0]) + 1, line(&[1.0, 2.0, 3.0, 2.0, 1.0]));
    }

    #[test]
    fn long_curves_stay_small() {
        let noise = (0..200_000u64).map(|i| (i as f64, (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64));
        let chart = Chart::new("", "", Data::Lines(vec![Series::new("a", 0, noise)]));
        assert!(chart.to_svg().len() < 100_000, "{}", chart.to_svg().len());
    }

    #[test]
    fn runs_are_averaged_step_by_step() {
        let runs = [vec![(0.0, 1.0), (1.0, 2.0)], vec![(0.0, 3.0), (1.0, f64::NAN), (2.0, 5.0)]];
        let series = Series::over_runs("a", 0, &runs);
        let flat: Vec<_> = series.points.iter().map(|p| (p.x, p.y, p.deviation)).collect();
        assert_eq!(flat, [(0.0, 2.0, 2f64.sqrt()), (1.0, 2.0, 0.0), (2.0, 5.0, 0.0)]);
    }
}
