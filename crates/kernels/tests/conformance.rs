//! What every mechanism promises, checked on every variant of every mechanism.

mod support;

use regard_kernels::{Layout, Mask, Mechanism, Role, Storage, support::SupportKind};
use regard_testkit::{Random, Report, measure::largest};
use support::{
    Array, Outcome, Sizes, Variant,
    array::token_axis,
    padding, real,
    setting::{LAYOUTS, ROUNDING, Setting, TWIN_BOUND, usual_sizes, walk},
};

/// Larger than any input by far, but no infinity: whatever leaks, shows.
const JUNK: f64 = 1e3;

/// What uninitialised or overflowed padding may hold. The product of 3e38 with any real number above 1 is infinite.
const PADDING: [f64; 6] = [JUNK, 3e38, -3e38, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];

#[test]
fn inputs_are_what_is_said_of_them() {
    walk(|variant, report| {
        for (sizes, layout) in usual_sizes().into_iter().flat_map(|sizes| LAYOUTS.map(|layout| (sizes, layout))) {
            let sizes = variant.fit(sizes);
            let specs = variant.specs(&sizes, layout);
            let operator = variant.subject(&sizes, &Mask::none(), layout).operator;
            let label = format!("{} at {sizes:?}, {layout:?}", variant.name);
            let shapes: Vec<&[usize]> = specs.iter().map(|spec| &spec.shape[..]).collect();
            let out = operator.out_shape(&shapes);
            report.require(out.is_ok(), format_args!("{label}: {out:?}"));
            for spec in &specs {
                let label = format!("{label}: {}", spec.name);
                let numbers = spec.numbers(1).unwrap();
                let count = spec.shape.iter().product::<usize>();
                let whole = numbers.as_ref().is_none_or(|numbers| numbers.len() == count);
                report.require(whole, format_args!("{label}: not a number for each place"));
                let drawn = numbers.filter(|numbers| Some(numbers) != spec.numbers(2).unwrap().as_ref());
                let constant = operator.constants().contains(&spec.name);
                report
                    .require(drawn.is_some() == constant, format_args!("{label}: drawn and no constant, or the other"));
                report.require((spec.role == Role::Constant) == constant, format_args!("{label}: {:?}", spec.role));
                if let Role::Data { axis } = spec.role {
                    let tokens = if matches!(spec.name, "q" | "x") { sizes.queries } else { sizes.keys };
                    report.require(spec.shape[axis] == tokens, format_args!("{label}: no tokens along axis {axis}"));
                }
            }
        }
    });
}

#[test]
fn padding_never_leaks() {
    let settings = |variant: &Variant, layout: Layout| {
        let sizes = usual_sizes().into_iter().flat_map(|s| [(s, false), (s, true)]);
        sizes.map(|(sizes, causal)| padded(variant, sizes, causal, layout)).collect::<Vec<_>>()
    };
    walk(|variant, report| {
        for setting in LAYOUTS.into_iter().flat_map(|layout| settings(variant, layout)) {
            let clean = setting.kernel();
            for junk in PADDING {
                let spoilt = spoil_padding(&setting, junk).kernel();
                compare_padded(&setting, &spoilt, &clean, junk, report);
            }
        }
    });
}

/// A setting with padded keys in all places, and nobody asks for the outputs of padded queries.
fn padded(variant: &Variant, sizes: Sizes, causal: bool, layout: Layout) -> Setting {
    let sizes = variant.fit(sizes);
    let mut mask = Mask { causal, ..Mask::none() }.with_valid(Some(padding(sizes.batch, sizes.keys)));
    if sizes.queries != sizes.keys || variant.second {
        mask.query_valid = Some(padding(sizes.batch, sizes.queries));
    }
    let mut setting = Setting::new(variant, sizes, mask, layout);
    let mask = setting.mask.clone();
    setting.silence(|b, i| is_padded_query(&mask, sizes, b, i));
    setting
}

