//! Exact attention of a run of queries to a run of keys, both parts of longer sequences.

use std::{ops::Range, sync::Arc};

use regard_kernels::{
    AttentionOptions, AttentionShape, Call, Error, Layout, Mask, Operator, Padding, View,
    mechanism::{KeyDesign, Mechanism},
};

use crate::{
    part::{Along, Part, add},
    rows::{Rows, Scales},
};

/// A call over a whole sequence, of which pieces are computed.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    pub options: AttentionOptions,
    pub call: Call,
    /// Queries and keys of the whole sequence.
    pub queries: usize,
    pub keys: usize,
    pub names: Vec<&'static str>,
}

/// Inputs of one rank: those along queries and along keys, cut into chunks, and the others.
pub(crate) struct Cut<'a> {
    along: Vec<Along>,
    inputs: &'a [View<'a, f32>],
    /// For each chunk of queries its inputs along them.
    pub queries: Vec<Vec<Part>>,
}

impl Pieces {
    /// # Errors
    /// Options that do not fit.
    pub fn new(options: &AttentionOptions, call: &Call, queries: usize, keys: usize) -> Result<Self, Error> {
        let names = options.operator(Call { mask: Mask::none(), ..call.clone() })?.inputs();
        Ok(Self { options: options.clone(), call: call.clone(), queries, keys, names })
    }

    /// Whether any query of the run sees any key of the other, padding aside.
    pub fn meet(&self, queries: &Range<usize>, keys: &Range<usize>) -> bool {
        let seen = self.call.mask.visible_to(queries.clone(), self.queries, self.keys);
        seen.start.max(keys.start) < seen.end.min(keys.end)
    }

    /// The mask of a piece.
    pub fn mask(&self, queries: &Range<usize>, keys: &Range<usize>) -> Mask {
        part_of(&self.call.mask, [self.queries, self.keys], queries, keys)
    }

    pub fn operator(&self, queries: &Range<usize>, keys: &Range<usize>) -> Arc<dyn Operator> {
        let call = Call { mask: self.mask(queries, keys), ..self.call.clone() };
        self.options.operator(call).expect("options that were checked")
    }

    /// What each input belongs to.
    pub fn along(&self, inputs: &[View<f32>]) -> Vec<Along> {
        let names = self.names.iter().zip(inputs);
        names.map(|(name, input)| Along::of(name, self.call.layout, input.shape.len())).collect()
    }

    /// Cuts the inputs along queries at these places.
    pub fn cut<'a>(&self, inputs: &'a [View<'a, f32>], places: &[Range<usize>]) -> Cut<'a> {
        let along = self.along(inputs);
        let chunk = |place: &Range<usize>| {
            let parts = along.iter().zip(inputs).filter_map(|(along, input)| match along {
                Along::Queries(axis) => Some(Part::cut(input, *axis, place)),
                _ => None,
            });
            parts.collect()
        };
        Cut { queries: places.iter().map(chunk).collect(), along, inputs }
    }

    /// The inputs along keys, with their axes.
    pub fn keys<'a>(&self, inputs: &'a [View<'a, f32>]) -> impl Iterator<Item = (View<'a, f32>, usize)> {
        self.along(inputs).into_iter().zip(inputs).filter_map(|(along, input)| match along {
            Along::Keys(axis) => Some((*input, axis)),
            _ => None,
        })
    }

    /// Sizes of a piece of exact attention.
    pub fn shape(&self, inputs: &[View<f32>]) -> AttentionShape {
        let mixture = matches!(self.options.mechanism, Mechanism::Gaussian)
            || self.options.mechanism.is_mixture() && self.options.keys.design == KeyDesign::Projected;
        let [q, k, v] = [0, 1, 2].map(|n| inputs[n].shape);
        AttentionShape::from_tensors(q, k, v, self.call.layout, mixture).expect("shapes that were checked")
    }

    /// Outputs of a chunk of queries over these keys.
    pub fn attend(&self, cut: &Cut, n: usize, [queries, keys]: [&Range<usize>; 2], parts: &[Part]) -> Rows {
        let inputs = cut.inputs(n, parts);
        let operator = self.operator(queries, keys);
        let shapes: Vec<_> = inputs.iter().map(|input| input.shape).collect();
        let out_shape = operator.out_shape(&shapes).expect("shapes that were checked");
        let mut out = vec![0.0; out_shape.iter().product()];
        let saved = operator.forward(&inputs, &mut out);
        Rows { out, scales: Scales::of(&saved) }
    }

    /// Adds the outputs over more keys to those of a chunk.
    pub fn add(&self, cut: &Cut, n: usize, keys: &[Part], rows: &mut Option<Rows>, more: Rows) {
        match rows {
            None => *rows = Some(more),
            Some(rows) => rows.merge(&self.shape(&cut.inputs(n, keys)), &more),
        }
    }

    /// Gradients through a chunk of queries and these keys: those of the chunk's inputs and of the whole inputs are added to
    /// `grads`, those along keys to `key_grads`.
    #[allow(clippy::too_many_arguments)]
    pub fn backward(
        &self,
        cut: &Cut,
        n: usize,
        [queries, keys]: [&Range<usize>; 2],
        parts: &[Part],
        rows: &Rows,
        grad_out: &[f32],
        wanted: &[bool],
        grads: &mut Grads,
        key_grads: &mut [Part],
    ) {
        let inputs = cut.inputs(n, parts);
        let asked: Vec<_> =
            cut.along.iter().zip(wanted).map(|(along, wanted)| *along != Along::Nothing || *wanted).collect();
        let operator = self.operator(queries, keys);
        let found = operator.backward(&inputs, &rows.out, &rows.scales.saved(), grad_out, &asked);
        let (mut of_queries, mut of_keys) = (grads.queries[n].iter_mut(), key_grads.iter_mut());
        for ((along, found), whole) in cut.along.iter().zip(found).zip(&mut grads.whole) {
            match (along, found) {
                (Along::Queries(_), Some(found)) => add(&mut of_queries.next().expect("a part").data, &found),
                (Along::Keys(_), Some(found)) => add(&mut of_keys.next().expect("a part").data, &found),
                (Along::Nothing, Some(found)) => match whole {
                    Some(whole) => add(&mut whole.data, &found),
                    None => unreachable!("a gradient that nobody wants"),
                },
                (_, None) => {}
            }
        }
    }
}

/// Gradients of one rank, as far as they are known.
pub(crate) struct Grads {
    /// For each chunk of queries, of its inputs.
    pub queries: Vec<Vec<Part>>,
    /// Of the inputs that belong to no token, where wanted.
    pub whole: Vec<Option<Part>>,
}

impl<'a> Cut<'a> {
    /// Inputs of the operator for chunk `n` of the queries and these parts along keys.
    pub fn inputs<'s>(&'s self, n: usize, keys: &'s [Part]) -> Vec<View<'s, f32>> {
        let (mut of_queries, mut of_keys) = (self.queries[n].iter(), keys.iter());
        let input = |(along, input): (&Along, &View<'s, f32>)| match along {
            Along::Queries(_) => of_queries.next().expect("a part for each input").view(),
            Along::Keys(_) => of_keys.next().expect("a part for each input").view(),
            Along::Nothing => *input,
        };
        self.along.iter().zip(self.inputs).map(input).collect()
    }

