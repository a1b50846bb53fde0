//! Measurements of a model's attention over sequences.

use std::{fmt, str::FromStr};

use rayon::prelude::*;
use regard_kernels::Averaged;
use regard_tasks::{Class, Classed};
use serde::{Serialize, Serializer};

use super::{
    attended::{Attended, norm},
    entropy::{Entropy, row_entropy},
    likelihood::{Densities, Likelihood},
    parameters::HeadParameters,
    pictures::{Picture, pooled_keys, pooled_weights},
    rank::MatrixRank,
    redundancy::{PairSums, Redundancy},
    sequences::Recording,
};
use crate::approx::Dense;

/// A part of the survey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Entropy of rows by layer, head and position.
    Entropy,
    /// Singular values of whole matrices.
    Rank,
    /// Redundancy of heads.
    Redundancy,
    /// Likelihood of queries under keys.
    Likelihood,
    /// Priors, variances, shifts, and norms.
    Learned,
    /// Images of attention matrices.
    Maps,
    /// Images of keys and their projections.
    Keys,
}

impl Part {
    /// All of them, in the order of reports.
    pub const ALL: [Self; 7] =
        [Self::Entropy, Self::Rank, Self::Redundancy, Self::Likelihood, Self::Learned, Self::Maps, Self::Keys];

    /// Parts whose time grows like that of a forward pass.
    pub const CHEAP: [Self; 4] = [Self::Entropy, Self::Redundancy, Self::Likelihood, Self::Learned];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Entropy => "entropy",
            Self::Rank => "rank",
            Self::Redundancy => "redundancy",
            Self::Likelihood => "likelihood",
            Self::Learned => "learned",
            Self::Maps => "maps",
            Self::Keys => "keys",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|part| part.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("'{name}' is not known, expected all or some of {names}")
        })
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The parts.
    pub parts: Vec<Part>,
    /// Layers, numbered from 1; all if empty.
    pub layers: Vec<usize>,
    /// Heads, numbered from 1; all if empty.
    pub heads: Vec<usize>,
    /// Maximum number of matrices whose rank is computed.
    pub matrices: usize,
}

/// Why a model cannot be surveyed.
#[derive(Debug, thiserror::Error)]
pub enum SurveyError {
    /// Layers or heads that it does not have, or no attention.
    #[error("{0}")]
    Model(String),
    /// Attention without a kernel, which has no weights to inspect.
    #[error(transparent)]
    Options(#[from] regard_kernels::Error),
}

impl Classed for SurveyError {
    fn class(&self) -> Class {
        match self {
            Self::Model(_) => Class::Usage,
            Self::Options(error) => error.class(),
        }
    }
}

/// One attention of a model, or one of its averages.
#[derive(Clone, Debug, Serialize)]
pub struct Attention {
    /// Its name, as in `layer 1` or `layer 1, query pooling`.
    pub name: String,
    /// The group of attentions it is drawn with.
    pub place: String,
    /// The mechanism.
    pub mechanism: String,
    /// What is averaged.
    #[serde(serialize_with = "averaged_name")]
    pub averaged: Averaged,
    /// Inspected heads, from 1.
    pub heads: Vec<usize>,
    /// One per head, if requested.
    pub entropy: Vec<Entropy>,
    /// One per matrix.
    pub ranks: Vec<MatrixRank>,
    /// One per pair of heads.
    pub redundancy: Vec<Redundancy>,
    /// One per head, if there are query-key scores.
    pub likelihood: Vec<Likelihood>,
    /// One per head.
    pub learned: Vec<HeadParameters>,
    /// Images for one sequence.
    #[serde(skip)]
    pub(super) pictures: Vec<Picture>,
}

/// The results.
#[derive(Clone, Debug, Serialize)]
pub struct Survey {
    /// Attentions, bottom to top.
    pub attentions: Vec<Attention>,
    /// Number of sequences.
    pub sequences: usize,
    /// Total number of tokens.
    pub tokens: usize,
    /// Tokens of the sequence shown in images.
    pub drawn: usize,
}

/// Measures the parts of `plan` over recordings of a model with one or two stacks of blocks; `done` is called after
/// each. Images show the middle one.
///
/// # Errors
/// Layers or heads that the model does not have; attention without a kernel; no sequence.
pub fn survey(
    recordings: impl ExactSizeIterator<Item = Recording>,
    plan: &Plan,
    two_stacks: bool,
    done: &dyn Fn(),
) -> Result<Survey, SurveyError> {
    let mut survey = Survey { attentions: Vec::new(), sequences: 0, tokens: 0, drawn: 0 };
    let mut matrices = if plan.asks(Part::Rank) { plan.matrices } else { 0 };
    // Sequences are sorted by length: the middle one has median length.
    let middle = recordings.len() / 2;
    for recording in recordings {
        if survey.sequences == 0 {
            plan.check(&recording)?;
        }
        let drawn = survey.sequences == middle;
        if drawn {
            survey.drawn = recording.tokens;
        }
        survey.sequences += 1;
        survey.tokens += recording.tokens;
        let wanted = |layer: usize| plan.layers.is_empty() || plan.layers.contains(&layer);
        for record in recording.records.iter().filter(|record| wanted(record.layer)) {
            let attended = Attended::new(record);
            for averaged in attended.averages() {
                let (name, place) = named(&attended, averaged, two_stacks);
                let known = survey.attentions.iter().position(|attention| attention.name == name);
                let at = known.unwrap_or_else(|| {
                    survey.attentions.push(Attention::new(name, place, &attended, averaged, plan));
                    survey.attentions.len() - 1
                });
                survey.attentions[at].add(&attended, plan, &mut matrices, drawn);
            }
        }
        done();
    }
    if survey.sequences == 0 {
        return Err(SurveyError::Model("the split has no sequence of two tokens, expected at least one".into()));
    }
    Ok(survey)
}

/// Name of one average and of its group.
fn named(attended: &Attended, averaged: Averaged, two_stacks: bool) -> (String, String) {
    let (name, place) = attended.name(two_stacks);
    let (name, place) = (name, place.to_owned());
    match averaged {
        Averaged::Values => (name, place),
        Averaged::Queries => (name + ", query pooling", place + ", query pooling"),
        Averaged::Keys => (name + ", key pooling", place + ", key pooling"),
    }
}

fn averaged_name<S: Serializer>(averaged: &Averaged, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match averaged {
        Averaged::Values => "values",
        Averaged::Queries => "queries",
        Averaged::Keys => "keys",
    })
}

