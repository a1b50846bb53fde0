//! The benchmark as a table, files and an HTML page (figure 6 of arXiv 2110.15343).

use regard_report::{Block, Cell, Column, Format, Report, Section, Table, number::significant};
use regard_tasks::train::Environment;
use serde_json::json;

use super::{Earlier, Level, Measurement, Pass, Timing, bound, sizes::Dimension};
use crate::record::{Record, Shown};

/// All measurements, with the context needed to judge them.
#[derive(Clone, Debug)]
pub struct Benchmark {
    /// Labels in the order of the benchmark.
    pub labels: Vec<String>,
    /// Measurements, length by length.
    pub measurements: Vec<Measurement>,
    /// Short description of the sizes common to all.
    pub setting: String,
    /// The command line.
    pub command: String,
    /// Machine, version and date.
    pub environment: Environment,
    /// Whether to report crossovers with exact attention.
    pub crossover: bool,
    /// An earlier benchmark to compare with.
    pub earlier: Option<Earlier>,
}

impl Benchmark {
    /// Measurements of one mechanism, in the order of the benchmark.
    pub(super) fn of<'a>(&'a self, label: &'a str) -> impl Iterator<Item = &'a Measurement> {
        self.measurements.iter().filter(move |m| m.label == label)
    }

    /// The level of the measurements.
    pub fn level(&self) -> Level {
        self.measurements.first().map_or(Level::default(), |m| m.level)
    }

    /// Sizes that take more than one value.
    pub(super) fn varied(&self) -> Vec<Dimension> {
        Dimension::varied(self.measurements.iter().map(|m| m.at))
    }

    /// Mechanisms whose check failed, each with the result of the check.
    pub fn wrong(&self) -> Vec<(&str, String)> {
        let mut all: Vec<(&str, String)> = Vec::new();
        for m in self.measurements.iter().filter(|m| m.is_wrong()) {
            if all.iter().all(|(label, _)| *label != m.label) {
                all.push((&m.label, m.check.as_ref().map_or(String::new(), |check| check.words())));
            }
        }
        all
    }

    /// Factor by which a time grows when the length doubles, from the next shorter length.
    fn growth(&self, measurement: &Measurement, pass: Pass) -> Option<f64> {
        let place = |m: &Measurement| Dimension::Length.others(m.at);
        let shorter = self.of(&measurement.label).filter(|m| m.at.length < measurement.at.length);
        let before = shorter.filter(|m| place(m) == place(measurement)).max_by_key(|m| m.at.length)?;
        let doublings = (measurement.at.length as f64 / before.at.length as f64).log2();
        Some((measurement.time(pass)?.median / before.time(pass)?.median).powf(doublings.recip()))
    }

    /// Exact attention at the same sizes.
    pub(super) fn exact_beside(&self, measurement: &Measurement) -> Option<&Measurement> {
        self.measurements.iter().find(|m| m.exact && m.at == measurement.at)
    }

    /// Speed-up over exact attention at the same sizes; none if either is wrong.
    pub fn speed_up(&self, measurement: &Measurement, pass: Pass) -> Option<f64> {
        let exact = self.exact_beside(measurement)?;
        if measurement.is_wrong() || exact.is_wrong() {
            return None;
        }
        Some(exact.time(pass)?.median / measurement.time(pass)?.median)
    }

    /// Speed-up over the fewest threads at the same sizes; none if it is wrong.
    pub fn scaling(&self, measurement: &Measurement, pass: Pass) -> Option<f64> {
        let place = |m: &Measurement| Dimension::Threads.others(m.at);
        let alike = self.of(&measurement.label).filter(|m| place(m) == place(measurement));
        let fewest = alike.min_by_key(|m| m.at.threads).filter(|m| m.at.threads < measurement.at.threads)?;
        if measurement.is_wrong() || fewest.is_wrong() {
            return None;
        }
        Some(fewest.time(pass)?.median / measurement.time(pass)?.median)
    }

