//! Renderings of a table.

use std::ops::Range;

use serde_json::{Map, Value, json};

use super::escape::escape;
use super::number::DASH;
use super::table::{Align, Cell, Column, Table};

/// Marks the best value of a column where bold is not available.
const STAR: &str = " *";
/// Letters of a cell from which it may take several lines of a page.
const LONG: usize = 60;

impl Table {
    /// Aligned plain text for a terminal; the best value of a column gets a star.
    pub fn to_text(&self) -> String {
        let heading: Vec<String> = self.columns.iter().map(Column::heading).collect();
        let body: Vec<Vec<String>> = (0..self.rows.len()).map(|row| self.written_row(row)).collect();
        let starred: Vec<bool> = (0..self.columns.len()).map(|c| self.has_best(c)).collect();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| {
                let cells = body.iter().map(|row| width(&row[column]) + if starred[column] { STAR.len() } else { 0 });
                cells.chain([width(&heading[column])]).max().unwrap_or(0)
            })
            .collect();
        let line = |cells: Vec<String>| {
            let padded = cells.iter().zip(&widths).zip(&self.columns).map(|((cell, wide), column)| {
                let space = " ".repeat(wide.saturating_sub(width(cell)));
                match column.align {
                    Align::Left => format!("{cell}{space}"),
                    Align::Right => format!("{space}{cell}"),
                }
            });
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        let mut text = String::new();
        if !self.title.is_empty() {
            text += &format!("{}\n\n", one_line(&self.title));
        }
        text += &line(heading.clone());
        text += &line(widths.iter().map(|wide| "─".repeat(*wide)).collect());
        for (row, cells) in body.into_iter().enumerate() {
            let marked = cells.into_iter().enumerate().map(|(column, cell)| {
                // Columns with a star reserve its place in every row, so that digits stay aligned.
                let mark = if !starred[column] {
                    ""
                } else if self.is_best(row, column) {
                    STAR
                } else {
                    "  "
                };
                cell + mark
            });
            text += &line(marked.collect());
        }
        if starred.contains(&true) {
            text += "* best value of its column\n";
        }
        for note in &self.notes {
            text += &format!("{}\n", one_line(note));
        }
        text
    }