impl Plan {
    fn asks(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    fn check(&self, recording: &Recording) -> Result<(), SurveyError> {
        let layers = recording.records.iter().map(|record| record.layer).max().unwrap_or(0);
        if layers == 0 {
            return Err(SurveyError::Model("the model has no attention, nothing to inspect".into()));
        }
        recording.records.iter().try_for_each(|record| record.options.check_kernel())?;
        let heads = recording.records.iter().map(|record| Attended::new(record).heads()).max().unwrap_or(0);
        for (what, asked, most) in [("layer", &self.layers, layers), ("head", &self.heads, heads)] {
            if let Some(number) = asked.iter().find(|number| !(1..=most).contains(*number)) {
                return Err(SurveyError::Model(format!(
                    "{what} {number} is not one of the model's, expected 1 to {most}"
                )));
            }
        }
        Ok(())
    }
}

/// Figures of one query.
struct Row {
    entropies: Vec<f64>,
    pairs: Vec<PairSums>,
    /// `[heads][Dv]`.
    outputs: Vec<Vec<f64>>,
}

impl Attention {
    fn new(name: String, place: String, attended: &Attended, averaged: Averaged, plan: &Plan) -> Self {
        let own = 1..=attended.heads();
        let heads: Vec<usize> = own.filter(|h| plan.heads.is_empty() || plan.heads.contains(h)).collect();
        let of_values = averaged == Averaged::Values;
        let when = |part: Part, of_this: bool| if plan.asks(part) && of_this { heads.len() } else { 0 };
        let pairs = pairs(heads.len()).map(|(a, b)| Redundancy::new([heads[a], heads[b]]));
        Self {
            name,
            place,
            mechanism: attended.record().options.label(),
            averaged,
            entropy: vec![Entropy::default(); when(Part::Entropy, true)],
            ranks: Vec::new(),
            redundancy: if plan.asks(Part::Redundancy) { pairs.collect() } else { Vec::new() },
            likelihood: vec![Likelihood::default(); when(Part::Likelihood, of_values)],
            learned: vec![HeadParameters::default(); when(Part::Learned, averaged != Averaged::Keys)],
            pictures: Vec::new(),
            heads,
        }
    }

