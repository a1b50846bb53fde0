use std::sync::Arc;

use regard_testkit::{Random, Report, derivative, error, narrow, wide};

use crate::{
    Additive, Error, Layout, Mask, Operator, Padding, Reference, Storage, View,
    mechanism::AdditiveScores::{self, Paper, Released},
};

use super::plan::BLOCK;

/// Sizes `(B, H, N, D)` of a call.
type Sizes = (usize, usize, usize, usize);

/// An operator with inputs and an output gradient, all exactly float32.
struct Sample {
    operator: Additive,
    names: Vec<&'static str>,
    shapes: Vec<Vec<usize>>,
    inputs: Vec<Vec<f64>>,
    grad_out: Vec<f64>,
}

impl Sample {
    fn new(operator: Additive, (batch, heads, tokens, head_width): Sizes, seed: u64) -> Self {
        let width = heads * head_width;
        let seen = if operator.scores == Paper { head_width } else { width };
        let sequence = match operator.layout {
            Layout::HeadFirst => vec![batch, heads, tokens, head_width],
            Layout::TokenFirst => vec![batch, tokens, heads, head_width],
        };
        let names = operator.inputs();
        let shape = |name: &&str| match *name {
            "w_q" | "w_k" => vec![heads, seen],
            "w_t" => vec![width, width],
            _ => sequence.clone(),
        };
        let shapes: Vec<_> = names.iter().map(shape).collect();
        let mut random = Random::new(seed);
        let inputs = shapes.iter().map(|shape| random.normals(shape.iter().product())).collect();
        let grad_out = random.normals(batch * tokens * width);
        Self { operator, names, shapes, inputs, grad_out }
    }

    fn reference(&self) -> Reference {
        let views: Vec<_> = self.inputs.iter().zip(&self.shapes).map(|(data, shape)| View::new(data, shape)).collect();
        self.operator.reference(&views, Some(&self.grad_out))
    }

    /// Output and gradients of the kernel; its output buffer starts as NaN.
    fn kernel(&self) -> (Vec<f32>, Vec<Vec<f32>>) {
        let inputs: Vec<_> = self.inputs.iter().map(|data| narrow(data)).collect();
        let views: Vec<_> = inputs.iter().zip(&self.shapes).map(|(data, shape)| View::new(data, shape)).collect();
        let shapes: Vec<_> = self.shapes.iter().map(Vec::as_slice).collect();
        let out_shape = self.operator.out_shape(&shapes).unwrap();
        let mut out = vec![f32::NAN; out_shape.iter().product()];
        let saved = self.operator.forward(&views, &mut out);
        let wanted = vec![true; views.len()];
        let gradients = self.operator.backward(&views, &out, &saved, &narrow(&self.grad_out), &wanted);
        (out, gradients.into_iter().map(Option::unwrap).collect())
    }

    fn compare(&self, report: &mut Report, what: &str, bound: f64) {
        let reference = self.reference();
        let (out, gradients) = self.kernel();
        let what = format!("{what} {:?} {:?}", self.shapes[0], self.operator);
        report.compare(format_args!("{what} out"), &wide(&out), &reference.out, bound);
        for ((name, seen), expected) in self.names.iter().zip(&gradients).zip(&reference.grads) {
            report.compare(format_args!("{what} grad.{name}"), &wide(seen), expected, bound);
        }
    }
}

/// Every operator: both layouts, both scores, values shared or not, causal or not.
fn operators() -> Vec<Additive> {
    let mut all = Vec::new();
    for layout in [Layout::HeadFirst, Layout::TokenFirst] {
        for scores in [Paper, Released] {
            for shared_value in [false, true] {
                for mask in [Mask::none(), Mask::causal()] {
                    all.push(Additive { layout, mask, scores, shared_value });
                }
            }
        }
    }
    all
}

/// Padding on the right, on the left, in the middle, and everywhere.
fn mixed_padding(tokens: usize) -> Arc<Padding> {
    let real = |b: usize, i: usize| match b {
        0 => i < tokens.div_ceil(2),
        1 => i >= tokens / 3,
        2 => i % 3 != 1,
        _ => false,
    };
    let real = (0..4).flat_map(|b| (0..tokens).map(move |i| u8::from(real(b, i)))).collect();
    Arc::new(Padding::new(4, tokens, real).unwrap())
}

