//! One entry for every mechanism.

use std::sync::Arc;

use regard_cluster::Communicator;
use regard_kernels::{
    Additive, AttentionOptions, Call, Error, Linear, Mask, MixtureOfHeads, Saved, Scatterbrain, View,
    mechanism::{Combination, Mechanism, Sharing},
    support::SupportKind,
};

use crate::{
    Split,
    band::{Band, BandState},
    check::check,
    cost::{Sizes, Traffic},
    error::SequenceError,
    exact::Exact,
    experts::Experts,
    part::{Along, Part},
    rows::Scales,
    scan,
    wire::Peers,
};

/// Attention over a sequence whose tokens are spread over the ranks of a job.
///
/// Every rank makes it with the options and the call of the whole sequence, padding included, and then passes its own
/// tokens: those of [`SequenceParallel::queries`] in tensors along queries, those of [`SequenceParallel::keys`] in tensors
/// along keys, and all of the others. All ranks have to call the same methods in the same order.
///
/// ```
/// use regard_cluster::Threads;
/// use regard_kernels::{AttentionOptions, Call, Mask, View};
/// use regard_sequence::SequenceParallel;
///
/// let options = AttentionOptions { heads: 1, ..AttentionOptions::default() };
/// let (shape, x) = ([1, 1, 8, 2], [0.1f32; 16]);
/// let call = Call { mask: Mask::causal(), ..Call::default() };
/// let outputs = Threads::run(2, |rank| {
///     let attention = SequenceParallel::new(&options, &call, [8, 8], rank)?;
///     let own = attention.cut("q", &View::new(&x, &shape));
///     let (out, state) = attention.forward(&[View::new(&own.0, &own.1); 3])?;
///     let grads = attention.backward(&[View::new(&own.0, &own.1); 3], &out, &state, &out, &[true; 3])?;
///     Ok::<_, regard_sequence::SequenceError>((out, grads.len()))
/// });
/// assert_eq!(outputs[0].as_ref().unwrap().1, 3);
/// ```
#[derive(Clone, Debug)]
pub struct SequenceParallel {
    options: AttentionOptions,
    call: Call,
    names: Vec<&'static str>,
    constants: &'static [&'static str],
    queries: Split,
    keys: Split,
    peers: Peers,
    scheme: Scheme,
}

#[derive(Clone, Debug)]
enum Scheme {
    Exact(Box<Exact>),
    Experts(Box<Experts>),
    Band(Box<Band>),
    Linear(Linear),
    Additive(Additive),
}

/// What a forward pass saves for the backward pass besides its output.
#[derive(Clone, Debug)]
pub struct SequenceState(State);

#[derive(Clone, Debug)]
enum State {
    Exact(Vec<Scales>),
    Band(BandState),
    Saved(Saved),
}

impl SequenceState {
    /// The log of the softmax denominators of this rank's queries, `[B,H,n]` for each of its chunks, of mechanisms that have
    /// one.
    pub fn lse(&self) -> Option<Vec<Vec<f32>>> {
        match &self.0 {
            State::Exact(scales) => Some(scales.iter().map(Scales::lse).collect()),
            State::Band(state) => Some(vec![state.scales().lse()]),
            State::Saved(_) => None,
        }
    }
}

