//! Softmax attention, Vaswani et al. 2017, section 3.2.1.

use super::row::{add_scaled, dot, dropout_factors, normalise, score_gradient, visible_keys, weigh};
use crate::{AttentionShape, Reference, Softmax, View};

/// Softmax attention over the keys that each query sees, and all its gradients.
///
/// `s_ij = tau q_i.k_j + bias_ij - slope |j - (i + S - N)|`, `A = softmax_j(s)`, `out_i = sum_j A_ij v_j`. With
/// `G = A * (dO V^T - rowsum(dO * out))`: `dq = tau G K`, `dk = tau G^T Q`, `dv = A^T dO`, `dbias = sum_b G`.
/// Dropout multiplies `A` by 0 or `1 / (1 - rate)` before it meets `V`.
///
/// `inputs` are `q k v [bias]` in the operator's layout; `bias [H,N,S]`. Gradients are empty without `grad_out`.
///
/// # Panics
/// If the shapes do not fit together: `Operator::out_shape` says why.
pub fn softmax(op: &Softmax, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
    let [q, k, v] = [inputs[0], inputs[1], inputs[2]];
    let bias = op.bias.then(|| inputs[3]);
    let shape = AttentionShape::from_tensors(q.shape, k.shape, v.shape, op.layout, false).expect("checked shapes");
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
                let seen = visible_keys(&op.mask, &shape, b, i);
                let pair = |j: usize| (h * queries + i) * keys + j;
                let score = |&j: &usize| {
                    let position = (i + keys) as f64 - queries as f64;
                    let distance = (j as f64 - position).abs();
                    scale * dot(query, k_rows.row(k.data, j)) + bias.map_or(0.0, |bias| bias.data[pair(j)])
                        - op.slopes.as_deref().map_or(0.0, |slopes| f64::from(slopes[h]) * distance)
                };
                let scores: Vec<f64> = seen.iter().map(score).collect();
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
                    if bias.is_some() {
                        grads[3][pair(j)] += g;
                    }
                }
            }
        }
    }
    Reference { out, lse: Some(lse), grads }
}
