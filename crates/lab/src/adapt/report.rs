//! An adaptation as tables, files and a page.

use regard_report::{Axis, Block, Cell, Chart, Column, Data, Format, Report, Section, Series, Table};
use serde_json::{Value, json};

use super::{
    Adaptation, Row, Training,
    study::{ADAPTED, CONTROL, EXACT, PLANNED},
};
use crate::record::{Record, Shown};

impl Adaptation {
    /// The models side by side.
    pub fn judged(&self) -> Table {
        let mut columns = vec![Column::text("model")];
        if self.has_loss {
            columns.push(Column::number("loss", Format::Fixed(4)).unit("nat"));
            columns.push(Column::number("perplexity", Format::Fixed(3)));
            columns.push(Column::number("beside exact", Format::Percent(2)));
            if self.study.config.control {
                columns.push(Column::number("beside exact tuned", Format::Percent(2)));
            }
        } else {
            columns.push(Column::number("1 - cosine", Format::Significant(3)));
        }
        let config = &self.study.config;
        let mut table = Table::new(format!("{}, sequences of {} tokens", self.source, config.length), columns);
        let exact = self.rows.first().map_or(0.0, |row| row.loss);
        for Row { name, loss } in &self.rows {
            let mut row: Vec<Cell> = vec![name.as_str().into(), (*loss).into()];
            if self.has_loss {
                row.extend([loss.exp().into(), ((loss - exact).exp() - 1.0).into()]);
                // What was not tuned has nothing to do with a tuned model.
                let tuned = name == ADAPTED || name == CONTROL;
                row.extend(
                    self.loss_of(CONTROL).map(|control| Cell::from(tuned.then(|| (loss - control).exp() - 1.0))),
                );
            }
            table.push(row);
        }
        let table = table.note(format!("Judged on {} sequences that nothing learned from.", config.held_out));
        match (self.has_loss, config.control) {
            (false, _) => table.note("Distance of mean states from those of exact attention."),
            (true, true) => table.note(
                "Tuning on texts of one kind makes the exact model better at them too: what the plan costs after tuning is its \
                 distance from the exact model tuned alike, not from the exact one.",
            ),
            (true, false) => table.note(
                "Tuning on texts of one kind makes the exact model better at them too, and part of what was won may be that; \
                 --control measures it.",
            ),
        }
    }

    fn loss_of(&self, name: &str) -> Option<f64> {
        self.rows.iter().find(|row| row.name == name).map(|row| row.loss)
    }

    /// What was done.
    pub fn work(&self) -> Table {
        let config = &self.study.config;
        let columns = vec![Column::text("training"), Column::text("seen")];
        let mut table = Table::new("Training", columns);
        let what = match config.training {
            Training::Lora { rank, alpha } => format!("low-rank updates of attention, rank {rank}, alpha {alpha}"),
            Training::Full => "attention while matching, then all parameters".into(),
        };
        let tokens = (config.match_steps + config.steps) * config.batch * config.length;
        let mut line = |name: &str, seen: String| table.push(vec![name.into(), seen.into()]);
        line("what learned", what);
        line("parameters", format!("{} beside {} of the model", self.learned[0], self.learned[1]));
        line("steps", format!("{} of matching, {} of tuning", config.match_steps, config.steps));
        line("tokens", format!("{tokens}, of {} sequences", self.sequences));
        line("time", format!("{:.1} s", self.seconds));
        table
    }

    /// Errors of layers.
    pub fn by_layer(&self) -> Table {
        let error = |title: &str| Column::number(title, Format::Significant(3));
        let columns = vec![
            Column::number("layer", Format::Plain),
            error("error before"),
            error("after matching"),
            error("after tuning"),
        ];
        let mut table = Table::new("Attention against exact attention on the same inputs", columns);
        for (number, errors) in self.layers.iter().enumerate() {
            let mut row: Vec<Cell> = vec![(number + 1).into()];
            row.extend(errors.iter().map(|error| Cell::from(*error)));
            table.push(row);
        }
        table.note(
            "Squared error of what a layer gives, relative to the squares of what exact attention gives, on the sequences to judge \
             by. Inputs are those of the exact model; tuning does not ask for a small error.",
        )
    }

    /// Losses of steps from one to another, as a chart.
    fn curve(&self, title: &str, name: &str, from: usize, to: usize) -> Option<Block> {
        let losses = self.losses.get(from..to.min(self.losses.len())).filter(|losses| losses.len() > 1)?;
        let points = (1..).zip(losses).map(|(step, loss)| (f64::from(step), f64::from(*loss)));
        let chart = Chart::new(title, "", Data::Lines(vec![Series::new(name, 0, points)]))
            .axes(Axis::new("step", "").whole(), Axis::new(name, ""));
        Some(Block::Chart { name: name.replace(' ', "-"), chart })
    }
}

impl Shown for Adaptation {
    fn record(&self) -> Record<'_> {
        Record { command: &self.command, environment: &self.environment }
    }

    fn report(&self) -> Report {
        let (exact, planned, adapted) = (self.loss_of(EXACT), self.loss_of(PLANNED), self.loss_of(ADAPTED));
        let summary = match (exact, planned, adapted) {
            (Some(exact), Some(planned), Some(adapted)) if self.has_loss => {
                let change = |loss: f64, exact: f64| 100.0 * ((loss - exact).exp() - 1.0);
                let (before, after) = (change(planned, exact), change(adapted, exact));
                let control = self.loss_of(CONTROL).map_or_else(String::new, |control| {
                    format!(" Beside exact attention tuned alike: {:+.2} %.", change(adapted, control))
                });
                format!("Perplexity beside exact attention: {before:+.2} % before, {after:+.2} % after.{control}")
            }
            (_, Some(planned), Some(adapted)) => {
                format!(
                    "Distance of mean states from those of exact attention: {planned:.2e} before, {adapted:.2e} after."
                )
            }
            _ => String::new(),
        };
        let matched = self.study.config.match_steps;
        let mut result = vec![Block::Table(self.judged()), Block::Table(self.work())];
        result.extend(self.curve("Mean error of layers while they are matched", "error", 0, matched));
        result.extend(self.curve("Loss while the model is tuned", "loss", matched, self.losses.len()));
        Report {
            title: "A trained model adapted to other attention".into(),
            summary,
            facts: self.record().facts(),
            sections: vec![
                Section { title: "Result".into(), blocks: result },
                Section { title: "Layers".into(), blocks: vec![Block::Table(self.by_layer())] },
                Section { title: "Plan".into(), blocks: vec![Block::Code(self.study.plan.to_toml())] },
            ],
        }
    }

    fn tables(&self) -> Vec<Table> {
        vec![self.judged(), self.work()]
    }

    fn files(&self) -> Vec<Table> {
        vec![self.judged(), self.work(), self.by_layer()]
    }

    fn to_json(&self) -> Value {
        json!({
            "model": self.source,
            "written": self.written.to_string_lossy(),
            "rows": self.rows,
            "layers": self.layers,
            "losses": self.losses,
            "seconds": self.seconds,
            "parameters_learned": self.learned[0],
            "parameters": self.learned[1],
            "sequences": self.sequences,
            "config": self.study.config,
            "plan": self.study.plan,
            "command": self.command,
            "environment": self.environment,
        })
    }
}
