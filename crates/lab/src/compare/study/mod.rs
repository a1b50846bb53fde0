//! Studies: tasks, settings, models and seeds in one file, each combination a run in its own directory.
//!
//! A [`Study`] is resolved from a file, by [`read`], or put together from directories, as [`Merged`]. Its cells are trained
//! one by one; one that fails is recorded with its reason and stops no other. [`Results`] holds what there is, with
//! [`pairs`] that say which differences are significant, as tables and a page.

mod cell;
mod directory;
mod file;
mod merge;
mod page;
pub mod pairs;
mod plan;
mod record;
mod run;
mod shard;
mod slurm;
mod tables;

pub use cell::{Cell, Group, Place, Study, TaskAxis};
pub use directory::{cell_directory, open, records, remove};
pub use file::read;
pub use merge::{Merged, merge};
pub use page::{Files, Results};
pub use plan::Plan;
pub use record::{CellRecord, Finished, Outcome, Reason};
pub use run::{Observe, run};
pub use shard::Shard;
pub use slurm::{quoted, slurm};
pub use tables::{Figure, Measure};
