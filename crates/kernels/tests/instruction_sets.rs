//! Every instruction set that this processor has, on any number of threads, again and again.
//!
//! One test in a process of its own: the vectors in use are those of the whole process.

// How far they are apart is worth a line.
#![allow(clippy::print_stdout)]

mod support;

use regard_kernels::{
    Layout, Mask,
    simd::{Vectors, limit, vectors},
};
use regard_testkit::{
    Report,
    measure::{error, largest},
};
use support::{
    Outcome, Sizes,
    setting::{Setting, TWIN_BOUND, walk},
};

/// Bits on 1, 2, 3 and 7 threads, and of a second backward pass, are those of the first pass on one thread; another instruction
/// set adds up in other vectors, which moves roundings and nothing else.
#[test]
fn threads_and_repeats_give_the_same_bits_and_instruction_sets_the_same_numbers() {
    let pools = [1, 2, 3, 7].map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().expect("a pool"));
    let available: Vec<Vectors> = Vectors::ALL.iter().copied().rev().filter(|vectors| vectors.available()).collect();
    assert_eq!(available[0], vectors(), "the widest is what is used unless limited");
    let worst = std::cell::RefCell::new(vec![[0.0f64; 2]; available.len()]);
    walk(|variant, report| {
        for (sizes, causal) in [
            (Sizes::new(2, 2, 70, 70), true),
            (Sizes { key_heads: 1, width: 40, value_width: 24, ..Sizes::new(1, 2, 21, 150) }, false),
            (Sizes { key_heads: 1, width: 40, value_width: 24, ..Sizes::new(1, 2, 3, 600) }, true),
        ] {
            let mask = Mask { causal, ..Mask::none() };
            let setting = Setting::decided(variant, sizes, mask, Layout::TokenFirst);
            let outcomes: Vec<Outcome> = available
                .iter()
                .map(|vectors| {
                    limit(*vectors);
                    let [one, others @ ..] = pools.each_ref().map(|pool| pool.install(|| setting.kernel()));
                    for (threads, other) in [2, 3, 7].into_iter().zip(&others).chain([(1, &setting.kernel())]) {
                        let label = format!("{} on {threads} threads", vectors.name());
                        same(&setting, &label, other, &one, report);
                    }
                    one
                })
                .collect();
            for (n, outcome) in outcomes.iter().enumerate().skip(1) {
                let widest = &outcomes[0];
                let label = |what: &str| setting.label(&format!("{what} by {}", available[n].name()));
                let mut worst = worst.borrow_mut();
                report.compare(label("out"), &outcome.out.data, &widest.out.data, TWIN_BOUND);
                worst[n][0] = worst[n][0].max(error(&outcome.out.data, &widest.out.data));
                for (input, name) in setting.learned() {
                    let (seen, expected) = (&outcome.grads[input].data, &widest.grads[input].data);
                    if largest(expected) < TWIN_BOUND {
                        // The weight of a query's only key is 1 whatever it holds: its gradient is 0 but for rounding.
                        report.require(largest(seen) < TWIN_BOUND, label(&format!("grad.{name} is not 0")));
                        continue;
                    }
                    let bound = setting.gradient_bound(input, &widest.grads);
                    report.compare(label(&format!("grad.{name}")), seen, expected, bound);
                    worst[n][1] = worst[n][1].max(error(seen, expected) / bound);
                }
            }
        }
    });
    for (vectors, [out, grads]) in available.iter().zip(worst.into_inner()).skip(1) {
        println!(
            "{} against {}: outputs differ by {out:.1e} (bound {TWIN_BOUND:.0e}), gradients by {grads:.2} of their bounds",
            vectors.name(),
            available[0].name()
        );
    }
}

fn same(setting: &Setting, label: &str, seen: &Outcome, expected: &Outcome, report: &mut Report) {
    report.same(setting.label(&format!("out, {label}")), &seen.out.data, &expected.out.data);
    for (input, name) in setting.learned() {
        let label = setting.label(&format!("grad.{name}, {label}"));
        report.same(label, &seen.grads[input].data, &expected.grads[input].data);
    }
}
