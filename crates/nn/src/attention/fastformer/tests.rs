use std::{collections::BTreeMap, sync::Arc};

use burn::module::ModuleVisitor;
use burn::tensor::{Device, Gradients, TensorData};
use regard_kernels::{Mechanism, Padding, Storage, mechanism::FastformerOptions};
use regard_testkit::{Random, Report, derivative};

use super::*;
use crate::{
    attention::{Attention, AttentionConfig},
    models::{ModelConfig, ParameterMap, ParameterPath, load_parameters, named_parameters, parameter_count},
};

const WIDTH: usize = 6;
const HEADS: usize = 2;
const LENGTH: usize = 5;
const REAL: [usize; 2] = [LENGTH, 3];

fn options(interaction: Interaction, sharing: Sharing, scores: AdditiveScores) -> AttentionConfig {
    let fastformer = FastformerOptions { scores, sharing, interaction };
    AttentionConfig { mechanism: Mechanism::Fastformer, heads: HEADS, fastformer, ..AttentionConfig::default() }
}

/// Both interactions with all that changes their parameters.
fn variants() -> Vec<AttentionConfig> {
    let mut all = Vec::new();
    for interaction in [Interaction::Sum, Interaction::Concatenation] {
        for (sharing, scores) in [
            (Sharing::QueryValue, AdditiveScores::Paper),
            (Sharing::None, AdditiveScores::Released),
            (Sharing::HeadWise, AdditiveScores::Paper),
        ] {
            all.push(options(interaction, sharing, scores));
        }
    }
    all
}

fn build(options: &AttentionConfig, bias: bool, device: &Device) -> Attention {
    let model = ModelConfig { width: WIDTH, bias, ..ModelConfig::default() };
    Attention::new(&model, options, LENGTH, &Init::new(5, device)).unwrap()
}

/// A layer with parameters of deviation 0.5, and the parameters.
fn layer(options: &AttentionConfig, device: &Device) -> (Attention, ParameterMap) {
    let layer = build(options, true, device);
    let mut random = Random::new(9);
    let parameters = named_parameters(&layer).into_iter().map(|parameter| {
        let values = parameter.values.iter().map(|_| (0.5 * random.normal()) as f32).collect();
        (parameter.name, (parameter.shape, values))
    });
    let parameters: ParameterMap = parameters.collect();
    (load_parameters(layer, parameters.clone()).unwrap(), parameters)
}

fn input(seed: u64) -> Vec<f64> {
    Random::new(seed).normals(2 * LENGTH * WIDTH)
}

fn tensor(values: &[f64], device: &Device) -> Tensor<3> {
    let values: Vec<f32> = values.iter().map(|x| *x as f32).collect();
    Tensor::from_data(TensorData::new(values, [2, LENGTH, WIDTH]), device)
}

fn doubles<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().as_slice::<f32>().unwrap().iter().map(|&x| f64::from(x)).collect()
}

fn padding() -> Arc<Padding> {
    Arc::new(Padding::from_lengths(&REAL, LENGTH))
}

/// Output and gradients by name, for the gradient `input(2)` of the output.
fn run(layer: &Attention, x: &[f64], padding: Option<Arc<Padding>>) -> BTreeMap<String, Vec<f64>> {
    struct Collect<'a>(ParameterPath, &'a Gradients, BTreeMap<String, Vec<f64>>);
    impl ModuleVisitor for Collect<'_> {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let name = self.0.name();
            let grad = param.val().grad(self.1).unwrap_or_else(|| panic!("'{name}' has no gradient"));
            self.2.insert(name, doubles(grad));
        }
    }
    let device = Device::flex().autodiff();
    let x = tensor(x, &device).require_grad();
    let out = layer.forward(x.clone(), x.clone(), &layer.mask(padding), &Context::training(0, 0), Place::Weights);
    let grads = (out.clone() * tensor(&input(2), &device)).sum().backward();
    let mut collect = Collect(ParameterPath::default(), &grads, BTreeMap::new());
    layer.visit(&mut collect);
    collect.2.insert("out".into(), doubles(out));
    collect.2.insert("x".into(), doubles(x.grad(&grads).unwrap()));
    collect.2
}

/// The layer by its definition, element by element.
struct Definition<'a> {
    options: &'a AttentionConfig,
    parameters: &'a BTreeMap<String, Vec<f64>>,
    real: [usize; 2],
}

