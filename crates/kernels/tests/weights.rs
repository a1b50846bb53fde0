//! The weights that every mechanism gives are those of its twin.

mod support;

use regard_kernels::{Averaged, Layout, Mask, Mechanism, View, Weights, mechanism::AdditiveScores};
use regard_testkit::Report;
use support::{
    Array, Sizes, padding,
    setting::{LAYOUTS, Setting, usual_sizes, walk},
};

/// Equal but for the order of float64 sums.
const ROUNDING: f64 = 1e-12;

fn arranged(setting: &Setting) -> Vec<Array> {
    setting.subject.arrange(&setting.inputs)
}

/// Rows sum to 1, or are 0, and put nothing on a key that is not seen.
fn check_rows(setting: &Setting, weights: &Weights, b: usize, report: &mut Report) -> Vec<Vec<f64>> {
    let Sizes { queries, keys, .. } = setting.sizes;
    let mask = setting.variant.masked(&setting.mask);
    assert_eq!((weights.queries, weights.keys), (queries, keys), "{}", setting.label("sizes"));
    let rows: Vec<Vec<f64>> = (0..queries).map(|i| weights.row(i)).collect();
    for (i, row) in rows.iter().enumerate() {
        let visible = mask.visible(i, queries, keys);
        let seen = |j: usize| visible.contains(&j) && support::real(&mask, b, j);
        let sum: f64 = row.iter().sum();
        let normal = row.iter().all(|w| *w == 0.0) || (sum - 1.0).abs() < ROUNDING;
        report.require(normal && row.iter().all(|w| *w >= 0.0), setting.label(&format!("row {i} sums to {sum}")));
        let hidden = row.iter().enumerate().all(|(j, w)| seen(j) || *w == 0.0);
        report.require(hidden, setting.label(&format!("row {i} has weight on a hidden key")));
    }
    rows
}

fn settings(check: impl Fn(&Setting, &mut Report)) {
    walk(|variant, report| {
        // Dropout belongs to training; weights leave it out.
        if variant.dropout {
            return;
        }
        let masks = usual_sizes().into_iter().flat_map(|s| [(s, false), (s, true)]);
        for ((sizes, causal), layout) in masks.flat_map(|mask| LAYOUTS.map(|layout| (mask, layout))) {
            let sizes = variant.fit(sizes);
            let mask = Mask { causal, ..Mask::none() }.with_valid(Some(padding(sizes.batch, sizes.keys)));
            check(&Setting::new(variant, sizes, mask, layout), report);
        }
    });
}

#[test]
fn output_is_weights_times_values() {
    settings(|setting, report| {
        let mechanism = setting.variant.options.mechanism;
        if matches!(mechanism, Mechanism::Moa | Mechanism::Fastformer) {
            return;
        }
        let (inputs, out) = (arranged(setting), setting.subject.twin_out(&setting.inputs));
        let views: Vec<View<f64>> = inputs.iter().map(Array::view).collect();
        // Head first, whatever the layout of the operator.
        let v = setting.subject.names().iter().position(|name| *name == "v").expect("values");
        let v = &setting.inputs[v];
        let Sizes { batch, heads, key_heads, queries, keys, value_width, .. } = setting.sizes;
        for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
            let all = setting.subject.operator.weights(&views, b, h);
            let [weights] = &all[..] else { panic!("{}", setting.label("one matrix")) };
            report.require(weights.averaged == Averaged::Values, setting.label("averages values"));
            let rows = check_rows(setting, weights, b, report);
            let values = &v.data[(b * key_heads + h * key_heads / heads) * keys * value_width..][..keys * value_width];
            let product = |i: usize, c: usize| (0..keys).map(|j| rows[i][j] * values[j * value_width + c]).sum();
            let seen: Vec<f64> =
                (0..queries * value_width).map(|at| product(at / value_width, at % value_width)).collect();
            let expected = &out.data[(b * heads + h) * queries * value_width..][..queries * value_width];
            report.compare(setting.label(&format!("W v, row {b}, head {h}")), &seen, expected, ROUNDING);
        }
    });
}

