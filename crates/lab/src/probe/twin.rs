//! The float64 twin of an untrained decoder, for softmax attention, built from the twins of its operators.

use std::sync::Arc;

use regard_kernels::{
    Call, Error, Layout, Mechanism, Operator, View,
    elementwise::{Activation, Affine, Curve, LayerNorm},
};
use regard_nn::models::named_parameters;

use super::{
    decoder::{Decoder, EPSILON, Layer, host},
    tally::{Quantity, Tally},
};

/// Moments of `sequences` sequences of the decoder, in float64 with the same random weights. Slow: for small sizes.
///
/// # Errors
/// A mechanism other than softmax, options that do not fit the sizes.
pub fn twin(decoder: &Decoder, sequences: usize) -> Result<Tally, Error> {
    let mechanism = decoder.attention.mechanism;
    if mechanism != Mechanism::Softmax {
        return Err(Error::option("mechanism", mechanism, "softmax in double precision"));
    }
    let mut tally = Tally::default();
    let mut x = widened(decoder.inputs(0, sequences));
    for number in 1..=decoder.layers {
        x = layer(decoder, &decoder.layer(number)?, number, x, &mut tally)?;
    }
    Ok(tally)
}

fn layer(decoder: &Decoder, layer: &Layer, number: usize, x: Vec<f64>, tally: &mut Tally) -> Result<Vec<f64>, Error> {
    let (tokens, width) = (decoder.length, decoder.width);
    let batch = x.len() / (tokens * width);
    let (axes, shape) = (decoder.axes(batch), [batch, tokens, width]);
    let parameters = named_parameters(&layer.attention);
    let weight = |name: &str| {
        let found = parameters.iter().find(|parameter| parameter.name == name);
        let found = found.expect("softmax has four projections");
        ([found.shape[0], found.shape[1]], widened(found.values.clone()))
    };
    let norm = |x: &[f64]| {
        let (unit, zero) = (vec![1.0; width], vec![0.0; width]);
        run(&LayerNorm { epsilon: EPSILON }, &[(x, &shape), (&unit, &[width]), (&zero, &[width])])
    };
    let linear = |x: &[f64], (shape, values): &([usize; 2], Vec<f64>)| {
        run(&Affine { bias: false }, &[(x, &[batch, tokens, shape[0]]), (values, shape)])
    };
    let normal = norm(&x);
    let [q, k, v] = ["w_q", "w_k", "w_v"].map(|name| linear(&normal, &weight(name)));
    let (heads, key_heads) = (decoder.attention.heads, decoder.attention.key_heads());
    let head_width = q.len() / (batch * tokens * heads);
    for (quantity, values) in [(Quantity::Query, &q), (Quantity::Key, &k), (Quantity::Value, &v)] {
        tally.add(number, quantity, values, axes);
    }
    if decoder.attention.window.is_none() {
        tally.add_logits(number, (&q, &k), axes, [heads, key_heads, head_width], decoder.attention.causal);
    }
    let call = Call { layout: Layout::TokenFirst, mask: decoder.attention.mask(), ..Call::default() };
    let attention: Arc<dyn Operator> = decoder.attention.operator(call)?;
    let [own, shared] = [heads, key_heads].map(|heads| [batch, tokens, heads, head_width]);
    let joined = run(attention.as_ref(), &[(&q, &own), (&k, &shared), (&v, &shared)]);
    tally.add(number, Quantity::Heads, &joined, axes);
    let out = linear(&joined, &weight("w_o"));
    tally.add(number, Quantity::Attention, &out, axes);
    let y: Vec<f64> = x.iter().zip(&out).map(|(x, out)| x + out).collect();
    tally.add(number, Quantity::Residual, &y, axes);
    let z = norm(&y);
    tally.add(number, Quantity::Normalised, &z, axes);
    let next = match layer.feed_forward.clone() {
        Some([first, second]) => {
            let matrix = |x: burn::tensor::Tensor<2>| (x.dims(), widened(host(x)));
            let hidden = linear(&z, &matrix(first));
            let hidden_shape = [batch, tokens, hidden.len() / (batch * tokens)];
            let gelu = Activation { curve: Curve::Gelu, bias: false };
            let hidden = run(&gelu, &[(&hidden, &hidden_shape)]);
            let more = linear(&hidden, &matrix(second));
            y.iter().zip(&more).map(|(y, more)| y + more).collect()
        }
        None => y,
    };
    tally.add(number, Quantity::Output, &next, axes);
    tally.add_neighbours(number, &next, axes);
    Ok(next)
}

fn run(operator: &dyn Operator, inputs: &[(&[f64], &[usize])]) -> Vec<f64> {
    let views: Vec<View<f64>> = inputs.iter().map(|(data, shape)| View::new(data, shape)).collect();
    operator.reference(&views, None).out
}

fn widened(values: Vec<f32>) -> Vec<f64> {
    values.into_iter().map(f64::from).collect()
}
