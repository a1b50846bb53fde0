//! A band of exact weights and features off it: Performer, local attention, Longformer and Scatterbrain on them.
//!
//! A rank holds its own keys and a halo of the radius. To these it applies the kernel for one process; keys further away
//! are off the support of all its queries and enter by the sums over their features, which go from rank to rank. Global
//! tokens are left out of both, and come by a way of their own.

use std::ops::Range;

use regard_cluster::ClusterError;
use regard_kernels::{
    AttentionShape, Mask, Operator, Padding, Saved, ScaledSums, Scatterbrain, View, support::SupportKind,
};

use crate::{
    Split,
    globals::put_rows,
    halo::{Fetch, local},
    part::{Lent, Part},
    pieces::{out_axis, part_of},
    rows::{Rows, Scales},
    scan::Way,
    wire::{Peers, Tag},
};

/// A call over a whole sequence of as many keys as queries, in contiguous chunks; without features the numbers may differ.
#[derive(Clone, Debug)]
pub(crate) struct Band {
    pub operator: Scatterbrain,
    pub queries: Split,
    pub fetch: Fetch,
    /// First tokens that see and are seen by all.
    pub globals: usize,
}

/// What a forward pass keeps.
#[derive(Clone, Debug)]
pub(crate) struct BandState {
    /// Denominators over all keys.
    scales: Scales,
    /// The state of the kernel over the keys held.
    near: Saved,
    /// Sums over the features of the keys before and after those held.
    far: [Option<ScaledSums>; 2],
}

/// The keys and values that a rank holds, and the rest of the inputs.
struct Near<'a> {
    q: View<'a, f32>,
    held: Vec<Lent<'a>>,
    rest: &'a [View<'a, f32>],
}

impl Near<'_> {
    fn views(&self) -> Vec<View<'_, f32>> {
        let mut views = vec![self.q, self.held[0].view(), self.held[1].view()];
        views.extend(self.rest);
        views
    }
}

impl Band {
    /// `operator` is that of the whole call.
    pub fn new(operator: &Scatterbrain, queries: Split, keys: Split, peers: Peers) -> Self {
        let support = operator.support.as_ref();
        let globals = match operator.kind() {
            SupportKind::Longformer => support.map_or(0, |support| support.globals).min(keys.total()),
            _ => 0,
        };
        let radius = match operator.kind() {
            SupportKind::Local | SupportKind::Longformer => support.map_or(0, |support| support.radius),
            _ => 0,
        };
        let near = Mask { window: Some(radius), ..operator.mask.clone() };
        let reach = |rank: usize| {
            let seen = near.visible_to(queries.of(rank)[0].clone(), queries.total(), keys.total());
            let start = seen.start.min(keys.total() - 1);
            start..seen.end.max(start + 1)
        };
        let held = (0..peers.ranks()).map(reach).collect();
        Self { operator: operator.clone(), queries, fetch: Fetch { keys, peers, held, tag: Tag::Halo }, globals }
    }

    /// Who fetches global tokens, if there are any.
    pub fn global_tokens(&self) -> Option<Fetch> {
        (self.globals > 0).then(|| self.globals())
    }

    /// States that a rank sends forward, and backward, where they go the other way.
    pub fn messages(&self, rank: usize) -> [usize; 2] {
        let (above, below) = (usize::from(rank + 1 < self.peers().ranks()), usize::from(rank > 0));
        self.ways().iter().fold([0, 0], |[forward, backward], way| match way {
            Way::Up => [forward + above, backward + below],
            Way::Down => [forward + below, backward + above],
        })
    }

    pub fn peers(&self) -> &Peers {
        &self.fetch.peers
    }

    pub fn rank(&self) -> usize {
        self.peers().rank()
    }

    pub fn own(&self) -> &Range<usize> {
        &self.queries.of(self.rank())[0]
    }

    fn held(&self) -> &Range<usize> {
        &self.fetch.held[self.rank()]
    }

    pub fn axis(&self) -> usize {
        out_axis(self.operator.layout)
    }

    /// The operator for the keys held, without global ones.
    fn near_operator(&self) -> Scatterbrain {
        let totals = [self.queries.total(), self.fetch.keys.total()];
        let mut operator = Scatterbrain {
            mask: part_of(&self.operator.mask, totals, self.own(), self.held()),
            ..self.operator.clone()
        };
        if let Some(support) = operator.support.as_mut().filter(|support| support.kind == SupportKind::Longformer) {
            support.kind = SupportKind::Local;
        }
        operator
    }

    /// The same with the padding that hides global keys, for a batch of `batch` rows.
    fn hiding(&self, batch: usize) -> Scatterbrain {
        let mut operator = self.near_operator();
        if self.globals > self.held().start {
            let keys = self.held().len();
            let mut real = match &operator.mask.valid {
                Some(padding) => padding.as_slice().to_vec(),
                None => vec![1; batch * keys],
            };
            let hidden = (self.globals - self.held().start).min(keys);
            real.chunks_exact_mut(keys).for_each(|row| row[..hidden].fill(0));
            if operator.mask.query_valid.is_none() {
                let queries = self.own().len();
                operator.mask.query_valid =
                    Some(Padding::new(batch, queries, vec![1; batch * queries]).expect("one byte a query").into());
            }
            operator.mask.valid = Some(Padding::new(batch, keys, real).expect("one byte a key").into());
        }
        operator
    }

