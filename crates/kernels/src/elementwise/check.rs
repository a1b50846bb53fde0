//! Checks that every operator of this folder must pass.

use crate::{Operator, View, random};

/// A test tensor.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) data: Vec<f32>,
    pub(super) shape: Vec<usize>,
}

/// Values in `(-scale, scale)`.
pub(super) fn draw(shape: &[usize], scale: f32, key: u64) -> Sample {
    let value = |i| (random::bits(key, i) as f32 / 2f32.powi(31) - 1.0) * scale;
    let len = shape.iter().product::<usize>() as u32;
    Sample { data: (0..len).map(value).collect(), shape: shape.to_vec() }
}

/// Output and gradients of the kernel on a pool of `threads`.
fn run(
    operator: &dyn Operator,
    samples: &[Sample],
    threads: usize,
    wanted: &[bool],
) -> (Vec<f32>, Vec<Option<Vec<f32>>>) {
    let views: Vec<_> = samples.iter().map(|s| View::new(&s.data, &s.shape)).collect();
    let shapes: Vec<_> = samples.iter().map(|s| s.shape.as_slice()).collect();
    let len = operator.out_shape(&shapes).unwrap().iter().product::<usize>();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| {
        let mut out = vec![f32::NAN; len];
        let saved = operator.forward(&views, &mut out);
        // No operator here reads its output, and the bridge does not pass it.
        let grads = operator.backward(&views, &[], &saved, &grad_out(len), wanted);
        (out, grads)
    })
}

fn grad_out(len: usize) -> Vec<f32> {
    draw(&[len], 1.0, 99).data
}

fn assert_close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1.0f64, |scale, want| scale.max(want.abs()));
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(got) - want).abs() <= tolerance * scale, "{what}[{i}] is {got}, expected {want}");
    }
}

/// Values and gradients agree with the twin, the twin's gradients with central differences of its output; any number of
/// threads and any choice of wanted gradients gives the same bits.
pub(super) fn all(operator: &dyn Operator, samples: &[Sample]) {
    let every = vec![true; samples.len()];
    let (out, grads) = run(operator, samples, 1, &every);

    let exact: Vec<Vec<f64>> = samples.iter().map(|s| s.data.iter().map(|&x| f64::from(x)).collect()).collect();
    let twin = |inputs: &[Vec<f64>], grad_out: Option<&[f64]>| {
        let views: Vec<_> = inputs.iter().zip(samples).map(|(data, s)| View::new(data, &s.shape)).collect();
        operator.reference(&views, grad_out)
    };
    let weights: Vec<f64> = grad_out(out.len()).into_iter().map(f64::from).collect();
    let reference = twin(&exact, Some(&weights));
    assert_close("out", &out, &reference.out, 2e-6);
    for ((name, grad), want) in operator.inputs().iter().zip(&grads).zip(&reference.grads) {
        assert_close(name, grad.as_ref().expect("wanted"), want, 1e-5);
    }

    let loss = |inputs: &[Vec<f64>]| -> f64 { twin(inputs, None).out.iter().zip(&weights).map(|(o, w)| o * w).sum() };
    const STEP: f64 = 1e-4;
    for (input, name) in operator.inputs().iter().enumerate() {
        let len = exact[input].len();
        // The first, the last and some in between.
        for i in (0..len).step_by((len / 5).max(1)).chain(len.checked_sub(1)) {
            let mut moved = exact.clone();
            moved[input][i] += STEP;
            let above = loss(&moved);
            moved[input][i] -= 2.0 * STEP;
            let slope = (above - loss(&moved)) / (2.0 * STEP);
            let claimed = reference.grads[input][i];
            let off = (slope - claimed).abs();
            assert!(off < 1e-5 * (1.0 + slope.abs()), "d {name}[{i}] is {claimed}, differences give {slope}");
        }
    }

    for threads in [2, 7] {
        assert_eq!(run(operator, samples, threads, &every), (out.clone(), grads.clone()), "{threads} threads");
    }
    for only in 0..samples.len() {
        let wanted: Vec<bool> = (0..samples.len()).map(|input| input == only).collect();
        let mut want = vec![None; samples.len()];
        want[only] = grads[only].clone();
        assert_eq!(run(operator, samples, 2, &wanted).1, want, "only input {only} wanted");
    }
}
