//! What positional embeddings are worth to masked and to causal models.

use regard_kernels::{Mechanism, random::bits};
use regard_report::{Cell, Column, Format, Sample, Table};
use regard_tasks::{
    Failure,
    data::{Split, TaskData},
};

use super::{
    language::{self, MASKED},
    nope::setting,
};
use crate::{
    compare::RunResult,
    reproduce::{Clause, Compared, Entry, Estimate, Finding, Paper, Scale, Setup, Workbench, confidence},
};

pub const ENTRY: Entry = Entry {
    name: "nope-masked",
    paper: Paper::Nope,
    figures: "sections 1, 2 and 4 (masked models)",
    claim: "Without positional embeddings a masked language model cannot learn, since nothing tells its tokens apart but what they are; a causal one \
            loses little.",
    data: "embedded (tinyshakespeare)",
    models: &[],
    paper_setting: "Reported from Haviv et al. (2022), not measured: language models and masked ones with and without positional embeddings.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: MASKED[0],
            differences: &[CAUSAL, "400 updates each", READING],
            minutes: 10.0,
        },
        Setup {
            scale: Scale::Here,
            setting: MASKED[1],
            differences: &[CAUSAL, "2,000 updates each", READING],
            minutes: 90.0,
        },
    ],
    run,
};

const CAUSAL: &str = "the causal models are those of nope-trained, on characters";
const READING: &str = "what is learned is the loss below that of the frequencies of tokens; not learning is less than a tenth of it, losing little is \
                       less than a tenth of it; positions are rotary";

/// The cross entropy of the test split's targets under the frequencies of targets in training, with one added to each.
fn frequencies(data: &TaskData) -> Result<f64, Failure> {
    let mut counts = vec![1.0; data.shape().vocabulary];
    let mut batches = data.batches(1, 32)?;
    for number in 0..200 {
        for target in batches(number).targets.iter().filter(|target| **target >= 0) {
            counts[*target as usize] += 1.0;
        }
    }
    let all: f64 = counts.iter().sum();
    let mut losses = Vec::new();
    for batch in data.split(Split::Test, 32)? {
        let real = batch.targets.iter().filter(|target| **target >= 0);
        losses.extend(real.map(|target| -(counts[*target as usize] / all).ln()));
    }
    Ok(Sample::of(&losses).mean)
}

/// A kind of model: losses of each seed without and with positions, and that of frequencies.
struct Kind {
    name: &'static str,
    without: Vec<f64>,
    with: Vec<f64>,
    frequencies: f64,
}

impl Kind {
    fn of(bench: &Workbench, name: &'static str, compared: &Compared) -> Result<Self, Failure> {
        let candidates = compared.candidates();
        let [without, with] = candidates[..] else {
            return Err(Failure::usage("the comparison has not two kinds of models"));
        };
        let losses = |runs: &[RunResult]| runs.iter().map(|run| run.test_loss).collect::<Vec<f64>>();
        let (_, data) = bench.open(compared, &without[0])?;
        Ok(Self { name, without: losses(without), with: losses(with), frequencies: frequencies(&data)? })
    }

    /// What the models with positions learn beyond frequencies; not a number where that is next to nothing, since shares of
    /// it would say nothing.
    fn learned(&self) -> Vec<f64> {
        let beyond = |with: &f64| Some(self.frequencies - with).filter(|beyond| *beyond > LEAST).unwrap_or(f64::NAN);
        self.with.iter().map(beyond).collect()
    }

    /// The share of what is learned with positions that is lost without them.
    fn lost(&self) -> Vec<f64> {
        let lost = self.without.iter().zip(&self.with).map(|(without, with)| without - with);
        lost.zip(self.learned()).map(|(lost, learned)| lost / learned).collect()
    }
}

/// Least that counts as learned, in nats a token.
const LEAST: f64 = 0.05;

