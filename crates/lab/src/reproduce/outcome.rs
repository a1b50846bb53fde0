//! The recorded outcome of an entry: its verdict with everything needed to judge and reproduce it, in a file.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use regard_files::write_whole;
use regard_report::{Block, Column, PAGE, PLOTS, Report, Section, Table, Written};
use regard_tasks::{Failure, train::Environment};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Clause, Entry, Finding, Paper, Scale, Setup, Verdict, find};
use crate::record::Record;

const FILE: &str = "outcome.json";

/// The recorded outcome of an entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Name of the entry.
    pub name: String,
    /// Its scale.
    pub scale: Scale,
    /// What the paper did.
    pub paper_setting: String,
    /// What was done here.
    pub setting: String,
    /// Every difference between the two.
    pub differences: Vec<String>,
    /// The verdict on all clauses of the paper together; none if there are none.
    pub verdict: Option<Verdict>,
    /// The claim, clause by clause, and observations.
    pub clauses: Vec<Clause>,
    /// The most telling figures.
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

    /// The recorded outcome, if there is one. What the paper did and how the run differs from it is told as the program
    /// tells it now, as long as it would run the same.
    ///
    /// # Errors
    /// A file that is not an outcome.
    pub fn read(all: &Path, entry: &Entry, scale: Scale) -> Result<Option<Self>, OutcomeError> {
        let path = Self::directory(all, entry, scale).join(FILE);
        let failed = |problem: String| OutcomeError { path: path.clone(), problem };
        match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error.to_string())),
            Ok(text) => {
                let mut outcome: Self = serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
                let same = |setup: &&Setup| setup.scale == scale && setup.setting == outcome.setting;
                if let Some(setup) = entry.setups.iter().find(same) {
                    outcome.paper_setting = entry.paper_setting.into();
                    outcome.differences = setup.differences.iter().map(|&difference| difference.into()).collect();
                }
                Ok(Some(outcome))
            }
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
        setup: &Setup,
        finding: &Finding,
        seconds: f64,
        environment: Environment,
    ) -> io::Result<Self> {
        let folder = Self::directory(all, entry, setup.scale);
        let mut outcome = Self {
            name: entry.name.into(),
            scale: setup.scale,
            paper_setting: entry.paper_setting.into(),
            setting: setup.setting.into(),
            differences: setup.differences.iter().map(|&difference| difference.into()).collect(),
            verdict: finding.verdict(),
            clauses: finding.clauses.clone(),
            statement: finding.statement.clone(),
            seconds,
            command: format!("regard reproduce {} --scale {}", entry.name, setup.scale.name()),
            environment,
            tables: finding.tables.iter().map(|table| table.to_json()).collect(),
            markdown: finding.tables.iter().map(|table| table.to_markdown()).collect(),
            pictures: Vec::new(),
        };
        let Written { plots, .. } = outcome.report(entry, finding).write(&folder)?;
        let below = |path: &PathBuf| path.strip_prefix(&folder).unwrap_or(path).to_string_lossy().replace('\\', "/");
        outcome.pictures = plots.iter().map(below).collect();
        let text = serde_json::to_string_pretty(&outcome).map_err(io::Error::other)?;
        write_whole(&folder.join(FILE), (text + "\n").as_bytes())?;
        Ok(outcome)
    }

    /// The report of an outcome that was just found.
    fn report(&self, entry: &Entry, finding: &Finding) -> Report {
        let charts =
            finding.charts.iter().map(|(name, chart)| Block::Chart { name: name.clone(), chart: chart.clone() });
        let measured = charts.chain(finding.tables.iter().cloned().map(Block::Table)).collect();
        let verdict = Verdict::said(self.verdict);
        let mut facts = vec![
            ("paper".to_owned(), entry.paper.to_string()),
            ("figures".to_owned(), entry.figures.to_owned()),
            ("verdict".to_owned(), verdict.clone()),
            ("scale".to_owned(), self.scale.name().to_owned()),
        ];
        facts.extend(Record { command: &self.command, environment: &self.environment }.facts());
        let prose = |text: String| Block::Prose(text);
        let setting = [format!("The paper: {}", self.paper_setting), format!("Ours: {}", self.setting)];
        let section = |title: &str, blocks: Vec<Block>| Section { title: title.into(), blocks };
        Report {
            title: format!("Reproduction: {}", entry.name),
            summary: format!("{}: {}", capitalised(&verdict), self.statement),
            facts,
            sections: vec![
                section("Claim", vec![prose(entry.claim.into())]),
                section("Verdicts", self.verdicts().into_iter().map(Block::Table).collect()),
                section("Setting", setting.into_iter().chain([self.difference()]).map(prose).collect()),
                section("Measured", measured),
            ],
        }
    }

    /// The differences from the paper, in a sentence.
    pub(super) fn difference(&self) -> String {
        match &self.differences[..] {
            [] => "No difference in data, size and steps.".into(),
            some => format!("Differences: {}.", some.join("; ")),
        }
    }

    /// What the clauses that are judged together are called.
    fn claimed(&self) -> &'static str {
        let planner = find(&self.name).is_some_and(|entry| entry.paper == Paper::Planner);
        if planner { "clauses" } else { "clauses of the paper" }
    }

    /// Clauses of the paper and observations, a table each, where there are any.
    pub(super) fn verdicts(&self) -> Vec<Table> {
        let table = |title: &str, of_paper: bool| {
            let columns = ["clause", "verdict", "decided by"].map(Column::text).to_vec();
            let mut table = Table::new(title, columns);
            for clause in self.clauses.iter().filter(|clause| clause.of_paper == of_paper) {
                table.push(vec![
                    clause.text.clone().into(),
                    clause.verdict.to_string().into(),
                    clause.grounds().into(),
                ]);
            }
            table
        };
        let both = [table(&capitalised(self.claimed()), true), table("Observations of our own", false)];
        both.into_iter().filter(|table| !table.rows.is_empty()).collect()
    }

    /// Everything but the numbers, as text for a terminal.
    pub fn to_text(&self) -> String {
        let Self { name, scale, statement, paper_setting, setting, .. } = self;
        let mut text = format!("{name} ({}): {}. {statement}\n", scale.name(), Verdict::said(self.verdict));
        let mut line = |indent: usize, words: String| text += &format!("{:indent$}{words}\n", "");
        line(2, format!("the paper: {paper_setting}"));
        line(2, format!("ours: {setting}"));
        line(2, self.difference());
        for (of_paper, title) in [(true, self.claimed()), (false, "observations of our own")] {
            let mut clauses = self.clauses.iter().filter(|clause| clause.of_paper == of_paper).peekable();
            if clauses.peek().is_some() {
                line(2, format!("{title}:"));
            }
            for clause in clauses {
                let grounds = clause.grounds();
                let grounds = if grounds.is_empty() { grounds } else { format!(" [{grounds}]") };
                line(4, format!("{}: {}{grounds}", clause.verdict, clause.text));
            }
        }
        text
    }
}

pub(super) fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
