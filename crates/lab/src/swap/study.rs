//! A whole swap: measure, price, choose, and judge the result by the whole model.

use regard_kernels::Storage;
use regard_nn::models::TokenBatch;
use regard_pretrained::{Folder, LoadOptions, Plan};
use regard_tasks::train::Environment;
use serde::Serialize;

use super::{
    Candidate, Example, Kind, Limits, Measured, Predictor, Price, SwapError, Total, candidates, choices, measure,
    measure::bytes,
    plan, price, total,
    ways::{Judge, Judged, Way, has_loss, mix_name, ways},
};

/// Most memory, as a share of exact attention in f32.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Budget {
    /// As it was typed, as `1/8`.
    pub name: String,
    /// Its value.
    pub share: f64,
}

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
    /// Budgets of memory, each with a plan of its own; none: only time is limited.
    pub memory: Vec<Budget>,
    /// Most time of attention, as a share of exact attention.
    pub time: Option<f64>,
    /// How keys and values are kept while the model decodes.
    pub storage: Storage,
    /// What candidates are chosen by; absent: whichever choice the whole model likes best on the sample, single candidates
    /// that keep to the budget among them.
    pub predictor: Option<Predictor>,
    /// Judge all that was chosen from beside the choice; of several budgets single candidates are judged anyway.
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
    /// The budget of memory that it keeps to, by its name.
    pub budget: Option<String>,
    /// The kind of a candidate that all groups share.
    pub single: Option<Kind>,
    /// Loss on the sequences that effects were measured on; absent where it was not asked for.
    pub sample_loss: Option<f64>,
    /// What it was predicted to cost.
    pub predicted: Total,
    /// Loss in nats per token; for models without one, 1 - cosine of the mean states to those of exact attention.
    pub loss: f64,
    /// The same of each sequence.
    pub losses: Vec<f64>,
    /// Seconds of a forward pass over a sequence.
    pub seconds: f64,
}

/// The choice within a budget.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// Most memory; absent where only time is limited.
    pub budget: Option<Budget>,
    /// Number of the candidate of each group.
    pub groups: Vec<usize>,
    /// The choice as a plan.
    pub plan: Plan,
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
    /// The choice within each budget, from the smallest one.
    pub chosen: Vec<Chosen>,
    /// Exact attention, the choices, and what was judged beside them.
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

impl Row {
    /// Whether it is the choice within its budget.
    pub fn is_chosen(&self) -> bool {
        self.name.starts_with(CHOSEN)
    }
}

/// Before the name of the way that was chosen.
pub(super) const CHOSEN: &str = "* ";

/// Between the name of a way and the smaller budget that it was chosen within.
const OF: &str = " of ";

