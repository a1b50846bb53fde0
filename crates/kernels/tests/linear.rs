//! Linear attention and the mixture of linear keys: kernel against twin over many shapes, twin against differences,
//! decoding against the whole causal form.

use std::sync::Arc;

use regard_kernels::{Error, Layout, Linear, Mask, Operator, Padding, Storage, View};
use regard_testkit::{Random, Report, derivative, measure};

/// A float32 kernel against its float64 twin, whatever the shape.
const BOUND: f64 = 1e-5;

/// How keys are given.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Keys {
    Plain,
    Mixture(usize),
    Shifted(usize),
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    heads: usize,
    key_heads: usize,
    queries: usize,
    keys: usize,
    width: usize,
    value_width: usize,
}

/// One call: operator, inputs and the gradient of its output, in float64 numbers that float32 holds.
struct Call {
    operator: Linear,
    shapes: Vec<Vec<usize>>,
    inputs: Vec<Vec<f64>>,
    grad_out: Vec<f64>,
}

/// Output, then gradients.
type Outcome = Vec<Vec<f64>>;

impl Call {
    fn new(sizes: Sizes, keys: Keys, layout: Layout, mask: Mask, seed: u64) -> Self {
        let Sizes { batch, heads, key_heads, queries, keys: length, width, value_width } = sizes;
        let order = |heads, tokens, width| match layout {
            Layout::HeadFirst => vec![batch, heads, tokens, width],
            Layout::TokenFirst => vec![batch, tokens, heads, width],
        };
        let plain = order(key_heads, length, width);
        let mut shapes = vec![order(heads, queries, width), plain.clone(), order(key_heads, length, value_width)];
        if let Keys::Mixture(components) = keys {
            shapes[1] = match layout {
                Layout::HeadFirst => vec![batch, key_heads, components, length, width],
                Layout::TokenFirst => vec![batch, length, components, key_heads, width],
            };
        }
        if let Keys::Mixture(components) | Keys::Shifted(components) = keys {
            shapes.push(vec![heads, components]);
        }
        if let Keys::Shifted(components) = keys {
            shapes.push(vec![key_heads, components, width]);
        }
        let operator = Linear { layout, mask, mixture: keys != Keys::Plain, shifted: matches!(keys, Keys::Shifted(_)) };
        let mut random = Random::new(seed);
        let inputs = shapes.iter().map(|shape| random.normals(shape.iter().product())).collect();
        let grad_out = random.normals(order(heads, queries, value_width).iter().product());
        Self { operator, shapes, inputs, grad_out }
    }

    fn twin(&self) -> Outcome {
        let views: Vec<_> = self.inputs.iter().zip(&self.shapes).map(|(data, shape)| View::new(data, shape)).collect();
        let result = self.operator.reference(&views, Some(&self.grad_out));
        [vec![result.out], result.grads].concat()
    }

    fn kernel(&self) -> Outcome {
        self.kernel_of(&self.inputs)
    }

    fn kernel_of(&self, inputs: &[Vec<f64>]) -> Outcome {
        let inputs: Vec<Vec<f32>> = inputs.iter().map(|data| single(data)).collect();
        let views: Vec<_> = inputs.iter().zip(&self.shapes).map(|(data, shape)| View::new(data, shape)).collect();
        let shapes: Vec<&[usize]> = self.shapes.iter().map(|s| &s[..]).collect();
        let shape = self.operator.out_shape(&shapes).unwrap();
        let mut out = vec![f32::NAN; shape.iter().product()];
        let saved = self.operator.forward(&views, &mut out);
        let wanted = vec![true; views.len()];
        let grads = self.operator.backward(&views, &out, &saved, &single(&self.grad_out), &wanted);
        let grads = grads.into_iter().map(|grad| double(&grad.unwrap()));
        [double(&out)].into_iter().chain(grads).collect()
    }

    fn compare(&self, report: &mut Report, what: &str) {
        let names = ["out", "q", "k", "v", "log_prior", "shift"];
        for ((name, seen), expected) in names.iter().zip(self.kernel()).zip(self.twin()) {
            // Every output adds a term of either sign to the gradient of a prior: where they happen to cancel, their
            // roundings do not.
            let terms = 0.1 * (2.0 * self.grad_out.len() as f64).sqrt();
            let cancelled = if *name == "log_prior" { terms / measure::largest(&expected).max(1e-12) } else { 0.0 };
            report.compare(format_args!("{what} {name}"), &seen, &expected, BOUND * cancelled.max(1.0));
        }
    }
}

fn single(data: &[f64]) -> Vec<f32> {
    data.iter().map(|&x| x as f32).collect()
}

fn double(data: &[f32]) -> Vec<f64> {
    data.iter().map(|&x| f64::from(x)).collect()
}

