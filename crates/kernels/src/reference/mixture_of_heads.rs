//! Mixture of attention heads (arXiv 2210.05144, section 3): each part by its own formula.

use super::{
    routing::{expert_outputs, expert_queries, gates},
    softmax::{self, softmax},
};
use crate::{Averaged, MixtureOfHeads, Reference, View, Weights};

/// `y_t = sum_s w_ts softmax(x_t W_q^e K^T / sqrt(D)) V W_o^e` with `e` the expert in slot `s` of token `t`, `K = x_kv W_k`,
/// `V = x_kv W_v`, and all its gradients.
///
/// `inputs` are `x [x_kv] w_gate w_query w_key w_value w_out`. Gradients are empty without `grad_out`.
///
/// # Panics
/// If the shapes do not fit together: `Operator::out_shape` says why.
pub fn mixture_of_heads(op: &MixtureOfHeads, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
    let x = inputs[0];
    let x_kv = if op.cross { inputs[1] } else { x };
    let [w_gate, w_query, w_key, w_value, w_out] = [5, 4, 3, 2, 1].map(|from_end| inputs[inputs.len() - from_end]);
    let sizes = op.sizes(&inputs.iter().map(|input| input.shape).collect::<Vec<_>>()).expect("checked shapes");
    let (batch, n, s, active, width) = (sizes.batch, sizes.queries, sizes.keys, op.active, sizes.head_width);

    let logits = product(x, w_gate);
    let routing = op.routing(&logits, &sizes);
    let weights = gates(&routing, op.gates, &logits, None).out;
    let [k, v] = [w_key, w_value].map(|w| product(x_kv, w));
    let q = expert_queries(&routing, &[x, w_query], None).out;
    let (q_shape, k_shape) = ([batch, n, active, width], [batch, s, 1, width]);
    let attended = [View::new(&q[..], &q_shape), View::new(&k, &k_shape), View::new(&v, &k_shape)];
    let heads = softmax(&op.softmax(), &attended, None).out;
    let weights_shape = [batch, n, active];
    let joined = [View::new(&heads[..], &q_shape), View::new(&weights, &weights_shape), w_out];
    let Reference { out, grads: of_outputs, .. } = expert_outputs(&routing, &joined, grad_out);
    if grad_out.is_none() {
        return Reference { out, ..Reference::default() };
    }
    let [of_heads, of_weights, of_w_out] = of_outputs.try_into().expect("three gradients");
    let [of_q, of_k, of_v] =
        softmax(&op.softmax(), &attended, Some(&of_heads)).grads.try_into().expect("three gradients");
    let [mut of_x, of_w_query] =
        expert_queries(&routing, &[x, w_query], Some(&of_q)).grads.try_into().expect("two gradients");
    let of_logits = &gates(&routing, op.gates, &logits, Some(&of_weights)).grads[0];
    let (more, of_w_gate) = product_gradients(x, w_gate, of_logits);
    add(&mut of_x, &more);
    let (mut of_kv, of_w_key) = product_gradients(x_kv, w_key, &of_k);
    let (more, of_w_value) = product_gradients(x_kv, w_value, &of_v);
    add(&mut of_kv, &more);
    let mut grads = match op.cross {
        true => vec![of_x, of_kv],
        false => {
            add(&mut of_x, &of_kv);
            vec![of_x]
        }
    };
    grads.extend([of_w_gate, of_w_query, of_w_key, of_w_value, of_w_out]);
    Reference { out, lse: None, grads }
}

/// The weights of slot `slot` of batch row `b`: row `i` is that of query `i`'s expert in that slot.
///
/// # Panics
/// If the shapes do not fit together: `Operator::out_shape` says why.
pub fn weights<'a>(op: &MixtureOfHeads, inputs: &[View<'a, f64>], b: usize, slot: usize) -> Weights<'a> {
    let x = inputs[0];
    let x_kv = if op.cross { inputs[1] } else { x };
    let [w_gate, w_query, w_key] = [5, 4, 3].map(|from_end| inputs[inputs.len() - from_end]);
    let sizes = op.sizes(&inputs.iter().map(|input| input.shape).collect::<Vec<_>>()).expect("checked shapes");
    let routing = op.routing(&product(x, w_gate), &sizes);
    let (q, k) = (expert_queries(&routing, &[x, w_query], None).out, product(x_kv, w_key));
    let q_shape = [sizes.batch, sizes.queries, op.active, sizes.head_width];
    let k_shape = [sizes.batch, sizes.keys, 1, sizes.head_width];
    let attention = op.softmax();
    Weights::new(Averaged::Values, [sizes.queries, sizes.keys], move |i| {
        let k = View::new(&k[..], &k_shape);
        let attended = [View::new(&q[..], &q_shape), k, k];
        softmax::row(&attention, &attended, &softmax::sizes(&attention, &attended), [b, slot, i])
    })
}

/// `x w` for rows `x [..,from]` and `w [from,to]`.
pub fn product(x: View<f64>, w: View<f64>) -> Vec<f64> {
    let &[from, to] = w.shape else { unreachable!("a matrix") };
    let row =
        |row: &[f64]| -> Vec<f64> { (0..to).map(|j| (0..from).map(|i| row[i] * w.data[i * to + j]).sum()).collect() };
    x.data.chunks_exact(from).flat_map(row).collect()
}

/// Gradients of `x` and `w` in `x w`.
pub fn product_gradients(x: View<f64>, w: View<f64>, grad_out: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let &[from, to] = w.shape else { unreachable!("a matrix") };
    let (mut of_x, mut of_w) = (vec![0.0; x.data.len()], vec![0.0; w.data.len()]);
    for (row, grad) in grad_out.chunks_exact(to).enumerate() {
        for i in 0..from {
            for j in 0..to {
                of_x[row * from + i] += grad[j] * w.data[i * to + j];
                of_w[i * to + j] += x.data[row * from + i] * grad[j];
            }
        }
    }
    (of_x, of_w)
}

fn add(to: &mut [f64], from: &[f64]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}
