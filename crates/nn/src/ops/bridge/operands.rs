//! Float tensors of any rank and number on their way to a backend.

use std::ops::Range;

use burn::backend::{Backend, DispatchTensor, ExtensionType, TensorMetadata, tensor::FloatTensor};
use burn::tensor::{DType, Gradients, Shape, Tensor};

/// Calls a method of a tensor of any rank.
macro_rules! each_rank {
    ($operand:expr, $tensor:ident => $call:expr) => {{
        let operand = $operand;
        match operand.axes() {
            1 => {
                let $tensor = operand.into_tensor::<1>();
                $call
            }
            2 => {
                let $tensor = operand.into_tensor::<2>();
                $call
            }
            3 => {
                let $tensor = operand.into_tensor::<3>();
                $call
            }
            4 => {
                let $tensor = operand.into_tensor::<4>();
                $call
            }
            5 => {
                let $tensor = operand.into_tensor::<5>();
                $call
            }
            axes => panic!("a tensor of {axes} axes, expected 1 to 5"),
        }
    }};
}
pub(crate) use each_rank;

/// A float tensor of any rank. Cloning shares the elements.
#[derive(Clone, Debug)]
pub struct Operand(pub(super) DispatchTensor);

impl Operand {
    /// Sizes of the axes.
    pub fn shape(&self) -> Vec<usize> {
        self.0.shape().to_vec()
    }

    /// Number of axes.
    pub fn axes(&self) -> usize {
        self.0.shape().num_dims()
    }

    /// Format of its elements.
    pub(crate) fn dtype(&self) -> DType {
        self.0.dtype()
    }

    /// As a tensor of `D` axes.
    ///
    /// # Panics
    /// If it has another number of axes.
    pub fn into_tensor<const D: usize>(self) -> Tensor<D> {
        assert_eq!(self.axes(), D, "a tensor of shape {:?} has not {D} axes", self.shape());
        Tensor::from_dispatch(self.0)
    }

    /// The same, cut from the graph of gradients.
    pub(crate) fn without_autodiff(self) -> Self {
        each_rank!(self, tensor => tensor.without_autodiff().into())
    }

    /// The same as the root of a graph of its own.
    pub(crate) fn tracked(self) -> Self {
        each_rank!(self, tensor => tensor.autodiff().require_grad().into())
    }

    /// Takes its gradient, without autodiff, if anything depends on it.
    pub fn grad_remove(&self, grads: &mut Gradients) -> Option<Self> {
        each_rank!(self.clone(), tensor => tensor.grad_remove(grads).map(Self::from))
    }

    /// These ranges of an axis, side by side.
    pub(crate) fn cut(self, axis: usize, ranges: &[Range<usize>]) -> Self {
        each_rank!(self, tensor => match ranges {
            [range] => tensor.narrow(axis, range.start, range.len()).into(),
            _ => {
                let parts = ranges.iter().map(|range| tensor.clone().narrow(axis, range.start, range.len()));
                Tensor::cat(parts.collect(), axis).into()
            }
        })
    }

    /// 0 in the same shape on the same device.
    pub(crate) fn zeros(&self) -> Self {
        each_rank!(self.clone(), tensor => tensor.zeros_like().into())
    }

    /// `sum`, of `shape`, or 0 where there is none, with this added in ranges of its axes that [`Operand::cut`] took.
    pub(crate) fn added_to(self, sum: Option<Self>, shape: &[usize], cuts: &[(usize, Vec<Range<usize>>)]) -> Self {
        each_rank!(self, part => {
            if sum.is_none() && part.dims()[..] == *shape {
                return part.into();
            }
            let mut sum = match sum {
                Some(sum) => sum.into_tensor(),
                None => Tensor::zeros(Shape::from(shape), &part.device()),
            };
            for (of_sum, of_part) in places(shape, cuts) {
                let (at, part) = (ranges_of(&part, &of_sum), part.clone().slice(ranges_of(&part, &of_part)));
                let part = sum.clone().slice(at.clone()) + part;
                sum = sum.slice_assign(at, part);
            }
            sum.into()
        })
    }
}

/// One range for each axis.
type Ranges = Vec<Range<usize>>;

/// Where boxes of a tensor of `shape` lie, and where they lie among its `cuts`.
fn places(shape: &[usize], cuts: &[(usize, Vec<Range<usize>>)]) -> Vec<(Ranges, Ranges)> {
    let whole: Vec<Range<usize>> = shape.iter().map(|&size| 0..size).collect();
    let mut boxes = vec![(whole.clone(), whole)];
    for (axis, ranges) in cuts {
        let mut start = 0;
        let mut next = Vec::new();
        for range in ranges {
            let within = start..start + range.len();
            start = within.end;
            for (mut of_whole, mut of_part) in boxes.iter().cloned() {
                of_whole[*axis] = range.clone();
                of_part[*axis] = within.clone();
                next.push((of_whole, of_part));
            }
        }
        boxes = next;
    }
    boxes
}

/// One range for each axis of a tensor.
fn ranges_of<const D: usize>(_: &Tensor<D>, ranges: &[Range<usize>]) -> [Range<usize>; D] {
    std::array::from_fn(|axis| ranges[axis].clone())
}

impl<const D: usize> From<Tensor<D>> for Operand {
    fn from(tensor: Tensor<D>) -> Self {
        Self(tensor.into_dispatch())
    }
}

impl<const D: usize> From<&Tensor<D>> for Operand {
    fn from(tensor: &Tensor<D>) -> Self {
        tensor.clone().into()
    }
}

/// Writes out [`Operands`]: the backend extension maps fields one by one and knows no lists, so that each number of
/// tensors is a variant.
macro_rules! operands {
    ($($count:literal $variant:ident $($slot:ident)+;)+) => {
        /// Tensors of one backend.
        #[derive(ExtensionType)]
        pub(super) enum Operands<B: Backend> {
            $($variant($(#[doc = stringify!($slot)] FloatTensor<B>),+),)+
        }

        impl<B: Backend> Operands<B> {
            /// # Panics
            /// If there are none or more than [`MOST_OPERANDS`].
            pub(super) fn from_vec(tensors: Vec<FloatTensor<B>>) -> Self {
                let count = tensors.len();
                let mut tensors = tensors.into_iter();
                let mut next = || tensors.next().expect("as many tensors as counted");
                match count {
                    $($count => Self::$variant($({ let $slot = next(); $slot }),+),)+
                    _ => panic!("an operator of {count} inputs, expected 1 to {MOST_OPERANDS}"),
                }
            }

            pub(super) fn into_vec(self) -> Vec<FloatTensor<B>> {
                match self {
                    $(Self::$variant($($slot),+) => vec![$($slot),+],)+
                }
            }
        }
    };
}

/// Most inputs that an operator may have here.
pub const MOST_OPERANDS: usize = 8;

operands! {
    1 One a;
    2 Two a b;
    3 Three a b c;
    4 Four a b c d;
    5 Five a b c d e;
    6 Six a b c d e f;
    7 Seven a b c d e f g;
    8 Eight a b c d e f g h;
}
