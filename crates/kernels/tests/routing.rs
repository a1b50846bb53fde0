//! Routing and the mixture of heads: losses and choices of the golden data, and what must hold whatever the numbers are.

mod support;

use std::sync::Arc;

use regard_kernels::{
    Dropout, Layout, Mask, MixtureOfHeads, Operator, Padding, Saved, Softmax, View,
    elementwise::Affine,
    reference,
    routing::{ExpertOutputs, ExpertQueries, GateKind, Gates, RouterCoefficients, RouterLoss, Routing, router_losses},
};
use regard_testkit::{Case, Random, Report, Tensors, cases, derivative, wide};
use support::{
    Array, Subject,
    golden::{array, inputs, subject},
    padding,
};

const FLOAT64_BOUND: f64 = 1e-10;
const BOUND: f64 = 1e-5;

fn moa_cases() -> Vec<Case> {
    let cases: Vec<_> = cases().into_iter().filter(|case| case.mechanism == "moa").collect();
    assert_eq!(cases.len(), 10);
    cases
}

/// Padding of the queries of a case.
fn query_padding(tensors: &Tensors) -> Option<Arc<Padding>> {
    let valid = tensors.get("query_valid").or(tensors.get("valid").filter(|_| tensors.get("x_kv").is_none()))?;
    Some(Arc::new(Padding::new(valid.shape[0], valid.shape[1], valid.u8().to_vec()).expect("[B, N]")))
}

fn run(operator: &dyn Operator, inputs: &[View<f32>]) -> Vec<f32> {
    let shapes: Vec<&[usize]> = inputs.iter().map(|input| input.shape).collect();
    let mut out = vec![f32::NAN; operator.out_shape(&shapes).unwrap().iter().product()];
    operator.forward(inputs, &mut out);
    out
}

#[test]
fn losses_gradients_and_choices_are_those_of_the_files() {
    let mut report = Report::new();
    for case in moa_cases() {
        let tensors = case.load();
        let (x, w_gate) = (array(&tensors, "x"), array(&tensors, "w_gate"));
        let active = case.options["active"].as_u64().unwrap() as usize;
        let shape = [x.shape[0], x.shape[1], w_gate.shape[1]];
        let chosen: Vec<u32> = tensors.tensor("chosen").i64().iter().map(|expert| *expert as u32).collect();
        let label = |what: &str| format!("{} {what}", case.name());
        let coefficients = |balance, z| RouterCoefficients { balance, z, cv: 0.0 };
        let expected = |name: &str| array(&tensors, name).data;

        let logits = reference::mixture_of_heads::product(x.view(), w_gate.view());
        let routing = Arc::new(Routing::new(&logits, shape, active, None, query_padding(&tensors)).unwrap());
        report.require(routing.chosen() == chosen, label("chosen in float64"));
        let losses = reference::routing::losses(&routing, &logits);
        report.compare(label("balance"), &[losses.balance], &expected("balance_loss"), FLOAT64_BOUND);
        report.compare(label("z"), &[losses.z], &expected("z_loss"), FLOAT64_BOUND);
        for (name, coefficients) in [("balance", coefficients(1.0, 0.0)), ("z", coefficients(0.0, 1.0))] {
            let of_logits = reference::routing::loss_gradient(&routing, &logits, coefficients);
            let (of_x, of_w) = reference::mixture_of_heads::product_gradients(x.view(), w_gate.view(), &of_logits);
            for (input, seen) in [("x", of_x), ("w_gate", of_w)] {
                let name = format!("grad_{name}.{input}");
                report.compare(label(&name), &seen, &expected(&name), FLOAT64_BOUND);
            }
        }

        let (narrow_x, narrow_w) = (x.f32(), w_gate.f32());
        let factors = [View::new(&narrow_x[..], &x.shape), View::new(&narrow_w[..], &w_gate.shape)];
        let product = Affine { bias: false };
        let logits = run(&product, &factors);
        let routing = Arc::new(Routing::new(&logits, shape, active, None, query_padding(&tensors)).unwrap());
        report.require(routing.chosen() == chosen, label("chosen in float32"));
        let losses = router_losses(&routing, &logits);
        let bound = |name: &str| case.bound(name);
        report.compare(label("balance in f32"), &[losses.balance], &expected("balance_loss"), bound("balance_loss"));
        report.compare(label("z in float32"), &[losses.z], &expected("z_loss"), bound("z_loss"));
        for (name, coefficients) in [("balance", coefficients(1.0, 0.0)), ("z", coefficients(0.0, 1.0))] {
            let operator = RouterLoss { routing: routing.clone(), coefficients };
            let views = [View::new(&logits[..], &shape)];
            let nothing = vec![0.0; logits.len()];
            let of_logits = operator.backward(&views, &[], &Saved::new(), &nothing, &[true])[0].take().unwrap();
            let grads = product.backward(&factors, &[], &Saved::new(), &of_logits, &[true, true]);
            for (input, seen) in ["x", "w_gate"].iter().zip(grads) {
                let name = format!("grad_{name}.{input}");
                report.compare(label(&format!("{name} in f32")), &wide(&seen.unwrap()), &expected(&name), bound(&name));
            }
        }

        // The operator knows the same losses.
        let subject = subject(&case, &tensors, Layout::TokenFirst);
        let given = inputs(&subject, &tensors);
        let operator = MixtureOfHeads {
            mask: Mask::none().with_valid(query_padding(&tensors).filter(|_| !subject.names().contains(&"x_kv"))),
            active,
            cross: subject.names().contains(&"x_kv"),
            ..MixtureOfHeads::default()
        };
        if !operator.cross {
            let views: Vec<View<f64>> = given.iter().map(Array::view).collect();
            let losses = operator.reference_losses(&views);
            report.compare(label("balance of the operator"), &[losses.balance], &expected("balance_loss"), 1e-10);
        }
    }
    report.finish();
}

