//! A common interface to every mechanism: named tensors in, one output and gradients out.
//!
//! The bridge to a framework, the command line's `attend`, the conformance suite and the golden tests access mechanisms
//! only through [`Operator`], so none of them depends on which mechanisms exist.

use std::{borrow::Cow, fmt::Debug, ops::Index};

use crate::{AttentionOptions, Call, Error, Storage, Weights, stored::Stored};

/// A tensor as a contiguous slice and its shape.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T> {
    /// Elements, row-major.
    pub data: &'a [T],
    /// Sizes of the axes.
    pub shape: &'a [usize],
}

impl<'a, T> View<'a, T> {
    /// # Panics
    /// If the length of the data does not match the shape.
    pub fn new(data: &'a [T], shape: &'a [usize]) -> Self {
        assert_eq!(data.len(), shape.iter().product::<usize>(), "data and shape {shape:?} disagree");
        Self { data, shape }
    }
}

/// A contiguous tensor in some storage format.
#[derive(Clone, Copy, Debug)]
pub struct StoredView<'a> {
    /// Elements, row-major.
    pub data: Stored<'a>,
    /// Sizes of the axes.
    pub shape: &'a [usize],
}

/// What a forward pass saves for the backward pass besides its output: buffers in an operator-specific order.
#[derive(Clone, Debug, Default)]
pub struct Saved {
    pub(crate) buffers: Vec<Vec<f32>>,
    has_lse: bool,
}

impl Saved {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The log of the softmax denominator, `[B,H,N]`, as buffer 0, followed by other buffers.
    pub(crate) fn with_lse(lse: Vec<f32>, others: impl IntoIterator<Item = Vec<f32>>) -> Self {
        Self { buffers: [lse].into_iter().chain(others).collect(), has_lse: true }
    }

    /// The log of the softmax denominator, `[B,H,N]`, of mechanisms that have one.
    pub fn lse(&self) -> Option<&[f32]> {
        self.has_lse.then(|| &self.buffers[0][..])
    }

    /// The buffers, for the operator that made them.
    pub fn buffers(&self) -> &[Vec<f32>] {
        &self.buffers
    }

    /// Number of floats in all buffers.
    pub fn floats(&self) -> usize {
        self.buffers.iter().map(Vec::len).sum()
    }
}

impl From<Vec<Vec<f32>>> for Saved {
    fn from(buffers: Vec<Vec<f32>>) -> Self {
        Self { buffers, has_lse: false }
    }
}

impl Index<usize> for Saved {
    type Output = [f32];

    fn index(&self, buffer: usize) -> &[f32] {
        &self.buffers[buffer]
    }
}

/// Result of a float64 twin.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    /// The output, of shape [`Operator::out_shape`].
    pub out: Vec<f64>,
    /// Log of the softmax denominator `[B,H,N]`, where the mechanism has one.
    pub lse: Option<Vec<f64>>,
    /// One gradient per input, in the order of [`Operator::inputs`], with no elements for a constant; empty without an
    /// output gradient.
    pub grads: Vec<Vec<f64>>,
}

/// A differentiable mechanism with its options and mask.
///
/// [`AttentionOptions::operator`](crate::AttentionOptions::operator) builds it for any mechanism; each mechanism also
/// has its own type, such as [`Softmax`](crate::Softmax).
///
/// ```
/// use regard_kernels::{AttentionOptions, Call, Mask, View};
///
/// let call = Call { mask: Mask::causal(), ..Call::default() };
/// let attention = AttentionOptions::default().operator(call)?;
/// assert_eq!(attention.inputs(), ["q", "k", "v"]);
/// assert!(attention.attention().is_some_and(|(_, call)| call.mask == Mask::causal()));
///
/// // One sequence, one head, three tokens, two channels.
/// let (shape, x) = ([1, 1, 3, 2], [0.1f32, 0.2, 0.3, 0.4, 0.5, 0.6]);
/// let inputs = [View::new(&x, &shape); 3];
/// let mut out = vec![0.0; attention.out_shape(&[&shape[..]; 3])?.iter().product()];
/// let saved = attention.forward(&inputs, &mut out);
/// assert_eq!(out[..2], x[..2]); // The first token sees itself alone.
/// assert_eq!(saved.lse().map(<[f32]>::len), Some(3));
///
/// let grads = attention.backward(&inputs, &out, &saved, &[1.0; 6], &[true, true, false]);
/// assert!(grads[0].is_some() && grads[2].is_none());
///
/// // The same in float64.
/// let x = x.map(f64::from);
/// let twin = attention.reference(&[View::new(&x, &shape); 3], Some(&[1.0; 6]));
/// assert!(out.iter().zip(&twin.out).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-6));
/// assert_eq!(twin.grads.len(), 3);
/// # Ok::<(), regard_kernels::Error>(())
/// ```
pub trait Operator: Debug + Send + Sync {
    /// Names of the inputs, in the order used by every other method.
    fn inputs(&self) -> Vec<&'static str>;

