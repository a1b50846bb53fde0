//! What a model did on each sequence of a split, for tests that pair two models sequence by sequence.

use std::{collections::HashMap, fs, path::Path};

use regard_metrics::count_correct;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use super::{TrainError, evaluation::row_losses};
use crate::data::Batch;

/// The file of a run directory that [`Items::read`] reads: results on the test split, of the model that the run ends with.
pub const TEST_ITEMS: &str = "test-items.safetensors";
/// Key of the fingerprint in the file.
const FINGERPRINT: &str = "fingerprint";

/// Results by sequence, in the order of the split.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Items {
    /// Sum of the losses over the targets of each sequence, in nats.
    pub losses: Vec<f32>,
    /// Number of targets predicted of each sequence; empty where accuracy is not measured.
    pub correct: Vec<u32>,
    /// Number of targets of each sequence: one label, or tokens.
    pub targets: Vec<u32>,
    /// Hash of all targets in their order. Two models are paired only on the same ones.
    pub fingerprint: Fingerprint,
}

/// What a model did on the sequences of a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SequenceFigures {
    /// As [`Items::losses`].
    pub losses: Vec<f32>,
    /// As [`Items::correct`].
    pub correct: Vec<u32>,
}

impl SequenceFigures {
    /// By `logits [rows, outputs]` and `targets [rows]`, those of the model's [`predictions`](super::Model::predictions), which
    /// may leave out rows whose target does not count.
    pub fn of(batch: &Batch, logits: &[f32], targets: &[i32], outputs: usize, accuracy: bool) -> Self {
        let all = targets.len() == batch.targets.len();
        let (mut figures, mut row) = (Self::default(), 0);
        for own in sequences(batch) {
            let count = counted(own).count();
            let rows = row..row + if all { own.len() } else { count };
            row = rows.end;
            let (logits, targets) = (&logits[rows.start * outputs..rows.end * outputs], &targets[rows]);
            figures.losses.push(row_losses(logits, targets, outputs).sum::<f64>() as f32);
            if accuracy {
                figures.correct.push(count_correct(logits, targets, outputs) as u32);
            }
        }
        figures
    }

    /// By the losses of the targets that count, in order.
    pub fn of_losses(batch: &Batch, losses: &[f64]) -> Self {
        let mut losses = losses.iter();
        let sum = |own| losses.by_ref().take(counted(own).count()).sum::<f64>() as f32;
        Self { losses: sequences(batch).map(sum).collect(), correct: Vec::new() }
    }
}

/// FNV-1a, 64 bits, of targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    fn add(&mut self, target: i32) {
        for byte in target.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// Targets of each sequence of a batch: a label, or one for each token.
fn sequences(batch: &Batch) -> impl Iterator<Item = &[i32]> {
    let each = batch.targets.len() / batch.tokens.batch.max(1);
    batch.targets.chunks_exact(each.max(1))
}

/// Targets that count.
fn counted(targets: &[i32]) -> impl Iterator<Item = i32> {
    targets.iter().copied().filter(|target| *target >= 0)
}

impl Items {
    /// Adds the sequences of a batch by their losses, and how many of their targets were predicted where that is measured.
    pub(super) fn add(&mut self, batch: &Batch, figures: &SequenceFigures) {
        self.losses.extend(&figures.losses);
        self.correct.extend(&figures.correct);
        sequences(batch).for_each(|own| self.add_targets(own));
    }

    /// Adds an impression by the loss of its clicks together; its targets are the places of the clicks.
    pub(super) fn add_clicks(&mut self, clicked: &[bool], loss: f64) {
        self.losses.push(loss as f32);
        let places = (0..).zip(clicked).filter(|(_, clicked)| **clicked);
        self.add_targets(&places.map(|(place, _)| place).collect::<Vec<i32>>());
    }

    fn add_targets(&mut self, own: &[i32]) {
        self.targets.push(counted(own).count() as u32);
        counted(own).for_each(|target| self.fingerprint.add(target));
        // Where one sequence ends and the next begins.
        self.fingerprint.add(-1);
    }

