//! The position signal of decoders without positional embeddings.

use regard_kernels::{Mechanism, mechanism::Position};
use regard_nn::attention::AttentionConfig;
use regard_report::{Axis, Chart, Column, Data, Format, Scale as Ticks, Series, Table};
use regard_tasks::Failure;

use crate::{
    probe::{
        Classifier, Decoder, Distribution, Estimate, Measured, Plan, Quantity, Replicates, Setting, Statistic, measure,
    },
    reproduce::{self, Clause, Entry, Finding, Paper, Scale, Setup, Workbench, confidence},
};

const PAPER: &str =
    "A frozen random decoder: width 768, 12 heads, 12 layers, 512 positions, deviation 0.02; random input vectors.";
const FROZEN: &[Setup] = &[
    Setup {
        scale: Scale::Quick,
        setting: "Width 256, 4 heads, 6 layers, 256 positions, deviation 0.02, attention as it is and, for what assumes it, even; 48 decoders of 4 \
                  sequences.",
        differences: &["width 256 for 768", "4 heads for 12", "6 layers for 12", "256 positions for 512", DIAGONAL],
        minutes: 0.7,
    },
    Setup {
        scale: Scale::Paper,
        setting: "Width 768, 12 heads, 12 layers, 512 positions, deviation 0.02, attention as it is and, for what assumes it, even; 16 decoders of 4 \
                  sequences.",
        differences: &[DIAGONAL],
        minutes: 5.0,
    },
];
/// Lemmas 1 and 3 have whole covariances.
pub(super) const DIAGONAL: &str = "of covariances the diagonal";

pub const VARIANCE: Entry = Entry {
    name: "nope-variance",
    paper: Paper::Nope,
    figures: "figure 4, lemma 3, section 3.4 (after the residual), section 4 (why masked models cannot converge)",
    claim: "In the first layer, the output of causal attention has the variance d^2 s^4 / m at position m if attention is even, so that it tells the \
            position; with the residual s^2 more; without the causal mask d^2 s^4 / L everywhere.",
    data: "none",
    models: &[],
    paper_setting: PAPER,
    setups: FROZEN,
    run: variance,
};

pub const MECHANISMS: Entry = Entry {
    name: "nope-mechanisms",
    paper: Paper::Nope,
    figures: "beyond the paper: other causal mechanisms",
    claim: "The Gaussian kernel, mixtures of Gaussian keys, linear attention and random features reveal the \
            position as softmax does: the variance in the first layer falls with a slope of -1 within 0.1.",
    data: "none",
    models: &[],
    paper_setting: "Softmax attention alone.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "Frozen random decoders: width 256, 4 heads, 6 layers, 256 positions, deviation 0.02; 48 decoders of 4 sequences.",
            differences: &[
                "other mechanisms than softmax",
                "width 256 for 768",
                "6 layers for 12",
                "256 positions for 512",
            ],
            minutes: 2.5,
        },
        Setup {
            scale: Scale::Here,
            setting: "Frozen random decoders: width 768, 12 heads, 12 layers, 512 positions, deviation 0.02; 8 decoders of 4 sequences.",
            differences: &["other mechanisms than softmax"],
            minutes: 10.0,
        },
    ],
    run: mechanisms,
};

/// Width, heads, layers, positions, updates of the classifier.
pub(super) fn sizes(scale: Scale) -> [usize; 5] {
    match scale {
        Scale::Quick => [256, 4, 6, 256, 1000],
        Scale::Here | Scale::Paper => [768, 12, 12, 512, 5000],
    }
}

/// Random decoders: of the smaller ones, which vary more, there are more.
fn decoders(scale: Scale) -> usize {
    match scale {
        Scale::Quick => 48,
        Scale::Here => 8,
        Scale::Paper => 16,
    }
}

/// What bands of charts are.
pub(super) fn subtitle(scale: Scale) -> String {
    format!("Mean over {} random decoders, band: its 95 % interval", decoders(scale))
}

pub(super) fn setting(scale: Scale, mechanism: Mechanism, causal: bool, classified: Vec<usize>) -> Setting {
    let [width, heads, layers, length, _] = sizes(scale);
    let attention =
        AttentionConfig { mechanism, heads, causal, position: Position::None, ..AttentionConfig::default() };
    let label = format!("{}{}", attention.label(), if causal { "" } else { ", both ways" });
    let (deviation, weights, uniform, seed) = (0.02, Distribution::Normal, false, 1);
    let feed_forward = 4 * width;
    let decoder = Decoder { attention, width, layers, feed_forward, length, deviation, weights, uniform, seed };
    Setting { label, decoder, classified }
}

