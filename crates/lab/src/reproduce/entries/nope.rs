//! The position signal of decoders without positional embeddings.

use regard_kernels::{Mechanism, mechanism::Position};
use regard_nn::attention::AttentionConfig;
use regard_report::{Axis, Chart, Column, Data, Format, Scale as Ticks, Series, Table};
use regard_tasks::Failure;

use crate::{
    probe::{
        Classifier, Decoder, Distribution, Estimate, Measured, ModelPlan, Plan, Quantity, Replicates, Setting,
        Statistic, measure, measure_model,
    },
    reproduce::{self, Clause, Entry, Finding, Paper, Scale, Setup, Workbench, confidence},
};

const PAPER: &str =
    "A frozen random decoder: width 768, 12 heads, 12 layers, 512 positions, deviation 0.02; random input vectors.";
const FROZEN: &[Setup] = &[
    Setup {
        scale: Scale::Quick,
        setting: "Width 256, 4 heads, 6 layers, 256 positions, deviation 0.02; 8 decoders of 4 sequences.",
        differences: &["width 256 for 768", "4 heads for 12", "6 layers for 12", "256 positions for 512"],
        minutes: 0.1,
    },
    Setup {
        scale: Scale::Paper,
        setting: "Width 768, 12 heads, 12 layers, 512 positions, deviation 0.02; 8 decoders of 4 sequences.",
        differences: &[],
        minutes: 2.5,
    },
];

pub const VARIANCE: Entry = Entry {
    name: "nope-variance",
    paper: Paper::Nope,
    figures: "figure 4, lemma 3",
    claim: "In the first layer, the variance of the output of causal attention falls as 1/m with the position m \
            (log-log slope -1 within 0.05); it falls with the position in every layer; under bidirectional \
            attention it has no slope (within 0.05).",
    data: "none",
    models: &[],
    paper_setting: PAPER,
    setups: FROZEN,
    run: variance,
};

pub const PROBE: Entry = Entry {
    name: "nope-probe",
    paper: Paper::Nope,
    figures: "figure 2",
    claim: "A classifier can read positions from the frozen states: after one layer its mean absolute error is \
            below that of the best blind guess, and after the last layer it is lower than after the first.",
    data: "none",
    models: &[],
    paper_setting: "A frozen random decoder: width 768, 12 heads, 12 layers, 512 positions; two-layer classifier, 5,000 updates of 32 \
                    sequences by Adam 1e-3.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "Width 256, 4 heads, 6 layers, 256 positions; two-layer classifier, 1,000 updates of 32 sequences by Adam 1e-3.",
            differences: &[
                "width 256 for 768",
                "4 heads for 12",
                "6 layers for 12",
                "256 positions for 512",
                "1,000 updates for 5,000",
            ],
            minutes: 1.0,
        },
        Setup {
            scale: Scale::Paper,
            setting: "Width 768, 12 heads, 12 layers, 512 positions; two-layer classifier, 5,000 updates of 32 sequences by Adam 1e-3.",
            differences: &[],
            minutes: 40.0,
        },
    ],
    run: probe,
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
            setting: "Frozen random decoders: width 256, 4 heads, 6 layers, 256 positions, deviation 0.02; 8 decoders of 4 sequences.",
            differences: &[
                "other mechanisms than softmax",
                "width 256 for 768",
                "6 layers for 12",
                "256 positions for 512",
            ],
            minutes: 0.4,
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

pub const TRAINED: Entry = Entry {
    name: "nope-trained",
    paper: Paper::Nope,
    figures: "figures 6 and 7",
    claim: "In a trained decoder without positional embeddings, the variance of the first layer's attention \
            output still falls with the position, and a classifier recovers positions from the last layer's \
            states with less than half the error of a blind guess.",
    data: "embedded (tinyshakespeare)",
    models: &[],
    paper_setting: "A language model of 162 million parameters trained on a large web text: 12 layers, 12 heads of 64, 512 positions.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "Characters, 4 layers of width 64, context 128, 400 updates of 16; 64 sequences in 8 groups.",
            differences: &["characters of one text", "4 layers of width 64", "context 128 for 512", "400 updates"],
            minutes: 2.0,
        },
        Setup {
            scale: Scale::Here,
            setting: "Characters, 4 layers of width 128, context 128, 2,000 updates of 16; 64 sequences in 8 groups.",
            differences: &["characters of one text", "4 layers of width 128", "context 128 for 512", "2,000 updates"],
            minutes: 60.0,
        },
    ],
    run: trained,
};