fn is_padded_query(mask: &Mask, sizes: Sizes, b: usize, i: usize) -> bool {
    mask.query_row(b, sizes.queries).is_some_and(|real| real[i] == 0)
}

/// The same with `junk` in all padded tokens.
fn spoil_padding(setting: &Setting, junk: f64) -> Setting {
    let (mask, sizes) = (setting.mask.clone(), setting.sizes);
    let mut spoilt = setting.clone();
    spoilt.spoil(junk, |b, i| is_padded_query(&mask, sizes, b, i), |b, j| !real(&mask, b, j));
    spoilt
}

/// Outputs of real queries and all gradients are the same, and those of padding are 0.
fn compare_padded(setting: &Setting, spoilt: &Outcome, clean: &Outcome, junk: f64, report: &mut Report) {
    let (mask, sizes, axis) = (&setting.mask, setting.sizes, setting.out_axis());
    let label = |what: &str| format!("{} with {junk:e} in padding", setting.label(what));
    let asked = |b: usize, i: usize| !is_padded_query(mask, sizes, b, i);
    let at_real = |out: &Array| out.only(|ix| asked(ix[0], ix[axis]));
    report.same(label("out"), &at_real(&spoilt.out), &at_real(&clean.out));
    if let (Some(seen), Some(expected)) = (&spoilt.lse, &clean.lse) {
        let rows = |lse: &[f64]| -> Vec<f64> {
            let of_row = sizes.heads * sizes.queries;
            let rows = lse.iter().enumerate().filter(|(n, _)| asked(n / of_row, n % sizes.queries));
            // Rows that see nothing have no sum, and two infinities no difference.
            rows.map(|(_, &lse)| if lse == f64::NEG_INFINITY { f64::MIN } else { lse }).collect()
        };
        report.same(label("lse"), &rows(seen), &rows(expected));
    }
    for (n, name) in setting.subject.names().into_iter().enumerate() {
        let (seen, expected) = (&spoilt.grads[n], &clean.grads[n]);
        report.same(label(&format!("grad.{name}")), &seen.data, &expected.data);
        let of_keys = matches!(name, "k" | "v" | "x_kv") || name == "x" && !setting.variant.second;
        if let (true, Some(axis)) = (of_keys, token_axis(name, seen.shape.len())) {
            let padded = seen.only(|ix| !real(mask, ix[0], ix[axis]));
            report.require(largest(&padded) == 0.0, label(&format!("grad.{name} of padding is not 0")));
        }
    }
}

#[test]
fn the_future_never_leaks() {
    walk(|variant, report| {
        for sizes in [Sizes::new(2, 2, 21, 21), Sizes::new(1, 2, 90, 150), Sizes::new(1, 2, 150, 90)] {
            let sizes = variant.fit(sizes);
            for share in [0.2, 0.7] {
                let mut setting = Setting::new(variant, sizes, Mask::causal(), Layout::TokenFirst);
                // The last query that must not notice, and the key at its position.
                let last = (share * sizes.queries as f64) as usize;
                let position = (last + sizes.keys) as isize - sizes.queries as isize;
                let later_query = |_: usize, i: usize| i > last;
                let later_key = |_: usize, j: usize| j as isize > position;
                setting.silence(later_query);
                let clean = setting.kernel();
                // A hash sorts all tokens, so that whom a query looks at among earlier keys depends on later ones too; what
                // it gets from them does not.
                let spoilt_names = if variant.hashes() { &["v"][..] } else { &["q", "k", "v", "x", "x_kv"] };
                setting.spoil_only(spoilt_names, JUNK, later_query, later_key);
                let spoilt = setting.kernel();

                let axis = setting.out_axis();
                let early = |out: &Array| out.only(|ix| ix[axis] <= last);
                // Features of a tile are scaled by the largest of all its keys. A later key may move that, which moves
                // roundings and nothing else; everywhere else the bits stay.
                let scaled = variant.options.uses_features();
                let mut same = |what: &str, seen: &[f64], expected: &[f64]| {
                    if scaled {
                        report.compare(setting.label(what), seen, expected, ROUNDING);
                    } else {
                        report.same(setting.label(what), seen, expected);
                    }
                };
                same("out", &early(&spoilt.out), &early(&clean.out));
                for (n, name) in setting.subject.names().into_iter().enumerate() {
                    same(&format!("grad.{name}"), &spoilt.grads[n].data, &clean.grads[n].data);
                }
                for (n, name) in setting.subject.names().into_iter().enumerate() {
                    let seen = &spoilt.grads[n];
                    if let Some(axis) = token_axis(name, seen.shape.len()) {
                        let query_side = matches!(name, "q" | "x");
                        let later =
                            seen.only(|ix| if query_side { later_query(0, ix[axis]) } else { later_key(0, ix[axis]) });
                        report
                            .require(largest(&later) == 0.0, setting.label(&format!("grad.{name} reaches the future")));
                    }
                }
            }
        }
    });
}

