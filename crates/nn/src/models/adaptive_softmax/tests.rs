use burn::tensor::{Device, TensorData};
use regard_kernels::random;
use regard_testkit::{Report, cases};

use super::*;
use crate::ops::with_elements;

/// A matrix in float64.
#[derive(Clone)]
struct Matrix {
    rows: usize,
    columns: usize,
    data: Vec<f64>,
}

impl Matrix {
    fn zeros(rows: usize, columns: usize) -> Self {
        Self { rows, columns, data: vec![0.0; rows * columns] }
    }

    fn row(&self, row: usize) -> &[f64] {
        &self.data[row * self.columns..][..self.columns]
    }

    /// `x self` of a row `x`.
    fn apply(&self, x: &[f64]) -> Vec<f64> {
        (0..self.columns).map(|c| (0..self.rows).map(|r| x[r] * self.row(r)[c]).sum()).collect()
    }

    /// `self g` of a column `g`.
    fn back(&self, g: &[f64]) -> Vec<f64> {
        (0..self.rows).map(|r| self.row(r).iter().zip(g).map(|(w, g)| w * g).sum()).collect()
    }

    /// Adds `x^T g`.
    fn add_outer(&mut self, x: &[f64], g: &[f64]) {
        for (row, x) in self.data.chunks_exact_mut(self.columns).zip(x) {
            row.iter_mut().zip(g).for_each(|(sum, g)| *sum += x * g);
        }
    }
}

/// The definition, with gradients by hand: what the module is held against.
struct Twin {
    x: Matrix,
    head: Matrix,
    tails: Vec<[Matrix; 2]>,
    cutoffs: Vec<usize>,
}

struct Found {
    loss: f64,
    log_probability: Vec<f64>,
    /// Of `x`, the head, and each cluster's matrices.
    gradients: Vec<Vec<f64>>,
}

fn log_softmax_of(logits: &[f64]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let normaliser = top + logits.iter().map(|z| (z - top).exp()).sum::<f64>().ln();
    logits.iter().map(|z| z - normaliser).collect()
}

/// `(softmax - hit) * scale`: the gradient of `-log softmax[hit]`.
fn residual(log: &[f64], hit: usize, scale: f64) -> Vec<f64> {
    (0..).zip(log).map(|(i, log)| scale * (log.exp() - f64::from(u8::from(i == hit)))).collect()
}

impl Twin {
    fn run(&self, targets: &[i32]) -> Found {
        let first = self.cutoffs[0];
        let scale = 1.0 / targets.iter().filter(|target| **target >= 0).count().max(1) as f64;
        let empty = |matrix: &Matrix| Matrix::zeros(matrix.rows, matrix.columns);
        let (mut of_x, mut of_head) = (empty(&self.x), empty(&self.head));
        let mut of_tails: Vec<[Matrix; 2]> = self.tails.iter().map(|tail| tail.each_ref().map(empty)).collect();
        let (mut loss, mut log_probability) = (0.0, Vec::new());
        for (row, &target) in targets.iter().enumerate() {
            let x = self.x.row(row);
            let head = log_softmax_of(&self.head.apply(x));
            let narrow: Vec<Vec<f64>> = self.tails.iter().map(|[w_in, _]| w_in.apply(x)).collect();
            let within: Vec<Vec<f64>> =
                self.tails.iter().zip(&narrow).map(|([_, w_out], x)| log_softmax_of(&w_out.apply(x))).collect();
            log_probability.extend_from_slice(&head[..first]);
            for (i, within) in within.iter().enumerate() {
                log_probability.extend(within.iter().map(|log| log + head[first + i]));
            }
            let Ok(target) = usize::try_from(target) else { continue };
            let cluster = self.cutoffs.iter().rposition(|cutoff| *cutoff <= target);
            let hit = cluster.map_or(target, |i| first + i);
            loss -= scale * head[hit];
            let mut grad_x = {
                let residual = residual(&head, hit, scale);
                of_head.add_outer(x, &residual);
                self.head.back(&residual)
            };
            if let Some(i) = cluster {
                let hit = target - self.cutoffs[i];
                loss -= scale * within[i][hit];
                let residual = residual(&within[i], hit, scale);
                of_tails[i][1].add_outer(&narrow[i], &residual);
                let narrow = self.tails[i][1].back(&residual);
                of_tails[i][0].add_outer(x, &narrow);
                grad_x.iter_mut().zip(self.tails[i][0].back(&narrow)).for_each(|(sum, g)| *sum += g);
            }
            of_x.data[row * self.x.columns..][..self.x.columns].copy_from_slice(&grad_x);
        }
        let gradients = [of_x, of_head].into_iter().chain(of_tails.into_iter().flatten());
        Found { loss, log_probability, gradients: gradients.map(|matrix| matrix.data).collect() }
    }

