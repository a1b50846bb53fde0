//! Operations and parameters of MGK by the closed forms of its paper.

use regard_report::{Cell, Table};
use regard_tasks::Failure;

use crate::{
    cost::{
        curves,
        formulas::{
            PaperSizes, mgk_operations, mgk_operations_closed, mgk_parameters, softmax_operations_closed,
            softmax_parameters,
        },
    },
    reproduce::{Clause, Entry, Finding, Paper, Scale, Setup, Workbench},
};

pub const ENTRY: Entry = Entry {
    name: "mgk-operations",
    paper: Paper::Mgk,
    figures: "appendix B",
    claim: "With two keys per position and half as many heads, an MGK layer takes fewer operations and parameters than softmax \
            attention; what it saves grows with the length, the heads and their width.",
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

/// Sizes at which savings are counted, and at their doubles.
const LENGTHS: [usize; 4] = [128, 1_024, 8_192, 65_536];
const HEADS: [usize; 4] = [2, 4, 8, 16];
const WIDTHS: [usize; 4] = [16, 32, 64, 128];

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
    let saved = |tokens: usize, heads: usize, head_width: usize| {
        let sizes = PaperSizes { tokens, heads, head_width, width: heads * head_width };
        let operations = mgk_operations_closed(sizes).map(|mgk| softmax_operations_closed(sizes) as f64 - mgk as f64);
        let parameters = mgk_parameters(sizes).map(|mgk| softmax_parameters(sizes) as f64 - mgk as f64);
        [operations.unwrap_or(f64::NAN), parameters.unwrap_or(f64::NAN)]
    };
    // Every size that is doubled saves more.
    let sizes = LENGTHS.iter().flat_map(|n| HEADS.iter().flat_map(move |h| WIDTHS.iter().map(move |d| (*n, *h, *d))));
    let (mut fewer, mut more) = (true, true);
    for (n, h, d) in sizes {
        let [operations, parameters] = saved(n, h, d);
        fewer &= operations > 0.0 && parameters > 0.0;
        more &= saved(2 * n, h, d)[0] > operations;
        let of_both = |own: [f64; 2]| own[0] > operations && own[1] > parameters;
        more &= of_both(saved(n, 2 * h, d)) && of_both(saved(n, h, 2 * d));
    }
    let one = PaperSizes { tokens: 1_024, heads: 8, head_width: 64, width: 512 };
    let summed = mgk_operations(one).map(|operations| operations as f64);
    let printed = mgk_operations_closed(one).map(|operations| operations as f64 - 0.5 * (1_024 * 8 * 64) as f64);
    let clauses = vec![
        Clause::paper("Fewer operations and parameters.").exactly(fewer && everywhere),
        Clause::paper("More operations saved with the length, more of both with the heads and their width.")
            .exactly(more),
        Clause::ours("The ratio of operations grows with the length.").exactly(grows),
        Clause::ours("It stays below 3/4 for head widths of 64 and more.").exactly(largest < 0.75),
        Clause::ours("The closed form of MGK as printed, with -4 for -3.5, is that of its parts.")
            .exactly(printed == summed)
            .note("a slip of N H D / 2 operations"),
    ];
    Ok(Finding { clauses, statement, tables, charts })
}
