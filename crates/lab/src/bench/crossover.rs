//! The length at which a mechanism becomes faster than exact attention.

use regard_report::{Cell, Column, Format, Table};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Benchmark, Measurement, Pass, Sizes, sizes::Dimension};

/// Crossover of two times as the length grows, among the lengths at which both were measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "tokens")]
pub enum Crossing {
    /// Faster at every length; this is the shortest.
    Before(usize),
    /// Faster from here to the longest length; interpolated on log-log axes.
    At(f64),
    /// Not faster at the longest length, given here.
    NotUpTo(usize),
}

impl Crossing {
    /// Crossover of `(length, time, baseline time)`; `None` without any length.
    ///
    /// If a mechanism becomes slower again, only its last crossing counts, after which it stays faster.
    pub fn of(points: &[(usize, f64, f64)]) -> Option<Self> {
        let mut points = points.to_vec();
        points.sort_by_key(|(length, ..)| *length);
        let &(longest, ..) = points.last()?;
        let gain = |&(_, own, other): &(usize, f64, f64)| (other / own).ln();
        let Some(last) = points.iter().rposition(|point| gain(point) <= 0.0) else {
            return Some(Self::Before(points[0].0));
        };
        let Some(after) = points.get(last + 1) else { return Some(Self::NotUpTo(longest)) };
        let (below, above) = (gain(&points[last]), gain(after));
        let [start, end] = [points[last].0, after.0].map(|length| (length as f64).ln());
        Some(Self::At((start + (end - start) * -below / (above - below)).exp()))
    }

    /// As a table cell.
    fn words(self) -> String {
        match self {
            Self::Before(shortest) => format!("below {shortest}"),
            Self::At(tokens) => format!("{tokens:.0}"),
            Self::NotUpTo(longest) => format!("not up to {longest}"),
        }
    }
}

/// Crossover of one mechanism with exact attention in one pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Crossover {
    /// The mechanism.
    pub label: String,
    /// Heads, batch and threads; the length is 0.
    pub at: Sizes,
    /// The timed pass.
    pub pass: Pass,
    /// The crossover; `None` if it, or exact attention, is wrong, or they have no length in common.
    pub crossing: Option<Crossing>,
    /// Whether one of the two failed its check.
    pub wrong: bool,
}

impl Benchmark {
    /// Crossovers of each mechanism with exact attention, for all sizes other than length.
    pub fn crossovers(&self) -> Vec<Crossover> {
        let mut places: Vec<Sizes> = Vec::new();
        for measurement in &self.measurements {
            let place = Dimension::Length.others(measurement.at);
            if !places.contains(&place) {
                places.push(place);
            }
        }
        let mut all = Vec::new();
        for at in places {
            let here = |m: &&Measurement| Dimension::Length.others(m.at) == at;
            for label in &self.labels {
                let own: Vec<_> = self.measurements.iter().filter(here).filter(|m| &m.label == label).collect();
                if own.is_empty() || own.iter().any(|m| m.exact) {
                    continue;
                }
                let pairs: Vec<_> = own.iter().filter_map(|m| Some((*m, self.exact_beside(m)?))).collect();
                let wrong = pairs.iter().any(|(own, exact)| own.is_wrong() || exact.is_wrong());
                for &pass in self.level().passes() {
                    let point = |(own, exact): &(&Measurement, &Measurement)| {
                        Some((own.at.length, own.time(pass)?.median, exact.time(pass)?.median))
                    };
                    let points: Vec<_> = pairs.iter().filter_map(point).collect();
                    let crossing = if wrong { None } else { Crossing::of(&points) };
                    all.push(Crossover { label: label.clone(), at, pass, crossing, wrong });
                }
            }
        }
        all
    }

    /// The same as a table.
    pub fn crossover_table(&self) -> Table {
        let varied: Vec<_> = self.varied().into_iter().filter(|d| *d != Dimension::Length).collect();
        let mut columns = vec![Column::text("mechanism")];
        columns.extend(varied.iter().map(|dimension| Column::number(dimension.title(), Format::Plain)));
        columns.extend([Column::text("pass"), Column::text("overtakes at").unit("tokens")]);
        let mut table = Table::new("Where mechanisms overtake exact attention", columns);
        for Crossover { label, at, pass, crossing, wrong } in self.crossovers() {
            let mut row: Vec<Cell> = vec![label.into()];
            row.extend(varied.iter().map(|dimension| Cell::from(dimension.of(at))));
            let words = match (wrong, crossing) {
                (true, _) => "wrong".into(),
                (false, None) => "no length in common".into(),
                (false, Some(crossing)) => crossing.words(),
            };
            row.extend([pass.title().into(), words.into()]);
            table.push(row);
        }
        table.note(
            "The shortest length from which on the median time stays below that of softmax, on the line between measured \
             lengths whose logarithms are joined; only lengths at which both were measured count.",
        )
    }

    pub(super) fn crossover_json(&self) -> Value {
        let one = |c: &Crossover| {
            let Sizes { head_width, heads, batch, threads, .. } = c.at;
            json!({
                "label": c.label, "head_width": head_width, "heads": heads, "batch": batch, "threads": threads,
                "pass": c.pass, "crossing": c.crossing, "wrong": c.wrong,
            })
        };
        self.crossovers().iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quadratic_and_linear_times_cross_where_they_should() {
        // n^2 and 1000 n are equal at 1000, and straight lines between logarithms.
        let point = |n: usize| (n, 1000.0 * n as f64, (n * n) as f64);
        let at = |lengths: &[usize]| Crossing::of(&lengths.iter().map(|n| point(*n)).collect::<Vec<_>>()).unwrap();
        let Crossing::At(tokens) = at(&[4096, 128, 512, 2048]) else { panic!("a crossing") };
        assert!((tokens - 1000.0).abs() < 1e-6, "{tokens}");
        assert_eq!(at(&[128, 512]), Crossing::NotUpTo(512));
        assert_eq!(at(&[2048, 4096]), Crossing::Before(2048));
        assert_eq!(at(&[1000]), Crossing::NotUpTo(1000));
        assert_eq!(Crossing::of(&[]), None);
    }

    #[test]
    fn only_staying_ahead_counts() {
        let of = |gains: &[f64]| {
            let points: Vec<_> = gains.iter().enumerate().map(|(n, gain)| (100 << n, 1.0, *gain)).collect();
            Crossing::of(&points).unwrap()
        };
        assert_eq!(of(&[2.0, 0.5, 2.0]), Crossing::At((200f64 * 400.0).sqrt()).rounded_like(of(&[2.0, 0.5, 2.0])));
        assert_eq!(of(&[0.5, 2.0, 0.9]), Crossing::NotUpTo(400));
        assert_eq!(of(&[2.0, 2.0, 2.0]), Crossing::Before(100));
    }

    impl Crossing {
        /// This, or the other where both are at the same place but for rounding.
        fn rounded_like(self, other: Self) -> Self {
            match (self, other) {
                (Self::At(a), Self::At(b)) if (a / b - 1.0).abs() < 1e-12 => other,
                _ => self,
            }
        }
    }
}
