//! Tokens of a padded batch.

use std::sync::Arc;

use regard_kernels::{Error, Padding};

/// Token numbers `[batch, length]` and which of them are real.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBatch {
    /// Token numbers row by row; padding holds any number below the vocabulary, by convention 0.
    pub ids: Arc<[i32]>,
    /// Rows.
    pub batch: usize,
    /// Tokens in a row, real or not.
    pub length: usize,
    /// Which tokens are real; all of them when absent.
    pub padding: Option<Arc<Padding>>,
    /// Type of each token, where a model has vectors for them; 0 when absent.
    pub types: Option<Arc<[i32]>>,
}

impl TokenBatch {
    /// # Errors
    /// A number of ids other than `batch * length`, or padding of other sizes.
    pub fn new(
        ids: impl Into<Arc<[i32]>>,
        batch: usize,
        length: usize,
        padding: Option<Arc<Padding>>,
    ) -> Result<Self, Error> {
        let ids = ids.into();
        if ids.len() != batch * length || ids.is_empty() {
            return Err(Error::shape("tokens", &[ids.len()], format!("{batch} x {length} entries, at least one")));
        }
        if let Some(padding) = &padding {
            Error::check_shape("valid", &[padding.batch(), padding.length()], &[batch, length])?;
        }
        Ok(Self { ids, batch, length, padding, types: None })
    }

    /// Rows of the same length without padding.
    ///
    /// # Errors
    /// A number of ids that is not a multiple of `batch`.
    pub fn full(ids: impl Into<Arc<[i32]>>, batch: usize) -> Result<Self, Error> {
        let ids = ids.into();
        let length = ids.len() / batch.max(1);
        Self::new(ids, batch, length, None)
    }

    /// The same with a type for each token.
    ///
    /// # Errors
    /// Another number of types than of tokens.
    pub fn with_types(self, types: impl Into<Arc<[i32]>>) -> Result<Self, Error> {
        let types = types.into();
        if types.len() != self.ids.len() {
            return Err(Error::shape("token types", &[types.len()], format!("{} entries", self.ids.len())));
        }
        Ok(Self { types: Some(types), ..self })
    }

    /// Number of real tokens.
    pub fn real_tokens(&self) -> usize {
        match &self.padding {
            Some(padding) => padding.as_slice().iter().filter(|&&real| real != 0).count(),
            None => self.ids.len(),
        }
    }

    /// Checks that a model can take the batch.
    ///
    /// # Errors
    /// A token outside the vocabulary, or more tokens than the model has positions.
    pub fn check(&self, vocabulary: usize, context: usize) -> Result<(), Error> {
        if self.length > context {
            return Err(Error::option(
                "length of the sequences",
                self.length,
                format!("at most {context}, the model's"),
            ));
        }
        match self.ids.iter().find(|&&id| id < 0 || id as usize >= vocabulary) {
            Some(id) => Err(Error::option("token", id, format!("at least 0 and below the vocabulary ({vocabulary})"))),
            None => Ok(()),
        }
    }
}

/// Special token numbers, the same in every vocabulary of translators and masked models.
pub mod special {
    /// Padding.
    pub const PADDING: i32 = 0;
    /// Before the first token of a target.
    pub const BEGIN: i32 = 1;
    /// After the last token of a source and of a target.
    pub const END: i32 = 2;
    /// Text that the vocabulary cannot spell.
    pub const UNKNOWN: i32 = 3;
    /// Replaces a token that a masked model is to predict.
    pub const MASK: i32 = 4;
}
