//! Report on untrained decoders: tables, charts, files and an HTML page.

use regard_report::{Axis, Block, Chart, Data, Report, Scale, Section, Series, Table};
use regard_tasks::train::Environment;
use serde_json::{Value, json};

use super::{
    charts::{cumulative, errors, errors_by_position, neighbours, variances},
    classifier::{ByDepth, Classifier},
    curves::{Curve, Replicates, Statistic},
    lemma::spaced_positions,
    measure::Measured,
    tables,
    tally::Quantity,
};
use crate::record::{Record, Shown};

/// Maximum lines per chart.
const MOST_LINES: usize = 8;

/// Measurements, with the context needed to judge them.
#[derive(Clone, Debug)]
pub struct Probe {
    /// One entry per kind of decoder.
    pub measured: Vec<Measured>,
    /// Short description of what they share.
    pub setting: String,
    /// The classifier, if there was one.
    pub classifier: Option<Classifier>,
    /// The command line.
    pub command: String,
    /// Machine, version and date.
    pub environment: Environment,
}

impl Probe {
    fn lemmas(&self) -> Option<Table> {
        self.measured.iter().any(|one| one.setting.has_lemmas()).then(|| tables::lemma_table(&self.measured))
    }

    fn classified(&self) -> Vec<ByDepth<'_>> {
        let some = self.measured.iter().filter(|one| !one.accuracies.is_empty());
        some.map(|one| ByDepth { label: one.setting.label.clone(), accuracies: &one.accuracies }).collect()
    }

    /// Variance of `o_m` in the first layer divided by that of lemma 3, one line per setting.
    fn ratios(&self) -> Option<Chart> {
        let lines = self.measured.iter().filter(|one| one.setting.has_lemmas()).take(MOST_LINES).enumerate();
        let line = |(style, one): (usize, &Measured)| {
            let lemmas = one.setting.lemmas();
            let curve = one.replicates.curve(1, Quantity::Attention, Statistic::Variance)?;
            let points = curve.drawn(|m| lemmas.output(m).recip());
            Some(Series { name: one.setting.label.clone(), points, style })
        };
        let series: Vec<Series> = lines.filter_map(line).collect();
        let chart = Chart::new(
            "Variance of o_m as a multiple of lemma 3's",
            format!("{}; first layer, band: 95 % interval", self.sizes()),
            Data::Lines(series.clone()),
        );
        (!series.is_empty()).then(|| {
            chart
                .axes(
                    Axis::new("position", "").scale(Scale::Log),
                    Axis::new("measured / (d^2 s^4 / n)", "").scale(Scale::Log),
                )
                .rule(1.0, "lemma 3, corrected")
        })
    }

    /// Variance of `o_m` in the first layer relative to the first position, one line per setting.
    fn side_by_side(&self) -> Chart {
        let lines = self.measured.iter().take(MOST_LINES).enumerate();
        let line = |(style, one): (usize, &Measured)| {
            let curve = one.replicates.curve(1, Quantity::Attention, Statistic::Variance)?;
            let first = curve.points.first()?.1.mean;
            Some(Series { name: one.setting.label.clone(), points: curve.drawn(|_| first.recip()), style })
        };
        Chart::new(
            "Variance of o_m as a multiple of that of the first position",
            format!("{}; first layer, band: 95 % interval", self.sizes()),
            Data::Lines(lines.filter_map(line).collect()),
        )
        .axes(Axis::new("position", "").scale(Scale::Log), Axis::new("variance / first", "").scale(Scale::Log))
    }

    /// Charts of one setting, by layer.
    fn one(&self, number: usize, one: &Measured) -> Section {
        let decoder = &one.setting.decoder;
        let (replicates, layers) = (&one.replicates, decoder.layers);
        let subtitle = || format!("{}; {}; band: 95 % interval", one.setting.label, self.sizes());
        let lemmas = one.setting.lemmas();
        let theory = one
            .setting
            .has_lemmas()
            .then(|| spaced_positions(decoder.length).into_iter().map(|m| (m as f64, lemmas.output(m))).collect());
        let title = "Variance of what attention adds, o_m";
        let charts = [
            ("variance", variances(replicates, layers, Quantity::Attention, title, subtitle(), theory)),
            (
                "stream",
                variances(replicates, layers, Quantity::Output, "Variance of the residual stream", subtitle(), None),
            ),
            ("cumulative", cumulative(replicates, layers, subtitle())),
            ("neighbours", neighbours(replicates, layers, subtitle())),
        ];
        let block = |(name, chart): (&str, Option<Chart>)| {
            Some(Block::Chart { name: format!("{name}-{number}"), chart: chart? })
        };
        Section { title: one.setting.label.clone(), blocks: charts.into_iter().filter_map(block).collect() }
    }

    fn classifier_setting(&self) -> String {
        let Some(own) = self.classifier else { return String::new() };
        let positions = if own.positions == 0 { "all".into() } else { own.positions.to_string() };
        format!("{} updates of {} x {positions} positions, {} sequences", own.updates, own.batch, own.sequences)
    }

    /// Short description of the setting for a chart.
    fn sizes(&self) -> String {
        let Some(first) = self.measured.first() else { return String::new() };
        let decoder = &first.setting.decoder;
        format!("width {}, {} layers, {} decoders", decoder.width, decoder.layers, first.replicates.0.len())
    }

    /// A summary in a few sentences.
    fn summary(&self) -> String {
        let mut text = format!("{}.", self.setting);
        let slopes = self.measured.iter().filter_map(|one| {
            let slope = one.replicates.log_slope(1, Quantity::Attention)?;
            Some(format!("{}: {:.3}", one.setting.label, slope.mean))
        });
        let slopes: Vec<String> = slopes.collect();
        text += &format!(" Slope of log variance of o_m over log position in the first layer: {}.", slopes.join(", "));
        for ByDepth { label, accuracies } in self.classified() {
            let (Some((first, before)), Some((last, after))) = (accuracies.first(), accuracies.last()) else {
                continue;
            };
            text += &format!(
                " {label}: a classifier is off by {:.1} tokens after {first} layers, by {:.1} after {last} (always the middle: \
                 {:.1}).",
                before.error, after.error, before.chance
            );
        }
        text
    }
}

