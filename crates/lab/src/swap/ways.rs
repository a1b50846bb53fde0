//! Ways to run a whole model within a budget, and what each loses on some sequences.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::Instant,
};

use burn::tensor::Tensor;
use regard_nn::blocks::Context;
use regard_pretrained::{Model, Plan, Pretrained};

use super::{Candidate, Example, Kind, Limits, Measured, Predictor, Price, SwapError, choices, measure::losses, solve};

/// A candidate for each group, by its number.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Way {
    pub name: String,
    /// The kind of a candidate that all groups share.
    pub single: Option<Kind>,
    pub groups: Vec<usize>,
    /// What it loses on the sample, where that was asked for.
    pub sample_loss: Option<f64>,
}

/// The name of a mix.
pub(super) fn mix_name(predictor: Predictor) -> String {
    format!("mix by {}", predictor.name())
}

/// Ways that keep to the limits: mixes by `first` and the other predictors, and the largest candidate of each kind in all groups.
pub(super) fn ways(
    measured: &[Measured],
    candidates: &[Candidate],
    prices: &[Price],
    first: Predictor,
    limits: Limits,
) -> Vec<Way> {
    let mix = |predictor: Predictor| {
        let groups = solve(&choices(measured, prices, predictor), limits)?;
        Some(Way { name: mix_name(predictor), single: None, groups, sample_loss: None })
    };
    let others = Predictor::ALL.iter().copied().filter(|predictor| *predictor != first);
    let mut all: Vec<Way> = [first].into_iter().chain(others).filter_map(mix).collect();
    let all_of = |number: f64| number * measured.len() as f64;
    let fits = |price: &Price| {
        limits.bytes.is_none_or(|most| all_of(price.bytes) <= most)
            && limits.seconds.is_none_or(|most| all_of(price.seconds) <= most)
    };
    for &kind in Kind::ALL.iter().filter(|kind| **kind != Kind::Drop) {
        let fitting = (0..candidates.len()).filter(|at| candidates[*at].kind == Some(kind) && fits(&prices[*at]));
        let largest = fitting.max_by(|a, b| candidates[*a].share.total_cmp(&candidates[*b].share));
        all.extend(largest.map(|at| Way {
            name: candidates[at].name.clone(),
            single: Some(kind),
            groups: vec![at; measured.len()],
            sample_loss: None,
        }));
    }
    all
}

/// Runs whole models on some sequences; none twice.
pub(super) struct Judge<'a> {
    model: &'a Pretrained,
    examples: &'a [Example],
    /// Mean states of exact attention; none where the model has a loss of its own.
    exact: Option<Vec<Vec<f32>>>,
    seen: HashMap<Vec<usize>, Judged>,
}

/// What a model does on the sequences.
#[derive(Clone, Debug)]
pub(super) struct Judged {
    /// Loss, or the distance of its mean states to those of exact attention.
    pub loss: f64,
    /// That of each sequence.
    pub losses: Vec<f64>,
    /// Seconds of a forward pass over a sequence.
    pub seconds: f64,
}

impl<'a> Judge<'a> {
    /// `model` has exact attention.
    pub fn new(model: &'a Pretrained, examples: &'a [Example]) -> Result<Self, SwapError> {
        let exact = (!has_loss(model)).then(|| means(model, examples)).transpose()?;
        Ok(Self { model, examples, exact, seen: HashMap::new() })
    }

    /// The model under the plan of a choice.
    pub fn judge(&mut self, groups: &[usize], plan: impl Fn(&[usize]) -> Plan) -> Result<Judged, SwapError> {
        let place = match self.seen.entry(groups.to_vec()) {
            Entry::Occupied(seen) => return Ok(seen.get().clone()),
            Entry::Vacant(place) => place,
        };
        let model = self.model.clone().with_plan(&plan(groups))?;
        let begin = Instant::now();
        let (loss, losses) = match &self.exact {
            None => losses(&model, self.examples)?,
            Some(exact) => {
                let each = distances(&means(&model, self.examples)?, exact);
                (each.iter().sum::<f64>() / each.len() as f64, each)
            }
        };
        let seconds = begin.elapsed().as_secs_f64() / self.examples.len() as f64;
        Ok(place.insert(Judged { loss, losses, seconds }).clone())
    }
}

/// Whether a model has a head over tokens, and so a loss.
pub(super) fn has_loss(model: &Pretrained) -> bool {
    matches!(model.model, Model::Language(_) | Model::Masked(_))
}

/// 1 - cosine, example by example.
fn distances(seen: &[Vec<f32>], exact: &[Vec<f32>]) -> Vec<f64> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let one =
        |(seen, exact): (&Vec<f32>, &Vec<f32>)| 1.0 - dot(seen, exact) / (dot(seen, seen) * dot(exact, exact)).sqrt();
    seen.iter().zip(exact).map(one).collect()
}

/// Mean states `[d]` of examples.
fn means(model: &Pretrained, examples: &[Example]) -> Result<Vec<Vec<f32>>, SwapError> {
    let mean = |example: &Example| {
        let context = Context::evaluation();
        let states: Tensor<3> = match (&model.model, example) {
            (Model::Image(model), Example::Image(pixels)) => model.forward(pixels, &context)?,
            (_, Example::Text(batch)) => model.states(batch, &context)?,
            _ => return Err(SwapError::NoLoss),
        };
        Ok(states.mean_dim(1).into_data_as::<f32>().try_to_vec().expect("f32, as asked"))
    };
    examples.iter().map(mean).collect()
}
