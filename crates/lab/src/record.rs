//! Results in files: an HTML page, tables in three formats, and the facts needed to reproduce them.

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

/// The files that were written.
#[derive(Clone, Debug)]
pub struct Files {
    /// The page and its images.
    pub report: Written,
    /// [`RESULTS`].
    pub tables: [PathBuf; 3],
}

/// Provenance of results.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The command line.
    pub command: &'a str,
    /// Machine, version and date.
    pub environment: &'a Environment,
}

impl Record<'_> {
    /// As facts of a page.
    pub fn facts(&self) -> Vec<(String, String)> {
        let Environment { commit, date, version, .. } = self.environment;
        let facts = [
            ("command", self.command.to_owned()),
            ("date", date.clone()),
            ("processor", self.environment.machine()),
            ("version", version.clone()),
            ("commit", commit.clone().unwrap_or_else(|| "unknown".into())),
        ];
        facts.map(|(name, value)| (name.to_owned(), value)).to_vec()
    }

    /// As a Markdown list.
    fn head(&self) -> String {
        let Environment { commit, processors, date, .. } = self.environment;
        let commit = commit.as_deref().unwrap_or("unknown");
        format!(
            "- command: `{}`\n- commit: {commit}\n- processor: {}, {processors} logical\n- date: {date}\n\n",
            self.command,
            self.environment.machine()
        )
    }

    /// Writes the page with its images, and the tables (only the first as CSV), into `folder`.
    ///
    /// # Errors
    /// File system errors.
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

/// Results of a command, in every output form.
pub trait Shown {
    /// Their provenance.
    fn record(&self) -> Record<'_>;

    /// The page.
    fn report(&self) -> Report;

    /// The tables to print.
    fn tables(&self) -> Vec<Table>;

    /// Everything, for programs.
    fn to_json(&self) -> Value;

    /// The tables to write to files.
    fn files(&self) -> Vec<Table> {
        self.tables()
    }

    /// Writes the page with its images, and the tables in three formats, into `folder`.
    ///
    /// # Errors
    /// File system errors.
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
