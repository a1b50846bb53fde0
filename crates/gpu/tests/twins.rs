//! Every kernel against the float64 twin of its mechanism, over sizes that meet every border of its tiles.

use std::sync::Arc;

use burn::tensor::{DType, Device, DeviceType, Tensor, TensorData};
use burn_cubecl::{
    CubeBackend,
    cubecl::ir::{ElemType, FloatKind},
    tensor::CubeTensor,
};
use regard_gpu::{
    Call, FeatureOperands, Gradients, Operands, backward, feature_backward, feature_forward, forward, takes,
};
use regard_kernels::{
    GaussianMixture, Layout, Linear, Mask, Operator, Padding, Reference, Softmax, View, mechanism::Score,
};
use regard_testkit::{Random, Report};

/// As of every kernel of this library, of the largest element.
const BOUND: f64 = 5e-5;

struct Array {
    data: Vec<f64>,
    shape: Vec<usize>,
}

impl Array {
    fn normal(random: &mut Random, shape: &[usize]) -> Self {
        Self { data: random.normals(shape.iter().product()), shape: shape.to_vec() }
    }

    fn view(&self) -> View<'_, f64> {
        View::new(&self.data, &self.shape)
    }

    fn reshaped(&self, shape: &[usize]) -> Self {
        Self { data: self.data.clone(), shape: shape.to_vec() }
    }

    fn on(&self, device: &Device) -> CubeTensor {
        match self.shape[..] {
            [a] => primitive::<1>(&self.data, [a], device),
            [a, b] => primitive(&self.data, [a, b], device),
            [a, b, c] => primitive(&self.data, [a, b, c], device),
            [a, b, c, d] => primitive(&self.data, [a, b, c, d], device),
            [a, b, c, d, e] => primitive(&self.data, [a, b, c, d, e], device),
            _ => unreachable!("1 to 5 axes"),
        }
    }
}

fn primitive<const D: usize>(data: &[f64], shape: [usize; D], device: &Device) -> CubeTensor {
    let data: Vec<f32> = data.iter().map(|&x| x as f32).collect();
    let tensor = Tensor::<D>::from_data(TensorData::new(data, shape), device);
    tensor.try_into_primitive::<CubeBackend>().unwrap_or_else(|_| unreachable!("a tensor of CubeCL"))
}

fn numbers(tensor: CubeTensor) -> Vec<f64> {
    let count = tensor.meta.shape().num_elements();
    let mut flat = tensor;
    *flat.meta = burn_cubecl::cubecl::zspace::metadata::Metadata::new([count], [1]);
    let tensor = Tensor::<1>::from_primitive::<CubeBackend>(flat);
    tensor.into_data().try_into_vec::<f32>().expect("f32").into_iter().map(f64::from).collect()
}

struct Case {
    queries: usize,
    keys: usize,
    widths: [usize; 2],
    heads: [usize; 2],
    components: usize,
    mask: Mask,
}

fn gpu() -> Device {
    Device::enumerate(DeviceType::Wgpu).into_vec().into_iter().next().expect("a device, or a software Vulkan driver")
}

fn cases() -> Vec<Case> {
    let sizes = [(1, 1), (5, 4), (17, 40), (64, 65), (63, 129), (130, 66), (33, 31)];
    let mut cases = Vec::new();
    for (at, (queries, keys)) in sizes.into_iter().enumerate() {
        let valid = (at % 3 == 1).then(|| Arc::new(Padding::from_lengths(&[keys, keys / 2], keys)));
        let window = [None, Some(3), None, Some(20)][at % 4];
        cases.push(Case {
            queries,
            keys,
            widths: [[8, 5], [64, 64], [32, 32], [6, 17]][at % 4],
            heads: [[4, 2], [2, 2], [3, 1]][at % 3],
            components: [1, 2, 3][at % 3],
            mask: Mask { causal: at % 2 == 0, window, ..Mask::none() }.with_valid(valid),
        });
    }
    cases
}

