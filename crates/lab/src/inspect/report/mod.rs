//! An inspection as tables, charts, images, files and an HTML page.

mod charts;
mod tables;

use regard_report::{Block, Report, Section, Table};
use regard_tasks::train::Environment;
use serde_json::json;

use super::{
    parameters::KeyProjection,
    pictures::{Picture, projections},
    survey::{Attention, Part, Survey},
};
use crate::moments::Moments;
use crate::record::{Record, Shown};

/// A survey, with the context needed to judge it.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The measurements.
    pub survey: Survey,
    /// The requested parts.
    pub parts: Vec<Part>,
    /// Key projections to draw.
    pub projections: Vec<KeyProjection>,
    /// Short description of model and data.
    pub source: String,
    /// The command line.
    pub command: String,
    /// Machine, version and date.
    pub environment: Environment,
}

impl Inspection {
    fn table(&self, part: Part) -> Option<Table> {
        let attentions = &self.survey.attentions;
        let table = match part {
            Part::Entropy => tables::entropy(attentions),
            Part::Rank => tables::rank(attentions),
            Part::Redundancy => tables::redundancy(attentions),
            Part::Likelihood => tables::likelihood(attentions),
            Part::Learned => tables::learned(attentions),
            Part::Maps | Part::Keys => return None,
        };
        (!table.rows.is_empty()).then_some(table)
    }

    fn section(&self, part: Part) -> Section {
        let attentions = &self.survey.attentions;
        let drawn = |start: &str| -> Vec<Block> {
            let own = attentions.iter().flat_map(|attention| &attention.pictures);
            own.filter(|picture| picture.name.starts_with(start)).cloned().map(heat_map).collect()
        };
        let (title, more) = match part {
            Part::Entropy => ("Entropy", charts::entropy(attentions)),
            Part::Rank => ("Rank", charts::rank(attentions)),
            Part::Redundancy => ("Redundancy of heads", charts::redundancy(attentions)),
            Part::Likelihood => ("Likelihood of queries", Vec::new()),
            Part::Learned => ("What is learned", Vec::new()),
            Part::Maps => ("Attention", drawn("attention")),
            Part::Keys => {
                let mut blocks = drawn("keys");
                blocks.extend(projections(&self.projections).into_iter().map(heat_map));
                ("Keys", blocks)
            }
        };
        let blocks = self.table(part).map(Block::Table).into_iter().chain(more).collect();
        Section { title: title.into(), blocks }
    }

    /// A few sentences with the means over all heads.
    fn summary(&self) -> String {
        let Survey { sequences, tokens, attentions, .. } = &self.survey;
        let mut text =
            format!("{}, {sequences} sequences of {:.0} tokens.", self.source, *tokens as f64 / *sequences as f64);
        let over = |of: &dyn Fn(&Attention) -> Vec<Moments>| {
            let all: Vec<Moments> = attentions.iter().flat_map(of).collect();
            Moments::joined(&all).value()
        };
        if let Some(entropy) = over(&|attention| attention.entropy.iter().map(|head| head.normalised).collect()) {
            text += &format!(" Entropy {:.0} % of the largest possible.", 100.0 * entropy);
        }
        let effective = |attention: &Attention| {
            let share = attention.ranks.iter().map(|rank| rank.effective / rank.full as f64);
            vec![Moments::of_finite(share)]
        };
        if let Some(rank) = over(&effective) {
            text += &format!(" Effective rank {:.0} % of the full one.", 100.0 * rank);
        }
        if let Some(distance) = over(&|attention| attention.redundancy.iter().map(|pair| pair.distance).collect()) {
            text += &format!(" Distance of heads {distance:.3} of at most 1.414.");
        }
        text
    }
}

impl Shown for Inspection {
    fn record(&self) -> Record<'_> {
        Record { command: &self.command, environment: &self.environment }
    }

    fn report(&self) -> Report {
        Report {
            title: "Inside a model's attention".into(),
            summary: self.summary(),
            facts: self.record().facts(),
            sections: self.parts.iter().map(|part| self.section(*part)).filter(|s| !s.blocks.is_empty()).collect(),
        }
    }

    fn tables(&self) -> Vec<Table> {
        self.parts.iter().filter_map(|part| self.table(*part)).collect()
    }

    fn to_json(&self) -> serde_json::Value {
        let parts: Vec<&str> = self.parts.iter().map(|part| part.name()).collect();
        json!({
            "source": self.source,
            "parts": parts,
            "command": self.command,
            "environment": self.environment,
            "survey": self.survey,
        })
    }
}

fn heat_map(picture: Picture) -> Block {
    Block::HeatMap { name: picture.name, map: picture.map }
}