/// Causal settings in both layouts, each with the last query that must not notice what comes later, and whether a key does.
fn futures(variant: &Variant) -> impl Iterator<Item = (Setting, usize, impl Fn(usize, usize) -> bool)> {
    [(Sizes::new(2, 2, 90, 90), LAYOUTS[0]), (Sizes::new(1, 2, 70, 150), LAYOUTS[1])]
        .map(|(sizes, layout)| {
            let sizes = variant.fit(sizes);
            let last = sizes.queries / 3;
            let position = (last + sizes.keys) as isize - sizes.queries as isize;
            let later_key = move |_: usize, j: usize| j as isize > position;
            (Setting::new(variant, sizes, Mask::causal(), layout), last, later_key)
        })
        .into_iter()
}

/// Keys and values so large that scores overflow: what comes of them for later queries is no number, and earlier ones see
/// nothing of it.
#[test]
fn a_future_that_overflows_never_leaks() {
    walk(|variant, report| {
        for (mut setting, last, later_key) in futures(variant) {
            let clean = setting.kernel().out;
            let names = if variant.hashes() { &["v"][..] } else { &["k", "v", "x", "x_kv"] };
            // A projection of a larger number would be infinite itself.
            let junk = if variant.routes() { 1e36 } else { 3e38 };
            setting.spoil_only(names, junk, |_, i| i > last, later_key);
            let spoilt = setting.kernel().out;
            let axis = setting.out_axis();
            let early = |out: &Array| out.only(|ix| ix[axis] <= last);
            let bound = if variant.options.uses_features() { ROUNDING } else { 0.0 };
            report.compare(setting.label("out"), &early(&spoilt), &early(&clean), bound);
        }
    });
}

/// The slope `dO_i . v_j` of a hidden pair is infinite here, and its weight of 0 must not meet it.
#[test]
fn future_values_that_overflow_leave_gradients_alone() {
    walk(|variant, report| {
        for (mut setting, last, later_key) in futures(variant) {
            setting.silence(|_, i| i > last);
            setting.grad_out.data.iter_mut().for_each(|x| *x *= 1e5);
            let clean = setting.kernel();
            // Outputs of later queries stay finite.
            setting.spoil_only(&["v"], 1e35, |_, _| false, later_key);
            let spoilt = setting.kernel();
            for (name, (seen, expected)) in setting.subject.names().iter().zip(spoilt.grads.iter().zip(&clean.grads)) {
                report.compare(setting.label(&format!("grad.{name}")), &seen.data, &expected.data, ROUNDING);
            }
        }
    });
}

