//! Results in files: a page, a table in three formats, and what it takes to repeat them.

use std::{
    io,
    path::{Path, PathBuf},
};

use regard_files::write_whole;
use regard_tasks::train::Environment;
use serde_json::Value;

use regard_report::{Report, Table, Written};

/// The tables of a result, as JSON, CSV and Markdown.
pub const RESULTS: [&str; 3] = ["results.json", "results.csv", "results.md"];

/// Where results were written.
#[derive(Clone, Debug)]
pub struct Files {
    /// The page and its pictures.
    pub report: Written,
    /// [`RESULTS`].
    pub tables: [PathBuf; 3],
}

/// How results came to be.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The command that was typed.
    pub command: &'a str,
    /// Where and when it ran.
    pub environment: &'a Environment,
}

impl Record<'_> {
    /// As facts of a page.
    pub fn facts(&self) -> Vec<(String, String)> {
        let Environment { commit, processor, threads, date, version, .. } = self.environment;
        let facts = [
            ("command", self.command.to_owned()),
            ("date", date.clone()),
            ("processor", format!("{processor}, {threads} threads")),
            ("version", version.clone()),
            ("commit", commit.clone().unwrap_or_else(|| "unknown".into())),
        ];
        facts.map(|(name, value)| (name.to_owned(), value)).to_vec()
    }

    /// As a Markdown list.
    fn head(&self) -> String {
        let Environment { commit, processor, processors, threads, date, .. } = self.environment;
        let commit = commit.as_deref().unwrap_or("unknown");
        format!(
            "- command: `{}`\n- commit: {commit}\n- processor: {processor}, {processors} logical, {threads} threads\n\
             - date: {date}\n\n",
            self.command
        )
    }

    /// Writes the page with its pictures, and the tables (the first alone as CSV), into `folder`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, folder: &Path, report: &Report, json: &Value, tables: &[Table]) -> io::Result<Files> {
        let json = serde_json::to_string_pretty(json).map_err(io::Error::other)?;
        let markdown: Vec<String> = tables.iter().map(Table::to_markdown).collect();
        let csv = tables.first().map(Table::to_csv).unwrap_or_default();
        let contents = [json + "\n", csv, self.head() + &markdown.join("\n")];
        let tables = RESULTS.map(|name| folder.join(name));
        for (path, content) in tables.iter().zip(contents) {
            write_whole(path, content.as_bytes())?;
        }
        Ok(Files { report: report.write(folder)?, tables })
    }
}

/// Results of a command, in every form in which they are shown.
pub trait Shown {
    /// How they came to be.
    fn record(&self) -> Record<'_>;

    /// The page.
    fn report(&self) -> Report;

    /// The tables that a reader sees.
    fn tables(&self) -> Vec<Table>;

    /// All of it, for programs.
    fn to_json(&self) -> Value;

    /// The tables of files.
    fn files(&self) -> Vec<Table> {
        self.tables()
    }

    /// Writes the page with its pictures, and the tables in three formats, into `folder`.
    ///
    /// # Errors
    /// Those of the file system.
    fn write(&self, folder: &Path) -> io::Result<Files> {
        self.record().write(folder, &self.report(), &self.to_json(), &self.files())
    }
}

#[cfg(test)]
mod tests {
    use regard_report::{PAGE, PLOTS};
    use regard_tasks::train::REPORTS;

    #[test]
    fn runs_know_what_reports_leave_in_their_directories() {
        assert_eq!(REPORTS, [PLOTS, PAGE]);
    }
}
