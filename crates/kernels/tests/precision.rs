//! What rounding must not take: small features, offsets that queries and keys share, gradients that are 0.

use regard_kernels::{GaussianMixture, Linear, Mask, Operator, Softmax, View};
use regard_testkit::{Random, Report, wide};

/// A float32 kernel against its float64 twin.
const BOUND: f64 = 5e-6;

const QUERIES: usize = 70;
const WIDTH: usize = 16;

/// Output and gradients of kernel and twin on these inputs, whose first is `q`.
fn both(operator: &dyn Operator, inputs: &[(Vec<usize>, Vec<f32>)], seed: u64) -> [Vec<Vec<f64>>; 2] {
    let shapes: Vec<&[usize]> = inputs.iter().map(|(shape, _)| &shape[..]).collect();
    let len = operator.out_shape(&shapes).unwrap().iter().product();
    let grad_out: Vec<f32> = Random::new(seed).normals(len).iter().map(|x| *x as f32).collect();
    let views: Vec<_> = inputs.iter().map(|(shape, data)| View::new(&data[..], shape)).collect();
    let mut out = vec![f32::NAN; len];
    let saved = operator.forward(&views, &mut out);
    let grads = operator.backward(&views, &out, &saved, &grad_out, &vec![true; views.len()]);
    let kernel = [vec![wide(&out)], grads.into_iter().map(|grad| wide(&grad.unwrap())).collect()].concat();
    let doubles: Vec<Vec<f64>> = inputs.iter().map(|(_, data)| wide(data)).collect();
    let views: Vec<_> = inputs.iter().zip(&doubles).map(|((shape, _), data)| View::new(&data[..], shape)).collect();
    let twin = operator.reference(&views, Some(&wide(&grad_out)));
    [kernel, [vec![twin.out], twin.grads].concat()]
}

/// `[1, 2, tokens, width]` normal numbers times `size` plus `offset`.
fn tensor(tokens: usize, width: usize, size: f32, offset: f32, seed: u64) -> (Vec<usize>, Vec<f32>) {
    let data = Random::new(seed).normals(2 * tokens * width);
    (vec![1, 2, tokens, width], data.iter().map(|x| *x as f32 * size + offset).collect())
}

fn compare(report: &mut Report, name: &str, [kernel, twin]: [Vec<Vec<f64>>; 2]) {
    for (n, (seen, wanted)) in kernel.iter().zip(&twin).enumerate() {
        report.compare(format!("{name}, {n}"), seen, wanted, BOUND);
    }
}

#[test]
fn features_that_are_all_small_keep_their_ratios() {
    let mut report = Report::new();
    for causal in [false, true] {
        let mask = if causal { Mask::causal() } else { Mask::none() };
        let operator = Linear { mask, ..Linear::default() };
        for (q, k) in [(0.0, -60.0), (-60.0, 0.0), (-500.0, -60.0)] {
            let inputs =
                [tensor(QUERIES, WIDTH, 1.0, q, 1), tensor(QUERIES, WIDTH, 1.0, k, 2), tensor(QUERIES, 5, 1.0, 0.0, 3)];
            compare(&mut report, &format!("queries at {q}, keys at {k}, causal {causal}"), both(&operator, &inputs, 4));
        }
    }
    report.finish();
}

/// Distances do not change where everything moves alike.
#[test]
fn a_shared_offset_costs_no_precision() {
    let mut report = Report::new();
    for offset in [0.0, 5.0, 100.0, 1000.0] {
        let (shape, k) = tensor(3 * 40, WIDTH, 1.0, offset, 2);
        let k = (vec![1, 2, 3, 40, shape[3]], k);
        let given = |shape: &[usize], data: &[f32]| (shape.to_vec(), data.to_vec());
        let (variance, prior) = (given(&[3], &[4.0, 3.0, 6.0]), given(&[2, 3], &[-1.0, -0.5, -2.0, -1.0, -1.5, -1.0]));
        let inputs = [tensor(QUERIES, WIDTH, 1.0, offset, 1), k, tensor(40, 5, 1.0, 0.0, 3), variance, prior];
        compare(&mut report, &format!("offset {offset}"), both(&GaussianMixture::default(), &inputs, 4));
    }
    report.finish();
}

/// A query that sees one key has its value as the output, whatever its score.
#[test]
fn a_single_key_gives_no_gradient_to_scores() {
    for (queries, value_width) in [(8, 64), (70, 5), (70, 64), (300, 64)] {
        let [q, k] = [queries, 1].map(|tokens| tensor(tokens, 8, 1.0, 0.0, tokens as u64));
        let v = tensor(1, value_width, 1.0, 0.0, 3);
        let mixed = (vec![1, 2, 1, 1, 8], k.1.clone());
        let given = [(vec![1], vec![2.0]), (vec![2, 1], vec![0.0, 0.0])];
        let softmax = [q.clone(), k, v.clone()];
        let gaussian = [q, mixed, v, given[0].clone(), given[1].clone()];
        for (name, grads) in [
            ("softmax", both(&Softmax::default(), &softmax, 4)[0].clone()),
            ("gaussian", both(&GaussianMixture::default(), &gaussian, 4)[0].clone()),
        ] {
            let largest = grads[1..3].iter().flatten().fold(0.0f64, |most, x| most.max(x.abs()));
            assert_eq!(largest, 0.0, "{name}, {queries} queries, {value_width} channels");
        }
    }
}

/// One key has the whole weight in both passes, whichever component is the nearest and however far.
#[test]
fn a_single_hard_key_hands_its_gradient_on_whole() {
    for size in [1.0, 30.0, 100.0] {
        let (q, v) = (tensor(QUERIES, 8, size, 0.0, 1), tensor(1, 5, 1.0, 0.0, 3));
        let keys = (vec![1, 2, 4, 1, 8], tensor(4, 8, size, 0.0, 2).1);
        let operator = GaussianMixture { hard: true, ..GaussianMixture::default() };
        let [kernel, twin] = both(&operator, &[q, keys, v, (vec![4], vec![3.0, 2.0, 4.0, 2.5])], 4);
        let apart = kernel[3].iter().zip(&twin[3]).fold(0.0f64, |most, (a, b)| most.max((a - b).abs()));
        assert!(apart < 2e-5, "inputs of {size}: gradient of v is {apart:e} off");
    }
}

/// Scores that float32 cannot tell apart are an overflow, not a row without a key.
#[test]
fn rows_of_scores_beyond_float32_are_not_empty() {
    let far = |operator: &dyn Operator, inputs: &[(Vec<usize>, Vec<f32>)]| {
        let shapes: Vec<&[usize]> = inputs.iter().map(|(shape, _)| &shape[..]).collect();
        let mut out = vec![0.0; operator.out_shape(&shapes).unwrap().iter().product()];
        let views: Vec<_> = inputs.iter().map(|(shape, data)| View::new(&data[..], shape)).collect();
        let saved = operator.forward(&views, &mut out);
        let lse = saved.lse().unwrap();
        assert!(lse.iter().all(|lse| *lse != f32::NEG_INFINITY), "{lse:?}");
    };
    for seed in 0..20 {
        let [q, k] = [1, 2].map(|tokens| tensor(tokens, 2, 9e4, 0.0, seed + tokens as u64));
        let v = tensor(2, 1, 1.0, 0.0, 3);
        let keys = (vec![1, 2, 1, 2, 2], k.1);
        let given = [(vec![1], vec![2.0]), (vec![2, 1], vec![0.0, 0.0])];
        far(&GaussianMixture::default(), &[q, keys, v, given[0].clone(), given[1].clone()]);
    }
}
