//! Sequences of texts: some to learn from, others to judge by.

use std::sync::Arc;

use regard_kernels::random::{substream, unit};
use regard_nn::models::TokenBatch;
use regard_pretrained::{Folder, Head, Tokenizer};

use super::AdaptError;

/// Share of tokens hidden from a masked model, as it was trained with (Devlin et al. 2019, section 3.1).
const HIDDEN: f64 = 0.15;
/// Apart from all steps: the draws for sequences to judge by.
const JUDGES: u64 = u64::MAX;

/// Streams of a seed: the order of a round, and what is hidden of an example.
const ORDERS: u64 = 1;
const MASKS: u64 = 2;

/// What a model reads, and which of its states should say what.
#[derive(Clone, Debug)]
pub(super) struct Example {
    pub tokens: TokenBatch,
    /// Rows of `[B * N]` that count; none for a model without a head over tokens.
    pub rows: Vec<i32>,
    /// Their targets.
    pub targets: Arc<[i32]>,
}

/// The sequences of some texts.
pub(super) struct Texts {
    windows: Vec<Vec<i32>>,
    /// Number of each window that is judged by.
    held: Vec<usize>,
    objective: Targets,
    seed: u64,
}

/// What states should say.
#[derive(Clone, Copy)]
enum Targets {
    Next,
    /// By tokens behind this one.
    Hidden(u32),
    Nothing,
}

impl Texts {
    /// `ids` cut into sequences of `length` tokens, special ones around them where an encoder reads them; `held` of them, spread
    /// over all, are to judge by.
    ///
    /// # Errors
    /// Fewer than one sequence to learn from; a masked model without a token that hides others.
    pub fn new(
        folder: &Folder,
        tokenizer: &Tokenizer,
        ids: &[u32],
        length: usize,
        held: usize,
        seed: u64,
    ) -> Result<Self, AdaptError> {
        let objective = match folder.architecture().head {
            Head::Language { .. } => Targets::Next,
            Head::Masked { .. } => match tokenizer.special().mask {
                Some(mask) => Targets::Hidden(mask),
                None => return Err(AdaptError::NoMask),
            },
            _ => Targets::Nothing,
        };
        let around = match objective {
            Targets::Next => Vec::new(),
            _ => tokenizer.encode("", true, None)?.ids,
        };
        let (before, after) = around.split_at(around.len().div_ceil(2));
        let inner = length.saturating_sub(around.len());
        let count = if inner < 2 { 0 } else { ids.len() / inner };
        if count <= held {
            let expected = (held + 1).saturating_mul(inner.max(2));
            return Err(AdaptError::Short { seen: ids.len(), expected, held, length });
        }
        let window = |ids: &[u32]| [before, ids, after].concat().into_iter().map(|id| id as i32).collect();
        let windows = ids.chunks_exact(inner).map(window).collect();
        let held = (0..held).map(|number| (2 * number + 1) * count / (2 * held)).collect();
        Ok(Self { windows, held, objective, seed })
    }

    /// Sequences to learn from.
    pub fn training(&self) -> usize {
        self.windows.len() - self.held.len()
    }

    /// Those to judge by.
    pub fn judges(&self) -> Result<Vec<Example>, AdaptError> {
        let one = |(number, at): (usize, &usize)| self.example(&[(*at, substream(JUDGES, number as u64))]);
        self.held.iter().enumerate().map(one).collect()
    }

    /// Those of a step, the same whatever came before: each once, in a new order in each round through the texts.
    pub fn batch(&self, step: usize, batch: usize) -> Result<Example, AdaptError> {
        let training: Vec<usize> = (0..self.windows.len()).filter(|at| !self.held.contains(at)).collect();
        let [orders, masks] = [ORDERS, MASKS].map(|stream| substream(self.seed, stream));
        let rows = (step * batch..(step + 1) * batch).map(|number| {
            let key = substream(orders, (number / training.len()) as u64);
            let mut order = training.clone();
            order.sort_by_key(|at| substream(key, *at as u64));
            (order[number % order.len()], substream(masks, number as u64))
        });
        self.example(&rows.collect::<Vec<_>>())
    }

    /// Windows, each with the key of what is hidden of it.
    fn example(&self, which: &[(usize, u64)]) -> Result<Example, AdaptError> {
        let length = self.windows[0].len();
        let (mut ids, mut rows, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        for (b, (window, key)) in which.iter().enumerate() {
            let (window, first) = (&self.windows[*window], b * length);
            ids.extend_from_slice(window);
            match self.objective {
                Targets::Next => {
                    rows.extend((first..first + length - 1).map(|row| row as i32));
                    targets.extend_from_slice(&window[1..]);
                }
                Targets::Hidden(mask) => {
                    let drawn = |at: &usize| unit(substream(*key, *at as u64)) < HIDDEN;
                    let mut hidden: Vec<usize> = (1..length - 1).filter(drawn).collect();
                    if hidden.is_empty() {
                        hidden.push(length / 2);
                    }
                    for at in hidden {
                        rows.push((first + at) as i32);
                        targets.push(window[at]);
                        ids[first + at] = mask as i32;
                    }
                }
                Targets::Nothing => {}
            }
        }
        Ok(Example { tokens: TokenBatch::full(ids, which.len())?, rows, targets: targets.into() })
    }
}
