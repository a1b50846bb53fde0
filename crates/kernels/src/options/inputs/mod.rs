//! The inputs of an operator: shape, role, and default content.

mod fit;

use crate::{
    AttentionOptions, AttentionShape, Cosine, Error, Layout, Mechanism, Operator, draws,
    features::{RowNorms, RowsDrawn},
    mechanism::{AdditiveScores, Inference, Prior, Variances},
    random::substream,
};
pub use fit::Shapes;

/// Largest tensor, in elements, that is drawn or filled in: 1 GiB of float32.
const MOST: usize = 1 << 28;

/// Sizes of one call of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputSizes {
    /// Axis order.
    pub layout: Layout,
    /// Batch rows `B`.
    pub batch: usize,
    /// Queries `N`.
    pub queries: usize,
    /// Keys `S`.
    pub keys: usize,
    /// Width `D` of the heads of queries and keys.
    pub head_width: usize,
    /// Width of the heads of values.
    pub value_width: usize,
    /// Channels per token: those of all heads, except for moa, whose heads have any width.
    pub width: usize,
}

impl InputSizes {
    /// Sizes of self-attention over `tokens` tokens with `heads` heads.
    pub fn new(layout: Layout, batch: usize, tokens: usize, heads: usize, head_width: usize) -> Self {
        let width = heads.saturating_mul(head_width);
        Self { layout, batch, queries: tokens, keys: tokens, head_width, value_width: head_width, width }
    }
}

/// Role of an input in training and decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// One row per token.
    Data {
        /// Axis of the tokens.
        axis: usize,
    },
    /// Learned, the same for all tokens.
    Parameter,
    /// Random, without a gradient.
    Constant,
}

/// Default content of an input.
#[derive(Clone, Debug, PartialEq)]
pub enum Fill {
    /// None: it must be given.
    Given,
    /// Variances of the options, for heads of this width.
    Variances(Variances, usize),
    /// A constant.
    Same(f64),
    /// Logs of equal probabilities over axis 1.
    UniformPrior,
    /// [`draws::projection`].
    Projection(RowsDrawn, RowNorms),
    /// [`draws::directions`].
    Directions,
    /// [`draws::rotations`].
    Rotations,
}

/// One input of an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct InputSpec {
    /// Its name in [`Operator::inputs`].
    pub name: &'static str,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its role.
    pub role: Role,
    /// Its default content.
    pub fill: Fill,
}

impl InputSpec {
    /// The default elements, drawn from a separate stream of `seed`; none if the input must be given.
    ///
    /// # Errors
    /// A size that cannot be made, variances that do not fit it.
    pub fn numbers(&self, seed: u64) -> Result<Option<Vec<f64>>, Error> {
        // Stream 1 is used by `regard attend` for shifts.
        let stream = match self.fill {
            Fill::Given | Fill::Variances(..) | Fill::Same(_) | Fill::UniformPrior => 0,
            Fill::Projection(..) => 2,
            Fill::Directions => 3,
            Fill::Rotations => 4,
        };
        self.numbers_under(substream(seed, stream))
    }

    /// The same, drawn directly from a key.
    ///
    /// # Errors
    /// As for [`InputSpec::numbers`].
    pub fn numbers_under(&self, key: u64) -> Result<Option<Vec<f64>>, Error> {
        let size = |axis: usize| self.shape[axis];
        let drawn = match (&self.fill, self.count()) {
            (Fill::Given, _) => return Ok(None),
            (_, Err(error)) => return Err(error),
            (Fill::Variances(variances, width), Ok(count)) => return variances.resolve(count, *width).map(Some),
            (Fill::Same(number), Ok(count)) => return Ok(Some(vec![*number; count])),
            (Fill::UniformPrior, Ok(count)) => return Ok(Some(vec![-(size(1) as f64).ln(); count])),
            (Fill::Projection(rows, norms), _) => draws::projection(size(0), size(1), *rows, *norms, key),
            (Fill::Directions, _) => draws::directions(size(0), size(1) - 2, key),
            (Fill::Rotations, _) => draws::rotations(size(0), size(1), 2 * size(2), key),
        };
        Ok(Some(drawn.into_iter().map(f64::from).collect()))
    }

