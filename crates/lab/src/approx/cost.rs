//! Time and memory of the kernels on the given tensors.

use std::time::Instant;

use regard_alloc::Peak;
use regard_kernels::{Error, View, parallel::release_scratch};
use serde::Serialize;

use super::method::Estimator;

/// Timed runs; the median is reported.
const RUNS: usize = 5;

/// Cost of one forward pass in float32.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Median time in milliseconds.
    pub milliseconds: f64,
    /// Peak bytes in use beyond the inputs, if the allocator counts.
    pub bytes: Option<u64>,
}

/// Runs the kernel of a method; `None` for oracles.
///
/// # Errors
/// Options that the kernel does not support.
pub(super) fn cost(estimator: &Estimator) -> Result<Option<Cost>, Error> {
    let Some(operator) = estimator.operator().transpose()? else { return Ok(None) };
    let tensors = estimator.tensors();
    let data: Vec<Vec<f32>> = tensors.iter().map(|(data, _)| data.iter().map(|x| *x as f32).collect()).collect();
    let views: Vec<View<f32>> = data.iter().zip(&tensors).map(|(data, (_, shape))| View::new(data, shape)).collect();
    let shapes: Vec<&[usize]> = views.iter().map(|view| view.shape).collect();
    let elements = operator.out_shape(&shapes)?.iter().product();
    // The first run measures memory: no scratch is allocated yet.
    release_scratch();
    let peak = Peak::start();
    let mut times = Vec::with_capacity(RUNS);
    let mut bytes = None;
    for run in 0..=RUNS {
        let mut out = vec![0.0; elements];
        let start = Instant::now();
        let saved = operator.forward(&views, &mut out);
        let time = start.elapsed().as_secs_f64() * 1e3;
        drop(saved);
        if run == 0 {
            bytes = peak.bytes();
        } else {
            times.push(time);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(Some(Cost { milliseconds: times[RUNS / 2], bytes }))
}
