//! Named values: points of a scatter chart, bars, dots.

use super::super::axis::{Ruler, drawable};
use super::super::chart::{Chart, Mark, Scale};
use super::super::labels::{Area, beside};
use super::super::number::DASH;
use super::super::svg::{Anchor, Canvas, Letters, MARGIN, Paint, text_width};
use super::super::table::{Cell, Format};
use super::frame::{
    BOTTOM, Frame, HEIGHT, ROW, TEXT, TICK, TOP, WIDTH, axes, error_bar, fitted, name, rule, spread_of, tick_room,
    written,
};

/// Draws labelled points and returns the image height; `None` if there is nothing to show.
pub fn scatter(canvas: &mut Canvas, chart: &Chart, marks: &[Mark]) -> Option<f64> {
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
        if let Some((high, low)) = frame.bar(mark.x, mark.y, mark.deviation, mark.deviation) {
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
        // A displaced name gets a leader line.
        let near = (point.0.clamp(at.left, at.right), point.1.clamp(at.top, at.bottom));
        if (near.0 - point.0).hypot(near.1 - point.1) > 13.0 {
            canvas.line(*point, near, Paint::Muted, 0.8, "");
        }
        canvas.text((x, y), name, Letters { halo: true, ..Letters::new(TEXT, Paint::Ink, Anchor::Start) });
    }
    Some(frame.bottom + BOTTOM)
}

/// One named value per row: bars from zero, or dots.
pub fn rows(canvas: &mut Canvas, chart: &Chart, marks: &[Mark], bars: bool) -> Option<f64> {
    let scale = chart.y.scale;
    let values =
        marks.iter().filter(|m| drawable(m.y, scale)).flat_map(|m| [m.y - spread_of(m), m.y, m.y + spread_of(m)]);
    let values = values.chain(chart.rule.iter().map(|rule| rule.0));
    let ruler = marks.iter().any(|m| drawable(m.y, scale)).then(|| Ruler::fit(&chart.y, values, bars, true, 7))??;

    let names: Vec<String> = marks.iter().map(|mark| fitted(&mark.name, 220.0)).collect();
    let left = MARGIN + names.iter().map(|name| text_width(name, TEXT)).fold(0.0, f64::max) + 12.0;
    let texts: Vec<String> = marks.iter().map(|mark| fitted(&row_text(mark, chart), 220.0)).collect();
    let right = WIDTH - MARGIN - texts.iter().map(|text| text_width(text, TEXT)).fold(0.0, f64::max) - MARGIN;
    // The name of a reference line goes above the rows.
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

/// The full value of a row, to its right.
fn row_text(mark: &Mark, chart: &Chart) -> String {
    if !drawable(mark.y, Scale::Linear) {
        return DASH.into();
    }
    let deviation = spread_of(mark);
    if chart.y.unit == "%" && mark.y.abs() < 1e3 && deviation < 1e3 {
        let format = Format::Percent(1);
        let deviation = (deviation > 0.0).then_some(deviation);
        return format.cell(&Cell::Estimate { mean: mark.y, deviation });
    }
    let value = written(mark.y, &chart.y);
    if deviation == 0.0 {
        return value;
    }
    let estimate = Cell::Estimate { mean: mark.y, deviation: Some(deviation) };
    match chart.y.unit.as_str() {
        "B" => Format::Bytes.cell(&estimate),
        unit => format!("{} {unit}", Format::Significant(3).cell(&estimate)).trim_end().to_owned(),
    }
}