    /// One row per mechanism and combination of sizes.
    pub fn table(&self) -> Table {
        let level = self.level();
        let varied: Vec<_> = self.varied().into_iter().filter(|d| *d != Dimension::Length).collect();
        let beside_exact = self.labels.len() > 1 && self.measurements.iter().any(|m| m.exact);
        let threads = varied.contains(&Dimension::Threads);
        let mut columns = ["mechanism", "check", "sizes"].map(Column::text).to_vec();
        columns.push(Column::number(if level == Level::Decode { "context" } else { "tokens" }, Format::Plain));
        columns.extend(varied.iter().map(|dimension| Column::number(dimension.title(), Format::Plain)));
        for pass in level.passes() {
            columns.extend([
                Column::number(pass.title(), Format::Significant(3)).unit("ms"),
                Column::text("p10–p90").unit("ms"),
                Column::number("twice as long", Format::Ratio),
            ]);
            let ratios = [(beside_exact, "over softmax"), (threads, "over fewest threads")];
            let ratios = ratios.into_iter().filter(|(shown, _)| *shown);
            columns.extend(ratios.map(|(_, title)| Column::number(title, Format::Ratio)));
        }
        columns.extend(level.passes().iter().map(|pass| {
            let title = match pass {
                Pass::Token => "state",
                Pass::Step => "memory",
                Pass::Forward => "memory forward",
                Pass::Both => "memory both",
            };
            Column::number(title, Format::Bytes)
        }));
        if level == Level::Decode {
            columns.push(Column::number("state / context", Format::Bytes));
        }
        let mut table = Table::new(self.setting.as_str(), columns);
        for label in &self.labels {
            for m in self.of(label) {
                let check = m.check.as_ref().map(|check| check.words());
                let mut row: Vec<Cell> =
                    vec![label.as_str().into(), check.into(), m.sizes.as_str().into(), m.at.length.into()];
                row.extend(varied.iter().map(|dimension| Cell::from(dimension.of(m.at))));
                for &pass in level.passes() {
                    let time = m.time(pass);
                    let interval =
                        |Timing { p10, p90, .. }: Timing| format!("{}–{}", significant(p10, 3), significant(p90, 3));
                    row.extend([time.map(|t| t.median).into(), time.map(interval).into(), self.growth(m, pass).into()]);
                    if beside_exact {
                        row.push(self.speed_up(m, pass).into());
                    }
                    if threads {
                        row.push(self.scaling(m, pass).into());
                    }
                }
                row.extend(level.passes().iter().map(|pass| Cell::from(m.bytes(*pass))));
                if level == Level::Decode {
                    row.push(m.state_bytes.map(|bytes| bytes as f64 / m.at.length as f64).into());
                }
                table.push(row);
            }
        }
        self.notes().into_iter().fold(table, Table::note)
    }

    /// What the columns mean.
    fn notes(&self) -> Vec<String> {
        let (fewest, most) =
            self.measurements.iter().fold((usize::MAX, 0), |(low, high), m| (low.min(m.runs), high.max(m.runs)));
        let runs = if fewest == most { format!("{most}") } else { format!("{fewest} to {most}") };
        let warm_ups = self.measurements.iter().map(|m| m.warm_ups).max().unwrap_or(0);
        let bytes = match self.level() {
            Level::Operator => "Memory: most bytes in use at once beyond the inputs and the gradient of the output.",
            Level::Layer => {
                "Memory: most bytes in use at once beyond parameters, input and the gradient of the output."
            }
            Level::Inference => "Memory: most bytes in use at once beyond parameters and input.",
            Level::Step => "Memory: most bytes in use at once, parameters and moments of the optimizer included.",
            Level::Decode => {
                "State: bytes kept of the context. A run is as many tokens as take a millisecond, 64 at most."
            }
        };
        vec![
            format!(
                "Check: largest difference to the float64 twin at a small size, relative to the largest number, at most \
                 {:.0e}. Median and p10–p90 of {runs} runs in turns after {warm_ups} untimed, each of less \
                 than 100 ms right after an untimed one. Twice as long: growth of the time from the next shorter length, for a \
                 doubling.",
                bound()
            ),
            bytes.into(),
        ]
    }