/// Sequences of `length` tokens spread over the tokens of texts: every second one to measure on, the others to judge by.
///
/// # Errors
/// Fewer tokens than it takes.
pub fn sample(ids: &[u32], length: usize, sequences: usize) -> Result<[Vec<Example>; 2], SwapError> {
    let count = sequences.saturating_mul(2);
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

/// Images of `size` numbers each: every second one to measure on, the others to judge by.
///
/// # Errors
/// Numbers that are no whole images, or fewer of them than it takes.
pub fn sample_images(pixels: &[f32], size: usize, sequences: usize) -> Result<[Vec<Example>; 2], SwapError> {
    let count = sequences.saturating_mul(2);
    if !pixels.len().is_multiple_of(size) || pixels.len() / size < count {
        return Err(SwapError::FewImages { seen: pixels.len(), size, expected: count });
    }
    let mut parts = [Vec::new(), Vec::new()];
    for (number, image) in pixels.chunks_exact(size).take(count).enumerate() {
        parts[number % 2].push(Example::Image(image.to_vec()));
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
        let least = |of: fn(&Price) -> f64| prices.iter().map(of).fold(f64::INFINITY, f64::min);
        let cheapest = [least(|price| price.bytes) / plain, least(|price| price.seconds) / prices[0].seconds];
        let impossible = |budget: &Option<Budget>| {
            let memory = budget.as_ref().map(|budget| budget.name.clone());
            SwapError::Budget { memory, bytes: cheapest[0], seconds: cheapest[1] }
        };
        let mut budgets: Vec<Option<Budget>> = self.memory.iter().cloned().map(Some).collect();
        budgets.sort_by(|a, b| share_of(a).total_cmp(&share_of(b)));
        if budgets.is_empty() {
            budgets.push(None);
        }
        // Clear cases are told before the model is run.
        let beyond = |share: f64, cheapest: f64| share < cheapest * (1.0 - 1e-9);
        if beyond(share_of(&budgets[0]), cheapest[0]) || self.time.is_some_and(|time| beyond(time, cheapest[1])) {
            return Err(impossible(&budgets[0]));
        }
        let images = architecture.patch.is_some();
        // Images have one length.
        let options = |length: usize| LoadOptions { context: (!images).then_some(length), stretch: self.stretch };
        let measured = {
            let calibration = self.calibration.min(self.length);
            let trained = folder.model(options(calibration), &regard_nn::device::chosen().autodiff())?.frozen();
            let cut: Vec<Example> = sample.iter().map(|example| cut(example, calibration)).collect::<Result<_, _>>()?;
            let step = |done: usize, all: usize| progress("measure", done, all);
            measure(&trained, &cut, &candidates, self.seed, &step)?
        };
        let groups = measured.len() as f64;
        let first = self.predictor.unwrap_or_default();
        let mut wanted = Vec::new();
        for budget in budgets {
            let limits = Limits {
                bytes: budget.as_ref().map(|budget| budget.share * plain * groups),
                seconds: self.time.map(|share| share * prices[0].seconds * groups),
            };
            let ways = ways(&measured, &candidates, &prices, first, limits);
            let asked = |way: &Way| self.predictor.is_none() || way.name == mix_name(first);
            if !ways.iter().any(asked) {
                return Err(impossible(&budget));
            }
            wanted.push((budget, ways));
        }
        let layers = measured.iter().map(|measured| measured.group.layer).max().unwrap_or(0);
        let plan_of = |groups: &[usize]| plan(layers, self.seed, &measured, &candidates, groups);

        let model = folder.model(options(self.length), &regard_nn::device::chosen())?;
        let steps = 2 * wanted.iter().map(|(_, ways)| ways.len() + 1).sum::<usize>() + self.validate;
        let mut done = 0;
        let mut step = |what: &str| {
            done += 1;
            progress(what, done - 1, steps)
        };
        if self.predictor.is_none() {
            let mut judge = Judge::new(&model, sample)?;
            let mut last: Option<Way> = None;
            for (budget, ways) in &mut wanted {
                // What keeps to a smaller budget keeps to this one.
                ways.extend(last.filter(|last| ways.iter().all(|way| way.groups != last.groups)));
                for way in ways.iter_mut() {
                    step("choose")?;
                    way.sample_loss = Some(judge.judge(&way.groups, plan_of)?.loss);
                }
                let best = &ways[best(ways, first)];
                let of = budget.as_ref().map_or("", |budget| &budget.name);
                let name = if best.name.contains(OF) { best.name.clone() } else { format!("{}{OF}{of}", best.name) };
                last = Some(Way { name, single: None, ..best.clone() });
            }
        }

        // Judged on what nothing was measured on.
        let mut judge = Judge::new(&model, judges)?;
        let own = choices(&measured, &prices, first);
        let mut row = |way: &Way, budget: &Option<Budget>, is_best: bool| -> Result<Row, SwapError> {
            let Way { name, single, groups, sample_loss } = way.clone();
            let total = total(&own, &groups);
            let Judged { loss, losses, seconds } = judge.judge(&groups, plan_of)?;
            Ok(Row {
                name: if is_best { format!("{CHOSEN}{name}") } else { name },
                budget: budget.as_ref().map(|budget| budget.name.clone()),
                single,
                sample_loss,
                predicted: Total { bytes: total.bytes * prices[0].bytes / plain, ..total },
                loss,
                losses,
                seconds,
            })
        };
        let exact = Way { name: "exact".into(), single: None, groups: vec![0; measured.len()], sample_loss: None };
        step("judge")?;
        let mut rows = vec![row(&exact, &None, false)?];
        let mut chosen = Vec::new();
        for (budget, ways) in wanted {
            let best = best(&ways, first);
            for (number, way) in ways.iter().enumerate() {
                if number == best || self.compare || self.several() && way.single.is_some() {
                    step("judge")?;
                    rows.push(row(way, &budget, number == best)?);
                }
            }
            let groups = ways[best].groups.clone();
            chosen.push(Chosen { budget, plan: plan_of(&groups), groups });
        }
        let mut validation = Vec::new();
        // With exact attention alone there is nothing to swap.
        let validate = if candidates.len() > 1 { self.validate } else { 0 };
        for number in 0..validate {
            step("validate")?;
            // Groups and candidates spread over all, the same for the same numbers.
            let group = (2 * number + 1) * measured.len() / (2 * validate);
            let at = 1 + number % (candidates.len() - 1);
            let mut single = exact.groups.clone();
            single[group] = at;
            let change = judge.judge(&single, plan_of)?.loss - rows[0].loss;
            let effects = &measured[group].effects;
            let predicted = Predictor::ALL.iter().map(|predictor| predictor.of(effects)[at]).collect();
            validation.push((predicted, change));
        }
        let source =
            format!("{} of {} layers, {heads} heads of {width}", architecture.family.name(), architecture.layers);
        Ok(Swap {
            study: self.clone(),
            candidates,
            prices,
            measured,
            chosen,
            rows,
            has_loss: has_loss(&model),
            validation,
            source,
            command,
            environment,
        })
    }

    /// Whether there are several budgets.
    pub fn several(&self) -> bool {
        self.memory.len() > 1
    }
}

/// The share of memory of a budget; all where only time is limited.
fn share_of(budget: &Option<Budget>) -> f64 {
    budget.as_ref().map_or(f64::INFINITY, |budget| budget.share)
}

/// Number of the way that loses least on the sample; of the mix by `first` where none was run on it.
fn best(ways: &[Way], first: Predictor) -> usize {
    let loss = |way: &Way| way.sample_loss.unwrap_or(if way.name == mix_name(first) { 0.0 } else { f64::INFINITY });
    (0..ways.len()).min_by(|a, b| loss(&ways[*a]).total_cmp(&loss(&ways[*b]))).unwrap_or(0)
}

/// The first tokens of an example.
fn cut(example: &Example, length: usize) -> Result<Example, SwapError> {
    Ok(match example {
        Example::Text(batch) => Example::Text(TokenBatch::full(batch.ids[..length.min(batch.length)].to_vec(), 1)?),
        Example::Image(pixels) => Example::Image(pixels.clone()),
    })
}
