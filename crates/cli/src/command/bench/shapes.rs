//! `regard bench --shapes`

use regard_lab::bench::{SHAPES, Shapes, read_rate, time_shape};

use crate::{
    args::Common,
    command::{bench::Bench, command_line, environment, make_out, show},
    console,
    error::Outcome,
    signal,
};

/// Times exact attention at all shapes.
///
/// # Errors
/// An interrupt, a report that cannot be written.
pub(super) fn run(args: &Bench, common: &Common) -> Outcome {
    make_out(args.out.as_deref())?;
    let bar = console::bar(SHAPES.len() as u64, common.quiet);
    bar.set_prefix("bench");
    let stop = signal::stop_flag();
    let mut times = Vec::with_capacity(SHAPES.len());
    for shape in SHAPES {
        times.push(time_shape(shape, (args.repeats, args.seconds), args.seed, &stop)?);
        bar.inc(1);
    }
    let read = read_rate();
    bar.finish_and_clear();
    let shapes = Shapes { times, read, command: command_line(), environment: environment() };
    show(common, args.out.as_deref(), &shapes)
}
