//! A whole call over ranks: tensors in and out as one process has them, every rank with all of them.

use regard_kernels::View;

use crate::{SequenceError, SequenceParallel, Split, part::Part, wire::Tag};

/// What one process would compute.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Whole {
    /// The output.
    pub out: Vec<f32>,
    /// The log of the softmax denominators, `[B,H,N]`, of mechanisms that have one.
    pub lse: Option<Vec<f32>>,
    /// One gradient per input, `None` for constants; none without an output gradient.
    pub grads: Vec<Option<Vec<f32>>>,
}

impl SequenceParallel {
    /// Computes a call whose tensors every rank has: each takes its part, then all send each other their results.
    ///
    /// # Errors
    /// Tensors that do not fit, or a rank that has left.
    pub fn whole(&self, inputs: &[View<f32>], grad_out: Option<&View<f32>>) -> Result<Whole, SequenceError> {
        let names = self.inputs();
        let own: Vec<_> = names.iter().zip(inputs).map(|(name, input)| self.cut(name, input)).collect();
        let views: Vec<_> = own.iter().map(|(data, shape)| View::new(data, shape)).collect();
        let shapes: Vec<_> = own.iter().map(|(_, shape)| &shape[..]).collect();
        let out_shape = self.out_shape(&shapes)?;
        let (out, state) = self.forward(&views)?;
        let grads = match grad_out.map(|grad| self.cut("out", grad).0) {
            Some(grad) => self.backward(&views, &out, &state, &grad, &vec![true; views.len()])?,
            None => Vec::new(),
        };
        let joined = grads.into_iter().zip(names).zip(&own).map(|((grad, name), (_, shape))| {
            let Some(grad) = grad else { return Ok(None) };
            let total = self.total(name, &View::new(&grad, shape))?;
            self.join(name, &View::new(&total, shape)).map(Some)
        });
        let grads = joined.collect::<Result<_, SequenceError>>()?;
        let lse = state.lse().map(|chunks| self.join_rows(chunks)).transpose()?;
        Ok(Whole { out: self.join("out", &View::new(&out, &out_shape))?, lse, grads })
    }

    /// The whole of a tensor (of an input by its name, or the output, `out`) from the parts of all ranks, which each pass
    /// their own. Every rank sends its part to every other one.
    ///
    /// # Errors
    /// A rank that has left.
    pub fn join(&self, name: &str, own: &View<f32>) -> Result<Vec<f32>, SequenceError> {
        match self.along(name, own.shape.len()) {
            Some((split, axis)) => self.gather(split, axis, own),
            None => Ok(own.data.to_vec()),
        }
    }

    /// The sum of a gradient over all ranks, for inputs that belong to no token; others are returned as they are.
    ///
    /// # Errors
    /// A rank that has left.
    pub fn total(&self, name: &str, grad: &View<f32>) -> Result<Vec<f32>, SequenceError> {
        match self.along(name, grad.shape.len()) {
            Some(_) => Ok(grad.data.to_vec()),
            None => Ok(self.peers().total(grad.data)?),
        }
    }

    fn gather(&self, split: &Split, axis: usize, own: &View<f32>) -> Result<Vec<f32>, SequenceError> {
        let mut shape = own.shape.to_vec();
        shape[axis] = split.total();
        let mut whole = Part::zeros(&shape);
        for to in self.peers().others() {
            self.peers().send(to, Tag::Total, [own.data])?;
        }
        for rank in 0..self.peers().ranks() {
            let data = match rank == self.peers().rank() {
                true => own.data.to_vec(),
                false => self.peers().receive(rank, Tag::Total)?,
            };
            shape[axis] = split.count(rank);
            for (chunk, place) in split.places(rank) {
                whole.put(axis, &chunk, &Part::cut(&View::new(&data, &shape), axis, &place).data);
            }
        }
        Ok(whole.data)
    }

    /// Scalars of the queries, `[B,H,n]` for each chunk, as `[B,H,N]`.
    fn join_rows(&self, chunks: Vec<Vec<f32>>) -> Result<Vec<f32>, SequenceError> {
        let rank = self.peers().rank();
        let places = self.queries().places(rank);
        let heads = chunks[0].len() / places[0].0.len();
        let mut own = Part::zeros(&[heads, self.queries().count(rank)]);
        places.iter().zip(&chunks).for_each(|((_, place), chunk)| own.put(1, place, chunk));
        self.gather(self.queries(), 1, &own.view())
    }
}
