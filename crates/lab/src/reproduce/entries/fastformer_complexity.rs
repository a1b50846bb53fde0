//! Operations, parameters, time and memory of Fastformer by length.

use regard_kernels::{AttentionOptions, Mechanism};
use regard_report::{Axis, Chart, Column, Data, Format, Scale as Ticks, Series, Table, number::significant};
use regard_tasks::Failure;

use super::timing;
use crate::{
    bench::{self, Level, Measurement, Pass, Plan, Subject},
    cost::{
        AttentionSizes, Count, Run,
        formulas::{fastformer_parameters, fastformer_parameters_dense},
        mechanism::attention_cost,
    },
    reproduce::{Clause, Entry, Finding, Paper, Scale, Setup, Workbench},
};

pub const ENTRY: Entry = Entry {
    name: "fastformer-complexity",
    paper: Paper::Fastformer,
    figures: "complexity",
    claim: "Time and memory of the additive attentions and of the products are linear in the length, which is far less than the quadratic ones of a \
            Transformer; with shared queries and values a layer has 3 h d^2 + 2 h d parameters, a Transformer's at least 4 h d^2.",
    data: "none",
    models: &[],
    paper_setting: "Orders of growth and closed forms.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "Counted for 16 heads of 16; the operator alone, forward, one sequence of 1,024 to 8,192 tokens.",
            differences: DIFFERENCES,
            minutes: 0.5,
        },
        Setup {
            scale: Scale::Here,
            setting: "Counted for 16 heads of 16; the operator alone, forward, one sequence of 1,024 to 65,536 tokens, full attention to 16,384.",
            differences: DIFFERENCES,
            minutes: 3.0,
        },
    ],
    run,
};

const DIFFERENCES: &[&str] = &[
    "one processor's times stand for the order of growth: linear is an exponent below 1.2, which is our reading",
    "full attention here is computed in tiles, so that its memory is linear too; that of the paper keeps the matrix",
];

/// The paper's heads, in a model of width 256.
const HEADS: usize = 16;
const HEAD: usize = 16;
/// Lengths between which the exponent is measured.
const ENDS: [usize; 2] = [1024, 8192];

fn options(mechanism: Mechanism) -> AttentionOptions {
    AttentionOptions { mechanism, heads: HEADS, ..AttentionOptions::default() }
}

/// Multiply-adds of the attention without its projections.
fn operations(mechanism: Mechanism, length: usize) -> Result<Count, Failure> {
    let sizes = AttentionSizes { options: options(mechanism), head_width: HEAD, bias: false, output_bias: false };
    let run = Run { batch: 1, length, decoded: 0 };
    let cost = attention_cost(&sizes, HEADS * HEAD, length, run).map_err(|error| Failure::usage(error.to_string()))?;
    Ok(cost.core_operations)
}

fn run(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let lengths: &[usize] = match scale {
        Scale::Quick => &[1024, 2048, 4096, 8192],
        Scale::Here | Scale::Paper => &[1024, 2048, 4096, 8192, 16_384, 32_768, 65_536],
    };
    let subjects = [Mechanism::Fastformer, Mechanism::Softmax].map(|mechanism| Subject {
        label: mechanism.to_string(),
        options: options(mechanism),
        own_heads: false,
        recipe: None,
    });
    let plan =
        Plan { longest_quadratic: 16_384, ..timing::plan(Level::Operator, &subjects, lengths, &[HEADS], &[HEAD]) };
    let watch = |m: &Measurement| bench.note(&format!("{} at {} tokens", m.label, m.at.length));
    let measured = bench::run(&plan, &watch, &bench.stop)?;
    judge(&measured, lengths)
}

