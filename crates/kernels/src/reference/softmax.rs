//! Softmax attention, Vaswani et al. 2017, section 3.2.1.

use super::row::{add_scaled, dense, dot, dropout_factors, normalise, score_gradient, visible_keys, weigh};
use crate::{AttentionShape, Averaged, Reference, Softmax, View, Weights};

/// Softmax attention over the keys that each query sees, and all its gradients.
///
/// `s_ij = tau q_i.k_j + bias_ij - slope |j - (i + S - N)|`, `A = softmax_j(s)`, `out_i = sum_j A_ij v_j`. With
/// `G = A * (dO V^T - rowsum(dO * out))`: `dq = tau G K`, `dk = tau G^T Q`, `dv = A^T dO`, `dbias = sum_b G`. Dropout
/// multiplies `A` by 0 or `1 / (1 - rate)` before the product with `V`.
///
/// `inputs` are `q k v [bias]` in the operator's layout; `bias [H,N,S]`. Gradients are empty without `grad_out`.
///
/// # Panics
/// If the shapes do not fit together: `Operator::out_shape` says why.
pub fn softmax(op: &Softmax, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
    let [q, k, v] = [inputs[0], inputs[1], inputs[2]];
    let shape = sizes(op, inputs);
    let AttentionShape { batch, heads, queries, keys, .. } = shape;
    let scale = op.scale.unwrap_or(1.0 / (shape.head_width as f64).sqrt());

    let mut out = vec![0.0; batch * heads * queries * shape.value_width];
    let mut lse = vec![0.0; batch * heads * queries];
    let mut grads: Vec<Vec<f64>> = match grad_out {
        Some(_) => inputs.iter().map(|input| vec![0.0; input.data.len()]).collect(),
        None => Vec::new(),
    };

    for b in 0..batch {
        for h in 0..heads {
            let key_head = h / shape.group();
            let (q_rows, out_rows) = (shape.query_rows(b, h), shape.out_rows(b, h));
            let (k_rows, v_rows) = (shape.key_rows(b, key_head, 0), shape.value_rows(b, key_head));
            for i in 0..queries {
                let query = q_rows.row(q.data, i);
                let (seen, scores) = scores(op, inputs, &shape, [b, h, i]);
                let values: Vec<&[f64]> = seen.iter().map(|&j| v_rows.row(v.data, j)).collect();
                let (weights, log_sum) = normalise(&scores);
                let row = (b * heads + h) * queries + i;
                let kept = dropout_factors(op.dropout, row, &seen);
                weigh(&weights, &kept, &values, out_rows.row_mut(&mut out, i));
                lse[row] = log_sum;

                let Some(grad_out) = grad_out else { continue };
                let grad_row = out_rows.row(grad_out, i);
                let grad_scores = score_gradient(&weights, &kept, &values, grad_row);
                for (n, &j) in seen.iter().enumerate() {
                    let g = grad_scores[n];
                    add_scaled(q_rows.row_mut(&mut grads[0], i), scale * g, k_rows.row(k.data, j));
                    add_scaled(k_rows.row_mut(&mut grads[1], j), scale * g, query);
                    add_scaled(v_rows.row_mut(&mut grads[2], j), weights[n] * kept[n], grad_row);
                    if op.bias {
                        grads[3][(h * queries + i) * keys + j] += g;
                    }
                }
            }
        }
    }
    Reference { out, lse: Some(lse), grads }
}

/// The weights `A` of head `h` of batch row `b`.
///
/// # Panics
/// If the shapes do not fit together: `Operator::out_shape` says why.
pub fn weights<'a>(op: &'a Softmax, inputs: &[View<'a, f64>], b: usize, h: usize) -> Weights<'a> {
    let (shape, inputs) = (sizes(op, inputs), inputs.to_vec());
    Weights::new(Averaged::Values, [shape.queries, shape.keys], move |i| row(op, &inputs, &shape, [b, h, i]))
}

/// Row `i` of the weights of head `h` of batch row `b`.
pub(super) fn row(op: &Softmax, inputs: &[View<f64>], shape: &AttentionShape, at: [usize; 3]) -> Vec<f64> {
    let (seen, scores) = scores(op, inputs, shape, at);
    dense(shape.keys, &seen, &normalise(&scores).0)
}

pub(super) fn sizes(op: &Softmax, inputs: &[View<f64>]) -> AttentionShape {
    AttentionShape::from_tensors(inputs[0].shape, inputs[1].shape, inputs[2].shape, op.layout, false)
        .expect("checked shapes")
}

/// Keys visible to query `i` of head `h` of batch row `b`, and its scores for them.
fn scores(op: &Softmax, inputs: &[View<f64>], shape: &AttentionShape, [b, h, i]: [usize; 3]) -> (Vec<usize>, Vec<f64>) {
    let (q, k, bias) = (inputs[0].data, inputs[1].data, op.bias.then(|| inputs[3].data));
    let AttentionShape { queries, keys, .. } = *shape;
    let scale = op.scale.unwrap_or(1.0 / (shape.head_width as f64).sqrt());
    let (query, k_rows) = (shape.query_rows(b, h).row(q, i), shape.key_rows(b, h / shape.group(), 0));
    let score = |&j: &usize| {
        let position = op.mask.position(i, queries, keys) as f64;
        let distance = (j as f64 - position).abs();
        scale * dot(query, k_rows.row(k, j)) + bias.map_or(0.0, |bias| bias[(h * queries + i) * keys + j])
            - op.slopes.as_deref().map_or(0.0, |slopes| f64::from(slopes[h]) * distance)
    };
    let seen = visible_keys(&op.mask, shape, b, i);
    let scores = seen.iter().map(score).collect();
    (seen, scores)
}
