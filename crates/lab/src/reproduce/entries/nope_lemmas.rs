//! The constants of the positions paper, and their range of validity.

use regard_kernels::Mechanism;
use regard_report::{Column, Format, Table};
use regard_tasks::Failure;

use super::nope::{lines, measured, over, said, setting};
use crate::{
    probe::{
        Decoder, Estimate, Measured, Quantity, Replicates, Setting, Statistic, channel_table, cumulative_chart,
        cumulative_lines, lemma_table,
    },
    reproduce::{Clause, Entry, Finding, Paper, Scale, Setup, Verdict, Workbench, confidence},
};

pub const LEMMAS: Entry = Entry {
    name: "nope-lemmas",
    paper: Paper::Nope,
    figures: "lemmas 1, 2 and 4",
    claim: "Before training, elements of queries, keys and values have variance d s^2, and products q.k the \
            corrected d^3 s^4 / H (not the printed d^3 s^4 / H^2), each within 5 %; the variance of each channel \
            after the norm follows lemma 4 (measured against predicted, slope 1 within 0.15 at positions 1 to \
            16, where channels differ most).",
    data: "none",
    models: &[],
    paper_setting: "Derived for a frozen random decoder: width 768, 12 heads, 512 positions, deviation 0.02.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "Width 256, 4 heads, 256 positions, deviation 0.02; 8 decoders of 4 sequences, 256 for lemma 4.",
            differences: &["width 256 for 768", "4 heads for 12", "256 positions for 512"],
            minutes: 0.1,
        },
        Setup {
            scale: Scale::Paper,
            setting: "Width 768, 12 heads, 512 positions, deviation 0.02; 8 decoders of 4 sequences, 256 for lemma 4.",
            differences: &[],
            minutes: 1.5,
        },
    ],
    run: lemmas,
};

pub const DEVIATIONS: Entry = Entry {
    name: "nope-deviations",
    paper: Paper::Nope,
    figures: "figures 3 and 5",
    claim: "The law requires small weights. At standard deviations 0.02 and 0.002 the last query attends almost \
            uniformly (its cumulative attention stays within 0.02 of a straight line) and the variance falls as \
            1/m (slope -1 within 0.05); at 0.2 the slope is above -0.5.",
    data: "none",
    models: &[],
    paper_setting: "First layer of a frozen random decoder: width 768, 12 heads, 512 positions.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "Width 256, 4 heads, 256 positions; 8 decoders of 4 sequences.",
            differences: &["width 256 for 768", "4 heads for 12", "256 positions for 512"],
            minutes: 0.1,
        },
        Setup {
            scale: Scale::Paper,
            setting: "Width 768, 12 heads, 512 positions; 8 decoders of 4 sequences.",
            differences: &[],
            minutes: 0.5,
        },
    ],
    run: deviations,
};

/// One layer of the decoders that the other entries measure.
fn first_layer(scale: Scale, label: String, deviation: f64) -> Setting {
    let whole = setting(scale, Mechanism::Softmax, true, Vec::new());
    Setting { label, decoder: Decoder { layers: 1, deviation, ..whole.decoder }, ..whole }
}

fn lemmas(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let measured = measured(bench, scale, &[first_layer(scale, "s = 0.02".into(), 0.02)], 256)?;
    let one = &measured[0];
    let theory = one.setting.lemmas();
    let of = |quantity, constant: f64| one.replicates.overall(1, quantity).map(|own| own.times(constant.recip()));
    let projections =
        [Quantity::Query, Quantity::Key, Quantity::Value].map(|quantity| of(quantity, theory.projection().corrected));
    let (corrected, printed) =
        (of(Quantity::Logit, theory.logit().corrected), of(Quantity::Logit, theory.logit().printed));
    let told: Vec<_> = one.channels.iter().filter(|check| check.position <= 16).collect();
    let sure = confidence(5 + told.len());
    let over = |estimate| over(estimate, "decoders", sure);
    let named = ["queries", "keys", "values"].into_iter().zip(projections);
    let mut clauses: Vec<Clause> = named
        .map(|(name, ratio)| {
            Clause::paper(format!("Elements of {name} have variance d s^2.")).within(over(ratio), 1.0, 0.05)
        })
        .collect();
    clauses.push(Clause::paper("Products have variance d^3 s^4 / H.").within(over(corrected), 1.0, 0.05));
    let print = Clause::paper("").within(over(printed), 1.0, 0.05);
    let opposite = match print.verdict {
        Verdict::Holds => Verdict::DoesNotHold,
        Verdict::DoesNotHold => Verdict::Holds,
        Verdict::NotDecided => Verdict::NotDecided,
    };
    clauses.push(Clause { text: "They do not have the printed d^3 s^4 / H^2.".into(), ..print }.judged(opposite));
    clauses.extend(told.iter().map(|check| {
        let text = format!("Channels have the variances of lemma 4 at position {}.", check.position);
        Clause::paper(text).within(over(Some(check.slope)), 1.0, 0.15)
    }));
    let slopes: Vec<String> =
        told.iter().map(|check| format!("{} at position {}", said(Some(check.slope)), check.position)).collect();
    let [query, key, value] = projections.map(said);
    Ok(Finding {
        clauses,
        statement: format!(
            "Measured over predicted: queries {query}, keys {key}, values {value}, products {} of the corrected constant and {} of the \
             printed one. Lemma 4, slope {}.",
            said(corrected),
            said(printed),
            slopes.join(", "),
        ),
        tables: [Some(lemma_table(&measured)), channel_table(&measured)].into_iter().flatten().collect(),
        charts: Vec::new(),
    })
}

/// Maximum deviation of cumulative attention from a straight line, with its interval.
fn unevenness(replicates: &Replicates) -> Option<Estimate> {
    let curve = replicates.curve(1, Quantity::Cumulative, Statistic::Mean)?;
    let count = curve.points.len() as f64;
    let off = curve.points.iter().map(|(c, own)| Estimate { mean: (own.mean - *c as f64 / count).abs(), ..*own });
    off.max_by(|one, other| one.mean.total_cmp(&other.mean))
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
    .note("Over 8 decoders, with half the width of the 95 % interval. Even: cumulative attention of the last query on a straight line.");
    let mut clauses = Vec::new();
    let over = |estimate| over(estimate, "decoders", confidence(5));
    let mut sentences = Vec::new();
    for one in &measured {
        let (slope, uneven) = (slope(one), unevenness(&one.replicates));
        let logits = one.setting.lemmas().logit().corrected;
        table.push(vec![one.setting.label.as_str().into(), logits.into(), slope.into(), uneven.into()]);
        if one.setting.decoder.deviation < 0.1 {
            let label = &one.setting.label;
            clauses.push(Clause::paper(format!("The slope at {label} is -1.")).within(over(slope), -1.0, 0.05));
            clauses.push(Clause::paper(format!("Attention at {label} is even.")).below(over(uneven), 0.02));
        } else {
            clauses.push(Clause::paper("The slope at s = 0.2 is above -0.5.").above(over(slope), -0.5));
        }
        sentences.push(format!("{}: slope {}, {} from even", one.setting.label, said(slope), said(uneven)));
    }
    let subtitle = "Mean over 8 random decoders, band: its 95 % interval";
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
