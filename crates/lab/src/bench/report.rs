//! The benchmark as a table, files and a page (figure 6 of arXiv 2110.15343).

use std::{io, path::Path};

use regard_tasks::train::Environment;
use serde_json::json;

use super::{Measurement, Timing};
use crate::report::{
    Axis, Block, Cell, Chart, Column, Data, Files, Format, Record, Report, Scale, Section, Series, Table,
    number::significant,
};

/// All measurements, with what a reader needs to judge them.
#[derive(Clone, Debug)]
pub struct Benchmark {
    /// Labels in the order of the benchmark.
    pub labels: Vec<String>,
    /// What was measured, length by length.
    pub measurements: Vec<Measurement>,
    /// Sizes that all share, in a few words.
    pub setting: String,
    /// The command that was typed.
    pub command: String,
    /// Where and when.
    pub environment: Environment,
}

impl Benchmark {
    /// Measurements of one mechanism, by length.
    fn of<'a>(&'a self, label: &'a str) -> impl Iterator<Item = &'a Measurement> {
        self.measurements.iter().filter(move |m| m.label == label)
    }

    /// By which factor a time grows when the length doubles, from the next shorter length.
    fn growth(&self, measurement: &Measurement, time: fn(&Measurement) -> Timing) -> Option<f64> {
        let shorter = self.of(&measurement.label).filter(|m| m.length < measurement.length);
        let before = shorter.max_by_key(|m| m.length)?;
        let doublings = (measurement.length as f64 / before.length as f64).log2();
        Some((time(measurement).median / time(before).median).powf(doublings.recip()))
    }

    /// One row a mechanism and length.
    pub fn table(&self) -> Table {
        let mut columns =
            vec![Column::text("mechanism"), Column::text("sizes"), Column::number("tokens", Format::Plain)];
        for pass in ["forward", "forward+backward"] {
            columns.extend([
                Column::number(pass, Format::Significant(3)).unit("ms"),
                Column::text("range").unit("ms"),
                Column::number("twice as long", Format::Ratio),
            ]);
        }
        columns.extend(["memory forward", "memory both"].map(|title| Column::number(title, Format::Bytes)));
        let mut table = Table::new(self.setting.as_str(), columns);
        for label in &self.labels {
            for m in self.of(label) {
                let mut row: Vec<Cell> = vec![label.as_str().into(), m.sizes.as_str().into(), m.length.into()];
                for time in [forward as fn(&Measurement) -> Timing, both] {
                    let Timing { median, fastest, slowest } = time(m);
                    let range = format!("{}–{}", significant(fastest, 3), significant(slowest, 3));
                    row.extend([median.into(), range.into(), self.growth(m, time).into()]);
                }
                row.extend([m.forward_bytes.into(), m.both_bytes.into()]);
                table.push(row);
            }
        }
        let (fewest, most) =
            self.measurements.iter().fold((usize::MAX, 0), |(low, high), m| (low.min(m.runs), high.max(m.runs)));
        let runs = if fewest == most { format!("{most}") } else { format!("{fewest} to {most}") };
        table.note(format!(
            "Median and range of {runs} runs in turns. Twice as long: growth of the time from the next shorter length, for a \
             doubling. Memory: most bytes in use at once beyond the inputs and the gradient of the output."
        ))
    }

    /// Everything as one JSON value.
    pub fn to_json(&self) -> serde_json::Value {
        json!({
            "setting": self.setting,
            "command": self.command,
            "environment": self.environment,
            "table": self.table().to_json(),
            "measurements": self.measurements,
        })
    }

