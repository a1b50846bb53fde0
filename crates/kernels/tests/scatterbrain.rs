//! What sparse and low-rank attention must satisfy whatever its numbers: limits in which it is another mechanism, rows
//! that are exact, keys that may not matter.

mod support;

use std::sync::Arc;

use regard_kernels::{
    Layout, Mask, Mechanism, Padding, Softmax, View, draws,
    features::{FeatureKind, FeatureOptions},
    reference::scatterbrain::{log_features, matrix, support as support_of},
    support::{SupportKind, SupportOptions},
};
use regard_testkit::Report;
use support::{
    Array, Outcome, Sizes, Subject, Variant, padding,
    setting::{ROUNDING, Setting, TWIN_BOUND},
};

/// Two float64 computations of one number.
const FLOAT64: f64 = 1e-11;

/// The two implementations that every identity here is checked on, with what they may round.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Twin,
    Kernel,
}

const FORMS: [Form; 2] = [Form::Twin, Form::Kernel];

impl Form {
    fn run(self, subject: &Subject, inputs: &[Array], grad_out: &Array) -> Outcome {
        match self {
            Self::Twin => subject.twin(inputs, grad_out),
            Self::Kernel => subject.kernel(inputs, grad_out),
        }
    }

    fn of(self, setting: &Setting) -> Outcome {
        self.run(&setting.subject, &setting.inputs, &setting.grad_out)
    }

    fn bound(self) -> f64 {
        match self {
            Self::Twin => FLOAT64,
            Self::Kernel => TWIN_BOUND,
        }
    }
}

/// Scatterbrain with hyperbolic features on this kind of support.
fn on(kind: SupportKind) -> Variant {
    Variant::new("scatterbrain", Mechanism::Scatterbrain).set(|v| v.options.support.kind = kind)
}

/// Every variant with a support or features.
fn all() -> Vec<Variant> {
    [Mechanism::Performer, Mechanism::Sparse, Mechanism::Scatterbrain].into_iter().flat_map(Variant::of).collect()
}

/// Sizes with shared key heads, `N = S`, `N < S` and `N > S`, each under every kind of mask.
fn masked_sizes() -> Vec<(Sizes, Mask)> {
    let sizes = [(2, 40, 40), (4, 21, 70), (1, 70, 33)]
        .map(|(key_heads, queries, keys)| Sizes { key_heads, ..Sizes::new(3, 4, queries, keys) });
    let masks = |sizes: Sizes| {
        let valid = padding(sizes.batch, sizes.keys);
        let plain = [Mask::none(), Mask::causal()];
        plain.into_iter().flat_map(move |mask| [(sizes, mask.clone()), (sizes, mask.with_valid(Some(valid.clone())))])
    };
    sizes.into_iter().flat_map(masks).collect()
}

/// Exact attention on the `q`, `k`, `v` of a setting with this output gradient.
fn exact(form: Form, setting: &Setting) -> Outcome {
    let Setting { mask, subject, inputs, grad_out, .. } = setting;
    let softmax = Softmax { layout: subject.layout, mask: mask.clone(), ..Softmax::default() };
    let subject = Subject { operator: Arc::new(softmax), layout: subject.layout };
    form.run(&subject, &inputs[..3], grad_out)
}

/// Holds output and the gradients of `q`, `k` and `v` against others.
fn compare(report: &mut Report, label: &str, (seen, expected): (&Outcome, &Outcome), bound: f64) {
    report.compare(format_args!("{label}: out"), &seen.out.data, &expected.out.data, bound);
    for (n, name) in ["q", "k", "v"].iter().enumerate() {
        report.compare(format_args!("{label}: grad.{name}"), &seen.grads[n].data, &expected.grads[n].data, bound);
    }
}

#[test]
fn full_support_is_exact_attention() {
    let mut report = Report::new();
    let variants = [
        on(SupportKind::Full),
        Variant::new("sparse", Mechanism::Sparse).set(|v| v.options.support.kind = SupportKind::Full),
        // As wide as the longest sequence here; one cluster of everything, three times over.
        on(SupportKind::Local).set(|v| v.options.support.radius = 70),
        on(SupportKind::Smyrf).set(|v| (v.options.support.rounds, v.options.support.cluster) = (3, 70)),
        Variant::new("sparse", Mechanism::Sparse).set(|v| {
            v.options.support.kind = SupportKind::Smyrf;
            (v.options.support.rounds, v.options.support.cluster) = (3, 1000);
        }),
    ];
    for (variant, (sizes, mask)) in variants.iter().flat_map(|v| masked_sizes().into_iter().map(move |s| (v, s))) {
        for (form, layout) in [(Form::Twin, Layout::HeadFirst), (Form::Kernel, Layout::TokenFirst)] {
            let setting = Setting::new(variant, sizes, mask.clone(), layout);
            let (seen, expected) = (form.of(&setting), exact(form, &setting));
            let label = setting.label(&format!("{:?}", variant.options.support.kind));
            compare(&mut report, &label, (&seen, &expected), form.bound());
            let finite = |outcome: &Outcome| -> Vec<f64> {
                let lse = outcome.lse.as_ref().expect("a denominator");
                lse.iter().map(|x| if x.is_finite() { *x } else { 0.0 }).collect()
            };
            report.compare(format_args!("{label}: log sum"), &finite(&seen), &finite(&expected), form.bound());
        }
    }
    report.finish();
}