#[test]
fn constant_values_are_preserved() {
    walk(|variant, report| {
        for (sizes, causal) in usual_sizes().into_iter().flat_map(|s| [(s, false), (s, true)]) {
            if !variant.averages() {
                continue;
            }
            let sizes = variant.fit(sizes);
            let mask = Mask { causal, ..Mask::none() }.with_valid(Some(padding(sizes.batch, sizes.keys)));
            let mut setting = Setting::new(variant, sizes, mask, Layout::TokenFirst);
            let channel = |c: usize| 0.5 + c as f64;
            let values = setting.subject.names().iter().position(|n| *n == "v").expect("values");
            for c in 0..sizes.value_width {
                setting.inputs[values] = setting.inputs[values].with(channel(c), |ix| ix[3] == c);
            }
            let out = setting.kernel().out;
            let sees = setting.sees();
            for c in 0..sizes.value_width {
                let seeing = out.only(|ix| ix[3] == c && sees(ix));
                let expected = vec![channel(c); seeing.len()];
                report.compare(setting.label(&format!("channel {c}")), &seeing, &expected, ROUNDING);
            }
        }
    });
}

#[test]
fn the_order_of_keys_does_not_matter() {
    walk(|variant, report| {
        for sizes in usual_sizes() {
            if variant.positional() {
                continue;
            }
            let mut setting = Setting::new(variant, sizes, Mask::none(), Layout::TokenFirst);
            let Sizes { queries, keys, .. } = setting.sizes;
            let key_order = Random::new(5).permutation(keys);
            // Where queries and keys are the same tokens, they move together.
            let query_order = if variant.cross() { (0..queries).collect() } else { key_order.clone() };
            let order = |name: &str| if matches!(name, "q" | "x" | "out") { &query_order } else { &key_order };
            let moved = |name: &str, tensor: &Array| match token_axis(name, tensor.shape.len()) {
                Some(axis) => tensor.select(axis, order(name)),
                None => tensor.clone(),
            };
            let names = setting.subject.names();
            let straight = setting.kernel();
            for (name, input) in names.iter().zip(&mut setting.inputs) {
                *input = moved(name, input);
            }
            setting.grad_out = moved("out", &setting.grad_out);
            let permuted = setting.kernel();
            report.compare(setting.label("out"), &permuted.out.data, &moved("out", &straight.out).data, ROUNDING);
            for (n, name) in names.iter().enumerate() {
                let (seen, expected) = (&permuted.grads[n].data, moved(name, &straight.grads[n]).data);
                let bound = setting.gradient_bound(n, &straight.grads);
                report.compare(setting.label(&format!("grad.{name}")), seen, &expected, bound);
            }
        }
    });
}

#[test]
fn batch_rows_are_independent() {
    walk(|variant, report| {
        let settings = [
            (Sizes::new(3, 2, 21, 21), true),
            (Sizes::new(3, 2, 70, 150), false),
            (Sizes::new(8, 1, 40, 1300), false),
            (Sizes::new(8, 1, 600, 600), true),
        ];
        for (sizes, causal) in settings {
            // Dropout draws another mask for another batch row.
            if variant.dropout {
                continue;
            }
            let mask = Mask { causal, ..Mask::none() };
            let together = Setting::new(variant, sizes, mask.clone(), Layout::TokenFirst);
            let all = together.kernel();
            for b in [0, sizes.batch - 1] {
                let mut alone = Setting::new(variant, Sizes { batch: 1, ..sizes }, mask.clone(), Layout::TokenFirst);
                let names = alone.subject.names();
                for (n, name) in names.iter().enumerate() {
                    let batched = matches!(*name, "q" | "k" | "v" | "x" | "x_kv");
                    alone.inputs[n] =
                        if batched { together.inputs[n].select(0, &[b]) } else { together.inputs[n].clone() };
                }
                alone.grad_out = together.grad_out.select(0, &[b]);
                let one = alone.kernel();
                // Long keys are cut into more tasks where there are fewer heads to share out, which moves roundings.
                let long = sizes.keys > 512;
                let mut compare = |what: &str, seen: &Array, expected: &Array| {
                    if long {
                        report.compare(alone.label(what), &seen.data, &expected.data, ROUNDING);
                    } else {
                        report.same(alone.label(what), &seen.data, &expected.data);
                    }
                };
                compare("out", &one.out, &all.out.select(0, &[b]));
                for (n, name) in names.iter().enumerate() {
                    if !matches!(*name, "q" | "k" | "v" | "x" | "x_kv") {
                        continue;
                    }
                    compare(&format!("grad.{name}"), &one.grads[n], &all.grads[n].select(0, &[b]));
                }
            }
        }
    });
}

