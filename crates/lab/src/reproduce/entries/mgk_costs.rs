//! Counted operations and parameters of whole models with mixtures of keys.

use regard_kernels::{
    AttentionOptions, Mechanism,
    mechanism::{Inference, KeyDesign, Position},
};
use regard_nn::models::ModelConfig;
use regard_report::{Cell, Column, Format, Table};
use regard_tasks::Failure;

use crate::{
    cost::{AttentionSizes, Head, ModelCost, ModelSizes, Run},
    reproduce::{Clause, Entry, Finding, Paper, Scale, Setup, Verdict, Workbench},
};

pub const ENTRY: Entry = Entry {
    name: "mgk-costs",
    paper: Paper::Mgk,
    figures: "figures 3, 4, 8, 10, 15 and 16",
    claim: "With half the heads, models with mixtures of two keys take fewer operations and parameters; the advantage grows with the width \
            and the length of language models and with the number of heads of retrieval models. Soft and hard assignment and fitted \
            priors cost nearly the same, and shifted keys take the fewest parameters.",
    data: "none",
    models: &[],
    paper_setting: "A language model of 16 layers for WikiText-103 with 8 heads against 4, widths of 256 to 4,096 and 128 to 8,192 tokens; \
                    models of 2 layers of width 64 with heads of 32 for retrieval over 4,000 tokens; counted by a tool.",
    setups: &[Setup {
        scale: Scale::Paper,
        setting: "The same sizes, counted by the closed forms of this program: multiply-adds of a forward pass, of which a training step \
                  takes about three times as many.",
        differences: &[
            "feed-forward of 2,048 at every width, and an output layer of all words, which the paper does not state",
            "counted here, without what the paper's tool counts besides products of matrices",
            "of MLK the paper speaks of scaling width and length: they are taken together, since no share of linear attention depends on \
             the length alone",
        ],
        minutes: 0.0,
    }],
    run,
};

const WIDTHS: [usize; 5] = [256, 512, 1024, 2048, 4096];
const LENGTHS: [usize; 7] = [128, 256, 512, 1024, 2048, 4096, 8192];
const HEADS: [usize; 3] = [2, 4, 8];
/// Words of WikiText-103.
const WORDS: usize = 267_735;
/// Tokens of the retrieval task.
const RETRIEVAL: usize = 4_000;
/// Share of all operations within which models cost nearly the same: our reading.
const NEARLY: f64 = 0.1;

/// Multiply-adds and parameters.
#[derive(Clone, Copy)]
struct Counts {
    operations: f64,
    parameters: f64,
}

impl Counts {
    fn of(sizes: &ModelSizes, length: usize, words: bool) -> Result<Self, Failure> {
        let cost = ModelCost::of(sizes, Run { batch: 1, length, decoded: 0 })?;
        // The output table belongs to the vocabulary, as the embeddings do.
        let counted = |name: &str| words || !["token embedding", "head"].contains(&name);
        let parts = cost.parts.iter().filter(|part| counted(&part.name));
        let (operations, parameters) =
            parts.fold((0, 0), |sum, part| (sum.0 + part.multiply_adds, sum.1 + part.parameters));
        Ok(Self { operations: operations as f64, parameters: parameters as f64 })
    }

    /// Ratios over a baseline.
    fn over(self, baseline: Self) -> Self {
        Self { operations: self.operations / baseline.operations, parameters: self.parameters / baseline.parameters }
    }
}

/// A language model of this width; heads share it as the paper's 8 do. Attention is counted as products of whole matrices,
/// as a tool that counts products does, though half of each is never seen.
fn language(mechanism: Mechanism, heads: usize, width: usize, length: usize) -> ModelSizes {
    let options = AttentionOptions { mechanism, heads, position: Position::Sinusoidal, ..two_keys() };
    let attention = AttentionSizes { options, head_width: width / 8, bias: false, output_bias: false };
    let model = ModelConfig { width, layers: 16, feed_forward: 2048, ..ModelConfig::default() };
    ModelSizes { model, vocabulary: WORDS, context: length, head: Head::Tokens, attention, decoder: None }
}

