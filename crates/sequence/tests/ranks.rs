//! Every variant of every mechanism over ranks, against one process and its float64 twin; bytes against the cost model.

#[path = "../../kernels/tests/support/mod.rs"]
mod support;

use std::sync::Arc;

use regard_cluster::Threads;
use regard_kernels::{Call, Error, Layout, Mask, Mechanism, View, support::SupportKind};
use regard_sequence::{SequenceError, SequenceParallel, Traffic, Whole};
use regard_testkit::{Report, error, wide};
use support::{
    Outcome, Sizes, Variant, padding, real,
    setting::{LAYOUTS, Setting, TWIN_BOUND},
};

/// Why a variant is refused, by the option that says so.
fn refusal(variant: &Variant, mask: &Mask, sizes: &Sizes) -> Option<&'static str> {
    let options = &variant.options;
    let kind = options.support.kind;
    let anywhere = matches!(kind, SupportKind::Smyrf | SupportKind::Lsh | SupportKind::Bigbird | SupportKind::Block);
    let alike = match options.mechanism {
        Mechanism::Linear | Mechanism::Mlk => mask.causal,
        Mechanism::Performer => true,
        Mechanism::Sparse => kind == SupportKind::Longformer,
        Mechanism::Scatterbrain => kind != SupportKind::Full,
        _ => false,
    };
    match variant {
        _ if variant.dropout => Some("dropout"),
        _ if variant.bias => Some("bias"),
        _ if options.uses_support() && anywhere => Some("support.kind"),
        _ if alike && sizes.queries != sizes.keys => Some("keys"),
        _ => None,
    }
}

/// What one rank returns: the whole results, and bytes sent forward and backward, then by the model.
struct Part {
    whole: Whole,
    sent: [u64; 2],
    model: [u64; 2],
}

/// A setting over ranks. What joins the results comes after the bytes were counted.
fn over(setting: &Setting, ranks: usize) -> Vec<Result<Part, SequenceError>> {
    let (options, call) = setting.subject.operator.attention().expect("built from options");
    let arranged = setting.subject.arrange(&setting.inputs);
    let data: Vec<Vec<f32>> = arranged.iter().map(|input| input.f32()).collect();
    let inputs: Vec<_> = data.iter().zip(&arranged).map(|(data, array)| View::new(data, &array.shape)).collect();
    let grad = setting.grad_out.swapped("out", setting.subject.layout);
    let grad_data = grad.f32();
    let grad_out = View::new(&grad_data, &grad.shape);
    Threads::run(ranks, |rank| {
        let sizes = [setting.sizes.queries, setting.sizes.keys];
        let attention = SequenceParallel::new(options, call, sizes, rank.clone())?;
        let named = attention.inputs().iter().zip(&inputs);
        let own: Vec<_> = named.map(|(name, input)| attention.cut(name, input)).collect();
        let views: Vec<_> = own.iter().map(|(data, shape)| View::new(data, shape)).collect();
        let shapes: Vec<_> = own.iter().map(|(_, shape)| &shape[..]).collect();
        let (out, state) = attention.forward(&views)?;
        let forward = rank.bytes_sent();
        let grad = attention.cut("out", &grad_out).0;
        attention.backward(&views, &out, &state, &grad, &vec![true; views.len()])?;
        let backward = rank.bytes_sent() - forward;
        let Traffic { forward: model_forward, backward: model_backward } = attention.traffic(&shapes);
        let whole = attention.whole(&inputs, Some(&grad_out))?;
        Ok(Part { whole, sent: [forward, backward], model: [model_forward, model_backward] })
    })
}

/// Holds what the ranks found against one process and the twin, and their bytes against the model.
fn compare(setting: &Setting, ranks: usize, one: &Outcome, twin: &Outcome, report: &mut Report) {
    let layout = setting.subject.layout;
    for (n, part) in over(setting, ranks).into_iter().enumerate() {
        let label = |what: &str| format!("rank {n} of {ranks}: {}", setting.label(what));
        let part = match part {
            Ok(part) => part,
            Err(error) => {
                report.require(false, label(&error.to_string()));
                continue;
            }
        };
        report.require(
            part.sent == part.model,
            format_args!("{}: {:?}, not {:?}", label("bytes"), part.sent, part.model),
        );
        for (name, outcome) in [("one process", one), ("the twin", twin)] {
            let out = outcome.out.swapped("out", layout);
            report.compare(label(&format!("out against {name}")), &wide(&part.whole.out), &out.data, TWIN_BOUND);
        }
        if let (Some(lse), Some(expected)) = (&part.whole.lse, &twin.lse) {
            let finite = |lse: Vec<f64>| -> Vec<f64> {
                lse.into_iter().map(|lse| if lse == f64::NEG_INFINITY { -1e3 } else { lse }).collect()
            };
            report.compare(label("lse"), &finite(wide(lse)), &finite(expected.clone()), TWIN_BOUND);
        }
        for (at, name) in setting.learned() {
            let seen = part.whole.grads[at].as_ref().map(|grad| wide(grad)).unwrap_or_default();
            for (against, outcome) in [("one process", one), ("the twin", twin)] {
                let bound = setting.gradient_bound(at, &twin.grads);
                let expected = outcome.grads[at].swapped(name, layout);
                report.compare(label(&format!("grad.{name} against {against}")), &seen, &expected.data, bound);
            }
        }
    }
}

