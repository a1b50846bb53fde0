//! State of a layer: that of decoding token by token, and buffers.

use burn::module::RunningState;
use burn::tensor::{Device, Tensor, TensorData};
use regard_kernels::{Decode, View};

/// What a layer keeps of the tokens before.
#[derive(Debug)]
pub struct DecodeState {
    decoder: Box<dyn Decode>,
    position: usize,
}

/// A tensor on the host.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub data: Vec<f32>,
    pub shape: Vec<usize>,
}

impl Host {
    pub fn view(&self) -> View<'_, f32> {
        View::new(&self.data, &self.shape)
    }
}

impl<const D: usize> From<Tensor<D>> for Host {
    fn from(tensor: Tensor<D>) -> Self {
        let shape = tensor.dims().to_vec();
        Self { data: tensor.into_data_as::<f32>().try_to_vec().expect("f32, as asked"), shape }
    }
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

    /// The output, of `shape`, for the next token.
    pub(crate) fn step<const D: usize>(&mut self, inputs: &[Host], shape: [usize; D], device: &Device) -> Tensor<D> {
        let views: Vec<_> = inputs.iter().map(Host::view).collect();
        let mut out = vec![0.0; shape.iter().product()];
        self.decoder.step(&views, &mut out);
        self.position += 1;
        Tensor::from_data(TensorData::new(out, shape), device)
    }
}

/// Sets a buffer at once: [`RunningState`] by itself lags one update behind.
pub(crate) fn set<const D: usize>(buffer: &RunningState<Tensor<D>>, value: Tensor<D>) {
    let device = buffer.value().device();
    buffer.update(value.to_device(&device));
    buffer.value_sync();
}
