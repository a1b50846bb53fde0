//! Heat maps: panels side by side, with one colour bar below.

use super::super::{
    heat_map::{HeatMap, Panel},
    number::significant,
    png::data_address,
    svg::{Anchor, Canvas, Letters, MARGIN, Paint},
};
use super::frame::{TEXT, TICK, WIDTH, fitted};

/// Maximum side length of panels.
const SIDE: f64 = 340.0;
/// Left of a panel: numbers and the name of the axis.
const LEFT: f64 = 52.0;
/// Above a panel: its title.
const ABOVE: f64 = 28.0;
/// Below a panel: numbers and the name of the axis.
const BELOW: f64 = 44.0;
/// Below the title and the subtitle.
const TOP: f64 = 62.0;
/// Size of the colour bar.
const BAR: (f64, f64) = (220.0, 12.0);

/// Draws all panels and returns the image height; `None` if there is nothing to show.
pub fn heat(canvas: &mut Canvas, map: &HeatMap) -> Option<f64> {
    let panels: Vec<&Panel> = map.panels.iter().filter(|panel| !panel.values.is_empty()).collect();
    if panels.is_empty() {
        return None;
    }
    // Few panels are large; as many rows as needed, filled evenly: five panels are three and two.
    let most_across = match panels.len() {
        0..=4 => 2,
        5..=12 => 3,
        _ => 4,
    };
    let lines = panels.len().div_ceil(most_across);
    let across = panels.len().div_ceil(lines);
    let column = (WIDTH - MARGIN) / across as f64;
    let side = (column - LEFT - 14.0).min(SIDE);
    let most = map.most();
    for (number, panel) in panels.iter().enumerate() {
        let corner = (
            MARGIN + LEFT + (number % across) as f64 * column,
            TOP + ABOVE + (number / across) as f64 * (side + ABOVE + BELOW),
        );
        one(canvas, map, panel, corner, side, most);
    }
    let bottom = TOP + lines as f64 * (side + ABOVE + BELOW);
    scale(canvas, map, most, (MARGIN + LEFT, bottom + 14.0));
    Some(bottom + 60.0)
}

fn one(canvas: &mut Canvas, map: &HeatMap, panel: &Panel, (left, top): (f64, f64), side: f64, most: f64) {
    let address = data_address(&panel.pixels(map.shade, most, 1));
    canvas.image((left, top), (side, side), &address);
    for (from, to) in
        [((0.0, 0.0), (1.0, 0.0)), ((0.0, 1.0), (1.0, 1.0)), ((0.0, 0.0), (0.0, 1.0)), ((1.0, 0.0), (1.0, 1.0))]
    {
        let at = |(x, y): (f64, f64)| (left + x * side, top + y * side);
        canvas.line(at(from), at(to), Paint::Muted, 1.0, "");
    }
    let ink = |anchor| Letters::new(TEXT, Paint::Ink, anchor);
    let tick = |anchor| Letters::new(TICK, Paint::Muted, anchor);
    canvas.text((left, top - 9.0), &fitted(&panel.title, side), ink(Anchor::Start));
    let [rows, columns] = panel.ends.map(|end| end.to_string());
    canvas.text((left - 7.0, top + 10.0), "1", tick(Anchor::End));
    canvas.text((left - 7.0, top + side), &rows, tick(Anchor::End));
    canvas.text((left, top + side + 16.0), "1", tick(Anchor::Start));
    canvas.text((left + side, top + side + 16.0), &columns, tick(Anchor::End));
    canvas.text((left + side / 2.0, top + side + 16.0), &map.x, tick(Anchor::Middle));
    // Upwards, between the numbers of its ends: across there is no room for more than a word.
    canvas.upwards((left - 10.0, top + side / 2.0), &fitted(&map.y, side - 48.0), tick(Anchor::Middle));
}

/// Draws the colour bar with the values at its ends and in the middle.
fn scale(canvas: &mut Canvas, map: &HeatMap, most: f64, (left, top): (f64, f64)) {
    const STEPS: usize = 110;
    let [low, high] = map.shade.ends(most);
    let share = |step: usize| low + (high - low) * step as f64 / (STEPS - 1) as f64;
    let bar = Panel {
        title: String::new(),
        rows: 1,
        columns: STEPS,
        values: (0..STEPS).map(share).collect(),
        ends: [1, STEPS],
    };
    canvas.image((left, top), BAR, &data_address(&bar.pixels(map.shade, most, 1)));
    for (part, anchor) in [(0.0, Anchor::Start), (0.5, Anchor::Middle), (1.0, Anchor::End)] {
        let beyond = if part == 1.0 && map.largest() > most { "≥ " } else { "" };
        let text = format!("{beyond}{}", significant(low + part * (high - low), 2));
        canvas.text((left + part * BAR.0, top + BAR.1 + 16.0), &text, Letters::new(TICK, Paint::Muted, anchor));
    }
}
