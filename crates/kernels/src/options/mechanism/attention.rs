//! An operator that knows the options it was built from.

use std::{borrow::Cow, fmt, sync::Arc};

use super::{AttentionOptions, Call};
use crate::{Decode, Error, Operator, Reference, Saved, Storage, View, Weights};

/// What [`AttentionOptions::operator`] returns: the kernel with its options and call.
pub(super) struct Attention {
    pub options: AttentionOptions,
    pub call: Call,
    pub kernel: Arc<dyn Operator>,
}

impl fmt::Debug for Attention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kernel.fmt(f)
    }
}

impl Operator for Attention {
    fn inputs(&self) -> Vec<&'static str> {
        self.kernel.inputs()
    }

    fn constants(&self) -> &'static [&'static str] {
        self.kernel.constants()
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        self.kernel.out_shape(shapes)
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        self.kernel.forward(inputs, out)
    }

    fn backward(
        &self,
        inputs: &[View<f32>],
        out: &[f32],
        saved: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        self.kernel.backward(inputs, out, saved, grad_out, wanted)
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        self.kernel.reference(inputs, grad_out)
    }

    fn weights<'a>(&'a self, inputs: &[View<'a, f64>], batch: usize, head: usize) -> Vec<Weights<'a>> {
        self.kernel.weights(inputs, batch, head)
    }

    fn silenced<'a>(&self, inputs: &[View<'a, f64>]) -> Vec<Cow<'a, [f64]>> {
        self.kernel.silenced(inputs)
    }

    fn attention(&self) -> Option<(&AttentionOptions, &Call)> {
        Some((&self.options, &self.call))
    }

    fn decoder(&self, storage: Storage) -> Option<Box<dyn Decode>> {
        self.kernel.decoder(storage)
    }
}
