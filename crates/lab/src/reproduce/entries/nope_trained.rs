//! Trained decoders without positional embeddings: what is left of the theory.

use regard_report::{Cell, Chart, Column, Format, Sample, Table};
use regard_tasks::Failure;

use super::{
    language::{self, CHARACTERS},
    nope::{classifier, lines},
    nope_deviations::unevenness,
};
use crate::{
    probe::{
        Classifier, MeasuredModel, ModelPlan, Quantity, Replicates, cumulative_chart, cumulative_lines, measure_model,
    },
    reproduce::{Clause, Entry, Estimate, Finding, Paper, Scale, Setup, Workbench, confidence},
};

pub const TRAINED: Entry = Entry {
    name: "nope-trained",
    paper: Paper::Nope,
    figures: "figures 6 and 7",
    claim: "In a trained decoder without positional embeddings the lowest layer is very similar to the theory: its last query attends evenly, and \
            the variance of its output falls as 1/m. Higher layers deviate more.",
    data: "embedded (tinyshakespeare)",
    models: &[],
    paper_setting: "One language model of 162 million parameters trained on OpenWebText2: 12 layers, 12 heads of 64, 512 positions; 50,000 updates of 32, \
                    Adam at 6e-4, bfloat16.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: CHARACTERS[0],
            differences: &[TEXT, SMALL, "context 128 for 512", "400 updates of 16 at 1e-3 in 32 bits", SIMILAR],
            minutes: 8.0,
        },
        Setup {
            scale: Scale::Here,
            setting: CHARACTERS[1],
            differences: &[TEXT, SMALL, "context 128 for 512", "2,000 updates of 16 at 1e-3 in 32 bits", SIMILAR],
            minutes: 60.0,
        },
    ],
    run: trained,
};

const TEXT: &str = "characters of one text";
const SMALL: &str = "4 layers of 4 heads of 16, width 64, for 12 of 12 of 64, width 768";
const SIMILAR: &str = "very similar is a slope of -1 within 0.25, with and without what all sequences have in common (the paper does not say which), and \
                       cumulative attention of a head within 0.1 of a straight line, in the mean over heads; 64 test sequences of each model, in 8 groups";

/// Farthest that counts as similar.
const SLOPE: f64 = 0.25;
const EVEN: f64 = 0.1;

/// What is judged of one layer of a model: means over groups of sequences.
#[derive(Clone, Copy, Debug)]
struct LayerOf {
    /// Slope of log variance, of channels and sequences together.
    slope: f64,
    /// The same without the part common to all sequences, as the covariance of lemma 3 has it.
    over_sequences: f64,
    /// Farthest from even cumulative attention.
    uneven: f64,
}

impl LayerOf {
    /// Distance from the theory's slope, by the reading that is farther.
    fn off(&self) -> f64 {
        (self.slope + 1.0).abs().max((self.over_sequences + 1.0).abs())
    }
}

fn layers(measured: &MeasuredModel) -> Vec<LayerOf> {
    let slope = |layer, quantity| measured.replicates.log_slope(layer, quantity).map_or(f64::NAN, |own| own.mean);
    let of = |layer| LayerOf {
        slope: slope(layer, Quantity::Attention),
        over_sequences: slope(layer, Quantity::OverSequences),
        uneven: unevenness(&measured.replicates, layer).map_or(f64::NAN, |own| own.mean),
    };
    (1..=measured.layers).map(of).collect()
}

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    Sample::of(&values.into_iter().collect::<Vec<_>>()).mean
}

/// Verdicts on models, one a seed, each given by its layers.
fn clauses(models: &[Vec<LayerOf>]) -> Vec<Clause> {
    let over = |value: &dyn Fn(&[LayerOf]) -> f64| {
        let values: Vec<f64> = models.iter().map(|own| value(own)).collect();
        Estimate::mean(&values, confidence(5), "seeds")
    };
    let higher = |own: &[LayerOf], of: fn(&LayerOf) -> f64| mean(own[1..].iter().map(of)) - of(&own[0]);
    let smallest = |own: &[LayerOf]| own[..own.len() / 2].iter().map(LayerOf::off).fold(f64::INFINITY, f64::min);
    vec![
        Clause::paper(
            "Figure 7: in the lowest layer the slope of the variance is -1, with what all sequences have in common.",
        )
        .within(over(&|own| own[0].slope), -1.0, SLOPE),
        Clause::paper(
            "Figure 7: in the lowest layer the slope of the variance is -1, without what all sequences have in common.",
        )
        .within(over(&|own| own[0].over_sequences), -1.0, SLOPE),
        Clause::paper("Figure 6: in the lowest layer the last query attends evenly: farthest from a straight line.")
            .below(over(&|own| own[0].uneven), EVEN),
        Clause::paper("Figure 7: higher layers are farther from the slope of -1 than the lowest.")
            .above(over(&|own| higher(own, LayerOf::off)), 0.0),
        Clause::paper("Figure 6: higher layers are farther from even attention than the lowest.")
            .above(over(&|own| higher(own, |layer| layer.uneven)), 0.0),
        Clause::ours("Some layer of the lower half has a slope of -1 by both readings: distance of the nearest.")
            .below(over(&smallest), SLOPE),
        Clause::ours("The variance of the lowest layer falls with the position.").below(over(&|own| own[0].slope), 0.0),
    ]
}

