//! `regard cost`

use std::path::PathBuf;

use clap::Args;
use regard_kernels::mechanism::Position;
use regard_lab::cost::{
    AttentionSizes, ModelCost, ModelSizes, Run,
    curves::{self, Curve},
    formulas::PaperSizes,
};
use regard_report::{Block, Report, Section, Table};
use regard_tasks::run::RunConfig;
use serde_json::json;

use super::{command_line, environment, resolve};
use crate::{
    args::{Common, Source},
    error::{Failure, Outcome},
    output,
    values::size,
};

#[derive(Debug, Args)]
pub struct Cost {
    #[command(flatten)]
    pub source: Source,
    /// Tokens per sequence; default: the task's maximum.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub length: Option<usize>,
    /// Sequences per training step; default: train.batch.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub batch: Option<usize>,
    /// Tokens decoded so far when the decode state is counted; default: the length.
    #[arg(long, value_parser = size(0), value_name = "N")]
    pub decoded: Option<usize>,
    /// Vocabulary size; default: the task's.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub vocabulary: Option<usize>,
    /// Also draw curves over length and width for every mechanism of compare.mechanisms, and those of the MGK paper
    /// (figures 3, 4 and 10).
    #[arg(long)]
    pub curves: bool,
    /// Output directory for SVG curves and a report.
    #[arg(long, value_name = "DIR", requires = "curves")]
    pub out: Option<PathBuf>,
}

/// Lengths and widths of the curves.
const LENGTHS: [usize; 8] = [256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768];
const WIDTHS: [usize; 6] = [64, 128, 256, 512, 1024, 2048];

/// Prints the cost of a model.
///
/// # Errors
/// Invalid sizes.
pub fn run(args: &Cost, common: &Common) -> Outcome {
    let config = resolve(&args.source)?;
    config.check_model()?;
    let length = args.length.unwrap_or(config.task.options().shape().max_length);
    let run = Run { batch: args.batch.unwrap_or(config.train.batch), length, decoded: args.decoded.unwrap_or(length) };
    let sizes = ModelSizes::of(&config, args.vocabulary, length);
    let cost = ModelCost::of(&sizes, run)?;
    let title = format!("{} ({})", described(&sizes)?, config.task.name);
    let table = cost.table(title.as_str());
    if !args.curves {
        return match common.json {
            true => output::json(&json!({ "cost": cost, "total": cost.total() })),
            false => output::text(table.to_text()),
        };
    }
    let curves = all_curves(&config, args, run)?;
    let json: Vec<_> = curves.iter().map(|curve| curve.table.to_json()).collect();
    let json = json!({ "cost": cost, "total": cost.total(), "curves": json });
    let tables = [&table].into_iter().chain(curves.iter().map(|curve| &curve.table));
    let text = tables.map(Table::to_text).collect::<Vec<_>>().join("\n");
    let report = args.out.as_ref().map(|out| report(table, curves).write(out));
    let report = report.transpose().map_err(|error| Failure::written(&error));
    if common.json {
        output::json(&json)?;
        return report.map(drop);
    }
    output::text(text)?;
    match report? {
        Some(report) => output::line(format_args!("\nreport: {}", report.page.display())),
        None => Ok(()),
    }
}

/// The report with the curves.
fn report(table: Table, curves: Vec<Curve>) -> Report {
    let blocks = curves
        .into_iter()
        .flat_map(|curve| [Block::Chart { name: curve.name, chart: curve.chart }, Block::Table(curve.table)]);
    let environment = environment();
    Report {
        title: "Cost of attention mechanisms".into(),
        summary:
            "Closed forms, nothing here was run: parameters, multiply-adds of a forward pass, bytes of a training \
                  step and of a decoder."
                .into(),
        facts: vec![
            ("command".into(), command_line()),
            ("date".into(), environment.date),
            ("version".into(), environment.version),
        ],
        sections: vec![
            Section { title: "The model by part".into(), blocks: vec![Block::Table(table)] },
            Section { title: "Curves".into(), blocks: blocks.collect() },
        ],
    }
}

/// A description of the attention, with the sizes set by a budget.
fn described(sizes: &ModelSizes) -> Outcome<String> {
    let AttentionSizes { options, head_width, .. } = &sizes.attention;
    let sized = options.within_budget(sizes.context, sizes.context, *head_width)?;
    let words = sized.sizes();
    Ok(if words.is_empty() { sized.label() } else { format!("{}, {words}", sized.label()) })
}

/// Curves of every mechanism of the comparison, and those of the MGK paper.
fn all_curves(config: &RunConfig, args: &Cost, run: Run) -> Outcome<Vec<Curve>> {
    let longest = LENGTHS[LENGTHS.len() - 1];
    let mut models = Vec::new();
    for entry in &config.compare.mechanisms {
        let (label, mut own) = config.candidate(entry)?;
        own.check_model()?;
        // A position table would grow along the axis; the curves are about attention.
        for options in [&mut own.attention, &mut own.decoder, &mut own.cross] {
            options.position = Position::None;
        }
        models.push((label, ModelSizes::of(&own, args.vocabulary, longest)));
    }
    let mut all = curves::over_length(&models, run.batch, &LENGTHS)?;
    all.extend(curves::over_width(&models, run, &WIDTHS)?);
    let base = PaperSizes {
        tokens: run.length,
        heads: config.attention.heads.max(2),
        head_width: config.model.head_width(&config.attention),
        width: config.model.width,
    };
    all.extend(curves::paper(base));
    Ok(all)
}
