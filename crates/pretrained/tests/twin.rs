//! What an architecture and its parameters mean, written to be read: the whole model in float64, against `transformers`.

mod support;

use std::{collections::BTreeMap, path::Path};

use regard_pretrained::{Activation, Architecture, Features, Folder, Head, NormKind, NormPlace, Position};
use support::{Golden, MODELS, golden, stories};

/// Rows of features.
#[derive(Clone, Debug, PartialEq)]
struct Matrix {
    columns: usize,
    data: Vec<f64>,
}

impl Matrix {
    fn new(columns: usize, data: Vec<f64>) -> Self {
        Self { columns, data }
    }

    fn rows(&self) -> usize {
        self.data.len() / self.columns
    }

    fn row(&self, i: usize) -> &[f64] {
        &self.data[i * self.columns..][..self.columns]
    }

    fn each_row(&self, f: impl Fn(&[f64]) -> Vec<f64>) -> Self {
        let rows: Vec<Vec<f64>> = (0..self.rows()).map(|i| f(self.row(i))).collect();
        Self::new(rows[0].len(), rows.concat())
    }

    fn zip(&self, other: &Self, f: impl Fn(f64, f64) -> f64) -> Self {
        assert_eq!((self.columns, self.data.len()), (other.columns, other.data.len()));
        Self::new(self.columns, self.data.iter().zip(&other.data).map(|(a, b)| f(*a, *b)).collect())
    }

    fn times(&self, w: &Self) -> Self {
        assert_eq!(self.columns, w.rows());
        self.each_row(|x| {
            let dot = |j: usize| x.iter().enumerate().map(|(i, x)| x * w.data[i * w.columns + j]).sum();
            (0..w.columns).map(dot).collect()
        })
    }

    fn transposed(&self) -> Self {
        let turned = |j: usize| (0..self.rows()).map(move |i| self.data[i * self.columns + j]);
        Self::new(self.rows(), (0..self.columns).flat_map(turned).collect())
    }
}

impl Golden {
    /// One item of a batch.
    fn item(&self, name: &str, item: usize) -> Option<Matrix> {
        let (shape, data) = self.0.get(name)?;
        let size: usize = shape[1..].iter().product();
        Some(Matrix::new(*shape.last().unwrap(), data[item * size..][..size].to_vec()))
    }

    fn numbers(&self, name: &str, item: usize) -> Option<Vec<usize>> {
        Some(self.item(name, item)?.data.iter().map(|x| *x as usize).collect())
    }
}

struct Model {
    a: Architecture,
    parameters: BTreeMap<String, Matrix>,
}

impl Model {
    fn open(folder: &Path) -> Self {
        let folder = Folder::open(folder).unwrap();
        let parameters = folder.load().map(|p| {
            let data = p.values().iter().map(|x| f64::from(*x)).collect();
            (p.name().to_string(), Matrix::new(*p.shape().last().unwrap(), data))
        });
        Self { a: folder.architecture().clone(), parameters: parameters.collect() }
    }

    fn get(&self, name: &str) -> &Matrix {
        self.parameters.get(name).unwrap_or_else(|| panic!("no parameter {name}"))
    }

    /// `x w + b`, where there is a bias.
    fn linear(&self, x: &Matrix, w: &str, b: &str) -> Matrix {
        let y = x.times(self.get(w));
        match self.parameters.get(b) {
            Some(b) => y.each_row(|y| y.iter().zip(&b.data).map(|(y, b)| y + b).collect()),
            None => y,
        }
    }

    fn norm(&self, x: &Matrix, name: &str) -> Matrix {
        let weight = self.get(&format!("{name}.weight"));
        x.each_row(|x| {
            let n = x.len() as f64;
            let mean = if self.a.norm.kind == NormKind::Layer { x.iter().sum::<f64>() / n } else { 0.0 };
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let scale = 1.0 / (variance + self.a.norm.epsilon).sqrt();
            let bias = self.parameters.get(&format!("{name}.bias"));
            let offset = |i: usize| bias.map_or(0.0, |bias| bias.data[i]);
            (0..x.len()).map(|i| (x[i] - mean) * scale * weight.data[i] + offset(i)).collect()
        })
    }

