//! Mixture of attention heads (MoA, arXiv 2210.05144): each token chooses `k` of `E` heads, which share keys and values.

mod decode;
mod through;

use std::{borrow::Cow, convert::Infallible, sync::Arc};

use crate::{
    Decode, Dropout, Error, Layout, Mask, Operator, Padding, Reference, Saved, Softmax, Storage, View, Weights,
    elementwise::Affine,
    memory::arbitrary,
    padding::{Inputs, Number},
    parallel, reference,
    routing::{
        ExpertOutputs, ExpertQueries, GateKind, Gates, RouterCoefficients, RouterLoss, RouterLosses, Routing,
        router_losses,
    },
};
use decode::HeadCache;

/// Inputs `x [x_kv] w_gate w_query w_key w_value w_out`: `x [B,N,d]` for queries, `x_kv [B,S,d]` for keys and values in
/// cross-attention, `w_gate [d,E]`, `w_query [E,d,D]`, `w_key w_value [d,D]`, `w_out [E,D,d]`; the output is `[B,N,d]`.
///
/// With `p = softmax(x w_gate)` and the `k` most probable experts of each token (ties go to the lowest index),
/// `y = sum_i w_i softmax(x W_q^i K^T / sqrt(D)) V W_o^i`. Padded queries choose no expert and output 0.
#[derive(Clone, Debug)]
pub struct MixtureOfHeads {
    /// Attention mask.
    pub mask: Mask,
    /// Active experts per token, `k`.
    pub active: usize,
    /// The weights of the chosen experts.
    pub gates: GateKind,
    /// Whether keys and values come from a separate sequence, `x_kv`.
    pub cross: bool,
    /// Dropout on the attention weights.
    pub dropout: Option<Dropout>,
}

impl Default for MixtureOfHeads {
    fn default() -> Self {
        Self { mask: Mask::none(), active: 1, gates: GateKind::default(), cross: false, dropout: None }
    }
}

/// Sizes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Batch rows `B`.
    pub batch: usize,
    /// Queries `N`.
    pub queries: usize,
    /// Keys `S`.
    pub keys: usize,
    /// Model width `d`.
    pub width: usize,
    /// Experts `E`.
    pub experts: usize,
    /// Head width `D`.
    pub head_width: usize,
}

impl MixtureOfHeads {
    /// Sizes of a call.
    ///
    /// # Errors
    /// Shapes that do not fit together.
    pub fn sizes(&self, shapes: &[&[usize]]) -> Result<Sizes, Error> {
        let names = self.inputs();
        if shapes.len() != names.len() {
            let expected = format!("{}: {}", names.len(), names.join(", "));
            return Err(Error::option("number of input tensors", shapes.len(), expected));
        }
        let &[batch, queries, width] = shapes[0] else { return Err(Error::rank("x", shapes[0], 3)) };
        let keys = match self.cross {
            true => {
                let &[_, keys, _] = shapes[1] else { return Err(Error::rank("x_kv", shapes[1], 3)) };
                Error::check_shape("x_kv", shapes[1], &[batch, keys, width])?;
                keys
            }
            false => queries,
        };
        let [w_gate, w_query, w_key, w_value, w_out] = [5, 4, 3, 2, 1].map(|from_end| shapes[shapes.len() - from_end]);
        let &[_, experts] = w_gate else { return Err(Error::rank("w_gate", w_gate, 2)) };
        Error::check_shape("w_gate", w_gate, &[width, experts])?;
        let &[_, _, head_width] = w_query else { return Err(Error::rank("w_query", w_query, 3)) };
        Error::check_shape("w_query", w_query, &[experts, width, head_width])?;
        Error::check_shape("w_key", w_key, &[width, head_width])?;
        Error::check_shape("w_value", w_value, &[width, head_width])?;
        Error::check_shape("w_out", w_out, &[experts, head_width, width])?;
        for (name, shape) in names.iter().zip(shapes) {
            if shape.contains(&0) {
                return Err(Error::shape(*name, shape, "every size at least 1"));
            }
        }
        if self.active == 0 || self.active > experts {
            let expected = format!("at least 1 and at most {experts}, the number of experts");
            return Err(Error::option("moa.active", self.active, expected));
        }
        let sizes = Sizes { batch, queries, keys, width, experts, head_width };
        let [q, k] = [(self.active, queries), (1, keys)].map(|(heads, tokens)| [batch, tokens, heads, head_width]);
        self.softmax().shape(&[&q, &k, &k])?;
        Ok(sizes)
    }