#[test]
fn kernel_agrees_with_the_reference() {
    let mut report = Report::new();
    let sizes = [(2, 3, 1, 8), (1, 2, 7, 5), (2, 1, 33, 1), (1, 2, 130, 16), (1, 1, 19, 64), (1, 4, 2 * BLOCK + 3, 2)];
    for operator in operators() {
        for (seed, &sizes) in sizes.iter().enumerate() {
            Sample::new(operator.clone(), sizes, seed as u64).compare(&mut report, "whole", 1e-5);
        }
    }
    report.finish();
}

#[test]
fn padded_rows_agree_with_the_reference() {
    let mut report = Report::new();
    for mut operator in operators() {
        for (heads, tokens, head_width) in [(2, 1, 4), (3, 11, 8), (1, 130, 17), (2, BLOCK + 5, 2)] {
            operator.mask.valid = Some(mixed_padding(tokens));
            let sample = Sample::new(operator.clone(), (4, heads, tokens, head_width), 11);
            sample.compare(&mut report, "padded", 1e-5);
        }
    }
    report.finish();
}

#[test]
fn a_row_that_sees_nothing_is_zero_and_what_padding_holds_does_not_matter() {
    for mut operator in operators() {
        let (heads, tokens, head_width) = (2, BLOCK + 9, 4);
        let width = heads * head_width;
        let padding = mixed_padding(tokens);
        operator.mask.valid = Some(padding.clone());
        let mut sample = Sample::new(operator.clone(), (4, heads, tokens, head_width), 5);
        // Only real tokens are compared: a padded row's output, computed as usual, depends on its content.
        for (row, &real) in sample.grad_out.chunks_exact_mut(width).zip(padding.as_slice()) {
            if real == 0 {
                row.fill(0.0);
            }
        }
        let (out, gradients) = sample.kernel();
        assert!(out[3 * tokens * width..].iter().all(|&x| x == 0.0), "{operator:?}");
        if operator.mask.causal {
            let blind = tokens / 3;
            assert!(out[tokens * width..][..blind * width].iter().all(|&x| x == 0.0), "{operator:?}");
        }
        let mut poisoned = Sample { inputs: sample.inputs.clone(), shapes: sample.shapes.clone(), ..sample };
        let sequences = if operator.shared_value { 2 } else { 3 };
        for input in &mut poisoned.inputs[..sequences] {
            for (i, x) in input.iter_mut().enumerate() {
                let (b, at) = (i / (tokens * width), i % (tokens * width));
                let token = if operator.layout == Layout::HeadFirst { at / head_width % tokens } else { at / width };
                if padding.row(b)[token] == 0 {
                    *x = 1e6;
                }
            }
        }
        let (poisoned_out, poisoned_gradients) = poisoned.kernel();
        for (i, (a, b)) in out.iter().zip(&poisoned_out).enumerate() {
            assert!(padding.as_slice()[i / width] == 0 || a == b, "{operator:?} row {}", i / width);
        }
        assert_eq!(gradients, poisoned_gradients, "{operator:?}");
    }
}

#[test]
fn no_row_of_the_causal_form_depends_on_a_later_token() {
    for operator in operators().into_iter().filter(|operator| operator.mask.causal) {
        let (heads, tokens, head_width) = (2, BLOCK + 20, 8);
        let cut = BLOCK + 3;
        let width = heads * head_width;
        let mut sample = Sample::new(operator.clone(), (1, heads, tokens, head_width), 3);
        sample.grad_out[cut * width..].fill(0.0);
        let (out, gradients) = sample.kernel();
        let sequences = if operator.shared_value { 2 } else { 3 };
        let token = |i: usize| match operator.layout {
            Layout::HeadFirst => i / head_width % tokens,
            Layout::TokenFirst => i / width,
        };
        for (input, gradient) in sample.inputs[..sequences].iter_mut().zip(&gradients) {
            for (i, x) in input.iter_mut().enumerate().filter(|(i, _)| token(*i) >= cut) {
                assert_eq!(gradient[i], 0.0, "gradient at a token after every row asked for");
                *x = -3.0 * *x + 1.0;
            }
        }
        let (changed, _) = sample.kernel();
        assert_eq!(out[..cut * width], changed[..cut * width], "{operator:?}");
        assert_ne!(out[cut * width..], changed[cut * width..], "{operator:?}");
    }
}

