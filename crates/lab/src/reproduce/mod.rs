//! The papers' figures and tables by name: each is an [`Entry`] with a claim that is decided by its own numbers.
//!
//! An entry runs at the paper's scale or at a reduced one for two cores, and writes `outcome.json` and a report to its
//! own directory; recorded entries are not run again, so that a run over all entries continues where it stopped. The
//! page of outcomes ([`page`]) is written only from those files.

mod entries;
mod outcome;
mod page;
mod verdict;
mod workbench;

pub use entries::ENTRIES;
pub use outcome::{Outcome, OutcomeError};
pub use page::{listing, page};
pub use verdict::{Difference, Verdict};
pub use workbench::{Compared, Observer, Recipe, Workbench};

use std::fmt;

use regard_report::{Chart, Table};
use regard_tasks::Failure;
use serde::{Deserialize, Serialize};

/// Source of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Paper {
    /// Transformer with a mixture of Gaussian keys, arXiv 2110.08678.
    Mgk,
    /// Scatterbrain, arXiv 2110.15343.
    Scatterbrain,
    /// Mixture of attention heads, arXiv 2210.05144.
    Moa,
    /// Fastformer, arXiv 2108.09084.
    Fastformer,
    /// Latent positional information in the self-attention variance, arXiv 2305.13571.
    Nope,
    /// The planner of [`crate::swap`], of which no paper tells.
    Planner,
}

impl fmt::Display for Paper {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Mgk => "MGK (arXiv 2110.08678)",
            Self::Scatterbrain => "Scatterbrain (arXiv 2110.15343)",
            Self::Moa => "MoA (arXiv 2210.05144)",
            Self::Fastformer => "Fastformer (arXiv 2108.09084)",
            Self::Nope => "NoPE (arXiv 2305.13571)",
            Self::Planner => "Regard (no paper)",
        })
    }
}

/// Scale of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// For two cores, in minutes.
    #[default]
    Reduced,
    /// As in the paper, or as close as available data allow.
    Paper,
}

impl Scale {
    /// The name in files and options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reduced => "reduced",
            Self::Paper => "paper",
        }
    }

    /// The folder for `name` at this scale.
    fn named(self, name: &str) -> String {
        match self {
            Self::Reduced => name.to_owned(),
            Self::Paper => format!("{name}-paper"),
        }
    }

    /// The preset of ListOps at this scale.
    fn listops(self) -> &'static str {
        match self {
            Self::Reduced => "quick",
            Self::Paper => "lra-listops",
        }
    }
}

/// Function that runs an entry.
pub type Run = fn(&Workbench, Scale) -> Result<Finding, Failure>;

/// One figure or table of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name on the command line.
    pub name: &'static str,
    /// The paper.
    pub paper: Paper,
    /// Its figures and tables.
    pub figures: &'static str,
    /// The claim, in falsifiable form.
    pub claim: &'static str,
    /// Data needed besides the program.
    pub data: &'static str,
    /// Folders of trained models that it reads, below [`Workbench::models`].
    pub models: &'static [&'static str],
    /// The setting at the paper's scale.
    pub paper_setting: &'static str,
    /// The setting for two cores.
    pub reduced_setting: &'static str,
    /// Approximate minutes on two cores, at the reduced scale and at the paper's; shared models count for each entry.
    pub minutes: [f64; 2],
    /// Measures, and judges the claim by the measurements.
    pub run: Run,
}

impl Entry {
    /// The setting at this scale.
    pub fn setting(&self, scale: Scale) -> &'static str {
        match scale {
            Scale::Reduced => self.reduced_setting,
            Scale::Paper => self.paper_setting,
        }
    }

    /// Approximate minutes on two cores at this scale.
    pub fn minutes(&self, scale: Scale) -> f64 {
        match scale {
            Scale::Reduced => self.minutes[0],
            Scale::Paper => self.minutes[1],
        }
    }
}

/// Result of an entry.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The verdict.
    pub verdict: Verdict,
    /// One or two sentences with the deciding figures.
    pub statement: String,
    /// The numbers.
    pub tables: Vec<Table>,
    /// Charts with their file names.
    pub charts: Vec<(String, Chart)>,
}

/// The entry with this name.
pub fn find(name: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.name == name)
}
