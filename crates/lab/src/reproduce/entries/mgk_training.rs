//! Judges differences of accuracy by seed.

use regard_report::{Axis, Cell, Chart, Column, Data, Format, Mark, Table};
use regard_tasks::Failure;

use crate::reproduce::{Clause, Compared, Estimate, Finding, confidence};

/// Judges claims that the accuracy of one variant minus that of another is above a threshold.
pub(super) fn judged(compared: &Compared, names: &[&str], claims: &[(usize, usize, f64)]) -> Result<Finding, Failure> {
    let accuracies = compared.accuracies();
    let columns = vec![
        Column::text("variant"),
        Column::number("test accuracy", Format::Percent(2)),
        Column::number("time", Format::Significant(3)).unit("ms an update"),
        Column::number("parameters", Format::Count),
    ];
    let seeds = accuracies.first().map_or(0, Vec::len);
    let mut table = Table::new("Variants", columns).note(format!("Mean and deviation of {seeds} seeds."));
    for (name, (runs, values)) in names.iter().zip(compared.candidates().into_iter().zip(&accuracies)) {
        let times: Vec<f64> = runs.iter().map(|run| run.milliseconds_per_step).collect();
        let time = Cell::Number(times.iter().sum::<f64>() / times.len() as f64);
        table.push(vec![(*name).into(), Cell::estimate(values), time, runs[0].parameters.into()]);
    }
    let points = |&(one, other, border): &(usize, usize, f64)| {
        let sure = confidence(claims.len());
        let paired = Estimate::paired(&accuracies[one], &accuracies[other], sure, "seeds").times(100.0);
        let text = format!("{} less {}, points of accuracy.", names[one], names[other]);
        Clause::paper(text).above(paired, 100.0 * border)
    };
    let clauses: Vec<Clause> = claims.iter().map(points).collect();
    let value = |clause: &Clause| {
        let value = clause.estimate.as_ref().map_or(f64::NAN, |estimate| estimate.value);
        format!("{} {value:+.2}", clause.text.trim_end_matches(", points of accuracy."))
    };
    let said: Vec<String> = clauses.iter().map(value).collect();
    let mark = |(style, (name, values)): (usize, (&&str, &Vec<f64>))| {
        let Cell::Estimate { mean, deviation } = Cell::estimate(values) else { return None };
        Some(Mark { name: (*name).into(), x: 0.0, y: mean, deviation: deviation.unwrap_or(0.0), style })
    };
    let marks = names.iter().zip(&accuracies).enumerate().filter_map(mark).collect();
    let subtitle = format!("Test split; bar: deviation of {seeds} seeds");
    let chart = Chart::new("Accuracy of variants", subtitle, Data::Dots(marks));
    let chart = chart.axes(Axis::default(), Axis::new("accuracy", "%"));
    Ok(Finding {
        statement: format!("Points of accuracy: {}.", said.join("; ")),
        clauses,
        tables: vec![table],
        charts: vec![("accuracy".into(), chart)],
    })
}