#[test]
fn reference_gradients_agree_with_differences() {
    let mut report = Report::new();
    for mut operator in operators() {
        for valid in [None, Some(mixed_padding(5))] {
            operator.mask.valid = valid;
            let sample = Sample::new(operator.clone(), (4, 2, 5, 3), 2);
            let gradients = sample.reference().grads;
            for (input, gradient) in gradients.iter().enumerate() {
                let loss = |moved: &[f64]| {
                    let views: Vec<_> = (0..sample.inputs.len())
                        .map(|i| View::new(if i == input { moved } else { &sample.inputs[i] }, &sample.shapes[i]))
                        .collect();
                    let out = operator.reference(&views, None).out;
                    out.iter().zip(&sample.grad_out).map(|(out, grad)| out * grad).sum()
                };
                let expected = derivative(&sample.inputs[input], loss);
                report.compare(format_args!("{operator:?} {}", sample.names[input]), gradient, &expected, 1e-8);
            }
        }
    }
    report.finish();
}

#[test]
fn decoding_gives_the_rows_of_the_causal_form() {
    let mut report = Report::new();
    for mut operator in operators() {
        if !operator.mask.causal {
            assert!(operator.decoder(Storage::F32).is_none());
            continue;
        }
        let (batch, heads, tokens, head_width) = (4, 3, BLOCK + 7, 5);
        let width = heads * head_width;
        for valid in [None, Some(mixed_padding(tokens))] {
            operator.mask.valid = valid;
            let sample = Sample::new(operator.clone(), (batch, heads, tokens, head_width), 8);
            let (whole, _) = sample.kernel();
            let mut decoder = operator.decoder(Storage::F32).unwrap();
            let mut bytes = None;
            for i in 0..tokens {
                let mut shapes = sample.shapes.clone();
                let mut inputs: Vec<_> = sample.inputs.iter().map(|data| narrow(data)).collect();
                let sequences = shapes.len() - 3;
                for (shape, input) in shapes.iter_mut().zip(&mut inputs).take(sequences) {
                    let head_first = operator.layout == Layout::HeadFirst;
                    *shape =
                        if head_first { vec![batch, heads, 1, head_width] } else { vec![batch, 1, heads, head_width] };
                    let run = if head_first { head_width } else { width };
                    *input = input.chunks_exact(run).skip(i).step_by(tokens).flatten().copied().collect();
                }
                let views: Vec<_> = inputs.iter().zip(&shapes).map(|(data, shape)| View::new(data, shape)).collect();
                let mut out = vec![f32::NAN; batch * width];
                decoder.step(&views, &mut out);
                let rows = whole.chunks_exact(width).skip(i).step_by(tokens).flatten();
                let expected: Vec<_> = rows.map(|&x| f64::from(x)).collect();
                report.compare(format_args!("{operator:?} token {i}"), &wide(&out), &expected, 1e-5);
                assert_eq!(*bytes.get_or_insert(decoder.bytes()), decoder.bytes(), "the state grows");
            }
        }
    }
    report.finish();
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for mut operator in operators() {
        let tokens = 2 * BLOCK + 31;
        operator.mask.valid = Some(mixed_padding(tokens));
        let sample = Sample::new(operator.clone(), (4, 3, tokens, 24), 21);
        let with = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| sample.kernel())
        };
        let one = with(1);
        assert!(one == with(2) && one == with(7), "{operator:?}");
    }
}

#[test]
fn large_scores_stay_finite_and_right() {
    let mut report = Report::new();
    for operator in operators() {
        let head_width = 16;
        let mut sample = Sample::new(operator.clone(), (1, 2, BLOCK + 40, head_width), 4);
        for (name, input) in sample.names.iter().zip(&mut sample.inputs) {
            if matches!(*name, "w_q" | "w_k") {
                // Scores of a head are then about 75 times a standard normal, with a maximum of about 200.
                let seen = if operator.scores == Paper { 1.0 } else { f64::sqrt(2.0) };
                input.iter_mut().for_each(|x| *x = f64::from((*x * 75.0 / seen) as f32));
            }
        }
        let (out, gradients) = sample.kernel();
        let reference = sample.reference();
        report.compare(format_args!("{operator:?} out"), &wide(&out), &reference.out, 1e-4);
        for ((name, seen), expected) in sample.names.iter().zip(&gradients).zip(&reference.grads) {
            let what = format!("{operator:?} grad.{name}");
            if matches!(*name, "w_q" | "w_k") {
                // A saturated softmax has no gradient: these are only rounding errors.
                report.require(seen.iter().all(|x| x.is_finite()), what);
            } else {
                // Rounding of scores of 200 shifts weights by 2e-5, and gradients are multiplied by score vectors of
                // 75.
                report.compare(what, &wide(seen), expected, 2e-3);
            }
        }
    }
    report.finish();
}

