//! Every operator against the golden data: the float64 twin to 1e-10, the float32 kernel to the bound of the manifest,
//! output and every gradient, in both layouts.

mod support;

use std::sync::Arc;

use regard_kernels::{
    Layout, View,
    reference::{
        gaussian_mixture::responsibilities,
        scatterbrain::{groups, support},
    },
};
use regard_testkit::{Report, cases};
use support::{
    Array, Subject,
    golden::{array, inputs, log, options, scatterbrain, soft_em, subject},
};

/// Float64 implementations of one formula agree to this.
const FLOAT64_BOUND: f64 = 1e-10;

/// Which implementation is held against the files.
#[derive(Clone, Copy, Debug)]
enum Form {
    Twin,
    Kernel,
}

/// Holds all cases of these mechanisms against their files.
fn check(form: Form, mechanisms: &[&str], expected_cases: usize) {
    let mut report = Report::new();
    let mut seen = 0;
    for case in cases().iter().filter(|c| mechanisms.contains(&&*c.mechanism)) {
        seen += 1;
        let tensors = case.load();
        let (out, grad_out) = (array(&tensors, "out"), array(&tensors, "grad_out"));
        for layout in [Layout::HeadFirst, Layout::TokenFirst] {
            let subject = subject(case, &tensors, layout);
            let inputs = inputs(&subject, &tensors);
            let outcome = match form {
                Form::Twin => subject.twin(&inputs, &grad_out),
                Form::Kernel => subject.kernel(&inputs, &grad_out),
            };
            let bound = |name: &str| match form {
                Form::Twin => FLOAT64_BOUND,
                Form::Kernel => case.bound(name),
            };
            let label = |name: &str| format!("{} {layout:?} {name}", case.name());
            report.compare(label("out"), &outcome.out.data, &out.data, bound("out"));
            for name in case.differentiated() {
                let position = subject.names().iter().position(|n| *n == name);
                let grad = &outcome.grads[position.unwrap_or_else(|| panic!("{} has no input {name}", case.file))];
                let name = format!("grad.{name}");
                report.compare(label(&name), &grad.data, &array(&tensors, &name).data, bound(&name));
            }
        }
    }
    assert_eq!(seen, expected_cases, "cases of {mechanisms:?}");
    report.finish();
}

#[test]
fn softmax_twin() {
    check(Form::Twin, &["softmax"], 13);
}

#[test]
fn cosine_twin() {
    check(Form::Twin, &["cosine"], 4);
}

#[test]
fn gaussian_mixture_twin() {
    check(Form::Twin, &["gaussian", "mgk"], 23);
}

#[test]
fn linear_twin() {
    check(Form::Twin, &["linear", "mlk"], 12);
}

#[test]
fn fastformer_twin() {
    check(Form::Twin, &["fastformer"], 9);
}

#[test]
fn performer_twin() {
    check(Form::Twin, &["performer"], 9);
}

#[test]
fn sparse_twin() {
    check(Form::Twin, &["sparse"], 20);
}

#[test]
fn scatterbrain_twin() {
    check(Form::Twin, &["scatterbrain"], 17);
}

#[test]
fn mixture_of_heads_twin() {
    check(Form::Twin, &["moa"], 10);
}

#[test]
fn softmax_kernel() {
    check(Form::Kernel, &["softmax"], 13);
}

#[test]
fn cosine_kernel() {
    check(Form::Kernel, &["cosine"], 4);
}

#[test]
fn gaussian_mixture_kernel() {
    check(Form::Kernel, &["gaussian", "mgk"], 23);
}

#[test]
fn linear_kernel() {
    check(Form::Kernel, &["linear", "mlk"], 12);
}

#[test]
fn fastformer_kernel() {
    check(Form::Kernel, &["fastformer"], 9);
}

#[test]
fn performer_kernel() {
    check(Form::Kernel, &["performer"], 9);
}

#[test]
fn sparse_kernel() {
    check(Form::Kernel, &["sparse"], 20);
}

#[test]
fn scatterbrain_kernel() {
    check(Form::Kernel, &["scatterbrain"], 17);
}

#[test]
fn mixture_of_heads_kernel() {
    check(Form::Kernel, &["moa"], 10);
}