#[test]
fn empty_support_is_performer_bit_for_bit() {
    let mut report = Report::new();
    for (sizes, mask) in masked_sizes() {
        for (form, kind) in FORMS.into_iter().flat_map(|f| [(f, FeatureKind::Hyperbolic), (f, FeatureKind::Plain)]) {
            let [empty, performer] =
                [on(SupportKind::Empty), Variant::new("performer", Mechanism::Performer)].map(|variant| {
                    let variant = variant.set(|v| v.options.features.kind = kind);
                    Setting::new(&variant, sizes, mask.clone(), Layout::TokenFirst)
                });
            let (seen, expected) = (form.of(&empty), form.of(&performer));
            report.same(empty.label(&format!("{form:?} out")), &seen.out.data, &expected.out.data);
            for n in 0..3 {
                report.same(empty.label(&format!("{form:?} grad")), &seen.grads[n].data, &expected.grads[n].data);
            }
        }
    }
    report.finish();
}

#[test]
fn rows_whose_support_covers_what_they_see_are_exact() {
    let mut report = Report::new();
    let variants = [on(SupportKind::Local), on(SupportKind::Longformer), on(SupportKind::Bigbird)].map(|variant| {
        variant.set(|v| (v.options.support.radius, v.options.support.globals, v.options.support.random) = (4, 2, 1))
    });
    for (variant, (sizes, mask)) in variants.iter().flat_map(|v| masked_sizes().into_iter().map(move |s| (v, s))) {
        let setting = Setting::new(variant, sizes, mask.clone(), Layout::TokenFirst);
        let Sizes { queries, keys, heads, .. } = sizes;
        let operator = variant.scatterbrain(&sizes, &mask).expect("its own type");
        let support = support_of(&operator, &setting.inputs.iter().map(Array::view).collect::<Vec<_>>());
        let covered = |b: usize, h: usize, i: usize| {
            let row = &support[((b * heads + h) * queries + i) * keys..][..keys];
            mask.visible(i, queries, keys).all(|j| row[j] || !support::real(&mask, b, j))
        };
        for form in FORMS {
            // Only these rows have an output gradient, so that all gradients are those of exact attention too.
            let mut setting = Setting::new(variant, sizes, mask.clone(), Layout::TokenFirst);
            setting.grad_out = setting.grad_out.with(0.0, |ix| !covered(ix[0], ix[1], ix[2]));
            let (mut seen, mut expected) = (form.of(&setting), exact(form, &setting));
            let [others, exact] =
                [&seen, &expected].map(|outcome| outcome.out.only(|ix| !covered(ix[0], ix[1], ix[2])));
            let differ = others.is_empty() || regard_testkit::error(&others, &exact) > 0.01;
            let label = setting.label(&format!("{form:?} {:?}", variant.options.support.kind));
            report.require(differ, format_args!("{label}: rows that are not covered are exact too"));
            for outcome in [&mut seen, &mut expected] {
                outcome.out = outcome.out.with(0.0, |ix| !covered(ix[0], ix[1], ix[2]));
            }
            compare(&mut report, &label, (&seen, &expected), form.bound());
        }
    }
    report.finish();
}

#[test]
fn what_padding_holds_never_matters() {
    let mut report = Report::new();
    for variant in all() {
        for (sizes, causal) in [(Sizes::new(5, 2, 21, 21), false), (Sizes::new(5, 2, 21, 34), true)] {
            let sizes = variant.fit(sizes);
            let valid = padding(sizes.batch, sizes.keys);
            let mask = Mask { causal, ..Mask::none() }.with_valid(Some(valid.clone()));
            let mut setting = Setting::new(&variant, sizes, mask, Layout::HeadFirst);
            let padded_key = |b: usize, j: usize| valid.row(b)[j] == 0;
            let padded_query = |b: usize, i: usize| sizes.queries == sizes.keys && padded_key(b, i);
            setting.silence(padded_query);
            let clean = Form::Twin.of(&setting);
            setting.spoil(50.0, padded_query, padded_key);
            let spoilt = Form::Twin.of(&setting);
            let real = |out: &Array| out.only(|ix| !padded_query(ix[0], ix[2]));
            report.same(setting.label("out"), &real(&spoilt.out), &real(&clean.out));
            for (n, name) in setting.learned() {
                report.same(setting.label(name), &spoilt.grads[n].data, &clean.grads[n].data);
            }
        }
    }
    report.finish();
}

