//! The range of validity of the positions paper's law: other deviations of weights, other distributions.

use regard_report::{Column, Format, Table};
use regard_tasks::Failure;

use super::{
    nope::{lines, measured, over, said, subtitle},
    nope_lemmas::{SMALLER, first_layer},
};
use crate::{
    probe::{
        Decoder, Distribution, Estimate, Measured, Quantity, Replicates, Setting, Statistic, Tally, cumulative_chart,
        cumulative_lines, spaced_positions,
    },
    reproduce::{self, Clause, Entry, Finding, Paper, Scale, Setup, Workbench, confidence},
};

pub const DEVIATIONS: Entry = Entry {
    name: "nope-deviations",
    paper: Paper::Nope,
    figures: "figures 3 and 5",
    claim: "Attention is nearly even at s = 0.02; a smaller s makes lemma 3 fit better; and even where s is not small, at 0.2 and 0.02, the \
            variance tells the position, because it falls with it.",
    data: "none",
    models: &[],
    paper_setting: "First layer of a frozen random decoder: width 768, 12 heads, 512 positions.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "Width 256, 4 heads, 256 positions; 48 decoders of 4 sequences.",
            differences: SMALLER,
            minutes: 0.5,
        },
        Setup {
            scale: Scale::Paper,
            setting: "Width 768, 12 heads, 512 positions; 16 decoders of 4 sequences.",
            differences: &[],
            minutes: 0.5,
        },
    ],
    run: deviations,
};

pub const INITIALISATIONS: Entry = Entry {
    name: "nope-initialisations",
    paper: Paper::Nope,
    figures: "section 3.5 (other initialisations)",
    claim: "The derivation needs independent weights of mean 0 and one variance alone, not normal ones: lemma 3 holds for other distributions.",
    data: "none",
    models: &[],
    paper_setting: "An argument, without a measurement.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "Weights normal, uniform, of random sign and Laplace, s = 0.002; width 256, 4 heads, 256 positions; 48 decoders of 4 sequences.",
            differences: SMALLER,
            minutes: 0.5,
        },
        Setup {
            scale: Scale::Paper,
            setting: "Weights normal, uniform, of random sign and Laplace, s = 0.002; width 768, 12 heads, 512 positions; 16 decoders of 4 sequences.",
            differences: &[],
            minutes: 0.6,
        },
    ],
    run: initialisations,
};

fn initialisations(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let kinds = [Distribution::Normal, Distribution::Uniform, Distribution::Sign, Distribution::Laplace];
    let settings = kinds.map(|weights| {
        let whole = first_layer(scale, format!("{weights:?}").to_lowercase(), 0.002);
        Setting { decoder: Decoder { weights, ..whole.decoder }, ..whole }
    });
    let measured = measured(bench, scale, &settings, 0)?;
    let columns = vec![
        Column::text("weights"),
        Column::number("slope of log variance of o_m", Format::Fixed(3)),
        Column::number("variance over d^2 s^4 / m", Format::Fixed(3)),
    ];
    let mut table = Table::new("First layer by the distribution of weights", columns)
        .note("Over decoders, with half the width of the 95 % interval.");
    let over = |estimate| over(estimate, "decoders", confidence(2 * kinds.len()));
    let (mut clauses, mut sentences) = (Vec::new(), Vec::new());
    for one in &measured {
        let (label, theory) = (&one.setting.label, one.setting.lemmas());
        let slope = one.replicates.log_slope(1, Quantity::Attention);
        let constant = one.replicates.scaled(1, Quantity::Attention, |m| theory.output(m).recip());
        table.push(vec![label.as_str().into(), slope.into(), constant.into()]);
        clauses.push(Clause::paper(format!("With {label} weights the slope is -1.")).within(over(slope), -1.0, 0.05));
        let text = format!("With {label} weights the variance is d^2 s^4 / m: measured over predicted.");
        clauses.push(Clause::paper(text).within(over(constant), 1.0, 0.05));
        sentences.push(format!("{label}: slope {}, constant {}", said(slope), said(constant)));
    }
    Ok(Finding { clauses, statement: format!("{}.", sentences.join("; ")), tables: vec![table], charts: Vec::new() })
}

