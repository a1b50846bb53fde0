//! Decoding with a key-value cache, for mechanisms in which every query attends to every earlier key.

use std::{ops::Range, sync::Arc};

use crate::{
    Decode, Layout, Operator, Rows, Saved, Storage, View,
    operator::reorder_rows,
    stored::Numbers,
    tiled::{Kept, Scores, Source},
};

/// An operator whose weights are those of [`Scores`].
pub(crate) trait Scored: Operator {
    /// The scores of a call with matching tensors; keys and values may be empty if only [`Scores::attend`] is used.
    fn scores<'a>(&'a self, inputs: &[View<'a, f32>]) -> Scores<'a>;
}

/// Keys and values of the tokens so far.
#[derive(Debug)]
pub(crate) struct Cache {
    /// The operator in token-first layout, causal.
    operator: Arc<dyn Scored>,
    /// Layout of incoming tokens.
    layout: Layout,
    /// Keys further back than this are dropped.
    window: Option<usize>,
    /// Numbers of first and last tokens to keep, if others are dropped one by one. The operator sees all kept tokens.
    sliding: Option<[usize; 2]>,
    storage: Storage,
    rows: Vec<Row>,
    /// Number of tokens dropped before the first one in the cache.
    dropped: usize,
    tokens: usize,
}

/// Keys and values of a batch row, in one buffer per head, so that a token's pass over a head reads memory
/// sequentially.
#[derive(Clone, Debug, Default)]
struct Row {
    /// Component by component.
    k: Vec<Numbers>,
    v: Vec<Numbers>,
}

impl Row {
    /// The rows of `cached` tokens, head by head, with the widths of keys and values.
    fn kept(&self, [width, value_width]: [usize; 2], cached: usize) -> impl Iterator<Item = Kept<'_>> {
        fn source(numbers: &Numbers, width: usize, count: usize) -> Source<'_> {
            Source { stored: numbers.stored(), rows: Rows { offset: 0, stride: width, count, width } }
        }
        let heads = self.v.len();
        self.v.iter().enumerate().map(move |(h, values)| Kept {
            k: self.k.iter().skip(h).step_by(heads).map(|keys| source(keys, width, cached)).collect(),
            v: source(values, value_width, cached),
        })
    }
}

impl Cache {
    /// An empty cache. `operator` has the token-first layout and a causal mask with this `window`.
    pub fn new(operator: Arc<dyn Scored>, layout: Layout, window: Option<usize>, storage: Storage) -> Self {
        Self { operator, layout, window, sliding: None, storage, rows: Vec::new(), dropped: 0, tokens: 0 }
    }

    /// An empty cache of the first `globals` and the last `reach` tokens. The result of `operator`, which has no
    /// window, must not depend on the positions of keys.
    pub fn sliding(operator: Arc<dyn Scored>, layout: Layout, [globals, reach]: [usize; 2], storage: Storage) -> Self {
        Self { sliding: Some([globals, reach]), ..Self::new(operator, layout, None, storage) }
    }