    /// Adds one sequence.
    fn add(&mut self, attended: &Attended, plan: &Plan, matrices: &mut usize, drawn: bool) {
        let heads: Vec<usize> = self.heads.iter().map(|head| head - 1).collect();
        let with_rows = [Part::Entropy, Part::Redundancy, Part::Learned].into_iter().any(|part| plan.asks(part));
        if with_rows && !heads.is_empty() {
            self.add_rows(attended, &heads);
        }
        let queries = attended.lengths()[0];
        for (likelihood, &h) in self.likelihood.iter_mut().zip(&heads) {
            let Some(densities) = Densities::new(attended, h) else { continue };
            let of = |i: usize| densities.negative_logs(attended.query(h, i), attended.visible(i));
            let all: Vec<[f64; 3]> = (0..queries).into_par_iter().map(of).collect();
            all.into_iter().for_each(|logs| likelihood.add(logs));
        }
        for (learned, &h) in self.learned.iter_mut().zip(&heads) {
            learned.add(attended, h);
        }
        let ranked = &heads[..heads.len().min(*matrices)];
        *matrices -= ranked.len();
        let rank = |&h: &usize| MatrixRank::of(h + 1, &whole(attended, self.averaged, h));
        self.ranks.extend(ranked.par_iter().map(rank).collect::<Vec<_>>().into_iter().flatten());
        if drawn && plan.asks(Part::Maps) {
            self.pictures.push(pooled_weights(attended, self.averaged, &heads, &self.name));
        }
        if drawn && plan.asks(Part::Keys) && self.averaged == Averaged::Values {
            self.pictures.extend(pooled_keys(attended, &heads, &self.name));
        }
    }

    /// Measurements that need every row of all heads, query by query.
    fn add_rows(&mut self, attended: &Attended, heads: &[usize]) {
        let [queries, _] = attended.lengths();
        let of_values = self.averaged == Averaged::Values;
        let compares = !self.redundancy.is_empty();
        let figures: Vec<Row> = attended.with_rows(self.averaged, heads, |rows| {
            let row = |i: usize| {
                let (rows, visible) = (rows(i), attended.visible(i));
                let seen: Vec<&[f64]> = rows.iter().map(|row| &row[visible.clone()]).collect();
                let pair = |(a, b): (usize, usize)| {
                    let mut sums = PairSums::default();
                    sums.add(seen[a], seen[b]);
                    sums
                };
                let output = |(row, &h): (&Vec<f64>, &usize)| output(attended, h, row);
                Row {
                    entropies: rows.iter().map(|row| row_entropy(row)).collect(),
                    pairs: if compares { pairs(heads.len()).map(pair).collect() } else { Vec::new() },
                    outputs: if of_values { rows.iter().zip(heads).map(output).collect() } else { Vec::new() },
                }
            };
            (0..queries).into_par_iter().map(row).collect()
        });
        for (i, row) in figures.iter().enumerate() {
            let visible = attended.visible(i).len();
            for (entropy, nats) in self.entropy.iter_mut().zip(&row.entropies) {
                entropy.add(i, *nats, visible);
            }
            for (learned, output) in self.learned.iter_mut().zip(&row.outputs) {
                learned.outputs.add(norm(output));
            }
        }
        let outputs: Vec<Dense> = (0..if of_values { heads.len() } else { 0 })
            .map(|at| {
                let width = figures[0].outputs[at].len();
                Dense::new(queries, width, figures.iter().flat_map(|row| row.outputs[at].iter().copied()).collect())
            })
            .collect();
        for (number, (pair, (a, b))) in self.redundancy.iter_mut().zip(pairs(heads.len())).enumerate() {
            let mut sums = PairSums::default();
            figures.iter().for_each(|row| sums.join(&row.pairs[number]));
            pair.add(&sums, of_values.then(|| [&outputs[a], &outputs[b]]));
        }
    }
}

/// Ordered index pairs below `count`.
fn pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).flat_map(move |a| (a + 1..count).map(move |b| (a, b)))
}

/// `sum_j w_j v_j`.
fn output(attended: &Attended, h: usize, row: &[f64]) -> Vec<f64> {
    let mut sum: Vec<f64> = Vec::new();
    for (j, weight) in row.iter().enumerate() {
        let Some(value) = attended.value(h, j) else { continue };
        sum.resize(value.len(), 0.0);
        sum.iter_mut().zip(value).for_each(|(sum, x)| *sum += weight * x);
    }
    sum
}

/// The full matrix of a head.
fn whole(attended: &Attended, averaged: Averaged, h: usize) -> Dense {
    let [queries, keys] = attended.lengths();
    let data = attended.with_rows(averaged, &[h], |rows| {
        (0..queries).into_par_iter().flat_map_iter(|i| rows(i).swap_remove(0)).collect()
    });
    Dense::new(queries, keys, data)
}
