//! Curves over positions from several independent measurements, with confidence intervals.

use regard_report::Point;
use serde::Serialize;

use super::{
    estimate::Estimate,
    lemma::{slope, spaced_positions},
    tally::{Quantity, Tally},
};
use crate::moments::Moments;

/// Independent replicates of a measurement: decoders, or sequences of a trained model.
#[derive(Clone, Debug, Default)]
pub struct Replicates(pub Vec<Tally>);

/// Statistic over the values at one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Statistic {
    /// Their mean.
    Mean,
    /// Their variance.
    Variance,
}

/// A statistic at some positions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curve {
    /// Layer, from 1.
    pub layer: usize,
    /// The measured quantity.
    pub quantity: Quantity,
    /// The statistic.
    pub statistic: Statistic,
    /// Position, from 1, and the estimate there.
    pub points: Vec<(usize, Estimate)>,
}

impl Replicates {
    /// The statistic at every position, from 1; none if nothing was measured.
    pub fn curve(&self, layer: usize, quantity: Quantity, statistic: Statistic) -> Option<Curve> {
        let curves = self.curves(layer, quantity)?;
        let at = |m: usize| {
            let values: Vec<f64> = curves.iter().map(|curve| statistic.of(&curve[m])).collect();
            (m + 1, Estimate::of(&values))
        };
        Some(Curve { layer, quantity, statistic, points: (0..curves[0].len()).map(at).collect() })
    }

    /// Slope of log variance over log position, at logarithmically spaced positions.
    pub fn log_slope(&self, layer: usize, quantity: Quantity) -> Option<Estimate> {
        let curves = self.curves(layer, quantity)?;
        let one = |curve: &[Moments]| {
            let at = |m: usize| ((m as f64).ln(), curve[m - 1].variance().ln());
            slope(&spaced_positions(curve.len()).into_iter().map(at).collect::<Vec<_>>())
        };
        Some(Estimate::of(&curves.into_iter().map(one).collect::<Vec<_>>()))
    }

    /// The variance over all positions combined.
    pub fn overall(&self, layer: usize, quantity: Quantity) -> Option<Estimate> {
        let one = |curve: &[Moments]| curve.iter().copied().fold(Moments::default(), Moments::and).variance();
        Some(Estimate::of(&self.curves(layer, quantity)?.into_iter().map(one).collect::<Vec<_>>()))
    }

    /// The mean over positions of the variance times `factor` of the position.
    pub fn scaled(&self, layer: usize, quantity: Quantity, factor: impl Fn(usize) -> f64) -> Option<Estimate> {
        let one = |curve: &[Moments]| {
            let positions = spaced_positions(curve.len());
            let count = positions.len() as f64;
            positions.into_iter().map(|m| curve[m - 1].variance() * factor(m) / count).sum()
        };
        Some(Estimate::of(&self.curves(layer, quantity)?.into_iter().map(one).collect::<Vec<f64>>()))
    }

    fn curves(&self, layer: usize, quantity: Quantity) -> Option<Vec<&[Moments]>> {
        let curves: Option<Vec<_>> = self.0.iter().map(|tally| tally.curve(layer, quantity)).collect();
        curves.filter(|curves| curves.first().is_some_and(|curve| !curve.is_empty()))
    }
}

impl Statistic {
    fn of(self, moments: &Moments) -> f64 {
        match self {
            Self::Mean => moments.mean,
            Self::Variance => moments.variance(),
        }
    }
}

impl Curve {
    /// Estimates times a position-dependent factor, with confidence intervals, at positions an eighth of an octave
    /// apart.
    pub fn drawn(&self, factor: impl Fn(usize) -> f64) -> Vec<Point> {
        let point = |(m, estimate): &(usize, Estimate)| {
            let factor = factor(*m);
            Point::deviating(*m as f64, estimate.mean * factor, estimate.half.unwrap_or(0.0) * factor.abs())
        };
        self.thinned().points.iter().map(point).collect()
    }

    /// The same at positions that are an eighth of an octave apart.
    #[must_use]
    pub fn thinned(&self) -> Self {
        let points = spaced_positions(self.points.len()).into_iter().map(|m| self.points[m - 1]).collect();
        Self { points, ..self.clone() }
    }

    /// Fraction of positions whose interval contains the value of `theory`.
    pub fn share_held(&self, theory: impl Fn(usize) -> f64) -> f64 {
        let held = self.points.iter().filter(|(m, estimate)| estimate.holds(theory(*m))).count();
        held as f64 / self.points.len() as f64
    }
}