    /// Appends keys and values of the next token; returns the number of tokens in the cache.
    pub fn append(&mut self, inputs: &[View<f32>]) -> usize {
        let (q, k, v) = (&inputs[0], &inputs[1], &inputs[2]);
        let (batch, storage) = (q.shape[0], self.storage);
        self.rows.resize_with(batch, Row::default);
        self.tokens += 1;
        // With one token, [B,H,1,D] and [B,1,H,D] are the same memory; only components and heads are swapped.
        let head_first = self.layout == Layout::HeadFirst;
        let (heads, width, value_width) = (self.heads(k), q.shape[3], v.shape[3]);
        let (k_len, v_len) = (k.data.len() / batch, v.data.len() / batch);
        let components = k_len / (heads * width);
        // The row of a dropped token, reused for the new one.
        let taken = self.sliding.and_then(|[globals, reach]| {
            let behind = (self.tokens - 1).saturating_sub(globals);
            (behind >= reach).then(|| globals + behind % reach)
        });
        let put = |rows: &mut Numbers, row: &[f32]| match taken {
            Some(at) => rows.set_row(at, row),
            None => rows.push(row),
        };
        for (b, row) in self.rows.iter_mut().enumerate() {
            row.k.resize_with(components * heads, || Numbers::new(storage, width));
            row.v.resize_with(heads, || Numbers::new(storage, value_width));
            let token = &k.data[b * k_len..(b + 1) * k_len];
            for (n, keys) in row.k.iter_mut().enumerate() {
                let (r, h) = (n / heads, n % heads);
                let at = if head_first { h * components + r } else { n };
                put(keys, &token[at * width..(at + 1) * width]);
            }
            let token = &v.data[b * v_len..(b + 1) * v_len];
            row.v.iter_mut().zip(token.chunks_exact(value_width)).for_each(|(values, token)| put(values, token));
        }
        self.dropped += usize::from(taken.is_some());
        let cached = self.tokens - self.dropped;
        match self.window {
            Some(window) if cached > window.saturating_add(1).saturating_mul(2) => {
                // Half of the cache is dropped at a time, so that copying per token is constant on average.
                let leaving = cached - (window + 1);
                for row in &mut self.rows {
                    row.k.iter_mut().for_each(|keys| keys.drop_first(leaving * width));
                    row.v.iter_mut().for_each(|values| values.drop_first(leaving * value_width));
                }
                self.dropped += leaving;
                cached - leaving
            }
            _ => cached,
        }
    }

    /// Heads of a tensor of one token.
    fn heads(&self, x: &View<f32>) -> usize {
        if self.layout == Layout::HeadFirst { x.shape[1] } else { x.shape[x.shape.len() - 2] }
    }

    /// Attention of the last token to the tokens in the cache, or to those of the ranges `seen`, which do not overlap.
    pub fn attend(&self, inputs: &[View<f32>], seen: Option<&[Range<usize>]>, out: &mut [f32]) -> Saved {
        let names = self.operator.inputs();
        let cached = self.tokens - self.dropped;
        let (q, k, v) = (&inputs[0], &inputs[1], &inputs[2]);
        let (batch, width) = (q.shape[0], q.shape[3]);
        let components = k.data.len() / (batch * self.heads(k) * width);
        // A per-position prior is restricted to the positions in the cache.
        let parameters: Vec<(Vec<usize>, Vec<f32>)> = inputs[3..]
            .iter()
            .zip(&names[3..])
            .map(|(x, name)| match (*name, x.shape) {
                ("log_prior", &[heads, components, positions]) => {
                    let rows = x.data.chunks_exact(positions);
                    let cut = rows.flat_map(|row| row[self.dropped..self.dropped + cached].iter().copied());
                    (vec![heads, components, cached], cut.collect())
                }
                _ => (x.shape.to_vec(), x.data.to_vec()),
            })
            .collect();
        let q_shape = [batch, 1, self.heads(q), width];
        let v_shape = [batch, cached, self.heads(v), v.shape[3]];
        let mixture = k.shape.len() == 5;
        let k_shape: &[usize] = if mixture {
            &[batch, cached, components, self.heads(k), width]
        } else {
            &[batch, cached, self.heads(k), width]
        };
        let mut views =
            vec![View::new(q.data, &q_shape), View { data: &[], shape: k_shape }, View { data: &[], shape: &v_shape }];
        views.extend(parameters.iter().map(|(shape, data)| View::new(data, shape)));
        let kept: Vec<Kept> = self.rows.iter().flat_map(|row| row.kept([width, v.shape[3]], cached)).collect();
        let scores = self.operator.scores(&views);
        match seen {
            None => scores.attend(&kept, out),
            Some(ranges) => scores.attend_within(ranges, &kept, out),
        }
    }
}

impl Decode for Cache {
    fn step(&mut self, inputs: &[View<f32>], out: &mut [f32]) {
        self.append(inputs);
        self.attend(inputs, None, out);
    }

    fn absorb(&mut self, inputs: &[View<f32>], _: &mut [f32]) {
        self.append(inputs);
    }

    fn reorder(&mut self, rows: &[usize]) {
        let batch = self.rows.len();
        reorder_rows(&mut self.rows, batch, rows);
    }

    fn bytes(&self) -> usize {
        self.rows.iter().flat_map(|row| row.k.iter().chain(&row.v)).map(Numbers::bytes).sum()
    }
}
