//! Draws a session of a terminal as SVG, for pages that cannot show one: lines that begin with `$ ` are commands.
//!
//! ```sh
//! (echo '$ regard list tasks'; regard list tasks) | cargo run -p regard-report --example terminal > session.svg
//! ```

use std::io::{Read, Write, stdin, stdout};

/// Columns, after which lines go on below, as in a terminal.
const COLUMNS: usize = 108;

/// Width and height of a character, in pixels.
const CELL: (f64, f64) = (7.8, 18.0);

/// Space around the text, and the height of the bar above it.
const EDGE: f64 = 16.0;
const BAR: f64 = 28.0;

fn main() -> std::io::Result<()> {
    let mut session = String::new();
    stdin().read_to_string(&mut session)?;
    stdout().write_all(draw(&session).as_bytes())
}

fn draw(session: &str) -> String {
    let lines: Vec<(String, bool)> = session.trim_end().lines().flat_map(wrapped).collect();
    let width = 2.0 * EDGE + COLUMNS as f64 * CELL.0;
    let height = BAR + 2.0 * EDGE + lines.len() as f64 * CELL.1;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace\" font-size=\"13\">\n\
         <title>A terminal session</title>\n<rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#1b1f24\"/>\n"
    );
    for (number, colour) in ["#e5645d", "#e0b04a", "#63b05a"].into_iter().enumerate() {
        let x = EDGE + 6.0 + 20.0 * number as f64;
        svg += &format!("<circle cx=\"{x}\" cy=\"17\" r=\"6\" fill=\"{colour}\"/>\n");
    }
    for (number, (line, command)) in lines.iter().enumerate().filter(|(_, (line, _))| !line.trim().is_empty()) {
        let start = line.len() - line.trim_start().len();
        let text = line.trim();
        let x = EDGE + start as f64 * CELL.0;
        let y = BAR + EDGE + (number as f64 + 0.75) * CELL.1;
        // The length holds columns in line, whatever font is there.
        let length = text.chars().count() as f64 * CELL.0;
        let fill = if *command { "#7ee0a5\" font-weight=\"600" } else { "#d5dbe1" };
        svg += &format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" textLength=\"{length:.1}\" lengthAdjust=\"spacingAndGlyphs\" fill=\"{fill}\" \
             xml:space=\"preserve\">{}</text>\n",
            text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
        );
    }
    svg + "</svg>\n"
}

/// A line in pieces of at most [`COLUMNS`], and whether it is a command.
fn wrapped(line: &str) -> Vec<(String, bool)> {
    let command = line.starts_with("$ ");
    let characters: Vec<char> = line.chars().collect();
    if characters.is_empty() {
        return vec![(String::new(), false)];
    }
    characters.chunks(COLUMNS).map(|piece| (piece.iter().collect(), command)).collect()
}