impl Definition<'_> {
    /// `x W + b` of one token; head-wise one matrix for the slice of each head.
    fn project(&self, x: &[f64], which: &str) -> Vec<f64> {
        let (weight, bias) = (&self.parameters[&format!("w_{which}")], &self.parameters[&format!("b_{which}")]);
        let slice = if bias.len() == WIDTH { WIDTH } else { WIDTH / HEADS };
        let channel = |j: usize| {
            let (part, j) = (&x[j / slice * slice..][..slice], j % slice);
            bias[j] + part.iter().enumerate().map(|(i, x)| x * weight[i * slice + j]).sum::<f64>()
        };
        (0..WIDTH).map(channel).collect()
    }

    /// Averages of the real `tokens`, one per head, weighted by a softmax of their scores.
    fn average(&self, tokens: &[Vec<f64>], vectors: &str) -> Vec<f64> {
        let (vectors, width) = (&self.parameters[vectors], WIDTH / HEADS);
        let mut average = vec![0.0; WIDTH];
        for h in 0..HEADS {
            let own = h * width..(h + 1) * width;
            let score = |x: &Vec<f64>| {
                let (seen, vector) = match self.options.fastformer.scores {
                    AdditiveScores::Paper => (&x[own.clone()], &vectors[h * width % vectors.len()..][..width]),
                    AdditiveScores::Released => (&x[..], &vectors[h * WIDTH..][..WIDTH]),
                };
                let product: f64 = seen.iter().zip(vector).map(|(x, w)| x * w).sum();
                (product / (width as f64).sqrt()).exp()
            };
            let weights: Vec<f64> = tokens.iter().map(score).collect();
            let sum: f64 = weights.iter().sum();
            for (x, weight) in tokens.iter().zip(&weights) {
                own.clone().for_each(|c| average[c] += weight / sum * x[c]);
            }
        }
        average
    }

    fn join(&self, global: &[f64], x: &[f64], matrix: &str) -> Vec<f64> {
        if self.options.fastformer.interaction == Interaction::Sum {
            return global.iter().zip(x).map(|(g, x)| g + x).collect();
        }
        let (matrix, width) = (&self.parameters[matrix], WIDTH / HEADS);
        let channel = |j: usize| {
            let (h, j) = (j / width, j % width);
            let own = &matrix[2 * h * width * width % matrix.len()..][..2 * width * width];
            let both = global[h * width..][..width].iter().chain(&x[h * width..][..width]);
            both.enumerate().map(|(i, x)| x * own[i * width + j]).sum()
        };
        (0..WIDTH).map(channel).collect()
    }

    /// `[2,LENGTH,WIDTH]`.
    fn forward(&self, x: &[f64]) -> Vec<f64> {
        let mut out = vec![0.0; x.len()];
        for (b, &real) in self.real.iter().enumerate() {
            let row = |i: usize| (b * LENGTH + i) * WIDTH;
            let project =
                |which| -> Vec<Vec<f64>> { (0..real).map(|i| self.project(&x[row(i)..][..WIDTH], which)).collect() };
            let (q, k) = (project("q"), project("k"));
            let v = if self.parameters.contains_key("w_v") { project("v") } else { q.clone() };
            let query = self.average(&q, "score_q");
            let p: Vec<_> = k.iter().map(|k| self.join(&query, k, "w_p")).collect();
            let key = self.average(&p, "score_k");
            for i in 0..real {
                let u = self.join(&key, &v[i], "w_u");
                let (weight, bias) = (&self.parameters["w_t"], &self.parameters["b_t"]);
                for c in 0..WIDTH {
                    let product: f64 = u.iter().enumerate().map(|(j, u)| u * weight[j * WIDTH + c]).sum();
                    out[row(i) + c] = product + bias[c] + q[i][c];
                }
            }
        }
        out
    }
}

#[test]
fn outputs_are_those_of_the_definition_and_gradients_its_differences() {
    let mut report = Report::new();
    let (x, weights) = (input(1), input(2));
    for options in variants() {
        let (layer, parameters) = layer(&options, &Device::flex().autodiff());
        let wide = |(name, (_, values)): (&String, &(Vec<usize>, Vec<f32>))| {
            (name.clone(), values.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>())
        };
        let parameters: BTreeMap<String, Vec<f64>> = parameters.iter().map(wide).collect();
        for (real, padding) in [([LENGTH; 2], None), (REAL, Some(padding()))] {
            let seen = run(&layer, &x, padding);
            let what = format!("{:?}, {real:?} real", options.fastformer);
            let forward = |parameters: &BTreeMap<String, Vec<f64>>, x: &[f64]| {
                Definition { options: &options, parameters, real }.forward(x)
            };
            let loss = |out: Vec<f64>| out.iter().zip(&weights).map(|(out, weight)| out * weight).sum::<f64>();
            report.compare(format!("{what}: out"), &seen["out"], &forward(&parameters, &x), 5e-6);
            let of_x = derivative(&x, |x| loss(forward(&parameters, x)));
            report.compare(format!("{what}: x"), &seen["x"], &of_x, 5e-5);
            for (name, values) in &parameters {
                let mut moved = parameters.clone();
                let wanted = derivative(values, |values| {
                    moved.insert(name.clone(), values.to_vec());
                    loss(forward(&moved, &x))
                });
                report.compare(format!("{what}: {name}"), &seen[name], &wanted, 5e-5);
            }
        }
    }
    report.finish();
}