#[test]
fn large_logits_stay_finite() {
    walk(|variant, report| {
        for (sizes, causal) in usual_sizes().into_iter().flat_map(|s| [(s, false), (s, true)]) {
            let mut setting = Setting::new(variant, sizes, Mask { causal, ..Mask::none() }, Layout::TokenFirst);
            // Elements around 14 give products q.k / sqrt(D) up to 200 in size at D = 8, and distances beyond.
            let names = setting.subject.names();
            for (_, input) in
                names.iter().zip(&mut setting.inputs).filter(|(name, _)| matches!(**name, "q" | "k" | "x"))
            {
                input.data.iter_mut().for_each(|x| *x *= 14.0);
            }
            let outcome = setting.kernel();
            report.require(largest(&outcome.out.data).is_finite(), setting.label("out is not finite"));
            for (name, grad) in names.iter().zip(&outcome.grads) {
                report.require(largest(&grad.data).is_finite(), setting.label(&format!("grad.{name} is not finite")));
            }
            if variant.averages() {
                let values = &setting.inputs[names.iter().position(|n| *n == "v").expect("values")];
                let within = largest(&outcome.out.data) <= largest(&values.data) * (1.0 + ROUNDING);
                report.require(within, setting.label("an average lies outside its values"));
            }
        }
    });
}

#[test]
fn rows_that_see_nothing_give_0() {
    walk(|variant, report| {
        for (sizes, causal) in usual_sizes().into_iter().flat_map(|s| [(s, false), (s, true)]) {
            let sizes = variant.fit(sizes);
            let mask = Mask { causal, ..Mask::none() }.with_valid(Some(padding(sizes.batch, sizes.keys)));
            let setting = Setting::new(variant, sizes, mask, Layout::TokenFirst);
            let sees = setting.sees();
            let outcome = setting.kernel();
            let out = outcome.out.only(|ix| !sees(ix));
            report.require(!out.is_empty(), setting.label("the last row is padding"));
            report.require(largest(&out) == 0.0, setting.label("out of a blind row is not 0"));
            // Outputs of three axes have the heads' channels side by side; their queries are those of the first input all
            // the same.
            let name = setting.subject.names()[0];
            let axis = token_axis(name, outcome.grads[0].shape.len()).expect("queries have tokens");
            let grad = outcome.grads[0].only(|ix| match setting.out_axis() {
                2 => !sees(ix),
                _ => !sees(&[ix[0], ix[axis]]),
            });
            report.require(largest(&grad) == 0.0, setting.label("grad.q of a blind row is not 0"));
            report.require(largest(&outcome.out.data).is_finite(), setting.label("out is not finite"));
        }
    });
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let pools = [1, 2, 3, 7].map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().expect("a pool"));
    walk(|variant, report| {
        for (sizes, causal) in
            [(Sizes::new(2, 4, 257, 257), true), (Sizes { key_heads: 1, ..Sizes::new(1, 3, 33, 600) }, false)]
        {
            let setting = Setting::new(variant, sizes, Mask { causal, ..Mask::none() }, Layout::TokenFirst);
            let [one, two, three, seven] = pools.each_ref().map(|pool| pool.install(|| setting.kernel()));
            for (threads, many) in [(2, two), (3, three), (7, seven)] {
                let label = |what: &str| setting.label(&format!("{what} on {threads} threads"));
                report.same(label("out"), &many.out.data, &one.out.data);
                for (name, (seen, expected)) in setting.subject.names().iter().zip(many.grads.iter().zip(&one.grads)) {
                    report.same(label(&format!("grad.{name}")), &seen.data, &expected.data);
                }
            }
        }
    });
}