/// One token's output of a mixture of heads is the sum over its slots, each with the weights of its expert.
#[test]
fn slots_of_a_mixture_of_heads() {
    settings(|setting, report| {
        if setting.variant.options.mechanism != Mechanism::Moa {
            return;
        }
        let inputs = arranged(setting);
        let views: Vec<View<f64>> = inputs.iter().map(Array::view).collect();
        for (b, slot) in
            (0..setting.sizes.batch).flat_map(|b| (0..setting.variant.options.moa.active).map(move |s| (b, s)))
        {
            let all = setting.subject.operator.weights(&views, b, slot);
            let [weights] = &all[..] else { panic!("{}", setting.label("one matrix")) };
            check_rows(setting, weights, b, report);
        }
    });
}

/// `u_i = g_k * v_i` of the two averages that the weights give, and with the identity as `W_t` the output is `u + q`.
#[test]
fn averages_of_fastformer() {
    settings(|setting, report| {
        let options = &setting.variant.options;
        if options.mechanism != Mechanism::Fastformer || setting.subject.layout != Layout::HeadFirst {
            return;
        }
        let mut setting = Setting::new(&setting.variant, setting.sizes, setting.mask.clone(), Layout::HeadFirst);
        let names = setting.subject.names();
        let at = |name: &str| names.iter().position(|n| *n == name);
        let w_t = at("w_t").expect("an output transform");
        setting.inputs[w_t] = setting.inputs[w_t].with(0.0, |_| true).with(1.0, |ix| ix[0] == ix[1]);
        let out = setting.subject.twin_out(&setting.inputs);
        let inputs = arranged(&setting);
        let views: Vec<View<f64>> = inputs.iter().map(Array::view).collect();
        let (q, k) = (&setting.inputs[0], &setting.inputs[1]);
        let v = at("v").map_or(q, |v| &setting.inputs[v]);
        let Sizes { batch, heads, queries, width, .. } = setting.sizes;
        for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
            let all = setting.subject.operator.weights(&views, b, h);
            let [alpha, beta] = &all[..] else { panic!("{}", setting.label("two matrices")) };
            let averaged = [alpha.averaged, beta.averaged];
            report.require(averaged == [Averaged::Queries, Averaged::Keys], setting.label("averages"));
            let [alpha, beta] = [alpha, beta].map(|weights| check_rows(&setting, weights, b, report));
            let x = |t: &Array, i: usize, c: usize| t.data[((b * heads + h) * queries + i) * width + c];
            let gated = |j: usize, c: usize| x(k, j, c) * (0..queries).map(|n| alpha[j][n] * x(q, n, c)).sum::<f64>();
            for c in 0..width {
                let gated: Vec<f64> = (0..queries).map(|j| gated(j, c)).collect();
                let sees = |i: usize| beta[i].iter().any(|w| *w > 0.0);
                let global = |i: usize| (0..queries).map(|j| beta[i][j] * gated[j]).sum::<f64>();
                let expected = |i: usize| if sees(i) { global(i) * x(v, i, c) + x(q, i, c) } else { 0.0 };
                let expected: Vec<f64> = (0..queries).map(expected).collect();
                let channel = |i: usize| out.data[(b * queries + i) * heads * width + h * width + c];
                let seen: Vec<f64> = (0..queries).map(channel).collect();
                report.compare(setting.label(&format!("row {b}, head {h}, channel {c}")), &seen, &expected, ROUNDING);
            }
        }
    });
    // Both kinds of score vectors are among the variants.
    let kinds = support::Variant::of(Mechanism::Fastformer);
    for scores in [AdditiveScores::Paper, AdditiveScores::Released] {
        assert!(kinds.iter().any(|variant| variant.options.fastformer.scores == scores));
    }
}