    /// The module with the same numbers; `tracked`, on a device with autodiff.
    fn module(&self, tracked: bool) -> (AdaptiveSoftmax, Tensor<2>) {
        let tensor = |matrix: &Matrix| {
            let data: Vec<f32> = matrix.data.iter().map(|x| *x as f32).collect();
            let data = TensorData::new(data, [matrix.rows, matrix.columns]);
            match tracked {
                true => Tensor::<2>::from_data(data, &Device::flex().autodiff()).require_grad(),
                false => Tensor::from_data(data, &Device::flex()),
            }
        };
        let tails = self.tails.iter().map(|[w_in, w_out]| Tail {
            w_in: Param::from_tensor(tensor(w_in)),
            w_out: Param::from_tensor(tensor(w_out)),
        });
        let head = Param::from_tensor(tensor(&self.head));
        (AdaptiveSoftmax { head, tails: tails.collect(), cutoffs: self.cutoffs.clone() }, tensor(&self.x))
    }
}

fn wide<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    with_elements(tensor, |elements| elements.iter().map(|x| f64::from(*x)).collect())
}

/// What the module gives, with at most `held` logits in memory.
fn found(twin: &Twin, targets: &[i32], held: usize) -> Found {
    let (module, x) = twin.module(true);
    let loss = module.loss(x.clone(), targets, held);
    let mut grads = loss.backward();
    let all = [&x, &module.head.val()].map(Clone::clone).into_iter();
    let all = all.chain(module.tails.iter().flat_map(|tail| [tail.w_in.val(), tail.w_out.val()]));
    let gradient = |tensor: Tensor<2>| match tensor.grad_remove(&mut grads) {
        Some(grad) => wide(&grad),
        // A cluster without a target has no part in the loss.
        None => vec![0.0; tensor.dims().iter().product()],
    };
    let gradients = all.map(gradient).collect();
    Found { loss: wide(&loss.inner())[0], log_probability: wide(&module.log_probabilities(x).inner()), gradients }
}

#[test]
fn torch_gives_the_same_loss_probabilities_and_gradients() {
    let case = cases().into_iter().find(|case| case.mechanism == "adaptive-softmax").unwrap();
    let tensors = case.load();
    let matrix = |name: &str| {
        let tensor = tensors.tensor(name);
        Matrix { rows: tensor.shape[0], columns: tensor.shape[1], data: tensor.f64().to_vec() }
    };
    let cutoffs: Vec<usize> = serde_json::from_value(case.options["cutoffs"].clone()).unwrap();
    let tails = (0..cutoffs.len()).map(|i| ["w_in", "w_out"].map(|name| matrix(&format!("tails.{i}.{name}"))));
    let twin = Twin { x: matrix("x"), head: matrix("head"), tails: tails.collect(), cutoffs: cutoffs.clone() };
    let config = AdaptiveSoftmaxConfig { cutoffs, factor: case.options["factor"].as_u64().unwrap() as usize };
    let sizes: Vec<[usize; 2]> = twin.tails.iter().map(|[_, w_out]| [w_out.columns, w_out.rows]).collect();
    assert_eq!(config.clusters(twin.x.columns, 41).collect::<Vec<_>>(), sizes);

    let targets: Vec<i32> = tensors.tensor("targets").i64().iter().map(|target| *target as i32).collect();
    let mut report = Report::new();
    let exact = twin.run(&targets);
    // All logits at once, and three rows at a time.
    for (form, seen, narrow) in [
        ("twin", &exact, false),
        ("whole", &found(&twin, &targets, usize::MAX), true),
        ("parts", &found(&twin, &targets, 40), true),
    ] {
        let mut compare = |name: &str, seen: &[f64]| {
            let bound = if narrow { case.bound(name) } else { 1e-11 };
            report.compare(format!("{form} {name}"), seen, tensors.tensor(name).f64(), bound);
        };
        compare("loss", &[seen.loss]);
        compare("log_probability", &seen.log_probability);
        for (name, gradient) in case.differentiated().into_iter().zip(&seen.gradients) {
            compare(&format!("grad.{name}"), gradient);
        }
    }
    report.finish();
}