    /// A Markdown table, best values in bold.
    pub fn to_markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut text = String::new();
        if !self.title.is_empty() {
            text += &format!("**{}**\n\n", markdown(&self.title));
        }
        text += &line(self.columns.iter().map(|column| markdown(&column.heading())).collect());
        let rule = |column: &Column| if column.align == Align::Left { ":--" } else { "--:" };
        text += &line(self.columns.iter().map(|column| rule(column).to_owned()).collect());
        for row in 0..self.rows.len() {
            let cells = self.written_row(row).into_iter().enumerate().map(|(column, cell)| {
                let cell = markdown(&cell);
                if self.is_best(row, column) { format!("**{cell}**") } else { cell }
            });
            text += &line(cells.collect());
        }
        for note in &self.notes {
            text += &format!("\n{}\n", markdown(note));
        }
        text
    }

    /// Comma-separated values (RFC 4180) at full precision, units in the heading; deviations of estimates and marks have
    /// columns of their own.
    pub fn to_csv(&self) -> String {
        let line = |cells: Vec<String>| cells.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(",") + "\r\n";
        let further = |column| (self.has_deviation(column), self.has_mark(column));
        let further: Vec<(bool, bool)> = (0..self.columns.len()).map(further).collect();
        let mut heading = Vec::new();
        for (column, (deviates, marked)) in self.columns.iter().zip(&further) {
            heading.push(column.heading());
            heading.extend(deviates.then(|| format!("{} deviation", column.heading())));
            heading.extend(marked.then(|| format!("{} mark", column.heading())));
        }
        let mut text = line(heading);
        for row in 0..self.rows.len() {
            let mut cells = Vec::new();
            for (column, (deviates, marked)) in further.iter().enumerate() {
                let cell = self.cell(row, column);
                cells.push(exact(cell));
                cells.extend(deviates.then(|| deviation(cell).map_or_else(String::new, |value| value.to_string())));
                cells.extend(marked.then(|| mark(cell).to_owned()));
            }
            text += &line(cells);
        }
        text
    }

    /// Title, columns, notes, and rows as objects by column title: numbers at full precision, estimates as
    /// `{"mean", "deviation"}`, marked cells as `{"value", "mark", "best"}`, missing or non-finite values as `null`.
    pub fn to_json(&self) -> Value {
        let rows = (0..self.rows.len()).map(|row| {
            let cells =
                self.columns.iter().enumerate().map(|(column, named)| (named.name(), json_of(self.cell(row, column))));
            Value::Object(cells.collect::<Map<_, _>>())
        });
        json!({
            "title": self.title,
            "columns": self.columns,
            "rows": rows.collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }

    /// An HTML table in a figure, best values highlighted.
    pub fn to_html(&self) -> String {
        let side = |column: &Column| if column.align == Align::Right { " class=\"number\"" } else { "" };
        let mut text = String::from("<figure class=\"table\">\n");
        if !self.title.is_empty() {
            text += &format!("<figcaption>{}</figcaption>\n", escape(&self.title));
        }
        text += "<div class=\"scroll\"><table>\n<thead><tr>";
        let heading = |column: &Column, rows: &str| {
            let unit = if column.unit.is_empty() {
                String::new()
            } else {
                format!(" <span class=\"unit\">{}</span>", escape(&column.unit))
            };
            format!("<th scope=\"col\"{rows}{}>{}{unit}</th>", side(column), escape(&column.title))
        };
        let groups = self.groups();
        if groups.is_empty() {
            text.extend(self.columns.iter().map(|column| heading(column, "")));
        } else {
            for (group, columns) in &groups {
                if group.is_empty() {
                    text.extend(self.columns[columns.clone()].iter().map(|column| heading(column, " rowspan=\"2\"")));
                } else {
                    let span = columns.len();
                    text +=
                        &format!("<th scope=\"colgroup\" class=\"group\" colspan=\"{span}\">{}</th>", escape(group));
                }
            }
            text += "</tr>\n<tr>";
            text.extend(self.columns.iter().filter(|c| !c.group.is_empty()).map(|column| heading(column, "")));
        }
        text += "</tr></thead>\n<tbody>\n";
        for row in 0..self.rows.len() {
            text += "<tr>";
            for (index, (column, cell)) in self.columns.iter().zip(self.written_row(row)).enumerate() {
                // Sentences may take several lines.
                let class = if cell.chars().count() > LONG { " class=\"long\"" } else { side(column) };
                let cell = escape(&cell);
                let cell = if self.is_best(row, index) { format!("<strong>{cell}</strong>") } else { cell };
                text += &format!("<td{class}>{cell}</td>");
            }
            text += "</tr>\n";
        }
        text += "</tbody>\n</table></div>\n";
        for note in &self.notes {
            text += &format!("<p class=\"note\">{}</p>\n", escape(note));
        }
        text + "</figure>\n"
    }

    /// Groups of neighbouring columns with the range of each, those without a group included; empty if no column has one.
    pub(super) fn groups(&self) -> Vec<(&str, Range<usize>)> {
        let mut groups: Vec<(&str, Range<usize>)> = Vec::new();
        for (index, column) in self.columns.iter().enumerate() {
            match groups.last_mut() {
                Some((group, range)) if *group == column.group => range.end = index + 1,
                _ => groups.push((&column.group, index..index + 1)),
            }
        }
        groups.retain(|_| self.columns.iter().any(|column| !column.group.is_empty()));
        groups
    }

    pub(super) fn written_row(&self, row: usize) -> Vec<String> {
        let cells = self.columns.iter().enumerate();
        cells.map(|(index, column)| one_line(&column.format.cell(self.cell(row, index)))).collect()
    }

    fn has_best(&self, column: usize) -> bool {
        (0..self.rows.len()).any(|row| self.is_best(row, column))
    }

    fn has_mark(&self, column: usize) -> bool {
        (0..self.rows.len()).any(|row| !mark(self.cell(row, column)).is_empty())
    }

    fn has_deviation(&self, column: usize) -> bool {
        (0..self.rows.len()).any(|row| deviation(self.cell(row, column)).is_some())
    }
}

impl Column {
    /// Group and title.
    fn name(&self) -> String {
        if self.group.is_empty() { self.title.clone() } else { format!("{} {}", self.group, self.title) }
    }

    /// Group, title and unit.
    fn heading(&self) -> String {
        let unit = if self.unit.is_empty() { String::new() } else { format!(" ({})", self.unit) };
        one_line(&format!("{}{unit}", self.name()))
    }
}

fn deviation(cell: &Cell) -> Option<f64> {
    match cell {
        Cell::Estimate { deviation, .. } => *deviation,
        Cell::Marked { cell, .. } => deviation(cell),
        _ => None,
    }
}

fn mark(cell: &Cell) -> &str {
    if let Cell::Marked { mark, .. } = cell { mark } else { "" }
}

fn json_of(cell: &Cell) -> Value {
    match cell {
        Cell::Empty => Value::Null,
        Cell::Text(text) => json!(text),
        Cell::Number(value) => json!(value),
        // JSON readers support integers of at most 64 bits.
        Cell::Whole(value) => u64::try_from(*value).map_or_else(|_| json!(*value as f64), |v| json!(v)),
        Cell::Estimate { mean, deviation } => json!({ "mean": mean, "deviation": deviation }),
        Cell::Marked { cell, mark, best } => json!({ "value": json_of(cell), "mark": mark, "best": best }),
    }
}

/// A cell at full precision, for machines.
fn exact(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) => text.clone(),
        Cell::Whole(value) => value.to_string(),
        Cell::Marked { cell, .. } => exact(cell),
        other => other.value().map_or_else(String::new, shortest),
    }
}

