//! Softmax attention of a trained model in which some heads attend in another way.

use burn::module::Module;
use burn::tensor::{Int, Tensor, TensorData};
use regard_kernels::{Decode, Error, InputSizes, Layout, Mask, Mechanism, Role, Storage, View};

use super::{
    AttentionConfig, DecodeState, KeyState, MultiHead,
    projection::{Heads, Projections},
    record::AttentionPart,
    scatterbrain::check_layout,
};
use crate::{
    blocks::{Context, Part, Place, Positions},
    ops::{Host, Inputs},
};

/// What the heads of a layer compute: key heads, with the query heads that read them, by what they do.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadPlan {
    /// Key heads, ascending.
    pub key_heads: Vec<usize>,
    /// Mechanism and its options; heads, positions and causality are those of the layer. `None`: these heads give 0.
    pub attention: Option<AttentionConfig>,
}

/// The projections of multi-head softmax attention with other attention between them, head by head.
///
/// Mechanisms that need no parameters but draws can stand there: softmax with a window, Performer, sparse attention and both
/// together.
#[derive(Module, Debug)]
pub struct Planned {
    projections: Projections<2, 1>,
    #[module(skip)]
    groups: Vec<Group>,
}

/// Key heads that do the same.
#[derive(Clone, Debug)]
struct Group {
    plan: HeadPlan,
    /// Query heads that read its key heads.
    queries: Vec<usize>,
    /// What the operator draws.
    draws: Vec<(&'static str, Vec<usize>, Vec<f32>)>,
}

impl Planned {
    /// `layer`, with the heads of `plan` changed; others stay as they are. `seed` draws what the mechanisms draw.
    ///
    /// # Errors
    /// Heads that do not exist or are named twice, and mechanisms or options that cannot stand there.
    pub(crate) fn new(layer: MultiHead, plan: &[HeadPlan], seed: u64) -> Result<Self, Error> {
        let projections = layer.into_projections();
        let heads = &projections.heads;
        let key_heads = heads.options.key_heads();
        let mut taken = vec![false; key_heads];
        let mut groups = Vec::new();
        for (number, part) in plan.iter().enumerate() {
            for &head in &part.key_heads {
                if head >= key_heads || std::mem::replace(&mut taken[head], true) {
                    let expected = format!("numbers below {key_heads}, each once");
                    return Err(Error::option("key head of a plan", head, expected));
                }
            }
            if !part.key_heads.is_empty() {
                groups.push(Group::new(heads, part.clone(), regard_kernels::random::substream(seed, number as u64))?);
            }
        }
        let rest: Vec<usize> = (0..key_heads).filter(|head| !taken[*head]).collect();
        if !rest.is_empty() {
            let window = heads.options.window;
            let exact =
                HeadPlan { key_heads: rest, attention: Some(AttentionConfig { window, ..AttentionConfig::default() }) };
            groups.push(Group::new(heads, exact, seed)?);
        }
        Ok(Self { projections, groups })
    }

    /// What the heads do.
    pub fn plan(&self) -> impl Iterator<Item = &HeadPlan> {
        self.groups.iter().map(|group| &group.plan)
    }

    /// The layer without a plan.
    pub(crate) fn into_multi_head(self) -> MultiHead {
        MultiHead::of(self.projections)
    }

    pub(crate) fn project_keys(&self, keys: Tensor<3>, at: Positions) -> KeyState {
        KeyState::Single { k: self.projections.keys(keys.clone(), at), v: self.projections.values(keys) }
    }

    pub(crate) fn attend(
        &self,
        queries: Tensor<3>,
        keys: KeyState,
        mask: &Mask,
        context: &Context,
        place: Place,
    ) -> Tensor<3> {
        let out = self.attend_heads(&self.inputs(queries, keys, context.positions()), mask, context, place);
        context.record(Part::Heads, &out);
        self.projections.join(out)
    }

    pub(crate) fn decode(&self, tokens: Tensor<3>, state: &mut DecodeState) -> Tensor<3> {
        let at = Positions::From(state.position());
        let inputs = self.inputs(tokens.clone(), self.project_keys(tokens, at), at);
        let out = state.advance(&inputs, &self.heads().options.mask(), |mask, context| {
            self.attend_heads(&inputs, mask, context, Place::Weights)
        });
        self.projections.join(out)
    }