/// The largest difference between the outputs of permuted inputs and the permuted outputs of a random layer, in
/// deviations of the outputs.
fn moved(scale: Scale, causal: bool) -> Result<f64, Failure> {
    let decoder =
        setting(if scale == Scale::Paper { scale } else { Scale::Quick }, Mechanism::Softmax, causal, Vec::new())
            .decoder;
    let (width, length) = (decoder.width, decoder.length);
    let inputs = decoder.inputs(0, 1);
    let mut order: Vec<usize> = (0..length).collect();
    order.sort_by_key(|place| bits(1, *place as u32));
    let permuted = |values: &[f32]| -> Vec<f32> {
        order.iter().flat_map(|place| values[place * width..(place + 1) * width].iter().copied()).collect()
    };
    let layer = decoder.layer(1)?;
    let [expected, seen] = [inputs.clone(), permuted(&inputs)].map(|values| decoder.after(&layer, values));
    let expected = permuted(&expected);
    let deviation = (expected.iter().map(|x| f64::from(x * x)).sum::<f64>() / expected.len() as f64).sqrt();
    let differences = expected.iter().zip(&seen).map(|(x, y)| f64::from((x - y).abs()));
    Ok(differences.fold(0.0, f64::max) / deviation)
}

fn run(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let places = ["none", "rotary"].map(|position| format!("softmax:position={position}"));
    let masked = Kind::of(bench, "masked", &language::masked(bench, "masked-positions", scale, &places)?)?;
    let causal = Kind::of(bench, "causal", &language::characters(bench, scale)?)?;
    let [both_ways, one_way] = [false, true].map(|causal| moved(scale, causal));
    let (both_ways, one_way) = (both_ways?, one_way?);
    let sure = confidence(3);
    let share = |kind: &Kind| Estimate::mean(&kind.lost(), sure, "seeds");
    // Neither data nor task in common: not paired.
    let more = Estimate::unpaired(&masked.lost(), &causal.lost(), sure, "seeds");
    let learned: Vec<f64> = masked.lost().iter().map(|lost| 1.0 - lost).collect();
    let clauses = vec![
        Clause::paper("A masked model without positions does not learn: its share of what one with them learns.")
            .below(Estimate::mean(&learned, sure, "seeds"), 0.1),
        Clause::paper("A causal model without positions loses little: the share of what one with them learns.")
            .below(share(&causal), 0.1),
        Clause::paper("The masked model loses the larger share.").above(more, 0.0),
        Clause::ours("Without a causal mask, permuted inputs give permuted outputs: nothing tells the order.")
            .exactly(both_ways < 1e-3)
            .note(format!("largest difference {both_ways:.1e} deviations, with a causal mask {one_way:.1e}")),
        Clause::ours("The masked model loses more than a tenth of what one with positions learns.")
            .above(share(&masked), 0.1),
    ];
    let mut columns = vec![Column::text("model")];
    columns.extend(
        ["without positions", "with", "frequencies alone"]
            .map(|name| Column::number(name, Format::Fixed(3)).unit("nat")),
    );
    columns.push(Column::number("lost", Format::Percent(1)));
    let mut table = Table::new("Test loss a token", columns)
        .note("Mean and deviation over seeds. Lost: share of the loss below that of frequencies.");
    let mut said = Vec::new();
    for kind in [&masked, &causal] {
        let mean = |values: &[f64]| Sample::of(values).mean;
        table.push(vec![
            kind.name.into(),
            Cell::estimate(&kind.without),
            Cell::estimate(&kind.with),
            kind.frequencies.into(),
            Cell::estimate(&kind.lost()),
        ]);
        said.push(format!(
            "{}: {:.3} nats without positions, {:.3} with, {:.3} by frequencies",
            kind.name,
            mean(&kind.without),
            mean(&kind.with),
            kind.frequencies
        ));
    }
    Ok(Finding { clauses, statement: format!("{}.", said.join("; ")), tables: vec![table], charts: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_seen_with_a_causal_mask_alone() {
        assert!(moved(Scale::Quick, false).unwrap() < 1e-3);
        assert!(moved(Scale::Quick, true).unwrap() > 1e-2);
    }

    /// By hand: frequencies 6, with positions 4, without 5: half is lost.
    #[test]
    fn the_share_lost_is_of_what_was_learned() {
        let kind = Kind { name: "x", without: vec![5.0], with: vec![4.0], frequencies: 6.0 };
        assert_eq!(kind.lost(), [0.5]);
        assert!(Kind { frequencies: 4.01, ..kind }.lost()[0].is_nan(), "next to nothing was learned");
    }
}