    fn count(&self) -> Result<usize, Error> {
        let count = self.shape.iter().try_fold(1usize, |count, size| count.checked_mul(*size));
        count.filter(|count| *count <= MOST).ok_or_else(|| {
            Error::shape(self.name, &self.shape, format!("a size that can be made, at most {MOST} numbers"))
        })
    }
}

impl AttentionOptions {
    /// The inputs of `operator`, which was built from these options, in its order.
    ///
    /// # Panics
    /// If the operator has an unknown input.
    pub fn inputs(&self, operator: &dyn Operator, sizes: &InputSizes) -> Vec<InputSpec> {
        let constants = operator.constants();
        let names = operator.inputs().into_iter();
        names.map(|name| self.input(name, sizes, constants.contains(&name))).collect()
    }

    fn input(&self, name: &'static str, sizes: &InputSizes, constant: bool) -> InputSpec {
        let InputSizes { layout, batch, queries, keys, head_width, value_width, width } = *sizes;
        let (heads, components, experts) = (self.heads, self.components(), self.moa.experts);
        let tensors = AttentionShape {
            batch,
            heads,
            key_heads: self.key_heads(),
            queries,
            keys,
            head_width,
            value_width,
            components,
            layout,
        };
        // The Gaussian kernel is a mixture with one component.
        let carries_components =
            self.mechanism == Mechanism::Gaussian || (self.mechanism.is_mixture() && !self.shifted());
        let per_position = self.mechanism == Mechanism::Mgk
            && (self.mixture.prior == Prior::PerPosition || self.mixture.inference == Inference::SoftEm);
        let scored = match self.fastformer.scores {
            AdditiveScores::Paper => head_width,
            AdditiveScores::Released => width,
        };
        let (features, support) = (&self.features, &self.support);
        let (shape, fill) = match name {
            "q" => (tensors.query_shape(), Fill::Given),
            "k" => (tensors.key_shape(carries_components), Fill::Given),
            "v" => (tensors.value_shape(), Fill::Given),
            "log_scale" => (vec![heads], Fill::Same(Cosine::FIRST_SCALE.ln())),
            "bias" => (vec![heads, queries, keys], Fill::Given),
            "variance" => (vec![components], Fill::Variances(self.mixture.variances.clone(), head_width)),
            "log_prior" if per_position => (vec![heads, components, keys], Fill::UniformPrior),
            "log_prior" => (vec![heads, components], Fill::UniformPrior),
            "shift" => (vec![tensors.key_heads, components, head_width], Fill::Given),
            "projection" => {
                (vec![features.rows, head_width], Fill::Projection(features.rows_drawn, features.row_norms))
            }
            "directions" => (vec![support.rounds, head_width.saturating_add(2)], Fill::Directions),
            "rotations" => (vec![support.rounds, head_width, support.hash_values(keys) / 2], Fill::Rotations),
            "x" => (vec![batch, queries, width], Fill::Given),
            "x_kv" => (vec![batch, keys, width], Fill::Given),
            "w_gate" => (vec![width, experts], Fill::Given),
            "w_query" => (vec![experts, width, head_width], Fill::Given),
            "w_key" | "w_value" => (vec![width, head_width], Fill::Given),
            "w_out" => (vec![experts, head_width, width], Fill::Given),
            "w_q" | "w_k" => (vec![heads, scored], Fill::Given),
            "w_t" => (vec![width, width], Fill::Given),
            _ => unreachable!("nothing says what input '{name}' of {} is", self.mechanism),
        };
        let role = match (name, layout) {
            _ if constant => Role::Constant,
            ("q" | "k" | "v", Layout::HeadFirst) => Role::Data { axis: shape.len() - 2 },
            ("q" | "k" | "v" | "x" | "x_kv", _) => Role::Data { axis: 1 },
            _ => Role::Parameter,
        };
        InputSpec { name, shape, role, fill }
    }
}
