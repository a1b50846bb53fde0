//! Fastformer (additive attention), dense: the weights of every row's two averages as a matrix.

use super::row::{add_scaled, dense, normalise};
use crate::{AttentionShape, Averaged, Mask, Reference, Rows, View, Weights, mechanism::AdditiveScores};

/// Whether row `i` sees token `j`.
type Sees<'a> = &'a dyn Fn(usize, usize) -> bool;

/// A sequence of rows of all channels, `[N][H*D]`.
type Sequence = Vec<Vec<f64>>;

/// Results of a forward pass over one batch row.
struct Pass {
    q: Sequence,
    k: Sequence,
    v: Sequence,
    /// Weights of the average of queries that each row sees, `[H][N][N]`.
    alpha: Vec<Sequence>,
    /// That average.
    global_query: Sequence,
    /// `global_query * k`.
    gated: Sequence,
    /// Weights of the average of gated keys, `[H][N][N]`.
    beta: Vec<Sequence>,
    /// That average.
    global_key: Sequence,
    /// `global_key * v`.
    values: Sequence,
}

/// Sizes of a call and its parameters.
#[derive(Clone, Copy)]
struct Setting<'a> {
    tokens: usize,
    heads: usize,
    head_width: usize,
    width: usize,
    released: bool,
    w_q: &'a [f64],
    w_k: &'a [f64],
    w_t: &'a [f64],
}

