//! Cosine attention: Henry et al. 2020, with a scale per head (Liu et al. 2022).

use super::{
    row::dot,
    softmax::{row, sizes, softmax},
};
use crate::{Averaged, Reference, View, Weights, mechanisms::Cosine, mechanisms::cosine::SHORTEST};

/// `s_ij = e^log_scale_h q_i.k_j / (|q_i| |k_j|)`, `A = softmax_j(s)`, `out_i = sum_j A_ij v_j`, and all its gradients: those of
/// softmax attention of `u = e^log_scale q / |q|` and `w = k / |k|`, and from there `dq = e^log_scale / |q| (du - q (q.du) / |q|^2)`,
/// likewise `dk`, and `dlog_scale_h = sum_bi u_i.du_i`.
///
/// `inputs` are `q k v log_scale` in the operator's layout. Gradients are empty without `grad_out`.
///
/// # Panics
/// If the shapes do not fit together: `Operator::out_shape` says why.
pub fn cosine(op: &Cosine, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
    let scale = |row: usize| inputs[3].data[op.head(inputs[0].shape, row)].exp();
    let (q, k) = (directions(inputs[0], scale), directions(inputs[1], |_| 1.0));
    let directed = [View::new(&q, inputs[0].shape), View::new(&k, inputs[1].shape), inputs[2]];
    let mut reference = softmax(&op.softmax(), &directed, grad_out);
    if grad_out.is_none() {
        return reference;
    }
    let width = inputs[0].shape[3];
    let mut of_scale = vec![0.0; inputs[3].data.len()];
    for (row, (u, du)) in q.chunks_exact(width).zip(reference.grads[0].chunks_exact(width)).enumerate() {
        of_scale[op.head(inputs[0].shape, row)] += dot(u, du);
    }
    reference.grads[0] = project(inputs[0], &reference.grads[0], scale);
    reference.grads[1] = project(inputs[1], &reference.grads[1], |_| 1.0);
    reference.grads.push(of_scale);
    reference
}

/// The weights `A` of head `h` of batch row `b`.
///
/// # Panics
/// If the shapes do not fit together: `Operator::out_shape` says why.
pub fn weights<'a>(op: &'a Cosine, inputs: &[View<'a, f64>], b: usize, h: usize) -> Weights<'a> {
    let scale = |row: usize| inputs[3].data[op.head(inputs[0].shape, row)].exp();
    let (q, k) = (directions(inputs[0], scale), directions(inputs[1], |_| 1.0));
    let (softmax, [q_shape, k_shape], v) = (op.softmax(), [inputs[0].shape, inputs[1].shape], inputs[2]);
    let shape = sizes(&softmax, inputs);
    Weights::new(Averaged::Values, [shape.queries, shape.keys], move |i| {
        row(&softmax, &[View::new(&q, q_shape), View::new(&k, k_shape), v], &shape, [b, h, i])
    })
}

fn length(x: &[f64]) -> f64 {
    dot(x, x).sqrt().max(SHORTEST)
}

/// The rows of `x`, each normalised and multiplied by the scale for its index.
fn directions(x: View<f64>, scale: impl Fn(usize) -> f64) -> Vec<f64> {
    let rows = x.data.chunks_exact(x.shape[x.shape.len() - 1]).enumerate();
    rows.flat_map(|(row, x)| x.iter().map(|c| scale(row) * c / length(x)).collect::<Vec<_>>()).collect()
}

/// The gradients of rows `x` from those of their directions.
fn project(x: View<f64>, grad: &[f64], scale: impl Fn(usize) -> f64) -> Vec<f64> {
    let width = x.shape[x.shape.len() - 1];
    let rows = x.data.chunks_exact(width).zip(grad.chunks_exact(width)).enumerate();
    let projected = |(row, (x, grad)): (usize, (&[f64], &[f64]))| {
        let length = length(x);
        let along = if length > SHORTEST { dot(x, grad) / (length * length) } else { 0.0 };
        x.iter().zip(grad).map(|(x, g)| scale(row) / length * (g - along * x)).collect::<Vec<_>>()
    };
    rows.flat_map(projected).collect()
}