#[test]
fn what_padding_holds_never_matters() {
    let x = input(1);
    for options in variants() {
        let (layer, _) = layer(&options, &Device::flex().autodiff());
        let wanted = run(&layer, &x, Some(padding()));
        for content in [0.0, 1e30, f64::INFINITY, f64::NAN] {
            let mut other = x.clone();
            other[(LENGTH + REAL[1]) * WIDTH..].fill(content);
            assert_eq!(run(&layer, &other, Some(padding())), wanted, "{:?}, {content}", options.fastformer);
        }
        assert!(wanted["out"][(LENGTH + REAL[1]) * WIDTH..].iter().all(|x| *x == 0.0));
        // A sequence without a real token.
        let nothing = Arc::new(Padding::from_lengths(&[LENGTH, 0], LENGTH));
        let empty = run(&layer, &x, Some(nothing));
        assert!(empty.values().flatten().all(|x| x.is_finite()), "{:?}", options.fastformer);
        assert!(empty["out"][LENGTH * WIDTH..].iter().chain(&empty["x"][LENGTH * WIDTH..]).all(|x| *x == 0.0));
        // The other sequence is as it is alone.
        assert_eq!(empty["out"][..LENGTH * WIDTH], wanted["out"][..LENGTH * WIDTH]);
    }
}

#[test]
fn parameters_are_those_of_the_product_and_two_matrices_a_head() {
    let (d, own) = (WIDTH, WIDTH / HEADS);
    let count = |interaction, sharing| {
        let options = options(interaction, sharing, AdditiveScores::Paper);
        parameter_count(&build(&options, false, &Device::flex()))
    };
    for (sharing, product, matrices) in [
        (Sharing::QueryValue, 3 * d * d + 2 * d, HEADS),
        (Sharing::None, 4 * d * d + 2 * d, HEADS),
        (Sharing::HeadWise, d * d + 2 * own * own + 2 * own, 1),
    ] {
        assert_eq!(count(Interaction::Product, sharing), product);
        assert_eq!(count(Interaction::Sum, sharing), product);
        assert_eq!(count(Interaction::Concatenation, sharing), product + 2 * matrices * 2 * own * own);
    }
}

#[test]
fn what_has_no_kernel_is_refused_by_name() {
    let device = Device::flex();
    for (options, name) in variants().into_iter().zip(["'sum'"; 3].into_iter().chain(["'concatenation'"; 3])) {
        let causal = AttentionConfig { causal: true, ..options.clone() };
        let model = ModelConfig { width: WIDTH, ..ModelConfig::default() };
        let error = Attention::new(&model, &causal, LENGTH, &Init::new(5, &device)).unwrap_err().to_string();
        let said = format!("fastformer.interaction is {name} with causal attention, expected 'product'");
        assert!(error.starts_with(&said), "{error}");
        let layer = build(&options, true, &device);
        let said = format!("fastformer.interaction is {name}, expected 'product' here");
        for error in [layer.decoder(Storage::F32).map(drop), options.operator(Default::default()).map(drop)] {
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with(&said), "{error}");
        }
        // Nothing to look at is recorded.
        let log = Arc::new(crate::attention::AttentionLog::new());
        let (x, context) = (tensor(&input(1), &device), Context::evaluation().with_attention_log(log.clone()));
        layer.forward(x.clone(), x, &layer.mask(None), &context, Place::Weights);
        let records = log.take();
        assert!(records.len() == 1 && records[0].calls.is_empty());
    }
    // Of other mechanisms the key says nothing.
    let softmax = AttentionConfig { mechanism: Mechanism::Softmax, causal: true, ..variants().remove(0) };
    assert!(softmax.check().is_ok() && softmax.check_kernel().is_ok());
}
