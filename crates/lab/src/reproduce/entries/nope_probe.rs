//! How well a classifier tells positions from the states of decoders without positional embeddings, by depth.

use regard_kernels::Mechanism;
use regard_metrics::spearman;
use regard_report::{Axis, Cell, Chart, Column, Data, Format, Point, Sample, Series, Table};
use regard_tasks::Failure;

use super::nope::{classifier, setting, sizes};
use crate::{
    probe::{Accuracy, Classifier, Decoder, Plan, Setting, measure},
    reproduce::{Clause, Entry, Estimate, Finding, Paper, Scale, Setup, Workbench, confidence},
};

pub const PROBE: Entry = Entry {
    name: "nope-probe",
    paper: Paper::Nope,
    figures: "figure 2, section 4 (later tokens)",
    claim: "From the states of a frozen random decoder with random inputs a classifier tells positions better than a blind guess, and the better \
            the more layers there are; later positions are harder.",
    data: "none",
    models: &[],
    paper_setting: "A frozen random decoder: width 768, 12 heads, 12 layers, 512 positions; two-layer classifier, 5,000 updates of 32 sequences by \
                    Adam 1e-3.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "Width 256, 4 heads, 6 layers, 256 positions; after each layer a two-layer classifier, 1,000 updates of 32 sequences by Adam \
                      1e-3; 3 decoders.",
            differences: &[
                "width 256 for 768",
                "4 heads for 12",
                "6 layers for 12",
                "256 positions for 512",
                "1,000 updates for 5,000",
                STORED,
            ],
            minutes: 5.0,
        },
        Setup {
            scale: Scale::Here,
            setting: "Width 256, 4 heads, 12 layers, 256 positions; after each layer a two-layer classifier, 3,000 updates of 32 sequences by Adam \
                      1e-3; 5 decoders.",
            differences: &[
                "width 256 for 768",
                "4 heads for 12",
                "256 positions for 512",
                "3,000 updates for 5,000",
                STORED,
            ],
            minutes: 50.0,
        },
        Setup {
            scale: Scale::Paper,
            setting: "Width 768, 12 heads, 12 layers, 512 positions; after each layer a two-layer classifier, 5,000 updates of 32 sequences by Adam \
                      1e-3; 3 decoders.",
            differences: &[STORED, "3 decoders for one"],
            minutes: 300.0,
        },
    ],
    run: probe,
};

const STORED: &str = "2,048 stored sequences for fresh ones, 32 positions of each an update: what is learned by heart raises every error";

/// The classifier's errors after each layer, from the inputs on.
type ByLayer = Vec<(usize, Accuracy)>;

/// Decoders, layers and updates.
fn plan(scale: Scale) -> (u64, usize, usize) {
    match scale {
        Scale::Quick => (3, 6, 1000),
        Scale::Here => (5, 12, 3000),
        Scale::Paper => (3, 12, 5000),
    }
}

fn probe(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let (decoders, layers, updates) = plan(scale);
    let size = if scale == Scale::Paper { Scale::Paper } else { Scale::Quick };
    let mut measured: Vec<ByLayer> = Vec::new();
    for number in 1..=decoders {
        let whole = setting(size, Mechanism::Softmax, true, (0..=layers).collect());
        let decoder = Decoder { layers, seed: number, ..whole.decoder };
        let one = Setting { label: format!("decoder {number}"), decoder, ..whole };
        let plan = Plan {
            settings: &[one],
            decoders: 1,
            sequences: 1,
            channel_sequences: 0,
            classifier: &Classifier { seed: number, ..classifier(updates) },
            double: false,
        };
        let layer = std::cell::Cell::new(0);
        let watch = |label: &str| {
            bench.note(&format!("{label}, step {}", layer.get() + 1));
            layer.set(layer.get() + 1);
        };
        measured.extend(measure(&plan, &watch, &bench.stop)?.into_iter().map(|own| own.accuracies));
    }
    Ok(judged(&measured, sizes(size)[3]))
}

/// Errors after at least one layer, over that of a blind guess.
fn shares(own: &ByLayer) -> Vec<f64> {
    own.iter().filter(|(layer, _)| *layer > 0).map(|(_, accuracy)| accuracy.error / accuracy.chance).collect()
}

fn largest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::NEG_INFINITY, f64::max)
}

/// The error at the last quarter of the positions less that at the first, in shares of a blind guess, after the last layer.
fn later(own: &ByLayer) -> f64 {
    let Some((_, last)) = own.last() else { return f64::NAN };
    let quarter = last.by_position.len() / 4;
    let mean = |part: &[f64]| Sample::of(part).mean;
    let (first, end) = (mean(&last.by_position[..quarter]), mean(&last.by_position[3 * quarter..]));
    (end - first) / last.chance
}