    fn activate(&self, x: f64) -> f64 {
        match self.a.activation {
            Activation::Gelu => 0.5 * x * (1.0 + erf(x / 2f64.sqrt())),
            Activation::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
            }
            Activation::Relu => x.max(0.0),
            Activation::Silu => x / (1.0 + (-x).exp()),
        }
    }

    fn activated(&self, x: &Matrix) -> Matrix {
        Matrix::new(x.columns, x.data.iter().map(|x| self.activate(*x)).collect())
    }

    /// Text as features.
    fn embed(&self, ids: &[usize], types: &[usize]) -> Matrix {
        let a = &self.a;
        let rows = ids.iter().enumerate().map(|(i, id)| {
            let mut row = self.get("token_embedding").row(*id).to_vec();
            if a.token_types > 0 {
                row.iter_mut().zip(self.get("token_type_embedding").row(types[i])).for_each(|(x, y)| *x += y);
            }
            if let Position::Learned { offset, .. } = a.position {
                row.iter_mut().zip(self.get("position_embedding").row(i + offset)).for_each(|(x, y)| *x += y);
            }
            row
        });
        let x = Matrix::new(a.embedding_width, rows.collect::<Vec<_>>().concat());
        let x = if a.embedding_norm { self.norm(&x, "norm_embedding") } else { x };
        if a.embedding_projection { self.linear(&x, "w_embedding", "b_embedding") } else { x }
    }

    /// An image as features: `pixels` are `[channels, image, image]`.
    fn patches(&self, pixels: &[f64]) -> Matrix {
        let p = self.a.patch.unwrap();
        let side = p.image / p.patch;
        let mut rows = Vec::new();
        for (top, left) in (0..side).flat_map(|top| (0..side).map(move |left| (top, left))) {
            for (channel, y) in (0..p.channels).flat_map(|channel| (0..p.patch).map(move |y| (channel, y))) {
                let start = (channel * p.image + top * p.patch + y) * p.image + left * p.patch;
                rows.extend(&pixels[start..][..p.patch]);
            }
        }
        let x = self.linear(&Matrix::new(p.channels * p.patch * p.patch, rows), "w_patch", "b_patch");
        let x = Matrix::new(x.columns, [&self.get("class_token").data[..], &x.data].concat());
        x.zip(self.get("position_embedding"), |x, y| x + y)
    }

    /// Turns the heads of queries or keys to their positions.
    fn turn(&self, x: Matrix) -> Matrix {
        let Position::Rotary(rotary) = self.a.position else { return x };
        let width = self.a.head_width;
        let pairs = rotary.pairs(width).unwrap();
        let (frequencies, magnitude) = (rotary.frequencies(pairs, x.rows()), rotary.magnitude());
        let mut out = x.clone();
        for (i, row) in out.data.chunks_mut(x.columns).enumerate() {
            for head in row.chunks_mut(width) {
                for (j, frequency) in frequencies.iter().enumerate() {
                    let (sin, cos) = (i as f64 * frequency).sin_cos();
                    let (sin, cos) = (sin * magnitude, cos * magnitude);
                    let (a, b) = (head[j], head[j + pairs]);
                    (head[j], head[j + pairs]) = (a * cos - b * sin, b * cos + a * sin);
                }
            }
        }
        out
    }

    fn attention(&self, x: &Matrix, layer: &str, valid: &[bool]) -> Matrix {
        let a = &self.a;
        let part = |letter: char| {
            self.linear(x, &format!("{layer}.attention.w_{letter}"), &format!("{layer}.attention.b_{letter}"))
        };
        let (query, key, value) = (self.turn(part('q')), self.turn(part('k')), part('v'));
        let width = a.head_width;
        let mut mixed = Matrix::new(a.query_width(), vec![0.0; x.rows() * a.query_width()]);
        for head in 0..a.heads {
            let of_key = head / (a.heads / a.key_value_heads) * width;
            for i in 0..x.rows() {
                let seen: Vec<usize> = (0..x.rows()).filter(|j| valid[*j] && (!a.causal || *j <= i)).collect();
                let score = |j: usize| {
                    let (query, key) = (&query.row(i)[head * width..][..width], &key.row(j)[of_key..][..width]);
                    query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() / (width as f64).sqrt()
                };
                let scores: Vec<f64> = seen.iter().map(|j| score(*j)).collect();
                let largest = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for (j, weight) in seen.iter().zip(&weights) {
                    for f in 0..width {
                        mixed.data[i * a.query_width() + head * width + f] += weight / sum * value.row(*j)[of_key + f];
                    }
                }
            }
        }
        self.linear(&mixed, &format!("{layer}.attention.w_o"), &format!("{layer}.attention.b_o"))
    }

    fn feed_forward(&self, x: &Matrix, layer: &str) -> Matrix {
        let map =
            |x: &Matrix, part: &str| self.linear(x, &format!("{layer}.ff.w_{part}"), &format!("{layer}.ff.b_{part}"));
        let up = map(x, "1");
        let inner =
            if self.a.gated { self.activated(&map(x, "gate")).zip(&up, |g, x| g * x) } else { self.activated(&up) };
        map(&inner, "2")
    }

    fn layer(&self, x: &Matrix, index: usize, valid: &[bool]) -> Matrix {
        let layer = format!("layers.{}", if self.a.shared_blocks { 0 } else { index });
        let [norm_1, norm_2] = [1, 2].map(|i| format!("{layer}.norm_{i}"));
        let scaled = |x: Matrix, name: &str| match self.parameters.get(&format!("{layer}.{name}")) {
            Some(scale) => x.each_row(|x| x.iter().zip(&scale.data).map(|(x, s)| x * s).collect()),
            None => x,
        };
        let sum = |x: &Matrix, y: Matrix| x.zip(&y, |x, y| x + y);
        match self.a.norm.place {
            NormPlace::Pre => {
                let x = sum(x, scaled(self.attention(&self.norm(x, &norm_1), &layer, valid), "scale_1"));
                sum(&x, scaled(self.feed_forward(&self.norm(&x, &norm_2), &layer), "scale_2"))
            }
            NormPlace::Post => {
                let x = self.norm(&sum(x, self.attention(x, &layer, valid)), &norm_1);
                self.norm(&sum(&x, self.feed_forward(&x, &layer)), &norm_2)
            }
        }
    }

    /// The most likely token after others.
    fn next(&self, ids: &[usize]) -> usize {
        let embedded = self.embed(ids, &[]);
        let x = (0..self.a.layers).fold(embedded, |x, layer| self.layer(&x, layer, &vec![true; ids.len()]));
        let last = Matrix::new(self.a.width, x.row(ids.len() - 1).to_vec());
        let scores = self.scores(&self.norm(&last, "norm_f"));
        (0..scores.columns).max_by(|a, b| scores.data[*a].total_cmp(&scores.data[*b])).unwrap()
    }

    fn pooled(&self, first: &Matrix) -> Matrix {
        let x = self.linear(first, "pooler.w", "pooler.b");
        Matrix::new(x.columns, x.data.iter().map(|x| x.tanh()).collect())
    }

    fn scores(&self, x: &Matrix) -> Matrix {
        let a = &self.a;
        let tied = |x: &Matrix| {
            let y = x.times(&self.get("token_embedding").transposed());
            match self.parameters.get("b_head") {
                Some(b) => y.each_row(|y| y.iter().zip(&b.data).map(|(y, b)| y + b).collect()),
                None => y,
            }
        };
        let head = |x: &Matrix| if a.tied() { tied(x) } else { self.linear(x, "head", "b_head") };
        let first = Matrix::new(x.columns, x.row(0).to_vec());
        match a.head {
            Head::None => self.pooled(&first),
            Head::Language { .. } => head(x),
            Head::Masked { .. } => {
                let x = self.activated(&self.linear(x, "transform.w", "transform.b"));
                head(&self.norm(&x, "norm_transform"))
            }
            Head::Classifier { features: Features::First, .. } => {
                self.linear(&if a.pooler { self.pooled(&first) } else { first }, "head", "b_head")
            }
            Head::Classifier { features: Features::FirstAndMean, .. } => {
                let others = (x.rows() - 1) as f64;
                let mean = (0..x.columns).map(|f| (1..x.rows()).map(|i| x.row(i)[f]).sum::<f64>() / others);
                let both = first.data.iter().copied().chain(mean).collect();
                self.linear(&Matrix::new(2 * x.columns, both), "head", "b_head")
            }
            Head::Classifier { .. } => panic!("no golden model has this head"),
        }
    }
}

