//! A whole swap: measure, price, choose, and judge the result by the whole model.

use std::time::Instant;

use burn::tensor::{Device, Tensor};
use regard_kernels::Storage;
use regard_nn::{blocks::Context, models::TokenBatch};
use regard_pretrained::{Folder, LoadOptions, Model, Plan, Pretrained};
use regard_tasks::train::Environment;
use serde::Serialize;

use super::{
    Candidate, Example, Kind, Limits, Measured, Predictor, Price, SwapError, Total, candidates, choices, loss, measure,
    measure::bytes, plan, price, solve, total,
};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Study {
    /// Tokens of the sequences that the model is to read.
    pub length: usize,
    /// Tokens of the sequences that effects are measured on: a backward pass keeps everything of them.
    pub calibration: usize,
    /// Sequences to measure on, and as many to judge by.
    pub sequences: usize,
    /// Kinds of candidates.
    pub kinds: Vec<Kind>,
    /// Their shares of exact attention, as divisors.
    pub divisors: Vec<usize>,
    /// Most memory, as a share of exact attention in f32.
    pub memory: Option<f64>,
    /// Most time of attention, as a share of exact attention.
    pub time: Option<f64>,
    /// How keys and values are kept while the model decodes.
    pub storage: Storage,
    /// What candidates are chosen by; absent: whichever choice the whole model likes best on the sample, single candidates
    /// that keep to the budget among them.
    pub predictor: Option<Predictor>,
    /// Judge all that was chosen from beside the choice.
    pub compare: bool,
    /// Single groups that are swapped to hold predictions against.
    pub validate: usize,
    /// Seed for all random draws.
    pub seed: u64,
    /// A table of positions that is too short is stretched.
    pub stretch: bool,
}

/// One way to run the model, judged on sequences that nothing was measured on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What it is.
    pub name: String,
    /// Loss on the sequences that effects were measured on; absent where it was not asked for.
    pub sample_loss: Option<f64>,
    /// What it was predicted to cost.
    pub predicted: Total,
    /// Loss in nats per token; for models without one, 1 - cosine of the mean states to those of exact attention.
    pub loss: f64,
    /// Seconds of a forward pass over a sequence.
    pub seconds: f64,
}

/// The result.
#[derive(Clone, Debug)]
pub struct Swap {
    /// What was asked for.
    pub study: Study,
    /// What could stand in each group.
    pub candidates: Vec<Candidate>,
    /// What each costs in one group.
    pub prices: Vec<Price>,
    /// What each does to every group.
    pub measured: Vec<Measured>,
    /// Number of the candidate chosen for each group.
    pub chosen: Vec<usize>,
    /// The choice as a plan.
    pub plan: Plan,
    /// Exact attention, the choice, and what was judged beside it.
    pub rows: Vec<Row>,
    /// Whether losses are nats per token.
    pub has_loss: bool,
    /// Predicted by each predictor, and measured: changes of the loss by swaps of single groups.
    pub validation: Vec<(Vec<f64>, f64)>,
    /// The model in a few words.
    pub source: String,
    /// The command that was typed.
    pub command: String,
    /// Where and when.
    pub environment: Environment,
}

/// Before the name of the way that was chosen.
pub(super) const CHOSEN: &str = "* ";

fn mix_name(predictor: Predictor) -> String {
    format!("mix by {}", predictor.name())
}

/// Sequences of `length` tokens spread over the tokens of texts: every second one to measure on, the others to judge by.
///
/// # Errors
/// Fewer tokens than it takes.
pub fn sample(ids: &[u32], length: usize, sequences: usize) -> Result<[Vec<Example>; 2], SwapError> {
    let count = 2 * sequences;
    let expected = count.saturating_mul(length);
    if ids.len() < expected || length < 2 {
        return Err(SwapError::Short { seen: ids.len(), expected, sequences: count, length });
    }
    let mut parts = [Vec::new(), Vec::new()];
    for number in 0..count {
        let from = number * (ids.len() - length) / (count - 1).max(1);
        let row: Vec<i32> = ids[from..from + length].iter().map(|id| *id as i32).collect();
        parts[number % 2].push(Example::Text(TokenBatch::full(row, 1)?));
    }
    Ok(parts)
}

