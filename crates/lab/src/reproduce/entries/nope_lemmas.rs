//! The constants of the positions paper as printed.

use regard_kernels::Mechanism;
use regard_tasks::Failure;

use super::nope::{DIAGONAL, measured, over, said, setting};
use crate::{
    moments::Moments,
    probe::{Decoder, Estimate, Quantity, Replicates, Setting, Tally, channel_table, lemma_table},
    reproduce::{Clause, Entry, Finding, Paper, Scale, Setup, Workbench, confidence},
};

pub(super) const SMALLER: &[&str] = &["width 256 for 768", "4 heads for 12", "256 positions for 512"];

pub const LEMMAS: Entry = Entry {
    name: "nope-lemmas",
    paper: Paper::Nope,
    figures: "lemmas 1 and 4",
    claim: "Before training, elements of queries, keys and values have mean 0 and variance d s^2 (lemma 1); over inputs, the variance of each \
            channel after the norm is that of lemma 4: measured against predicted over channels, the slope is 1 at every position.",
    data: "none",
    models: &[],
    paper_setting: DERIVED,
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "Width 256, 4 heads, 256 positions, deviation 0.02; 48 decoders of 4 sequences, 256 for lemma 4.",
            differences: &["width 256 for 768", "4 heads for 12", "256 positions for 512", DIAGONAL, TOLD],
            minutes: 0.5,
        },
        Setup {
            scale: Scale::Paper,
            setting: "Width 768, 12 heads, 512 positions, deviation 0.02; 16 decoders of 4 sequences, 256 for lemma 4.",
            differences: &[DIAGONAL, TOLD],
            minutes: 3.0,
        },
    ],
    run: lemmas,
};

pub const PRODUCTS: Entry = Entry {
    name: "nope-products",
    paper: Paper::Nope,
    figures: "lemma 2, property 1",
    claim: "Products q.k have mean 0 and variance d^3 s^4 / H^2, as printed, which is d^2 s^4 / H after the scale.",
    data: "none",
    models: &[],
    paper_setting: DERIVED,
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "Width 256, 4 heads, 256 positions, deviation 0.02; 48 decoders of 4 sequences.",
            differences: SMALLER,
            minutes: 0.5,
        },
        Setup {
            scale: Scale::Paper,
            setting: "Width 768, 12 heads, 512 positions, deviation 0.02; 16 decoders of 4 sequences.",
            differences: &[],
            minutes: 0.3,
        },
    ],
    run: products,
};

const TOLD: &str = "lemma 4 at powers of two, where the lemma's variances of channels differ by 2 % or more";
const DERIVED: &str = "Derived for a frozen random decoder: width 768, 12 heads, 512 positions, deviation 0.02.";

/// One layer of the decoders that the other entries measure.
pub(super) fn first_layer(scale: Scale, label: String, deviation: f64) -> Setting {
    let whole = setting(scale, Mechanism::Softmax, true, Vec::new());
    Setting { label, decoder: Decoder { layers: 1, deviation, ..whole.decoder }, ..whole }
}

/// The mean of a quantity over its deviation, one value per decoder.
fn off_centre(replicates: &Replicates, quantity: Quantity) -> Option<Estimate> {
    let of = |tally: &Tally| {
        let whole = tally.curve(1, quantity)?.iter().copied().fold(Moments::default(), Moments::and);
        Some(whole.mean / whole.variance().sqrt())
    };
    replicates.0.iter().map(of).collect::<Option<Vec<f64>>>().map(|values| Estimate::of(&values))
}

fn lemmas(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let measured = measured(bench, scale, &[first_layer(scale, "s = 0.02".into(), 0.02)], 256)?;
    let one = &measured[0];
    let variance = one.setting.lemmas().projection().printed;
    let of = |quantity| one.replicates.overall(1, quantity).map(|own| own.times(variance.recip()));
    let sure = confidence(6 + one.channels.len());
    let over = |estimate| over(estimate, "decoders", sure);
    let mut clauses = Vec::new();
    for (name, quantity) in PROJECTIONS {
        let text = format!("Lemma 1: elements of {name} have variance d s^2: measured over predicted.");
        clauses.push(Clause::paper(text).within(over(of(quantity)), 1.0, 0.05));
        let text = format!("Lemma 1: elements of {name} have mean 0: mean over deviation.");
        clauses.push(Clause::paper(text).within(over(off_centre(&one.replicates, quantity)), 0.0, 0.05));
    }
    clauses.extend(one.channels.iter().map(|check| {
        let text = format!("Lemma 4: channels have its variances at position {}: slope.", check.position);
        Clause::paper(text).within(over(Some(check.slope)), 1.0, 0.15)
    }));
    let slopes: Vec<String> = one
        .channels
        .iter()
        .map(|check| format!("{} at position {}", said(Some(check.slope)), check.position))
        .collect();
    let [query, key, value] = PROJECTIONS.map(|(_, quantity)| said(of(quantity)));
    Ok(Finding {
        clauses,
        statement: format!(
            "Variance over d s^2: queries {query}, keys {key}, values {value}. Lemma 4, slope {}.",
            slopes.join(", "),
        ),
        tables: [Some(lemma_table(&measured)), channel_table(&measured)].into_iter().flatten().collect(),
        charts: Vec::new(),
    })
}

const PROJECTIONS: [(&str, Quantity); 3] =
    [("queries", Quantity::Query), ("keys", Quantity::Key), ("values", Quantity::Value)];

fn products(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let measured = measured(bench, scale, &[first_layer(scale, "s = 0.02".into(), 0.02)], 0)?;
    let one = &measured[0];
    let theory = one.setting.lemmas().logit();
    let of = |constant: f64| one.replicates.overall(1, Quantity::Logit).map(|own| own.times(constant.recip()));
    let (printed, corrected) = (of(theory.printed), of(theory.corrected));
    let over = |estimate| over(estimate, "decoders", confidence(2));
    let heads = one.setting.decoder.attention.heads;
    Ok(Finding {
        clauses: vec![
            Clause::paper("Products have the printed variance d^3 s^4 / H^2: measured over predicted.")
                .within(over(printed), 1.0, 0.05)
                .note(format!("{heads} heads")),
            Clause::paper("Products have mean 0: mean over deviation.").within(
                over(off_centre(&one.replicates, Quantity::Logit)),
                0.0,
                0.05,
            ),
            Clause::ours("Products have the corrected variance d^3 s^4 / H: measured over predicted.").within(
                over(corrected),
                1.0,
                0.05,
            ),
        ],
        statement: format!(
            "Measured over predicted: {} of the printed constant, which is too small by the number of heads, {heads}; {} of the corrected one. \
             The proof takes E[W W^T] for (d / H) s^2 I, which is E[W^T W]; a row of W has d elements, so that it is d s^2 I. Even attention \
             then needs s^4 far below 1 / d^2, not H / d^2.",
            said(printed),
            said(corrected),
        ),
        tables: vec![lemma_table(&measured)],
        charts: Vec::new(),
    })
}
