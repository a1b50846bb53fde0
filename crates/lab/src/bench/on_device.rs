//! Operators on devices without kernels.

use std::time::Instant;

use burn::tensor::{Device, Tensor as Numbers, TensorData};
use regard_kernels::{AttentionOptions, Call, Error, InputSpec, Mechanism, Role};
use regard_nn::{
    device,
    ops::{Inputs, Operand, attention, runs_kernels},
};

use super::{
    inputs::Tensor,
    workload::{Run, Trouble, Workload},
};

/// The chosen device, if attention is not a kernel of this library there.
pub(super) fn other_device() -> Option<Device> {
    Some(device::chosen()).filter(|device| !runs_kernels(device))
}

/// Waits until a device has done what it was told.
pub(super) fn wait(device: &Device) -> Result<(), Trouble> {
    device.clone().without_autodiff().sync().map_err(|error| Trouble::Other(error.to_string()))
}

/// An operator with its tensors on a device.
pub(super) struct OnDevice {
    options: AttentionOptions,
    call: Call,
    inputs: Inputs,
    wanted: Vec<bool>,
    /// The gradient of the output, flat.
    grad_out: Numbers<1>,
    device: Device,
}

impl OnDevice {
    /// # Errors
    /// A mixture of heads, which is no operator on tensors here.
    pub fn new(
        options: &AttentionOptions,
        call: Call,
        specs: &[InputSpec],
        inputs: &[Tensor],
        grad_out: &Tensor,
        device: &Device,
    ) -> Result<Self, Error> {
        if options.mechanism == Mechanism::Moa {
            return Err(Error::option(
                "mechanism",
                "moa",
                "another one with --level operator on this device, or --level layer",
            ));
        }
        let device = device.clone().autodiff();
        let wanted: Vec<bool> = specs.iter().map(|spec| spec.role != Role::Constant).collect();
        let mut named = specs
            .iter()
            .zip(inputs)
            .zip(&wanted)
            .map(|((spec, input), tracked)| (spec.name, on(&device, input, *tracked)));
        let (_, q) = named.next().expect("queries come first");
        let inputs = named.fold(Inputs::new(q.into_tensor()), |inputs, (name, input)| inputs.with(name, input));
        let grad_out = flat(on(&device, grad_out, false));
        Ok(Self { options: options.clone(), call, inputs, wanted, grad_out, device })
    }

    /// The output, flat, and the gradients of what has one, in the order of the inputs.
    pub fn both(&self) -> (Vec<f32>, Vec<Option<Vec<f32>>>) {
        let out = self.forward();
        let mut grads = (out.clone() * self.grad_out.clone()).sum().backward();
        let grads = self.inputs.iter().zip(&self.wanted).map(|((_, input), wanted)| {
            let grad = wanted.then(|| input.grad_remove(&mut grads)).flatten()?;
            Some(numbers(flat(grad)))
        });
        (numbers(out.clone()), grads.collect())
    }

    fn forward(&self) -> Numbers<1> {
        match self.options.mechanism {
            Mechanism::Fastformer => attention::<3>(&self.options, self.call.clone(), &self.inputs).flatten(0, 2),
            _ => attention::<4>(&self.options, self.call.clone(), &self.inputs).flatten(0, 3),
        }
    }
}

impl Workload for OnDevice {
    /// Both passes, each until the device has done it. Memory of the device is not known.
    fn run(&mut self, first: bool) -> Result<Run, Trouble> {
        wait(&self.device)?;
        let clock = Instant::now();
        let out = self.forward();
        wait(&self.device)?;
        let forward = clock.elapsed();
        let seen = first.then(|| out.clone());
        let resumed = Instant::now();
        let grads = (out * self.grad_out.clone()).sum().backward();
        wait(&self.device)?;
        let both = forward + resumed.elapsed();
        drop(grads);
        if let Some(out) = seen {
            super::workload::require_finite(&numbers(out), "the output")?;
        }
        Ok(Run { times: [forward, both].map(|time| time.as_secs_f64() * 1e3).to_vec(), bytes: vec![None, None] })
    }
}

fn on(device: &Device, tensor: &Tensor, tracked: bool) -> Operand {
    let data = || TensorData::new(tensor.data.to_vec(), tensor.shape.clone());
    macro_rules! of_rank {
        ($($rank:literal)+) => {
            match tensor.shape.len() {
                $($rank => {
                    let tensor = Numbers::<$rank>::from_data(data(), device);
                    if tracked { tensor.require_grad().into() } else { tensor.into() }
                })+
                rank => unreachable!("an input of {rank} axes"),
            }
        };
    }
    of_rank!(1 2 3 4 5)
}

fn flat(operand: Operand) -> Numbers<1> {
    match operand.axes() {
        1 => operand.into_tensor::<1>(),
        2 => operand.into_tensor::<2>().flatten(0, 1),
        3 => operand.into_tensor::<3>().flatten(0, 2),
        4 => operand.into_tensor::<4>().flatten(0, 3),
        _ => operand.into_tensor::<5>().flatten(0, 4),
    }
}

fn numbers(tensor: Numbers<1>) -> Vec<f32> {
    tensor.into_data_as::<f32>().try_into_vec().expect("f32, as asked")
}
