//! Learned quantities of a head besides its attention matrix: priors, variances, shifts, gates, and vector norms.

use regard_nn::models::is_buffer;
use regard_tasks::train::Model;
use serde::Serialize;

use super::attended::{Attended, norm};
use crate::moments::Moments;

/// Learned parameters of one head and norms of its vectors.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HeadParameters {
    /// Prior of each component of a mixture; if it depends on positions, their mean over the positions of all sequences together.
    /// Empty without a prior.
    pub priors: Vec<f64>,
    /// Priors that the means are over.
    #[serde(skip)]
    averaged: Vec<Moments>,
    /// Variance of each component of a mixture of Gaussians.
    pub variances: Vec<f64>,
    /// `|b_r|` of each shift of shifted keys.
    pub shifts: Vec<f64>,
    /// `|k_jr - k_js|`, the distance of two components of one key, over positions and pairs of components.
    pub apart: Moments,
    /// Weight of the support in the output of gated Scatterbrain.
    pub gate: Option<f64>,
    /// `|q_i|`.
    pub queries: Moments,
    /// `|k_jr|`.
    pub keys: Moments,
    /// `|v_j|`.
    pub values: Moments,
    /// `|o_i|` of the head's output.
    pub outputs: Moments,
}

impl HeadParameters {
    /// Adds head `h` on one sequence.
    pub(super) fn add(&mut self, attended: &Attended, h: usize) {
        let [queries, keys] = attended.lengths();
        (0..queries).for_each(|i| self.queries.add(norm(attended.query(h, i))));
        (0..keys).filter_map(|j| attended.value(h, j)).for_each(|value| self.values.add(norm(value)));
        self.gate = attended.record().calls[0].shares.as_ref().map(|shares| f64::from(shares[h]));
        let Some(own) = attended.keys(h) else { return };
        own.components.iter().flatten().for_each(|key| self.keys.add(norm(key)));
        let pairs = (0..own.components.len()).flat_map(|r| (0..r).map(move |s| (r, s)));
        for (r, s) in pairs {
            for (a, b) in own.components[r].iter().zip(&own.components[s]) {
                self.apart.add(norm(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>()));
            }
        }
        if attended.tensor("log_prior").is_some() && own.components.len() > 1 {
            self.averaged.resize(own.components.len(), Moments::default());
            for (all, priors) in self.averaged.iter_mut().zip(&own.log_priors) {
                *all = all.and(Moments::of_finite(priors.iter().map(|log| log.exp())));
            }
            self.priors = self.averaged.iter().map(|all| all.mean).collect();
        }
        if let Some(variance) = attended.tensor("variance") {
            self.variances = variance.data.to_vec();
        }
        if let Some(shift) = attended.tensor("shift") {
            let [key_heads, components, width] = shift.shape[..] else { return };
            let head = h / (attended.heads() / key_heads);
            let norms = shift.data[head * components * width..][..components * width].chunks_exact(width).map(norm);
            self.shifts = norms.collect();
        }
    }
}

/// The key projection of one component.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyProjection {
    /// Name of the parameter, as in `layers.0.attention.w_k`.
    pub name: String,
    /// Component, from 1; none if there is only one.
    pub component: Option<usize>,
    /// Input channels `d`.
    pub rows: usize,
    /// Channels of all key heads `Hk D`.
    pub columns: usize,
    /// Elements, row by row.
    pub data: Vec<f64>,
}

/// Every key projection of a model, by name and component.
pub fn key_projections(model: &Model) -> Vec<KeyProjection> {
    let mut all = Vec::new();
    for (name, tensor) in model.to_host() {
        let last = name.rsplit('.').next().unwrap_or_default();
        if !matches!(last, "w_k" | "w_key") || is_buffer(&name) {
            continue;
        }
        let (components, rows, columns) = match tensor.shape[..] {
            [rows, columns] => (1, rows, columns),
            [components, rows, columns] => (components, rows, columns),
            _ => continue,
        };
        let parts = tensor.data.chunks_exact(rows * columns).enumerate();
        all.extend(parts.map(|(r, data)| KeyProjection {
            name: name.clone(),
            component: (components > 1).then_some(r + 1),
            rows,
            columns,
            data: data.iter().map(|x| f64::from(*x)).collect(),
        }));
    }
    all
}
