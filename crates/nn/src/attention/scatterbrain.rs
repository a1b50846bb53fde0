//! Performer, sparse attention, and Scatterbrain, which joins them.

use std::borrow::Cow;

use burn::module::{Module, Param, RunningState};
use burn::tensor::{Device, Tensor, TensorData, activation::sigmoid};
use regard_kernels::{
    Call, Decode, Error, Mask, Mechanism, Storage, View, draws,
    features::FeatureKind,
    mechanism::Combination,
    random::substream,
    support::{SupportKind, SupportOptions},
};

use super::{
    AttentionConfig, DecodeState, KeyState,
    projection::{Heads, Projections},
    record::AttentionPart,
    state::set,
};
use crate::{
    blocks::{Context, Init, Part, Place, Positions},
    ops::{self, Inputs},
};

/// Attention of random features (Choromanski et al. 2021), softmax on a sparse support, or both (arXiv 2110.15343).
///
/// A gated layer runs both separately and averages their outputs per head, weighted by `sigmoid(gate)`.
#[derive(Module, Debug)]
pub struct Scatterbrain {
    projections: Projections<2, 1>,
    /// `[H]`; 0 weighs both equally, larger values favour the support.
    gate: Option<Param<Tensor<1>>>,
    /// `[R,D]`, drawn, not learned: a buffer, so that a checkpoint has what the model was trained with. Clones of the
    /// layer share it, as they share those below.
    projection: Option<RunningState<Tensor<2>>>,
    /// `[rounds,D+2]`.
    directions: Option<RunningState<Tensor<2>>>,
    /// `[rounds,D,hash_values/2]`.
    rotations: Option<RunningState<Tensor<3>>>,
    /// Key of the draws of the projection.
    #[module(skip)]
    key: u64,
    /// Options of the two parts, where they are gated.
    #[module(skip)]
    parts: Option<[AttentionConfig; 2]>,
}

impl Scatterbrain {
    pub(crate) fn new(heads: Heads, init: &Init) -> Result<Self, Error> {
        let (options, head_width, device) = (&heads.options, heads.head_width, init.device());
        let support = options.uses_support().then_some(&options.support);
        let kind = support.map(|support| support.kind);
        check_layout(options, heads.context)?;
        let own_keys = kind != Some(SupportKind::Lsh);
        let key = init.key("projection");
        let projected = options.uses_features() && options.features.kind != FeatureKind::Elu;
        let directions = support.filter(|support| support.kind == SupportKind::Smyrf).map(|support| {
            let values = draws::directions(support.rounds, head_width, init.key("directions"));
            RunningState::new(tensor(values, [support.rounds, head_width + 2], device))
        });
        let rotations = support.filter(|support| support.kind == SupportKind::Lsh).map(|support| {
            let hash_values = support.hash_values(heads.context);
            let values = draws::rotations(support.rounds, head_width, hash_values, init.key("rotations"));
            RunningState::new(tensor(values, [support.rounds, head_width, hash_values / 2], device))
        });
        let gated =
            options.mechanism == Mechanism::Scatterbrain && options.scatterbrain.combination == Combination::Gated;
        Ok(Self {
            gate: gated.then(|| init.constant([options.heads], 0.0)),
            projection: projected.then(|| RunningState::new(draw(&heads, key, 0, device))),
            directions,
            rotations,
            key,
            parts: gated.then(|| parts(heads.kernel())),
            projections: Projections::<2, 1>::new(heads, own_keys, init),
        })
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
        let out = self.attend_heads(&self.inputs(queries, keys, context, context.positions()), mask, context, place);
        context.record(Part::Heads, &out);
        self.projections.join(out)
    }

    fn attend_heads(&self, inputs: &Inputs, mask: &Mask, context: &Context, place: Place) -> Tensor<4> {
        match (&self.gate, &self.parts) {
            (Some(gate), Some([exact, smooth])) => {
                let smooth_inputs = match inputs.operand("k") {
                    Some(_) => inputs.clone(),
                    None => inputs.clone().with("k", ops::unit_keys(inputs.tensor("q"))),
                };
                let gate = sigmoid(gate.val());
                let parts = [
                    AttentionPart::new(Cow::Borrowed(exact), inputs).with_shares(gate.clone()),
                    AttentionPart::new(Cow::Borrowed(smooth), &smooth_inputs)
                        .with_shares(gate.clone().neg().add_scalar(1.0)),
                ];
                let [sparse, low_rank] = self.heads().attend_parts::<4, 2>(parts, mask, context, place);
                let gate = ops::stored_like(gate, &sparse).reshape([1, 1, self.heads().options.heads, 1]);
                low_rank.clone() + (sparse - low_rank) * gate
            }
            _ => {
                let part = AttentionPart::new(Cow::Borrowed(self.heads().kernel()), inputs);
                let [out] = self.heads().attend_parts([part], mask, context, place);
                out
            }
        }
    }

