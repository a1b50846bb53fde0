//! One attention of a model on one sequence.

use regard_kernels::{Averaged, Mask, View, Weights, mechanism::Inference, support::SupportKind};
use regard_nn::{
    attention::{AttentionCall, AttentionRecord},
    blocks::{Place, Stack},
};

/// Name of an attention, as in `layer 1` or `decoder 2, cross`, and of its place.
pub fn place_name(stack: Stack, layer: usize, place: Place, two_stacks: bool) -> (String, &'static str) {
    match (two_stacks, stack, place) {
        (false, ..) => (format!("layer {layer}"), "layer"),
        (_, Stack::Encoder, _) => (format!("encoder {layer}"), "encoder"),
        (_, _, Place::CrossWeights) => (format!("decoder {layer}, cross"), "cross"),
        _ => (format!("decoder {layer}"), "decoder"),
    }
}

/// A record of one sequence without padding, its inputs in float64.
pub struct Attended<'a> {
    record: &'a AttentionRecord,
    /// Inputs of each call, in the order of its operator.
    inputs: Vec<Vec<(Vec<f64>, &'a [usize])>>,
    mask: Mask,
}

/// The keys of one head as Gaussians.
pub(super) struct Keys {
    /// `k_jr` by component and position.
    pub components: Vec<Vec<Vec<f64>>>,
    /// `ln pi_jr` by component and position.
    pub log_priors: Vec<Vec<f64>>,
    /// `s_r`.
    pub variances: Vec<f64>,
}

impl<'a> Attended<'a> {
    /// # Panics
    /// A record of several sequences.
    pub fn new(record: &'a AttentionRecord) -> Self {
        let inputs: Vec<_> = record.calls.iter().map(AttentionCall::wide_inputs).collect();
        assert!(inputs.iter().all(|inputs| inputs[0].1[0] == 1), "records of one sequence");
        Self { record, inputs, mask: record.options.mask() }
    }

    /// Number of query heads; slots if experts are chosen.
    pub fn heads(&self) -> usize {
        self.tensor("q").map_or(0, |q| q.shape[2])
    }

    /// Numbers of queries and keys.
    pub fn lengths(&self) -> [usize; 2] {
        let q = self.tensor("q").map_or(0, |q| q.shape[1]);
        // LSH and shared values have only one of the two.
        let keys = ["v", "k"].into_iter().find_map(|name| self.tensor(name)).map_or(q, |keys| keys.shape[1]);
        [q, keys]
    }

    /// Keys visible to query `i` under the mask, ignoring the support.
    pub fn visible(&self, i: usize) -> std::ops::Range<usize> {
        let [n, s] = self.lengths();
        self.mask.visible(i, n, s)
    }

    /// What is averaged here, one or more matrices per head.
    pub fn averages(&self) -> Vec<Averaged> {
        let views = views(&self.inputs[0]);
        self.record.calls[0].operator.weights(&views, 0, 0).iter().map(|weights| weights.averaged).collect()
    }