/// The error function: its series near 0, its continued fraction far from it.
fn erf(x: f64) -> f64 {
    let z = x.abs();
    let value = if z < 3.0 {
        let (mut term, mut sum) = (z, z);
        for n in 1..80 {
            term *= -z * z / n as f64;
            sum += term / (2 * n + 1) as f64;
        }
        2.0 / std::f64::consts::PI.sqrt() * sum
    } else {
        let fraction = (1..80).rev().fold(z, |tail, n| z + n as f64 / 2.0 / tail);
        1.0 - (-z * z).exp() / std::f64::consts::PI.sqrt() / fraction
    };
    value.copysign(x)
}

/// Compares the rows that are no padding.
fn close(seen: &Matrix, expected: &Matrix, rows: usize, what: &str) {
    assert_eq!(seen.columns, expected.columns, "{what}");
    let largest = expected.data.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
    for i in 0..rows {
        for (a, b) in seen.row(i).iter().zip(expected.row(i)) {
            assert!((a - b).abs() < 1e-10 * largest, "{what}, row {i}: {a}, expected {b}");
        }
    }
}

#[test]
fn models_compute_what_transformers_computes() {
    for name in MODELS {
        let model = Model::open(&golden(name));
        let golden = Golden::read(&golden(&format!("{name}.safetensors")));
        let images = model.a.patch.is_some();
        let batch = golden.0["hidden.0"].0[0];
        for item in 0..batch {
            let (mut x, valid) = if images {
                let x = model.patches(&golden.item("pixel_values", item).unwrap().data);
                let valid = vec![true; x.rows()];
                (x, valid)
            } else {
                let ids = golden.numbers("input_ids", item).unwrap();
                let types = golden.numbers("token_type_ids", item).unwrap_or(vec![0; ids.len()]);
                let mask = golden.numbers("attention_mask", item).unwrap();
                (model.embed(&ids, &types), mask.iter().map(|m| *m == 1).collect())
            };
            let real = valid.iter().filter(|valid| **valid).count();
            let compare = |x: &Matrix, tensor: &str, rows: usize| {
                close(x, &golden.item(tensor, item).unwrap(), rows, &format!("{name}, {tensor}, item {item}"));
            };
            compare(&x, "hidden.0", real);
            for layer in 0..model.a.layers {
                x = model.layer(&x, layer, &valid);
                compare(&x, &format!("hidden.{}", layer + 1), real);
            }
            if model.a.final_norm {
                x = model.norm(&x, "norm_f");
            }
            compare(&x, "last_hidden", real);
            if golden.0.contains_key("logits") {
                let scores = model.scores(&x);
                compare(&scores, "logits", scores.rows().min(real));
            } else if golden.0.contains_key("pooled") {
                compare(&model.scores(&x), "pooled", 1);
            }
        }
        if let Some(expected) = golden.numbers("generated", 0) {
            let mut ids = expected[..4].to_vec();
            while ids.len() < expected.len() {
                ids.push(model.next(&ids));
            }
            assert_eq!(ids, expected, "{name}");
        }
    }
}

#[test]
fn a_trained_model_tells_its_story() {
    let folder = Folder::open(stories()).unwrap();
    let (model, tokenizer, generation) =
        (Model::open(&stories()), folder.tokenizer().unwrap(), folder.generation().unwrap());
    let mut ids = vec![generation.bos.unwrap() as usize];
    let mut stream = tokenizer.stream();
    let mut text = String::new();
    while ids.len() < 60 {
        let next = model.next(&ids);
        text += &stream.push(next as u32).unwrap();
        ids.push(next);
    }
    let expected = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a \
                    big, red ball.";
    assert!(text.starts_with(expected), "{text}");
}
