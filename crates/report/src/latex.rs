//! Tables for LaTeX, with the rules of the package `booktabs`.

use super::render::one_line;
use super::table::{Align, Column, Table};

impl Table {
    /// A `table` environment for a document that loads `booktabs`: title as caption, best values in bold, remarks under it
    /// in small print. Cells are the text of [`Table::to_text`], escaped.
    pub fn to_latex(&self) -> String {
        let mut text = String::from("\\begin{table}\n\\centering\n");
        if !self.title.is_empty() {
            text += &format!("\\caption{{{}}}\n", escape(&self.title));
        }
        let side = |column: &Column| if column.align == Align::Right { 'r' } else { 'l' };
        let sides: String = self.columns.iter().map(side).collect();
        text += &format!("\\begin{{tabular}}{{{sides}}}\n\\toprule\n");
        let groups = self.groups();
        if !groups.is_empty() {
            let heads = groups.iter().map(|(group, columns)| match group.is_empty() {
                true => " & ".repeat(columns.len() - 1),
                false => format!("\\multicolumn{{{}}}{{c}}{{{}}}", columns.len(), escape(group)),
            });
            text += &line(heads);
            for (_, columns) in groups.iter().filter(|(group, _)| !group.is_empty()) {
                text += &format!("\\cmidrule(lr){{{}-{}}}\n", columns.start + 1, columns.end);
            }
        }
        text += &line(self.columns.iter().map(|column| {
            let unit = if column.unit.is_empty() { String::new() } else { format!(" ({})", column.unit) };
            escape(&format!("{}{unit}", column.title))
        }));
        text += "\\midrule\n";
        for row in 0..self.rows.len() {
            text += &line(self.written_row(row).iter().enumerate().map(|(column, cell)| {
                let cell = escape(cell);
                if self.is_best(row, column) { format!("\\textbf{{{cell}}}") } else { cell }
            }));
        }
        text += "\\bottomrule\n\\end{tabular}\n";
        for note in &self.notes {
            text += &format!("\\par\\smallskip{{\\footnotesize {}\\par}}\n", escape(note));
        }
        text + "\\end{table}\n"
    }
}

/// One row of a `tabular`.
fn line(cells: impl Iterator<Item = String>) -> String {
    cells.collect::<Vec<_>>().join(" & ") + " \\\\\n"
}

/// Text that LaTeX sets as it stands, in any encoding of fonts. Brackets and stars are put into braces, since after the end
/// of a row they would be taken for its options.
fn escape(text: &str) -> String {
    let text = one_line(text);
    let mut safe = String::with_capacity(text.len());
    let mut before = None;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let digit = characters.peek().is_some_and(char::is_ascii_digit);
        match character {
            '\\' => safe.push_str("\\textbackslash{}"),
            '{' | '}' | '$' | '&' | '%' | '#' | '_' => safe.extend(['\\', character]),
            '^' => safe.push_str("\\textasciicircum{}"),
            '~' => safe.push_str("\\textasciitilde{}"),
            '<' => safe.push_str("\\textless{}"),
            '>' => safe.push_str("\\textgreater{}"),
            '|' => safe.push_str("\\textbar{}"),
            '"' => safe.push_str("{''}"),
            '[' | ']' | '*' => safe.extend(['{', character, '}']),
            // Several would become a dash; one before a number is its sign.
            '-' if before == Some('-') => safe.push_str("{}-"),
            '-' if digit && before.is_none_or(|c: char| c == ' ' || c == '[') => safe.push_str("$-$"),
            // Two of them are a quotation mark.
            '`' | '\'' if before == Some(character) => safe.extend(['{', '}', character]),
            '±' => safe.push_str("$\\pm$"),
            '×' => safe.push_str("$\\times$"),
            '−' => safe.push_str("$-$"),
            '≤' => safe.push_str("$\\leq$"),
            '≥' => safe.push_str("$\\geq$"),
            '–' => safe.push_str("--"),
            '—' => safe.push_str("---"),
            '…' => safe.push_str("\\ldots{}"),
            other => safe.push(other),
        }
        before = Some(character);
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Best, Cell, Format};

    #[test]
    fn every_special_character_is_escaped() {
        let cases = [
            ("a_b & 50 % #1 $x$ {y}", "a\\_b \\& 50 \\% \\#1 \\$x\\$ \\{y\\}"),
            ("\\input{x}", "\\textbackslash{}input\\{x\\}"),
            ("~^<>|", "\\textasciitilde{}\\textasciicircum{}\\textless{}\\textgreater{}\\textbar{}"),
            ("[1] *", "{[}1{]} {*}"),
            ("a--b---c d-e", "a-{}-b-{}-{}-c d-e"),
            ("-0.5 ± 0.1, 1e-3 [-2, -1]", "$-$0.5 $\\pm$ 0.1, 1e-3 {[}$-$2, $-$1{]}"),
            ("\"a\" ``b''", "{''}a{''} `{}`b'{}'"),
            ("0.65× – é\n\t", "0.65$\\times$ -- é  "),
        ];
        for (text, expected) in cases {
            assert_eq!(escape(text), expected);
        }
    }

    #[test]
    fn a_table_with_groups() {
        let number = |title| Column::number(title, Format::Percent(1)).group("List_Ops");
        let columns = vec![
            Column::text("model"),
            number("1k").best(Best::Highest),
            number("2k"),
            Column::number("parameters", Format::Plain),
        ];
        let mut table = Table::new("A & B", columns).note("3 seeds");
        let estimate = |mean| Cell::Estimate { mean, deviation: Some(0.01) };
        table.push(vec!["[a]".into(), estimate(0.5), estimate(0.5).marked("n.s.", false), 1200usize.into()]);
        table.push(vec!["b".into(), estimate(0.25), Cell::Empty, Cell::Empty]);
        let expected = "\\begin{table}
\\centering
\\caption{A \\& B}
\\begin{tabular}{lrrr}
\\toprule
 & \\multicolumn{2}{c}{List\\_Ops} &  \\\\
\\cmidrule(lr){2-3}
model & 1k & 2k & parameters \\\\
\\midrule
{[}a{]} & \\textbf{50.0 $\\pm$ 1.0 \\%} & 50.0 $\\pm$ 1.0 \\% n.s. & 1,200 \\\\
b & 25.0 $\\pm$ 1.0 \\% & -- & -- \\\\
\\bottomrule
\\end{tabular}
\\par\\smallskip{\\footnotesize 3 seeds\\par}
\\end{table}
";
        assert_eq!(table.to_latex(), expected);
    }
}
