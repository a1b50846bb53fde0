//! Every float32 kernel against its float64 twin, over sizes that meet every border of its tiles.

mod support;

use std::sync::Arc;

use regard_kernels::{
    GaussianMixture, Mask, Mechanism, Padding, View, mechanism::Growth, reference::gaussian_mixture::responsibilities,
};
use regard_testkit::Report;
use support::{
    Array, Sizes, Variant, padding,
    setting::{LAYOUTS, ROUNDING, Setting, TWIN_BOUND, usual_sizes, walk},
};

#[test]
fn kernels_follow_their_twins() {
    // Single tokens, every size up to a tile in steps, both sides of likely tile borders, N < S and N > S.
    let shapes =
        [(1, 1), (1, 40), (40, 1), (2, 3), (5, 4), (7, 16), (17, 15), (31, 33), (64, 65), (63, 129), (130, 66)];
    walk(|variant, report| {
        for (n, &(queries, keys)) in shapes.iter().enumerate() {
            let key_heads = [1, 2, 4][n % 3];
            let (width, value_width) = [(8, 5), (64, 64), (3, 17)][n % 3];
            let sizes = Sizes { key_heads, width, value_width, ..Sizes::new(2, 4, queries, keys) };
            let valid = (n % 4 > 1).then(|| padding(2, variant.fit(sizes).keys));
            let mask = Mask { causal: n % 2 == 0, ..Mask::none() }.with_valid(valid);
            compare_with_twin(&Setting::decided(variant, sizes, mask, LAYOUTS[n % 2]), report);
        }
    });
}

#[test]
fn kernels_follow_their_twins_across_large_tiles() {
    // Kernels cut queries by the hundred and few heads' keys by the thousand.
    let quadratic = [(257, 260, true), (513, 258, false), (40, 1300, false), (150, 1300, true)];
    let linear = [(1100, 1100, true), (1300, 1100, true), (1300, 1100, false)];
    walk(|variant, report| {
        let more = if variant.mechanism().facts().time == Growth::Linear { &linear[..] } else { &[] };
        for (n, &(queries, keys, causal)) in quadratic.iter().chain(more).enumerate() {
            let sizes = variant.fit(Sizes { width: 4, value_width: 3, ..Sizes::new(1, 1, queries, keys) });
            let valid = (n % 3 == 2).then(|| {
                let holes = (0..sizes.keys).map(|j| u8::from(j % 5 != 1)).collect();
                Arc::new(Padding::new(1, sizes.keys, holes).expect("[1, S]"))
            });
            let mask = Mask { causal, ..Mask::none() }.with_valid(valid);
            compare_with_twin(&Setting::decided(variant, sizes, mask, LAYOUTS[n % 2]), report);
        }
    });
}

#[test]
fn kernels_follow_their_twins_with_few_queries_over_many_keys() {
    // As in decoding: keys are cut into segments, of which the first may be all padding.
    let calls = [(1, 1, false), (1, 6, true), (2, 3, true), (3, 2, false), (8, 1, true), (3, 3, true)];
    let mut report = Report::new();
    for variant in &Variant::of(Mechanism::Softmax) {
        for (n, &(queries, group, causal)) in calls.iter().enumerate() {
            let (width, value_width) = [(16, 16), (37, 5)][n % 2];
            let sizes = Sizes { key_heads: 2, width, value_width, ..Sizes::new(2, 2 * group, queries, 1300) };
            let sizes = variant.fit(sizes);
            let valid = (n % 3 != 0).then(|| {
                let real =
                    (0..2 * sizes.keys).map(|j| u8::from(j % 7 != 1 && (j < sizes.keys || j % sizes.keys > 600)));
                Arc::new(Padding::new(2, sizes.keys, real.collect()).expect("[2, S]"))
            });
            let mask = Mask { causal, ..Mask::none() }.with_valid(valid);
            compare_with_twin(&Setting::new(variant, sizes, mask, LAYOUTS[n / 2 % 2]), &mut report);
        }
    }
    report.finish();
}

fn compare_with_twin(setting: &Setting, report: &mut Report) {
    let (kernel, twin) = (setting.kernel(), setting.subject.twin(&setting.inputs, &setting.grad_out));
    report.compare(setting.label("out"), &kernel.out.data, &twin.out.data, TWIN_BOUND);
    for (n, name) in setting.learned() {
        let (seen, expected) = (&kernel.grads[n].data, &twin.grads[n].data);
        report.compare(setting.label(&format!("grad.{name}")), seen, expected, setting.gradient_bound(n, &twin.grads));
    }
    if let (Some(seen), Some(expected)) = (&kernel.lse, &twin.lse) {
        // Rows that see nothing have no denominator.
        let kept = |lse: &[f64]| lse.iter().zip(expected).filter(|(_, e)| e.is_finite()).map(|(x, _)| *x).collect();
        let (seen, expected): (Vec<f64>, Vec<f64>) = (kept(seen), kept(expected));
        report.compare(setting.label("log sum"), &seen, &expected, TWIN_BOUND);
    }
}

#[test]
fn soft_em_follows_its_twin() {
    let mut report = Report::new();
    let options: Vec<_> = Variant::of(Mechanism::Mgk).into_iter().filter(|v| v.name == "mgk, per position").collect();
    let variant = &options[0];
    for (n, sizes) in usual_sizes().into_iter().chain([Sizes::new(1, 1, 1, 1), Sizes::new(2, 1, 300, 300)]).enumerate()
    {
        for (layout, causal) in [(LAYOUTS[n % 2], false), (LAYOUTS[(n + 1) % 2], true)] {
            let mask = Mask { causal, ..Mask::none() }.with_valid(Some(padding(sizes.batch, sizes.keys)));
            let setting = Setting::new(variant, sizes, mask.clone(), layout);
            let operator = GaussianMixture { layout, mask, ..GaussianMixture::default() };
            let arranged = setting.subject.arrange(&setting.inputs);
            let twin = responsibilities(&operator, &arranged.iter().map(Array::view).collect::<Vec<_>>());
            let data: Vec<Vec<f32>> = arranged.iter().map(Array::f32).collect();
            let views: Vec<View<f32>> = data.iter().zip(&arranged).map(|(d, a)| View::new(d, &a.shape)).collect();
            let kernel: Vec<f64> = operator.responsibilities(&views).into_iter().map(f64::from).collect();
            report.compare(setting.label("prior"), &kernel, &twin, ROUNDING);
            for h in 0..sizes.heads {
                for j in 0..sizes.keys {
                    let total: f64 = (0..2).map(|r| kernel[(h * 2 + r) * sizes.keys + j]).sum();
                    report.require(
                        (total - 1.0).abs() < 1e-5,
                        setting.label(&format!("prior of key {j} adds to {total}")),
                    );
                }
            }
        }
    }
    report.finish();
}