    fn gather<'a>(&self, inputs: &'a [View<'a, f32>]) -> Result<Near<'a>, ClusterError> {
        let held = self.fetch.gather(&inputs[1..3], &[self.axis(); 2])?;
        Ok(Near { q: inputs[0], held, rest: &inputs[3..] })
    }

    /// Keys held whose sums the neighbour that comes next on the way has to add to those it hears of: those out of its
    /// reach.
    fn handed(&self, way: Way) -> Range<usize> {
        let (held, rank) = (self.held(), self.rank());
        match way {
            Way::Up => held.start..self.fetch.held.get(rank + 1).map_or(held.end, |next| next.start).max(held.start),
            Way::Down => {
                rank.checked_sub(1).map_or(held.start, |next| self.fetch.held[next].end).min(held.end)..held.end
            }
        }
    }

    fn ways(&self) -> &'static [Way] {
        match (self.operator.features, self.operator.mask.causal) {
            (None, _) => &[],
            (_, true) => &[Way::Up],
            (_, false) => &[Way::Up, Way::Down],
        }
    }

    /// The output, and what the backward pass needs besides.
    pub fn forward(&self, inputs: &[View<f32>]) -> Result<(Vec<f32>, BandState), ClusterError> {
        let near = self.gather(inputs)?;
        let views = near.views();
        let shape = self.shape(&views);
        let operator = self.hiding(shape.batch);
        let mut out = vec![0.0; shape.out_shape().iter().product()];
        let saved = operator.forward(&views, &mut out);
        let mut rows = Rows { out, scales: Scales::of(&saved) };
        let mut far = [None, None];
        for way in self.ways() {
            let own = operator.feature_sums(&views, local(&self.handed(*way), self.held().start));
            let received = self.peers().scan(*way, |before| match before {
                Some(before) => {
                    let mut sums = ScaledSums::new(before.to_vec(), shape.value_width);
                    sums.add(&own);
                    sums.into_vec()
                }
                None => own.as_slice().to_vec(),
            })?;
            if let Some(received) = received {
                let sums = ScaledSums::new(received, shape.value_width);
                let mut more = vec![0.0; rows.out.len()];
                let scales = Scales::of(&operator.attend_sums(&views, &sums, &mut more));
                rows.merge(&shape, &Rows { out: more, scales });
                far[*way as usize] = Some(sums);
            }
        }
        if self.globals > 0 {
            self.forward_globals(inputs, &shape, &mut rows)?;
        }
        Ok((rows.out, BandState { scales: rows.scales, near: saved, far }))
    }

    /// Gradients of the inputs of this rank.
    pub fn backward(
        &self,
        inputs: &[View<f32>],
        (out, state): (&[f32], &BandState),
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Result<Vec<Option<Vec<f32>>>, ClusterError> {
        let near = self.gather(inputs)?;
        let views = near.views();
        let shape = self.shape(&views);
        let operator = self.hiding(shape.batch);
        // Global queries get nothing by way of the band.
        let mine = if self.globals > 0 { self.globals().shared(self.rank(), 0) } else { 0..0 };
        let mut scales = state.scales.clone();
        if !mine.is_empty() {
            let none = vec![0.0; shape.batch * shape.heads * mine.len()];
            put_rows(&mut scales.inverses, shape.queries, &local(&mine, self.own().start), &none);
        }
        let own = scales.relative_to(&Scales::of(&state.near));
        let mut buffers = state.near.buffers().to_vec();
        (buffers[1], buffers[2]) = (own.tops, own.inverses);
        let mut asked = vec![false; inputs.len()];
        asked[..3].fill(true);
        let mut grads = operator.backward(&views, out, &buffers.into(), grad_out, &asked);
        let [mut of_q, mut of_k, mut of_v] = [0, 1, 2].map(|n| grads[n].take().expect("asked for"));
        for way in self.ways() {
            // The gradient of sums goes the other way.
            let back = if *way == Way::Up { Way::Down } else { Way::Up };
            let found = state.far[*way as usize]
                .as_ref()
                .map(|sums| operator.backward_sums(&views, sums, (out, &scales.saved()), grad_out, &mut of_q));
            let received = self.peers().scan(back, |later| {
                let own = found.expect("a rank that hands sums on has heard of some");
                match later {
                    Some(later) => {
                        let mut sums = ScaledSums::new(later.to_vec(), shape.value_width);
                        sums.add_gradients(&own);
                        sums.into_vec()
                    }
                    None => own.into_vec(),
                }
            })?;
            if let Some(received) = received {
                let keys = local(&self.handed(*way), self.held().start);
                let gradients = ScaledSums::new(received, shape.value_width);
                operator.backward_feature_sums(&views, keys, &gradients, [&mut of_k, &mut of_v]);
            }
        }
        let [k, v] = [(of_k, &near.held[0]), (of_v, &near.held[1])];
        let held = [k, v].map(|(data, held)| Part { data, shape: held.shape.clone() });
        drop(views);
        drop(near);
        let given = self.fetch.give_back(held.into(), &[self.axis(); 2])?;
        let [mut k, mut v]: [Part; 2] = given.try_into().expect("two tensors");
        let mut q = Part { data: of_q, shape: inputs[0].shape.to_vec() };
        if self.globals > 0 {
            self.backward_globals(inputs, &shape, (out, &state.scales, &scales), grad_out, [&mut q, &mut k, &mut v])?;
        }
        let mut all = vec![Some(q.data), Some(k.data), Some(v.data)];
        all.resize(inputs.len(), None);
        Ok(all.into_iter().zip(wanted).map(|(grad, wanted)| grad.filter(|_| *wanted)).collect())
    }

    fn shape(&self, views: &[View<f32>]) -> AttentionShape {
        let [q, k, v] = [0, 1, 2].map(|n| views[n].shape);
        AttentionShape::from_tensors(q, k, v, self.operator.layout, false).expect("shapes that were checked")
    }
}

impl BandState {
    pub fn scales(&self) -> &Scales {
        &self.scales
    }
}
