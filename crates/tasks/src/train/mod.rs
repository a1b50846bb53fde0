//! The training loop.
//!
//! Everything random is a function of `(seed, step)`: the items of a batch, the draws of dropout. So a run is its
//! parameters, the moments of its optimizer and a few numbers, and one resumed from a [`Checkpoint`] continues bit for
//! bit, on any number of threads.

mod average;
mod checkpoint;
mod config;
mod environment;
mod error;
mod evaluation;
mod files;
mod gradients;
mod items;
mod language;
mod lock;
mod loss_scale;
mod measured;
mod model;
mod optimizer;
mod parallel;
mod ranking;
mod report;
mod routers;
mod run_directory;
mod schedule;
mod summarize;
mod tensorboard;
mod trainer;
mod translate;

pub use checkpoint::{
    Best, Checkpoint, Checkpoints, HostTensor, HostTensors, RunState, decode_tensors, encode_tensors,
};
pub use config::{OptimizerConfig, ScheduleConfig, ScheduleKind, TrainConfig};
pub use environment::Environment;
pub use error::TrainError;
pub(crate) use evaluation::{confused, row_losses};
pub use evaluation::{evaluate, evaluate_by_ranks};
pub use items::{Fingerprint, Items, TEST_ITEMS};
pub use language::{LanguageFigures, PositionLoss};
pub use lock::{DirectoryLock, occupied, sweep};
pub use loss_scale::LossScale;
pub use model::Model;
pub(crate) use model::check_head;
pub use optimizer::{AdamW, Moments};
pub use ranking::{RankingFigures, RankingScores};
pub use report::{ClassScores, Evaluation, Progress, Record, Silent, StepReport, ValueScores};
pub use routers::RouterReport;
pub(crate) use run_directory::run_within;
pub use run_directory::{
    CHECKPOINTS, CONFIG, ENVIRONMENT, Existing, METRICS, REPORTS, RunDirectory, TOKENIZER, check_vocabulary,
};
pub use summarize::{RougeScores, SummaryScores, measure_rouge};
pub use trainer::{Outcome, Trainer};
pub use translate::{Translation, measure_bleu, summarize, translate, translations};

pub use crate::data::{Batch, Split, split_batches};