/// Width, heads, layers, positions, updates of the classifier.
fn sizes(scale: Scale) -> [usize; 5] {
    match scale {
        Scale::Quick => [256, 4, 6, 256, 1000],
        Scale::Here | Scale::Paper => [768, 12, 12, 512, 5000],
    }
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
        decoders: 8,
        sequences: 4,
        channel_sequences,
        classifier: &classifier(updates),
        double: false,
    };
    Ok(measure(&plan, &|_| (), &bench.stop)?)
}

/// Uses enough sequences that hardly any vector is seen twice: otherwise it memorises them.
fn classifier(updates: usize) -> Classifier {
    Classifier { updates, batch: 32, positions: 32, rate: 1e-3, hidden: 0, sequences: 2048, held: 32, seed: 1 }
}

/// The estimate over decoders, or groups of sequences, that a clause is decided by.
pub(super) fn over(estimate: Option<Estimate>, units: &str, confidence: f64) -> reproduce::Estimate {
    let (value, error, count) = estimate.map_or((f64::NAN, None, 0), |own| (own.mean, own.standard_error(), own.count));
    reproduce::Estimate::of_error(value, error, count.saturating_sub(1), confidence, units)
}

pub(super) fn said(estimate: Option<Estimate>) -> String {
    let of = |estimate: Estimate| format!("{:.3} \u{b1} {:.3}", estimate.mean, estimate.half.unwrap_or(f64::NAN));
    estimate.map_or_else(|| "not measured".into(), of)
}

/// Slopes of log variance against log position, one row per layer.
fn slopes(of: &[(&str, &Replicates, usize)]) -> Table {
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
    let settings = [true, false].map(|causal| setting(scale, Mechanism::Softmax, causal, Vec::new()));
    let measured = measured(bench, scale, &settings, 0)?;
    let [causal, both_ways] = [&measured[0].replicates, &measured[1].replicates];
    let [_, _, layers, ..] = sizes(scale);
    let slope = |replicates: &Replicates, layer| replicates.log_slope(layer, Quantity::Attention);
    let first = slope(causal, 1);
    let sure = confidence(layers + 1);
    let over = |estimate| over(estimate, "decoders", sure);
    let mut clauses = vec![
        Clause::paper("The slope in the first layer is -1.").within(over(first), -1.0, 0.05),
        Clause::paper("Both ways, the slope in the first layer is 0.").within(over(slope(both_ways, 1)), 0.0, 0.05),
    ];
    clauses.extend((2..=layers).map(|layer| {
        Clause::paper(format!("The variance falls in layer {layer}.")).below(over(slope(causal, layer)), 0.0)
    }));
    let by_layer = (1..=layers).map(|layer| (format!("layer {layer}"), causal, layer)).collect();
    let ways = vec![("causal".into(), causal, 1), ("both ways".into(), both_ways, 1)];
    let subtitle = "Mean over 8 random decoders, band: its 95 % interval";
    Ok(Finding {
        clauses,
        statement: format!(
            "Slope in the first layer {}, in the last {}; {} both ways.",
            said(first),
            said(slope(causal, layers)),
            said(slope(both_ways, 1))
        ),
        tables: vec![slopes(&[("causal", causal, layers), ("both ways", both_ways, layers)])],
        charts: vec![
            ("variance-by-layer".into(), lines("Variance of o_m by position", subtitle, by_layer)),
            ("causal-and-both-ways".into(), lines("Variance of o_m in the first layer", subtitle, ways)),
        ],
    })
}

