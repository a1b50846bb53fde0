//! Trained variants of MGK: ablations, and inference modes.

use regard_report::{Axis, Cell, Chart, Column, Data, Format, Mark, Table};
use regard_tasks::Failure;

use crate::reproduce::{Clause, Compared, Entry, Estimate, Finding, Paper, Scale, Setup, Workbench, confidence};

const PAPER: &str = "Retrieval, listops and text of the long range arena: 2 layers of width 64, heads of 32, 5 runs.";
const SETUPS: &[Setup] = &[Setup {
    scale: Scale::Quick,
    setting: "ListOps of 20 to 128 tokens, 2 layers of width 64, one head, 1,600 updates of 32 expressions, 3 seeds, test accuracy on \
              2,000 expressions.",
    differences: &[
        "short ListOps for the long range arena",
        "one head of 64 for one of 32",
        "1,600 updates",
        "3 seeds for 5 runs",
    ],
    minutes: 8.0,
}];

pub const ABLATION: Entry = Entry {
    name: "mgk-ablation",
    paper: Paper::Mgk,
    figures: "table 6",
    claim: "With one head, a Gaussian kernel is more accurate than dot products, two keys per position are more \
            accurate than one with either, and two shifted keys are at most half a point less accurate than two \
            projected keys.",
    data: "generated",
    models: &[],
    paper_setting: PAPER,
    setups: SETUPS,
    run: ablation,
};

pub const INFERENCE: Entry = Entry {
    name: "mgk-inference",
    paper: Paper::Mgk,
    figures: "table 5",
    claim: "With one head, hard assignment of keys and priors fitted by expectation-maximisation each come \
            within half a point of soft mixtures.",
    data: "generated",
    models: &[],
    paper_setting: PAPER,
    setups: SETUPS,
    run: inference,
};

/// Accuracy differences up to this count as equal.
const EQUAL: f64 = 0.005;

fn recipe(mechanisms: &[&str]) -> String {
    format!("preset = \"quick\"\nheads = 1\n\n[compare]\nmechanisms = {mechanisms:?}\nseeds = [1, 2, 3]\n")
}

fn ablation(bench: &Workbench, _: Scale) -> Result<Finding, Failure> {
    let variants = [
        ("softmax", "softmax"),
        ("softmax, two keys", "mgk:mixture.score=dot"),
        ("softmax, two shifted keys", "smgk:mixture.score=dot"),
        ("Gaussian", "gaussian"),
        ("MGK", "mgk"),
        ("sMGK", "smgk"),
    ];
    let compared = bench.train(ABLATION.name, &recipe(&variants.map(|(_, entry)| entry)))?;
    let names = variants.map(|(name, _)| name);
    judged(&compared, &names, &[(3, 0, 0.0), (1, 0, 0.0), (4, 3, 0.0), (5, 4, -EQUAL)])
}

fn inference(bench: &Workbench, _: Scale) -> Result<Finding, Failure> {
    let variants = [
        ("sMGK, soft", "smgk"),
        ("sMGK, soft by EM", "smgk:mixture.inference=soft-em"),
        ("sMGK, hard", "smgk:mixture.inference=hard"),
    ];
    let compared = bench.train(INFERENCE.name, &recipe(&variants.map(|(_, entry)| entry)))?;
    judged(&compared, &variants.map(|(name, _)| name), &[(1, 0, -EQUAL), (2, 0, -EQUAL)])
}

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
