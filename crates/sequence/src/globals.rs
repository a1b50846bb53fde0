//! Global tokens of Longformer: their keys go to all ranks, and so do their queries, for which every rank attends to its own
//! keys; their owners merge the answers.

use std::ops::Range;

use regard_cluster::ClusterError;
use regard_kernels::{AttentionShape, Operator, Softmax, View};

use crate::{
    band::Band,
    halo::{Fetch, local},
    part::{Part, add},
    pieces::{out_axis, part_of},
    rows::{Rows, Scales},
    wire::Tag,
};

impl Band {
    /// Exact attention of a run of queries to a run of keys.
    fn exact(&self, queries: &Range<usize>, keys: &Range<usize>) -> Softmax {
        let totals = [self.queries.total(), self.fetch.keys.total()];
        let mask = part_of(&self.operator.mask, totals, queries, keys);
        Softmax { layout: self.operator.layout, mask, scale: self.operator.scale, ..Softmax::default() }
    }

    /// How the global tokens are fetched by all.
    pub(crate) fn globals(&self) -> Fetch {
        Fetch { held: vec![0..self.globals; self.peers().ranks()], tag: Tag::Globals, ..self.fetch.clone() }
    }

    /// Adds the global keys, and replaces the rows of global queries.
    pub(crate) fn forward_globals(
        &self,
        inputs: &[View<f32>],
        shape: &AttentionShape,
        rows: &mut Rows,
    ) -> Result<(), ClusterError> {
        let (axis, all) = (self.axis(), 0..self.globals);
        let own = [inputs[1], inputs[2], inputs[0]];
        let fetched = self.globals().gather(&own, &[axis; 3])?;
        let views = [inputs[0], fetched[0].view(), fetched[1].view()];
        let mut more = vec![0.0; rows.out.len()];
        let scales = Scales::of(&self.exact(self.own(), &all).forward(&views, &mut more));
        rows.merge(shape, &Rows { out: more, scales });

        // Every rank attends for the global queries to its own keys, and their owners merge.
        let keys = &self.fetch.keys.of(self.rank())[0];
        let views = [fetched[2].view(), inputs[1], inputs[2]];
        let queries = AttentionShape { queries: self.globals, keys: keys.len(), ..*shape };
        let mut part = Part::zeros(&queries.out_shape());
        let scales = Scales::of(&self.exact(&all, keys).forward(&views, &mut part.data));
        let part = Answers { out: part, scales };
        for to in self.peers().others().filter(|to| !self.globals().shared(*to, 0).is_empty()) {
            let answers = part.cut(&queries, &self.globals().shared(to, 0));
            self.peers().send(to, Tag::Globals, answers.parts())?;
        }
        let mine = self.globals().shared(self.rank(), 0);
        if mine.is_empty() {
            return Ok(());
        }
        let few = AttentionShape { queries: mine.len(), ..queries };
        let mut total: Option<Rows> = None;
        for from in 0..self.peers().ranks() {
            let answers = match from == self.rank() {
                true => part.cut(&queries, &mine),
                false => Answers::from(&few, self.peers().receive(from, Tag::Globals)?),
            };
            let more = Rows { out: answers.out.data, scales: answers.scales };
            match &mut total {
                None => total = Some(more),
                Some(total) => total.merge(&few, &more),
            }
        }
        let total = total.expect("one rank at least");
        let place = local(&mine, self.own().start);
        let mut out = Part { data: std::mem::take(&mut rows.out), shape: shape.out_shape() };
        out.put(axis, &place, &total.out);
        rows.out = out.data;
        put_rows(&mut rows.scales.tops, shape.queries, &place, &total.scales.tops);
        put_rows(&mut rows.scales.inverses, shape.queries, &place, &total.scales.inverses);
        Ok(())
    }