/// A retrieval model with heads of 32.
fn retrieval(options: AttentionOptions) -> ModelSizes {
    let attention = AttentionSizes { options, head_width: 32, bias: true, output_bias: true };
    let model = ModelConfig { width: 64, layers: 2, feed_forward: 128, ..ModelConfig::default() };
    ModelSizes { model, vocabulary: 256, context: RETRIEVAL, head: Head::Classes(2), attention, decoder: None }
}

fn two_keys() -> AttentionOptions {
    let mut options = AttentionOptions::default();
    options.keys.components = 2;
    options
}

const PAIRS: [(Mechanism, Mechanism, &str); 2] =
    [(Mechanism::Mgk, Mechanism::Softmax, "MGK over softmax"), (Mechanism::Mlk, Mechanism::Linear, "MLK over linear")];

fn run(_: &Workbench, _: Scale) -> Result<Finding, Failure> {
    let (mut clauses, mut observations, mut tables) = (Vec::new(), Vec::new(), Vec::new());
    for (mixture, baseline, name) in PAIRS {
        // Rows are lengths, columns widths, as the paper's panels.
        let grid = |words: bool| -> Result<Vec<Vec<Counts>>, Failure> {
            let ratio = |length: usize, width: usize| {
                let own = Counts::of(&language(mixture, 4, width, length), length, words)?;
                Ok(own.over(Counts::of(&language(baseline, 8, width, length), length, words)?))
            };
            LENGTHS.iter().map(|&length| WIDTHS.iter().map(|&width| ratio(length, width)).collect()).collect()
        };
        let (whole, without) = (grid(true)?, grid(false)?);
        for (of_paper, grid, what) in [(true, &whole, "whole models"), (false, &without, "without the vocabulary")] {
            let wider = grid.iter().all(|row| row.windows(2).all(|pair| pair[1].operations < pair[0].operations));
            let longer = grid.windows(2).all(|pair| {
                pair[0].iter().zip(&pair[1]).all(|(shorter, longer)| longer.operations < shorter.operations)
            });
            let smaller = grid[0].windows(2).all(|pair| pair[1].parameters < pair[0].parameters);
            let together = grid.windows(2).all(|pair| {
                pair[0].iter().zip(&pair[1][1..]).all(|(smaller, larger)| larger.operations < smaller.operations)
            });
            // Linear attention and its mixtures are linear in the length alike, so that no share falls with it alone; of
            // them the paper speaks of scaling tasks and models, and of parameters without the vocabulary too.
            let quadratic = mixture == Mechanism::Mgk;
            let texts = [
                (of_paper, "operations", "width", wider),
                (of_paper && quadratic, "operations", "length", longer),
                (of_paper && !quadratic, "operations", "width and the length together", together),
                (of_paper || !quadratic, "parameters", "width", smaller),
            ];
            for (of_paper, quantity, over, holds) in texts {
                let text = format!("{name}, {what}: the share of {quantity} falls with the {over}.");
                let clause = Clause { of_paper, ..Clause::paper(text) }.exactly(holds);
                if of_paper { clauses.push(clause) } else { observations.push(clause) }
            }
            tables
                .push(panel(format!("Operations of a language model, {name}, {what}"), grid, |ratio| ratio.operations));
        }
        let (own, table) = by_heads(mixture, baseline, name)?;
        clauses.extend(own);
        tables.push(table);
    }
    let (own, table) = by_variant()?;
    clauses.extend(own);
    tables.push(table);
    let held = clauses.iter().filter(|clause| clause.verdict == Verdict::Holds).count();
    let statement = format!("{held} of {} clauses hold as counted here.", clauses.len());
    clauses.extend(observations);
    Ok(Finding { clauses, statement, tables, charts: Vec::new() })
}

fn panel(title: String, grid: &[Vec<Counts>], of: fn(&Counts) -> f64) -> Table {
    let mut columns = vec![Column::number("tokens", Format::Plain)];
    columns.extend(WIDTHS.map(|width| Column::number(format!("width {width}"), Format::Ratio)));
    let mut table = Table::new(title, columns);
    for (length, row) in LENGTHS.iter().zip(grid) {
        table.push([Cell::from(*length)].into_iter().chain(row.iter().map(|ratio| of(ratio).into())).collect());
    }
    table
}

