//! The page of all figures. Another kind of trial is one more [`Section`].

use std::{fs, io, path::Path};

use regard_tasks::train::Environment;

/// One kind of trial and its figures.
pub struct Section {
    /// Heading.
    pub title: String,
    /// What was done, in words.
    pub about: String,
    /// Heads of the columns.
    pub columns: Vec<&'static str>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
    /// What was wrong, over all rows.
    pub findings: usize,
}

impl Section {
    /// Adds a row that says what was wrong.
    pub fn finding(&mut self, what: &str, problem: impl std::fmt::Display) {
        let mut row = vec![what.to_owned(), problem.to_string()];
        row.resize(self.columns.len(), String::new());
        self.rows.push(row);
        self.findings += 1;
    }

    /// As Markdown.
    pub fn to_markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let columns: Vec<String> = self.columns.iter().map(|column| (*column).to_owned()).collect();
        let rule = vec!["---".to_owned(); columns.len()];
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("## {}\n\n{}\n\n{}{}{rows}", self.title, self.about, line(&columns), line(&rule))
    }
}

/// Writes the page.
pub fn write(path: &Path, sections: &[Section]) -> io::Result<()> {
    let git = std::process::Command::new("git").args(["rev-parse", "--short", "HEAD"]).output().ok();
    let commit = git.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let Environment { processor, processors, date, .. } = Environment::capture(None);
    let command: Vec<String> = std::env::args().skip(1).collect();
    let mut page = format!(
        "# Reliability\n\n- command: `trials {}`\n- commit: {}\n- processor: {processor}, {processors} logical\n- date: {date}\n",
        command.join(" "),
        commit.filter(|commit| !commit.is_empty()).unwrap_or("unknown".into())
    );
    for section in sections {
        page += "\n";
        page += &section.to_markdown();
    }
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(path, page)
}
