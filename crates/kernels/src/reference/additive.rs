//! Additive attention (Fastformer), dense: the weights of every row's two averages as a matrix.

use crate::{AttentionShape, Mask, Reference, Rows, View, mechanism::AdditiveScores};

/// A sequence of rows of all channels, `[N][H*D]`.
type Sequence = Vec<Vec<f64>>;

/// What a forward pass over one batch row computes.
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

impl Setting<'_> {
    /// Channels of head `h`.
    fn channels(&self, h: usize) -> std::ops::Range<usize> {
        h * self.head_width..(h + 1) * self.head_width
    }

    /// Entry of the score vectors that head `h` holds against channel `c`, if it sees that channel.
    fn entry(&self, h: usize, c: usize) -> Option<usize> {
        match self.released {
            true => Some(h * self.width + c),
            false => self.channels(h).contains(&c).then_some(c),
        }
    }

    /// Weights `[H][N][N]` of the average that each row sees, and that average of `x`.
    // Indices as in the formulas.
    #[allow(clippy::needless_range_loop)]
    fn average(&self, x: &Sequence, vectors: &[f64], sees: &dyn Fn(usize, usize) -> bool) -> (Vec<Sequence>, Sequence) {
        let scale = 1.0 / (self.head_width as f64).sqrt();
        let mut averages = vec![vec![0.0; self.width]; self.tokens];
        let mut weights = vec![vec![vec![0.0; self.tokens]; self.tokens]; self.heads];
        for h in 0..self.heads {
            let score = |j: usize| -> f64 {
                (0..self.width).filter_map(|c| self.entry(h, c).map(|e| scale * vectors[e] * x[j][c])).sum()
            };
            let scores: Vec<f64> = (0..self.tokens).map(score).collect();
            for i in 0..self.tokens {
                let seen: Vec<usize> = (0..self.tokens).filter(|&j| sees(i, j)).collect();
                let top = seen.iter().fold(f64::NEG_INFINITY, |top, &j| top.max(scores[j]));
                let denominator: f64 = seen.iter().map(|&j| (scores[j] - top).exp()).sum();
                for &j in &seen {
                    weights[h][i][j] = (scores[j] - top).exp() / denominator;
                    for c in self.channels(h) {
                        averages[i][c] += weights[h][i][j] * x[j][c];
                    }
                }
            }
        }
        (weights, averages)
    }

    /// Given the gradient of the averages, adds those of `x` and of the score vectors.
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

    fn forward(&self, q: Sequence, k: Sequence, v: Sequence, sees: &dyn Fn(usize, usize) -> bool) -> Pass {
        let (alpha, global_query) = self.average(&q, self.w_q, sees);
        let gated = product(&global_query, &k);
        let (beta, global_key) = self.average(&gated, self.w_k, sees);
        let values = product(&global_key, &v);
        Pass { q, k, v, alpha, global_query, gated, beta, global_key, values }
    }
}

/// Element by element.
fn product(a: &Sequence, b: &Sequence) -> Sequence {
    a.iter().zip(b).map(|(a, b)| a.iter().zip(b).map(|(a, b)| a * b).collect()).collect()
}

/// The twin of [`Additive`](crate::Additive), for inputs that it has checked.
pub fn additive(
    shape: &AttentionShape,
    mask: &Mask,
    scores: AdditiveScores,
    inputs: &[View<f64>],
    grad_out: Option<&[f64]>,
) -> Reference {
    let (tokens, heads, head_width) = (shape.queries, shape.heads, shape.head_width);
    let width = heads * head_width;
    let shared = inputs.len() == 5;
    let parameters = &inputs[inputs.len() - 3..];
    let setting = Setting {
        tokens,
        heads,
        head_width,
        width,
        released: scores == AdditiveScores::Released,
        w_q: parameters[0].data,
        w_k: parameters[1].data,
        w_t: parameters[2].data,
    };
    let mut out = vec![0.0; shape.batch * tokens * width];
    let mut grads: Vec<Vec<f64>> = match grad_out {
        Some(_) => inputs.iter().map(|input| vec![0.0; input.data.len()]).collect(),
        None => Vec::new(),
    };
    for b in 0..shape.batch {
        let real = |j: usize| mask.valid_row(b).is_none_or(|real| real[j] != 0);
        let sees = |i: usize, j: usize| real(j) && mask.visible(i, tokens, tokens).contains(&j);
        let rows: Vec<Rows> = (0..heads).map(|h| shape.query_rows(b, h)).collect();
        let read = |data: &[f64]| -> Sequence {
            (0..tokens).map(|i| rows.iter().flat_map(|rows| rows.row(data, i)).copied().collect()).collect()
        };
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
