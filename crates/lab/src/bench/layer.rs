//! An attention layer with its projections, forward and backward.

use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};
use regard_kernels::{AttentionOptions, Error};
use regard_nn::{
    attention::Attention,
    blocks::{Context, Init, Place},
    models::ModelConfig,
};

use super::{
    Sizes,
    inputs::Tensors,
    workload::{Meter, Run, Trouble, Workload, require_finite},
};

/// Self-attention of a layer as wide as its heads together, in training.
pub(super) struct Layer {
    layer: Attention,
    x: Tensor<3>,
    /// The gradient of the output.
    weights: Tensor<3>,
    context: Context,
}

impl Layer {
    /// # Errors
    /// Options that do not fit each other or the sizes.
    pub fn new(options: &AttentionOptions, sizes: Sizes, seed: u64, tensors: &mut Tensors) -> Result<Self, Error> {
        let Sizes { length, batch, heads, head_width, .. } = sizes;
        let width = heads * head_width;
        let model = ModelConfig { width, head_width: Some(head_width), ..ModelConfig::default() };
        let device = Device::flex().autodiff();
        let layer = Attention::new(&model, options, length, &Init::new(seed, &device))?;
        let shape = [batch, length, width];
        let tensor = |data: &[f32]| Tensor::from_data(TensorData::new(data.to_vec(), shape), &device);
        let x = tensor(&tensors.tokens(shape.to_vec()).data).require_grad();
        let weights = tensor(&tensors.gradient(shape.to_vec()).data);
        Ok(Self { layer, x, weights, context: Context::training(seed, 0) })
    }
}

impl Workload for Layer {
    /// The backward pass begins with the product of output and weights, whose sum has the weights for gradient.
    fn run(&mut self, first: bool) -> Result<Run, Trouble> {
        let mask = self.layer.mask(None);
        let meter = Meter::start();
        let out = self.layer.forward(self.x.clone(), self.x.clone(), &mask, &self.context, Place::Weights);
        let forward = meter.milliseconds();
        let forward_bytes = meter.bytes();
        let seen = first.then(|| out.clone().inner());
        let resumed = Instant::now();
        let grads = (out * self.weights.clone()).sum().backward();
        let both = forward + resumed.elapsed().as_secs_f64() * 1e3;
        let run = Run { times: vec![forward, both], bytes: vec![forward_bytes, meter.bytes()] };
        if first {
            let grad = self.x.grad(&grads);
            for (tensor, what) in [(seen, "the output"), (grad, "the gradient of the input")] {
                let Some(tensor) = tensor else { return Err(Trouble::Other(format!("{what} is missing"))) };
                let data = tensor.into_data_as::<f32>();
                require_finite(data.as_slice::<f32>().expect("f32, as asked"), what)?;
            }
        }
        Ok(run)
    }
}