fn drawn(width: usize, rows: usize, vocabulary: usize, config: &AdaptiveSoftmaxConfig) -> Twin {
    let mut key = 0;
    let mut matrix = |rows: usize, columns: usize| {
        key += 1;
        let draw = |i| f64::from(2.0 * random::unit(random::substream(key, i)) as f32 - 1.0);
        Matrix { rows, columns, data: (0..(rows * columns) as u64).map(draw).collect() }
    };
    Twin {
        x: matrix(rows, width),
        head: matrix(width, config.cutoffs[0] + config.cutoffs.len()),
        tails: config
            .clusters(width, vocabulary)
            .map(|[tokens, own]| [matrix(width, own), matrix(own, tokens)])
            .collect(),
        cutoffs: config.cutoffs.clone(),
    }
}

#[test]
fn targets_that_do_not_count_have_no_part() {
    let config = AdaptiveSoftmaxConfig { cutoffs: vec![3, 10], factor: 3 };
    let twin = drawn(9, 12, 17, &config);
    let targets: Vec<i32> = (0..12).map(|row| if row % 4 == 1 { -1 } else { (row * 7) % 17 }).collect();
    let exact = twin.run(&targets);
    let seen = found(&twin, &targets, usize::MAX);
    let mut report = Report::new();
    report.compare("loss", &[seen.loss], &[exact.loss], 2e-6);
    for (at, (seen, exact)) in seen.gradients.iter().zip(&exact.gradients).enumerate() {
        report.compare(format!("gradient {at}"), seen, exact, 3e-6);
    }
    report.finish();
    assert!(exact.gradients[0][9..18].iter().all(|g| *g == 0.0) && seen.gradients[0][9..18].iter().all(|g| *g == 0.0));
    assert_eq!(found(&twin, &[-1; 12], usize::MAX).loss, 0.0);
}

#[test]
fn probabilities_sum_to_one_and_agree_with_single_targets() {
    let config = AdaptiveSoftmaxConfig { cutoffs: vec![5, 11, 30], factor: 2 };
    let twin = drawn(16, 8, 64, &config);
    let (module, x) = twin.module(false);
    let all = wide(&module.log_probabilities(x.clone()));
    for (row, log) in all.chunks_exact(64).enumerate() {
        assert!((log.iter().map(|log| log.exp()).sum::<f64>() - 1.0).abs() < 1e-6, "row {row}");
    }
    let targets: Vec<i32> = (0..8).map(|row| row * 9).collect();
    for ((nats, log), target) in module.nats(&x, &targets).iter().zip(all.chunks_exact(64)).zip(&targets) {
        assert!((nats + log[*target as usize]).abs() < 2e-6);
    }
    let states = module.log_probabilities(x.reshape([2, 4, 16]));
    assert_eq!((states.dims(), wide(&states)), ([2, 4, 64], all));
}

#[test]
fn impossible_clusters_are_named() {
    use crate::{attention::AttentionConfig, models::ModelConfig};
    let problem = |cutoffs: &[usize], change: &dyn Fn(&mut ModelConfig)| {
        let adaptive_softmax = AdaptiveSoftmaxConfig { cutoffs: cutoffs.to_vec(), ..AdaptiveSoftmaxConfig::default() };
        let mut config = ModelConfig { adaptive_softmax, ..ModelConfig::default() };
        change(&mut config);
        config.sizes(&AttentionConfig::default(), 100, 100, 8).map(|_| ()).map_err(|error| error.to_string())
    };
    let none = |_: &mut ModelConfig| {};
    assert_eq!(problem(&[], &none), Ok(()));
    assert_eq!(problem(&[10, 99], &none), Ok(()));
    for (cutoffs, expected) in [
        (&[0, 3][..], "model.adaptive_softmax.cutoffs is 0,3, expected ascending numbers from 1"),
        (&[5, 5], "model.adaptive_softmax.cutoffs is 5,5, expected ascending"),
        (&[10, 100], "model.adaptive_softmax.cutoffs is 10,100, expected numbers below the vocabulary (100)"),
        (&[10, 20, 30, 40], "expected so few that model.width (64) divided by the factor (4)"),
    ] {
        let error = problem(cutoffs, &none).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let error = problem(&[10], &|config| config.tied_head = true).unwrap_err();
    assert!(error.starts_with("model.tied_head is true, expected false with model.adaptive_softmax"), "{error}");
    assert!(problem(&[10], &|config| config.adaptive_softmax.factor = 0).unwrap_err().contains("factor is 0"));
}