impl SequenceParallel {
    /// For a call over `[queries, keys]` tokens.
    ///
    /// # Errors
    /// Options that do not fit, that no scheme spreads over ranks, or fewer tokens than chunks.
    pub fn new(
        options: &AttentionOptions,
        call: &Call,
        [queries, keys]: [usize; 2],
        communicator: Arc<dyn Communicator>,
    ) -> Result<Self, SequenceError> {
        let operator = options.operator(call.clone())?;
        let peers = Peers(communicator);
        check(options, call, [queries, keys])?;
        let (call, names, constants) = (call.clone(), operator.inputs(), operator.constants());
        let contiguous = || -> Result<[Split; 2], Error> {
            Ok([Split::contiguous(queries, peers.ranks())?, Split::contiguous(keys, peers.ranks())?])
        };
        let scheme = match options.mechanism {
            Mechanism::Softmax | Mechanism::Gaussian | Mechanism::Mgk | Mechanism::Cosine => {
                Scheme::Exact(Box::new(Exact::new(options, &call, [queries, keys], peers.clone())?))
            }
            Mechanism::Moa => {
                let heads = AttentionOptions {
                    mechanism: Mechanism::Softmax,
                    heads: options.moa.active,
                    key_value_heads: Some(1),
                    ..AttentionOptions::default()
                };
                let inner = Call { layout: Experts::LAYOUT, cross: false, ..call.clone() };
                let attention = Exact::new(&heads, &inner, [queries, keys], peers.clone())?;
                let operator = MixtureOfHeads {
                    mask: call.mask.clone(),
                    active: options.moa.active,
                    gates: options.moa.gates,
                    cross: call.cross,
                    dropout: None,
                };
                Scheme::Experts(Box::new(Experts::new(operator, attention)))
            }
            Mechanism::Performer | Mechanism::Sparse | Mechanism::Scatterbrain => {
                if options.uses_support() && options.support.kind == SupportKind::Full {
                    // Every pair is on the support.
                    let heads = AttentionOptions { mechanism: Mechanism::Softmax, ..options.clone() };
                    Scheme::Exact(Box::new(Exact::new(&heads, &call, [queries, keys], peers.clone())?))
                } else {
                    let [queries, keys] = contiguous()?;
                    Scheme::Band(Box::new(Band::new(&scatterbrain(options, &call), queries, keys, peers.clone())))
                }
            }
            Mechanism::Linear | Mechanism::Mlk => Scheme::Linear(Linear {
                layout: call.layout,
                mask: local_mask(&call.mask, &contiguous()?, peers.rank()),
                mixture: options.mechanism == Mechanism::Mlk,
                shifted: options.shifted(),
            }),
            Mechanism::Fastformer => Scheme::Additive(Additive {
                layout: call.layout,
                mask: local_mask(&call.mask, &contiguous()?, peers.rank()),
                scores: options.fastformer.scores,
                shared_value: options.fastformer.sharing != Sharing::None,
            }),
        };
        let [queries, keys] = match &scheme {
            Scheme::Exact(exact) => exact.splits().map(Split::clone),
            Scheme::Experts(experts) => experts.attention.splits().map(Split::clone),
            _ => contiguous()?,
        };
        Ok(Self { options: options.clone(), call, names, constants, queries, keys, peers, scheme })
    }

    /// Which rank owns which queries.
    pub fn queries(&self) -> &Split {
        &self.queries
    }

    /// Which rank owns which keys.
    pub fn keys(&self) -> &Split {
        &self.keys
    }

    /// Names of the inputs, in the order of all methods.
    pub fn inputs(&self) -> &[&'static str] {
        &self.names
    }