    /// Inputs that are random rather than learned, and so have no gradient.
    fn constants(&self) -> &'static [&'static str] {
        &[]
    }

    /// Shape of the output for inputs of these shapes.
    ///
    /// # Errors
    /// Shapes or options that do not fit together.
    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error>;

    /// Fills every element of `out`. Inputs have passed [`Operator::out_shape`].
    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved;

    /// [`Operator::forward`] for inputs that are not all f32, read as they are stored; none where the operator or the processor
    /// does not, and the inputs must be converted first.
    fn forward_stored(&self, _inputs: &[StoredView], _out: &mut [f32]) -> Option<Saved> {
        None
    }

    /// [`Operator::backward`] after [`Operator::forward_stored`]; none where that gave none.
    fn backward_stored(
        &self,
        _inputs: &[StoredView],
        _grad_out: Stored,
        _wanted: &[bool],
    ) -> Option<Vec<Option<Vec<f32>>>> {
        None
    }

    /// Gradients of `sum(out * grad_out)`, one per input: `None` for constants and unless `wanted`.
    fn backward(
        &self,
        inputs: &[View<f32>],
        out: &[f32],
        saved: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>>;

    /// The float64 twin: the same formula, written for readability.
    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference;

    /// The attention weights of query head `head` of batch row `batch`, from the float64 twin, row by row on demand;
    /// none for operators that are not attention.
    ///
    /// Mechanisms that average values give one matrix with `out_i = sum_j W_ij v_j`; a mixture of attention heads gives
    /// that of slot `head`, Fastformer those of its two averages.
    fn weights<'a>(&'a self, _inputs: &[View<'a, f64>], _batch: usize, _head: usize) -> Vec<Weights<'a>> {
        Vec::new()
    }

    /// The inputs as every pass reads them: padded tokens are replaced by zeros if any of them holds an element that is
    /// not finite, or not below 2^40 in magnitude.
    fn silenced<'a>(&self, inputs: &[View<'a, f64>]) -> Vec<Cow<'a, [f64]>> {
        inputs.iter().map(|input| Cow::Borrowed(input.data)).collect()
    }

    /// The options and the call that this operator was built from, for a backend with its own implementation; none for
    /// operators built otherwise.
    fn attention(&self) -> Option<(&AttentionOptions, &Call)> {
        None
    }

    /// A fresh state for decoding token by token, if the mechanism has one with these options. A key-value cache uses
    /// the `storage` format; sums, and the window of keys beside them, are always f32.
    fn decoder(&self, _storage: Storage) -> Option<Box<dyn Decode>> {
        None
    }
}

/// The incremental form of a causal mechanism: one token at a time, with a state instead of a prefix.
///
/// ```
/// use regard_kernels::{Linear, Mask, Operator, Storage, View};
///
/// let attention = Linear { mask: Mask::causal(), ..Linear::default() };
/// let mut decoder = attention.decoder(Storage::F32).expect("causal attention decodes");
/// let (shape, mut out) = ([1, 1, 1, 2], [0.0; 2]);
/// for token in [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]] {
///     decoder.step(&[View::new(&token, &shape); 3], &mut out);
/// }
/// assert!(out[0] > 0.1 && out[0] < 0.5); // A mean of the values so far.
/// assert!(decoder.bytes() > 0);
/// ```
pub trait Decode: Debug + Send {
    /// Takes the next token of every batch row. `inputs` are those of the operator with `N = S = 1`, with its full
    /// parameters (priors, variances, score vectors); fills `out` with the row that the full causal form would give
    /// there.
    ///
    /// # Panics
    /// If the inputs do not hold one token per batch row, their sizes differ from those of the first, or
    /// [`Decode::check`] refuses the token.
    fn step(&mut self, inputs: &[View<f32>], out: &mut [f32]);

    /// Like [`Decode::step`] if the output is not needed, as for all but the last token of a prompt. The content of
    /// `out` afterwards is unspecified.
    fn absorb(&mut self, inputs: &[View<f32>], out: &mut [f32]) {
        self.step(inputs, out);
    }

    /// Batch row `i` continues from the state of row `rows[i]`: rows may be permuted, repeated or dropped, as in a beam
    /// search. Before the first token this does nothing.
    ///
    /// # Panics
    /// If a row does not exist.
    fn reorder(&mut self, rows: &[usize]);

    /// Current size of the state in bytes.
    fn bytes(&self) -> usize;

    /// Whether `tokens` more tokens fit into the state.
    ///
    /// # Errors
    /// Tokens beyond the block layout of the support; other states take any number.
    fn check(&self, _tokens: usize) -> Result<(), Error> {
        Ok(())
    }
}

/// Rearranges `items`, which holds `batch` rows of equal length, into the order of `rows`; see [`Decode::reorder`].
///
/// Each row is moved at its last use: hypotheses that continue without a sibling are not copied.
pub(crate) fn reorder_rows<T: Clone + Default>(items: &mut Vec<T>, batch: usize, rows: &[usize]) {
    if items.is_empty() || rows.iter().copied().eq(0..batch) {
        return;
    }
    let width = items.len() / batch;
    let mut last_uses = vec![0; batch];
    for (at, &row) in rows.iter().enumerate() {
        last_uses[row] = at;
    }
    let mut reordered = Vec::with_capacity(rows.len() * width);
    for (at, &row) in rows.iter().enumerate() {
        let row_items = &mut items[row * width..(row + 1) * width];
        match last_uses[row] == at {
            true => reordered.extend(row_items.iter_mut().map(std::mem::take)),
            false => reordered.extend_from_slice(row_items),
        }
    }
    *items = reordered;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_trade_places_repeat_and_go() {
        let mut items = vec![1, 2, 3, 4, 5, 6];
        reorder_rows(&mut items, 3, &[0, 1, 2]);
        assert_eq!(items, [1, 2, 3, 4, 5, 6]);
        reorder_rows(&mut items, 3, &[2, 0, 2, 2]);
        assert_eq!(items, [5, 6, 1, 2, 5, 6, 5, 6]);
        reorder_rows(&mut items, 4, &[1]);
        assert_eq!(items, [1, 2]);
        reorder_rows(&mut Vec::<u8>::new(), 0, &[3]);
    }
}
