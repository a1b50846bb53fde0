//! Keys and values of a sequence that many queries attend to.

use burn::tensor::{Int, Tensor, TensorData};

/// Keys and values of a sequence as its layer projected them, once for all queries that attend to them.
///
/// A decoder that writes token by token reads the same second sequence at every step: see
/// [`Attention::project_keys`](super::Attention::project_keys).
#[derive(Clone, Debug)]
pub enum KeyState {
    /// One key per position.
    Single {
        /// `[B,S,Hk,D]`; absent where queries are the keys.
        k: Option<Tensor<4>>,
        /// `[B,S,Hk,D]`.
        v: Tensor<4>,
    },
    /// Several keys per position.
    Components {
        /// `[B,S,M,Hk,D]`, one component where a shift makes the others.
        k: Tensor<5>,
        /// `[B,S,Hk,D]`.
        v: Tensor<4>,
    },
    /// The states `[B,S,d]` themselves, for layers that project them anew each time.
    States(Tensor<3>),
}

impl KeyState {
    /// Batch rows `rows`, in that order; rows may repeat or be left out.
    ///
    /// # Panics
    /// If a row does not exist.
    #[must_use]
    pub fn select(self, rows: &[usize]) -> Self {
        match self {
            Self::Single { k, v } => Self::Single { k: k.map(|k| select_rows(k, rows)), v: select_rows(v, rows) },
            Self::Components { k, v } => Self::Components { k: select_rows(k, rows), v: select_rows(v, rows) },
            Self::States(states) => Self::States(select_rows(states, rows)),
        }
    }

    /// The same keys with other values `[B,S,Hk,D]`, to see what the heads would output for these. `None` where keys and
    /// values are projected anew each time.
    #[must_use]
    pub fn with_values(self, v: Tensor<4>) -> Option<Self> {
        match self {
            Self::Single { k, .. } => Some(Self::Single { k, v }),
            Self::Components { k, .. } => Some(Self::Components { k, v }),
            Self::States(_) => None,
        }
    }

    /// Positions.
    pub fn length(&self) -> usize {
        match self {
            Self::Single { v, .. } | Self::Components { v, .. } => v.dims()[1],
            Self::States(states) => states.dims()[1],
        }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        let floats = match self {
            Self::Single { k, v } => k.as_ref().map_or(0, |k| k.shape().num_elements()) + v.shape().num_elements(),
            Self::Components { k, v } => k.shape().num_elements() + v.shape().num_elements(),
            Self::States(states) => states.shape().num_elements(),
        };
        floats * size_of::<f32>()
    }

    pub(crate) fn single(self) -> (Option<Tensor<4>>, Tensor<4>) {
        match self {
            Self::Single { k, v } => (k, v),
            _ => unreachable!("{OTHER_LAYER}"),
        }
    }

    pub(crate) fn components(self) -> (Tensor<5>, Tensor<4>) {
        match self {
            Self::Components { k, v } => (k, v),
            _ => unreachable!("{OTHER_LAYER}"),
        }
    }
}

const OTHER_LAYER: &str = "keys come from the layer that attends to them";

fn select_rows<const D: usize>(x: Tensor<D>, rows: &[usize]) -> Tensor<D> {
    let numbers: Vec<i64> = rows.iter().map(|&row| row as i64).collect();
    let numbers = Tensor::<1, Int>::from_data(TensorData::new(numbers, [rows.len()]), &x.device());
    x.select(0, numbers)
}