impl<'a> Setting<'a> {
    fn new(shape: &AttentionShape, scores: AdditiveScores, inputs: &[View<'a, f64>]) -> Self {
        let parameters = &inputs[inputs.len() - 3..];
        Self {
            tokens: shape.queries,
            heads: shape.heads,
            head_width: shape.head_width,
            width: shape.heads * shape.head_width,
            released: scores == AdditiveScores::Released,
            w_q: parameters[0].data,
            w_k: parameters[1].data,
            w_t: parameters[2].data,
        }
    }

    /// Channels of head `h`.
    fn channels(&self, h: usize) -> std::ops::Range<usize> {
        h * self.head_width..(h + 1) * self.head_width
    }

    /// Index of the score-vector entry of head `h` for channel `c`, if it covers that channel.
    fn entry(&self, h: usize, c: usize) -> Option<usize> {
        match self.released {
            true => Some(h * self.width + c),
            false => self.channels(h).contains(&c).then_some(c),
        }
    }

    /// Scores of all tokens `x` for head `h`.
    fn scores(&self, x: &Sequence, vectors: &[f64], h: usize) -> Vec<f64> {
        let scale = 1.0 / (self.head_width as f64).sqrt();
        let score = |x: &Vec<f64>| {
            (0..self.width).filter_map(|c| self.entry(h, c).map(|e| scale * vectors[e] * x[c])).sum::<f64>()
        };
        x.iter().map(score).collect()
    }

    /// Weights of the average that row `i` sees.
    fn weights(&self, scores: &[f64], i: usize, sees: Sees) -> Vec<f64> {
        let seen: Vec<usize> = (0..self.tokens).filter(|&j| sees(i, j)).collect();
        dense(self.tokens, &seen, &normalise(&seen.iter().map(|&j| scores[j]).collect::<Vec<_>>()).0)
    }

    /// The average of `x` that each row sees; each head's weights of each row are passed to `keep`, head by head.
    fn average(&self, x: &Sequence, vectors: &[f64], sees: Sees, mut keep: impl FnMut(usize, Vec<f64>)) -> Sequence {
        let mut averages = vec![vec![0.0; self.width]; self.tokens];
        for h in 0..self.heads {
            let scores = self.scores(x, vectors, h);
            for (i, average) in averages.iter_mut().enumerate() {
                let weights = self.weights(&scores, i, sees);
                for (weight, x) in weights.iter().zip(x) {
                    add_scaled(&mut average[self.channels(h)], *weight, &x[self.channels(h)]);
                }
                keep(h, weights);
            }
        }
        averages
    }

    /// Given the gradient of the averages, adds the gradients of `x` and of the score vectors.
    // Indices as in the formulas.
    #[allow(clippy::needless_range_loop)]
    fn average_backward(
        &self,
        x: &Sequence,
        vectors: &[f64],
        (weights, averages): (&[Sequence], &Sequence),
        grad: &Sequence,
        (dx, dvectors): (&mut Sequence, &mut [f64]),
    ) {
        let scale = 1.0 / (self.head_width as f64).sqrt();
        for h in 0..self.heads {
            for j in 0..self.tokens {
                let mut slope = 0.0;
                for i in 0..self.tokens {
                    let weight = weights[h][i][j];
                    for c in self.channels(h) {
                        dx[j][c] += weight * grad[i][c];
                        slope += weight * (x[j][c] - averages[i][c]) * grad[i][c];
                    }
                }
                for c in 0..self.width {
                    if let Some(entry) = self.entry(h, c) {
                        dx[j][c] += scale * slope * vectors[entry];
                        dvectors[entry] += scale * slope * x[j][c];
                    }
                }
            }
        }
    }

    fn forward(&self, q: Sequence, k: Sequence, v: Sequence, sees: Sees) -> Pass {
        let [mut alpha, mut beta] = [(); 2].map(|()| vec![Sequence::new(); self.heads]);
        let global_query = self.average(&q, self.w_q, sees, |h, weights| alpha[h].push(weights));
        let gated = product(&global_query, &k);
        let global_key = self.average(&gated, self.w_k, sees, |h, weights| beta[h].push(weights));
        let values = product(&global_key, &v);
        Pass { q, k, v, alpha, global_query, gated, beta, global_key, values }
    }
}

/// Element-wise product.
fn product(a: &Sequence, b: &Sequence) -> Sequence {
    a.iter().zip(b).map(|(a, b)| a.iter().zip(b).map(|(a, b)| a * b).collect()).collect()
}

fn sees(mask: &Mask, tokens: usize, b: usize, i: usize, j: usize) -> bool {
    mask.valid_row(b).is_none_or(|real| real[j] != 0) && mask.visible(i, tokens, tokens).contains(&j)
}

/// All channels of batch row `b`.
fn read(shape: &AttentionShape, data: &[f64], b: usize) -> Sequence {
    let rows: Vec<Rows> = (0..shape.heads).map(|h| shape.query_rows(b, h)).collect();
    (0..shape.queries).map(|i| rows.iter().flat_map(|rows| rows.row(data, i)).copied().collect()).collect()
}

/// Weights `alpha` of the global query and `beta` of the global key of head `h` of batch row `b`, for inputs that
/// [`Additive`](crate::Additive) has checked.
pub fn weights<'a>(
    shape: AttentionShape,
    mask: &'a Mask,
    scores: AdditiveScores,
    inputs: &[View<'a, f64>],
    b: usize,
    h: usize,
) -> [Weights<'a>; 2] {
    let setting = Setting::new(&shape, scores, inputs);
    let tokens = setting.tokens;
    let sees = move |i: usize, j: usize| sees(mask, tokens, b, i, j);
    let [q, k] = [0, 1].map(|input| read(&shape, inputs[input].data, b));
    let gated = product(&setting.average(&q, setting.w_q, &sees, |_, _| {}), &k);
    let of_queries = setting.scores(&q, setting.w_q, h);
    let of_keys = setting.scores(&gated, setting.w_k, h);
    [(Averaged::Queries, of_queries), (Averaged::Keys, of_keys)]
        .map(|(averaged, scores)| Weights::new(averaged, [tokens; 2], move |i| setting.weights(&scores, i, &sees)))
}

/// The twin of [`Additive`](crate::Additive), for inputs that it has checked.
pub fn additive(
    shape: &AttentionShape,
    mask: &Mask,
    scores: AdditiveScores,
    inputs: &[View<f64>],
    grad_out: Option<&[f64]>,
) -> Reference {
    let setting = Setting::new(shape, scores, inputs);
    let Setting { tokens, heads, width, .. } = setting;
    let shared = inputs.len() == 5;
    let mut out = vec![0.0; shape.batch * tokens * width];
    let mut grads: Vec<Vec<f64>> = match grad_out {
        Some(_) => inputs.iter().map(|input| vec![0.0; input.data.len()]).collect(),
        None => Vec::new(),
    };
    for b in 0..shape.batch {
        let sees = |i: usize, j: usize| sees(mask, tokens, b, i, j);
        let rows: Vec<Rows> = (0..heads).map(|h| shape.query_rows(b, h)).collect();
        let read = |data: &[f64]| read(shape, data, b);
        let v = if shared { inputs[0].data } else { inputs[2].data };
        let pass = setting.forward(read(inputs[0].data), read(inputs[1].data), read(v), &sees);
        let seeing: Vec<usize> = (0..tokens).filter(|&i| (0..tokens).any(|j| sees(i, j))).collect();
        for &i in &seeing {
            let out = &mut out[(b * tokens + i) * width..][..width];
            for (c, out) in out.iter_mut().enumerate() {
                let projected: f64 = (0..width).map(|e| pass.values[i][e] * setting.w_t[e * width + c]).sum();
                *out = projected + pass.q[i][c];
            }
        }
        let Some(grad_out) = grad_out else { continue };

        let zeros = || vec![vec![0.0; width]; tokens];
        let (mut dq, mut dvalues) = (zeros(), zeros());
        let [.., dw_q, dw_k, dw_t] = &mut grads[..] else { unreachable!("three parameters come last") };
        for &i in &seeing {
            let grad = &grad_out[(b * tokens + i) * width..][..width];
            dq[i].copy_from_slice(grad);
            for e in 0..width {
                for c in 0..width {
                    dvalues[i][e] += grad[c] * setting.w_t[e * width + c];
                    dw_t[e * width + c] += pass.values[i][e] * grad[c];
                }
            }
        }
        let dv = product(&dvalues, &pass.global_key);
        let dglobal_key = product(&dvalues, &pass.v);
        let mut dgated = zeros();
        let averages = (&pass.beta[..], &pass.global_key);
        setting.average_backward(&pass.gated, setting.w_k, averages, &dglobal_key, (&mut dgated, dw_k));
        let dk = product(&dgated, &pass.global_query);
        let dglobal_query = product(&dgated, &pass.k);
        let averages = (&pass.alpha[..], &pass.global_query);
        setting.average_backward(&pass.q, setting.w_q, averages, &dglobal_query, (&mut dq, dw_q));

        let mut add = |input: usize, gradient: &Sequence| {
            for (h, rows) in rows.iter().enumerate() {
                for (i, gradient) in gradient.iter().enumerate() {
                    let to = rows.row_mut(&mut grads[input], i);
                    for (to, &from) in to.iter_mut().zip(&gradient[setting.channels(h)]) {
                        *to += from;
                    }
                }
            }
        };
        add(0, &dq);
        add(1, &dk);
        add(if shared { 0 } else { 2 }, &dv);
    }
    Reference { out, lse: None, grads }
}