    /// Adds the gradients through global keys and of global queries. `scales` are those of all rows, then those without
    /// global queries.
    pub(crate) fn backward_globals(
        &self,
        inputs: &[View<f32>],
        shape: &AttentionShape,
        (out, all_scales, scales): (&[f32], &Scales, &Scales),
        grad_out: &[f32],
        [q, k, v]: [&mut Part; 3],
    ) -> Result<(), ClusterError> {
        let (axis, all) = (self.axis(), 0..self.globals);
        let globals = self.globals();
        let own = [inputs[1], inputs[2], inputs[0]];
        let fetched = globals.gather(&own, &[axis; 3])?;
        let views = [inputs[0], fetched[0].view(), fetched[1].view()];
        let mut grads = self.exact(self.own(), &all).backward(&views, out, &scales.saved(), grad_out, &[true; 3]);
        add(&mut q.data, &grads[0].take().expect("asked for"));
        let of_keys =
            [1, 2].map(|n| Part { data: grads[n].take().expect("asked for"), shape: fetched[n - 1].shape.clone() });
        let returned = globals.give_back(of_keys.into(), &[axis; 2])?;
        add(&mut k.data, &returned[0].data);
        add(&mut v.data, &returned[1].data);

        // Outputs, denominators and output gradients of the global queries, from their owners to all.
        let out_shape = shape.out_shape();
        let [out, grad_out] = [out, grad_out].map(|data| Part { data: data.to_vec(), shape: out_shape.clone() });
        let answers = Answers { out, scales: all_scales.clone() };
        let mine = globals.shared(self.rank(), 0);
        let place = if mine.is_empty() { 0..0 } else { local(&mine, self.own().start) };
        for to in self.peers().others().filter(|_| !mine.is_empty()) {
            let (answers, grad) = (answers.cut(shape, &place), Part::cut(&grad_out.view(), axis, &place));
            self.peers().send(to, Tag::Globals, answers.parts().into_iter().chain([&grad.data[..]]))?;
        }
        let keys = &self.fetch.keys.of(self.rank())[0];
        let queries = AttentionShape { queries: self.globals, keys: keys.len(), ..*shape };
        let mut grad = Part::zeros(&queries.out_shape());
        let mut asked = Answers { out: Part::zeros(&queries.out_shape()), scales: Scales::default() };
        let count = shape.batch * shape.heads * self.globals;
        asked.scales = Scales { tops: vec![0.0; count], inverses: vec![0.0; count] };
        for owner in (0..self.peers().ranks()).filter(|owner| !globals.shared(*owner, 0).is_empty()) {
            let range = globals.shared(owner, 0);
            let few = AttentionShape { queries: range.len(), ..queries };
            let (one, of_one) = match owner == self.rank() {
                true => (answers.cut(shape, &place), Part::cut(&grad_out.view(), axis, &place).data),
                false => {
                    let mut data = self.peers().receive(owner, Tag::Globals)?;
                    let of_one = data.split_off(data.len() - few.out_shape().iter().product::<usize>());
                    (Answers::from(&few, data), of_one)
                }
            };
            asked.out.put(axis, &range, &one.out.data);
            grad.put(axis, &range, &of_one);
            put_rows(&mut asked.scales.tops, self.globals, &range, &one.scales.tops);
            put_rows(&mut asked.scales.inverses, self.globals, &range, &one.scales.inverses);
        }
        let views = [fetched[2].view(), inputs[1], inputs[2]];
        let saved = asked.scales.saved();
        let mut grads = self.exact(&all, keys).backward(&views, &asked.out.data, &saved, &grad.data, &[true; 3]);
        add(&mut k.data, &grads[1].take().expect("asked for"));
        add(&mut v.data, &grads[2].take().expect("asked for"));
        let of_queries = Part { data: grads[0].take().expect("asked for"), shape: fetched[2].shape.clone() };
        let returned = globals.give_back(vec![of_queries], &[axis])?;
        add(&mut q.data, &returned[0].data);
        Ok(())
    }
}

/// Outputs of some queries with their denominators.
#[derive(Clone, Debug)]
struct Answers {
    out: Part,
    scales: Scales,
}

impl Answers {
    /// Those of the queries at `place`, for a call of this shape.
    fn cut(&self, shape: &AttentionShape, place: &Range<usize>) -> Self {
        let of = |rows: &[f32]| rows.chunks_exact(shape.queries).flat_map(|row| &row[place.clone()]).copied().collect();
        let scales = Scales { tops: of(&self.scales.tops), inverses: of(&self.scales.inverses) };
        Self { out: Part::cut(&self.out.view(), out_axis(shape.layout), place), scales }
    }

    fn parts(&self) -> [&[f32]; 3] {
        [&self.out.data, &self.scales.tops, &self.scales.inverses]
    }

    /// From one message.
    fn from(shape: &AttentionShape, mut data: Vec<f32>) -> Self {
        let rows = shape.batch * shape.heads * shape.queries;
        let inverses = data.split_off(data.len() - rows);
        let tops = data.split_off(data.len() - rows);
        Self { out: Part { data, shape: shape.out_shape() }, scales: Scales { tops, inverses } }
    }
}

/// Replaces the scalars of the queries at `place` in `[B,H,N]`.
pub(crate) fn put_rows(rows: &mut [f32], queries: usize, place: &Range<usize>, from: &[f32]) {
    for (row, from) in rows.chunks_exact_mut(queries).zip(from.chunks_exact(place.len())) {
        row[place.clone()].copy_from_slice(from);
    }
}