/// Runs the kernels on what the twin ran on: output, gradients of q, k, v, inverse and prior.
fn run(call: Call, operands: &Operands, grad_out: CubeTensor, kinds: [usize; 3]) -> Vec<Vec<f64>> {
    assert!(takes(call, operands));
    let (out, lse) = forward(call, operands.clone());
    let Gradients { q, k, v, inverse, prior } = backward(call, operands.clone(), out.clone(), lse.clone(), grad_out);
    let [heads, components, keys] = kinds;
    let mut inverses = vec![0.0; components];
    numbers(inverse).iter().enumerate().for_each(|(at, x)| inverses[at % components] += x);
    let priors = prior.map(|prior| {
        let mut sums = vec![0.0; heads * components * keys];
        let count = sums.len();
        numbers(prior).iter().enumerate().for_each(|(at, x)| sums[at % count] += x);
        sums
    });
    let mut all: Vec<Vec<f64>> = [out, lse, q, k, v].into_iter().map(numbers).collect();
    all.push(inverses);
    all.extend(priors);
    all
}

fn compare(report: &mut Report, what: &str, seen: &[f64], expected: &[f64]) {
    report.compare(what, seen, expected, BOUND);
}

fn compare_lse(report: &mut Report, what: &str, seen: &[f64], expected: &[f64]) {
    // Queries that see nothing have none.
    let kept: (Vec<f64>, Vec<f64>) =
        seen.iter().zip(expected).filter(|(_, expected)| expected.is_finite()).map(|(a, b)| (*a, *b)).unzip();
    compare(report, what, &kept.0, &kept.1);
}

fn valid(mask: &Mask, device: &Device) -> Option<CubeTensor> {
    let padding = mask.valid.as_ref()?;
    let keys = padding.as_slice().len() / 2;
    let data: Vec<f64> = padding.as_slice().iter().map(|&real| f64::from(real)).collect();
    Some(primitive(&data, [2, keys], device))
}

#[test]
fn softmax_follows_its_twin() {
    let device = gpu();
    let mut report = Report::new();
    let mut random = Random::new(1);
    for (at, case) in cases().into_iter().enumerate() {
        let ([width, value_width], [heads, key_heads]) = (case.widths, case.heads);
        let q = Array::normal(&mut random, &[2, case.queries, heads, width]);
        let k = Array::normal(&mut random, &[2, case.keys, key_heads, width]);
        let v = Array::normal(&mut random, &[2, case.keys, key_heads, value_width]);
        let grad_out = Array::normal(&mut random, &[2, case.queries, heads, value_width]);
        let slopes: Option<Arc<[f32]>> = (at % 2 == 1).then(|| (0..heads).map(|h| 0.5f32.powi(h as i32 + 1)).collect());
        let operator = Softmax {
            layout: Layout::TokenFirst,
            mask: case.mask.clone(),
            scale: Some(0.3),
            slopes: slopes.clone(),
            ..Softmax::default()
        };
        let Reference { out, lse, grads } = operator.reference(&[q.view(), k.view(), v.view()], Some(&grad_out.data));
        let operands = Operands {
            q: q.on(&device),
            k: k.reshaped(&[2, case.keys, 1, key_heads, width]).on(&device),
            v: v.on(&device),
            inverse: primitive(&[0.3], [1], &device),
            prior: None,
            valid: valid(&case.mask, &device),
            slopes: slopes
                .map(|slopes| primitive(&slopes.iter().map(|&x| f64::from(x)).collect::<Vec<_>>(), [heads], &device)),
        };
        let call = Call { distances: false, causal: case.mask.causal, window: case.mask.window };
        let seen = run(call, &operands, grad_out.on(&device), [heads, 1, case.keys]);
        let label = |name: &str| format!("case {at}, {} x {}: {name}", case.queries, case.keys);
        compare(&mut report, &label("out"), &seen[0], &out);
        compare_lse(&mut report, &label("lse"), &seen[1], &lse.expect("of softmax"));
        for (name, (seen, expected)) in ["q", "k", "v"].iter().zip(seen[2..].iter().zip(&grads)) {
            compare(&mut report, &label(&format!("gradient of {name}")), seen, expected);
        }
    }
    report.finish();
}

