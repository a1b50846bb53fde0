//! Approximation errors as a table, files and an HTML page.

use regard_report::{
    Axis, Block, Cell, Chart, Column, Data, Format, Mark, Point, Report, Scale, Section, Series, Table,
};
use regard_tasks::train::Environment;
use serde_json::json;

use super::{
    entries::EntryErrors,
    measure::{Mean, Measured, Related, Row},
    method::Method,
};
use crate::record::{Record, Shown};

/// More matrices than this are averaged by entropy for line charts.
const MOST_POINTS: usize = 12;

/// Results, with the context needed to judge them.
#[derive(Clone, Debug)]
pub struct Approximation {
    /// The results.
    pub measured: Measured,
    /// Methods in the order of the tables.
    pub methods: Vec<Method>,
    /// Short description of the matrices' source.
    pub source: String,
    /// Short description of budget and split.
    pub budget: String,
    /// The command line.
    pub command: String,
    /// Machine, version and date.
    pub environment: Environment,
}

impl Approximation {
    /// One row per group and method.
    pub fn table(&self) -> Table {
        let error = |name: &str| Column::number(name, Format::Fixed(4));
        let columns = vec![
            Column::text("matrices"),
            Column::number("entropy", Format::Fixed(3)).unit("nat"),
            Column::text("method"),
            Column::text("sizes"),
            error("error of A"),
            error("error of A V"),
            error("error of exp"),
            Column::number("time", Format::Significant(3)).unit("ms"),
            Column::number("memory", Format::Bytes),
        ];
        let mut table = Table::new(format!("{}, {}", self.source, self.budget), columns);
        for row in &self.measured.rows {
            let Row { group, method, sizes, entropy, matrix, output, unnormalised, cost } = row;
            table.push(vec![
                group.as_str().into(),
                (*entropy).into(),
                method.name().into(),
                sizes.as_str().into(),
                (*matrix).into(),
                (*output).into(),
                (*unnormalised).into(),
                match cost {
                    Some(cost) => cost.milliseconds.into(),
                    None => "oracle".into(),
                },
                cost.and_then(|cost| cost.bytes).into(),
            ]);
        }
        let count = self.measured.rows.iter().filter_map(|row| row.matrix).map(|mean| mean.count).max().unwrap_or(0);
        table
            .note(format!(
                "Relative Frobenius errors: of the weights A (rows sum to 1), of the output A V, of exp(tau q.k). Mean over \
                 matrices (of one, over its draws; at most {count}), with its standard error. Entropy: mean over the rows of A."
            ))
            .note(
                "Time: median forward pass of the float32 kernel on the first matrix; memory: its peak beyond the inputs. \
                 Oracles see the whole matrix: they bound what a budget allows and save nothing.",
            )
    }

    /// Correlations of the errors of a sparse and a low-rank method over all matrices.
    pub fn correlations(&self) -> Table {
        let number = |name: &str| Column::number(name, Format::Fixed(3));
        let columns = vec![
            Column::text("sparse"),
            Column::text("low-rank"),
            Column::number("matrices", Format::Plain),
            number("Spearman"),
            number("Pearson"),
            number("Kendall"),
        ];
        let mut table = Table::new("Correlation of errors over matrices", columns);
        for Related { sparse, low_rank, matrices, correlation, .. } in &self.measured.related {
            let part = |f: fn(&regard_metrics::Correlation) -> f64| Cell::from(correlation.as_ref().map(f));
            table.push(vec![
                sparse.name().into(),
                low_rank.name().into(),
                (*matrices).into(),
                part(|c| c.spearman),
                part(|c| c.pearson),
                part(|c| c.kendall),
            ]);
        }
        table.note("Errors of A, averaged over draws. Negative: matrices that suit one method do not suit the other.")
    }

    /// Error of `A` against the mean row entropy, one line per method (figures 1 and 5 of the paper).
    fn error_against_entropy(&self, methods: &[Method], title: &str) -> Chart {
        let line = |(style, &method): (usize, &Method)| {
            let mut points: Vec<(f64, f64)> = Vec::new();
            for matrix in &self.measured.matrices {
                let errors = matrix.errors.iter().find(|errors| errors.method == method);
                let error = errors.and_then(|errors| Mean::of(errors.matrix.iter().copied()));
                points.extend(error.map(|error| (matrix.entropy, error.mean)));
            }
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Series { name: method.name().into(), points: averaged(&points), style }
        };
        let series = methods.iter().enumerate().map(line).collect();
        let subtitle = format!("{}; {}, band: standard error", self.source, self.budget);
        Chart::new(title, subtitle, Data::Lines(series))
            .axes(Axis::new("mean entropy of rows", "nat"), Axis::new("relative error of A", "").scale(Scale::Log))
    }

    /// Sparse against low-rank errors, one point per matrix (figure 4).
    fn sparse_against_low_rank(&self, related: &Related) -> Chart {
        let mark = |&(y, x): &(f64, f64)| Mark { name: String::new(), x, y, deviation: 0.0, style: 0 };
        let marks = related.pairs.iter().map(mark).collect();
        let subtitle = match related.correlation {
            Some(c) => format!(
                "{}; {} matrices, Spearman {:.2}, Pearson {:.2}, Kendall {:.2}",
                self.source, related.matrices, c.spearman, c.pearson, c.kendall
            ),
            None => format!("{}; {} matrices", self.source, related.matrices),
        };
        let axis = |method: Method| Axis::new(format!("relative error of {method}"), "");
        Chart::new("Sparse against low-rank error", subtitle, Data::Scatter(marks))
            .axes(axis(related.low_rank), axis(related.sparse))
    }