/// Padding at the end, holes, everything, in turn over the batch.
fn padding(batch: usize, length: usize) -> Arc<Padding> {
    let real = |b: usize, j: usize| match b % 3 {
        0 => j % 3 != 1,
        1 => false,
        _ => j < length.div_ceil(2),
    };
    let real = (0..batch * length).map(|i| u8::from(real(i / length, i % length))).collect();
    Arc::new(Padding::new(batch, length, real).unwrap())
}

fn sizes(
    batch: usize,
    (heads, key_heads): (usize, usize),
    (queries, keys): (usize, usize),
    widths: (usize, usize),
) -> Sizes {
    Sizes { batch, heads, key_heads, queries, keys, width: widths.0, value_width: widths.1 }
}

/// Shapes that cross every border: of vectors, strips, chunks, segments, blocks, spans.
fn grid() -> Vec<Sizes> {
    vec![
        sizes(1, (1, 1), (1, 1), (1, 1)),
        sizes(1, (1, 1), (1, 9), (3, 5)),
        sizes(2, (2, 1), (7, 1), (4, 3)),
        sizes(3, (2, 2), (17, 23), (8, 5)),
        sizes(3, (4, 2), (33, 31), (16, 17)),
        sizes(1, (3, 1), (65, 70), (5, 24)),
        sizes(3, (2, 2), (70, 64), (33, 9)),
        sizes(3, (3, 3), (129, 129), (20, 20)),
        sizes(1, (2, 1), (300, 40), (8, 7)),
        sizes(1, (1, 1), (40, 300), (7, 8)),
        sizes(1, (2, 2), (300, 300), (16, 12)),
        sizes(1, (2, 1), (600, 590), (8, 6)),
        sizes(2, (8, 4), (290, 310), (6, 8)),
    ]
}

const KEYS: [Keys; 7] = [
    Keys::Plain,
    Keys::Mixture(1),
    Keys::Mixture(2),
    Keys::Mixture(3),
    Keys::Shifted(1),
    Keys::Shifted(2),
    Keys::Shifted(3),
];

#[test]
fn kernel_agrees_with_its_twin() {
    let mut report = Report::new();
    let mut seed = 0;
    for sizes in grid() {
        for keys in KEYS {
            for layout in [Layout::HeadFirst, Layout::TokenFirst] {
                for causal in [false, true] {
                    for padded in [false, true] {
                        seed += 1;
                        let mask = Mask { causal, ..Mask::none() }
                            .with_valid(padded.then(|| padding(sizes.batch, sizes.keys)));
                        let what = format!("{sizes:?} {keys:?} {layout:?} causal {causal} padded {padded}");
                        Call::new(sizes, keys, layout, mask, seed).compare(&mut report, &what);
                    }
                }
            }
        }
    }
    report.finish();
}

/// Components that differ little leave a small gradient of the prior between large products: their difference must come
/// before the product.
#[test]
fn the_gradient_of_a_prior_keeps_its_digits_where_components_are_close() {
    let mut report = Report::new();
    for (seed, causal) in (1..=4).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mask = Mask { causal, ..Mask::none() };
        let sizes = sizes(1, (8, 8), (150, 150), (64, 64));
        let mut call = Call::new(sizes, Keys::Shifted(2), Layout::TokenFirst, mask, seed);
        call.inputs[4].iter_mut().for_each(|x| *x = f64::from(*x as f32 * 0.1));
        let (seen, expected) = (call.kernel(), call.twin());
        for (at, name) in [(4, "log_prior"), (5, "shift")] {
            report.compare(format_args!("seed {seed} causal {causal} {name}"), &seen[at], &expected[at], BOUND);
        }
    }
    report.finish();
}

#[test]
fn twin_agrees_with_differences() {
    let mut report = Report::new();
    for (n, keys) in [Keys::Plain, Keys::Mixture(2), Keys::Shifted(3)].into_iter().enumerate() {
        for (causal, lengths) in [(false, (4, 5)), (true, (5, 4)), (true, (4, 6))] {
            let sizes = sizes(2, (4, 2), lengths, (3, 2));
            let real = Padding::from_lengths(&[lengths.1, lengths.1 - 2], lengths.1);
            let mask = Mask { causal, ..Mask::none() }.with_valid(Some(Arc::new(real)));
            let mut call = Call::new(sizes, keys, Layout::HeadFirst, mask, 40 + n as u64);
            // The slope of phi has a kink at 0, where differences would not converge: keep q and k off it.
            for x in call.inputs[..2].iter_mut().flatten() {
                *x = 0.2 * (*x / 0.2).round() + 0.07;
            }
            if keys == Keys::Shifted(3) {
                call.inputs[4].iter_mut().for_each(|x| *x = 0.2 * (*x / 0.2).round());
            }
            let expected = call.twin();
            for (input, analytic) in expected[1..].iter().enumerate() {
                let numeric = derivative(&call.inputs[input].clone(), |point| {
                    let mut inputs = call.inputs.clone();
                    inputs[input] = point.to_vec();
                    let views: Vec<_> = inputs.iter().zip(&call.shapes).map(|(d, s)| View::new(d, s)).collect();
                    let out = call.operator.reference(&views, None).out;
                    out.iter().zip(&call.grad_out).map(|(o, g)| o * g).sum()
                });
                report.compare(format_args!("{keys:?} causal {causal} input {input}"), analytic, &numeric, 1e-8);
            }
        }
    }
    report.finish();
}

