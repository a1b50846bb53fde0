//! Operations and parameters of MGK by the closed forms of its paper.

use regard_report::{Cell, Table};
use regard_tasks::Failure;

use crate::{
    cost::{curves, formulas::PaperSizes},
    reproduce::{Clause, Entry, Finding, Paper, Scale, Setup, Workbench},
};

pub const ENTRY: Entry = Entry {
    name: "mgk-operations",
    paper: Paper::Mgk,
    figures: "figures 3, 4, 10 and appendix A",
    claim: "With two keys per position and half as many heads, MGK takes fewer operations and parameters than \
            softmax attention; the ratio grows with the length and stays below 3/4 for head widths of 64 and \
            more.",
    data: "none",
    models: &[],
    paper_setting: "Closed forms of one layer with projections, two keys and half the heads against all heads.",
    setups: &[Setup {
        scale: Scale::Paper,
        setting: "The closed forms at 128 to 65,536 tokens, 8 heads, head widths 16 to 128; and at 2 to 16 heads.",
        differences: &[],
        minutes: 0.0,
    }],
    run,
};

fn run(_: &Workbench, _: Scale) -> Result<Finding, Failure> {
    let curves = curves::paper(PaperSizes { tokens: 1_024, heads: 8, head_width: 64, width: 512 });
    let column =
        |table: &Table, line: usize| table.rows.iter().filter_map(|row| row[line].value()).collect::<Vec<f64>>();
    // Columns of the first curve: head widths 16, 32, 64, 128.
    let (narrow, wide) = (column(&curves[0].table, 1), [3, 4].map(|line| column(&curves[0].table, line)));
    let grows = wide.iter().all(|ratios| ratios.windows(2).all(|pair| pair[0] <= pair[1]));
    let largest = wide.iter().flatten().copied().fold(0.0, f64::max);
    let fewer = |row: &Vec<Cell>| row[2].value() < row[1].value();
    let everywhere = curves[2..].iter().all(|curve| curve.table.rows.iter().all(fewer));
    let statement = format!(
        "Operations of MGK over softmax from {:.3} at 128 to {largest:.3} at 65,536 tokens with heads of 64 and 128; {:.4} at most \
         with heads of 16, whose limit (6D - 1) / (8D - 2) lies above 3/4. Fewer operations and parameters at every number of \
         heads: {}.",
        wide.iter().flatten().copied().fold(f64::INFINITY, f64::min),
        narrow.iter().copied().fold(0.0, f64::max),
        if everywhere { "yes" } else { "no" },
    );
    let (charts, tables) = curves.into_iter().map(|curve| ((curve.name, curve.chart), curve.table)).unzip();
    let clauses = vec![
        Clause::paper("Fewer operations and parameters at every number of heads.").exactly(everywhere),
        Clause::ours("The ratio of operations grows with the length.").exactly(grows),
        Clause::ours("It stays below 3/4 for head widths of 64 and more.").exactly(largest < 0.75),
    ];
    Ok(Finding { clauses, statement, tables, charts })
}