fn check(variant: &Variant, sizes: Sizes, mask: Mask, layout: Layout, ranks: &[usize], report: &mut Report) {
    let sizes = variant.fit(sizes);
    let mut mask = mask;
    mask.valid = mask.valid.map(|_| padding(sizes.batch, sizes.keys));
    let setting = Setting::decided(variant, sizes, mask, layout);
    if let Some(option) = refusal(variant, &setting.mask, &sizes) {
        for error in over(&setting, 2).into_iter().map(Result::err) {
            let named =
                matches!(&error, Some(SequenceError::Call(Error::Option { option: seen, .. })) if seen == option);
            report.require(named, format_args!("{}: {error:?}", setting.label(option)));
        }
        return;
    }
    let (one, twin) = (setting.kernel(), setting.subject.twin(&setting.inputs, &setting.grad_out));
    ranks.iter().for_each(|ranks| compare(&setting, *ranks, &one, &twin, report));
}

/// Sequences that no number of chunks divides, some shorter than a tile and one longer.
fn sizes() -> [Sizes; 2] {
    [Sizes::new(1, 2, 23, 23), Sizes { key_heads: 1, ..Sizes::new(5, 2, 151, 151) }]
}

fn walk(mechanisms: &[Mechanism]) {
    let mut report = Report::new();
    for variant in mechanisms.iter().flat_map(|mechanism| Variant::of(*mechanism)) {
        for sizes in sizes() {
            for (causal, padded) in [(false, false), (true, false), (true, true), (false, true)] {
                let valid = padded.then(|| padding(sizes.batch, sizes.keys));
                let mask = Mask { causal, ..Mask::none() }.with_valid(valid);
                let layout = LAYOUTS[usize::from(causal == padded)];
                check(&variant, sizes, mask, layout, &[2, 3], &mut report);
            }
        }
    }
    report.finish();
}

#[test]
fn exact_attention() {
    walk(&[Mechanism::Softmax, Mechanism::Gaussian, Mechanism::Cosine]);
}

#[test]
fn mixtures_of_keys() {
    walk(&[Mechanism::Mgk]);
}

#[test]
fn linear_attention() {
    walk(&[Mechanism::Linear, Mechanism::Mlk]);
}

#[test]
fn performer_and_sparse() {
    walk(&[Mechanism::Performer, Mechanism::Sparse]);
}

#[test]
fn scatterbrain() {
    walk(&[Mechanism::Scatterbrain]);
}

#[test]
fn mixtures_of_heads() {
    walk(&[Mechanism::Moa]);
}

#[test]
fn fastformer() {
    walk(&[Mechanism::Fastformer]);
}

#[test]
fn every_mechanism_is_walked() {
    let walked = [
        Mechanism::Softmax,
        Mechanism::Gaussian,
        Mechanism::Cosine,
        Mechanism::Mgk,
        Mechanism::Linear,
        Mechanism::Mlk,
        Mechanism::Performer,
        Mechanism::Sparse,
        Mechanism::Scatterbrain,
        Mechanism::Moa,
        Mechanism::Fastformer,
    ];
    assert!(Mechanism::ALL.iter().all(|mechanism| walked.contains(mechanism)));
}

#[test]
fn queries_and_keys_of_different_lengths() {
    let mut report = Report::new();
    for variant in Variant::all().iter().filter(|variant| variant.cross()) {
        for (sizes, causal) in
            [(Sizes::new(2, 2, 19, 40), true), (Sizes::new(2, 2, 40, 19), true), (Sizes::new(2, 2, 19, 40), false)]
        {
            let mask = Mask { causal, ..Mask::none() };
            check(variant, sizes, mask, Layout::HeadFirst, &[2, 3], &mut report);
        }
    }
    report.finish();
}

#[test]
fn one_rank_sends_nothing() {
    let mut report = Report::new();
    for variant in Variant::all() {
        check(&variant, Sizes::new(2, 2, 21, 21), Mask::causal(), Layout::TokenFirst, &[1], &mut report);
    }
    report.finish();
}