    /// Inputs that are random rather than learned, and so have no gradient.
    pub fn constants(&self) -> &'static [&'static str] {
        self.constants
    }

    /// This rank's part of input `name` (or of the output, `out`) of the whole call: its elements and shape.
    ///
    /// # Panics
    /// If the tensor has other numbers of tokens.
    pub fn cut(&self, name: &str, whole: &View<f32>) -> (Vec<f32>, Vec<usize>) {
        let Some((split, axis)) = self.along(name, whole.shape.len()) else {
            return (whole.data.to_vec(), whole.shape.to_vec());
        };
        assert_eq!(whole.shape[axis], split.total(), "tokens of {name}");
        let mut shape = whole.shape.to_vec();
        shape[axis] = split.count(self.peers.rank());
        let mut own = Part::zeros(&shape);
        for (chunk, place) in split.places(self.peers.rank()) {
            own.put(axis, &place, &Part::cut(whole, axis, &chunk).data);
        }
        (own.data, own.shape)
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// What input `name`, or the output, of so many axes is split along: by whom, and which axis.
    pub(crate) fn along(&self, name: &str, rank: usize) -> Option<(&Split, usize)> {
        match (name, Along::of(name, self.call.layout, rank)) {
            ("out", _) if rank == 3 => Some((&self.queries, 1)),
            ("out", _) => Some((&self.queries, crate::pieces::out_axis(self.call.layout))),
            (_, Along::Queries(axis)) => Some((&self.queries, axis)),
            (_, Along::Keys(axis)) => Some((&self.keys, axis)),
            (_, Along::Nothing) => None,
        }
    }

    /// Shape of this rank's output for its inputs of these shapes.
    ///
    /// # Errors
    /// Shapes that do not fit.
    pub fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, SequenceError> {
        let mut whole: Vec<Vec<usize>> = shapes.iter().map(|shape| shape.to_vec()).collect();
        for (name, shape) in self.names.iter().zip(&mut whole) {
            if let Some((split, axis)) = self.along(name, shape.len()).filter(|(_, axis)| *axis < shape.len()) {
                if shape[axis] != split.count(self.peers.rank()) {
                    let expected = format!("{} tokens of this rank along axis {axis}", split.count(self.peers.rank()));
                    return Err(Error::shape(*name, shape, expected).into());
                }
                shape[axis] = split.total();
            }
        }
        let whole: Vec<_> = whole.iter().map(|shape| &shape[..]).collect();
        let mut shape = self.options.operator(self.call.clone())?.out_shape(&whole)?;
        let (split, axis) = self.along("out", shape.len()).expect("outputs have tokens");
        shape[axis] = split.count(self.peers.rank());
        Ok(shape)
    }

    /// The outputs of this rank's queries.
    ///
    /// # Errors
    /// Inputs that do not fit, or a rank that has left.
    pub fn forward(&self, inputs: &[View<f32>]) -> Result<(Vec<f32>, SequenceState), SequenceError> {
        let shapes: Vec<_> = inputs.iter().map(|input| input.shape).collect();
        let shape = self.out_shape(&shapes)?;
        let zeros = || vec![0.0; shape.iter().product()];
        let peers = &self.peers;
        let (out, state) = match &self.scheme {
            Scheme::Exact(exact) => {
                let mut out = zeros();
                let scales = exact.forward(inputs, &mut out)?;
                (out, State::Exact(scales))
            }
            Scheme::Band(band) => {
                let (out, state) = band.forward(inputs)?;
                (out, State::Band(state))
            }
            scheme => {
                let mut out = zeros();
                let saved = match scheme {
                    Scheme::Experts(experts) => experts.forward(inputs, &mut out)?,
                    Scheme::Linear(linear) => scan::linear_forward(linear, peers, inputs, &mut out)?,
                    Scheme::Additive(additive) => scan::additive_forward(additive, peers, inputs, &mut out)?,
                    Scheme::Exact(_) | Scheme::Band(_) => unreachable!("done above"),
                };
                (out, State::Saved(saved))
            }
        };
        Ok((out, SequenceState(state)))
    }

    /// Gradients of `sum(out * grad_out)` over all ranks: of this rank's tokens, and of inputs that belong to no token its
    /// share, of which [`SequenceParallel::total`] makes the gradient. `None` for constants and unless `wanted`.
    ///
    /// # Errors
    /// A rank that has left.
    ///
    /// # Panics
    /// If `state` is of another call.
    pub fn backward(
        &self,
        inputs: &[View<f32>],
        out: &[f32],
        state: &SequenceState,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Result<Vec<Option<Vec<f32>>>, SequenceError> {
        let peers = &self.peers;
        Ok(match (&self.scheme, &state.0) {
            (Scheme::Exact(exact), State::Exact(scales)) => exact.backward(inputs, (out, scales), grad_out, wanted)?,
            (Scheme::Experts(experts), State::Saved(saved)) => experts.backward(inputs, saved, grad_out, wanted)?,
            (Scheme::Band(band), State::Band(state)) => band.backward(inputs, (out, state), grad_out, wanted)?,
            (Scheme::Linear(linear), State::Saved(saved)) => {
                scan::linear_backward(linear, peers, inputs, (out, saved), grad_out, wanted)?
            }
            (Scheme::Additive(additive), State::Saved(saved)) => {
                scan::additive_backward(additive, peers, inputs, saved, grad_out, wanted)?
            }
            _ => panic!("a state of another mechanism"),
        })
    }

    /// Bytes that this rank sends in a forward and in a backward pass, for its inputs of these shapes: the cost model.
    pub fn traffic(&self, shapes: &[&[usize]]) -> Traffic {
        let sizes = Sizes::of(&self.options, &self.names, self.call.layout, shapes);
        let rank = self.peers.rank();
        match &self.scheme {
            Scheme::Exact(exact) => sizes.exact(exact, rank),
            Scheme::Experts(experts) => sizes.exact(&experts.attention, rank),
            Scheme::Band(band) => sizes.band(band, rank),
            Scheme::Linear(linear) => sizes.linear(linear.mask.causal, [rank, self.peers.ranks()]),
            Scheme::Additive(additive) => sizes.additive(additive.mask.causal, [rank, self.peers.ranks()]),
        }
    }
}

fn scatterbrain(options: &AttentionOptions, call: &Call) -> Scatterbrain {
    Scatterbrain {
        layout: call.layout,
        mask: call.mask.clone(),
        scale: call.scale,
        support: options.uses_support().then(|| options.support.clone()),
        features: options.uses_features().then_some(options.features.kind),
        naive: options.mechanism == Mechanism::Scatterbrain && options.scatterbrain.combination == Combination::Naive,
    }
}

/// The mask over the tokens of one rank, where queries and keys are split alike or nothing depends on positions.
fn local_mask(mask: &Mask, [queries, keys]: &[Split; 2], rank: usize) -> Mask {
    Mask {
        valid: keys.padding(&mask.valid, rank),
        query_valid: queries.padding(&mask.query_valid, rank),
        ..mask.clone()
    }
}