    /// A summary in a sentence or two: the fastest and the smallest at the longest length.
    fn summary(&self) -> String {
        let Some(longest) = self.measurements.iter().map(|m| m.at.length).max() else { return String::new() };
        let Some((&last, others)) = self.level().passes().split_last() else { return String::new() };
        let right = || self.measurements.iter().filter(|m| !m.is_wrong());
        let there = || right().filter(move |m| m.at.length == longest);
        let mut text = format!("{} mechanisms, {}.", self.labels.len(), self.setting);
        let median = |m: &Measurement, pass| m.time(pass).map_or(f64::INFINITY, |time| time.median);
        if let Some(m) = there().min_by(|a, b| median(a, last).total_cmp(&median(b, last))) {
            let words = |pass: &Pass| format!("{} ms {}", significant(median(m, *pass), 3), pass.title());
            let times: Vec<String> = others.iter().chain([&last]).map(words).collect();
            text += &format!(" Fastest at {longest} tokens: {}, {}.", m.label, times.join(" and "));
        }
        if let Some((bytes, m)) = there().filter_map(|m| Some((m.bytes(last)?, m))).min_by_key(|(bytes, _)| *bytes) {
            text += &format!(" Least memory there: {}, {}.", m.label, regard_report::number::bytes(bytes as f64));
        }
        for (label, words) in self.wrong() {
            text += &format!(" {label} is {words}.");
        }
        text
    }
}

