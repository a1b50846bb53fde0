//! A benchmark compared with an earlier one, row by row.

use regard_report::{Cell, Column, Format, Table};
use regard_tasks::train::Environment;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Benchmark, Measurement, Pass, Timing, sizes::Dimension};

/// An earlier benchmark.
#[derive(Clone, Debug)]
pub struct Earlier {
    /// Where it came from: a file, a revision.
    pub name: String,
    /// The measurements.
    pub measurements: Vec<Measurement>,
    /// Machine, version and date.
    pub environment: Environment,
}

impl Earlier {
    /// Reads what `regard bench --json` printed or wrote, of this version or an older one.
    ///
    /// # Errors
    /// Text that is not a benchmark result, as a sentence.
    pub fn read(name: impl Into<String>, text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct File {
            #[serde(default)]
            setting: String,
            environment: Environment,
            measurements: Vec<Map<String, Value>>,
        }
        let wrong = |error: serde_json::Error| format!("no result of 'regard bench' ({error})");
        let File { setting, environment, measurements } = serde_json::from_str(text).map_err(wrong)?;
        let common = common(&setting, environment.threads);
        let complete = |mut measurement: Map<String, Value>| {
            for (key, value) in &common {
                measurement.entry(key.clone()).or_insert_with(|| value.clone());
            }
            if !measurement.contains_key("exact") {
                measurement.insert("exact".into(), (measurement.get("label") == Some(&json!("softmax"))).into());
            }
            serde_json::from_value(Value::Object(measurement)).map_err(wrong)
        };
        let measurements = measurements.into_iter().map(complete).collect::<Result<_, _>>()?;
        Ok(Self { name: name.into(), measurements, environment })
    }

    /// The measurement of the same thing: the same mechanism at the same sizes, with the same number of threads if
    /// several were tried.
    fn like(&self, now: &Measurement) -> Option<&Measurement> {
        let place = |m: &Measurement| Dimension::Threads.others(m.at);
        let same = |m: &&Measurement| {
            (&m.label, m.level, place(m), m.causal, &m.sizes)
                == (&now.label, now.level, place(now), now.causal, &now.sizes)
        };
        let found: Vec<_> = self.measurements.iter().filter(same).collect();
        let threads = found.iter().find(|m| m.at.threads == now.at.threads);
        threads.or(found.first().filter(|_| found.len() == 1)).copied()
    }
}

/// Common settings that older files give as text: `batch 1, 8 heads of 64, causal`.
fn common(setting: &str, threads: usize) -> Vec<(String, Value)> {
    let words: Vec<&str> = setting.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let number = |at: Option<usize>| at.and_then(|at| words.get(at)?.parse::<usize>().ok()).unwrap_or(0);
    let place = |word| words.iter().position(|other| *other == word);
    let heads = place("heads");
    vec![
        ("batch".into(), number(place("batch").map(|at| at + 1)).into()),
        ("heads".into(), number(heads.and_then(|at| at.checked_sub(1))).into()),
        ("head_width".into(), number(heads.map(|at| at + 2)).into()),
        ("threads".into(), threads.into()),
        ("causal".into(), words.contains(&"causal").into()),
    ]
}

/// Merges benchmarks of one run each: every row gets all their times.
///
/// Rows missing from any of them are dropped.
pub fn merge(parts: &[Vec<Measurement>]) -> Vec<Measurement> {
    let Some((first, others)) = parts.split_first() else { return Vec::new() };
    let same =
        |a: &Measurement, b: &Measurement| (&a.label, a.level, a.at, &a.sizes) == (&b.label, b.level, b.at, &b.sizes);
    let whole = |row: &Measurement| {
        let rows = others.iter().map(|part| part.iter().find(|other| same(row, other)));
        let rows: Vec<&Measurement> = std::iter::once(Some(row)).chain(rows).collect::<Option<_>>()?;
        let mut merged = Measurement { runs: rows.iter().map(|row| row.runs).sum(), ..row.clone() };
        for &pass in row.level.passes() {
            let times = rows.iter().map(|row| Some(row.time(pass)?.median)).collect::<Option<Vec<_>>>();
            merged.set(pass, times.and_then(Timing::of), row.bytes(pass));
        }
        if let Some(wrong) = rows.iter().find(|row| row.is_wrong()) {
            merged.check = wrong.check.clone();
        }
        Some(merged)
    };
    first.iter().filter_map(whole).collect()
}