fn probe(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let [_, _, layers, _, updates] = sizes(scale);
    let classified = [0, 1, 2, 4, 8, 12].into_iter().filter(|layer| *layer <= layers).collect();
    let one = setting(scale, Mechanism::Softmax, true, classified);
    let plan = Plan {
        settings: &[one],
        decoders: 1,
        sequences: 1,
        channel_sequences: 0,
        classifier: &classifier(updates),
        double: false,
    };
    let measured = measure(&plan, &|label| bench.note(label), &bench.stop)?;
    let accuracies = &measured[0].accuracies;
    let columns = vec![
        Column::number("layers", Format::Plain),
        Column::number("mean absolute error", Format::Fixed(2)).unit("tokens"),
        Column::number("blind guess", Format::Fixed(2)).unit("tokens"),
        Column::number("told exactly", Format::Percent(2)),
    ];
    let mut table =
        Table::new("Error of the classifier of positions", columns).note("On 32 sequences that it has not seen.");
    for (layers, accuracy) in accuracies {
        table.push(vec![(*layers).into(), accuracy.error.into(), accuracy.chance.into(), accuracy.exact.into()]);
    }
    let at = |layer: usize| accuracies.iter().find(|(layers, _)| *layers == layer).map(|(_, accuracy)| accuracy);
    let (Some(first), Some((deepest, last))) = (at(1), accuracies.last()) else {
        return Err(Failure::usage("the classifier gave nothing"));
    };
    let series =
        Series::new("classifier", 0, accuracies.iter().map(|(layer, accuracy)| (*layer as f64, accuracy.error)));
    let chart = Chart::new("Error of the classifier by depth", "One decoder", Data::Lines(vec![series]))
        .axes(Axis::new("layers", ""), Axis::new("mean absolute error", "tokens"))
        .rule(first.chance, "blind guess");
    Ok(Finding {
        clauses: vec![
            Clause::paper("After one layer the error is below that of a blind guess.")
                .exactly(first.error < first.chance),
            Clause::paper("After the last layer it is lower than after the first.").exactly(last.error < first.error),
        ],
        statement: format!(
            "Error {:.1} tokens after one layer and {:.1} after {deepest}; a blind guess has {:.1}.",
            first.error, last.error, first.chance
        ),
        tables: vec![table],
        charts: vec![("error-by-depth".into(), chart)],
    })
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
        charts: vec![(
            "variance".into(),
            lines("Variance of o_m in the first layer", "Mean over 8 random decoders, band: its 95 % interval", curves),
        )],
    })
}

fn trained(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let (width, steps) = match scale {
        Scale::Quick => (64, 400),
        Scale::Here | Scale::Paper => (128, 2000),
    };
    let recipe = format!(
        "preset = \"char-lm\"\n\n[model]\nwidth = {width}\nfeed_forward = {}\n\n[train]\nsteps = {steps}\nevaluate_every = {steps}\n\
         checkpoint_every = {steps}\n\n[train.schedule]\nwarmup = {}\n\n[compare]\nmechanisms = [\"softmax:position=none\", \
         \"softmax:position=rotary\"]\n",
        4 * width,
        steps / 10,
    );
    let compared = bench.train(TRAINED.name, &recipe)?;
    let classifier = Classifier { updates: 1000, ..classifier(1000) };
    let mut models = Vec::new();
    for (name, runs) in ["no positions", "rotary"].into_iter().zip(compared.candidates()) {
        let (model, data) = bench.open(&compared, &runs[0])?;
        let plan = ModelPlan { groups: 8, sequences: 8, classifier: &classifier };
        models.push((name, measure_model(&model, &data, &plan, &bench.stop)?, runs[0].test_loss));
    }
    let columns = vec![
        Column::text("model"),
        Column::number("layers", Format::Plain),
        Column::number("mean absolute error", Format::Fixed(2)).unit("tokens"),
        Column::number("blind guess", Format::Fixed(2)).unit("tokens"),
    ];
    let mut errors = Table::new("Error of the classifier of positions", columns);
    for (name, measured, _) in &models {
        for (layer, accuracy) in &measured.accuracies {
            errors.push(vec![(*name).into(), (*layer).into(), accuracy.error.into(), accuracy.chance.into()]);
        }
    }
    let (_, without, loss) = &models[0];
    let slope = without.replicates.log_slope(1, Quantity::Attention);
    let (_, last) = without.accuracies.last().ok_or_else(|| Failure::usage("the classifier gave nothing"))?;
    let rows: Vec<(&str, &Replicates, usize)> =
        models.iter().map(|(name, measured, _)| (*name, &measured.replicates, measured.layers)).collect();
    let curves = |at: usize| {
        let (_, measured, _) = &models[at];
        (1..=measured.layers).map(|layer| (format!("layer {layer}"), &measured.replicates, layer)).collect()
    };
    let subtitle = "Mean over 8 groups of sequences, band: its 95 % interval";
    Ok(Finding {
        clauses: vec![
            Clause::paper("The variance of the first layer's attention falls with the position.")
                .below(over(slope, "groups of sequences", confidence(2)), 0.0),
            Clause::paper("The last layer's states tell positions with less than half the error of a blind guess.")
                .exactly(last.error < last.chance / 2.0),
        ],
        statement: format!(
            "Without positions (test loss {loss:.3} nats a character): slope in the first layer {}, error after the last {:.1} tokens \
             against {:.1} of a blind guess; rotary positions: slope {}.",
            said(slope),
            last.error,
            last.chance,
            said(models[1].1.replicates.log_slope(1, Quantity::Attention)),
        ),
        tables: vec![slopes(&rows), errors],
        charts: vec![
            ("no-positions".into(), lines("Variance of o_m without positions", subtitle, curves(0))),
            ("rotary".into(), lines("Variance of o_m with rotary positions", subtitle, curves(1))),
        ],
    })
}