pub(super) fn measured(
    bench: &Workbench,
    scale: Scale,
    settings: &[Setting],
    channel_sequences: usize,
) -> Result<Vec<Measured>, Failure> {
    let [.., updates] = sizes(scale);
    let plan = Plan {
        settings,
        decoders: decoders(scale),
        sequences: 4,
        channel_sequences,
        classifier: &classifier(updates),
        double: false,
    };
    Ok(measure(&plan, &|_| (), &bench.stop)?)
}

/// Uses enough sequences that hardly any vector is seen twice: otherwise it memorises them.
pub(super) fn classifier(updates: usize) -> Classifier {
    Classifier { updates, batch: 32, positions: 32, rate: 1e-3, hidden: 0, sequences: 2048, held: 32, seed: 1 }
}

/// The estimate over decoders, or groups of sequences, that a clause is decided by.
pub(super) fn over(estimate: Option<Estimate>, units: &str, confidence: f64) -> reproduce::Estimate {
    let (value, error, count) = estimate.map_or((f64::NAN, None, 0), |own| (own.mean, own.standard_error(), own.count));
    reproduce::Estimate::of_error(value, error, count as f64 - 1.0, confidence, units)
}

pub(super) fn said(estimate: Option<Estimate>) -> String {
    let of = |estimate: Estimate| format!("{:.3} \u{b1} {:.3}", estimate.mean, estimate.half.unwrap_or(f64::NAN));
    estimate.map_or_else(|| "not measured".into(), of)
}

/// Slopes of log variance against log position, one row per layer.
pub(super) fn slopes(of: &[(&str, &Replicates, usize)]) -> Table {
    let columns = vec![
        Column::text("decoder"),
        Column::number("layer", Format::Plain),
        Column::number("slope", Format::Fixed(3)),
    ];
    let mut table = Table::new("Slope of log variance of o_m against log m", columns)
        .note("Mean over decoders, or groups of sequences, with half the width of its 95 % interval.");
    for (label, replicates, layers) in of {
        for layer in 1..=*layers {
            let slope = replicates.log_slope(layer, Quantity::Attention);
            table.push(vec![(*label).into(), layer.into(), slope.into()]);
        }
    }
    table
}

/// One line per layer or decoder.
pub(super) fn lines(title: &str, subtitle: &str, of: Vec<(String, &Replicates, usize)>) -> Chart {
    let line = |(style, (name, replicates, layer)): (usize, (String, &Replicates, usize))| {
        let curve = replicates.curve(layer, Quantity::Attention, Statistic::Variance)?;
        Some(Series { name, points: curve.drawn(|_| 1.0), style })
    };
    let series = of.into_iter().enumerate().filter_map(line).collect();
    Chart::new(title, subtitle, Data::Lines(series))
        .axes(Axis::new("position", "").scale(Ticks::Log), Axis::new("variance", "").scale(Ticks::Log))
}