impl Study {
    /// Runs it. `progress` gets what is being done, and how much of it is done.
    ///
    /// # Errors
    /// Options that do not fit the model, a budget that nothing keeps to, an interrupt.
    pub fn run(
        &self,
        folder: &Folder,
        [sample, judges]: &[Vec<Example>; 2],
        progress: &dyn Fn(&str, usize, usize) -> Result<(), SwapError>,
        command: String,
        environment: Environment,
    ) -> Result<Swap, SwapError> {
        let architecture = folder.architecture();
        let (width, heads, key_heads) = (architecture.head_width, architecture.heads, architecture.key_value_heads);
        let group = heads / key_heads;
        let candidates = candidates(&self.kinds, &self.divisors, architecture.causal, self.length, width, group);
        let mut prices = Vec::new();
        for (number, candidate) in candidates.iter().enumerate() {
            progress("price", number, candidates.len())?;
            prices.push(price(candidate, self.length, width, self.storage, self.seed)?);
        }
        // Memory is counted against keys and values in f32, however they are kept.
        let plain = bytes(&candidates[0], self.length, width, Storage::F32)?;
        let calibration = self.calibration.min(self.length);
        let measured = {
            let device = Device::flex().autodiff();
            let options = LoadOptions { context: Some(calibration), stretch: self.stretch };
            let trained = folder.model(options, &device)?.frozen();
            let cut: Vec<Example> = sample.iter().map(|example| cut(example, calibration)).collect::<Result<_, _>>()?;
            let step = |done: usize, all: usize| progress("measure", done, all);
            measure(&trained, &cut, &candidates, self.seed, &step)?
        };
        let groups = measured.len() as f64;
        let limits = Limits {
            bytes: self.memory.map(|share| share * plain * groups),
            seconds: self.time.map(|share| share * prices[0].seconds * groups),
        };
        let by = |predictor| choices(&measured, &prices, predictor);
        let own = by(self.predictor.unwrap_or_default());
        let scaled = |total: Total| Total { bytes: total.bytes * prices[0].bytes / plain, ..total };
        let mix = solve(&own, limits).ok_or_else(|| {
            let least = |of: fn(&Price) -> f64| prices.iter().map(of).fold(f64::INFINITY, f64::min);
            let (bytes, seconds) =
                (least(|price| price.bytes) / plain, least(|price| price.seconds) / prices[0].seconds);
            SwapError::Budget { bytes, seconds }
        })?;
        let layers = measured.iter().map(|measured| measured.group.layer).max().unwrap_or(0);
        let plan_of = |chosen: &[usize]| plan(layers, self.seed, &measured, &candidates, chosen);

        // Whole models, judged on what nothing was measured on.
        let options = LoadOptions { context: Some(self.length), stretch: self.stretch };
        let mut model = folder.model(options, &Device::flex())?;
        let has_loss = matches!(model.model, Model::Language(_) | Model::Masked(_));
        let exact_states = if has_loss { Vec::new() } else { means(&model, judges)? };
        let fits = |chosen: &[usize]| {
            let sum = |of: fn(&Price) -> f64| chosen.iter().map(|at| of(&prices[*at])).sum::<f64>();
            limits.bytes.is_none_or(|most| sum(|price| price.bytes) <= most)
                && limits.seconds.is_none_or(|most| sum(|price| price.seconds) <= most)
        };
        // Ways that keep to the budget: by each predictor, and the largest single candidate of each kind.
        let mut wanted = vec![(mix_name(self.predictor.unwrap_or_default()), mix)];
        for &predictor in Predictor::ALL.iter().filter(|predictor| **predictor != self.predictor.unwrap_or_default()) {
            wanted.extend(solve(&by(predictor), limits).map(|chosen| (mix_name(predictor), chosen)));
        }
        for (at, candidate) in candidates.iter().enumerate().skip(1) {
            let all = vec![at; measured.len()];
            let kind = |name: &str| name.rsplit_once('-').map(|(kind, _)| kind.to_owned());
            let seen = wanted.iter().any(|(name, _)| kind(name) == kind(&candidate.name));
            if candidate.attention.is_some() && fits(&all) && !seen {
                wanted.push((candidate.name.clone(), all));
            }
        }
        if self.predictor.is_some() && !self.compare {
            wanted.truncate(1);
        }
        let steps = 2 * wanted.len() + 1 + self.validate;
        let mut done = 0;
        let mut step = |what: &str| {
            done += 1;
            progress(what, done - 1, steps)
        };
        let mut sample_losses = vec![None; wanted.len()];
        let (mut best, mut least) = (0, f64::INFINITY);
        if self.predictor.is_none() {
            let exact_states = if has_loss { Vec::new() } else { means(&model, sample)? };
            for (number, (_, chosen)) in wanted.iter().enumerate() {
                step("choose")?;
                model = model.with_plan(&plan_of(chosen))?;
                let loss = judge(&model, sample, &exact_states)?;
                sample_losses[number] = Some(loss);
                if loss < least {
                    (best, least) = (number, loss);
                }
            }
        }
        let chosen = wanted[best].1.clone();
        let mut rows: Vec<Row> = Vec::new();
        let exact = ("exact".to_owned(), vec![0; measured.len()]);
        let judged =
            wanted.into_iter().zip(sample_losses).enumerate().filter(|(number, _)| self.compare || *number == best);
        let judged = judged.map(|(number, (way, loss))| (way, loss, number == best));
        for ((name, chosen), sample_loss, is_best) in [(exact, None, false)].into_iter().chain(judged) {
            step("judge")?;
            let predicted = scaled(total(&own, &chosen));
            model = model.with_plan(&plan_of(&chosen))?;
            let begin = Instant::now();
            let loss = judge(&model, judges, &exact_states)?;
            let seconds = begin.elapsed().as_secs_f64() / judges.len() as f64;
            let name = if is_best { format!("{CHOSEN}{name}") } else { name };
            rows.push(Row { name, sample_loss, predicted, loss, seconds });
        }
        let mut validation = Vec::new();
        for number in 0..self.validate {
            step("validate")?;
            // Groups and candidates spread over all, the same for the same numbers.
            let group = (2 * number + 1) * measured.len() / (2 * self.validate);
            let at = 1 + number % (candidates.len() - 1);
            let mut single = vec![0; measured.len()];
            single[group] = at;
            model = model.with_plan(&plan_of(&single))?;
            let change = judge(&model, judges, &exact_states)? - rows[0].loss;
            let effects = &measured[group].effects;
            let predicted = Predictor::ALL.iter().map(|predictor| predictor.of(effects)[at]).collect();
            validation.push((predicted, change));
        }
        let plan = plan_of(&chosen);
        let source =
            format!("{} of {} layers, {heads} heads of {width}", architecture.family.name(), architecture.layers);
        let study = self.clone();
        Ok(Swap {
            study,
            candidates,
            prices,
            measured,
            chosen,
            plan,
            rows,
            has_loss,
            validation,
            source,
            command,
            environment,
        })
    }
}

/// The first tokens of an example.
fn cut(example: &Example, length: usize) -> Result<Example, SwapError> {
    Ok(match example {
        Example::Text(batch) => Example::Text(TokenBatch::full(batch.ids[..length.min(batch.length)].to_vec(), 1)?),
        Example::Image(pixels) => Example::Image(pixels.clone()),
    })
}

/// Loss of a model, or the distance of its mean states to those of exact attention.
fn judge(model: &Pretrained, judges: &[Example], exact: &[Vec<f32>]) -> Result<f64, SwapError> {
    if exact.is_empty() {
        return loss(model, judges);
    }
    let distance = |(seen, exact): (Vec<f32>, &Vec<f32>)| {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        1.0 - dot(&seen, exact) / (dot(&seen, &seen) * dot(exact, exact)).sqrt()
    };
    let seen = means(model, judges)?;
    let count = seen.len() as f64;
    Ok(seen.into_iter().zip(exact).map(distance).sum::<f64>() / count)
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