/// How a time has changed.
fn verdict(now: Timing, before: Timing) -> &'static str {
    match (now.apart(&before), now.median < before.median) {
        (false, _) => "overlap",
        (true, true) => "faster",
        (true, false) => "slower",
    }
}

impl Benchmark {
    /// Reasons why a comparison with `earlier` is not quite fair, each a sentence.
    pub fn differences(&self, earlier: &Earlier) -> Vec<String> {
        let (now, before) = (&self.environment, &earlier.environment);
        let mut all = Vec::new();
        if now.processor != before.processor {
            all.push(format!(
                "{} was measured on '{}', this on '{}': ratios say more about the processors than about the program",
                earlier.name, before.processor, now.processor
            ));
        }
        if now.threads != before.threads {
            all.push(format!(
                "{} was measured on {} threads, this on {}: give --threads {} for a fair ratio",
                earlier.name, before.threads, now.threads, before.threads
            ));
        }
        let unmatched = self.measurements.iter().filter(|m| earlier.like(m).is_none()).count();
        if unmatched > 0 {
            all.push(format!(
                "{} has nothing to compare with {unmatched} of {} rows: other mechanisms, options or sizes",
                earlier.name,
                self.measurements.len()
            ));
        }
        all
    }

    /// Ratios to an earlier benchmark, row by row.
    pub fn comparison(&self, earlier: &Earlier) -> Table {
        let varied: Vec<_> = self.varied().into_iter().filter(|d| *d != Dimension::Length).collect();
        let mut columns = vec![Column::text("mechanism"), Column::number("tokens", Format::Plain)];
        columns.extend(varied.iter().map(|dimension| Column::number(dimension.title(), Format::Plain)));
        for pass in self.level().passes() {
            columns.extend([
                Column::number(format!("{} before", pass.title()), Format::Significant(3)).unit("ms"),
                Column::number("now", Format::Significant(3)).unit("ms"),
                Column::number("ratio", Format::Ratio),
                Column::text("intervals"),
            ]);
        }
        let mut table = Table::new(format!("Beside {}", earlier.name), columns);
        for now in &self.measurements {
            let Some(before) = earlier.like(now) else { continue };
            let mut row: Vec<Cell> = vec![now.label.as_str().into(), now.at.length.into()];
            row.extend(varied.iter().map(|dimension| Cell::from(dimension.of(now.at))));
            for &pass in self.level().passes() {
                row.extend(change(now, before, pass));
            }
            table.push(row);
        }
        table.note(
            "Ratio: time now over time before, below 1 is faster. Intervals: whether those from p10 to p90 are apart; \
             where they overlap, the ratio may be chance.",
        )
    }

    pub(super) fn comparison_json(&self, earlier: &Earlier) -> Value {
        let one = |now: &Measurement| {
            let before = earlier.like(now)?;
            let of = |&pass: &Pass| {
                let (new, old) = (now.time(pass)?, before.time(pass)?);
                let wrong = now.is_wrong() || before.is_wrong();
                let ratio = (!wrong).then(|| new.median / old.median);
                let verdict = if wrong { "wrong" } else { verdict(new, old) };
                Some((
                    pass.name().to_owned(),
                    json!({ "before": old, "now": new, "ratio": ratio, "intervals": verdict }),
                ))
            };
            let passes: Map<String, Value> = now.level.passes().iter().filter_map(of).collect();
            let (Value::Object(mut all), place) = (json!(now.at), passes) else { return None };
            all.insert("label".into(), now.label.clone().into());
            all.extend(place);
            Some(Value::Object(all))
        };
        let rows: Vec<Value> = self.measurements.iter().filter_map(one).collect();
        json!({
            "with": earlier.name, "environment": earlier.environment, "warnings": self.differences(earlier), "rows": rows,
        })
    }
}