#[test]
fn unwanted_gradients_are_not_computed() {
    walk(|variant, report| {
        let setting = Setting::new(variant, Sizes::new(2, 2, 21, 21), Mask::causal(), Layout::TokenFirst);
        let all = setting.kernel();
        let names = setting.subject.names();
        for (n, name) in setting.learned() {
            let wanted: Vec<bool> = (0..names.len()).map(|other| other == n).collect();
            let (_, _, grads) = setting.subject.kernel_where(&setting.inputs, &setting.grad_out, &wanted);
            for (other, grad) in grads.iter().enumerate() {
                match grad {
                    Some(grad) if other == n => {
                        report.same(setting.label(&format!("grad.{name} alone")), &grad.data, &all.grads[n].data);
                    }
                    found => report.require(
                        found.is_none() && other != n,
                        setting.label(&format!(
                            "asked for {name}, {} is {}",
                            names[other],
                            if found.is_some() { "there" } else { "missing" }
                        )),
                    ),
                }
            }
        }
        let constants = names.iter().map(|name| setting.subject.is_constant(name)).collect::<Vec<_>>();
        let (_, _, grads) = setting.subject.kernel_where(&setting.inputs, &setting.grad_out, &constants);
        report.require(grads.iter().all(Option::is_none), setting.label("asked for what is drawn"));
        let (_, _, none) = setting.subject.kernel_where(&setting.inputs, &setting.grad_out, &vec![false; names.len()]);
        report.require(none.iter().all(Option::is_none), setting.label("asked for nothing"));
    });
}

#[test]
fn shared_key_heads_equal_copies() {
    walk(|variant, report| {
        for key_heads in [1, 2] {
            if !variant.cross() || variant.routes() {
                continue;
            }
            let sizes = Sizes { key_heads, ..Sizes::new(2, 4, 21, 37) };
            let shared = Setting::new(variant, sizes, Mask::none(), Layout::TokenFirst);
            let mut copied = Setting::new(variant, Sizes { key_heads: 4, ..sizes }, Mask::none(), Layout::TokenFirst);
            let copies: Vec<usize> = (0..4).map(|h| h * key_heads / 4).collect();
            let names = shared.subject.names();
            // Axis of the key heads.
            let head_axis = |name: &str| match name {
                "k" | "v" => Some(1),
                "shift" => Some(0),
                _ => None,
            };
            for (n, name) in names.iter().enumerate() {
                copied.inputs[n] = match head_axis(name) {
                    Some(axis) => shared.inputs[n].select(axis, &copies),
                    None => shared.inputs[n].clone(),
                };
            }
            copied.grad_out = shared.grad_out.clone();
            let (seen, expected) = (shared.kernel(), copied.kernel());
            report.compare(shared.label("out"), &seen.out.data, &expected.out.data, ROUNDING);
            for (n, name) in names.iter().enumerate() {
                let grad = &expected.grads[n];
                let summed = match head_axis(name) {
                    None => grad.clone(),
                    // A shared head receives the sum over its copies.
                    Some(axis) => {
                        let group = 4 / key_heads;
                        let part =
                            |c: usize| grad.select(axis, &(0..key_heads).map(|h| h * group + c).collect::<Vec<_>>());
                        (1..group).map(part).fold(part(0), |sum, next| {
                            let data = sum.data.iter().zip(&next.data).map(|(a, b)| a + b).collect();
                            Array::new(&sum.shape, data)
                        })
                    }
                };
                report.compare(shared.label(&format!("grad.{name}")), &seen.grads[n].data, &summed.data, TWIN_BOUND);
            }
        }
    });
}