#[test]
fn hashes_group_real_tokens_as_in_the_files() {
    let mut report = Report::new();
    let mut seen = [0; 3];
    for case in cases() {
        let named = ["q_cluster", "k_cluster", "chunk"].map(|name| case.tensors.contains_key(name));
        if named == [false; 3] {
            continue;
        }
        let tensors = case.load();
        let operator = scatterbrain(&case, &tensors);
        let subject = Subject { operator: Arc::new(operator.clone()), layout: Layout::HeadFirst };
        let inputs = inputs(&subject, &tensors);
        let views: Vec<View<f64>> = inputs.iter().map(Array::view).collect();
        let groups = groups(&operator, &views);
        report.require(groups.margin > 1e-4, format_args!("{}: margin {}", case.name(), groups.margin));
        let valid = tensors.get("valid").map(|valid| (valid.u8(), valid.shape[1]));
        let real = |b: usize, t: usize| valid.is_none_or(|(bytes, length)| bytes[b * length + t] != 0);
        for (n, (name, found)) in
            [("q_cluster", &groups.queries), ("k_cluster", &groups.keys), ("chunk", &groups.queries)].iter().enumerate()
        {
            let Some(expected) = tensors.get(name) else { continue };
            seen[n] += 1;
            let [_, batch, heads, length] = expected.shape[..] else { panic!("{name} of {:?}", expected.shape) };
            let at_real = |groups: &mut dyn Iterator<Item = f64>| -> Vec<f64> {
                let tokens = groups.enumerate();
                tokens.filter(|(n, _)| real(n / length / heads % batch, n % length)).map(|(_, group)| group).collect()
            };
            let found = at_real(&mut found.iter().map(|&group| group as f64));
            let expected = at_real(&mut expected.i64().iter().map(|&group| group as f64));
            report.same(format_args!("{} {name}", case.name()), &found, &expected);
        }
        if let Some(expected) = tensors.get("support") {
            let [_, heads, length, _] = expected.shape[..] else { panic!("support of {:?}", expected.shape) };
            let row_real = |n: usize| real(n / length / length / heads, n / length % length);
            let rows = |pairs: &mut dyn Iterator<Item = f64>| -> Vec<f64> {
                pairs.enumerate().filter(|(n, _)| row_real(*n)).map(|(_, x)| x).collect()
            };
            let found = rows(&mut support(&operator, &views).into_iter().map(|on| f64::from(u8::from(on))));
            let expected = rows(&mut expected.u8().iter().map(|&on| f64::from(on)));
            report.same(format_args!("{} support", case.name()), &found, &expected);
        }
    }
    assert_eq!(seen, [10, 10, 4], "files with clusters of queries, of keys, with chunks");
    report.finish();
}

#[test]
fn named_variances_are_those_of_the_files() {
    let mut report = Report::new();
    for case in cases().iter().filter(|c| ["gaussian", "mgk"].contains(&&*c.mechanism)) {
        let tensors = case.load();
        let stored = tensors.tensor("variance");
        let width = *tensors.tensor("q").shape.last().expect("four axes");
        let resolved = options(case, &tensors).mixture.variances.resolve(stored.f64().len(), width).expect("a choice");
        // The files round variances to float32.
        report.compare(case.name(), &resolved, stored.f64(), 1e-7);
    }
    report.finish();
}

#[test]
fn soft_em_sets_the_prior_to_the_mean_responsibility() {
    let mut report = Report::new();
    let updates = cases().into_iter().filter(|c| c.tensors.contains_key("prior_after"));
    for (case, layout) in updates.flat_map(|c| [(c.clone(), Layout::HeadFirst), (c, Layout::TokenFirst)]) {
        let tensors = case.load();
        let operator = soft_em(&case, &tensors, layout);
        let subject = Subject { operator: Arc::new(operator.clone()), layout };
        let mut inputs = inputs(&subject, &tensors);
        let arranged = subject.arrange(&inputs);
        let (prior_after, out_after) = (array(&tensors, "prior_after"), array(&tensors, "out_after"));

        let views: Vec<View<f64>> = arranged.iter().map(Array::view).collect();
        let twin = responsibilities(&operator, &views);
        let data: Vec<Vec<f32>> = arranged.iter().map(Array::f32).collect();
        let views: Vec<View<f32>> = data.iter().zip(&arranged).map(|(d, a)| View::new(d, &a.shape)).collect();
        let kernel: Vec<f64> = operator.responsibilities(&views).into_iter().map(f64::from).collect();
        let label = |what: &str| format!("{} {layout:?} {what}", case.name());
        report.compare(label("prior of the twin"), &twin, &prior_after.data, FLOAT64_BOUND);
        report.compare(label("prior of the kernel"), &kernel, &prior_after.data, case.bound("prior_after"));

        let prior = subject.names().iter().position(|n| *n == "log_prior").expect("a prior");
        let grad_out = array(&tensors, "grad_out");
        inputs[prior] = log(&Array::new(&prior_after.shape, twin));
        let out = subject.twin(&inputs, &grad_out).out;
        report.compare(label("output of the twin"), &out.data, &out_after.data, FLOAT64_BOUND);
        inputs[prior] = log(&Array::new(&prior_after.shape, kernel));
        let out = subject.kernel(&inputs, &grad_out).out;
        report.compare(label("output of the kernel"), &out.data, &out_after.data, case.bound("out_after"));
    }
    report.finish();
}
