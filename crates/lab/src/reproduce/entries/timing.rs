//! Times of operators and layers, as entries measure and compare them.

use regard_kernels::Storage;

use crate::{
    bench::{Level, Measurement, Pass, Plan, Subject},
    reproduce::Estimate,
};

/// One sequence at these lengths, up to 15 runs in turns.
pub(super) fn plan<'a>(
    level: Level,
    subjects: &'a [Subject],
    lengths: &'a [usize],
    heads: &'a [usize],
    head_widths: &'a [usize],
) -> Plan<'a> {
    Plan {
        level,
        subjects,
        lengths,
        heads,
        head_widths,
        batches: &[1],
        threads: &[],
        warm_ups: 2,
        repeats: 15,
        seconds: 20.0,
        longest_quadratic: usize::MAX,
        storage: Storage::F32,
        seed: 1,
    }
}

/// What `read` makes of the ratio of two times of the forward pass, within its deciles.
pub(super) fn ratio(one: Option<&Measurement>, other: Option<&Measurement>, read: fn(f64) -> f64) -> Estimate {
    let time = |row: Option<&Measurement>| row.and_then(|row| row.time(Pass::Forward));
    let ratio = time(one).zip(time(other)).map(|(one, other)| one.over(&other));
    let interval = ratio.map(|ratio| [read(ratio.low), read(ratio.high)]);
    let value = ratio.map_or(f64::NAN, |ratio| read(ratio.median));
    Estimate::of_deciles(value, interval, one.map_or(0, |row| row.runs))
}
