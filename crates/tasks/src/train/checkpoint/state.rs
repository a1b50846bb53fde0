//! `state.json`: where a run stands.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{digest::FileSum, train::LossScale};

/// Version of the checkpoint format. The previous one had no checksum of `state.json`.
pub(super) const FORMAT: u32 = 2;
const WITHOUT_CHECKSUM: u32 = 1;

/// Separates the checksum from the text that it covers.
const CHECKSUM: &str = ",\n  \"sha256\": \"";
const END: &str = "\"\n}\n";

/// Where a run stands beside its tensors. The learning rate, the items of the next batch and the dropout keys are
/// functions of step and seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunState {
    /// Updates done.
    pub step: usize,
    /// Seed of the run.
    pub seed: u64,
    /// Sequences per batch, and batches per update: with `step`, the position in the data.
    pub batch: usize,
    /// See `batch`.
    pub accumulate: usize,
    /// The best evaluation so far.
    pub best: Option<Best>,
    /// Evaluations since the best.
    pub evaluations_since_best: usize,
    /// Time spent in training steps.
    pub seconds: f64,
    /// The factor of the next update's loss, in runs with `train.precision = "f16"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
}

/// The best evaluation on the validation split.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// Updates done then.
    pub step: usize,
    /// The metric that chooses: see [`Evaluation::score`](crate::train::Evaluation::score).
    pub score: f64,
}

/// The whole of `state.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StateFile {
    pub format: u32,
    pub run: RunState,
    pub files: BTreeMap<String, FileSum>,
    /// Of the text before the comma before this key; not in the first format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
}

/// Why a `state.json` is not used.
#[derive(Debug)]
pub(super) enum StateProblem {
    /// It is not what was written.
    Damaged(String),
    /// It is of another version of the program.
    Format(String),
}

impl StateFile {
    pub fn new(run: RunState, files: BTreeMap<String, FileSum>) -> Self {
        Self { format: FORMAT, run, files, sha256: None }
    }

    /// The content of the file.
    pub fn to_text(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("numbers and strings");
        let content = text.strip_suffix("\n}").expect("a structure with fields");
        format!("{content}{CHECKSUM}{}{END}", FileSum::of(content.as_bytes()).sha256)
    }

    /// Reads the content of the file.
    pub fn parse(bytes: &[u8]) -> Result<Self, StateProblem> {
        let state: Self = serde_json::from_slice(bytes)
            .map_err(|error| StateProblem::Damaged(format!("not the state of a run ({error})")))?;
        let text = std::str::from_utf8(bytes).ok();
        let parts = text.and_then(|text| text.strip_suffix(END)?.rsplit_once(CHECKSUM));
        let sound = parts.map(|(content, digest)| FileSum::of(content.as_bytes()).sha256 == digest);
        match (state.format, &state.sha256, sound) {
            (FORMAT, Some(_), Some(true)) | (WITHOUT_CHECKSUM, None, _) => Ok(state),
            (WITHOUT_CHECKSUM | FORMAT, ..) | (_, Some(_), None | Some(false)) => {
                Err(StateProblem::Damaged("its SHA-256 is not that of its text: damaged or edited".into()))
            }
            (other, ..) => Err(StateProblem::Format(format!(
                "format {other}, expected {WITHOUT_CHECKSUM} or {FORMAT}; use the version of the program that wrote it"
            ))),
        }
    }
}
