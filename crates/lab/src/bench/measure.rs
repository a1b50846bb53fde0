//! One mechanism at one length.

use std::{sync::Arc, time::Instant};

use regard_kernels::{Call, Error, Layout, Mask, Operator, View, parallel::release_scratch};
use regard_tasks::train::memory;

use super::{
    BenchError, Measurement, Plan, Subject, Timing,
    inputs::{Sizes, Tensor, Tensors},
};

/// An operator with its tensors, and what its runs have shown.
pub(super) struct Case {
    label: String,
    length: usize,
    sizes: String,
    operator: Arc<dyn Operator>,
    inputs: Vec<Tensor>,
    grad_out: Tensor,
    wanted: Vec<bool>,
    /// Milliseconds of the forward pass and of both, a run.
    times: Vec<(f64, f64)>,
    bytes: Option<(u64, u64)>,
}

/// What one run gives.
struct Run {
    times: (f64, f64),
    /// Peaks after the forward pass and after both, since the last reset.
    peaks: Option<(u64, u64)>,
    out: Vec<f32>,
    grads: Vec<Option<Vec<f32>>>,
}

impl Case {
    /// # Errors
    /// Options that do not fit each other or the length.
    pub fn new(subject: &Subject, plan: &Plan, length: usize, tensors: &mut Tensors) -> Result<Self, Error> {
        let options = subject.options.within_budget(length, length, plan.head_width)?;
        let mask = Mask { causal: options.causal, window: options.window, ..Mask::default() };
        let operator = options.operator(Call { layout: Layout::TokenFirst, mask, ..Call::default() })?;
        let sizes = Sizes { batch: plan.batch, length, head_width: plan.head_width };
        let names = operator.inputs();
        let inputs = names.iter().map(|name| tensors.input(name, &options, sizes)).collect::<Result<Vec<_>, _>>()?;
        let shapes: Vec<&[usize]> = inputs.iter().map(|input| input.shape.as_slice()).collect();
        let grad_out = tensors.gradient(operator.out_shape(&shapes)?);
        let wanted = names.iter().map(|name| !operator.constants().contains(name)).collect();
        Ok(Self {
            label: subject.label.clone(),
            length,
            sizes: options.sizes(),
            operator,
            inputs,
            grad_out,
            wanted,
            times: Vec::new(),
            bytes: None,
        })
    }

    /// A run for its memory, from which scratch is not yet there, and for threads, tables and pages to be in place.
    ///
    /// # Errors
    /// An output or gradient that is not finite.
    pub fn warm_up(&mut self) -> Result<(), BenchError> {
        release_scratch();
        let before = memory::current_bytes();
        memory::reset_peak();
        let run = self.both();
        let beyond =
            |(peaks, before): ((u64, u64), u64)| (peaks.0.saturating_sub(before), peaks.1.saturating_sub(before));
        self.bytes = run.peaks.zip(before).map(beyond);
        let failed = |what: String| BenchError::Numeric { label: self.label.clone(), length: self.length, what };
        let finite = |data: &[f32]| data.iter().all(|x| x.is_finite());
        // The output was poisoned before: a row that no kernel wrote shows here.
        if !finite(&run.out) {
            return Err(failed("the output".into()));
        }
        for (name, grad) in self.operator.inputs().iter().zip(&run.grads) {
            if grad.as_ref().is_some_and(|grad| !finite(grad)) {
                return Err(failed(format!("the gradient of {name}")));
            }
        }
        Ok(())
    }

    /// A timed run.
    pub fn run(&mut self) {
        let times = self.both().times;
        self.times.push(times);
    }

    /// Seconds of all timed runs.
    pub fn seconds(&self) -> f64 {
        self.times.iter().map(|(_, both)| both / 1e3).sum()
    }

    /// Forward and backward pass. The clock starts with the output in place, as a caller that keeps buffers has it.
    fn both(&self) -> Run {
        let views: Vec<View<f32>> = self.inputs.iter().map(|input| View::new(&input.data, &input.shape)).collect();
        let mut out = vec![f32::NAN; self.grad_out.data.len()];
        let start = Instant::now();
        let saved = self.operator.forward(&views, &mut out);
        let forward = start.elapsed();
        let forward_peak = memory::peak_bytes();
        let resumed = Instant::now();
        let grads = self.operator.backward(&views, &out, &saved, &self.grad_out.data, &self.wanted);
        let both = forward + resumed.elapsed();
        Run {
            times: (forward.as_secs_f64() * 1e3, both.as_secs_f64() * 1e3),
            peaks: forward_peak.zip(memory::peak_bytes()),
            out,
            grads,
        }
    }

    /// What the runs come to.
    pub fn measurement(self) -> Measurement {
        let (forward, both): (Vec<f64>, Vec<f64>) = self.times.iter().copied().unzip();
        Measurement {
            label: self.label,
            length: self.length,
            sizes: self.sizes,
            runs: forward.len(),
            forward: Timing::of(forward),
            both: Timing::of(both),
            forward_bytes: self.bytes.map(|(forward, _)| forward),
            both_bytes: self.bytes.map(|(_, both)| both),
        }
    }
}

impl Timing {
    /// Of at least one run.
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let middle = times.len() / 2;
        let median = if times.len() % 2 == 1 { times[middle] } else { 0.5 * (times[middle - 1] + times[middle]) };
        Self { median, fastest: times[0], slowest: times[times.len() - 1] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(Timing::of(vec![5.0, 1.0, 2.0]), Timing { median: 2.0, fastest: 1.0, slowest: 5.0 });
        assert_eq!(Timing::of(vec![4.0, 1.0, 2.0, 8.0]).median, 3.0);
        assert_eq!(Timing::of(vec![7.0]), Timing { median: 7.0, fastest: 7.0, slowest: 7.0 });
    }
}
