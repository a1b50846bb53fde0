//! A swap as tables, files and a page.

use regard_pretrained::run::scores::spearman;
use regard_report::{Block, Cell, Column, Format, Report, Section, Table};
use serde_json::{Value, json};

use super::{Predictor, Row, Swap, study::CHOSEN};
use crate::record::{Record, Shown};

impl Swap {
    /// Ways to run the model, side by side.
    pub fn judged(&self) -> Table {
        let change = if self.has_loss { "perplexity" } else { "change" };
        let mut columns = vec![
            Column::text("attention"),
            Column::number("memory", Format::Percent(1)),
            Column::number("time", Format::Percent(1)),
            Column::number("predicted", Format::Significant(3)),
        ];
        if self.has_loss {
            columns.push(Column::number("sample loss", Format::Fixed(4)).unit("nat"));
            columns.push(Column::number("loss", Format::Fixed(4)).unit("nat"));
            columns.push(Column::number(change, Format::Fixed(3)));
            columns.push(Column::number("change", Format::Percent(2)));
        } else {
            columns.push(Column::number("on the sample", Format::Significant(3)));
            columns.push(Column::number("1 - cosine", Format::Significant(3)));
        }
        columns.push(Column::number("forward", Format::Significant(3)).unit("s"));
        let title = format!("{}, {} tokens", self.source, self.study.length);
        let mut table = Table::new(title, columns);
        let exact = self.rows.first().map_or(0.0, |row| row.loss);
        for Row { name, predicted, loss, seconds, sample_loss } in &self.rows {
            let mut row: Vec<Cell> = vec![
                name.as_str().into(),
                predicted.bytes.into(),
                predicted.seconds.into(),
                predicted.loss.into(),
                (*sample_loss).into(),
                (*loss).into(),
            ];
            if self.has_loss {
                row.push(loss.exp().into());
                row.push(((loss - exact).exp() - 1.0).into());
            }
            row.push((*seconds).into());
            table.push(row);
        }
        let kept = self.study.storage.name();
        table.note(format!(
            "Memory: decode state after {} tokens with keys and values kept as {kept} (entries of the attention matrix where \
             attention is not causal), time: attention alone in a forward pass; both as shares of exact attention in f32. \
             Predicted by {}. *: chosen, by the sample. Judged on {} sequences that nothing was measured on.",
            self.study.length,
            self.study.predictor.unwrap_or_default().name(),
            self.study.sequences,
        ))
    }

    /// What candidates cost, and how many groups have each.
    pub fn choice(&self) -> Table {
        let columns = vec![
            Column::text("candidate"),
            Column::text("sizes"),
            Column::number("groups", Format::Plain),
            Column::number("memory", Format::Bytes),
            Column::number("time", Format::Significant(3)).unit("ms"),
            Column::number("mean error", Format::Significant(3)),
        ];
        let mut table = Table::new("Candidates for a key head with its query heads", columns);
        for (at, (candidate, price)) in self.candidates.iter().zip(&self.prices).enumerate() {
            let error = self.measured.iter().map(|measured| measured.effects[at].error).sum::<f64>();
            table.push(vec![
                candidate.name.as_str().into(),
                candidate.attention.as_ref().map_or_else(String::new, |options| options.sizes()).into(),
                self.chosen.iter().filter(|chosen| **chosen == at).count().into(),
                (price.bytes as usize).into(),
                (1e3 * price.seconds).into(),
                (error / self.measured.len().max(1) as f64).into(),
            ]);
        }
        let slower: Vec<&str> = self
            .candidates
            .iter()
            .zip(&self.prices)
            .filter(|(_, price)| price.seconds > self.prices[0].seconds)
            .map(|(candidate, _)| candidate.name.as_str())
            .collect();
        let table = table.note("Mean error: squared error of the heads' outputs relative to their mean square.");
        match &slower[..] {
            [] => table,
            slower => table.note(format!("Exact attention is faster at this length than {}.", slower.join(", "))),
        }
    }

    /// How well each predictor foretells swaps of single groups.
    pub fn validated(&self) -> Option<Table> {
        if self.validation.len() < 3 {
            return None;
        }
        let columns = vec![Column::text("predictor"), Column::number("Spearman", Format::Fixed(3))];
        let mut table = Table::new(format!("Predictions of {} swaps of single groups", self.validation.len()), columns);
        let measured: Vec<f64> = self.validation.iter().map(|(_, change)| *change).collect();
        for (at, predictor) in Predictor::ALL.iter().enumerate() {
            let predicted: Vec<f64> = self.validation.iter().map(|(predicted, _)| predicted[at]).collect();
            table.push(vec![
                predictor.name().into(),
                Some(spearman(&predicted, &measured)).filter(|rank| rank.is_finite()).into(),
            ]);
        }
        Some(table.note("Rank correlation of predicted and measured changes of the loss."))
    }

    /// What each group got.
    pub fn by_group(&self) -> Table {
        let columns = vec![
            Column::number("layer", Format::Plain),
            Column::number("key head", Format::Plain),
            Column::number("entropy", Format::Fixed(3)),
            Column::text("attention"),
            Column::number("error", Format::Significant(3)),
        ];
        let mut table = Table::new("Choice by group", columns);
        for (measured, &at) in self.measured.iter().zip(&self.chosen) {
            table.push(vec![
                measured.group.layer.into(),
                measured.group.key_head.into(),
                measured.entropy.into(),
                self.candidates[at].name.as_str().into(),
                measured.effects[at].error.into(),
            ]);
        }
        table.note("Entropy of exact attention relative to equal weights.")
    }
}

impl Shown for Swap {
    fn record(&self) -> Record<'_> {
        Record { command: &self.command, environment: &self.environment }
    }

    fn report(&self) -> Report {
        let mut blocks = vec![Block::Table(self.judged()), Block::Table(self.choice())];
        blocks.extend(self.validated().map(Block::Table));
        let mix = self.rows.iter().find(|row| row.name.starts_with(CHOSEN));
        let summary = mix.map_or_else(String::new, |mix| {
            let change = match self.has_loss {
                true => format!("{:+.2} % of perplexity", 100.0 * ((mix.loss - self.rows[0].loss).exp() - 1.0)),
                false => format!("{:.2e} of cosine distance", mix.loss),
            };
            let (memory, time) = (100.0 * mix.predicted.bytes, 100.0 * mix.predicted.seconds);
            format!("With {memory:.1} % of the memory and {time:.1} % of the time of exact attention: {change}.")
        });
        Report {
            title: "Other attention in a trained model".into(),
            summary,
            facts: self.record().facts(),
            sections: vec![
                Section { title: "Result".into(), blocks },
                Section { title: "Groups".into(), blocks: vec![Block::Table(self.by_group())] },
            ],
        }
    }

    fn tables(&self) -> Vec<Table> {
        [self.judged(), self.choice()].into_iter().chain(self.validated()).collect()
    }

    fn files(&self) -> Vec<Table> {
        let mut all = self.tables();
        all.push(self.by_group());
        all
    }

    fn to_json(&self) -> Value {
        let names: Vec<&str> = self.candidates.iter().map(|candidate| candidate.name.as_str()).collect();
        json!({
            "model": self.source,
            "length": self.study.length,
            "rows": self.rows,
            "candidates": names,
            "prices": self.prices,
            "groups": self.measured,
            "chosen": self.chosen,
            "validation": self.validation,
            "command": self.command,
            "environment": self.environment,
        })
    }
}