#[test]
fn mixtures_follow_their_twin() {
    let device = gpu();
    let mut report = Report::new();
    let mut random = Random::new(2);
    // Wide heads, whose tiles are the smallest.
    let wide = Case {
        queries: 40,
        keys: 70,
        widths: [128, 96],
        heads: [2, 1],
        components: 3,
        mask: Mask { window: Some(30), ..Mask::none() },
    };
    for (at, case) in cases().into_iter().chain([wide]).enumerate() {
        let ([width, value_width], [heads, key_heads]) = (case.widths, case.heads);
        let components = case.components;
        let score = if at % 2 == 0 { Score::Gaussian } else { Score::Dot };
        let q = Array::normal(&mut random, &[2, case.queries, heads, width]);
        let k = Array::normal(&mut random, &[2, case.keys, components, key_heads, width]);
        let v = Array::normal(&mut random, &[2, case.keys, key_heads, value_width]);
        let grad_out = Array::normal(&mut random, &[2, case.queries, heads, value_width]);
        let variance: Vec<f64> = (0..components).map(|r| (width as f64).sqrt() * (1.0 + r as f64)).collect();
        let variance = Array { data: variance, shape: vec![components] };
        let positions = at % 3 == 2;
        let prior_shape = if positions { vec![heads, components, case.keys] } else { vec![heads, components] };
        let prior = Array::normal(&mut random, &prior_shape);
        let operator =
            GaussianMixture { layout: Layout::TokenFirst, mask: case.mask.clone(), score, ..Default::default() };
        let inputs = [q.view(), k.view(), v.view(), variance.view(), prior.view()];
        let Reference { out, lse, grads } = operator.reference(&inputs, Some(&grad_out.data));
        let inverse: Vec<f64> = variance.data.iter().map(|variance| 1.0 / variance).collect();
        let operands = Operands {
            q: q.on(&device),
            k: k.on(&device),
            v: v.on(&device),
            inverse: primitive(&inverse, [components], &device),
            prior: Some(prior.on(&device)),
            valid: valid(&case.mask, &device),
            slopes: None,
        };
        let call = Call { distances: score == Score::Gaussian, causal: case.mask.causal, window: case.mask.window };
        let mut seen = run(call, &operands, grad_out.on(&device), [heads, components, case.keys]);
        // d inverse = -variance^-2 d variance.
        for (gradient, variance) in seen[5].iter_mut().zip(&variance.data) {
            *gradient *= -1.0 / (variance * variance);
        }
        if !positions {
            seen[6] = seen[6].chunks(case.keys).map(|keys| keys.iter().sum()).collect();
        }
        let label =
            |name: &str| format!("case {at}, {} x {}, {components} components: {name}", case.queries, case.keys);
        compare(&mut report, &label("out"), &seen[0], &out);
        compare_lse(&mut report, &label("lse"), &seen[1], &lse.expect("of a mixture"));
        let names = ["q", "k", "v", "variance", "prior"];
        for (name, (seen, expected)) in names.iter().zip(seen[2..].iter().zip(&grads)) {
            compare(&mut report, &label(&format!("gradient of {name}")), seen, expected);
        }
    }
    report.finish();
}

/// `ln(elu(x) + 1)` and its slope.
fn log_elu(x: f64) -> (f64, f64) {
    if x < 0.0 { (x, 1.0) } else { (x.ln_1p(), 1.0 / (1.0 + x)) }
}