impl Shown for Benchmark {
    fn record(&self) -> Record<'_> {
        Record { command: &self.command, environment: &self.environment }
    }

    fn report(&self) -> Report {
        let tables = self.tables().into_iter().map(Block::Table).collect();
        Report {
            title: match self.level() {
                Level::Operator => "Time and memory of attention against length",
                Level::Layer => "Time and memory of attention layers in training",
                Level::Inference => "Time and memory of attention layers in inference",
                Level::Step => "Time and memory of training steps",
                Level::Decode => "Time and memory of decoding",
            }
            .into(),
            summary: self.summary(),
            facts: self.record().facts(),
            sections: vec![
                Section { title: "Time".into(), blocks: self.time_charts() },
                Section { title: "Memory".into(), blocks: self.memory_charts() },
                Section { title: "Figures".into(), blocks: tables },
            ],
        }
    }

    fn tables(&self) -> Vec<Table> {
        let crossover = self.crossover.then(|| self.crossover_table());
        let comparison = self.earlier.as_ref().map(|earlier| self.comparison(earlier));
        std::iter::once(self.table()).chain(crossover).chain(comparison).collect()
    }

    fn to_json(&self) -> serde_json::Value {
        let mut all = json!({
            "setting": self.setting,
            "command": self.command,
            "environment": self.environment,
            "table": self.table().to_json(),
            "measurements": self.measurements,
        });
        if self.crossover {
            all["crossover"] = self.crossover_json();
        }
        if let Some(earlier) = &self.earlier {
            all["comparison"] = self.comparison_json(earlier);
        }
        all
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Check, Sizes};
    use super::*;

    /// Forward in `time`, both passes in four times that; 2 threads.
    pub fn measurement(label: &str, length: usize, time: f64) -> Measurement {
        let timing = |median| Timing {
            median,
            p10: 0.9 * median,
            p90: 1.5 * median,
            fastest: 0.75 * median,
            slowest: 2.0 * median,
        };
        Measurement {
            label: label.into(),
            level: Level::Operator,
            at: Sizes { length, head_width: 64, heads: 8, batch: 1, threads: 2 },
            causal: false,
            exact: label == "softmax",
            sizes: String::new(),
            check: Some(Check { passed: true, error: Some(2.5e-7), tensor: "output".into() }),
            warm_ups: 1,
            runs: 3,
            forward: Some(timing(time)),
            both: Some(timing(4.0 * time)),
            step: None,
            token: None,
            forward_bytes: Some(1 << 20),
            both_bytes: None,
            step_bytes: None,
            state_bytes: None,
        }
    }

    /// The same with a check that failed.
    pub fn wrong(measurement: Measurement) -> Measurement {
        let check = Check { passed: false, error: Some(0.03), tensor: "gradient of k".into() };
        Measurement { check: Some(check), ..measurement }
    }

    pub fn benchmark(measurements: Vec<Measurement>) -> Benchmark {
        let mut labels: Vec<String> = Vec::new();
        for m in &measurements {
            if !labels.contains(&m.label) {
                labels.push(m.label.clone());
            }
        }
        Benchmark {
            labels,
            measurements,
            setting: "batch 1".into(),
            command: "regard bench".into(),
            environment: Environment::capture(None),
            crossover: true,
            earlier: None,
        }
    }

    #[test]
    fn growth_is_that_of_a_doubling() {
        let benchmark =
            benchmark(vec![measurement("a", 512, 1.0), measurement("b", 512, 3.0), measurement("a", 2048, 16.0)]);
        let growth = |n: usize| benchmark.growth(&benchmark.measurements[n], Pass::Forward);
        assert_eq!((growth(0), growth(1), growth(2)), (None, None, Some(4.0)));
        let text = benchmark.table().to_text();
        assert!(text.contains("0.900–1.50") && text.contains("4.00×") && text.contains("1.00 MiB"), "{text}");
        let page = benchmark.report().to_html();
        assert_eq!(page.matches("role=\"img\"").count(), 4);
        assert!(page.contains("Fastest at 2048 tokens: a, 16.0 ms forward and 64.0 ms forward+backward"), "{page}");
    }

    #[test]
    fn speed_is_told_beside_exact_attention_and_beside_fewer_threads() {
        let on = |label, time, threads| {
            let mut m = measurement(label, 512, time);
            m.at.threads = threads;
            m
        };
        let benchmark =
            benchmark(vec![on("softmax", 8.0, 1), on("softmax", 5.0, 2), on("mgk", 16.0, 1), on("mgk", 8.0, 2)]);
        let of = |n: usize| {
            let m = &benchmark.measurements[n];
            (benchmark.speed_up(m, Pass::Forward), benchmark.scaling(m, Pass::Forward))
        };
        assert_eq!([of(0), of(1)], [(Some(1.0), None), (Some(1.0), Some(1.6))]);
        assert_eq!([of(2), of(3)], [(Some(0.5), None), (Some(0.625), Some(2.0))]);
        let text = benchmark.table().to_text();
        assert!(text.contains("over softmax") && text.contains("over fewest threads"), "{text}");
    }

    #[test]
    fn what_is_wrong_has_no_speed_up_anywhere() {
        let lengths = [512, 1024];
        let of = |label, time: f64| lengths.map(|n| measurement(label, n, time * n as f64));
        let right = benchmark([of("softmax", 1.0), of("linear", 0.5)].concat());
        assert_eq!(right.speed_up(&right.measurements[2], Pass::Both), Some(2.0));
        assert!(right.wrong().is_empty() && right.crossovers().iter().all(|c| c.crossing.is_some()));

        let failed = benchmark([of("softmax", 1.0), of("linear", 0.5).map(wrong)].concat());
        for n in [2, 3] {
            assert_eq!(failed.speed_up(&failed.measurements[n], Pass::Forward), None);
            assert_eq!(failed.speed_up(&failed.measurements[n], Pass::Both), None);
        }
        assert_eq!(failed.wrong(), [("linear", "wrong, gradient of k by 3.0e-2".into())]);
        assert!(failed.crossovers().iter().all(|c| c.crossing.is_none() && c.wrong));
        let json = failed.to_json();
        assert!(json["crossover"].as_array().unwrap().iter().all(|c| c["crossing"].is_null() && c["wrong"] == true));
        for text in [failed.table().to_text(), failed.report().to_html()] {
            assert!(text.contains("wrong, gradient of k by 3.0e-2") && !text.contains("2.00×\u{a0}"), "{text}");
        }
        let rows = failed.table().to_json();
        let speed = right.table().columns.iter().position(|column| column.title == "over softmax").unwrap();
        assert_eq!(right.table().rows[2][speed], Cell::Number(2.0));
        assert_eq!(failed.table().rows[2][speed], Cell::Empty, "{rows}");

        // Beside exact attention that is wrong nothing is faster.
        let baseless = benchmark([of("softmax", 1.0).map(wrong), of("linear", 0.5)].concat());
        assert_eq!(baseless.speed_up(&baseless.measurements[2], Pass::Both), None);
        assert!(baseless.crossovers().iter().all(|c| c.crossing.is_none()));
    }
}