fn variance(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let ways = [true, false].map(|causal| setting(scale, Mechanism::Softmax, causal, Vec::new()));
    // As lemma 3 assumes.
    let even = ways.clone().map(|own| {
        let label = format!("{}, even", own.label);
        Setting { label, decoder: Decoder { layers: 1, uniform: true, ..own.decoder }, ..own }
    });
    let measured = measured(bench, scale, &[ways, even].concat(), 0)?;
    let [causal, both_ways] = [&measured[0].replicates, &measured[1].replicates];
    let [_, _, layers, length, _] = sizes(scale);
    let slope = |replicates: &Replicates, layer| replicates.log_slope(layer, Quantity::Attention);
    // Measured over predicted.
    let constant = |one: &Measured| {
        let theory = one.setting.lemmas();
        one.replicates.scaled(1, Quantity::Attention, |m| theory.output(m).recip())
    };
    let residual = |one: &Measured| {
        let theory = one.setting.lemmas();
        one.replicates.scaled(1, Quantity::Residual, |m| theory.residual(m).recip())
    };
    let first = slope(causal, 1);
    let over = |estimate| over(estimate, "decoders", confidence(7));
    let mut clauses = vec![
        Clause::paper("Lemma 3: the slope in the first layer is -1.").within(over(first), -1.0, 0.05),
        Clause::paper("Figure 4: with even attention the slope is -1.").within(
            over(slope(&measured[2].replicates, 1)),
            -1.0,
            0.05,
        ),
        Clause::paper("Figure 4: with even attention the variance is d^2 s^4 / m: measured over predicted.").within(
            over(constant(&measured[2])),
            1.0,
            0.05,
        ),
        Clause::paper(
            "Section 3.4: with even attention the variance after the residual is s^2 + d^2 s^4 / m: measured over predicted.",
        )
        .within(over(residual(&measured[2])), 1.0, 0.05),
        Clause::paper("Section 4, both ways: the slope in the first layer is 0.").within(
            over(slope(both_ways, 1)),
            0.0,
            0.05,
        ),
        Clause::paper(
            "Section 4, both ways: with even attention the variance is d^2 s^4 / L: measured over predicted.",
        )
        .within(over(constant(&measured[3])), 1.0, 0.05),
        Clause::paper(
            "Lemma 3: the last position has a smaller variance than the first in the first layer: logarithm of the ratio.",
        )
        .below(over(ends(causal, length)), 0.0),
        Clause::ours("With attention as it is the variance is d^2 s^4 / m: measured over predicted.").within(
            over(constant(&measured[0])),
            1.0,
            0.05,
        ),
    ];
    clauses.extend((2..=layers).map(|layer| {
        Clause::ours(format!("The variance falls in layer {layer}.")).below(over(slope(causal, layer)), 0.0)
    }));
    let by_layer = (1..=layers).map(|layer| (format!("layer {layer}"), causal, layer)).collect();
    let ways = vec![("causal".into(), causal, 1), ("both ways".into(), both_ways, 1)];
    let subtitle = &subtitle(scale);
    Ok(Finding {
        clauses,
        statement: format!(
            "Slope in the first layer {}, in the last {}; {} both ways. Variance over that of lemma 3: {} with attention as it is, {} with even \
             attention.",
            said(first),
            said(slope(causal, layers)),
            said(slope(both_ways, 1)),
            said(constant(&measured[0])),
            said(constant(&measured[2])),
        ),
        tables: vec![slopes(&[("causal", causal, layers), ("both ways", both_ways, layers)])],
        charts: vec![
            ("variance-by-layer".into(), lines("Variance of o_m by position", subtitle, by_layer)),
            ("causal-and-both-ways".into(), lines("Variance of o_m in the first layer", subtitle, ways)),
        ],
    })
}

/// Logarithm of the variance at the last position over that at the first, one value per replicate.
fn ends(replicates: &Replicates, length: usize) -> Option<Estimate> {
    let of = |tally: &crate::probe::Tally| {
        let curve = tally.curve(1, Quantity::Attention)?;
        Some((curve.get(length - 1)?.variance() / curve.first()?.variance()).ln())
    };
    replicates.0.iter().map(of).collect::<Option<Vec<f64>>>().map(|values| Estimate::of(&values))
}

fn mechanisms(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let all = [
        Mechanism::Softmax,
        Mechanism::Gaussian,
        Mechanism::Mgk,
        Mechanism::Linear,
        Mechanism::Mlk,
        Mechanism::Performer,
        Mechanism::Scatterbrain,
        Mechanism::Fastformer,
    ];
    let settings: Vec<Setting> = all.iter().map(|mechanism| setting(scale, *mechanism, true, Vec::new())).collect();
    let measured = measured(bench, scale, &settings, 0)?;
    let slope = |one: &Measured| one.replicates.log_slope(1, Quantity::Attention);
    // The claim does not cover Fastformer and Scatterbrain; their slopes are in the table.
    let claimed = |one: &&Measured| {
        !matches!(one.setting.decoder.attention.mechanism, Mechanism::Fastformer | Mechanism::Scatterbrain)
    };
    let said: Vec<String> = measured.iter().map(|one| format!("{} {}", one.setting.label, said(slope(one)))).collect();
    let rows: Vec<(&str, &Replicates, usize)> =
        measured.iter().map(|one| (one.setting.label.as_str(), &one.replicates, 2)).collect();
    let curves = measured.iter().map(|one| (one.setting.label.clone(), &one.replicates, 1)).collect();
    Ok(Finding {
        clauses: measured
            .iter()
            .filter(claimed)
            .map(|one| {
                let text = format!("The slope of {} is -1.", one.setting.label);
                Clause::ours(text).within(over(slope(one), "decoders", confidence(1)), -1.0, 0.1)
            })
            .collect(),
        statement: format!("Slopes in the first layer: {}.", said.join("; ")),
        tables: vec![slopes(&rows)],
        charts: vec![("variance".into(), lines("Variance of o_m in the first layer", &subtitle(scale), curves))],
    })
}