impl Shown for Probe {
    fn record(&self) -> Record<'_> {
        Record { command: &self.command, environment: &self.environment }
    }

    fn report(&self) -> Report {
        let mut sections = Vec::new();
        let chart = |name: &str, chart: Chart| Block::Chart { name: name.into(), chart };
        if let Some(lemmas) = self.lemmas() {
            let ratios = self.ratios().map(|ratios| chart("lemma-3", ratios));
            let blocks = [Block::Table(lemmas)].into_iter().chain(ratios).collect();
            sections.push(Section { title: "Lemmas".into(), blocks });
        }
        let mut blocks = vec![Block::Table(tables::slopes(&self.measured))];
        if self.measured.len() > 1 {
            blocks.push(chart("side-by-side", self.side_by_side()));
        }
        sections.push(Section { title: "Variance by position".into(), blocks });
        if let Some(channels) = tables::channel_table(&self.measured) {
            sections.push(Section { title: "Channel by channel".into(), blocks: vec![Block::Table(channels)] });
        }
        let classified = self.classified();
        if let Some(accuracies) = tables::accuracies(&classified) {
            let subtitle = self.classifier_setting();
            let errors = errors(&classified, subtitle.clone()).map(|errors| chart("position-error", errors));
            let mut blocks: Vec<Block> = [Block::Table(accuracies)].into_iter().chain(errors).collect();
            for (number, ByDepth { label, accuracies }) in classified.iter().enumerate() {
                let errors = errors_by_position(accuracies, format!("{label}; {subtitle}"));
                blocks.push(chart(&format!("position-error-{number}"), errors));
            }
            sections.push(Section { title: "A classifier of positions".into(), blocks });
        }
        sections.extend(self.measured.iter().enumerate().map(|(number, one)| self.one(number, one)));
        Report {
            title: "Positions in decoders that were never trained".into(),
            summary: self.summary(),
            facts: self.record().facts(),
            sections,
        }
    }

    fn tables(&self) -> Vec<Table> {
        let (first, measured) = (self.lemmas(), &self.measured);
        let rest =
            [Some(tables::slopes(measured)), tables::channel_table(measured), tables::accuracies(&self.classified())];
        [first].into_iter().chain(rest).flatten().collect()
    }

    fn to_json(&self) -> Value {
        let settings = self.measured.iter().map(|one| {
            let decoder = &one.setting.decoder;
            let accuracies =
                one.accuracies.iter().map(|(layers, accuracy)| json!({ "layers": layers, "accuracy": accuracy }));
            json!({
                "label": one.setting.label,
                "attention": decoder.attention,
                "width": decoder.width,
                "layers": decoder.layers,
                "feed_forward": decoder.feed_forward,
                "length": decoder.length,
                "deviation": decoder.deviation,
                "weights": decoder.weights,
                "uniform": decoder.uniform,
                "decoders": one.replicates.0.len(),
                "slopes": slopes_json(&one.replicates, decoder.layers),
                "channels": one.channels,
                "classifier": accuracies.collect::<Vec<_>>(),
                "curves": curves_json(&one.replicates, decoder.layers),
            })
        });
        json!({
            "setting": self.setting,
            "command": self.command,
            "environment": self.environment,
            "classifier": self.classifier,
            "settings": settings.collect::<Vec<_>>(),
            "tables": self.tables().iter().map(Table::to_json).collect::<Vec<_>>(),
        })
    }
}