#[test]
fn decoding_gives_the_rows_of_the_causal_form() {
    let mut report = Report::new();
    for keys in [Keys::Plain, Keys::Mixture(2), Keys::Shifted(3)] {
        for layout in [Layout::HeadFirst, Layout::TokenFirst] {
            let length = 70;
            let sizes = sizes(2, (4, 2), (length, length), (9, 6));
            let call = Call::new(sizes, keys, layout, Mask::causal(), 7);
            let whole = &call.kernel()[0];
            let mut decoder = call.operator.decoder(Storage::F32).expect("a causal mask without padding");
            let mut bytes = Vec::new();
            for i in 0..length {
                let (shapes, token): (Vec<_>, Vec<_>) =
                    (0..call.inputs.len()).map(|n| token(&call, layout, n, i)).map(|(s, d)| (s, single(&d))).unzip();
                let views: Vec<_> = token.iter().zip(&shapes).map(|(d, s)| View::new(d, s)).collect();
                let mut row = vec![f32::NAN; 2 * 4 * 6];
                decoder.step(&views, &mut row);
                let expected: Vec<f64> = (0..2 * 4)
                    .flat_map(|head| {
                        let start = match layout {
                            Layout::HeadFirst => (head * length + i) * 6,
                            Layout::TokenFirst => ((head / 4 * length + i) * 4 + head % 4) * 6,
                        };
                        whole[start..start + 6].to_vec()
                    })
                    .collect();
                report.compare(format_args!("{keys:?} {layout:?} token {i}"), &double(&row), &expected, BOUND);
                bytes.push(decoder.bytes());
            }
            report.require(bytes[0] > 0 && bytes.iter().all(|b| *b == bytes[0]), "the state grows");
        }
    }
    for mask in [Mask::none(), Mask::causal().with_valid(Some(padding(2, 4)))] {
        report.require(
            Linear { mask, ..Linear::default() }.decoder(Storage::F32).is_none(),
            "a decoder without a causal form",
        );
    }
    report.finish();
}

/// Input `n` at position `i` alone; parameters whole.
fn token(call: &Call, layout: Layout, n: usize, i: usize) -> (Vec<usize>, Vec<f64>) {
    let (mut shape, data) = (call.shapes[n].clone(), &call.inputs[n]);
    if n > 2 {
        return (shape, data.clone());
    }
    let axis = if layout == Layout::HeadFirst { shape.len() - 2 } else { 1 };
    let (inner, length): (usize, usize) = (shape[axis + 1..].iter().product(), shape[axis]);
    shape[axis] = 1;
    let rows = data.chunks_exact(length * inner).flat_map(|block| block[i * inner..(i + 1) * inner].to_vec());
    (shape, rows.collect())
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let mut report = Report::new();
    for keys in [Keys::Plain, Keys::Mixture(2), Keys::Shifted(2)] {
        for causal in [false, true] {
            for batch in [1, 5] {
                let mask = Mask { causal, ..Mask::none() }.with_valid(Some(padding(batch, 700)));
                let call = Call::new(sizes(batch, (2, 2), (650, 700), (12, 20)), keys, Layout::TokenFirst, mask, 3);
                let run = |threads| {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                    pool.install(|| call.kernel())
                };
                let one = run(1);
                for threads in [2, 7] {
                    for (n, (seen, expected)) in run(threads).iter().zip(&one).enumerate() {
                        report.same(format_args!("{keys:?} causal {causal} {threads} threads, {n}"), seen, expected);
                    }
                }
            }
        }
    }
    report.finish();
}