    /// A fresh state, where every part has one.
    ///
    /// # Errors
    /// A part whose mechanism has no decode state; the error names it.
    pub(crate) fn decoder(&self, storage: Storage) -> Result<Box<dyn Decode>, Error> {
        let heads = self.heads();
        let parts = self.groups.iter().map(|group| {
            let Some(options) = &group.plan.attention else { return Ok(None) };
            let call = heads.call(options.mask(), &Context::evaluation(), Place::Weights);
            let state = options.operator(call)?.decoder(storage);
            state.map(Some).ok_or_else(|| options.no_decoder("mechanism of a plan"))
        });
        let states = parts.collect::<Result<Vec<_>, Error>>()?;
        let groups = self.groups.clone().into_iter().zip(states).collect();
        Ok(Box::new(PlannedState { groups }))
    }

    fn inputs(&self, queries: Tensor<3>, keys: KeyState, at: Positions) -> Inputs {
        let (k, v) = keys.single();
        Inputs::new(self.projections.queries(queries, at)).with_some("k", k).with("v", v)
    }

    fn attend_heads(&self, inputs: &Inputs, mask: &Mask, context: &Context, place: Place) -> Tensor<4> {
        let heads = self.heads();
        let queries = heads.options.heads;
        let [q, k, v] = ["q", "k", "v"].map(|name| inputs.tensor::<4>(name));
        let mut outs = Vec::new();
        let mut order = vec![0i32; queries];
        for group in &self.groups {
            let (own, own_queries) = (&group.plan.key_heads, &group.queries);
            let first: usize = outs.iter().map(|out: &Tensor<4>| out.dims()[2]).sum();
            own_queries.iter().enumerate().for_each(|(at, head)| order[*head] = (first + at) as i32);
            let q = select_heads(q.clone(), own_queries);
            let Some(options) = &group.plan.attention else {
                outs.push(q.zeros_like());
                continue;
            };
            let mut part =
                Inputs::new(q).with("k", select_heads(k.clone(), own)).with("v", select_heads(v.clone(), own));
            for (name, shape, values) in &group.draws {
                part = part.with(name, drawn(shape, values, &v));
            }
            let part = AttentionPart::new(std::borrow::Cow::Borrowed(options), &part);
            let mask = Mask { window: options.window, ..mask.clone() };
            let [out] = heads.attend_parts([part], &mask, context, place);
            outs.push(out);
        }
        let out = if outs.len() == 1 { outs.remove(0) } else { Tensor::cat(outs, 2) };
        if order.iter().enumerate().all(|(at, &from)| at as i32 == from) {
            return out;
        }
        let order = Tensor::<1, Int>::from_data(TensorData::new(order, [queries]), &out.device());
        out.select(2, order)
    }