fn trained(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let compared = language::characters(bench, scale)?;
    let classifier = Classifier { updates: 1000, sequences: 512, ..classifier(1000) };
    let mut columns = vec![Column::text("model"), Column::number("layer", Format::Plain)];
    columns.extend(
        ["slope", "slope over sequences", "farthest from even"].map(|name| Column::number(name, Format::Fixed(3))),
    );
    columns.push(Column::number("classifier's error", Format::Fixed(2)).unit("tokens"));
    let mut table = Table::new("Trained decoders by layer", columns)
        .note("Slope of log variance of o_m over log m, with and without what all sequences have in common. Mean and deviation over seeds.");
    let mut kinds = Vec::new();
    for (name, runs) in ["no positions", "rotary"].into_iter().zip(compared.candidates()) {
        let mut models: Vec<MeasuredModel> = Vec::new();
        for run in runs {
            bench.note(&format!("{name}, seed {}", run.seed));
            let (model, data) = bench.open(&compared, run)?;
            let plan = ModelPlan { groups: 8, sequences: 8, classifier: &classifier };
            models.push(measure_model(&model, &data, &plan, &bench.stop)?);
        }
        let all: Vec<Vec<LayerOf>> = models.iter().map(layers).collect();
        for layer in 0..models.first().map_or(0, |own| own.layers) {
            let of = |value: fn(&LayerOf) -> f64| {
                Cell::estimate(&all.iter().map(|own| value(&own[layer])).collect::<Vec<_>>())
            };
            let errors: Vec<f64> = models.iter().map(|own| own.accuracies[layer + 1].1.error).collect();
            table.push(vec![
                name.into(),
                (layer + 1).into(),
                of(|own| own.slope),
                of(|own| own.over_sequences),
                of(|own| own.uneven),
                Cell::estimate(&errors),
            ]);
        }
        let loss = mean(runs.iter().map(|run| run.test_loss));
        kinds.push((models, all, loss));
    }
    let [(without, layers, loss), (_, with, loss_with)] = &kinds[..] else {
        return Err(Failure::usage("the comparison has not two kinds of models"));
    };
    let mut clauses = clauses(layers);
    let last =
        |own: &MeasuredModel| own.accuracies.last().map_or(f64::NAN, |(_, accuracy)| accuracy.error / accuracy.chance);
    let errors: Vec<f64> = without.iter().map(last).collect();
    clauses.push(
        Clause::ours("The last layer's states tell a classifier the position: error over that of a blind guess.")
            .below(Estimate::mean(&errors, confidence(5), "seeds"), 0.5),
    );
    let first = |own: &[Vec<LayerOf>], value: fn(&LayerOf) -> f64| mean(own.iter().map(|layers| value(&layers[0])));
    let statement = format!(
        "Lowest layer without positions: slope {:.3}, {:.3} without what all sequences have in common, {:.3} from even attention; with rotary \
         positions: slope {:.3}. Test loss {loss:.3} and {loss_with:.3} nats a character.",
        first(layers, |own| own.slope),
        first(layers, |own| own.over_sequences),
        first(layers, |own| own.uneven),
        first(with, |own| own.slope),
    );
    Ok(Finding { clauses, statement, tables: vec![table], charts: charts(&without[0]) })
}

/// Figures 6 and 7 of one model.
fn charts(model: &MeasuredModel) -> Vec<(String, Chart)> {
    let by_layer = || -> Vec<(String, &Replicates, usize)> {
        (1..=model.layers).map(|layer| (format!("layer {layer}"), &model.replicates, layer)).collect()
    };
    let subtitle = "One model; mean over 8 groups of sequences, band: its 95 % interval";
    vec![
        ("cumulative-attention".into(), cumulative_chart(cumulative_lines(by_layer().into_iter()), subtitle)),
        ("variance".into(), lines("Variance of o_m without positions", subtitle, by_layer())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::Verdict::{DoesNotHold, Holds};

    /// The recorded pattern, in which the second layer and not the lowest looks like the theory, refutes the strict reading;
    /// one by the theory alone in the lowest layer fulfils it.
    #[test]
    fn the_lowest_layer_decides() {
        let model = |values: &[[f64; 3]], shift: f64| -> Vec<LayerOf> {
            let of = |[slope, over_sequences, uneven]: &[f64; 3]| LayerOf {
                slope: slope + shift,
                over_sequences: over_sequences + shift,
                uneven: *uneven,
            };
            values.iter().map(of).collect()
        };
        let verdicts = |values: &[[f64; 3]]| {
            let models = [-0.002, 0.0, 0.002].map(|shift| model(values, shift));
            clauses(&models).into_iter().map(|clause| clause.verdict).collect::<Vec<_>>()
        };
        let second = verdicts(&[[-0.17, -0.22, 0.2], [-0.99, -0.6, 0.05], [-0.24, -0.13, 0.5], [-0.2, 0.09, 0.7]]);
        assert_eq!(second[..3], [DoesNotHold; 3]);
        let lowest = verdicts(&[[-0.98, -0.95, 0.02], [-0.4, -0.3, 0.2], [-0.2, -0.1, 0.5], [-0.2, 0.1, 0.7]]);
        assert_eq!(lowest[..6], [Holds; 6]);
    }
}