#[test]
fn what_a_query_does_not_see_leaves_no_trace() {
    let mut report = Report::new();
    for keys in [Keys::Plain, Keys::Mixture(2), Keys::Shifted(2)] {
        for causal in [false, true] {
            let real = padding(3, 90);
            let mask = Mask { causal, ..Mask::none() }.with_valid(Some(real.clone()));
            let call = Call::new(sizes(3, (2, 2), (100, 90), (6, 5)), keys, Layout::HeadFirst, mask, 11);
            let clean = call.kernel();
            let mut inputs = call.inputs.clone();
            for input in 1..3 {
                let shape = &call.shapes[input];
                let (width, per_row) = (shape[shape.len() - 1], shape[1..].iter().product::<usize>());
                for (n, row) in inputs[input].chunks_exact_mut(width).enumerate() {
                    if real.row(n * width / per_row)[n % 90] == 0 {
                        row.fill(f64::NAN);
                    }
                }
            }
            for (n, (seen, expected)) in call.kernel_of(&inputs).iter().zip(&clean).enumerate() {
                report.same(format_args!("{keys:?} causal {causal} padding, {n}"), seen, expected);
            }
            let blind: Vec<f64> = clean[0][2 * 100 * 5..4 * 100 * 5].to_vec();
            report.require(blind.iter().all(|x| *x == 0.0), "a batch row without keys is not 0");
        }
    }
    report.finish();
}

#[test]
fn extreme_inputs_give_finite_means_of_the_values() {
    let mut report = Report::new();
    for causal in [false, true] {
        for scale in [20.0, 100.0, 1e4] {
            let mask = Mask { causal, ..Mask::none() };
            let mut call = Call::new(sizes(1, (3, 3), (80, 80), (4, 3)), Keys::Mixture(2), Layout::HeadFirst, mask, 5);
            call.inputs[0].iter_mut().for_each(|x| *x *= scale);
            call.inputs[1].iter_mut().for_each(|x| *x *= scale);
            call.inputs[2].fill(1.5);
            let outcome = call.kernel();
            report.compare(format_args!("scale {scale}"), &outcome[0], &vec![1.5; outcome[0].len()], BOUND);
            for grad in &outcome[1..] {
                report.require(
                    grad.iter().all(|x| x.is_finite()),
                    format_args!("scale {scale}: a gradient is not finite"),
                );
            }
        }
    }
    report.finish();
}

#[test]
fn gradients_come_only_where_wanted() {
    let mut report = Report::new();
    for causal in [false, true] {
        let mask = Mask { causal, ..Mask::none() };
        let call = Call::new(sizes(1, (2, 1), (70, 75), (6, 5)), Keys::Shifted(2), Layout::TokenFirst, mask, 2);
        let all = call.kernel();
        let inputs: Vec<Vec<f32>> = call.inputs.iter().map(|data| single(data)).collect();
        let views: Vec<_> = inputs.iter().zip(&call.shapes).map(|(d, s)| View::new(d, s)).collect();
        let mut out = vec![f32::NAN; call.grad_out.len()];
        let saved = call.operator.forward(&views, &mut out);
        for one in 0..5 {
            let wanted: Vec<bool> = (0..5).map(|n| n == one).collect();
            let grads = call.operator.backward(&views, &out, &saved, &single(&call.grad_out), &wanted);
            for (n, grad) in grads.iter().enumerate() {
                report.require(grad.is_some() == (n == one), format_args!("gradient {n} where {one} is wanted"));
            }
            report.same(format_args!("gradient {one}"), &double(grads[one].as_ref().unwrap()), &all[one + 1]);
        }
    }
    report.finish();
}

#[test]
fn calls_that_make_no_sense_are_refused() {
    let shapes: [&[usize]; 5] = [&[1, 4, 6, 3], &[1, 2, 6, 3], &[1, 2, 6, 5], &[4, 2], &[2, 2, 3]];
    let shifted = Linear { mixture: true, shifted: true, ..Linear::default() };
    assert_eq!(shifted.inputs(), ["q", "k", "v", "log_prior", "shift"]);
    assert_eq!(shifted.out_shape(&shapes), Ok(vec![1, 4, 6, 5]));

    let window = Linear { mask: Mask { window: Some(3), ..Mask::none() }, ..Linear::default() };
    assert!(matches!(window.out_shape(&shapes[..3]), Err(Error::Option { option, .. }) if option == "window"));
    let alone = Linear { shifted: true, ..Linear::default() };
    assert!(matches!(alone.out_shape(&shapes), Err(Error::Option { .. })));
    assert!(matches!(shifted.out_shape(&shapes[..4]), Err(Error::Missing { tensor, .. }) if tensor == "shift"));
    let wrong: [(usize, &[usize]); 4] = [(3, &[2, 2]), (3, &[4, 3]), (4, &[2, 2, 4]), (4, &[2, 0, 3])];
    for (input, shape) in wrong {
        let mut shapes = shapes;
        shapes[input] = shape;
        assert!(matches!(shifted.out_shape(&shapes), Err(Error::Shape { .. })), "{shape:?}");
    }
    let short = Linear { mask: Mask::none().with_valid(Some(padding(1, 5))), ..Linear::default() };
    assert!(matches!(short.out_shape(&shapes[..3]), Err(Error::Shape { tensor, .. }) if tensor == "valid"));
}
