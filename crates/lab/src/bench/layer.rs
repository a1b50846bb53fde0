//! An attention layer with its projections: forward and backward in training, forward only at inference.

use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};
use regard_kernels::{AttentionOptions, Error};
use regard_nn::{
    attention::Attention,
    blocks::{Context, Init, Place},
    device,
    models::ModelConfig,
};

use super::{
    Sizes,
    inputs::{self, Tensors},
    on_device::wait,
    workload::{Meter, Run, Trouble, Workload, require_finite},
};

/// The layer of `options` in a model with the total width of the heads of `sizes`, and tokens `[B,N,d]` for it.
fn build(
    options: &AttentionOptions,
    sizes: Sizes,
    seed: u64,
    tensors: &mut Tensors,
    device: &Device,
) -> Result<(Attention, Tensor<3>), Error> {
    let Sizes { length, batch, heads, head_width, .. } = sizes;
    let width = heads * head_width;
    let model = ModelConfig { width, head_width: Some(head_width), ..ModelConfig::default() };
    let layer = Attention::new(&model, options, length, &Init::new(seed, device))?;
    Ok((layer, on(device, &tensors.tokens(vec![batch, length, width]))))
}

fn on(device: &Device, tensor: &inputs::Tensor) -> Tensor<3> {
    Tensor::from_data(TensorData::new(tensor.data.to_vec(), tensor.shape.clone()), device)
}

/// Fails if an element of `tensor` is not finite.
fn check(tensor: Option<Tensor<3>>, what: &str) -> Result<(), Trouble> {
    let Some(tensor) = tensor else { return Err(Trouble::Other(format!("{what} is missing"))) };
    let data = tensor.into_data_as::<f32>();
    require_finite(data.as_slice::<f32>().expect("f32, as asked"), what)
}

/// Self-attention of a layer in training.
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
        Self::on(&device::chosen(), options, sizes, seed, tensors)
    }

    fn on(
        device: &Device,
        options: &AttentionOptions,
        sizes: Sizes,
        seed: u64,
        tensors: &mut Tensors,
    ) -> Result<Self, Error> {
        let device = device.clone().autodiff();
        let (layer, x) = build(options, sizes, seed, tensors, &device)?;
        let weights = on(&device, &tensors.gradient(x.dims().to_vec()));
        Ok(Self { layer, x: x.require_grad(), weights, context: Context::training(seed, 0) })
    }
}

/// Name of a tensor, its elements on a device and those of the kernels.
type Pair = (&'static str, Vec<f32>, Vec<f64>);

/// Output of a layer on `device` and the gradient of what it reads, each beside those of the kernels of the CPU.
pub(super) fn beside_kernels(
    options: &AttentionOptions,
    sizes: Sizes,
    seed: u64,
    device: &Device,
) -> Result<[Pair; 2], Error> {
    let pass = |device: &Device| {
        let layer = Layer::on(device, options, sizes, seed, &mut Tensors::new(seed))?;
        let mask = layer.layer.mask(None);
        let out = layer.layer.forward(layer.x.clone(), layer.x.clone(), &mask, &layer.context, Place::Weights);
        let grads = (out.clone() * layer.weights.clone()).sum().backward();
        let of_x = layer.x.grad(&grads).expect("the input is tracked");
        let numbers = |tensor: Tensor<3>| tensor.into_data_as::<f32>().try_into_vec::<f32>().expect("f32, as asked");
        Ok([numbers(out), numbers(of_x)])
    };
    let ([out, of_x], [kernel_out, kernel_of_x]) = (pass(device)?, pass(&Device::flex())?);
    let wide = |numbers: Vec<f32>| numbers.into_iter().map(f64::from).collect();
    Ok([("output", out, wide(kernel_out)), ("gradient of x", of_x, wide(kernel_of_x))])
}

impl Workload for Layer {
    /// The backward pass begins with the sum of the product of output and weights, whose gradient is the weights.
    fn run(&mut self, first: bool) -> Result<Run, Trouble> {
        let mask = self.layer.mask(None);
        let meter = Meter::start();
        let device = self.x.device();
        let out = self.layer.forward(self.x.clone(), self.x.clone(), &mask, &self.context, Place::Weights);
        wait(&device)?;
        let forward = meter.milliseconds();
        let forward_bytes = meter.bytes();
        let seen = first.then(|| out.clone().inner());
        let resumed = Instant::now();
        let grads = (out * self.weights.clone()).sum().backward();
        wait(&device)?;
        let both = forward + resumed.elapsed().as_secs_f64() * 1e3;
        let run = Run { times: vec![forward, both], bytes: vec![forward_bytes, meter.bytes()] };
        if first {
            check(seen, "the output")?;
            check(self.x.grad(&grads), "the gradient of the input")?;
        }
        Ok(run)
    }
}

/// Self-attention of a layer at inference.
pub(super) struct Inference {
    layer: Attention,
    x: Tensor<3>,
}

impl Inference {
    /// # Errors
    /// Options that do not fit each other or the sizes.
    pub fn new(options: &AttentionOptions, sizes: Sizes, seed: u64, tensors: &mut Tensors) -> Result<Self, Error> {
        let (layer, x) = build(options, sizes, seed, tensors, &device::chosen())?;
        Ok(Self { layer, x })
    }
}

impl Workload for Inference {
    fn run(&mut self, first: bool) -> Result<Run, Trouble> {
        let mask = self.layer.mask(None);
        let meter = Meter::start();
        let out = self.layer.forward(self.x.clone(), self.x.clone(), &mask, &Context::evaluation(), Place::Weights);
        wait(&self.x.device())?;
        let run = Run { times: vec![meter.milliseconds()], bytes: vec![meter.bytes()] };
        if first {
            check(Some(out), "the output")?;
        }
        Ok(run)
    }
}