fn judge(measured: &[Measurement], lengths: &[usize]) -> Result<Finding, Failure> {
    let [own, full] = [Mechanism::Fastformer, Mechanism::Softmax];
    let of = |mechanism: Mechanism, length: usize| {
        measured.iter().find(|row| row.label == mechanism.to_string() && row.at.length == length)
    };
    let time = |mechanism, length| of(mechanism, length).and_then(|row| row.time(Pass::Forward));
    // From 1,024 to 8,192 tokens, three times twice.
    let exponent =
        |mechanism| timing::ratio(of(mechanism, ENDS[1]), of(mechanism, ENDS[0]), |ratio| ratio.log2() / 3.0);
    let bytes =
        |length: usize| of(own, length).and_then(|row| row.forward_bytes).map_or(f64::NAN, |bytes| bytes as f64);
    let growth = bytes(ENDS[1]) / bytes(ENDS[0]);
    let linear = lengths.iter().all(|&length| {
        operations(own, length).ok().zip(operations(own, 2 * length).ok()).is_some_and(|(one, two)| two == 2 * one)
    });
    let saved = operations(full, ENDS[1])? as f64 / operations(own, ENDS[1])? as f64;
    let sizes = [(1, 64), (4, 32), (16, 16), (16, 64)];
    let fewer = sizes.iter().all(|&(heads, width)| {
        fastformer_parameters(heads, width) < 4 * (heads * width * width) as Count
            && fastformer_parameters_dense(heads, width) < 4 * ((heads * width) as Count).pow(2)
    });
    let clauses = vec![
        Clause::paper("Counted operations of the attention are linear in the length.").exactly(linear),
        Clause::paper("With shared queries and values it has fewer parameters than 4 h d^2.").exactly(fewer).note(format!(
            "3 h d^2 + 2 h d has one d by d matrix a head; projections from the whole width have 3 (h d)^2 + 2 h d, {} for {} at width 256",
            fastformer_parameters_dense(HEADS, HEAD),
            4 * ((HEADS * HEAD) as Count).pow(2)
        )),
        Clause::paper("Time is linear in the length: exponent from 1,024 to 8,192 tokens.").below(exponent(own), 1.2),
        Clause::paper("Memory is linear in the length: from 1,024 to 8,192 tokens at most 8 times.")
            .exactly(growth <= 8.0)
            .note(format!("{} times", significant(growth, 4))),
        Clause::paper("At 8,192 tokens full attention takes longer: ratio of times.")
            .above(timing::ratio(of(full, ENDS[1]), of(own, ENDS[1]), |ratio| ratio), 1.0),
        Clause::ours("The time of full attention is not linear: exponent.").above(exponent(full), 1.5),
    ];
    let mut table = Table::new(
        "Forward pass of the operator",
        vec![
            Column::number("tokens", Format::Plain),
            Column::number("Fastformer", Format::Significant(3)).unit("ms"),
            Column::number("full", Format::Significant(3)).unit("ms"),
            Column::number("Fastformer", Format::Significant(3)).unit("MB"),
            Column::number("full", Format::Significant(3)).unit("MB"),
            Column::number("Fastformer", Format::Count).unit("multiply-adds"),
            Column::number("full", Format::Count).unit("multiply-adds"),
        ],
    )
    .note("Medians of up to 15 runs in turns; memory beyond the inputs; 16 heads of 16.");
    for &length in lengths {
        let median = |mechanism| time(mechanism, length).map(|time| time.median);
        let megabytes =
            |mechanism| of(mechanism, length).and_then(|row| row.forward_bytes).map(|bytes| bytes as f64 / 1e6);
        table.push(vec![
            length.into(),
            median(own).into(),
            median(full).into(),
            megabytes(own).into(),
            megabytes(full).into(),
            operations(own, length)?.into(),
            operations(full, length)?.into(),
        ]);
    }
    let line = |(style, mechanism): (usize, Mechanism)| {
        let point = |length: &usize| Some((*length as f64, time(mechanism, *length)?.median));
        Series::new(mechanism.to_string(), style, lengths.iter().filter_map(point))
    };
    let chart = Chart::new(
        "Time by length",
        "Forward pass of the operator",
        Data::Lines([own, full].into_iter().enumerate().map(line).collect()),
    )
    .axes(Axis::new("tokens", "").scale(Ticks::Log2), Axis::new("time", "ms").scale(Ticks::Log));
    let statement = format!(
        "Time grows with the length to the power of {}, that of full attention to {}; at 8,192 tokens full attention has {} times the operations.",
        significant(exponent(own).value, 3),
        significant(exponent(full).value, 3),
        significant(saved, 3)
    );
    Ok(Finding { clauses, statement, tables: vec![table], charts: vec![("time".into(), chart)] })
}
