//! The papers' figures and tables by name: each is an [`Entry`] with a claim that is decided by its own numbers.
//!
//! An entry runs at the scales that it has, and writes `outcome.json` and a report to its own directory; recorded entries
//! are not run again, so that a run over all entries continues where it stopped. The page of outcomes ([`page`]) is
//! written only from those files.
//!
//! An entry measures, and judges one [`Clause`] after another. Its verdict is that on all clauses of the paper together;
//! what the paper does not say is an observation, and no part of it.

mod answers;
mod catalogue;
mod clause;
mod entries;
mod outcome;
mod page;
mod statistics;
mod verdict;
mod workbench;

pub use answers::answers;
pub use catalogue::{CATALOGUE, Here, Item};
pub use clause::{Border, Clause};
pub use entries::ENTRIES;
pub use outcome::{Outcome, OutcomeError};
pub use page::{listing, page};
pub use statistics::{Estimate, Looks, SEEDS, confidence};
pub use verdict::Verdict;
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
    /// No paper: what this project claims of the planner of [`crate::swap`].
    Planner,
}

impl Paper {
    /// All of them, in the order of the page.
    pub const ALL: [Self; 6] = [Self::Mgk, Self::Scatterbrain, Self::Moa, Self::Fastformer, Self::Nope, Self::Planner];
}

impl fmt::Display for Paper {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Mgk => "MGK (arXiv 2110.08678)",
            Self::Scatterbrain => "Scatterbrain (arXiv 2110.15343)",
            Self::Moa => "MoA (arXiv 2210.05144)",
            Self::Fastformer => "Fastformer (arXiv 2108.09084)",
            Self::Nope => "NoPE (arXiv 2305.13571)",
            Self::Planner => "The planner of regard swap (no paper)",
        })
    }
}

/// Scale of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Minutes: a first look, which often decides nothing.
    Quick,
    /// What two cores do in about an hour.
    Here,
    /// The paper's data, size and number of steps.
    Paper,
}

impl Scale {
    /// All of them, from the smallest.
    pub const ALL: [Self; 3] = [Self::Quick, Self::Here, Self::Paper];

    /// The name in files and options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Here => "here",
            Self::Paper => "paper",
        }
    }

    /// The folder for `name` at this scale.
    fn named(self, name: &str) -> String {
        match self {
            Self::Quick => name.to_owned(),
            Self::Here | Self::Paper => format!("{name}-{}", self.name()),
        }
    }
}

/// How an entry runs at one scale.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The scale.
    pub scale: Scale,
    /// What is done.
    pub setting: &'static str,
    /// Every difference from what the paper did.
    pub differences: &'static [&'static str],
    /// Approximate minutes on two cores; shared models count for each entry.
    pub minutes: f64,
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
    /// The claim, as the paper makes it.
    pub claim: &'static str,
    /// Data needed besides the program.
    pub data: &'static str,
    /// Folders of trained models that it reads, below [`Workbench::models`].
    pub models: &'static [&'static str],
    /// What the paper did.
    pub paper_setting: &'static str,
    /// The scales that it has, from the smallest.
    pub setups: &'static [Setup],
    /// Measures, and judges the claim by the measurements.
    pub run: Run,
}

impl Entry {
    /// How it runs at this scale, if it does.
    pub fn setup(&self, scale: Scale) -> Option<&'static Setup> {
        self.setups.iter().find(|setup| setup.scale == scale)
    }

    /// How it runs if no scale is asked for: the smallest.
    pub fn first(&self) -> &'static Setup {
        &self.setups[0]
    }
}

/// Result of an entry.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The claim, clause by clause, and observations.
    pub clauses: Vec<Clause>,
    /// One or two sentences with the most telling figures.
    pub statement: String,
    /// The numbers.
    pub tables: Vec<Table>,
    /// Charts with their file names.
    pub charts: Vec<(String, Chart)>,
}

impl Finding {
    /// The verdict on all clauses of the paper together; `None` if there are none.
    pub fn verdict(&self) -> Option<Verdict> {
        Verdict::all(self.clauses.iter().filter(|clause| clause.of_paper).map(|clause| clause.verdict))
    }
}

/// The entry with this name.
pub fn find(name: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_say_what_they_run_and_how_it_differs() {
        for entry in ENTRIES {
            let scales: Vec<Scale> = entry.setups.iter().map(|setup| setup.scale).collect();
            assert!(!scales.is_empty() && scales.is_sorted_by(|one, other| one < other), "{}: {scales:?}", entry.name);
            assert_eq!(ENTRIES.iter().filter(|other| other.name == entry.name).count(), 1, "{} twice", entry.name);
            for setup in entry.setups {
                let text = [entry.claim, entry.paper_setting, setup.setting]
                    .into_iter()
                    .chain(setup.differences.iter().copied());
                assert!(text.into_iter().all(|text| !text.is_empty()), "{}", entry.name);
                let same = setup.scale == Scale::Paper;
                assert!(
                    same || !setup.differences.is_empty(),
                    "{} at {} differs in nothing",
                    entry.name,
                    setup.scale.name()
                );
            }
        }
    }

    #[test]
    fn observations_are_no_part_of_the_verdict() {
        let of = |clauses| Finding { clauses, statement: String::new(), tables: Vec::new(), charts: Vec::new() };
        let observed = Clause::ours("y").exactly(false);
        let verdict = |clauses| of(clauses).verdict();
        assert_eq!(verdict(vec![Clause::paper("x").exactly(true), observed.clone()]), Some(Verdict::Holds));
        assert_eq!(verdict(vec![observed.clone()]), None);
        assert_eq!(verdict(vec![Clause::paper("x"), observed]), Some(Verdict::NotDecided));
    }
}
