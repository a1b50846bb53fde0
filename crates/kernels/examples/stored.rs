//! How fast products read weights as they are stored, beside a copy of the same bytes.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use regard_kernels::{
    Storage,
    parallel::for_each_part,
    stored::{Numbers, product},
};

/// Columns and rows of a weight that no cache holds.
const FROM: usize = 2048;
const TO: usize = 16384;

fn main() {
    let numbers: Vec<f32> = (0..FROM * TO).map(|i| ((i * 7919) % 2003) as f32 / 1000.0 - 1.0).collect();
    let mut copy = vec![0.0; numbers.len()];
    let part = 1 << 16;
    let seconds =
        fastest(|| for_each_part(&mut copy, part, |n, to| to.copy_from_slice(&numbers[n * part..][..to.len()])));
    println!("copy            {:6.1} GB/s read", size_of_val(&numbers[..]) as f64 / seconds / 1e9);
    for &storage in Storage::ALL {
        let mut weight = Numbers::new(storage, FROM);
        numbers.chunks_exact(FROM).for_each(|row| weight.push(row));
        for rows in [1, 2, 4, 8, 32, 256] {
            let (x, mut out) = (&numbers[..rows * FROM], vec![0.0; rows * TO]);
            let seconds = fastest(|| product([rows, FROM, TO], x, weight.stored(), None, &mut out));
            let (read, done) = (weight.bytes() as f64 / seconds / 1e9, (2 * rows * FROM * TO) as f64 / seconds / 1e9);
            println!("{:5} {rows:3} rows  {read:6.1} GB/s read {done:7.1} GFLOP/s", storage.name());
        }
    }
}

/// Seconds of the fastest of a few runs.
fn fastest(mut run: impl FnMut()) -> f64 {
    let once = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    (0..40).map(once).fold(f64::INFINITY, f64::min)
}