/// Logits of `tokens` tokens, the router's losses of which are differentiable: nobody is near another choice.
fn logits(tokens: usize, experts: usize, seed: u64) -> Array {
    Array::normal(&[2, tokens / 2, experts], 1.0, &mut Random::new(seed))
}

fn route(logits: &Array, active: usize, padding: Option<Arc<Padding>>) -> Arc<Routing> {
    let &[batch, queries, experts] = &logits.shape[..] else { panic!("three axes") };
    Arc::new(Routing::new(&logits.data, [batch, queries, experts], active, None, padding).unwrap())
}

#[test]
fn gradients_of_the_losses_are_their_derivatives() {
    let logits = logits(10, 5, 3);
    let routing = route(&logits, 2, Some(padding(2, 5)));
    let mut report = Report::new();
    for (name, coefficients) in [
        ("balance", RouterCoefficients { balance: 1.0, z: 0.0, cv: 0.0 }),
        ("z", RouterCoefficients { balance: 0.0, z: 1.0, cv: 0.0 }),
        ("cv", RouterCoefficients { balance: 0.0, z: 0.0, cv: 1.0 }),
        ("all", RouterCoefficients { balance: 0.7, z: 0.2, cv: 1.5 }),
    ] {
        // The choice is a constant, as it is almost everywhere.
        let differences = derivative(&logits.data, |moved| {
            let losses = reference::routing::losses(&routing, moved);
            coefficients.balance * losses.balance + coefficients.z * losses.z + coefficients.cv * losses.cv
        });
        let seen = reference::routing::loss_gradient(&routing, &logits.data, coefficients);
        report.compare(name, &seen, &differences, 1e-9);

        let operator = RouterLoss { routing: routing.clone(), coefficients };
        let grad_out: Vec<f32> = (0..50).map(|i| i as f32 * 0.01).collect();
        let data = logits.f32();
        let views = [View::new(&data[..], &logits.shape)];
        assert_eq!(run(&operator, &views), data);
        let kernel = operator.backward(&views, &data, &Saved::new(), &grad_out, &[true])[0].take().unwrap();
        let wanted: Vec<f64> = seen.iter().zip(&grad_out).map(|(g, o)| g + f64::from(*o)).collect();
        report.compare(format_args!("{name} of the kernel"), &wide(&kernel), &wanted, 2e-6);
        let twin = operator.reference(&[logits.view()], Some(&wide(&grad_out)));
        report.compare(format_args!("{name} of the twin"), &twin.grads[0], &wanted, 1e-12);
    }
    report.finish();
}