#[test]
fn where_one_token_has_nearly_all_the_weight_gradients_keep_their_precision() {
    let mut report = Report::new();
    for mask in [Mask::none(), Mask::causal()] {
        for (tokens, sharpness, bound) in [(64, 10.0, 2e-5), (BLOCK - 1, 20.0, 3e-5), (2 * BLOCK + 188, 20.0, 3e-5)] {
            let operator = Additive { mask: mask.clone(), ..Additive::default() };
            let mut sample = Sample::new(operator, (1, 2, tokens, 16), 4);
            for (_, vectors) in
                sample.names.iter().zip(&mut sample.inputs).filter(|(name, _)| ["w_q", "w_k"].contains(name))
            {
                vectors.iter_mut().for_each(|x| *x = f64::from((*x * sharpness) as f32));
            }
            sample.compare(&mut report, "sharp", bound);
        }
    }
    report.finish();
}

#[test]
fn a_long_causal_sequence_keeps_its_precision() {
    let operator = Additive { mask: Mask::causal(), layout: Layout::TokenFirst, ..Additive::default() };
    let sample = Sample::new(operator, (1, 2, 1500, 8), 6);
    let mut report = Report::new();
    sample.compare(&mut report, "long", 1e-5);
    report.finish();
}

#[test]
fn an_unwanted_gradient_is_absent_and_leaves_the_others_alone() {
    let sample = Sample::new(Additive::default(), (2, 2, 9, 4), 7);
    let (out, all) = sample.kernel();
    let inputs: Vec<_> = sample.inputs.iter().map(|data| narrow(data)).collect();
    let views: Vec<_> = inputs.iter().zip(&sample.shapes).map(|(data, shape)| View::new(data, shape)).collect();
    let saved = sample.operator.forward(&views, &mut out.clone());
    let wanted = [true, false, true, false, true, false];
    let some = sample.operator.backward(&views, &out, &saved, &narrow(&sample.grad_out), &wanted);
    for ((wanted, some), all) in wanted.into_iter().zip(some).zip(all) {
        assert_eq!(some, wanted.then_some(all));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let refused = |operator: &Additive, change: &dyn Fn(&mut Vec<Vec<usize>>)| -> Error {
        let mut shapes = Sample::new(operator.clone(), (2, 3, 5, 4), 0).shapes;
        change(&mut shapes);
        operator.out_shape(&shapes.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap_err()
    };
    let plain = Additive::default();
    let cross = refused(&plain, &|shapes| {
        shapes[1][2] = 6;
        shapes[2][2] = 6;
    });
    assert!(cross.to_string().contains("'k'") && cross.to_string().contains("same tokens"), "{cross}");
    let shared = Additive { shared_value: true, ..Additive::default() };
    let cross = refused(&shared, &|shapes| shapes[1][2] = 6);
    assert!(cross.to_string().contains("'k'"), "{cross}");
    assert!(refused(&plain, &|shapes| shapes[2][3] = 5).to_string().contains("'v'"));
    assert!(refused(&plain, &|shapes| shapes[3][1] = 12).to_string().contains("'w_q'"));
    assert!(refused(&plain, &|shapes| shapes[5][0] = 4).to_string().contains("'w_t'"));
    let released = Additive { scores: AdditiveScores::Released, ..Additive::default() };
    assert!(refused(&released, &|shapes| shapes[4][1] = 4).to_string().contains("'w_k'"));
    assert!(refused(&plain, &|shapes| drop(shapes.pop())).to_string().contains("w_t"));
    let window = Additive { mask: Mask { window: Some(2), ..Mask::none() }, ..Additive::default() };
    assert!(refused(&window, &|_| ()).to_string().contains("window"));
    let padding = |length| Some(Arc::new(Padding::from_lengths(&[length, 5], 5)));
    let queries = Mask { valid: padding(2), query_valid: padding(3), ..Mask::none() };
    assert!(refused(&Additive { mask: queries, ..Additive::default() }, &|_| ()).to_string().contains("query_valid"));
}

#[test]
fn one_token_passes_through_the_product_of_all_three() {
    let sample = Sample::new(Additive::default(), (1, 1, 1, 3), 1);
    let (out, _) = sample.kernel();
    let [q, k, v, _, _, w_t] = &sample.inputs[..] else { panic!("six inputs") };
    let expected: Vec<f64> =
        (0..3).map(|c| q[c] + (0..3).map(|e| q[e] * k[e] * v[e] * w_t[e * 3 + c]).sum::<f64>()).collect();
    assert!(error(&wide(&out), &expected) < 1e-6);
}