#[test]
fn fewer_tokens_than_chunks_are_refused() {
    let (options, call) =
        (regard_kernels::AttentionOptions::default(), Call { mask: Mask::causal(), ..Call::default() });
    let errors = Threads::run(3, |rank: Arc<dyn regard_cluster::Communicator>| {
        SequenceParallel::new(&options, &call, [5, 5], rank).err().map(|error| error.to_string())
    });
    let expected = "tokens is 5, expected at least 6, one for each chunk: fewer ranks, or a longer sequence";
    assert!(errors.iter().all(|error| error.as_deref() == Some(expected)), "{errors:?}");
}

/// A radius, a window or global tokens that reach over more than one rank.
#[test]
fn halos_and_globals_reach_beyond_a_neighbour() {
    let mut report = Report::new();
    let wide = |mechanism: Mechanism, kind: SupportKind| {
        Variant::new("wide", mechanism).set(|variant| {
            let support = &mut variant.options.support;
            (support.kind, support.radius, support.globals) = (kind, 30, 17);
            variant.options.window = mechanism.facts().window.then_some(30);
        })
    };
    let variants = [
        wide(Mechanism::Softmax, SupportKind::Local),
        wide(Mechanism::Mgk, SupportKind::Local),
        wide(Mechanism::Moa, SupportKind::Local),
        wide(Mechanism::Sparse, SupportKind::Local),
        wide(Mechanism::Scatterbrain, SupportKind::Local),
        wide(Mechanism::Sparse, SupportKind::Longformer),
        wide(Mechanism::Scatterbrain, SupportKind::Longformer),
    ];
    for variant in &variants {
        for (causal, padded) in [(false, true), (true, false)] {
            let sizes = Sizes::new(3, 2, 61, 61);
            let mask = Mask { causal, ..Mask::none() }.with_valid(padded.then(|| padding(3, 61)));
            check(variant, sizes, mask, Layout::TokenFirst, &[4, 5], &mut report);
        }
    }
    report.finish();
}

/// Sums of exponentials of any size are merged without loss: as near to the twin as one process comes.
#[test]
fn large_scores_stay_exact() {
    let mut report = Report::new();
    for mechanism in
        [Mechanism::Softmax, Mechanism::Gaussian, Mechanism::Performer, Mechanism::Sparse, Mechanism::Scatterbrain]
    {
        for causal in [false, true] {
            let variant = &Variant::of(mechanism)[0];
            let mut setting =
                Setting::new(variant, Sizes::new(2, 2, 90, 90), Mask { causal, ..Mask::none() }, Layout::HeadFirst);
            setting.inputs[..2].iter_mut().flat_map(|input| &mut input.data).for_each(|x| *x *= 8.0);
            let (one, twin) = (setting.kernel(), setting.subject.twin(&setting.inputs, &setting.grad_out));
            let expected = twin.grads.clone();
            let bound = |one: &[f64], twin: &[f64]| (4.0 * error(one, twin)).max(TWIN_BOUND);
            for part in over(&setting, 3) {
                let whole = part.expect("a call that fits").whole;
                let out = bound(&one.out.data, &twin.out.data);
                report.compare(setting.label("out"), &wide(&whole.out), &twin.out.data, out);
                for (at, name) in setting.learned() {
                    let (one, twin) = (&one.grads[at].data, &twin.grads[at].data);
                    let seen = wide(whole.grads[at].as_ref().expect("learned"));
                    let bound = bound(one, twin).max(setting.gradient_bound(at, &expected));
                    report.compare(setting.label(&format!("grad.{name}")), &seen, twin, bound);
                }
            }
        }
    }
    report.finish();
}

/// Neither timing nor what padding holds changes a bit.
#[test]
fn the_same_bits_every_time() {
    let mut report = Report::new();
    for variant in Variant::all() {
        let sizes = variant.fit(Sizes::new(5, 2, 70, 70));
        let mut mask = Mask::causal().with_valid(Some(padding(sizes.batch, sizes.keys)));
        if variant.second {
            mask.query_valid = Some(padding(sizes.batch, sizes.queries));
        }
        if refusal(&variant, &mask, &sizes).is_some() {
            continue;
        }
        let setting = Setting::new(&variant, sizes, mask.clone(), Layout::TokenFirst);
        let first = over(&setting, 3).remove(0).expect("a call that fits").whole;
        let mut spoilt = setting.clone();
        // What Fastformer's padded rows hold shows in their own outputs.
        let names: &[&str] = if variant.mechanism() == Mechanism::Fastformer { &["k"] } else { &["k", "v", "x_kv"] };
        spoilt.spoil_only(names, f64::NAN, |_, _| false, |b, j| !real(&mask, b, j));
        for (what, setting) in [("again", &setting), ("with junk", &spoilt)] {
            for part in over(setting, 3) {
                let same = part.expect("a call that fits").whole == first;
                report.require(same, format_args!("{} {what}", setting.label("bits")));
            }
        }
    }
    report.finish();
}