#[test]
fn losses_have_their_values_at_the_extremes() {
    let routed = |row: &dyn Fn(usize, usize) -> f64, active| {
        let data: Vec<f64> = (0..12 * 6).map(|i| row(i / 6, i % 6)).collect();
        let logits = Array::new(&[2, 6, 6], data);
        let routing = route(&logits, active, None);
        (reference::routing::losses(&routing, &logits.data), router_losses(&routing, &logits.f32()))
    };
    let mut report = Report::new();
    let mut both = |name: &str, (twin, kernel): (_, _), pick: &dyn Fn(&_) -> f64, wanted: f64| {
        report.compare(name, &[pick(&twin)], &[wanted], 1e-12);
        report.compare(format_args!("{name} of the kernel"), &[pick(&kernel)], &[wanted], 1e-6);
    };
    type Losses = regard_kernels::routing::RouterLosses;
    let collapsed = |_: usize, expert: usize| if expert < 2 { 40.0 } else { -40.0 };
    both("collapsed", routed(&collapsed, 2), &|l: &Losses| l.balance, 3.0);
    both("collapsed cv", routed(&collapsed, 2), &|l: &Losses| l.cv, 2.0);
    both("collapsed entropy", routed(&collapsed, 2), &|l: &Losses| l.entropy, 2f64.ln());
    let balanced = |token: usize, expert: usize| if token % 6 == expert { 1.0 } else { 0.0 };
    both("balanced", routed(&balanced, 1), &|l: &Losses| l.balance, 1.0);
    both("balanced cv", routed(&balanced, 1), &|l: &Losses| l.cv, 0.0);
    let flat = |_: usize, _: usize| 3.0;
    both("flat", routed(&flat, 2), &|l: &Losses| l.balance, 1.0);
    both("flat z", routed(&flat, 2), &|l: &Losses| l.z, (3.0 + 6f64.ln()).powi(2));
    both("flat entropy", routed(&flat, 2), &|l: &Losses| l.entropy, 6f64.ln());
    report.finish();
}

/// Inputs of a mixture of `experts` heads: `x w_gate w_query w_key w_value w_out`.
fn mixture([batch, tokens, width]: [usize; 3], experts: usize, head_width: usize, seed: u64) -> Vec<Array> {
    let random = &mut Random::new(seed);
    let share = 1.0 / (width as f64).sqrt();
    vec![
        Array::normal(&[batch, tokens, width], 1.0, random),
        Array::normal(&[width, experts], share, random),
        Array::normal(&[experts, width, head_width], share, random),
        Array::normal(&[width, head_width], share, random),
        Array::normal(&[width, head_width], share, random),
        Array::normal(&[experts, head_width, width], 1.0 / (head_width as f64).sqrt(), random),
    ]
}

fn of(operator: MixtureOfHeads) -> Subject {
    Subject { operator: Arc::new(operator), layout: Layout::TokenFirst }
}