    /// Squared errors of single entries against `tau q.k` (figures 7 and 8).
    fn entry_errors(&self, errors: &EntryErrors) -> Chart {
        let series = errors.curves.iter().enumerate();
        let series = series.map(|(style, curve)| Series::new(curve.method.name(), style, curve.points.iter().copied()));
        Chart::new(
            "Error of single entries",
            format!("{}: {}; {}", self.source, errors.group, self.budget),
            Data::Lines(series.collect()),
        )
        .axes(Axis::new("tau q.k", ""), Axis::new("mean squared error of exp(tau q.k)", "").scale(Scale::Log))
    }

    /// A sentence with the best mechanism of each group.
    fn summary(&self) -> String {
        let mut text = format!("{}, {}. Smallest error of A among mechanisms: ", self.source, self.budget);
        let mut groups: Vec<&str> = self.measured.rows.iter().map(|row| row.group.as_str()).collect();
        groups.dedup();
        let best = |group: &str| {
            let rows = self.measured.rows.iter().filter(|row| row.group == group);
            let rows = rows.filter(|row| !row.method.is_oracle() && row.method != Method::Softmax);
            let ranked = rows.filter_map(|row| Some((row.matrix?.mean, row.method)));
            let (error, method) = ranked.min_by(|a, b| a.0.total_cmp(&b.0))?;
            Some(format!("{group}: {method} ({error:.3})"))
        };
        let best: Vec<String> = groups.into_iter().filter_map(best).collect();
        text += &best.join(", ");
        text + "."
    }
}

impl Shown for Approximation {
    fn record(&self) -> Record<'_> {
        Record { command: &self.command, environment: &self.environment }
    }

    fn report(&self) -> Report {
        let chosen = |wanted: &[Method]| -> Vec<Method> {
            self.methods.iter().copied().filter(|method| wanted.contains(method)).collect()
        };
        let (mechanisms, oracles): (Vec<Method>, Vec<Method>) = self
            .methods
            .iter()
            .copied()
            .filter(|method| *method != Method::Softmax)
            .partition(|method| !method.is_oracle());
        let chart = |name: &str, chart: Chart| Block::Chart { name: name.into(), chart };
        let mut against_entropy = Vec::new();
        let paper = chosen(&[Method::Smyrf, Method::Performer, Method::Scatterbrain]);
        for (name, methods, title) in [
            ("entropy", &paper, "Sparse, low-rank and both"),
            ("entropy-mechanisms", &mechanisms, "All mechanisms"),
            ("entropy-oracles", &oracles, "Oracles"),
        ] {
            if !methods.is_empty() {
                against_entropy.push(chart(name, self.error_against_entropy(methods, title)));
            }
        }
        let mut together = vec![Block::Table(self.correlations())];
        for related in &self.measured.related {
            let name = format!("correlation-{}-{}", related.sparse, related.low_rank);
            together.push(chart(&name, self.sparse_against_low_rank(related)));
        }
        let entries = self.measured.entries.iter().enumerate();
        let entries = entries.map(|(n, errors)| chart(&format!("entries-{n}"), self.entry_errors(errors)));
        Report {
            title: "Approximation of attention matrices".into(),
            summary: self.summary(),
            facts: self.record().facts(),
            sections: vec![
                Section { title: "Errors".into(), blocks: vec![Block::Table(self.table())] },
                Section { title: "Error against entropy".into(), blocks: against_entropy },
                Section { title: "Sparse against low-rank".into(), blocks: together },
                Section { title: "Single entries".into(), blocks: entries.collect() },
            ],
        }
    }

    /// The second one only if matrices can be compared.
    fn tables(&self) -> Vec<Table> {
        let related = !self.measured.related.is_empty();
        [self.table()].into_iter().chain(related.then(|| self.correlations())).collect()
    }

    fn files(&self) -> Vec<Table> {
        vec![self.table(), self.correlations()]
    }

    fn to_json(&self) -> serde_json::Value {
        json!({
            "source": self.source,
            "budget": self.budget,
            "command": self.command,
            "environment": self.environment,
            "rows": self.measured.rows,
            "correlation": self.measured.related,
            "entries": self.measured.entries,
            "matrices": self.measured.matrices,
        })
    }
}

/// The points in order, or means over equally many neighbours if there are many points.
fn averaged(points: &[(f64, f64)]) -> Vec<Point> {
    let size = points.len().div_ceil(MOST_POINTS).max(1);
    let mean = |group: &[(f64, f64)]| {
        let x = group.iter().map(|point| point.0).sum::<f64>() / group.len() as f64;
        let y = Mean::of(group.iter().map(|point| point.1))?;
        Some(Point::deviating(x, y.mean, y.standard_error.unwrap_or(0.0)))
    };
    points.chunks(size).filter_map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_points_are_averaged_by_neighbours() {
        let few: Vec<(f64, f64)> = (0..12).map(|i| (f64::from(i), 1.0)).collect();
        assert_eq!(averaged(&few).len(), 12);
        let many: Vec<(f64, f64)> = (0..24).map(|i| (f64::from(i), f64::from(i % 2))).collect();
        let points = averaged(&many);
        assert_eq!((points.len(), points[0].x, points[0].y, points[0].above), (12, 0.5, 0.5, 0.5));
    }
}