/// Farthest of the last query's cumulative attention from a straight line, in the mean over heads and sequences of a layer.
pub(super) fn unevenness(replicates: &Replicates, layer: usize) -> Option<Estimate> {
    let curve = replicates.curve(layer, Quantity::Uneven, Statistic::Mean)?;
    curve.points.first().map(|(_, off)| *off)
}

/// Mean distance over positions of the logarithm of a decoder's variance from that of lemma 3.
fn misfit(tally: &Tally, one: &Measured) -> f64 {
    let theory = one.setting.lemmas();
    let curve = tally.curve(1, Quantity::Attention).unwrap_or_default();
    let positions = spaced_positions(curve.len());
    let off = positions.iter().map(|m| (curve[m - 1].variance() / theory.output(*m)).ln().abs());
    off.sum::<f64>() / positions.len() as f64
}

fn deviations(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let settings = [0.2, 0.02, 0.002].map(|s| first_layer(scale, format!("s = {s}"), s));
    let measured = measured(bench, scale, &settings, 0)?;
    let slope = |one: &Measured| one.replicates.log_slope(1, Quantity::Attention);
    let mut table = Table::new(
        "First layer by the deviation of weights and inputs",
        vec![
            Column::text("deviation"),
            Column::number("variance of logits, lemma", Format::Significant(3)),
            Column::number("slope of log variance of o_m", Format::Fixed(3)),
            Column::number("farthest from even attention", Format::Fixed(4)),
        ],
    )
    .note("Over decoders, with half the width of the 95 % interval. Even: cumulative attention of the last query on a straight line, in each head.");
    let mut clauses = Vec::new();
    let over = |estimate| over(estimate, "decoders", confidence(5));
    let misfits = |one: &Measured| one.replicates.0.iter().map(|tally| misfit(tally, one)).collect::<Vec<f64>>();
    let mut sentences = Vec::new();
    for one in &measured {
        let (slope, uneven) = (slope(one), unevenness(&one.replicates, 1));
        let logits = one.setting.lemmas().logit().corrected;
        table.push(vec![one.setting.label.as_str().into(), logits.into(), slope.into(), uneven.into()]);
        let (label, s) = (&one.setting.label, one.setting.decoder.deviation);
        if s == 0.02 {
            let text = format!("Figure 3: at {label} the last query attends evenly: farthest from a straight line.");
            clauses.push(Clause::paper(text).below(over(uneven), 0.05));
        }
        if s > 0.01 {
            clauses.push(
                Clause::paper(format!("Figure 5: at {label} the variance falls with the position: slope."))
                    .below(over(slope), 0.0),
            );
        } else {
            clauses.push(Clause::ours(format!("The slope at {label} is -1.")).within(over(slope), -1.0, 0.05));
        }
        sentences.push(format!("{}: slope {}, {} from even", one.setting.label, said(slope), said(uneven)));
    }
    // The same decoders, scaled: paired.
    for (large, small) in [(0, 1), (1, 2)] {
        let labels = [large, small].map(|at| &measured[at].setting.label);
        let text = format!(
            "Figure 5: lemma 3 fits better at {} than at {}: mean distance of the logarithm of the variance from the lemma's.",
            labels[1], labels[0]
        );
        let [large, small] = [large, small].map(|at| misfits(&measured[at]));
        clauses.push(
            Clause::paper(text).above(reproduce::Estimate::paired(&large, &small, confidence(5), "decoders"), 0.0),
        );
    }
    let subtitle = &subtitle(scale);
    let named = || measured.iter().map(|one| (one.setting.label.clone(), &one.replicates, 1));
    Ok(Finding {
        clauses,
        statement: format!("{}.", sentences.join("; ")),
        tables: vec![table],
        charts: vec![
            ("cumulative-attention".into(), cumulative_chart(cumulative_lines(named()), subtitle)),
            ("variance".into(), lines("Variance of o_m in the first layer", subtitle, named().collect())),
        ],
    })
}
