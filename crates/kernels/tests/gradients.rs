//! The twins' gradients against central differences, all in float64, for every variant of every mechanism.

mod support;

use regard_kernels::{Layout, Mask};
use regard_testkit::{Random, Report, derivative};
use support::{Array, Sizes, Variant, padding, setting::Setting};

/// Error of the differences, relative to the largest gradient.
const BOUND: f64 = 1e-8;

/// Features with a kink in a derivative are smooth at a distance from it; differences reach 0.002 far.
const CLEARANCE: f64 = 0.01;

/// The same for the projections of hashes and the logits of routers, which move by a few times as much.
const HASH_CLEARANCE: f64 = 0.05;

const SEED: u64 = 22;

#[test]
fn twins_derive_what_they_compute() {
    let masks = [
        ("no mask", Mask::none()),
        ("causal", Mask::causal()),
        ("padded", Mask::none().with_valid(Some(padding(3, 4)))),
        ("causal, padded", Mask::causal().with_valid(Some(padding(3, 4)))),
    ];
    let mut report = Report::new();
    for variant in Variant::all().into_iter().filter(Variant::derives) {
        for (n, (masked, mask)) in masks.iter().enumerate() {
            let key_heads = 1 + n % 2;
            let queries = if variant.cross() { 3 } else { 4 };
            let sizes = Sizes { batch: 3, heads: 2, key_heads, queries, keys: 4, width: 3, value_width: 2 };
            let sizes = variant.fit(sizes);
            let layout = if n % 2 == 0 { Layout::TokenFirst } else { Layout::HeadFirst };
            let mut setting = Setting::drawn(&variant, sizes, mask.clone(), layout, SEED);
            // This seed puts no query halfway between two components, where hard inference has a kink; hashes have one
            // where a token comes into another group, routers where it takes another expert.
            for seed in SEED + 1.. {
                for input in &mut setting.inputs {
                    input.data.iter_mut().filter(|x| x.abs() < CLEARANCE).for_each(|x| *x += 2.0 * CLEARANCE);
                }
                if setting.hash_margin() > HASH_CLEARANCE && setting.router_margin() > HASH_CLEARANCE {
                    break;
                }
                setting = Setting::drawn(&variant, sizes, mask.clone(), layout, seed);
            }
            let Setting { subject, inputs, .. } = &setting;
            let grad_out = Array::normal(&subject.head_first_out_shape(inputs), 1.0, &mut Random::new(77));
            let grads = subject.twin(inputs, &grad_out).grads;
            for (i, name) in setting.learned() {
                let differences = derivative(&inputs[i].data, |moved| {
                    let mut inputs = inputs.clone();
                    inputs[i].data.copy_from_slice(moved);
                    let out = subject.twin_out(&inputs);
                    out.data.iter().zip(&grad_out.data).map(|(o, g)| o * g).sum()
                });
                // Gradients that vanish leave differences of rounding alone.
                let scale = grads.iter().flat_map(|g| &g.data).fold(0.0f64, |m, x| m.max(x.abs()));
                let close = grads[i].data.iter().zip(&differences).all(|(g, d)| (g - d).abs() <= BOUND * scale);
                let error = regard_testkit::error(&grads[i].data, &differences);
                report.require(close, format_args!("{}, {masked}: grad.{name}, error {error:.1e}", variant.name));
            }
        }
    }
    report.finish();
}
