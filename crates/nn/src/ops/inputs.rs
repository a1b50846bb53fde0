//! Inputs of an attention by name.

use burn::tensor::{Device, Tensor};

use super::Operand;

/// What an attention operator reads, by the names of [`Operator::inputs`](regard_kernels::Operator::inputs).
///
/// A layer lists them once; the forward pass, the log of a pass and a decoding step all read this list.
///
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use regard_kernels::{AttentionOptions, Call, Layout};
/// use regard_nn::ops::{Inputs, attention};
///
/// let device = Device::flex().autodiff();
/// let token_first = || Tensor::<4>::random([1, 32, 4, 16], Distribution::Default, &device).require_grad();
/// let inputs = Inputs::new(token_first()).with("k", token_first()).with("v", token_first());
/// let call = Call { layout: Layout::TokenFirst, ..Call::default() };
/// let out: Tensor<4> = attention(&AttentionOptions::default(), call, &inputs);
/// let gradients = out.sum().backward();
/// assert!(inputs.tensor::<4>("k").grad(&gradients).is_some());
/// ```
#[derive(Clone, Debug)]
pub struct Inputs(Vec<(&'static str, Operand)>);

impl Inputs {
    /// Queries `q [B,N,H,D]`.
    pub fn new(q: Tensor<4>) -> Self {
        Self(vec![("q", q.into())])
    }

    /// The same with one more; order does not matter.
    #[must_use]
    pub fn with(mut self, name: &'static str, input: impl Into<Operand>) -> Self {
        self.0.push((name, input.into()));
        self
    }

    /// The same with one more, if there is one.
    #[must_use]
    pub fn with_some(self, name: &'static str, input: Option<impl Into<Operand>>) -> Self {
        match input {
            Some(input) => self.with(name, input),
            None => self,
        }
    }

    /// Input `name`, if it is there.
    pub fn operand(&self, name: &str) -> Option<&Operand> {
        self.0.iter().find(|(own, _)| *own == name).map(|(_, input)| input)
    }

    /// Input `name`, if it is there.
    ///
    /// # Panics
    /// If it has not `D` axes.
    pub fn get<const D: usize>(&self, name: &str) -> Option<Tensor<D>> {
        self.operand(name).map(|input| input.clone().into_tensor())
    }

    /// Input `name`.
    ///
    /// # Panics
    /// If it is missing or has not `D` axes.
    pub fn tensor<const D: usize>(&self, name: &str) -> Tensor<D> {
        self.get(name).unwrap_or_else(|| panic!("tensor '{name}' is missing"))
    }

    /// Inputs `names`, in that order.
    ///
    /// # Panics
    /// If one is missing.
    pub fn operands(&self, names: &[&str]) -> Vec<Operand> {
        let named = |name: &&str| self.operand(name).unwrap_or_else(|| panic!("tensor '{name}' is missing")).clone();
        names.iter().map(named).collect()
    }

    /// Inputs by their names.
    pub(crate) fn of(inputs: impl IntoIterator<Item = (&'static str, Operand)>) -> Self {
        Self(inputs.into_iter().collect())
    }

    /// The same names with other tensors.
    #[must_use]
    pub(crate) fn map(&self, of: impl Fn(&'static str, &Operand) -> Operand) -> Self {
        Self::of(self.iter().map(|(name, input)| (name, of(name, input))))
    }

    /// The input at a place of [`Inputs::iter`].
    pub(crate) fn at(&self, place: usize) -> &Operand {
        &self.0[place].1
    }

    /// All inputs with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Operand)> {
        self.0.iter().map(|(name, input)| (*name, input))
    }

    /// Whether an input has a row for each token.
    pub(crate) fn is_data(name: &str) -> bool {
        ["q", "k", "v"].contains(&name)
    }

    /// The inputs of one token: rows of queries, keys and values, parameters whole.
    pub(crate) fn token(&self, token: usize) -> Self {
        let row = |(name, input): &(&'static str, Operand)| match (Self::is_data(name), input.axes()) {
            (true, 5) => (*name, input.clone().into_tensor::<5>().narrow(1, token, 1).into()),
            (true, _) => (*name, input.clone().into_tensor::<4>().narrow(1, token, 1).into()),
            (false, _) => (*name, input.clone()),
        };
        Self(self.0.iter().map(row).collect())
    }

    /// Device of the queries.
    pub fn device(&self) -> Device {
        self.tensor::<4>("q").device()
    }

    /// The same, cut from the graph of gradients.
    #[must_use]
    pub(crate) fn without_autodiff(&self) -> Self {
        self.map(|_, input| input.clone().without_autodiff())
    }
}
