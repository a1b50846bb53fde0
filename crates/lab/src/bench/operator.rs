//! The operator alone, forward and backward, on existing tensors.

use std::sync::Arc;

use burn::tensor::Device;
use regard_kernels::{AttentionOptions, Call, Error, InputSizes, InputSpec, Layout, Operator, Role, View};

use super::{
    Sizes,
    inputs::{Tensor, Tensors},
    on_device::OnDevice,
    workload::{Meter, Run, Trouble, Workload, require_finite},
};

/// An operator with its tensors.
pub(super) struct Problem {
    pub operator: Arc<dyn Operator>,
    pub specs: Vec<InputSpec>,
    pub inputs: Vec<Tensor>,
    pub grad_out: Tensor,
}

impl Problem {
    /// The operator of `options`, which must have sizes and no budget, on tensors of these sizes.
    ///
    /// # Errors
    /// Options that do not fit each other or the sizes.
    pub fn new(options: &AttentionOptions, sizes: Sizes, tensors: &mut Tensors) -> Result<Self, Error> {
        let Sizes { batch, length, head_width, .. } = sizes;
        Self::of(options, &InputSizes::new(Layout::TokenFirst, batch, length, options.heads, head_width), tensors)
    }

    /// The same at any sizes, in any layout.
    ///
    /// # Errors
    /// The same.
    pub fn of(options: &AttentionOptions, sizes: &InputSizes, tensors: &mut Tensors) -> Result<Self, Error> {
        let operator = options.operator(Call { layout: sizes.layout, ..call(options) })?;
        let specs = options.inputs(&*operator, sizes);
        let inputs = specs.iter().map(|spec| tensors.input(spec)).collect::<Result<Vec<_>, _>>()?;
        let shapes: Vec<&[usize]> = specs.iter().map(|spec| spec.shape.as_slice()).collect();
        let grad_out = tensors.gradient(operator.out_shape(&shapes)?);
        Ok(Self { operator, specs, inputs, grad_out })
    }

    /// The operator inputs.
    pub fn views(&self) -> Vec<View<'_, f32>> {
        self.inputs.iter().map(Tensor::view).collect()
    }

    /// The same on a device.
    ///
    /// # Errors
    /// A mechanism that is no operator there.
    pub fn on(&self, options: &AttentionOptions, device: &Device) -> Result<OnDevice, Error> {
        OnDevice::new(options, call(options), &self.specs, &self.inputs, &self.grad_out, device)
    }

    /// Output and gradients.
    pub fn both(&self) -> (Vec<f32>, Vec<Option<Vec<f32>>>) {
        let views = self.views();
        let mut out = vec![f32::NAN; self.grad_out.data.len()];
        let saved = self.operator.forward(&views, &mut out);
        let grads = self.operator.backward(&views, &out, &saved, &self.grad_out.data, &self.wanted());
        (out, grads)
    }

    /// Which inputs have a gradient.
    pub fn wanted(&self) -> Vec<bool> {
        self.specs.iter().map(|spec| spec.role != Role::Constant).collect()
    }
}

/// The call for these options, token first.
pub(super) fn call(options: &AttentionOptions) -> Call {
    Call { layout: Layout::TokenFirst, mask: options.mask(), ..Call::default() }
}

impl Workload for Problem {
    /// Forward and backward pass. The output is allocated before the clock starts, as for a caller that reuses buffers.
    fn run(&mut self, first: bool) -> Result<Run, Trouble> {
        let (views, wanted) = (self.views(), self.wanted());
        let forward = Meter::start();
        let mut out = vec![f32::NAN; self.grad_out.data.len()];
        let clock = std::time::Instant::now();
        let saved = self.operator.forward(&views, &mut out);
        let time = clock.elapsed();
        let bytes = forward.bytes();
        let resumed = std::time::Instant::now();
        let grads = self.operator.backward(&views, &out, &saved, &self.grad_out.data, &wanted);
        let both = time + resumed.elapsed();
        let times = [time, both].map(|time| time.as_secs_f64() * 1e3).to_vec();
        let run = Run { times, bytes: vec![bytes, forward.bytes()] };
        if first {
            // The output was poisoned: this detects rows that were not written.
            require_finite(&out, "the output")?;
            for (spec, grad) in self.specs.iter().zip(&grads) {
                require_finite(grad.iter().flatten(), &format!("the gradient of {}", spec.name))?;
            }
        }
        Ok(run)
    }
}