fn judged(measured: &[ByLayer], length: usize) -> Finding {
    let over = |value: &dyn Fn(&ByLayer) -> f64| {
        let values: Vec<f64> = measured.iter().map(value).collect();
        Estimate::mean(&values, confidence(3), "decoders")
    };
    let rank = |own: &ByLayer| {
        let errors = shares(own);
        let depths: Vec<f64> = (1..=errors.len()).map(|layer| layer as f64).collect();
        spearman(&depths, &errors)
    };
    let clauses = vec![
        Clause::paper(
            "After each layer the error is below that of a blind guess: the largest, over that of the guess.",
        )
        .below(over(&|own| largest(shares(own).into_iter())), 1.0),
        Clause::paper("The error falls with depth: rank correlation.").below(over(&rank), 0.0),
        Clause::ours("Every further layer lowers the error: the largest rise, in shares of a blind guess.")
            .below(over(&|own| largest(shares(own).windows(2).map(|pair| pair[1] - pair[0]))), 0.0),
        Clause::paper(
            "Later positions are harder: error of the last quarter less that of the first, in shares of a blind guess.",
        )
        .above(over(&later), 0.0),
        Clause::ours("The inputs themselves tell nothing: error over that of a blind guess.")
            .above(over(&|own| own.first().map_or(f64::NAN, |(_, accuracy)| accuracy.error / accuracy.chance)), 1.0),
    ];
    let columns = vec![
        Column::number("layers", Format::Plain),
        Column::number("mean absolute error", Format::Fixed(2)).unit("tokens"),
        Column::number("of the median", Format::Fixed(2)).unit("tokens"),
        Column::number("blind guess", Format::Fixed(2)).unit("tokens"),
    ];
    let mut table = Table::new("Error of the classifier of positions", columns).note(format!(
        "Mean and deviation over {} decoders of {length} positions, each with a classifier of its own.",
        measured.len()
    ));
    let layers = measured.iter().map(Vec::len).min().unwrap_or(0);
    let mut points = Vec::new();
    let mut chance = f64::NAN;
    for at in 0..layers {
        let of = |value: fn(&Accuracy) -> f64| measured.iter().map(|own| value(&own[at].1)).collect::<Vec<f64>>();
        let errors = of(|own| own.error);
        chance = measured[0][at].1.chance;
        let layer = measured[0][at].0;
        let sample = Sample::of(&errors);
        points.push(Point::deviating(layer as f64, sample.mean, sample.deviation().unwrap_or(0.0)));
        let median = Cell::estimate(&of(|own| own.median_error));
        table.push(vec![layer.into(), Cell::estimate(&errors), median, chance.into()]);
    }
    let mean = |at: usize| Sample::of(&measured.iter().map(|own| own[at].1.error).collect::<Vec<_>>()).mean;
    let statement = format!(
        "Mean error {:.1} tokens after one layer, {:.1} after {}; a blind guess has {chance:.1}.",
        mean(1),
        mean(layers - 1),
        layers - 1
    );
    let series = Series { name: "classifier".into(), points, style: 0 };
    let subtitle = format!("Mean of {} decoders, band: deviation", measured.len());
    let chart = Chart::new("Error of the classifier by depth", subtitle, Data::Lines(vec![series]))
        .axes(Axis::new("layers", "").whole(), Axis::new("mean absolute error", "tokens"))
        .rule(chance, "blind guess");
    Finding { clauses, statement, tables: vec![table], charts: vec![("error-by-depth".into(), chart)] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::Verdict;

    fn accuracy(error: f64) -> Accuracy {
        let by_position = vec![error - 1.0, error, error, error + 1.0];
        Accuracy { error, chance: 10.0, median_error: error, exact: 0.0, by_position, loss: 0.0 }
    }

    fn decoder(errors: &[f64]) -> ByLayer {
        errors.iter().enumerate().map(|(layer, error)| (layer, accuracy(*error))).collect()
    }

    /// Decoders whose errors fall from layer to layer fulfil every clause; a rise at the end refutes the strict one alone,
    /// which the paper does not have.
    #[test]
    fn a_rise_refutes_only_the_strict_reading() {
        let near = |errors: &[f64]| {
            let moved = |by: f64| decoder(&errors.iter().map(|error| error + by).collect::<Vec<_>>());
            [0.0, 0.01, -0.01].map(moved)
        };
        let verdicts =
            |errors: &[f64]| judged(&near(errors), 4).clauses.into_iter().map(|own| own.verdict).collect::<Vec<_>>();
        assert!(verdicts(&[11.0, 8.0, 7.0, 6.0, 5.0]).iter().all(|own| *own == Verdict::Holds));
        let rising = verdicts(&[11.0, 8.0, 7.0, 6.0, 6.5]);
        assert_eq!(rising[..3], [Verdict::Holds, Verdict::Holds, Verdict::DoesNotHold]);
        assert_eq!(judged(&near(&[11.0, 8.0, 7.0, 6.0, 6.5]), 4).verdict(), Some(Verdict::Holds));
    }
}