/// Slopes of log variance over log position of `o_m` by layer.
pub(super) fn slopes_json(replicates: &Replicates, layers: usize) -> Value {
    let slopes = (1..=layers).filter_map(|layer| {
        let slope = replicates.log_slope(layer, Quantity::Attention)?;
        Some(json!({ "layer": layer, "o_m": slope }))
    });
    slopes.collect()
}

/// Thinned curves with five digits.
pub(super) fn curves_json(replicates: &Replicates, layers: usize) -> Value {
    const FIRST: [Quantity; 8] = [
        Quantity::Query,
        Quantity::Key,
        Quantity::Value,
        Quantity::Logit,
        Quantity::Heads,
        Quantity::Residual,
        Quantity::Normalised,
        Quantity::OverSequences,
    ];
    let mut wanted = Vec::new();
    for layer in 1..=layers {
        if layer == 1 {
            wanted.extend(FIRST.map(|quantity| (layer, quantity, Statistic::Mean)));
            wanted.extend(FIRST.map(|quantity| (layer, quantity, Statistic::Variance)));
            wanted.push((layer, Quantity::Attention, Statistic::Mean));
        }
        wanted.push((layer, Quantity::Attention, Statistic::Variance));
        wanted.push((layer, Quantity::Output, Statistic::Variance));
        wanted.push((layer, Quantity::Neighbours, Statistic::Mean));
        wanted.push((layer, Quantity::Cumulative, Statistic::Mean));
    }
    let curves = wanted.into_iter().filter_map(|(layer, quantity, statistic)| {
        let curve = replicates.curve(layer, quantity, statistic)?;
        let Curve { points, .. } = if quantity == Quantity::Cumulative { curve } else { curve.thinned() };
        let five = |x: f64| format!("{x:.4e}").parse::<f64>().unwrap_or(x);
        Some(json!({
            "layer": layer,
            "quantity": quantity,
            "statistic": statistic,
            "positions": points.iter().map(|(m, _)| m).collect::<Vec<_>>(),
            "values": points.iter().map(|(_, estimate)| five(estimate.mean)).collect::<Vec<_>>(),
            "half_intervals": points.iter().map(|(_, estimate)| estimate.half.map(five)).collect::<Vec<_>>(),
        }))
    });
    curves.collect()
}