/// With all experts and a router that prefers none, the mixture is multi-query attention whose output projection is the
/// experts' divided by their number.
#[test]
fn all_experts_of_an_even_router_are_multi_query_attention() {
    let (batch, tokens, width, experts, head_width) = (2, 19, 12, 4, 6);
    let mut report = Report::new();
    for mask in [Mask::none(), Mask::causal(), Mask::causal().with_valid(Some(padding(2, 19)))] {
        let mut inputs = mixture([batch, tokens, width], experts, head_width, 5);
        inputs[1].data.fill(0.0);
        let grad_out = Array::normal(&[batch, tokens, width], 1.0, &mut Random::new(6));
        let subject = of(MixtureOfHeads { mask: mask.clone(), active: experts, ..MixtureOfHeads::default() });
        let seen = subject.kernel(&inputs, &grad_out);

        // x [T,d] times [d,E D], attention, times [E D,d] / E.
        let affine = Affine { bias: false };
        let x = inputs[0].f32();
        let joined_q = inputs[2].permuted(&[1, 0, 2]).f32();
        let joined_o: Vec<f32> = inputs[5].f32().into_iter().map(|w| w / experts as f32).collect();
        let (q_shape, o_shape) = ([width, experts * head_width], [experts * head_width, width]);
        let product =
            |w: &[f32], shape: &[usize]| run(&affine, &[View::new(&x, &inputs[0].shape), View::new(w, shape)]);
        let q = product(&joined_q, &q_shape);
        let [k, v] = [3, 4].map(|n| product(&inputs[n].f32(), &inputs[n].shape));
        let softmax = Softmax { layout: Layout::TokenFirst, mask: mask.clone(), ..Softmax::default() };
        let (q_heads, k_heads) = ([batch, tokens, experts, head_width], [batch, tokens, 1, head_width]);
        let heads = run(&softmax, &[View::new(&q, &q_heads), View::new(&k, &k_heads), View::new(&v, &k_heads)]);
        let joined = [batch, tokens, experts * head_width];
        let mut out = run(&affine, &[View::new(&heads, &joined), View::new(&joined_o, &o_shape)]);
        if let Some(valid) = &mask.valid {
            for (t, _) in valid.as_slice().iter().enumerate().filter(|(_, real)| **real == 0) {
                out[t * width..(t + 1) * width].fill(0.0);
            }
        }
        report.compare(format_args!("{mask:?}"), &seen.out.data, &wide(&out), BOUND);
    }
    report.finish();
}

#[test]
fn the_order_of_experts_does_not_matter() {
    let order = [3, 0, 4, 2, 1];
    let mut report = Report::new();
    for (active, kind) in [(1, GateKind::Paper), (2, GateKind::Paper), (3, GateKind::Released), (5, GateKind::Released)]
    {
        let inputs = mixture([2, 23, 10], 5, 7, 8);
        let moved: Vec<Array> = inputs
            .iter()
            .enumerate()
            .map(|(n, input)| match n {
                1 => input.select(1, &order),
                2 | 5 => input.select(0, &order),
                _ => input.clone(),
            })
            .collect();
        let grad_out = Array::normal(&[2, 23, 10], 1.0, &mut Random::new(9));
        let subject = of(MixtureOfHeads { active, gates: kind, ..MixtureOfHeads::default() });
        let (straight, permuted) = (subject.kernel(&inputs, &grad_out), subject.kernel(&moved, &grad_out));
        let label = |what: &str| format!("{active} experts: {what}");
        report.compare(label("out"), &permuted.out.data, &straight.out.data, BOUND);
        for (n, name) in subject.names().into_iter().enumerate() {
            let expected = match name {
                "w_gate" => straight.grads[n].select(1, &order),
                "w_query" | "w_out" => straight.grads[n].select(0, &order),
                _ => straight.grads[n].clone(),
            };
            report.compare(label(&format!("grad.{name}")), &permuted.grads[n].data, &expected.data, BOUND);
        }
    }
    report.finish();
}

