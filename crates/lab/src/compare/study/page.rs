//! The results of a study as files and a page.

use std::{io, path::Path};

use regard_files::write_whole;
use regard_report::{Block, Column, Report, Section, Table};
use regard_tasks::{Failure, train::Environment};
use serde_json::{Value, json};

pub use crate::record::Files;

use super::{
    CellRecord, Measure, Place, Study,
    cell::differences,
    directory::{plain, records},
    pairs::{self, Pair, Standing},
    tables::counted,
};
use crate::{
    compare::{Comparison, dropout_note},
    record::{Record, Shown},
};

/// The tables for a paper.
pub const LATEX: &str = "results.tex";
/// A row for each cell.
pub const CELLS_TABLE: &str = "cells.csv";
/// A row for each pair of model and baseline.
pub const PAIRS_TABLE: &str = "significance.csv";

/// What is known of a study, with what is needed to judge it.
#[derive(Clone, Debug)]
pub struct Results {
    /// The study.
    pub study: Study,
    /// Its cells that have ended.
    pub records: Vec<CellRecord>,
    /// All models against the baseline.
    pub pairs: Vec<Pair>,
    /// The command line.
    pub command: String,
    /// Machine, version and date of the report.
    pub environment: Environment,
}

impl Results {
    /// What there is in the directory of a study.
    ///
    /// # Errors
    /// A record that cannot be read.
    pub fn of(study: Study, out: &Path, command: String, environment: Environment) -> Result<Self, Failure> {
        let records = records(&study, out)?;
        let pairs = pairs::against_baseline(&study, &records, out);
        Ok(Self { study, records, pairs, command, environment })
    }

    /// Number of cells without a result because they failed.
    pub fn failed(&self) -> usize {
        self.records.iter().filter(|record| record.finished().is_none()).count()
    }

    /// What is measured on the task of a place.
    pub(super) fn measure(&self, place: &Place) -> Measure {
        Measure::of_task(&self.study, &self.records, &place.task)
    }

    fn summary(&self) -> String {
        let study = &self.study;
        let (all, ended, failed) = (study.cells().count(), self.records.len(), self.failed());
        let mut text = format!(
            "{} on {}{}: {} of {} trained{}.",
            counted(study.models.len(), "model"),
            counted(study.tasks.len(), "task"),
            if study.settings.is_empty() {
                String::new()
            } else {
                format!(" in {}", counted(study.settings.len(), "setting"))
            },
            ended - failed,
            counted(all, "cell"),
            if failed > 0 { format!(", {failed} failed") } else { String::new() },
        );
        let standings = study.columns().into_iter().filter_map(|column| {
            let (best, standing) = pairs::best(study, &self.records, column)?;
            Some((format!("{best} on {}", column.column()), standing))
        });
        let standings: Vec<(String, Standing)> = standings.collect();
        let sure =
            standings.iter().filter(|(_, standing)| *standing == Standing::Significant).map(|(best, _)| best.as_str());
        let sure: Vec<&str> = sure.collect();
        if !standings.is_empty() {
            text += &format!(
                " The best model is significantly better than every other in {} of {}{}{}.",
                sure.len(),
                counted(standings.len(), "column"),
                if sure.is_empty() { "" } else { ": " },
                sure.join(", ")
            );
        }
        text
    }

    /// Quality against cost and learning curves of a task in a setting.
    fn charts(&self, column: &Place) -> Vec<Block> {
        let Some(first) = self.in_column(column).into_iter().next() else { return Vec::new() };
        let comparison = Comparison {
            labels: self.study.models.clone(),
            results: self.in_column(column).into_iter().map(|finished| finished.result.clone()).collect(),
            task: column.task.clone(),
            setting: first.data.clone(),
            majority: first.majority,
            differences: None,
            command: String::new(),
            config: String::new(),
            environment: first.environment.clone(),
        };
        let mut blocks = comparison.trade_offs();
        blocks.extend(comparison.learning_curves());
        for block in &mut blocks {
            if let Block::Chart { name, chart } = block {
                *name = format!("{}-{name}", plain(&column.column()));
                chart.title = format!("{}: {}", column.column(), chart.title.to_lowercase());
                // The data are described in a table.
                chart.subtitle = comparison.runs();
            }
        }
        blocks
    }

