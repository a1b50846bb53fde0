//! A swap as tables, files and a page.

use regard_metrics::spearman;
use regard_report::{Axis, Block, Cell, Chart, Column, Data, Format, Report, Scale, Section, Series, Table};
use serde_json::{Value, json};

use super::{Chosen, Kind, Predictor, Row, Swap};
use crate::record::{Record, Shown};

impl Swap {
    /// Ways to run the model, side by side.
    pub fn judged(&self) -> Table {
        let change = if self.has_loss { "perplexity" } else { "change" };
        let several = self.study.several();
        let mut columns = if several { vec![Column::text("budget")] } else { Vec::new() };
        columns.extend([
            Column::text("attention"),
            Column::number("memory", Format::Percent(1)),
            Column::number("time", Format::Percent(1)),
            Column::number("predicted", Format::Significant(3)),
        ]);
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
        for Row { name, budget, predicted, loss, seconds, sample_loss, .. } in &self.rows {
            let mut row = if several { vec![budget.as_deref().unwrap_or_default().into()] } else { Vec::new() };
            row.extend::<[Cell; 6]>([
                name.as_str().into(),
                predicted.bytes.into(),
                predicted.seconds.into(),
                predicted.loss.into(),
                (*sample_loss).into(),
                (*loss).into(),
            ]);
            if self.has_loss {
                row.push(loss.exp().into());
                row.push(((loss - exact).exp() - 1.0).into());
            }
            row.push((*seconds).into());
            table.push(row);
        }
        for row in self.better() {
            let budget = row.budget.as_deref().unwrap_or_default();
            table = table
                .note(format!("At {budget} {} loses less than the choice on the sequences to judge by.", row.name));
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
        let mut columns = vec![Column::text("candidate"), Column::text("sizes")];
        columns.extend(self.chosen.iter().map(|chosen| Column::number(self.titled("groups", chosen), Format::Plain)));
        columns.extend([
            Column::number("memory", Format::Bytes),
            Column::number("time", Format::Significant(3)).unit("ms"),
            Column::number("mean error", Format::Significant(3)),
        ]);
        let mut table = Table::new("Candidates for a key head with its query heads", columns);
        for (at, (candidate, price)) in self.candidates.iter().zip(&self.prices).enumerate() {
            let error = self.measured.iter().map(|measured| measured.effects[at].error).sum::<f64>();
            let sizes = candidate.attention.as_ref().map_or_else(String::new, |options| options.sizes());
            let mut row: Vec<Cell> = vec![candidate.name.as_str().into(), sizes.into()];
            let count = |chosen: &Chosen| chosen.groups.iter().filter(|group| **group == at).count();
            row.extend(self.chosen.iter().map(|chosen| Cell::from(count(chosen))));
            row.extend::<[Cell; 3]>([
                (price.bytes as usize).into(),
                (1e3 * price.seconds).into(),
                (error / self.measured.len().max(1) as f64).into(),
            ]);
            table.push(row);
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
        let mut columns = vec![
            Column::number("layer", Format::Plain),
            Column::number("key head", Format::Plain),
            Column::number("entropy", Format::Fixed(3)),
        ];
        for chosen in &self.chosen {
            columns.push(Column::text(self.titled("attention", chosen)));
            columns.push(Column::number(self.titled("error", chosen), Format::Significant(3)));
        }
        let mut table = Table::new("Choice by group", columns);
        for (number, measured) in self.measured.iter().enumerate() {
            let mut row: Vec<Cell> =
                vec![measured.group.layer.into(), measured.group.key_head.into(), measured.entropy.into()];
            for at in self.chosen.iter().map(|chosen| chosen.groups[number]) {
                row.extend::<[Cell; 2]>([self.candidates[at].name.as_str().into(), measured.effects[at].error.into()]);
            }
            table.push(row);
        }
        table.note("Entropy of exact attention relative to equal weights.")
    }

    /// The title of a column of a budget, which is named where there are several.
    fn titled(&self, what: &str, chosen: &Chosen) -> String {
        match &chosen.budget {
            Some(budget) if self.study.several() => format!("{what} at {}", budget.name),
            _ => what.into(),
        }
    }

    /// The row of the choice within a budget.
    fn row_of(&self, chosen: &Chosen) -> Option<&Row> {
        let name = chosen.budget.as_ref().map(|budget| &budget.name);
        self.rows.iter().find(|row| row.budget.as_ref() == name && row.is_chosen())
    }

    /// Of each budget the single candidate that loses least where judged, if that is less than the choice.
    fn better(&self) -> impl Iterator<Item = &Row> {
        self.chosen.iter().filter_map(|chosen| {
            let choice = self.row_of(chosen)?;
            let singles = self.rows.iter().filter(|row| row.single.is_some() && row.budget == choice.budget);
            singles.min_by(|a, b| a.loss.total_cmp(&b.loss)).filter(|single| single.loss < choice.loss)
        })
    }

    /// How much a row loses beside exact attention, in words.
    fn lost(&self, row: &Row) -> String {
        match self.has_loss {
            true => format!("{:+.2} % of perplexity", 100.0 * ((row.loss - self.rows[0].loss).exp() - 1.0)),
            false => format!("{:.2e} of cosine distance", row.loss),
        }
    }

    /// What is lost within each budget: by each kind of candidate alone, and by the choice.
    pub(crate) fn over_budgets(&self) -> Chart {
        let exact = if self.has_loss { self.rows[0].loss } else { 0.0 };
        let line = |name: &str, style: usize, takes: &dyn Fn(&Row) -> bool| {
            let point = |chosen: &Chosen| {
                let budget = chosen.budget.as_ref()?;
                let row = self.rows.iter().find(|row| row.budget.as_ref() == Some(&budget.name) && takes(row))?;
                Some((budget.share, row.loss - exact))
            };
            Series::new(name, style, self.chosen.iter().filter_map(point))
        };
        let kinds = Kind::ALL.iter().enumerate();
        let mut series = vec![line("choice", 0, &|row| row.is_chosen())];
        series.extend(kinds.map(|(at, kind)| line(kind.name(), at + 1, &|row| row.single == Some(*kind))));
        series.retain(|series| !series.points.is_empty());
        let what = if self.has_loss { Axis::new("change of the loss", "nat") } else { Axis::new("1 - cosine", "") };
        // A line of the chart has room for about 110 characters.
        let (source, length) = (&self.source, self.study.length);
        let subtitle = format!("{source}, {length} tokens; the largest candidate of each kind, and the choice");
        Chart::new("Loss within a budget of memory", subtitle, Data::Lines(series))
            .axes(Axis::new("budget of memory", "%").scale(Scale::Log2), what.scale(Scale::Log))
    }
}

impl Shown for Swap {
    fn record(&self) -> Record<'_> {
        Record { command: &self.command, environment: &self.environment }
    }

    fn report(&self) -> Report {
        let mut blocks = vec![Block::Table(self.judged())];
        if self.study.several() {
            blocks.push(Block::Chart { name: "budgets".into(), chart: self.over_budgets() });
        }
        blocks.push(Block::Table(self.choice()));
        blocks.extend(self.validated().map(Block::Table));
        let sentence = |chosen: &Chosen| {
            let row = self.row_of(chosen)?;
            let (memory, time) = (100.0 * row.predicted.bytes, 100.0 * row.predicted.seconds);
            let lost = self.lost(row);
            Some(format!("With {memory:.1} % of the memory and {time:.1} % of the time of exact attention: {lost}."))
        };
        let summary = self.chosen.iter().filter_map(sentence).collect::<Vec<_>>().join(" ");
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
            "chosen": self.chosen.iter().map(|chosen| json!({"budget": chosen.budget, "groups": chosen.groups})).collect::<Vec<_>>(),
            "validation": self.validation,
            "command": self.command,
            "environment": self.environment,
        })
    }
}
