//! Scatterbrain's figure 6: time and memory by length.

use regard_kernels::{AttentionOptions, Mechanism, mechanism::Fraction, support::SupportKind};
use regard_report::{Axis, Chart, Column, Data, Format, Scale as Ticks, Series, Table, number::significant};
use regard_tasks::Failure;

use super::timing;
use crate::{
    bench::{self, Level, Measurement, Pass, Subject},
    reproduce::{Clause, Entry, Estimate, Finding, Paper, Scale, Setup, Workbench},
};

pub const ENTRY: Entry = Entry {
    name: "scatterbrain-efficiency",
    paper: Paper::Scatterbrain,
    figures: "figure 6",
    claim: "Scatterbrain takes about as much time and memory as hashing or random features alone, and at 4,096 tokens less of both than full attention \
            that keeps its matrix: up to a third of the time and a twelfth of the memory.",
    data: "none",
    models: &[],
    paper_setting: "512 to 32,768 tokens, batch 16, a GPU, full attention that keeps the whole matrix.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "The operator alone, forward, one sequence of 512 to 4,096 tokens, 4 heads of 64, budget 1/16, three quarters of it sparse.",
            differences: DIFFERENCES,
            minutes: 3.0,
        },
        Setup {
            scale: Scale::Here,
            setting: "The operator alone, forward, one sequence of 512 to 16,384 tokens, 4 heads of 64, budget 1/16, three quarters of it sparse.",
            differences: DIFFERENCES,
            minutes: 15.0,
        },
    ],
    run,
};

const DIFFERENCES: &[&str] = &[
    "a processor for a GPU, one sequence for 16, the forward pass alone",
    "times of full attention are those of one in tiles, which keeps no matrix; its memory is judged by the matrices of the paper's, and that of \
     tiles is beside it",
    "about as much is at most twice; a third of the time is not judged, since it is the most that the paper saw",
    "budgets are ours: the paper does not name those of the figure",
];

/// Heads, and the length at which the paper compares with full attention.
const HEADS: usize = 4;
const LENGTH: usize = 4096;

fn subjects() -> Result<Vec<Subject>, Failure> {
    let budget = Some("1/16".parse::<Fraction>()?);
    let all = [Mechanism::Softmax, Mechanism::Sparse, Mechanism::Performer, Mechanism::Scatterbrain];
    let subject = |(mechanism, label): (Mechanism, &str)| {
        let mut options = AttentionOptions { mechanism, heads: HEADS, ..AttentionOptions::default() };
        if mechanism != Mechanism::Softmax {
            options.budget = budget;
        }
        options.support.kind = SupportKind::Smyrf;
        options.scatterbrain.sparse_share = 0.75;
        Subject { label: label.into(), options, own_heads: false, recipe: None }
    };
    Ok(all.into_iter().zip(NAMES).map(subject).collect())
}

const NAMES: [&str; 4] = ["full", "hashing", "features", "Scatterbrain"];

fn run(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let lengths: &[usize] =
        if scale == Scale::Quick { &[512, 1024, 2048, 4096] } else { &[512, 1024, 2048, 4096, 8192, 16_384] };
    let subjects = subjects()?;
    let plan = timing::plan(Level::Operator, &subjects, lengths, &[HEADS], &[64]);
    let watch = |m: &Measurement| {
        let time = m.time(Pass::Forward).map_or(f64::NAN, |time| time.median);
        bench.note(&format!("{} at {} tokens, {} ms", m.label, m.at.length, significant(time, 3)));
    };
    let measured = bench::run(&plan, &watch, &bench.stop)?;
    judge(&measured, lengths)
}

fn judge(measured: &[Measurement], lengths: &[usize]) -> Result<Finding, Failure> {
    let of = |name: &str, length: usize| {
        let found = measured.iter().find(|own| own.label == name && own.at.length == length);
        found.ok_or_else(|| Failure::usage(format!("{name} was not measured at {length} tokens")))
    };
    let time = |one: &str, other: &str| -> Result<Estimate, Failure> {
        Ok(timing::ratio(Some(of(one, LENGTH)?), Some(of(other, LENGTH)?), |ratio| ratio))
    };
    let bytes = |name: &str| Ok::<f64, Failure>(of(name, LENGTH)?.forward_bytes.map_or(f64::NAN, |bytes| bytes as f64));
    let ours = bytes("Scatterbrain")?;
    let matrix = (HEADS * LENGTH * LENGTH * 4) as f64;
    let alone = bytes("hashing")?.max(bytes("features")?);
    let factor = |other: f64| format!("{} times Scatterbrain's", significant(other / ours, 3));
    let clauses = vec![
        Clause::paper("At 4,096 tokens, full attention takes longer: ratio of times.")
            .above(time("full", "Scatterbrain")?, 1.0),
        Clause::paper("At 4,096 tokens, the matrices of full attention take more memory.")
            .exactly(matrix > ours)
            .note(factor(matrix)),
        Clause::paper("It takes at most twice the time of hashing alone.").below(time("Scatterbrain", "hashing")?, 2.0),
        Clause::paper("It takes at most twice the time of features alone.")
            .below(time("Scatterbrain", "features")?, 2.0),
        Clause::paper("It takes at most twice the memory of the larger of the two alone.")
            .exactly(ours <= 2.0 * alone)
            .note(factor(alone)),
        Clause::ours("At 4,096 tokens, full attention in tiles takes more memory.")
            .exactly(bytes("full")? > ours)
            .note(factor(bytes("full")?)),
    ];
    let mut columns = vec![Column::number("tokens", Format::Plain)];
    columns.extend(NAMES.map(|name| Column::number(name, Format::Significant(3)).unit("ms")));
    let mut times = Table::new("Time of the forward pass", columns).note("Medians of up to 15 runs in turns.");
    let mut columns = vec![Column::number("tokens", Format::Plain)];
    columns.extend(NAMES.map(|name| Column::number(name, Format::Significant(3)).unit("MB")));
    columns.push(Column::number("matrices of full attention", Format::Significant(3)).unit("MB"));
    let mut memory = Table::new("Memory of the forward pass beyond the inputs", columns);
    for length in lengths {
        let (mut row, mut bytes) = (vec![(*length).into()], vec![(*length).into()]);
        for name in NAMES {
            let own = of(name, *length)?;
            row.push(own.time(Pass::Forward).map(|time| time.median).into());
            bytes.push(own.forward_bytes.map(|bytes| bytes as f64 / 1e6).into());
        }
        bytes.push(((HEADS * length * length * 4) as f64 / 1e6).into());
        times.push(row);
        memory.push(bytes);
    }
    let line = |(style, name): (usize, &&str)| {
        let point = |length: &usize| Some((*length as f64, of(name, *length).ok()?.time(Pass::Forward)?.median));
        Series::new(*name, style, lengths.iter().filter_map(point))
    };
    let chart = Chart::new(
        "Time by length",
        "Forward pass of the operator",
        Data::Lines(NAMES.iter().enumerate().map(line).collect()),
    )
    .axes(Axis::new("tokens", "").scale(Ticks::Log2), Axis::new("time", "ms").scale(Ticks::Log));
    let statement = format!(
        "At {LENGTH} tokens full attention takes {} times the time of Scatterbrain, whose matrices alone would take {} times its memory.",
        significant(time("full", "Scatterbrain")?.value, 3),
        significant(matrix / ours, 3)
    );
    Ok(Finding { clauses, statement, tables: vec![times, memory], charts: vec![("time".into(), chart)] })
}