    /// Row by row the weights of some heads for what is `averaged`: `of(rows)` receives a function from a query index
    /// to its row of each head.
    ///
    /// Calls averaged by a gate are averaged here too: `W = sum_c share_c W_c`.
    pub fn with_rows<T>(
        &self,
        averaged: Averaged,
        heads: &[usize],
        of: impl FnOnce(&(dyn Fn(usize) -> Vec<Vec<f64>> + Sync)) -> T,
    ) -> T {
        let views: Vec<Vec<View<f64>>> = self.inputs.iter().map(|inputs| views(inputs)).collect();
        let weights = |call: usize, head: usize| -> Weights<'_> {
            let all = self.record.calls[call].operator.weights(&views[call], 0, head);
            all.into_iter().find(|weights| weights.averaged == averaged).expect("one of `averages`")
        };
        let heads: Vec<Vec<(f64, Weights)>> = heads
            .iter()
            .map(|&h| {
                let share = |call: usize| self.record.calls[call].shares.as_ref().map_or(1.0, |own| f64::from(own[h]));
                (0..self.record.calls.len()).map(|call| (share(call), weights(call, h))).collect()
            })
            .collect();
        of(&|i| {
            let row = |calls: &Vec<(f64, Weights)>| {
                let mut row = vec![0.0; calls[0].1.keys];
                for (share, weights) in calls {
                    row.iter_mut().zip(weights.row(i)).for_each(|(sum, weight)| *sum += share * weight);
                }
                row
            };
            heads.iter().map(row).collect()
        })
    }

    /// Value `j` of head `h`; none if values are not averaged.
    pub fn value(&self, h: usize, j: usize) -> Option<&[f64]> {
        let at = self.record.calls[0].operator.inputs().iter().position(|name| *name == "v")?;
        let (data, shape) = &self.inputs[0][at];
        let head = h / (self.heads() / shape[2]);
        Some(&data[(j * shape[2] + head) * shape[3]..][..shape[3]])
    }

    /// Query `i` of head `h`.
    pub fn query(&self, h: usize, i: usize) -> &[f64] {
        let (data, shape) = &self.inputs[0][0];
        &data[(i * shape[2] + h) * shape[3]..][..shape[3]]
    }

    /// Head width.
    pub fn width(&self) -> usize {
        self.inputs[0][0].1[3]
    }

    /// Name and place of the attention in a model with one or two stacks.
    pub fn name(&self, two_stacks: bool) -> (String, &'static str) {
        place_name(self.record.stack, self.record.layer, self.record.place, two_stacks)
    }

    /// The record.
    pub fn record(&self) -> &'a AttentionRecord {
        self.record
    }

    /// The keys of head `h` as Gaussians whose log-likelihoods are the scores: those of the mixture with its prior and
    /// variances, else one per key with variance `sqrt(D)`, which equals `exp(q.k / sqrt D)` up to norms (arXiv
    /// 2110.08678, section 2.1). None if there are no query-key scores.
    pub(super) fn keys(&self, h: usize) -> Option<Keys> {
        let [_, s] = self.lengths();
        let width = self.width();
        if self.tensor("w_t").is_some() {
            return None;
        }
        let options = &self.record.options;
        let Some(k) = self.tensor("k") else {
            // LSH: keys are the normalised queries.
            let unit = |j: usize| {
                let norm = norm(self.query(h, j));
                self.query(h, j).iter().map(|x| if norm > 0.0 { x / norm } else { 0.0 }).collect()
            };
            debug_assert_eq!(options.support.kind, SupportKind::Lsh);
            return Some(Keys::single((0..s).map(unit).collect(), width));
        };
        let (components, key_heads) = match k.shape {
            [_, _, components, heads, _] => (*components, *heads),
            other => (1, other[2]),
        };
        let head = h / (self.heads() / key_heads);
        let key = |j: usize, r: usize| k.data[((j * components + r) * key_heads + head) * width..][..width].to_vec();
        let shift = self.tensor("shift");
        let count = shift.map_or(components, |shift| shift.shape[1]);
        let shifted = |j: usize, r: usize| match shift {
            Some(shift) => {
                let own = &shift.data[(head * count + r) * width..][..width];
                key(j, 0).iter().zip(own).map(|(x, shift)| x + shift).collect()
            }
            None => key(j, r),
        };
        let components: Vec<Vec<Vec<f64>>> = (0..count).map(|r| (0..s).map(|j| shifted(j, r)).collect()).collect();
        let variances = match self.tensor("variance") {
            Some(variance) => variance.data.to_vec(),
            None => vec![(width as f64).sqrt(); count],
        };
        let prior = self.tensor("log_prior").filter(|_| options.mixture.inference != Inference::Hard);
        let raw = |r: usize, j: usize| match prior {
            Some(prior) if prior.shape.len() == 3 => prior.data[(h * count + r) * prior.shape[2] + j],
            Some(prior) => prior.data[h * count + r],
            None => 0.0,
        };
        let mut log_priors: Vec<Vec<f64>> = (0..count).map(|r| (0..s).map(|j| raw(r, j)).collect()).collect();
        // A learned prior may have any scale, which cancels in the weights; a likelihood needs probabilities.
        for j in 0..s {
            let all: Vec<f64> = log_priors.iter().map(|own| own[j]).collect();
            let sum = log_sum_exp(&all);
            log_priors.iter_mut().for_each(|own| own[j] -= sum);
        }
        Some(Keys { components, log_priors, variances })
    }

    /// Input `name` of the first call.
    pub(super) fn tensor(&self, name: &str) -> Option<View<'_, f64>> {
        let at = self.record.calls[0].operator.inputs().iter().position(|input| *input == name)?;
        let (data, shape) = &self.inputs[0][at];
        Some(View::new(data, shape))
    }
}

impl Keys {
    fn single(keys: Vec<Vec<f64>>, width: usize) -> Self {
        let log_priors = vec![vec![0.0; keys.len()]];
        Self { components: vec![keys], log_priors, variances: vec![(width as f64).sqrt()] }
    }
}

fn views<'b>(inputs: &'b [(Vec<f64>, &'b [usize])]) -> Vec<View<'b, f64>> {
    inputs.iter().map(|(data, shape)| View::new(&data[..], shape)).collect()
}

/// The Euclidean norm.
pub(super) fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// `ln sum exp`; negative infinity if empty.
pub(super) fn log_sum_exp(values: &[f64]) -> f64 {
    let top = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if top == f64::NEG_INFINITY { top } else { top + values.iter().map(|x| (x - top).exp()).sum::<f64>().ln() }
}
