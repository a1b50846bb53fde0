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

/// What there is to choose from.
struct Material {
    candidates: Vec<Candidate>,
    /// What each costs in one group.
    prices: Vec<Price>,
    /// Bytes of exact attention in one group, keys and values in f32.
    plain: f64,
    /// What each does to every group.
    measured: Vec<Measured>,
    /// The best guess of what is lost.
    predictor: Predictor,
    seed: u64,
}

impl Material {
    /// The plan that takes these candidates, one for each group.
    fn plan(&self, groups: &[usize]) -> Plan {
        let layers = self.measured.iter().map(|measured| measured.group.layer).max().unwrap_or(0);
        plan(layers, self.seed, &self.measured, &self.candidates, groups)
    }

    /// Exact attention in every group.
    fn exact(&self) -> Way {
        Way { name: "exact".into(), single: None, groups: vec![0; self.measured.len()], sample_loss: None }
    }

    /// The smallest shares of the memory and the time of exact attention.
    fn cheapest(&self) -> [f64; 2] {
        let least = |of: fn(&Price) -> f64| self.prices.iter().map(of).fold(f64::INFINITY, f64::min);
        [least(|price| price.bytes) / self.plain, least(|price| price.seconds) / self.prices[0].seconds]
    }

    /// The error that nothing keeps to a budget.
    fn impossible(&self, budget: &Option<Budget>) -> SwapError {
        let [bytes, seconds] = self.cheapest();
        SwapError::Budget { memory: budget.as_ref().map(|budget| budget.name.clone()), bytes, seconds }
    }

    /// What a way costs and loses, as predicted.
    fn total(&self, groups: &[usize]) -> Total {
        let total = total(&choices(&self.measured, &self.prices, self.predictor), groups);
        Total { bytes: total.bytes * self.prices[0].bytes / self.plain, ..total }
    }

    fn judge(&self, judge: &mut Judge, groups: &[usize]) -> Result<Judged, SwapError> {
        judge.judge(groups, |groups| self.plan(groups))
    }

    fn row(&self, way: &Way, judge: &mut Judge) -> Result<Row, SwapError> {
        let Way { name, single, groups, sample_loss } = way.clone();
        let Judged { loss, losses, seconds } = self.judge(judge, &groups)?;
        Ok(Row { name, budget: None, single, sample_loss, predicted: self.total(&groups), loss, losses, seconds })
    }

    /// Runs every way on the sample, those within the smallest budget first.
    fn try_ways(&self, wanted: &mut [Wanted], mut judge: Judge, step: Step) -> Result<(), SwapError> {
        let mut last: Option<Way> = None;
        for Wanted { budget, ways } in wanted {
            // What keeps to a smaller budget keeps to this one.
            ways.extend(last.filter(|last| ways.iter().all(|way| way.groups != last.groups)));
            for way in ways.iter_mut() {
                step("choose")?;
                way.sample_loss = Some(self.judge(&mut judge, &way.groups)?.loss);
            }
            let best = &ways[best(ways, self.predictor)];
            let of = budget.as_ref().map_or("", |budget| &budget.name);
            let name = if best.name.contains(OF) { best.name.clone() } else { format!("{}{OF}{of}", best.name) };
            last = Some(Way { name, single: None, ..best.clone() });
        }
        Ok(())
    }

    /// Swaps `count` single groups: what each predictor foretold, and by how much the loss changed from `exact`.
    fn validate(
        &self,
        count: usize,
        exact: f64,
        judge: &mut Judge,
        step: Step,
    ) -> Result<Vec<(Vec<f64>, f64)>, SwapError> {
        let mut validation = Vec::new();
        for number in 0..count {
            step("validate")?;
            // Groups and candidates spread over all, the same for the same numbers.
            let group = (2 * number + 1) * self.measured.len() / (2 * count);
            let candidate = 1 + number % (self.candidates.len() - 1);
            let mut groups = self.exact().groups;
            groups[group] = candidate;
            let change = self.judge(judge, &groups)?.loss - exact;
            let effects = &self.measured[group].effects;
            let predicted = Predictor::ALL.iter().map(|predictor| predictor.of(effects)[candidate]).collect();
            validation.push((predicted, change));
        }
        Ok(validation)
    }
}

/// A budget and the ways that keep to it.
struct Wanted {
    budget: Option<Budget>,
    ways: Vec<Way>,
}