/// Figures 4 and 15: shares by the number of heads of the baseline.
fn by_heads(mixture: Mechanism, baseline: Mechanism, name: &str) -> Result<(Vec<Clause>, Table), Failure> {
    let mut table = Table::new(
        format!("Retrieval models, {name}"),
        vec![
            Column::number("heads", Format::Plain),
            Column::number("operations", Format::Ratio),
            Column::number("parameters", Format::Ratio),
        ],
    )
    .note("The mixture has half the heads.");
    let mut ratios = Vec::new();
    for heads in HEADS {
        let of = |mechanism, heads| {
            Counts::of(&retrieval(AttentionOptions { mechanism, heads, ..two_keys() }), RETRIEVAL, true)
        };
        let ratio = of(mixture, heads / 2)?.over(of(baseline, heads)?);
        table.push(vec![heads.into(), ratio.operations.into(), ratio.parameters.into()]);
        ratios.push(ratio);
    }
    let falls = |of: fn(&Counts) -> f64| of(&ratios[0]) < 1.0 && ratios.windows(2).all(|two| of(&two[1]) < of(&two[0]));
    let text =
        |what: &str| format!("{name}, retrieval: the share of {what} is below 1 and falls with the number of heads.");
    let clauses = vec![
        Clause::paper(text("operations")).exactly(falls(|ratio| ratio.operations)),
        Clause::paper(text("parameters")).exactly(falls(|ratio| ratio.parameters)),
    ];
    Ok((clauses, table))
}

/// Figures 8 and 16: the ways to assign keys, with one head.
fn by_variant() -> Result<(Vec<Clause>, Table), Failure> {
    let mgk = AttentionOptions { mechanism: Mechanism::Mgk, heads: 1, ..two_keys() };
    let (mut shifted, mut hard, mut fitted) = (mgk.clone(), mgk.clone(), mgk.clone());
    shifted.keys.design = KeyDesign::Shifted;
    hard.mixture.inference = Inference::Hard;
    fitted.mixture.inference = Inference::SoftEm;
    let columns = vec![
        Column::text("variant"),
        Column::number("operations", Format::Count),
        Column::number("parameters", Format::Count),
    ];
    let mut table = Table::new("Retrieval models with one head, by assignment", columns);
    let mut counts = Vec::new();
    for (name, options) in [("sMGK", shifted), ("MGK", mgk), ("MGK, hard", hard), ("MGK, soft by EM", fitted)] {
        let own = Counts::of(&retrieval(options), RETRIEVAL, true)?;
        table.push(vec![name.into(), own.operations.into(), own.parameters.into()]);
        counts.push(own);
    }
    let operations = || counts.iter().map(|own| own.operations);
    let (least, most) = (operations().fold(f64::INFINITY, f64::min), operations().fold(0.0, f64::max));
    let fewest = counts[1..].iter().all(|other| counts[0].parameters < other.parameters);
    let clauses = vec![
        Clause::paper("All four variants take nearly the same operations.")
            .exactly(most < (1.0 + NEARLY) * least)
            .note(format!("from 1 to {:.3} times the least; nearly: within {NEARLY}, our reading", most / least)),
        Clause::paper("sMGK has the fewest parameters.").exactly(fewest),
    ];
    Ok((clauses, table))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand, without vocabulary and norms, at width 256 over 128 tokens: a layer of softmax with 8 heads of 32 takes
    /// 128 x (4 x 256^2 + 2 x 256 x 2048) + 2 x 128^2 x 256 multiply-adds, MGK with 4 heads 128 x (2.5 x 256^2) less 1.5.
    #[test]
    fn language_models_are_counted_as_by_hand() {
        let of = |mechanism, heads| Counts::of(&language(mechanism, heads, 256, 128), 128, false).expect("sizes");
        let feed_forward = 128.0 * 2.0 * 256.0 * 2048.0;
        let softmax = 16.0 * (128.0 * 4.0 * 65_536.0 + feed_forward + 2.0 * 16_384.0 * 256.0);
        let mgk = 16.0 * (128.0 * 2.5 * 65_536.0 + feed_forward + 1.5 * 16_384.0 * 256.0);
        let near =
            |seen: f64, expected: f64| assert!((seen / expected - 1.0).abs() < 0.02, "{seen}, expected {expected}");
        near(of(Mechanism::Softmax, 8).operations, softmax);
        near(of(Mechanism::Mgk, 4).operations, mgk);
    }
}