#[test]
fn causal_linear_attention_follows_its_twin() {
    let device = gpu();
    let mut report = Report::new();
    let mut random = Random::new(3);
    // Chunks of 16, segments of 256; features of any size.
    let cases =
        [(1, 4, 5, 1.0), (17, 8, 8, 1.0), (48, 1, 33, 1.0), (257, 6, 7, 1.0), (600, 32, 16, 4.0), (300, 64, 64, 40.0)];
    for (tokens, width, value_width, size) in cases {
        let shape = |width| [2, 2, tokens, width];
        let mut features = || {
            let mut array = Array::normal(&mut random, &shape(width));
            array.data.iter_mut().for_each(|x| *x = f64::from((*x * size) as f32));
            array
        };
        let (q, k) = (features(), features());
        let v = Array::normal(&mut random, &shape(value_width));
        let grad_out = Array::normal(&mut random, &shape(value_width));
        let operator = Linear { mask: Mask::causal(), ..Linear::default() };
        let twin = operator.reference(&[q.view(), k.view(), v.view()], Some(&grad_out.data));
        let logs = |x: &Array| Array { data: x.data.iter().map(|&x| log_elu(x).0).collect(), shape: x.shape.clone() };
        let operands = FeatureOperands { q: logs(&q).on(&device), k: logs(&k).on(&device), v: v.on(&device) };
        let outputs = feature_forward(operands.clone());
        let grads = feature_backward(operands, &outputs, grad_out.on(&device));
        let label = |name: &str| format!("{tokens} tokens, {width} features of size {size}: {name}");
        compare(&mut report, &label("out"), &numbers(outputs.out), &twin.out);
        let through = |grads: CubeTensor, x: &Array| -> Vec<f64> {
            numbers(grads).iter().zip(&x.data).map(|(grad, &x)| grad * log_elu(x).1).collect()
        };
        compare(&mut report, &label("gradient of q"), &through(grads.q, &q), &twin.grads[0]);
        compare(&mut report, &label("gradient of k"), &through(grads.k, &k), &twin.grads[1]);
        compare(&mut report, &label("gradient of v"), &numbers(grads.v), &twin.grads[2]);
    }
    report.finish();
}

/// Half precision in memory, float32 in sums: outputs and gradients are those of float32 of the same inputs, rounded.
#[test]
fn half_precision_rounds_inputs_and_results_alone() {
    let device = gpu();
    let mut report = Report::new();
    let mut random = Random::new(4);
    let [tokens, heads, width] = [70, 2, 16];
    let shapes: [&[usize]; 3] = [&[1, tokens, heads, width], &[1, tokens, 1, heads, width], &[1, tokens, heads, width]];
    let half = |tensor: CubeTensor| burn_cubecl::kernel::cast(tensor, DType::F16);
    let whole = |tensor: CubeTensor| burn_cubecl::kernel::cast(tensor, DType::F32);
    let arrays = shapes.map(|shape| Array::normal(&mut random, shape));
    // Rounded once, so that both runs read the same numbers.
    let wide = arrays.each_ref().map(|array| whole(half(array.on(&device))));
    let inverse = primitive(&[0.3], [1], &device);
    let operands = |[q, k, v]: [CubeTensor; 3]| {
        let inverse = inverse.clone();
        Operands { q, k, v, inverse, prior: None, valid: None, slopes: None }
    };
    let call = Call { causal: true, ..Call::default() };
    let narrow = operands(wide.clone().map(half));
    if !takes(call, &narrow) {
        let properties = narrow.q.client.properties();
        assert!(!properties.supports_type(ElemType::Float(FloatKind::F16)), "half precision was refused");
        return;
    }
    let wide = operands(wide);
    let (out, lse) = forward(call, wide.clone());
    let (narrow_out, narrow_lse) = forward(call, narrow.clone());
    // A result is rounded to 11 bits, once.
    let bound = 0.5f64.powi(11) + 1e-5;
    report.compare("lse", &numbers(narrow_lse.clone()), &numbers(lse.clone()), 1e-6);
    report.compare("out", &numbers(whole(narrow_out)), &numbers(out.clone()), bound);
    // From the same outputs, which the backward pass reads.
    let rounded = half(out);
    let grads = backward(call, wide.clone(), whole(rounded.clone()), lse, wide.v);
    let narrow_grads = backward(call, narrow.clone(), rounded, narrow_lse, narrow.v);
    for (name, seen, expected) in
        [("q", narrow_grads.q, grads.q), ("k", narrow_grads.k, grads.k), ("v", narrow_grads.v, grads.v)]
    {
        report.compare(name, &numbers(whole(seen)), &numbers(expected), bound);
    }
    report.finish();
}
