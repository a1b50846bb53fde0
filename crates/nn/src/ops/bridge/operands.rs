//! Float tensors of any rank and number on their way to a backend.

use burn::backend::{Backend, DispatchTensor, ExtensionType, TensorMetadata, tensor::FloatTensor};
use burn::tensor::Tensor;

/// A float tensor of any rank. Cloning shares the elements.
#[derive(Clone, Debug)]
pub struct Operand(pub(super) DispatchTensor);

impl Operand {
    /// Sizes of the axes.
    pub fn shape(&self) -> Vec<usize> {
        self.0.shape().to_vec()
    }
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