/// Keys and values are rounded once, and nothing else is: outputs of unit scale move by about as much.
#[test]
fn caches_of_fewer_bits_decode_within_their_error() {
    let mut report = Report::new();
    for variant in Variant::all() {
        let sizes = Sizes { key_heads: 1, ..Sizes::new(2, 2, 40, 40) };
        let setting = Setting::new(&variant, variant.fit(sizes), Mask::causal(), Layout::HeadFirst);
        if variant.dropout || setting.subject.operator.decoder(Storage::F32).is_none() {
            continue;
        }
        let exact = decoded(&setting, Storage::F32);
        for &storage in &Storage::ALL[1..] {
            let (row, bytes) = decoded(&setting, storage);
            let label = format!("{} as {}", setting.label("last token"), storage.name());
            let bound = match storage {
                Storage::F32 => 0.0,
                Storage::Bf16 => 2e-2,
                Storage::F16 => 2e-3,
                Storage::Int8 => 3e-2,
                other => panic!("{other:?} has no bound here"),
            };
            report.compare(&label, &row.data, &exact.0.data, bound);
            // Sums stay as they are; what grows with the tokens shrinks.
            report.require(bytes <= exact.1, format_args!("{label}: {bytes} bytes, more than {}", exact.1));
            if variant.mechanism() == Mechanism::Softmax {
                let share = bytes as f64 / exact.1 as f64;
                // The factors of rows of 8 and 5 numbers are many.
                let most = if storage == Storage::Int8 { 0.45 } else { 0.5 };
                report.require(share <= most, format_args!("{label}: {share} of the bytes"));
            }
        }
    }
    report.finish();
}

/// The output of the last token, and the bytes of the state.
fn decoded(setting: &Setting, storage: Storage) -> (Array, usize) {
    let mut decoder = setting.subject.operator.decoder(storage).expect("a decoder");
    let tokens = setting.sizes.queries;
    let shape = setting.kernel().out.select(setting.out_axis(), &[0]).shape;
    let mut row = None;
    for t in 0..tokens {
        row = Some(setting.subject.step(decoder.as_mut(), &token(setting, t), &shape));
    }
    (row.expect("some tokens"), decoder.bytes())
}

/// The inputs of token `t` alone.
fn token(setting: &Setting, t: usize) -> Vec<Array> {
    let names = setting.subject.names();
    let of_token = |(name, input): (&&str, &Array)| match *name {
        "q" | "k" | "v" | "x" => input.select(token_axis(name, input.shape.len()).expect("tokens"), &[t]),
        _ => input.clone(),
    };
    names.iter().zip(&setting.inputs).map(of_token).collect()
}

#[test]
fn decoding_token_by_token_equals_the_whole() {
    let mut report = Report::new();
    let mut decoded = Vec::new();
    for variant in Variant::all() {
        for layout in LAYOUTS {
            let sizes = Sizes::new(2, 2, 40, 40);
            let setting = Setting::new(&variant, sizes, Mask::causal(), layout);
            // A decoder speaks after training, where nothing is dropped.
            let Some(mut decoder) = setting.subject.operator.decoder(Storage::F32).filter(|_| !variant.dropout) else {
                continue;
            };
            decoded.push(variant.name);
            let whole = setting.kernel().out;
            let axis = setting.out_axis();
            for t in 0..sizes.queries {
                let expected = whole.select(axis, &[t]);
                let row = setting.subject.step(decoder.as_mut(), &token(&setting, t), &expected.shape);
                report.compare(setting.label(&format!("token {t}")), &row.data, &expected.data, TWIN_BOUND);
            }
            report.require(decoder.bytes() > 0, setting.label("a state without bytes"));
        }
    }
    for variant in Variant::all() {
        // A support needs no token that is still to come.
        use SupportKind::{Bigbird, Lsh, Smyrf};
        let known = !variant.options.uses_support() || !matches!(variant.options.support.kind, Bigbird | Lsh | Smyrf);
        if !variant.dropout && !variant.bias && !variant.second {
            let has = decoded.contains(&variant.name);
            report.require(has == known, format_args!("{} has a decoder: {has}", variant.name));
        }
    }
    report.finish();
}
