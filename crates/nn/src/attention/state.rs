//! State of a layer: that of decoding token by token, and buffers.

use burn::module::RunningState;
use burn::tensor::{Device, Tensor, TensorData};
use regard_kernels::Decode;

use crate::ops::{Host, Inputs};

/// What a layer keeps of the tokens before.
#[derive(Debug)]
pub struct DecodeState {
    decoder: Box<dyn Decode>,
    position: usize,
}

impl DecodeState {
    pub(crate) fn new(decoder: Box<dyn Decode>) -> Self {
        Self { decoder, position: 0 }
    }

    /// Tokens taken so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Bytes that the state holds now.
    pub fn bytes(&self) -> usize {
        self.decoder.bytes()
    }

    /// Batch row `i` goes on from where row `rows[i]` is; see [`Decode::reorder`].
    ///
    /// # Panics
    /// If a row does not exist.
    pub fn reorder(&mut self, rows: &[usize]) {
        self.decoder.reorder(rows);
    }

    /// The output, of `shape`, for the next token, whose inputs are in the order of the operator.
    pub(crate) fn step<const D: usize>(&mut self, inputs: &Inputs, shape: [usize; D], device: &Device) -> Tensor<D> {
        let host: Vec<Host> = inputs.iter().map(|(_, input)| input.into()).collect();
        let views: Vec<_> = host.iter().map(Host::view).collect();
        let mut out = vec![0.0; shape.iter().product()];
        self.decoder.step(&views, &mut out);
        self.position += 1;
        Tensor::from_data(TensorData::new(out, shape), device)
    }

    /// The heads' outputs `[B,1,H,D]` for the next token, of values as wide as its queries.
    pub(crate) fn step_heads(&mut self, inputs: &Inputs) -> Tensor<4> {
        let q = inputs.tensor::<4>("q");
        self.step(inputs, q.dims(), &q.device())
    }
}

/// Sets a buffer at once: [`RunningState`] by itself lags one update behind.
pub(crate) fn set<const D: usize>(buffer: &RunningState<Tensor<D>>, value: Tensor<D>) {
    let device = buffer.value().device();
    buffer.update(value.to_device(&device));
    buffer.value_sync();
}