    /// Gradients of 0.
    pub fn grads(&self, wanted: &[bool]) -> Grads {
        let zeros = |parts: &Vec<Part>| parts.iter().map(|part| Part::zeros(&part.shape)).collect();
        let whole =
            self.along.iter().zip(self.inputs).zip(wanted).map(|((along, input), wanted)| {
                (*along == Along::Nothing && *wanted).then(|| Part::zeros(input.shape))
            });
        Grads { queries: self.queries.iter().map(zeros).collect(), whole: whole.collect() }
    }

    /// All gradients of this rank, in the order of the inputs.
    pub fn finish(
        &self,
        grads: Grads,
        places: &[Range<usize>],
        keys: Vec<Part>,
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        let (mut chunk, mut keys) = (0, keys.into_iter());
        let finished = self.along.iter().zip(self.inputs).zip(grads.whole).map(|((along, input), whole)| match along {
            Along::Queries(axis) => {
                let mut all = Part::zeros(input.shape);
                let parts = grads.queries.iter().map(|parts| &parts[chunk]);
                places.iter().zip(parts).for_each(|(place, part)| all.put(*axis, place, &part.data));
                chunk += 1;
                Some(all.data)
            }
            Along::Keys(_) => Some(keys.next().expect("a part for each input").data),
            Along::Nothing => whole.map(|whole| whole.data),
        });
        finished.zip(wanted).map(|(grad, wanted)| grad.filter(|_| *wanted)).collect()
    }
}

/// The mask of a part of a call over so many queries and keys.
pub(crate) fn part_of(mask: &Mask, [n, s]: [usize; 2], queries: &Range<usize>, keys: &Range<usize>) -> Mask {
    let position = mask.position(queries.start, n, s) - keys.start as isize;
    let asked = match (&mask.query_valid, &mask.valid) {
        (Some(padding), _) => Some(cut_padding(padding, queries)),
        (None, Some(padding)) if n == s => Some(cut_padding(padding, queries)),
        // Else keys would tell of the queries where a part has as many of both.
        (None, Some(padding)) => {
            let all = vec![1; padding.batch() * queries.len()];
            Some(Padding::new(padding.batch(), queries.len(), all).expect("one byte a query"))
        }
        (None, None) => None,
    };
    Mask {
        offset: position - (keys.len() as isize - queries.len() as isize),
        valid: mask.valid.as_ref().map(|padding| Arc::new(cut_padding(padding, keys))),
        query_valid: asked.map(Arc::new),
        ..mask.clone()
    }
}

fn cut_padding(padding: &Padding, range: &Range<usize>) -> Padding {
    let rows = (0..padding.batch()).flat_map(|b| &padding.row(b)[range.clone()]).copied().collect();
    Padding::new(padding.batch(), range.len(), rows).expect("a part of each row")
}

/// Axis of the tokens of the output.
pub(crate) fn out_axis(layout: Layout) -> usize {
    match layout {
        Layout::HeadFirst => 2,
        Layout::TokenFirst => 1,
    }
}