#[test]
fn experts_without_a_token_and_crowded_ones_get_their_gradients() {
    // Far more tokens than a task takes, nearly all of them with the same experts.
    let mut inputs = mixture([2, 700, 6], 4, 3, 10);
    inputs[0].data.chunks_exact_mut(6).for_each(|token| token[0] = 1.0);
    for (i, row) in inputs[1].data.chunks_exact_mut(4).enumerate() {
        row.iter_mut()
            .zip([9.0, 5.0, -2.0, -30.0])
            .for_each(|(w, lean)| *w = 0.05 * *w + if i == 0 { lean } else { 0.0 });
    }
    let grad_out = Array::normal(&[2, 700, 6], 1.0, &mut Random::new(11));
    let subject = of(MixtureOfHeads { active: 2, ..MixtureOfHeads::default() });
    let (kernel, twin) = (subject.kernel(&inputs, &grad_out), subject.twin(&inputs, &grad_out));
    let mut report = Report::new();
    report.compare("out", &kernel.out.data, &twin.out.data, BOUND);
    for (n, name) in subject.names().into_iter().enumerate() {
        report.compare(format_args!("grad.{name}"), &kernel.grads[n].data, &twin.grads[n].data, 2e-5);
    }
    let idle = kernel.grads[2].only(|ix| ix[0] >= 2);
    report.require(idle.iter().all(|x| *x == 0.0), "an expert without a token has a gradient");
    report.finish();
}

#[test]
fn padding_is_in_no_group_and_outputs_0() {
    let inputs = mixture([5, 9, 6], 4, 3, 12);
    let valid = padding(5, 9);
    let grad_out = Array::normal(&[5, 9, 6], 1.0, &mut Random::new(13));
    let mask = Mask::none().with_valid(Some(valid.clone()));
    let subject = of(MixtureOfHeads { mask, active: 2, ..MixtureOfHeads::default() });
    let seen = subject.kernel(&inputs, &grad_out);
    let padded = |b: usize, t: usize| valid.row(b)[t] == 0;
    for tensor in [&seen.out, &seen.grads[0]] {
        assert!(tensor.only(|ix| padded(ix[0], ix[1])).iter().all(|x| *x == 0.0));
        assert!(tensor.only(|ix| !padded(ix[0], ix[1])).iter().any(|x| *x != 0.0));
    }
    let logits = Array::normal(&[5, 9, 4], 1.0, &mut Random::new(14));
    let routing = route(&logits, 2, Some(valid.clone()));
    let spoilt = route(&logits.with(1e3, |ix| padded(ix[0], ix[1])), 2, Some(valid));
    assert_eq!(routing.load(), spoilt.load());
    let clean = router_losses(&routing, &logits.f32());
    assert_eq!(clean, router_losses(&routing, &logits.with(1e3, |ix| padding(5, 9).row(ix[0])[ix[1]] == 0).f32()));
    let nobody = route(&logits, 2, Some(Arc::new(Padding::new(5, 9, vec![0; 45]).unwrap())));
    assert_eq!(router_losses(&nobody, &logits.f32()), Default::default());
    assert_eq!(nobody.load(), [0.0; 4]);
}

