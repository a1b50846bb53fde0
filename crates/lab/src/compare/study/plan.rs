//! What a study would do: its cells, what they need, and which are done.

use std::path::Path;

use regard_report::{Cell as Entry, Column, Format, Table};
use regard_tasks::{Failure, run::RunConfig};
use serde_json::{Value, json};

use super::{Cell, CellRecord, Group, Outcome, Reason, Study, cell::check, cell_directory, tables::counted};
use crate::cost::{Count, ModelCost, ModelSizes, Run, TRAINING, total_memory};

/// A study before it is trained.
#[derive(Debug)]
pub struct Plan {
    title: String,
    rows: Vec<Row>,
}

/// The cells of one model on one task in one setting.
#[derive(Debug)]
struct Row {
    task: String,
    setting: Option<String>,
    model: String,
    seeds: Vec<u64>,
    parameters: Option<Count>,
    bytes: Option<Count>,
    multiply_adds: Option<Count>,
    finished: usize,
    failed: Vec<(u64, String)>,
    problem: Option<Failure>,
}

impl Plan {
    /// The plan of `cells`, some of which may have ended in the directory `out`.
    ///
    /// # Errors
    /// A record that cannot be read.
    pub fn of(study: &Study, cells: &[Cell], out: &Path) -> Result<Self, Failure> {
        let mut rows = Vec::new();
        for group in &study.groups {
            let here = cells.iter().filter(|cell| cell.group.place == group.place);
            let seeds: Vec<u64> = here.map(|cell| cell.seed).collect();
            if !seeds.is_empty() {
                rows.push(Row::of(group, seeds, out)?);
            }
        }
        Ok(Self { title: study.title.clone(), rows })
    }

    /// Number of cells.
    pub fn cells(&self) -> usize {
        self.rows.iter().map(|row| row.seeds.len()).sum()
    }

    /// Number of cells that have failed, or cannot be trained.
    pub fn failing(&self) -> usize {
        let failing = |row: &Row| if row.problem.is_some() { row.seeds.len() - row.finished } else { row.failed.len() };
        self.rows.iter().map(failing).sum()
    }

    /// One row for each model on each task.
    pub fn table(&self) -> Table {
        let setting = self.rows.iter().any(|row| row.setting.is_some());
        let mut columns = vec![Column::text("task")];
        columns.extend(setting.then(|| Column::text("setting")));
        columns.extend([
            Column::text("model"),
            Column::text("seeds"),
            Column::number("parameters", Format::Plain),
            Column::number("memory", Format::Bytes),
            Column::number("multiply-adds", Format::Count),
            Column::text("state"),
        ]);
        let mut table = Table::new(format!("{}: {}", self.title, counted(self.cells(), "cell")), columns);
        for row in &self.rows {
            let mut cells: Vec<Entry> = vec![row.task.as_str().into()];
            cells.extend(setting.then(|| row.setting.clone().into()));
            cells.extend([
                row.model.as_str().into(),
                row.seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ").into(),
                row.parameters.into(),
                row.bytes.into(),
                row.multiply_adds.into(),
                row.state().into(),
            ]);
            table.push(cells);
        }
        table
            .note(
                "Closed forms before anything runs. Memory: parameters, their gradients and moments, what one update on a \
                 batch of the longest length keeps for its backward pass, and data where their size is known. Multiply-adds: \
                 forward, one sequence of the longest length. Vocabularies that depend on files are the usual ones.",
            )
            .note(format!(
                "{} finished, {} failed or cannot be trained.",
                self.rows.iter().map(|row| row.finished).sum::<usize>(),
                self.failing()
            ))
    }

    /// The same for programs.
    pub fn to_json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "task": row.task, "setting": row.setting, "model": row.model, "seeds": row.seeds,
                "parameters": row.parameters.map(|count| count as f64), "memory_bytes": row.bytes.map(|bytes| bytes as f64),
                "multiply_adds": row.multiply_adds.map(|count| count as f64), "finished": row.finished,
                "failed": row.failed.iter().map(|(seed, sentence)| json!({"seed": seed, "sentence": sentence})).collect::<Vec<_>>(),
                "problem": row.problem.as_ref().map(|problem| problem.message.clone()),
            })
        };
        json!({ "title": self.title, "cells": self.cells(), "rows": self.rows.iter().map(row).collect::<Vec<_>>() })
    }
}

impl Row {
    fn of(group: &Group, seeds: Vec<u64>, out: &Path) -> Result<Self, Failure> {
        let config = group.config()?;
        let (mut finished, mut failed) = (0, Vec::new());
        for &seed in &seeds {
            match CellRecord::read(&cell_directory(out, &group.place, seed))?.map(|record| record.outcome) {
                Some(Outcome::Finished(_)) => finished += 1,
                Some(Outcome::Failed { sentence, .. }) => failed.push((seed, sentence)),
                None => {}
            }
        }
        let cost = cost(&config);
        Ok(Self {
            task: group.place.task.clone(),
            setting: group.place.setting.clone(),
            model: group.place.model.clone(),
            seeds,
            parameters: cost.map(|[parameters, ..]| parameters),
            bytes: cost.map(|[_, bytes, _]| bytes),
            multiply_adds: cost.map(|[.., operations]| operations),
            finished,
            failed,
            problem: check(&config).err(),
        })
    }

    fn state(&self) -> String {
        let mut words = Vec::new();
        if self.finished > 0 {
            words.push(format!("{} finished", self.finished));
        }
        if let Some((_, sentence)) = self.failed.first() {
            words.push(format!("{} failed: {sentence}", self.failed.len()));
        }
        let open = self.seeds.len() - self.finished - self.failed.len();
        match &self.problem {
            Some(problem) if self.failed.is_empty() => {
                words.push(format!("{}: {}", Reason::of(problem).words(), problem.message));
            }
            _ if open > 0 => words.push(format!("{open} to train")),
            _ => {}
        }
        if self.problem.is_none() && total_memory().zip(self.bytes).is_some_and(|(there, needed)| needed > there) {
            words.push("may need more memory than this machine has".into());
        }
        words.join("; ")
    }
}

/// Parameters, bytes in training, and multiply-adds of a forward pass; `None` for a model that cannot be built.
fn cost(config: &RunConfig) -> Option<[Count; 3]> {
    let task = config.task.options();
    let length = task.shape().max_length;
    let run = Run { batch: config.train.batch, length, decoded: 0 };
    let total = ModelCost::of(&ModelSizes::of(config, None, length), run).ok()?.total();
    let held = task.held().map_or(0, |held| held.bytes);
    Some([total.parameters, total.parameters * TRAINING + total.activation_bytes + held, total.multiply_adds])
}
