//! Exact attention at various shapes: batches, head widths, shared keys, few queries, and a near-empty call.

use std::{
    hint::black_box,
    sync::atomic::{AtomicBool, Ordering},
};

use regard_kernels::{
    AttentionOptions, InputSizes, Layout,
    parallel::{for_each_part, release_scratch},
    simd,
};
use regard_report::{Block, Cell, Column, Format, Report, Section, Table};
use regard_tasks::train::Environment;
use serde::Serialize;
use serde_json::json;

use super::{
    BenchError, Timing,
    inputs::Tensors,
    operator::Problem,
    workload::{Meter, Trouble, Workload},
};
use crate::record::{Record, Shown};

/// Sizes of a call of exact attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// Number of sequences.
    pub batch: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub key_heads: usize,
    /// Queries.
    pub queries: usize,
    /// Keys.
    pub keys: usize,
    /// Head width.
    pub width: usize,
    /// Whether attention is causal.
    pub causal: bool,
}

const fn shape(
    (batch, heads, key_heads): (usize, usize, usize),
    (queries, keys): (usize, usize),
    width: usize,
    causal: bool,
) -> Shape {
    Shape { batch, heads, key_heads, queries, keys, width, causal }
}

/// Shapes of encoders and decoders of all sizes, of decoding, of a prompt chunk, and a minimal one whose time is the
/// call overhead.
pub const SHAPES: [Shape; 15] = [
    shape((1, 8, 8), (2048, 2048), 64, false),
    shape((1, 8, 8), (512, 512), 64, false),
    shape((8, 8, 8), (128, 128), 64, false),
    shape((32, 4, 4), (128, 128), 32, false),
    shape((64, 12, 12), (64, 64), 64, false),
    shape((1, 12, 12), (1024, 1024), 128, true),
    shape((1, 4, 4), (2048, 2048), 256, false),
    shape((1, 16, 16), (1024, 1024), 80, false),
    shape((1, 16, 16), (1024, 1024), 112, true),
    shape((1, 8, 8), (2048, 2048), 48, false),
    shape((1, 9, 3), (2048, 2048), 64, true),
    shape((1, 9, 3), (1, 4096), 64, false),
    shape((8, 8, 8), (1, 2048), 64, false),
    shape((1, 8, 8), (16, 4096), 64, false),
    shape((1, 1, 1), (4, 4), 8, false),
];

impl Shape {
    /// Multiplications and additions of the forward pass, for visible pairs.
    fn operations(&self) -> f64 {
        let Self { queries, keys, .. } = *self;
        let pairs: usize = match self.causal {
            true => (0..queries).map(|i| (i + 1 + keys).saturating_sub(queries)).sum(),
            false => queries * keys,
        };
        4.0 * (self.batch * self.heads * self.width * pairs) as f64
    }

    /// Bytes of keys and values.
    fn cached(&self) -> f64 {
        (2 * size_of::<f32>() * self.batch * self.key_heads * self.keys * self.width) as f64
    }
}

/// Time and memory of one shape.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ShapeTime {
    /// The sizes.
    #[serde(flatten)]
    pub shape: Shape,
    /// Number of timed runs.
    pub runs: usize,
    /// Time of the forward pass.
    pub forward: Timing,
    /// Time of forward and backward pass together.
    pub both: Timing,
    /// Peak bytes in use in both passes, output included, beyond the inputs and the output gradient.
    pub bytes: Option<u64>,
}

/// A table of shapes.
#[derive(Clone, Debug)]
pub struct Shapes {
    /// Times, in the order of [`SHAPES`].
    pub times: Vec<ShapeTime>,
    /// Memory read bandwidth of all threads together in bytes per second, measured by a sum.
    pub read: f64,
    /// The command line.
    pub command: String,
    /// Machine, version and date.
    pub environment: Environment,
}

/// Times `shape` in at least three and at most `repeats` runs that take no more than `seconds` together.
///
/// # Errors
/// A number that is not finite, sizes that do not fit, or a raised `stop`.
pub fn time_shape(
    shape: Shape,
    (repeats, seconds): (usize, f64),
    seed: u64,
    stop: &AtomicBool,
) -> Result<ShapeTime, BenchError> {
    let Shape { batch, heads, key_heads, queries, keys, width, causal } = shape;
    let key_value_heads = Some(key_heads).filter(|key_heads| *key_heads != heads);
    let options = AttentionOptions { heads, key_value_heads, causal, ..AttentionOptions::default() };
    let sizes = InputSizes { queries, ..InputSizes::new(Layout::HeadFirst, batch, keys, heads, width) };
    let problem = Problem::of(&options, &sizes, &mut Tensors::new(seed));
    let mut problem =
        problem.map_err(|source| BenchError::Options { label: "softmax".into(), length: keys, source })?;
    let mut run = |first: bool| {
        problem.run(first).map_err(|trouble| match trouble {
            Trouble::NotFinite(what) => BenchError::Numeric { label: "softmax".into(), length: keys, what },
            Trouble::Other(problem) => BenchError::Model { label: "softmax".into(), length: keys, problem },
        })
    };
    release_scratch();
    let bytes = run(true)?.bytes[1];
    let (mut forward, mut both, mut spent) = (Vec::new(), Vec::new(), 0.0);
    while forward.len() < 3 || (forward.len() < repeats && spent < 1e3 * seconds) {
        if stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted);
        }
        let times = run(false)?.times;
        forward.push(times[0]);
        both.push(times[1]);
        spent += times[1];
    }
    let runs = forward.len();
    let of = |times| Timing::of(times).expect("at least three runs");
    Ok(ShapeTime { shape, runs, forward: of(forward), both: of(both), bytes })
}