    /// What the configuration of each model changes in that of the baseline, on the first task that both are on.
    fn changes(&self) -> Table {
        let study = &self.study;
        let columns = ["model", "changes"].map(Column::text).to_vec();
        let mut table = Table::new(format!("Configuration, as changes to that of {}", study.baseline), columns);
        for model in study.models.iter().filter(|model| **model != study.baseline) {
            let configs = study.groups.iter().filter(|group| group.place.model == *model).find_map(|group| {
                let baseline = study.group(&Place { model: study.baseline.clone(), ..group.place.clone() })?;
                Some((group.config().ok()?, baseline.config().ok()?))
            });
            let Some((own, baseline)) = configs else { continue };
            let changes = differences(&own, &baseline).into_iter().map(|(key, own, _)| format!("{key} = {own}"));
            let changes = changes.collect::<Vec<_>>().join(", ");
            table.push(vec![model.as_str().into(), if changes.is_empty() { "none".into() } else { changes.into() }]);
        }
        let table = table.note("The whole configuration of a cell is the file config.toml in its directory.");
        let models = study.models.iter().filter_map(|model| {
            let config = study.groups.iter().find(|group| group.place.model == *model)?.config().ok()?;
            Some((model.as_str(), config.model.attention_dropout, config.attention.mechanism))
        });
        dropout_note(models).into_iter().fold(table, Table::note)
    }

    fn machine_table(&self) -> Table {
        let columns = vec![Column::text("processor"), Column::number("cells", Default::default())];
        let mut table = Table::new("Machines", columns);
        for (machine, cells) in self.machines() {
            table.push(vec![machine.into(), cells.into()]);
        }
        table
    }
}

impl Shown for Results {
    fn record(&self) -> Record<'_> {
        Record { command: &self.command, environment: &self.environment }
    }

    fn report(&self) -> Report {
        let tables = |tables: Vec<Table>| tables.into_iter().map(Block::Table).collect::<Vec<_>>();
        let section = |title: &str, blocks| Section { title: title.into(), blocks };
        // Figures of cost have tables of their own on the page.
        let mut sections = vec![section("Results", tables(vec![self.table_with(&[])]))];
        if self.failed() > 0 {
            sections.push(section("Failed cells", tables(vec![self.failures()])));
        }
        if !self.pairs.is_empty() {
            sections.push(section("Significance", tables(vec![pairs::table(&self.study, &self.pairs)])));
        }
        sections.push(section("Cost", tables(self.costs())));
        for column in self.study.columns() {
            let charts = self.charts(column);
            if !charts.is_empty() {
                sections.push(Section { title: column.column(), blocks: charts });
            }
        }
        sections.push(section("Setting", tables(vec![self.data(), self.changes(), self.machine_table()])));
        let facts = self.record().facts();
        Report { title: self.study.title.clone(), summary: self.summary(), facts, sections }
    }

    fn tables(&self) -> Vec<Table> {
        let mut tables = vec![self.table()];
        if !self.pairs.is_empty() {
            tables.push(pairs::table(&self.study, &self.pairs));
        }
        if self.failed() > 0 {
            tables.push(self.failures());
        }
        tables
    }

    fn files(&self) -> Vec<Table> {
        self.tables().into_iter().chain(self.costs()).collect()
    }

    fn to_json(&self) -> Value {
        json!({
            "title": self.study.title,
            "tasks": self.study.tasks,
            "settings": self.study.settings,
            "models": self.study.models,
            "baseline": self.study.baseline,
            "command": self.command,
            "environment": self.environment,
            "table": self.table().to_json(),
            "significance": self.pairs,
            "cells": self.records,
        })
    }

    fn write(&self, folder: &Path) -> io::Result<Files> {
        // A paper has no table of failed cells.
        let pairs = (!self.pairs.is_empty()).then(|| pairs::table(&self.study, &self.pairs));
        let tables = [self.table()].into_iter().chain(pairs).chain(self.costs());
        let latex: String = tables.map(|table| table.to_latex() + "\n").collect();
        let further: [(&str, String); 3] = [
            (LATEX, format!("% \\usepackage{{booktabs}}\n\n{latex}")),
            (CELLS_TABLE, self.long().to_csv()),
            (PAIRS_TABLE, pairs::table(&self.study, &self.pairs).to_csv()),
        ];
        for (name, content) in further {
            write_whole(&folder.join(name), content.as_bytes())?;
        }
        self.record().write(folder, &self.report(), &self.to_json(), &self.files())
    }
}