#[test]
fn no_future_key_changes_the_past_however_large_its_features() {
    let mut report = Report::new();
    use FeatureKind::{Elu, Hyperbolic, Plain};
    let performer = Variant::new("performer", Mechanism::Performer);
    let variants = [
        (on(SupportKind::Local), &[Hyperbolic, Plain, Elu][..]),
        (on(SupportKind::Longformer), &[Hyperbolic, Elu]),
        (performer, &[Hyperbolic, Plain]),
    ];
    for (variant, kind) in variants.iter().flat_map(|(v, kinds)| kinds.iter().map(move |kind| (v.clone(), *kind))) {
        let variant = variant.set(|v| v.options.features.kind = kind);
        // The key is on the same tile as the last rows that may not notice, and on another than the first.
        let (length, huge) = (150, 140);
        let sizes = Sizes { batch: 1, ..Sizes::new(1, 2, length, length) };
        let mut setting = Setting::new(&variant, sizes, Mask::causal(), Layout::TokenFirst);
        // exp(-tau |k|^2 / 2) is e^-280 for elements of size 14, the logarithm of features is then -200 at the most.
        let key = setting.subject.names().iter().position(|name| *name == "k").expect("keys");
        // ln(elu(x) + 1) is x below 0.
        let moved = |x: f64| if kind == Elu { x - 150.0 } else { 14.0 * x.signum() + x };
        setting.inputs[key].data.iter_mut().for_each(|x| *x = f64::from(moved(*x) as f32));
        let features = |setting: &Setting, j: usize| -> f64 {
            let projection = setting.subject.names().iter().position(|name| *name == "projection");
            let projection = projection.map_or(&[][..], |position| &setting.inputs[position].data);
            let logs = log_features(kind, projection, 8f64.sqrt().recip(), &setting.inputs[key].data[j * 8..][..8]);
            logs.into_iter().fold(f64::NEG_INFINITY, f64::max)
        };
        setting.silence(|_, i| i >= huge);
        let early = |form: Form, setting: &Setting| {
            let mut outcome = form.of(setting);
            outcome.out = outcome.out.with(0.0, |ix| ix[2] >= huge);
            outcome
        };
        let clean = FORMS.map(|form| early(form, &setting));
        setting.spoil_only(&["k"], if kind == Elu { 1e30 } else { 0.0 }, |_, _| false, |_, j| j == huge);
        let above = (0..huge).map(|j| features(&setting, huge) - features(&setting, j)).fold(f64::INFINITY, f64::min);
        report.require(above > 200.0, format_args!("the key's features are only e^{above} above"));
        for (form, clean) in FORMS.into_iter().zip(&clean) {
            let spoilt = early(form, &setting);
            let label = setting.label(&format!("{form:?} {kind:?}"));
            // Logarithms of size 300 are rounded at 2e-5.
            compare(&mut report, &label, (&spoilt, clean), if form == Form::Twin { 0.0 } else { 3e-5 });
            if form == Form::Kernel {
                let twin = early(Form::Twin, &setting);
                report.compare(format_args!("{label} against the twin"), &spoilt.out.data, &twin.out.data, 1e-4);
            }
        }
    }
    report.finish();
}

#[test]
fn kernels_follow_their_twins_with_logits_of_hundreds() {
    let mut report = Report::new();
    for variant in all().into_iter().map(|variant| variant.set(|v| v.options.features.rows = 13)) {
        let draws = [(183, 183, 1), (145, 115, 16), (60, 140, 16)].map(|sizes| [(sizes, true), (sizes, false)]);
        for (n, ((queries, keys, width), causal)) in draws.into_iter().flatten().enumerate() {
            let sizes = Sizes { key_heads: 1, width, ..Sizes::new(2, 4, queries, keys) };
            let mask = Mask { causal, ..Mask::none() }.with_valid((n < 2).then(|| padding(2, keys)));
            let mut setting = Setting::decided(&variant, variant.fit(sizes), mask, Layout::TokenFirst);
            let names = setting.subject.names();
            for (_, input) in names.iter().zip(&mut setting.inputs).filter(|(name, _)| matches!(**name, "q" | "k")) {
                input.data.iter_mut().for_each(|x| *x = f64::from((*x * 12.0) as f32));
            }
            let (kernel, twin) = (Form::Kernel.of(&setting), Form::Twin.of(&setting));
            // Logarithms of size 1000 are rounded at 6e-5, and features add up two of them and more. Gradients of q and k
            // are left out: they all but vanish where one key has all the weight.
            const BOUND: f64 = 1e-3;
            report.compare(setting.label("out"), &kernel.out.data, &twin.out.data, BOUND);
            let values = names.iter().position(|name| *name == "v").expect("values");
            report.compare(setting.label("grad.v"), &kernel.grads[values].data, &twin.grads[values].data, BOUND);
        }
    }
    report.finish();
}