/// The shortest text that reads back as this number; with a power of ten where that spares zeros.
fn shortest(value: f64) -> String {
    if value != 0.0 && !(1e-5..1e16).contains(&value.abs()) { format!("{value:e}") } else { value.to_string() }
}

/// Width in terminal columns. Names and numbers here use scripts with one column per character.
fn width(text: &str) -> usize {
    text.chars().count()
}

/// Line breaks and other control characters would break the frame.
pub(super) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn markdown(text: &str) -> String {
    let mut safe = String::new();
    for character in one_line(text).chars() {
        if matches!(character, '|' | '*' | '_' | '`' | '<' | '\\' | '[') {
            safe.push('\\');
        }
        safe.push(character);
    }
    safe
}

fn quoted(cell: &str) -> String {
    if cell == DASH {
        return String::new();
    }
    if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Best, Format};

    fn sample() -> Table {
        let mut table = Table::new(
            "Ti<tle",
            vec![
                Column::text("mechanism"),
                Column::number("accuracy", Format::Percent(1)).best(Best::Highest),
                Column::number("time", Format::Significant(3)).unit("ms").best(Best::Lowest),
            ],
        )
        .note("3 runs");
        table.push(vec!["a|b, \"c\"".into(), Cell::Estimate { mean: 0.5, deviation: Some(0.01) }, 12.0.into()]);
        table.push(vec!["<mgk>\n".into(), Cell::Estimate { mean: 0.75, deviation: Some(0.02) }, f64::NAN.into()]);
        table.push(vec!["short".into()]);
        table
    }

    #[test]
    fn text() {
        let expected = "\
Ti<tle

mechanism        accuracy  time (ms)
─────────  ──────────────  ─────────
a|b, \"c\"   50.0 ± 1.0 %         12.0
<mgk>      75.0 ± 2.0 % *          –
short                 –            –
* best value of its column
3 runs
";
        assert_eq!(sample().to_text(), expected);
    }

    #[test]
    fn markdown_and_csv() {
        let markdown = sample().to_markdown();
        assert!(markdown.contains("| a\\|b, \"c\" | 50.0 ± 1.0 % | 12.0 |\n"), "{markdown}");
        assert!(markdown.contains("| \\<mgk>  | **75.0 ± 2.0 %** | – |\n"), "{markdown}");
        let csv = sample().to_csv();
        let expected = "mechanism,accuracy,accuracy deviation,time (ms)\r\n\"a|b, \"\"c\"\"\",0.5,0.01,12\r\n\"<mgk>\n\",0.75,0.02,\r\nshort,,,\r\n";
        assert_eq!(csv, expected);
        for (value, text) in [(0.0, "0"), (-0.25, "-0.25"), (1e-5, "0.00001"), (1.5e-79, "1.5e-79"), (3e20, "3e20")] {
            assert_eq!((shortest(value).as_str(), text.parse()), (text, Ok(value)));
        }
    }

    #[test]
    fn json() {
        let json = sample().to_json();
        assert_eq!(json["rows"][0]["accuracy"]["mean"], 0.5);
        assert_eq!(json["rows"][1]["time"], Value::Null);
        assert_eq!(json["rows"][2]["accuracy"], Value::Null);
        assert_eq!(json["columns"][2]["unit"], "ms");
    }

    #[test]
    fn sentences_may_take_several_lines() {
        let mut table = Table::new("x", vec![Column::text("a"), Column::text("b")]);
        table.push(vec!["short".into(), "long ".repeat(13).into()]);
        let html = table.to_html();
        assert!(html.contains("<td>short</td><td class=\"long\">long"), "{html}");
    }

    #[test]
    fn html_is_well_formed_and_escaped() {
        let html = sample().to_html();
        let document = roxmltree::Document::parse(&html).expect("well-formed");
        let cells: Vec<_> = document.descendants().filter(|node| node.has_tag_name("td")).collect();
        assert_eq!(cells.len(), 9);
        assert_eq!(cells[3].text(), Some("<mgk> "));
        assert_eq!(document.descendants().filter(|node| node.has_tag_name("strong")).count(), 1);
    }

    #[test]
    fn marks_and_groups() {
        let number = |title| Column::number(title, Format::Percent(1)).group("ListOps");
        let columns = vec![Column::text("model"), number("1k").best(Best::Highest), number("2k")];
        let mut table = Table::new("", columns);
        let estimate = Cell::Estimate { mean: 0.5, deviation: Some(0.01) };
        table.push(vec!["a".into(), estimate.clone().marked("n.s.", false), estimate.marked("", true)]);
        table.push(vec!["b".into(), 0.25.into(), Cell::from("failed: diverged")]);
        let markdown = table.to_markdown();
        assert!(markdown.starts_with("| model | ListOps 1k | ListOps 2k |\n"), "{markdown}");
        assert!(markdown.contains("| a | 50.0 ± 1.0 % n.s. | **50.0 ± 1.0 %** |\n| b | 25.0 % | failed: diverged |"));
        let csv = table.to_csv();
        assert!(
            csv.starts_with(
                "model,ListOps 1k,ListOps 1k deviation,ListOps 1k mark,ListOps 2k,ListOps 2k deviation\r\n"
            )
        );
        assert!(csv.contains("\r\na,0.5,0.01,n.s.,0.5,0.01\r\nb,0.25,,,failed: diverged,\r\n"), "{csv}");
        assert_eq!(table.to_json()["rows"][0]["ListOps 1k"]["value"]["mean"], 0.5);
        let html = table.to_html();
        let document = roxmltree::Document::parse(&html).expect("well-formed");
        let spans: Vec<_> = document.descendants().filter(|node| node.has_tag_name("th")).collect();
        assert_eq!(spans.iter().filter(|node| node.attribute("colspan") == Some("2")).count(), 1);
        assert_eq!((spans.len(), spans[0].attribute("rowspan")), (4, Some("2")));
    }

    #[test]
    fn no_best_among_equals() {
        let column = || vec![Column::number("n", Format::Plain).best(Best::Highest)];
        let mut table = Table::new("", column());
        table.push(vec![2.0.into()]);
        table.push(vec![2.0.into()]);
        assert!(!table.to_text().contains('*'));
        table.push(vec![1.0.into()]);
        assert_eq!(table.to_text().matches('*').count(), 3);
    }
}