    fn read<'a, T: Number>(&self, inputs: &[View<'a, T>]) -> Inputs<'a, T> {
        // In cross-attention key padding does not apply to the queries, even if they are equally many.
        let query_valid = self.query_padding().or_else(|| self.mask.valid.as_ref().map(|_| all_real(inputs[0].shape)));
        let mask = Mask { query_valid, ..self.mask.clone() };
        Inputs::new(&self.inputs(), Layout::TokenFirst, &mask, inputs)
    }

    /// Which queries are real.
    fn query_padding(&self) -> Option<Arc<Padding>> {
        match (&self.mask.query_valid, self.cross) {
            (Some(padding), _) => Some(padding.clone()),
            (None, false) => self.mask.valid.clone(),
            (None, true) => None,
        }
    }

    /// The choice of experts for `logits [B,N,E]`.
    pub(crate) fn routing<T: Copy + Into<f64> + Sync>(&self, logits: &[T], sizes: &Sizes) -> Arc<Routing> {
        let shape = [sizes.batch, sizes.queries, sizes.experts];
        Arc::new(Routing::new(logits, shape, self.active, None, self.query_padding()).expect("checked shapes"))
    }

    /// Attention of the chosen heads to the one head of keys and values.
    pub(crate) fn softmax(&self) -> Softmax {
        Softmax { layout: Layout::TokenFirst, mask: self.mask.clone(), dropout: self.dropout, ..Softmax::default() }
    }

    /// The router losses for these inputs.
    ///
    /// # Panics
    /// If the shapes do not fit together.
    pub fn losses(&self, inputs: &[View<f32>]) -> RouterLosses {
        let inputs = self.read(inputs);
        let inputs = inputs.views();
        let parts = Parts::new(self, &inputs, None);
        router_losses(&parts.routing, &parts.logits)
    }

    /// [`MixtureOfHeads::losses`] in float64.
    ///
    /// # Panics
    /// If the shapes do not fit together.
    pub fn reference_losses(&self, inputs: &[View<f64>]) -> RouterLosses {
        let sizes = self.sizes(&inputs.iter().map(|input| input.shape).collect::<Vec<_>>()).expect("checked shapes");
        let inputs = self.read(inputs);
        let inputs = inputs.views();
        let logits = reference::mixture_of_heads::product(inputs[0], inputs[inputs.len() - 5]);
        reference::routing::losses(&self.routing(&logits, &sizes), &logits)
    }

    /// Gradients of the router losses, times `coefficients`, with respect to `x` and `w_gate`.
    ///
    /// # Panics
    /// If the shapes do not fit together.
    pub fn loss_gradients(&self, inputs: &[View<f32>], coefficients: RouterCoefficients) -> [Vec<f32>; 2] {
        let inputs = self.read(inputs);
        let inputs = inputs.views();
        let parts = Parts::new(self, &inputs, None);
        let losses = RouterLoss { routing: parts.routing.clone(), coefficients };
        let (shape, nothing) = (parts.logits_shape(), vec![0.0; parts.logits.len()]);
        let of_logits = losses.backward(&[View::new(&parts.logits, &shape)], &[], &Saved::new(), &nothing, &[true]);
        let [of_logits] = grads(of_logits).map(|grad| grad.expect("wanted"));
        product_gradients(parts.x, parts.w_gate, &of_logits, [true; 2]).map(|grad| grad.expect("wanted"))
    }

    /// [`MixtureOfHeads::loss_gradients`] in float64.
    ///
    /// # Panics
    /// If the shapes do not fit together.
    pub fn reference_loss_gradients(&self, inputs: &[View<f64>], coefficients: RouterCoefficients) -> [Vec<f64>; 2] {
        let sizes = self.sizes(&inputs.iter().map(|input| input.shape).collect::<Vec<_>>()).expect("checked shapes");
        let inputs = self.read(inputs);
        let inputs = inputs.views();
        let (x, w_gate) = (inputs[0], inputs[inputs.len() - 5]);
        let logits = reference::mixture_of_heads::product(x, w_gate);
        let of_logits = reference::routing::loss_gradient(&self.routing(&logits, &sizes), &logits, coefficients);
        reference::mixture_of_heads::product_gradients(x, w_gate, &of_logits).into()
    }
}

/// A call with its logits and routing.
struct Parts<'a> {
    op: &'a MixtureOfHeads,
    sizes: Sizes,
    x: View<'a, f32>,
    x_kv: View<'a, f32>,
    w_gate: View<'a, f32>,
    w_query: View<'a, f32>,
    w_key: View<'a, f32>,
    w_value: View<'a, f32>,
    w_out: View<'a, f32>,
    logits: Cow<'a, [f32]>,
    routing: Arc<Routing>,
}