#[test]
fn weights_sum_to_1_with_logits_of_200() {
    let mut report = Report::new();
    for variant in all() {
        for (sizes, causal) in
            [(Sizes::new(2, 2, 40, 40), false), (Sizes { key_heads: 1, ..Sizes::new(2, 2, 40, 90) }, true)]
        {
            let sizes = variant.fit(sizes);
            let mask = Mask { causal, ..Mask::none() };
            let mut setting = Setting::new(&variant, sizes, mask.clone(), Layout::TokenFirst);
            let names = setting.subject.names();
            for (name, input) in names.iter().zip(&mut setting.inputs) {
                match *name {
                    "q" | "k" => input.data.iter_mut().for_each(|x| *x *= 10.0),
                    "v" => input.data.fill(1.5),
                    _ => {}
                }
            }
            let views: Vec<View<f64>> = setting.inputs.iter().map(Array::view).collect();
            let operator = variant.scatterbrain(&sizes, &mask).expect("its own type");
            if !variant.shares_keys() {
                let [q, k] = [&setting.inputs[0].data, &setting.inputs[1].data];
                let logit = |i: usize, j: usize| -> f64 {
                    (0..8).map(|c| q[i * 8 + c] * k[j * 8 + c]).sum::<f64>() / 8f64.sqrt()
                };
                let logits = || (0..40).flat_map(|i| (0..40).map(move |j| (i, j))).map(|(i, j)| logit(i, j));
                let (low, high) = (logits().fold(0.0, f64::min), logits().fold(0.0, f64::max));
                report.require(low < -200.0 && high > 200.0, format_args!("logits from {low} to {high}"));
            }
            let sees = setting.sees();
            let index = |row: usize| {
                [row / sizes.queries / sizes.heads, row / sizes.queries % sizes.heads, row % sizes.queries]
            };
            for (row, weights) in matrix(&operator, &views).chunks_exact(sizes.keys).enumerate() {
                let expected = f64::from(u8::from(sees(&index(row))));
                let sum: f64 = weights.iter().sum();
                report.require((sum - expected).abs() < 1e-12, setting.label(&format!("row {row} sums to {sum}")));
                report.require(weights.iter().all(|w| (0.0..=1.0).contains(w)), setting.label("a weight is no share"));
            }
            for form in FORMS {
                let outcome = form.of(&setting);
                let seeing = outcome.out.only(|ix| sees(ix));
                let expected = vec![1.5; seeing.len()];
                report.compare(setting.label(&format!("{form:?} out")), &seeing, &expected, ROUNDING);
            }
        }
    }
    report.finish();
}

#[test]
fn kernels_follow_their_twins_at_the_default_sizes() {
    use FeatureKind::{Elu, Hyperbolic};
    use SupportKind::{Bigbird, Empty, Full, Local, Longformer, Lsh, Smyrf};
    let mut report = Report::new();
    for (n, kind) in [Local, Longformer, Bigbird, Smyrf, Lsh, Full, Empty].into_iter().enumerate() {
        for (mechanism, features) in
            [(Mechanism::Sparse, Elu), (Mechanism::Scatterbrain, Hyperbolic), (Mechanism::Scatterbrain, Elu)]
        {
            if mechanism == Mechanism::Sparse && kind == Empty {
                continue;
            }
            for causal in [false, true] {
                let variant = Variant::new("default sizes", mechanism).set(|v| {
                    v.options.support = SupportOptions { kind, ..SupportOptions::default() };
                    v.options.features = FeatureOptions { kind: features, ..FeatureOptions::default() };
                });
                let lengths = [(600, 600), (257, 391), (391, 257)][n % 3];
                let sizes = variant.fit(Sizes { width: 32, value_width: 32, ..Sizes::new(1, 1, lengths.0, lengths.1) });
                let holes = (0..sizes.keys).map(|j| u8::from(j % 7 != 3)).collect();
                let valid = Padding::new(1, sizes.keys, holes).expect("one byte a token");
                let mask = Mask { causal, ..Mask::none() }.with_valid((n % 2 == 0).then(|| Arc::new(valid)));
                let setting = Setting::decided(&variant, sizes, mask, Layout::TokenFirst);
                let (kernel, twin) = (Form::Kernel.of(&setting), Form::Twin.of(&setting));
                let label = |what: &str| setting.label(&format!("{mechanism} {kind:?} {features:?} {what}"));
                report.compare(label("out"), &kernel.out.data, &twin.out.data, TWIN_BOUND);
                for (n, name) in setting.learned() {
                    report.compare(label(name), &kernel.grads[n].data, &twin.grads[n].data, TWIN_BOUND);
                }
            }
        }
    }
    report.finish();
}