/// Memory read bandwidth of all threads together in bytes per second: the median of several passes over 256 MiB.
pub fn read_rate() -> f64 {
    const FLOATS: usize = 64 << 20;
    let mut buffer = vec![1.0f32; FLOATS];
    let mut pass = || {
        let clock = Meter::start();
        for_each_part(&mut buffer, FLOATS / 256, |_, part| {
            black_box(simd::vectorize(
                #[inline(always)]
                || simd::total(part),
            ));
        });
        clock.milliseconds()
    };
    let times = Timing::of((0..7).map(|_| pass()).collect()).expect("seven passes");
    (FLOATS * size_of::<f32>()) as f64 / (times.median / 1e3)
}

impl Shapes {
    /// One row per shape.
    pub fn table(&self) -> Table {
        let number = |title: &str, unit: &str| Column::number(title, Format::Significant(3)).unit(unit);
        let whole = |title: &str| Column::number(title, Format::Plain);
        let columns = vec![
            whole("batch"),
            Column::text("heads"),
            whole("queries"),
            whole("keys"),
            whole("head width"),
            Column::text("mask"),
            number("forward", "ms"),
            number("forward+backward", "ms"),
            number("forward", "GFLOP/s"),
            number("keys and values read", "GB/s"),
            Column::number("memory", Format::Bytes),
        ];
        let rows = self.times.iter().map(|time| {
            let ShapeTime { shape, forward, both, bytes, .. } = time;
            let shared =
                if shape.heads == shape.key_heads { String::new() } else { format!(" on {}", shape.key_heads) };
            // Many queries read keys from cache, where the rate says nothing about memory.
            let read = (shape.queries <= 16 && shape.keys > 512).then(|| shape.cached() / forward.median / 1e6);
            vec![
                shape.batch.into(),
                format!("{}{shared}", shape.heads).into(),
                shape.queries.into(),
                shape.keys.into(),
                shape.width.into(),
                if shape.causal { "causal" } else { "" }.into(),
                forward.median.into(),
                both.median.into(),
                (shape.operations() / forward.median / 1e6).into(),
                read.into(),
                Cell::from(*bytes),
            ]
        });
        let title = format!("exact attention, f32, {} vectors", simd::vectors().name());
        let mut table = Table::new(title, columns);
        rows.for_each(|row| table.push(row));
        table.note(format!(
            "Medians of 3 runs and more. A plain read of memory by all threads gives {:.1} GB/s. The last shape shows what a call \
             costs by itself. Memory: most bytes in use at once beyond the inputs and the gradient of the output.",
            self.read / 1e9
        ))
    }
}

impl Shown for Shapes {
    fn record(&self) -> Record<'_> {
        Record { command: &self.command, environment: &self.environment }
    }

    fn report(&self) -> Report {
        Report {
            title: "Exact attention at many shapes".into(),
            summary: format!("{} shapes, one call each, times of medians.", self.times.len()),
            facts: self.record().facts(),
            sections: vec![Section { title: "Figures".into(), blocks: vec![Block::Table(self.table())] }],
        }
    }

    fn tables(&self) -> Vec<Table> {
        vec![self.table()]
    }

    fn to_json(&self) -> serde_json::Value {
        json!({
            "command": self.command,
            "environment": self.environment,
            "vectors": simd::vectors().name(),
            "read_bytes_per_second": self.read,
            "shapes": self.times,
            "table": self.table().to_json(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_timed_and_counted() {
        let shape = shape((2, 4, 2), (3, 700), 16, true);
        let time = time_shape(shape, (5, 60.0), 1, &AtomicBool::new(false)).unwrap();
        assert!(time.runs == 5 && 0.0 < time.forward.median && time.forward.median < time.both.slowest);
        assert_eq!(shape.operations(), (4 * 2 * 4 * 16 * (698 + 699 + 700)) as f64);
        assert_eq!(shape.cached(), (2 * 4 * 2 * 2 * 700 * 16) as f64);
        let stopped = time_shape(shape, (5, 60.0), 1, &AtomicBool::new(true));
        assert!(matches!(stopped, Err(BenchError::Interrupted)));
    }
}