/// Time before and now, ratio and intervals of one pass.
fn change(now: &Measurement, before: &Measurement, pass: Pass) -> [Cell; 4] {
    match (now.time(pass), before.time(pass)) {
        (Some(new), Some(old)) if !now.is_wrong() && !before.is_wrong() => {
            [old.median.into(), new.median.into(), (new.median / old.median).into(), verdict(new, old).into()]
        }
        (new, old) => {
            let wrong = if now.is_wrong() || before.is_wrong() { Cell::from("wrong") } else { Cell::Empty };
            [old.map(|t| t.median).into(), new.map(|t| t.median).into(), Cell::Empty, wrong]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{benchmark, measurement, wrong};
    use super::*;
    use crate::record::Shown;

    const OLD: &str = r#"{
        "setting": "batch 1, 8 heads of 64, bidirectional", "command": "regard bench",
        "environment": {"commit": null, "date": "2026-01-01T00:00:00Z", "platform": "x", "processor": "abacus",
            "processors": 2, "threads": 7, "version": "0.1.0"},
        "measurements": [{
            "label": "softmax", "length": 512, "sizes": "", "runs": 3,
            "forward": {"fastest": 1.9, "median": 2.0, "slowest": 2.2},
            "both": {"fastest": 3.0, "median": 8.0, "slowest": 9.0}, "both_bytes": 7, "forward_bytes": 5
        }]
    }"#;

    #[test]
    fn files_of_before_the_sweeps_are_read() {
        let earlier = Earlier::read("old.json", OLD).unwrap();
        let m = &earlier.measurements[0];
        assert_eq!((m.at.length, m.at.heads, m.at.head_width, m.at.batch, m.at.threads), (512, 8, 64, 1, 7));
        assert!(!m.causal && m.exact && m.check.is_none() && m.bytes(Pass::Both) == Some(7));
        for (text, problem) in [("{", "no result"), ("{}", "environment"), (&OLD.replace("2.0", "\"a\""), "no result")]
        {
            let error = Earlier::read("x", text).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn ratios_say_whether_the_intervals_are_apart() {
        let earlier = Earlier::read("old.json", OLD).unwrap();
        // Forward 1 ms, 0.9 to 1.5; both 4 ms, 3.6 to 6.
        let now = benchmark(vec![measurement("softmax", 512, 1.0), measurement("linear", 512, 1.0)]);
        let text = now.comparison(&earlier).to_text();
        let row = text.lines().find(|line| line.contains("softmax")).unwrap();
        assert!(row.contains("faster") && row.contains("overlap") && row.contains("0.500×"), "{text}");
        assert!(!text.contains("linear"), "{text}");
        let warnings = now.differences(&earlier);
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        assert!(warnings[0].contains("abacus") && warnings[1].contains("7 threads") && warnings[2].contains("1 of 2"));
        let json = now.comparison_json(&earlier);
        assert_eq!(
            (&json["rows"][0]["forward"]["intervals"], &json["rows"][0]["both"]["ratio"]),
            (&json!("faster"), &json!(0.5))
        );
    }

    #[test]
    fn what_is_wrong_has_no_ratio() {
        let earlier = Earlier::read("old.json", OLD).unwrap();
        let now = benchmark(vec![wrong(measurement("softmax", 512, 1.0))]);
        let text = now.comparison(&earlier).to_text();
        let row = text.lines().find(|line| line.starts_with("softmax")).unwrap();
        assert!(row.contains("wrong") && !text.contains('×') && !row.contains("faster"), "{text}");
        assert_eq!(now.comparison_json(&earlier)["rows"][0]["forward"]["ratio"], Value::Null);
    }

    #[test]
    fn a_result_reads_back_as_it_was_written() {
        let now = benchmark(vec![measurement("softmax", 512, 1.0), wrong(measurement("mgk", 64, 2.0))]);
        let earlier = Earlier::read("now", &now.to_json().to_string()).unwrap();
        assert_eq!(earlier.measurements, now.measurements);
        assert!(now.differences(&earlier).is_empty());
    }

    #[test]
    fn rounds_merge_row_by_row() {
        let round = |time: f64| vec![measurement("softmax", 512, time), measurement("linear", 512, 2.0 * time)];
        let mut short = round(3.0);
        short.pop();
        let merged = merge(&[round(1.0), round(5.0), short]);
        assert_eq!((merged.len(), merged[0].runs), (1, 9));
        let times = merged[0].forward.unwrap();
        assert_eq!((times.median, times.fastest, times.slowest), (3.0, 1.0, 5.0));
        let judged = merge(&[round(1.0), vec![wrong(measurement("softmax", 512, 1.0))]]);
        assert!(judged[0].is_wrong() && merge(&[]).is_empty());
    }
}