    /// A fresh state, where every part has one.
    pub(crate) fn decoder(&self, call: Call, storage: Storage) -> Result<Option<Box<dyn Decode>>, Error> {
        let (Some(gate), Some([exact, smooth])) = (&self.gate, &self.parts) else {
            return Ok(self.heads().kernel().operator(call)?.decoder(storage));
        };
        let sparse = exact.operator(call.clone())?.decoder(storage);
        let low_rank = smooth.operator(call)?.decoder(storage);
        let gate = sigmoid(gate.val()).into_data_as::<f32>().try_into_vec().expect("f32, as asked");
        Ok(sparse.zip(low_rank).map(|(sparse, low_rank)| {
            let gated: Box<dyn Decode> = Box::new(Gated { sparse, low_rank, gate, other: Vec::new() });
            gated
        }))
    }

    pub(crate) fn decode(&self, tokens: Tensor<3>, state: &mut DecodeState) -> Tensor<3> {
        let at = Positions::From(state.position());
        let inputs = self.inputs(tokens.clone(), self.project_keys(tokens, at), &Context::evaluation(), at);
        let out = state.advance(&inputs, &self.heads().options.mask(), |mask, context| {
            self.attend_heads(&inputs, mask, context, Place::Weights)
        });
        self.projections.join(out)
    }

    /// In training with `features.redraw = n`, update `t` uses draw `t / n` of the projection, and later passes keep it.
    fn inputs(&self, queries: Tensor<3>, keys: KeyState, context: &Context, at: Positions) -> Inputs {
        let every = self.heads().options.features.redraw as u64;
        if let (Some(buffer), true) = (&self.projection, context.training && every > 0) {
            set(buffer, draw(self.heads(), self.key, context.step / every, &buffer.value().device()));
        }
        let (k, v) = keys.single();
        Inputs::new(self.projections.queries(queries, at))
            .with_some("k", k)
            .with("v", v)
            .with_some("projection", self.projection.as_ref().map(RunningState::value))
            .with_some("directions", self.directions.as_ref().map(RunningState::value))
            .with_some("rotations", self.rotations.as_ref().map(RunningState::value))
    }

    /// Takes over the projection of `other`, a copy of this layer that saw one more batch.
    pub(crate) fn adopt_projection(&self, other: &Self) {
        if let (Some(own), Some(other)) = (&self.projection, &other.projection) {
            set(own, other.value());
        }
    }

    pub(crate) fn heads(&self) -> &Heads {
        &self.projections.heads
    }
}

/// Draw `number` of the projection.
fn draw(heads: &Heads, key: u64, number: u64, device: &Device) -> Tensor<2> {
    let (features, width) = (&heads.options.features, heads.head_width);
    let key = substream(key, number);
    let values = draws::projection(features.rows, width, features.rows_drawn, features.row_norms, key);
    tensor(values, [features.rows, width], device)
}

fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Options of the sparse part alone and of the low-rank part alone.
fn parts(options: &AttentionConfig) -> [AttentionConfig; 2] {
    let exact = AttentionConfig { mechanism: Mechanism::Sparse, ..options.clone() };
    let mut smooth = options.clone();
    smooth.support = SupportOptions { kind: SupportKind::Empty, ..SupportOptions::default() };
    smooth.scatterbrain.combination = Combination::Corrected;
    [exact, smooth]
}

/// A layout, where there is one, must have a block for every pair of the longest sequence.
pub(super) fn check_layout(options: &AttentionConfig, context: usize) -> Result<(), Error> {
    let support = &options.support;
    if !options.uses_support() || support.kind != SupportKind::Block {
        return Ok(());
    }
    let blocks = support.blocks()?;
    let needed = context.div_ceil(support.block);
    if blocks.len() < needed || blocks[0].len() < needed {
        let seen = format!("{} x {} blocks of {}", blocks.len(), blocks[0].len(), support.block);
        let expected = format!("at least {needed} x {needed}, as sequences have up to {context} tokens");
        return Err(Error::option("support.layout", seen, expected));
    }
    Ok(())
}

/// Both parts token by token. Inputs `q k v` and those of the low-rank part.
#[derive(Debug)]
struct Gated {
    sparse: Box<dyn Decode>,
    low_rank: Box<dyn Decode>,
    /// `[H]`, share of the sparse part.
    gate: Vec<f32>,
    other: Vec<f32>,
}

impl Decode for Gated {
    fn step(&mut self, inputs: &[View<f32>], out: &mut [f32]) {
        // No support that decodes has a draw of its own.
        self.sparse.step(&inputs[..3], out);
        self.other.resize(out.len(), 0.0);
        self.low_rank.step(inputs, &mut self.other);
        let width = inputs[2].shape[3];
        for (at, (out, other)) in out.chunks_exact_mut(width).zip(self.other.chunks_exact(width)).enumerate() {
            let gate = self.gate[at % self.gate.len()];
            for (out, other) in out.iter_mut().zip(other) {
                *out = other + (*out - other) * gate;
            }
        }
    }

    fn reorder(&mut self, rows: &[usize]) {
        self.sparse.reorder(rows);
        self.low_rank.reorder(rows);
    }

    fn bytes(&self) -> usize {
        self.sparse.bytes() + self.low_rank.bytes()
    }

    fn check(&self, tokens: usize) -> Result<(), Error> {
        self.sparse.check(tokens).and(self.low_rank.check(tokens))
    }
}