impl<'a> Parts<'a> {
    /// `logits` if already computed.
    fn new(op: &'a MixtureOfHeads, inputs: &[View<'a, f32>], logits: Option<&'a [f32]>) -> Self {
        let x = inputs[0];
        let sizes = op.sizes(&inputs.iter().map(|input| input.shape).collect::<Vec<_>>()).expect("checked shapes");
        let [w_gate, w_query, w_key, w_value, w_out] = [5, 4, 3, 2, 1].map(|from_end| inputs[inputs.len() - from_end]);
        let logits = logits.map_or_else(|| Cow::Owned(product(x, w_gate)), Cow::Borrowed);
        let routing = op.routing(&logits, &sizes);
        let x_kv = if op.cross { inputs[1] } else { x };
        Self { op, sizes, x, x_kv, w_gate, w_query, w_key, w_value, w_out, logits, routing }
    }

    fn logits_shape(&self) -> [usize; 3] {
        [self.sizes.batch, self.sizes.queries, self.sizes.experts]
    }

    fn weights_shape(&self) -> [usize; 3] {
        [self.sizes.batch, self.sizes.queries, self.op.active]
    }

    fn head_shape(&self) -> [usize; 4] {
        [self.sizes.batch, self.sizes.queries, self.op.active, self.sizes.head_width]
    }

    fn key_shape(&self) -> [usize; 4] {
        [self.sizes.batch, self.sizes.keys, 1, self.sizes.head_width]
    }

    fn gates(&self) -> Gates {
        Gates { routing: self.routing.clone(), kind: self.op.gates }
    }

    /// Weights of the chosen experts, and the queries of their heads.
    fn weights_and_queries(&self) -> (Vec<f32>, Vec<f32>) {
        let weights = run(&self.gates(), &[View::new(&self.logits, &self.logits_shape())]);
        let q = run(&ExpertQueries { routing: self.routing.clone() }, &[self.x, self.w_query]);
        (weights, q)
    }

    fn keys_and_values(&self) -> [Vec<f32>; 2] {
        [self.w_key, self.w_value].map(|w| product(self.x_kv, w))
    }

    /// Fills `out` with the weighted outputs of the chosen heads.
    fn join(&self, heads: &[f32], weights: &[f32], out: &mut [f32]) {
        let (head_shape, weights_shape) = (self.head_shape(), self.weights_shape());
        let inputs = [View::new(heads, &head_shape), View::new(weights, &weights_shape), self.w_out];
        ExpertOutputs { routing: self.routing.clone() }.forward(&inputs, out);
    }
}

impl Operator for MixtureOfHeads {
    fn inputs(&self) -> Vec<&'static str> {
        match self.cross {
            true => vec!["x", "x_kv", "w_gate", "w_query", "w_key", "w_value", "w_out"],
            false => vec!["x", "w_gate", "w_query", "w_key", "w_value", "w_out"],
        }
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        let Sizes { batch, queries, width, .. } = self.sizes(shapes)?;
        Ok(vec![batch, queries, width])
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        let attend = |inputs: &[View<f32>], heads: &mut [f32]| Ok(self.softmax().forward(inputs, heads));
        let saved: Result<_, Infallible> = self.forward_through(inputs, attend, out);
        saved.unwrap_or_else(|never| match never {})
    }

    fn backward(
        &self,
        inputs: &[View<f32>],
        _out: &[f32],
        saved: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        let attend = |inputs: &[View<f32>], heads: &[f32], saved: &Saved, of_heads: &[f32]| {
            Ok(self.softmax().backward(inputs, heads, saved, of_heads, &[true; 3]))
        };
        let grads: Result<_, Infallible> = self.backward_through(inputs, saved, grad_out, attend, wanted);
        grads.unwrap_or_else(|never| match never {})
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        reference::mixture_of_heads::mixture_of_heads(self, &self.read(inputs).views(), grad_out)
    }

    fn silenced<'a>(&self, inputs: &[View<'a, f64>]) -> Vec<Cow<'a, [f64]>> {
        self.read(inputs).into_data()
    }

    fn weights<'a>(&'a self, inputs: &[View<'a, f64>], batch: usize, head: usize) -> Vec<Weights<'a>> {
        vec![reference::mixture_of_heads::weights(self, inputs, batch, head)]
    }

    fn decoder(&self, storage: Storage) -> Option<Box<dyn Decode>> {
        let decodes = self.mask.causal && self.mask.valid.is_none() && self.mask.query_valid.is_none() && !self.cross;
        decodes.then(|| Box::new(HeadCache::new(self, storage)) as Box<dyn Decode>)
    }
}

/// Padding in which every token is real, for tokens of this shape.
fn all_real(shape: &[usize]) -> Arc<Padding> {
    Arc::new(Padding::from_lengths(&vec![shape[1]; shape[0]], shape[1]))
}

/// The output of an operator.
fn run(operator: &dyn Operator, inputs: &[View<f32>]) -> Vec<f32> {
    let shapes: Vec<_> = inputs.iter().map(|input| input.shape).collect();
    let shape = operator.out_shape(&shapes).expect("checked shapes");
    let mut out = arbitrary(shape.iter().product());
    operator.forward(inputs, &mut out);
    out
}

fn product(x: View<f32>, w: View<f32>) -> Vec<f32> {
    run(&Affine { bias: false }, &[x, w])
}

fn product_gradients(x: View<f32>, w: View<f32>, grad_out: &[f32], wanted: [bool; 2]) -> [Option<Vec<f32>>; 2] {
    grads(Affine { bias: false }.backward(&[x, w], &[], &Saved::new(), grad_out, &wanted))
}

fn grads<const N: usize>(grads: Vec<Option<Vec<f32>>>) -> [Option<Vec<f32>>; N] {
    grads.try_into().expect("one gradient an input")
}

/// The sum of two gradients that are both present or both absent.
fn sum(a: Option<Vec<f32>>, b: Option<Vec<f32>>) -> Option<Vec<f32>> {
    a.zip(b).map(|(mut a, b)| {
        parallel::add_copies(&mut a, &b);
        a
    })
}