/// Tells that something of a kind begins.
type Step<'a> = &'a mut dyn FnMut(&str) -> Result<(), SwapError>;

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
        let mut budgets: Vec<Option<Budget>> = self.memory.iter().cloned().map(Some).collect();
        budgets.sort_by(|a, b| share_of(a).total_cmp(&share_of(b)));
        if budgets.is_empty() {
            budgets.push(None);
        }
        let material = self.material(folder, sample, &budgets[0], progress)?;
        let mut wanted =
            budgets.into_iter().map(|budget| self.within(&material, budget)).collect::<Result<Vec<_>, _>>()?;

        let model = folder.model(self.loading(folder, self.length), &regard_nn::device::chosen())?;
        // With exact attention alone there is nothing to swap; each group is swapped for each other candidate at most once.
        let validate = self.validate.min(material.measured.len() * (material.candidates.len() - 1));
        let steps = 2 * wanted.iter().map(|wanted| wanted.ways.len() + 1).sum::<usize>() + validate;
        let mut done = 0;
        let mut step = |what: &str| {
            done += 1;
            progress(what, done - 1, steps)
        };
        if self.predictor.is_none() {
            material.try_ways(&mut wanted, Judge::new(&model, sample)?, &mut step)?;
        }

        // Judged on what nothing was measured on.
        let mut judge = Judge::new(&model, judges)?;
        step("judge")?;
        let mut rows = vec![material.row(&material.exact(), &mut judge)?];
        let mut chosen = Vec::new();
        for Wanted { budget, ways } in wanted {
            let best = best(&ways, material.predictor);
            for (number, way) in ways.iter().enumerate() {
                if number == best || self.compare || self.several() && way.single.is_some() {
                    step("judge")?;
                    let row = material.row(way, &mut judge)?;
                    let name = if number == best { format!("{CHOSEN}{}", row.name) } else { row.name };
                    rows.push(Row { name, budget: budget.as_ref().map(|budget| budget.name.clone()), ..row });
                }
            }
            let groups = ways[best].groups.clone();
            chosen.push(Chosen { budget, plan: material.plan(&groups), groups });
        }
        let validation = material.validate(validate, rows[0].loss, &mut judge, &mut step)?;
        let architecture = folder.architecture();
        let (family, layers) = (architecture.family.name(), architecture.layers);
        let source =
            format!("{family} of {layers} layers, {} heads of {}", architecture.heads, architecture.head_width);
        let Material { candidates, prices, measured, .. } = material;
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

    /// Prices the candidates and measures what they do to the model.
    fn material(
        &self,
        folder: &Folder,
        sample: &[Example],
        least: &Option<Budget>,
        progress: &dyn Fn(&str, usize, usize) -> Result<(), SwapError>,
    ) -> Result<Material, SwapError> {
        let architecture = folder.architecture();
        let width = architecture.head_width;
        let group = architecture.heads / architecture.key_value_heads;
        let candidates = candidates(&self.kinds, &self.divisors, architecture.causal, self.length, width, group);
        let mut prices = Vec::new();
        for (number, candidate) in candidates.iter().enumerate() {
            progress("price", number, candidates.len())?;
            prices.push(price(candidate, self.length, width, self.storage, self.seed)?);
        }
        // Memory is counted against keys and values in f32, however they are kept.
        let plain = bytes(&candidates[0], self.length, width, Storage::F32)?;
        let (predictor, seed) = (self.predictor.unwrap_or_default(), self.seed);
        let mut material = Material { candidates, prices, plain, measured: Vec::new(), predictor, seed };
        // Clear cases are told before the model is run.
        let [bytes, seconds] = material.cheapest();
        let beyond = |share: f64, cheapest: f64| share < cheapest * (1.0 - 1e-9);
        if beyond(share_of(least), bytes) || self.time.is_some_and(|time| beyond(time, seconds)) {
            return Err(material.impossible(least));
        }
        let calibration = self.calibration.min(self.length);
        let device = regard_nn::device::chosen().autodiff();
        let trained = folder.model(self.loading(folder, calibration), &device)?.frozen();
        let cut: Vec<Example> = sample.iter().map(|example| cut(example, calibration)).collect::<Result<_, _>>()?;
        let step = |done: usize, all: usize| progress("measure", done, all);
        material.measured = measure(&trained, &cut, &material.candidates, self.seed, &step)?;
        Ok(material)
    }

    /// The ways that keep to a budget.
    fn within(&self, material: &Material, budget: Option<Budget>) -> Result<Wanted, SwapError> {
        let Material { candidates, prices, plain, measured, predictor, .. } = material;
        let groups = measured.len() as f64;
        let limits = Limits {
            bytes: budget.as_ref().map(|budget| budget.share * plain * groups),
            seconds: self.time.map(|share| share * prices[0].seconds * groups),
        };
        let ways = ways(measured, candidates, prices, *predictor, limits);
        let asked = |way: &Way| self.predictor.is_none() || way.name == mix_name(*predictor);
        if ways.iter().any(asked) { Ok(Wanted { budget, ways }) } else { Err(material.impossible(&budget)) }
    }

    /// For `length` tokens; images have one length.
    fn loading(&self, folder: &Folder, length: usize) -> LoadOptions {
        let images = folder.architecture().patch.is_some();
        LoadOptions { context: (!images).then_some(length), stretch: self.stretch }
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
