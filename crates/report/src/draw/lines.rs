//! Lines with bands.

use super::super::axis::{Ruler, drawable};
use super::super::chart::{Chart, Point, Scale, Series};
use super::super::labels::spread;
use super::super::svg::{Anchor, Canvas, Letters, MARGIN, Paint, text_width};
use super::frame::{BOTTOM, Frame, HEIGHT, TEXT, TOP, WIDTH, axes, fitted, rule, spreads, tick_room, written};

/// Maximum markers per line.
const MARKERS: usize = 7;

/// Draws lines and returns the image height; `None` if there is nothing to show.
pub fn lines(canvas: &mut Canvas, chart: &Chart, series: &[Series]) -> Option<f64> {
    let points = || series.iter().flat_map(|line| &line.points).filter(|p| drawable(p.x, chart.x.scale));
    let drawn = |p: &&Point| drawable(p.y, chart.y.scale);
    let ends = points().filter(drawn).flat_map(|p| {
        let (below, above) = if spreads(p.below, p.above) { (p.below, p.above) } else { (0.0, 0.0) };
        // On a logarithmic axis a deviation that reaches zero would extend it without bound.
        let low = if chart.y.scale == Scale::Linear { p.y - below } else { (p.y - below).max(p.y / 2.0) };
        [low, p.y, p.y + above]
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

    // Names go where the lines end.
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

/// The parts of a series between values that cannot be drawn.
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

/// Points along the lines of a series, dense enough to test what the lines cover.
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
    if piece.iter().all(|p| !spreads(p.below, p.above)) {
        return;
    }
    let bar = |p: &&Point| {
        let (x, y) = frame.at(p.x, p.y)?;
        let (high, low) = frame.bar(p.x, p.y, p.below, p.above).unwrap_or((y, y));
        Some((x, high, low))
    };
    let bars: Vec<_> = piece.iter().filter_map(bar).collect();
    let upper: Vec<_> = bars.iter().map(|(x, high, _)| (*x, *high)).collect();
    let lower: Vec<_> = bars.iter().map(|(x, _, low)| (*x, *low)).collect();
    let mut outline = thinned(&upper);
    outline.extend(thinned(&lower).into_iter().rev());
    canvas.band(&outline, style);
}

/// Drops points that are visually indistinguishable: for each half pixel of width, the first, last, highest and lowest
/// stay.
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