    /// The page.
    pub fn report(&self) -> Report {
        let bytes = |value: Option<u64>| value.map_or(f64::NAN, |bytes| bytes as f64);
        let times = vec![
            self.chart("time-forward", "Time of the forward pass", Axis::new("time", "ms"), |m| m.forward.median),
            self.chart("time-both", "Time of forward and backward pass", Axis::new("time", "ms"), |m| m.both.median),
        ];
        let memory = vec![
            self.chart("memory-forward", "Memory of the forward pass", Axis::new("peak memory", "B"), |m| {
                bytes(m.forward_bytes)
            }),
            self.chart("memory-both", "Memory of forward and backward pass", Axis::new("peak memory", "B"), |m| {
                bytes(m.both_bytes)
            }),
        ];
        Report {
            title: "Time and memory of attention against length".into(),
            summary: self.summary(),
            facts: self.record().facts(),
            sections: vec![
                Section { title: "Time".into(), blocks: times },
                Section { title: "Memory".into(), blocks: memory },
                Section { title: "Figures".into(), blocks: vec![Block::Table(self.table())] },
            ],
        }
    }

    /// The answer in a sentence or two: the fastest and the smallest at the longest length.
    fn summary(&self) -> String {
        let Some(longest) = self.measurements.iter().map(|m| m.length).max() else { return String::new() };
        let there = || self.measurements.iter().filter(move |m| m.length == longest);
        let mut text = format!("{} mechanisms, {}.", self.labels.len(), self.setting);
        if let Some(m) = there().min_by(|a, b| a.both.median.total_cmp(&b.both.median)) {
            text += &format!(
                " Fastest at {longest} tokens: {}, {} ms forward and {} ms with the backward pass.",
                m.label,
                significant(m.forward.median, 3),
                significant(m.both.median, 3)
            );
        }
        if let Some((bytes, m)) = there().filter_map(|m| Some((m.both_bytes?, m))).min_by_key(|(bytes, _)| *bytes) {
            text += &format!(" Least memory there: {}, {}.", m.label, crate::report::number::bytes(bytes as f64));
        }
        text
    }

    fn chart(&self, name: &str, title: &str, y: Axis, value: impl Fn(&Measurement) -> f64) -> Block {
        let line = |(style, label): (usize, &String)| {
            Series::new(label.as_str(), style, self.of(label).map(|m| (m.length as f64, value(m))))
        };
        let lines = Data::Lines(self.labels.iter().enumerate().map(line).collect());
        let chart = Chart::new(title, self.setting.as_str(), lines)
            .axes(Axis::new("tokens", "").scale(Scale::Log2), y.scale(Scale::Log));
        Block::Chart { name: name.into(), chart }
    }

    fn record(&self) -> Record<'_> {
        Record { command: &self.command, environment: &self.environment }
    }

    /// Writes the page, its pictures and the table in three formats into `folder`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, folder: &Path) -> io::Result<Files> {
        self.record().write(folder, &self.report(), &self.to_json(), &[self.table()])
    }
}

fn forward(measurement: &Measurement) -> Timing {
    measurement.forward
}

fn both(measurement: &Measurement) -> Timing {
    measurement.both
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(label: &str, length: usize, time: f64) -> Measurement {
        let timing = |median| Timing { median, fastest: 0.9 * median, slowest: 1.5 * median };
        Measurement {
            label: label.into(),
            length,
            sizes: String::new(),
            runs: 3,
            forward: timing(time),
            both: timing(4.0 * time),
            forward_bytes: Some(1 << 20),
            both_bytes: None,
        }
    }

    #[test]
    fn growth_is_that_of_a_doubling() {
        let measurements = vec![measurement("a", 512, 1.0), measurement("b", 512, 3.0), measurement("a", 2048, 16.0)];
        let environment = Environment::capture(None);
        let labels = vec!["a".into(), "b".into()];
        let benchmark =
            Benchmark { labels, measurements, setting: "batch 1".into(), command: "regard bench".into(), environment };
        let growth = |n: usize| benchmark.growth(&benchmark.measurements[n], forward);
        assert_eq!((growth(0), growth(1), growth(2)), (None, None, Some(4.0)));
        let text = benchmark.table().to_text();
        assert!(text.contains("0.900–1.50") && text.contains("4.00×") && text.contains("1.00 MiB"), "{text}");
        let page = benchmark.report().to_html();
        assert_eq!(page.matches("role=\"img\"").count(), 4);
        assert!(page.contains("Fastest at 2048 tokens: a, 16.0 ms forward and 64.0 ms"), "{page}");
    }
}