#[test]
fn parts_agree_with_their_twins_on_any_number_of_threads() {
    let pools = [1, 2, 7].map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().expect("a pool"));
    let mut report = Report::new();
    for (batch, queries, experts, active, width, head_width) in
        [(1, 1, 1, 1, 1, 1), (2, 5, 3, 2, 7, 5), (2, 40, 6, 3, 70, 65), (1, 1300, 9, 4, 20, 17)]
    {
        let random = &mut Random::new(20);
        let logits = Array::normal(&[batch, queries, experts], 1.0, random);
        let valid = (queries > 1).then(|| padding(batch, queries));
        let routing = route(&logits, active, valid);
        let x = Array::normal(&[batch, queries, width], 1.0, random);
        let heads = Array::normal(&[batch, queries, active, head_width], 1.0, random);
        let weights = Array::normal(&[batch, queries, active], 1.0, random);
        let w_query = Array::normal(&[experts, width, head_width], 1.0 / (width as f64).sqrt(), random);
        let w_out = Array::normal(&[experts, head_width, width], 1.0 / (head_width as f64).sqrt(), random);
        let gates = |kind| Arc::new(Gates { routing: routing.clone(), kind }) as Arc<dyn Operator>;
        let parts: [(Arc<dyn Operator>, Vec<Array>); 4] = [
            (gates(GateKind::Paper), vec![logits.clone()]),
            (gates(GateKind::Released), vec![logits.clone()]),
            (Arc::new(ExpertQueries { routing: routing.clone() }), vec![x, w_query]),
            (Arc::new(ExpertOutputs { routing: routing.clone() }), vec![heads, weights, w_out]),
        ];
        for (operator, inputs) in parts {
            let subject = Subject { operator, layout: Layout::HeadFirst };
            let grad_out = Array::normal(&subject.out_shape(&inputs), 1.0, random);
            let [one, two, seven] = pools.each_ref().map(|pool| pool.install(|| subject.kernel(&inputs, &grad_out)));
            let twin = subject.twin(&inputs, &grad_out);
            let label = |what: &str| format!("{what} of {:?} tokens, {:?}", queries, subject.names());
            report.compare(label("out"), &one.out.data, &twin.out.data, BOUND);
            for (n, name) in subject.names().into_iter().enumerate() {
                report.compare(label(name), &one.grads[n].data, &twin.grads[n].data, BOUND);
            }
            for many in [two, seven] {
                report.same(label("out on threads"), &many.out.data, &one.out.data);
                for (many, one) in many.grads.iter().zip(&one.grads) {
                    report.same(label("gradients on threads"), &many.data, &one.data);
                }
            }
        }
    }
    report.finish();
}

#[test]
fn shapes_that_do_not_fit_are_errors() {
    let refused = |operator: &MixtureOfHeads, shapes: &[&[usize]], part: &str| {
        let error = operator.out_shape(shapes).unwrap_err().to_string();
        assert!(error.contains(part), "'{part}' in '{error}'");
    };
    let plain = MixtureOfHeads { active: 2, dropout: Some(Dropout { rate: 0.1, key: 1 }), ..MixtureOfHeads::default() };
    let fit: [&[usize]; 6] = [&[2, 5, 8], &[8, 4], &[4, 8, 3], &[8, 3], &[8, 3], &[4, 3, 8]];
    assert_eq!(plain.out_shape(&fit).unwrap(), [2, 5, 8]);
    let with = |n: usize, shape: &'static [usize]| {
        let mut shapes = fit;
        shapes[n] = shape;
        shapes
    };
    refused(&plain, &with(0, &[2, 5]), "'x'");
    refused(&plain, &with(1, &[7, 4]), "'w_gate' has shape [7, 4], expected [8, 4]");
    refused(&plain, &with(2, &[3, 8, 3]), "'w_query'");
    refused(&plain, &with(3, &[8, 4]), "'w_key'");
    refused(&plain, &with(4, &[8]), "'w_value'");
    refused(&plain, &with(5, &[4, 8, 3]), "'w_out'");
    refused(&plain, &fit[..5], "number of input tensors");
    refused(&MixtureOfHeads { active: 5, ..plain.clone() }, &fit, "moa.active is 5");
    let short = Mask::none().with_valid(Some(padding(2, 4)));
    refused(&MixtureOfHeads { mask: short, ..plain.clone() }, &fit, "'valid'");
    let cross = MixtureOfHeads { cross: true, ..plain };
    let mut second = vec![fit[0], &[2, 9, 8][..]];
    second.extend(&fit[1..]);
    assert_eq!(cross.out_shape(&second).unwrap(), [2, 5, 8]);
    second[1] = &[3, 9, 8];
    refused(&cross, &second, "'x_kv'");
}
