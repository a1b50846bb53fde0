//! The recorded outcome of an entry: its verdict with everything needed to judge and reproduce it, in a file.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use regard_files::write_whole;
use regard_report::{Block, PAGE, PLOTS, Report, Section, Written};
use regard_tasks::{Failure, train::Environment};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Entry, Finding, Scale, Verdict};
use crate::record::Record;

const FILE: &str = "outcome.json";

/// The recorded outcome of an entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Name of the entry.
    pub name: String,
    /// Its scale.
    pub scale: Scale,
    /// Description of the setting.
    pub setting: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The deciding figures.
    pub statement: String,
    /// Elapsed seconds.
    pub seconds: f64,
    /// The command that runs only this entry.
    pub command: String,
    /// Machine, version and date.
    pub environment: Environment,
    /// All numbers.
    pub tables: Vec<Value>,
    /// Tables as Markdown, for the page of all outcomes.
    pub markdown: Vec<String>,
    /// Images, as paths relative to the entry's directory.
    pub pictures: Vec<String>,
}

/// Why a recorded outcome cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: no outcome of an entry ({problem}); remove the file to run the entry again", path.display())]
pub struct OutcomeError {
    path: PathBuf,
    problem: String,
}

/// Directory of an entry's outcome within the directory of all outcomes.
pub(super) fn directory(all: &Path, name: &str, scale: Scale) -> PathBuf {
    all.join(scale.named(name))
}

impl Outcome {
    /// Directory of an entry within the directory of all outcomes.
    pub fn directory(all: &Path, entry: &Entry, scale: Scale) -> PathBuf {
        directory(all, entry.name, scale)
    }

    /// The recorded outcome, if there is one.
    ///
    /// # Errors
    /// A file that is not an outcome.
    pub fn read(all: &Path, entry: &Entry, scale: Scale) -> Result<Option<Self>, OutcomeError> {
        let path = Self::directory(all, entry, scale).join(FILE);
        let failed = |problem: String| OutcomeError { path: path.clone(), problem };
        match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error.to_string())),
            Ok(text) => serde_json::from_str(&text).map(Some).map_err(|error| failed(error.to_string())),
        }
    }

    /// Removes only files that an entry has written.
    ///
    /// # Errors
    /// Files that cannot be removed.
    pub fn remove(all: &Path, entry: &Entry, scale: Scale) -> Result<(), Failure> {
        let directory = Self::directory(all, entry, scale);
        let gone = |result: io::Result<()>| match result {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Failure::writing(&directory, &error)),
            _ => Ok(()),
        };
        [FILE, PAGE].into_iter().try_for_each(|name| gone(fs::remove_file(directory.join(name))))?;
        gone(fs::remove_dir_all(directory.join(PLOTS)))
    }

    /// Writes the report and, last, the outcome of `finding` into the entry's directory.
    ///
    /// # Errors
    /// File system errors.
    pub fn write(
        all: &Path,
        entry: &Entry,
        scale: Scale,
        finding: &Finding,
        seconds: f64,
        environment: Environment,
    ) -> io::Result<Self> {
        let folder = Self::directory(all, entry, scale);
        let command = match scale {
            Scale::Reduced => format!("regard reproduce {}", entry.name),
            Scale::Paper => format!("regard reproduce {} --scale paper", entry.name),
        };
        let charts =
            finding.charts.iter().map(|(name, chart)| Block::Chart { name: name.clone(), chart: chart.clone() });
        let blocks = charts.chain(finding.tables.iter().cloned().map(Block::Table)).collect();
        let mut facts = vec![
            ("paper".to_owned(), entry.paper.to_string()),
            ("figures".to_owned(), entry.figures.to_owned()),
            ("verdict".to_owned(), finding.verdict.to_string()),
        ];
        facts.extend(Record { command: &command, environment: &environment }.facts());
        let said = |title: &str, text: &str| Section { title: title.into(), blocks: vec![Block::Prose(text.into())] };
        let report = Report {
            title: format!("Reproduction: {}", entry.name),
            summary: format!("{}: {}", capitalised(&finding.verdict.to_string()), finding.statement),
            facts,
            sections: vec![
                said("Claim", entry.claim),
                said("Setting", entry.setting(scale)),
                Section { title: "Measured".into(), blocks },
            ],
        };
        let Written { plots, .. } = report.write(&folder)?;
        let below = |path: &PathBuf| path.strip_prefix(&folder).unwrap_or(path).to_string_lossy().replace('\\', "/");
        let outcome = Self {
            name: entry.name.into(),
            scale,
            setting: entry.setting(scale).into(),
            verdict: finding.verdict,
            statement: finding.statement.clone(),
            seconds,
            command,
            environment,
            tables: finding.tables.iter().map(|table| table.to_json()).collect(),
            markdown: finding.tables.iter().map(|table| table.to_markdown()).collect(),
            pictures: plots.iter().map(below).collect(),
        };
        let text = serde_json::to_string_pretty(&outcome).map_err(io::Error::other)?;
        write_whole(&folder.join(FILE), (text + "\n").as_bytes())?;
        Ok(outcome)
    }
}

pub(super) fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
