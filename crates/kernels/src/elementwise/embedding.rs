//! Table lookup by index.

use std::sync::Arc;

use super::{for_blocks, rows_per_block};
use crate::{
    Error, Operator, Reference, Saved, View,
    simd::{add_scaled, vectorize},
};

/// `out[b, t] = table[ids[b, t]]`. Input `table [vocabulary, width]`, output `[batch, tokens, width]`.
#[derive(Clone, Debug)]
pub struct Embedding {
    ids: Arc<[i32]>,
    batch: usize,
    tokens: usize,
}

impl Embedding {
    /// `ids [batch, tokens]`, row-major.
    pub fn new(ids: Arc<[i32]>, batch: usize, tokens: usize) -> Self {
        Self { ids, batch, tokens }
    }

    /// Positions in the batch grouped by id, in order within each group, and the start of each group.
    fn places_by_id(&self, vocabulary: usize) -> (Vec<u32>, Vec<usize>) {
        let mut starts = vec![0; vocabulary + 1];
        self.ids.iter().for_each(|&id| starts[id as usize + 1] += 1);
        for id in 0..vocabulary {
            starts[id + 1] += starts[id];
        }
        let mut next = starts.clone();
        let mut places = vec![0; self.ids.len()];
        for (place, &id) in self.ids.iter().enumerate() {
            places[next[id as usize]] = place as u32;
            next[id as usize] += 1;
        }
        (places, starts)
    }
}

impl Operator for Embedding {
    fn inputs(&self) -> Vec<&'static str> {
        vec!["table"]
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        let &[vocabulary, width] = shapes[0] else { return Err(Error::rank("table", shapes[0], 2)) };
        if self.ids.len() != self.batch * self.tokens || u32::try_from(self.ids.len()).is_err() {
            let expected = format!("{} x {}, below 2^32", self.batch, self.tokens);
            return Err(Error::option("number of ids", self.ids.len(), expected));
        }
        let fits = |id: i32| usize::try_from(id).is_ok_and(|id| id < vocabulary);
        if let Some(place) = self.ids.iter().position(|&id| !fits(id)) {
            return Err(Error::option(format!("id {place}"), self.ids[place], format!("one in 0..{vocabulary}")));
        }
        Ok(vec![self.batch, self.tokens, width])
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        let (table, width) = (inputs[0].data, inputs[0].shape[1]);
        let tall = rows_per_block(width);
        for_blocks(self.ids.len().div_ceil(tall), [(out, tall * width)], |block, [out]| {
            for (row, &id) in out.chunks_exact_mut(width.max(1)).zip(&self.ids[block * tall..]) {
                row.copy_from_slice(&table[id as usize * width..][..width]);
            }
        });
        Saved::new()
    }

    fn backward(
        &self,
        inputs: &[View<f32>],
        _out: &[f32],
        _saved: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        if !wanted[0] {
            return vec![None];
        }
        let &[vocabulary, width] = inputs[0].shape else { unreachable!("a matrix") };
        let (places, starts) = self.places_by_id(vocabulary);
        let mut grad = vec![0.0; vocabulary * width];
        // Few ids per task: in text, a few ids occupy most positions.
        const IDS: usize = 16;
        for_blocks(vocabulary.div_ceil(IDS), [(&mut grad, IDS * width)], |block, [grad]| {
            vectorize(
                #[inline(always)]
                || {
                    for (row, id) in grad.chunks_exact_mut(width).zip(block * IDS..) {
                        for &place in &places[starts[id]..starts[id + 1]] {
                            add_scaled(row, 1.0, &grad_out[place as usize * width..][..width]);
                        }
                    }
                },
            );
        });
        vec![Some(grad)]
    }

    fn reference(&self, inputs: &[View<f64>], grad_out: Option<&[f64]>) -> Reference {
        let (table, width) = (inputs[0].data, inputs[0].shape[1]);
        let out = self.ids.iter().flat_map(|&id| &table[id as usize * width..][..width]).copied().collect();
        let grads = grad_out.into_iter().map(|grad_out| {
            let mut grad = vec![0.0; table.len()];
            for (place, &id) in self.ids.iter().enumerate() {
                (0..width).for_each(|j| grad[id as usize * width + j] += grad_out[place * width + j]);
            }
            grad
        });
        Reference { out, lse: None, grads: grads.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn values_and_gradients_agree_with_the_twin() {
        for (batch, tokens, vocabulary, width) in [(1, 1, 1, 1), (2, 3, 5, 4), (4, 200, 90, 33)] {
            // The square makes small ids frequent and leaves others out.
            let ids = (0..batch * tokens).map(|place| (place * place % vocabulary) as i32).collect();
            let operator = Embedding::new(ids, batch, tokens);
            check::all(&operator, &[check::draw(&[vocabulary, width], 1.0, 7)]);
        }
    }

    #[test]
    fn ids_outside_the_table_are_errors() {
        let check = |ids: &[i32]| Embedding::new(ids.into(), 1, 2).out_shape(&[&[3, 4]]).map_err(|e| e.to_string());
        assert_eq!(check(&[0, 3]).unwrap_err(), "id 1 is 3, expected one in 0..3");
        assert_eq!(check(&[-1, 0]).unwrap_err(), "id 0 is -1, expected one in 0..3");
        assert_eq!(check(&[1]).unwrap_err(), "number of ids is 1, expected 1 x 2, below 2^32");
        assert_eq!(check(&[2, 0]), Ok(vec![1, 2, 4]));
    }
}