    pub(crate) fn heads(&self) -> &Heads {
        &self.projections.heads
    }
}

impl Group {
    fn new(heads: &Heads, plan: HeadPlan, key: u64) -> Result<Self, Error> {
        let layer = &heads.options;
        let HeadPlan { mut key_heads, attention } = plan;
        key_heads.sort_unstable();
        let share = layer.heads / layer.key_heads();
        let attention = attention.map(|options| AttentionConfig {
            heads: key_heads.len() * share,
            key_value_heads: Some(key_heads.len()),
            position: layer.position,
            causal: layer.causal,
            ..options
        });
        let mut draws = Vec::new();
        if let Some(options) = &attention {
            options.check()?;
            options.check_kernel()?;
            check_layout(options, heads.context)?;
            if options.mechanism == Mechanism::Fastformer || options.mechanism == Mechanism::Moa {
                let expected = "a mechanism of queries, keys and values alone";
                return Err(Error::option("mechanism of a plan", options.label(), expected));
            }
            let operator = options.operator(heads.call(options.mask(), &Context::evaluation(), Place::Weights))?;
            let sizes = InputSizes::new(Layout::TokenFirst, 1, heads.context, options.heads, heads.head_width);
            for input in options.inputs(&*operator, &sizes) {
                match input.role {
                    Role::Data { .. } => {}
                    Role::Constant => {
                        let numbers = input.numbers(key)?.expect("constants are drawn");
                        draws.push((input.name, input.shape, numbers.into_iter().map(|x| x as f32).collect()));
                    }
                    Role::Parameter => {
                        let seen = format!("{} with '{}'", options.label(), input.name);
                        let expected = "a mechanism without parameters of its own";
                        return Err(Error::option("mechanism of a plan", seen, expected));
                    }
                }
            }
        }
        let queries = key_heads.iter().flat_map(|head| head * share..(head + 1) * share).collect();
        Ok(Self { plan: HeadPlan { key_heads, attention }, queries, draws })
    }
}

fn drawn(shape: &[usize], values: &[f32], like: &Tensor<4>) -> crate::ops::Operand {
    let data = TensorData::new(values.to_vec(), shape);
    match shape.len() {
        2 => Tensor::<2>::from_data(data, &like.device()).into(),
        _ => Tensor::<3>::from_data(data, &like.device()).into(),
    }
}

/// Heads `which` of `x [B,N,H,D]`.
fn select_heads(x: Tensor<4>, which: &[usize]) -> Tensor<4> {
    let first = which[0];
    if which.iter().enumerate().all(|(at, head)| *head == first + at) {
        return if which.len() == x.dims()[2] { x } else { x.narrow(2, first, which.len()) };
    }
    let numbers: Vec<i32> = which.iter().map(|head| *head as i32).collect();
    let numbers = Tensor::<1, Int>::from_data(TensorData::new(numbers, [which.len()]), &x.device());
    x.select(2, numbers)
}

/// The states of all groups. Inputs `q k v` of all heads.
#[derive(Debug)]
struct PlannedState {
    groups: Vec<(Group, Option<Box<dyn Decode>>)>,
}

impl PlannedState {
    fn run(&mut self, inputs: &[View<f32>], out: &mut [f32], absorb: bool) {
        let heads_of = |x: &View<f32>| x.shape[2];
        let (batch, width, values) = (inputs[0].shape[0], inputs[0].shape[3], inputs[2].shape[3]);
        let gather = |x: &View<f32>, which: &[usize], width: usize| {
            let rows = (0..batch).flat_map(|b| which.iter().map(move |head| b * heads_of(x) + head));
            let data = rows.flat_map(|row| x.data[row * width..(row + 1) * width].iter().copied()).collect();
            Host { data, shape: vec![batch, 1, which.len(), width] }
        };
        for (group, state) in &mut self.groups {
            let (keys, queries) = (&group.plan.key_heads, &group.queries);
            let mut part = vec![0.0; batch * queries.len() * values];
            if let Some(state) = state {
                let own = [
                    gather(&inputs[0], queries, width),
                    gather(&inputs[1], keys, width),
                    gather(&inputs[2], keys, values),
                ];
                let draws = group.draws.iter().map(|(_, shape, values)| View::new(values, shape));
                let views: Vec<_> = own.iter().map(Host::view).chain(draws).collect();
                if absorb { state.absorb(&views, &mut part) } else { state.step(&views, &mut part) }
            }
            let all = heads_of(&inputs[0]);
            for (at, row) in part.chunks_exact(values).enumerate() {
                let (b, head) = (at / queries.len(), queries[at % queries.len()]);
                out[(b * all + head) * values..][..values].copy_from_slice(row);
            }
        }
    }
}

impl Decode for PlannedState {
    fn step(&mut self, inputs: &[View<f32>], out: &mut [f32]) {
        self.run(inputs, out, false);
    }

    fn absorb(&mut self, inputs: &[View<f32>], out: &mut [f32]) {
        self.run(inputs, out, true);
    }

    fn reorder(&mut self, rows: &[usize]) {
        self.groups.iter_mut().filter_map(|(_, state)| state.as_mut()).for_each(|state| state.reorder(rows));
    }

    fn bytes(&self) -> usize {
        self.groups.iter().filter_map(|(_, state)| state.as_ref()).map(|state| state.bytes()).sum()
    }
    fn check(&self, tokens: usize) -> Result<(), Error> {
        self.groups.iter().filter_map(|(_, state)| state.as_ref()).try_for_each(|state| state.check(tokens))
    }
}