    /// As a safetensors file: `loss` (f32), `correct` and `targets` (u32), each `[sequences]`.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let bytes = |values: &[u32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let losses: Vec<u8> = self.losses.iter().flat_map(|loss| loss.to_le_bytes()).collect();
        let (correct, targets) = (bytes(&self.correct), bytes(&self.targets));
        let view = |dtype, data| TensorView::new(dtype, vec![self.losses.len()], data).expect("four bytes each");
        let mut tensors = vec![("loss", view(Dtype::F32, &losses)), ("targets", view(Dtype::U32, &targets))];
        if !correct.is_empty() {
            tensors.push(("correct", view(Dtype::U32, &correct)));
        }
        let about = HashMap::from([(FINGERPRINT.to_owned(), format!("{:016x}", self.fingerprint.0))]);
        safetensors::serialize(tensors, Some(about)).expect("plain tensors")
    }

    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read or holds something else.
    pub fn read(path: &Path) -> Result<Self, TrainError> {
        let bytes = fs::read(path).map_err(TrainError::reading(path))?;
        Self::from_bytes(&bytes).ok_or_else(|| {
            TrainError::checkpoint(path, "holds no results by sequence, as a run leaves them; evaluate the run again")
        })
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (_, about) = SafeTensors::read_metadata(bytes).ok()?;
        let fingerprint = about.metadata().as_ref()?.get(FINGERPRINT)?;
        let fingerprint = Fingerprint(u64::from_str_radix(fingerprint, 16).ok()?);
        let tensors = SafeTensors::deserialize(bytes).ok()?;
        let words = |name: &str, dtype| -> Option<Vec<[u8; 4]>> {
            let tensor = tensors.tensor(name).ok().filter(|tensor| tensor.dtype() == dtype)?;
            Some(tensor.data().chunks_exact(4).map(|word| word.try_into().expect("four bytes")).collect())
        };
        let numbers = |name| Some(words(name, Dtype::U32)?.into_iter().map(u32::from_le_bytes).collect::<Vec<_>>());
        let losses: Vec<f32> = words("loss", Dtype::F32)?.into_iter().map(f32::from_le_bytes).collect();
        let correct = if tensors.names().contains(&"correct") { numbers("correct")? } else { Vec::new() };
        let targets = numbers("targets")?;
        let whole = losses.len() == targets.len() && (correct.is_empty() || correct.len() == losses.len());
        whole.then_some(Self { losses, correct, targets, fingerprint })
    }
}

#[cfg(test)]
mod tests {
    use regard_nn::models::TokenBatch;

    use super::*;

    fn batch(targets: &[i32], rows: usize) -> Batch {
        let length = targets.len() / rows;
        let tokens = TokenBatch { ids: vec![0; targets.len()].into(), batch: rows, length, padding: None, types: None };
        Batch { tokens, targets: targets.into(), source: None, readers: None }
    }

    #[test]
    fn sequences_are_told_apart_with_and_without_the_rows_that_do_not_count() {
        let three = 3f32.ln();
        let whole = [0.0, 0.0, three, 0.0, 9.0, 9.0, 0.0, three];
        let batch = batch(&[1, 0, -1, 0], 2);
        let (mut all, mut counted) = (Items::default(), Items::default());
        all.add(&batch, &SequenceFigures::of(&batch, &whole, &batch.targets, 2, true));
        let logits = [0.0, 0.0, three, 0.0, 0.0, three];
        counted.add(&batch, &SequenceFigures::of(&batch, &logits, &[1, 0, 0], 2, true));
        assert_eq!(all, counted);
        let mut by_loss = Items::default();
        let losses = [2f64.ln(), (4.0f64 / 3.0).ln(), 4f64.ln()];
        by_loss.add(&batch, &SequenceFigures::of_losses(&batch, &losses));
        assert_eq!((&by_loss.targets, by_loss.fingerprint), (&all.targets, all.fingerprint));
        assert!(by_loss.losses.iter().zip(&all.losses).all(|(one, other)| (one - other).abs() < 1e-6), "{by_loss:?}");
        assert_eq!((&all.targets[..], &all.correct[..]), (&[2, 1][..], &[1, 0][..]));
        let expected = [2f32.ln() + (4.0f32 / 3.0).ln(), 4f32.ln()];
        assert!(all.losses.iter().zip(expected).all(|(seen, expected)| (seen - expected).abs() < 1e-6), "{all:?}");
        // One label a sequence.
        let mut labels = Items::default();
        let targets = [1, 0];
        let tokens = batch.tokens.clone();
        let batch = Batch { tokens, targets: targets.into(), source: None, readers: None };
        labels.add(&batch, &SequenceFigures::of(&batch, &whole[..4], &targets, 2, true));
        assert_eq!((&labels.targets[..], &labels.correct[..]), (&[1, 1][..], &[0, 1][..]));
    }

    #[test]
    fn other_targets_and_other_sequences_have_another_fingerprint() {
        let of = |targets: &[i32], rows| {
            let mut items = Items::default();
            items.add(&batch(targets, rows), &SequenceFigures::default());
            items.fingerprint
        };
        assert_eq!(of(&[0, 1, 1, 0], 2), of(&[0, 1, 1, 0], 2));
        assert_ne!(of(&[0, 1, 1, 0], 2), of(&[0, 1, 1, 0], 1));
        assert_ne!(of(&[0, 1, 1, 0], 2), of(&[0, 1, 1, 1], 2));
    }

    #[test]
    fn a_file_holds_what_was_measured_and_a_damaged_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(TEST_ITEMS);
        let mut items = Items { losses: vec![0.5, 7.25], correct: vec![1, 0], targets: vec![1, 3], ..Items::default() };
        for _ in 0..2 {
            let bytes = items.to_bytes();
            fs::write(&path, &bytes).unwrap();
            assert_eq!(Items::read(&path).unwrap(), items);
            fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
            assert!(Items::read(&path).unwrap_err().to_string().contains("no results by sequence"));
            items.correct.clear();
        }
    }
}
