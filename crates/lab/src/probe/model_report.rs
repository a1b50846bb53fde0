//! Report on a trained decoder: tables, charts, files and an HTML page.

use regard_report::{Block, Cell, Column, Format, Report, Section, Table};
use regard_tasks::train::Environment;
use serde_json::{Value, json};

use super::{
    charts::{cumulative, errors, errors_by_position, neighbours, variances},
    classifier::{ByDepth, Classifier},
    curves::Statistic,
    report::{curves_json, slopes_json},
    tables::accuracies,
    tally::Quantity,
    trained::MeasuredModel,
};
use crate::record::{Record, Shown};

/// Measurements of a model, with the context needed to judge them.
#[derive(Clone, Debug)]
pub struct ModelProbe {
    /// The results.
    pub measured: MeasuredModel,
    /// Short description of model and data.
    pub source: String,
    /// Short description of the measurement.
    pub setting: String,
    /// The classifier, if there was one.
    pub classifier: Option<Classifier>,
    /// The command line.
    pub command: String,
    /// Machine, version and date.
    pub environment: Environment,
}

impl ModelProbe {
    fn classified(&self) -> Vec<ByDepth<'_>> {
        vec![ByDepth { label: self.source.clone(), accuracies: &self.measured.accuracies }]
    }

    /// One row per layer.
    fn by_layer(&self) -> Table {
        let slope = |name: &str| Column::number(name, Format::Fixed(3));
        let variance = |name: &str| Column::number(name, Format::Significant(3));
        let columns = vec![
            Column::number("layer", Format::Plain),
            slope("slope of o_m"),
            slope("of o_m over sequences"),
            slope("of the stream"),
            variance("o_m at 1"),
            variance("o_m at L"),
            Column::number("logits' variance", Format::Fixed(3)),
            Column::number("attention to the last quarter", Format::Percent(1)),
            Column::number("neighbours' cosine", Format::Fixed(3)),
        ];
        let mut table = Table::new(format!("Variance against position, {}", self.source), columns);
        let replicates = &self.measured.replicates;
        for layer in 1..=self.measured.layers {
            let curve = replicates.curve(layer, Quantity::Attention, Statistic::Variance);
            let end = |last: bool| {
                let points = curve.as_ref().map(|curve| &curve.points)?;
                if last { points.last() } else { points.first() }.map(|(_, estimate)| *estimate)
            };
            let cumulative = replicates.curve(layer, Quantity::Cumulative, Statistic::Mean);
            let quarter = cumulative.and_then(|curve| {
                let before = (curve.points.len() * 3 / 4).saturating_sub(1);
                Some(1.0 - curve.points.get(before)?.1.mean)
            });
            let neighbours = replicates.curve(layer, Quantity::Neighbours, Statistic::Mean);
            let cosine = neighbours.map(|curve| {
                curve.points.iter().map(|(_, estimate)| estimate.mean).sum::<f64>() / curve.points.len() as f64
            });
            table.push(vec![
                layer.into(),
                replicates.log_slope(layer, Quantity::Attention).into(),
                replicates.log_slope(layer, Quantity::OverSequences).into(),
                replicates.log_slope(layer, Quantity::Output).into(),
                end(false).into(),
                end(true).into(),
                replicates.overall(layer, Quantity::Logit).into(),
                quarter.map_or(Cell::Empty, Cell::from),
                cosine.map_or(Cell::Empty, Cell::from),
            ]);
        }
        table
            .note(format!(
                "{}; ± half the 95 % interval over groups of sequences. Slopes: of the logarithm of the variance over that of \
                 the position.",
                self.setting
            ))
            .note(
                "Variance over channels and sequences; over sequences: of each channel by itself, without the part that is the \
                 same in all of them. Attention to the last quarter: of the last query; even attention gives 25 %.",
            )
    }

    fn summary(&self) -> String {
        let mut text = format!("{}.", self.source);
        let slopes = (1..=self.measured.layers).filter_map(|layer| {
            let slope = self.measured.replicates.log_slope(layer, Quantity::Attention)?;
            Some(format!("{:.2}", slope.mean))
        });
        text += &format!(
            " Slope of log variance of o_m over log position, layer by layer: {}.",
            slopes.collect::<Vec<_>>().join(", ")
        );
        if let Some((layers, best)) = self.measured.accuracies.iter().min_by(|a, b| a.1.error.total_cmp(&b.1.error)) {
            text += &format!(
                " A classifier tells positions best after {layers} layers: off by {:.1} tokens (always the middle: {:.1}).",
                best.error, best.chance
            );
        }
        text
    }
}

impl Shown for ModelProbe {
    fn record(&self) -> Record<'_> {
        Record { command: &self.command, environment: &self.environment }
    }

    fn report(&self) -> Report {
        let MeasuredModel { layers, replicates, accuracies, .. } = &self.measured;
        let subtitle = || format!("{}; band: 95 % interval", self.source);
        let variance = |quantity, title| variances(replicates, *layers, quantity, title, subtitle(), None);
        let charts = [
            ("variance", variance(Quantity::Attention, "Variance of what attention adds, o_m")),
            ("over-sequences", variance(Quantity::OverSequences, "Variance of o_m over sequences")),
            ("stream", variance(Quantity::Output, "Variance of the residual stream")),
            ("logits", variance(Quantity::Logit, "Variance of logits over the keys that a query sees")),
            ("cumulative", cumulative(replicates, *layers, subtitle())),
            ("neighbours", neighbours(replicates, *layers, subtitle())),
        ];
        let chart = |(name, chart): (&str, Option<regard_report::Chart>)| {
            Some(Block::Chart { name: name.into(), chart: chart? })
        };
        let mut blocks = vec![Block::Table(self.by_layer())];
        blocks.extend(charts.into_iter().filter_map(chart));
        let mut sections = vec![Section { title: "By layer".into(), blocks }];
        if !accuracies.is_empty() {
            let mut blocks: Vec<Block> = self.tables().into_iter().skip(1).map(Block::Table).collect();
            let chart = errors(&self.classified(), self.setting.clone());
            blocks.extend(chart.map(|chart| Block::Chart { name: "position-error".into(), chart }));
            let chart = errors_by_position(accuracies, self.source.clone());
            blocks.push(Block::Chart { name: "position-error-by-position".into(), chart });
            sections.push(Section { title: "A classifier of positions".into(), blocks });
        }
        Report {
            title: "Positions in a trained decoder".into(),
            summary: self.summary(),
            facts: self.record().facts(),
            sections,
        }
    }

    fn tables(&self) -> Vec<Table> {
        let by_layer = self.by_layer();
        [Some(by_layer), accuracies(&self.classified())].into_iter().flatten().collect()
    }

    fn to_json(&self) -> Value {
        let MeasuredModel { layers, length, replicates, accuracies } = &self.measured;
        let accuracies = accuracies.iter().map(|(layers, accuracy)| json!({ "layers": layers, "accuracy": accuracy }));
        json!({
            "source": self.source,
            "setting": self.setting,
            "command": self.command,
            "environment": self.environment,
            "layers": layers,
            "length": length,
            "classifier": self.classifier,
            "accuracies": accuracies.collect::<Vec<_>>(),
            "slopes": slopes_json(replicates, *layers),
            "curves": curves_json(replicates, *layers),
            "tables": self.tables().iter().map(Table::to_json).collect::<Vec<_>>(),
        })
    }
}