#[test]
fn the_naive_sum_counts_the_support_twice() {
    let mut report = Report::new();
    for (kind, (sizes, mask)) in [SupportKind::Local, SupportKind::Smyrf]
        .into_iter()
        .flat_map(|k| masked_sizes().into_iter().map(move |s| (k, s)))
    {
        let naive = Variant::of(Mechanism::Scatterbrain).into_iter().find(|v| v.name.ends_with("local, naive"));
        let naive = naive.expect("a naive variant").set(|v| v.options.support.kind = kind);
        let parts = [Mechanism::Sparse, Mechanism::Performer]
            .map(|mechanism| naive.clone().set(|v| v.options.mechanism = mechanism));
        let whole = Setting::new(&naive, sizes, mask.clone(), Layout::HeadFirst);
        for form in FORMS {
            // Sums and denominators of the parts add up: `out Z = out_1 Z_1 + out_2 Z_2`, `Z = Z_1 + Z_2`.
            let seen = form.of(&whole);
            let [sparse, low_rank] = parts.each_ref().map(|part| {
                let mut setting = Setting::new(part, sizes, mask.clone(), Layout::HeadFirst);
                for (input, name) in setting.inputs.iter_mut().zip(setting.subject.names()) {
                    let position =
                        whole.subject.names().iter().position(|n| *n == name).expect("an input of the whole");
                    *input = whole.inputs[position].clone();
                }
                form.of(&setting)
            });
            let [lse, one, two] =
                [&seen, &sparse, &low_rank].map(|outcome| outcome.lse.as_ref().expect("a denominator"));
            let width = sizes.value_width;
            let joined: Vec<f64> = (0..seen.out.data.len())
                .map(|n| {
                    let row = n / width;
                    let share = |part: f64| if part.is_finite() { (part - lse[row]).exp() } else { 0.0 };
                    share(one[row]) * sparse.out.data[n] + share(two[row]) * low_rank.out.data[n]
                })
                .collect();
            report.compare(whole.label(&format!("{form:?} {kind:?}")), &seen.out.data, &joined, form.bound());
        }
    }
    report.finish();
}

#[test]
fn bigbird_adds_drawn_blocks_to_longformer() {
    let sizes = Sizes { key_heads: 1, ..Sizes::new(2, 2, 40, 50) };
    let support = |kind: SupportKind, random: usize, seed: u64| {
        let variant = on(kind).set(|v| {
            let options = SupportOptions { radius: 1, globals: 2, block: 4, random, seed, ..v.options.support.clone() };
            v.options.support = options;
        });
        let setting = Setting::new(&variant, sizes, Mask::none(), Layout::HeadFirst);
        let views: Vec<View<f64>> = setting.inputs.iter().map(Array::view).collect();
        support_of(&variant.scatterbrain(&sizes, &Mask::none()).expect("its own type"), &views)
    };
    let longformer = support(SupportKind::Longformer, 2, 7);
    let bigbird = support(SupportKind::Bigbird, 2, 7);
    assert_eq!(support(SupportKind::Bigbird, 0, 7), longformer);
    assert_ne!(support(SupportKind::Bigbird, 2, 8), bigbird);
    let per_head = sizes.queries * sizes.keys;
    assert!(bigbird.chunks_exact(per_head).all(|head| head == &bigbird[..per_head]), "one draw for all heads");
    for (i, (row, without)) in bigbird[..per_head].chunks_exact(50).zip(longformer.chunks_exact(50)).enumerate() {
        let drawn = draws::random_blocks(7, (i + 10) / 4, 13, 2);
        assert_eq!(drawn.len(), 2);
        for (j, (on, without)) in row.iter().zip(without).enumerate() {
            assert_eq!(*on, *without || drawn.contains(&(j / 4)), "query {i}, key {j}");
        }
    }
}
