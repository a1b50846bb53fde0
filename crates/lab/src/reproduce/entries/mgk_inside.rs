//! Effects of mixtures of keys inside trained models: ranks of attention matrices, distances between heads, likelihood of
//! queries. All matrices of a model are one unit together: the seeds decide.

use regard_report::{Axis, Cell, Chart, Column, Data, Format, Sample, Series, Table};
use regard_tasks::{Failure, train::Split};

use crate::{
    compare::RunResult,
    inspect::{Attention, Part, Plan, Recording, Survey, survey},
    moments::Moments,
    reproduce::{Clause, Entry, Estimate, Finding, Paper, Scale, Setup, Workbench, confidence},
};

const PAPER: &str = "Models of 2 layers of width 64 with heads of 32 for retrieval (4,000 bytes): softmax with 4 heads, MGK with 4 and 2. \
                     Language models of 16 layers with heads of 16 on WikiText-103 (256 words): softmax with 8 heads, MGK with 8 and 4.";
const TASKS: &str = "ListOps of 101 to 127 tokens for retrieval of 4,000 bytes";
const TEXT: &str = "4 layers on the characters of one text for 16 layers on WikiText-103";
const UNIT: &str = "nats a channel; the paper does not state its unit";
const VARIANCES: &str = "both keys have a variance of the square root of the head width, as in the paper's appendix; its section 3.4 has three times as \
                         much for the second";
const BASELINE: &str = "4 heads, which are ours; softmax, whose keys are one Gaussian each only if they are equally long, is an observation";
const QUICK: &str = "a few updates and one model of each kind: it cannot decide";
const HERE: &str = "1,600 and 1,500 updates of 32 and 8 sequences";

/// Both scales of an entry on these models.
macro_rules! setups {
    ($($own:expr),*) => {
        &[
            Setup {
                scale: Scale::Quick,
                setting: "Expressions: 2 layers of width 64, heads of 32, 100 updates of 32. Text: 4 layers of width 128, heads of 16, 256 \
                          characters, 20 updates of 8. One seed; 4 test sequences, every matrix of each.",
                differences: &[TASKS, TEXT, $($own,)* QUICK],
                minutes: 3.0,
            },
            Setup {
                scale: Scale::Here,
                setting: "Expressions: 2 layers of width 64, heads of 32, 1,600 updates of 32. Text: 4 layers of width 128, heads of 16, 256 \
                          characters, 1,500 updates of 8. Five seeds; 30 test sequences, every matrix of each.",
                differences: &[TASKS, TEXT, $($own,)* HERE],
                minutes: 60.0,
            },
        ]
    };
}

pub const RANK: Entry = Entry {
    name: "mgk-rank",
    paper: Paper::Mgk,
    figures: "figures 2 (right) and 7",
    claim: "Attention matrices of MGK have a higher rank than those of softmax, with as many heads and with half of them: more singular \
            values above 1e-6.",
    data: "embedded (tinyshakespeare), generated",
    models: &[],
    paper_setting: PAPER,
    setups: setups!(
        "the rank as a share of the full rank, since expressions differ in length",
        "the matrices of 4 or 30 sequences for 1,000 a layer",
        "singular values above 1e-6 of the largest for those above 1e-6"
    ),
    run: rank,
};

pub const REDUNDANCY: Entry = Entry {
    name: "mgk-redundancy",
    paper: Paper::Mgk,
    figures: "figures 2 (left), 6 and 9",
    claim: "Attention matrices of different heads are less alike in MGK than in softmax, with as many heads and with half of them, and attend to more \
            positions.",
    data: "embedded (tinyshakespeare), generated",
    models: &[],
    paper_setting: PAPER,
    setups: setups!(
        "the paper shows pictures; the distance of two heads' rows of attention, and the entropy of rows, are our readings of them"
    ),
    run: redundancy,
};

pub const LIKELIHOOD: Entry = Entry {
    name: "mgk-likelihood",
    paper: Paper::Mgk,
    figures: "section 3.4, likelihood",
    claim: "Queries of a trained MGK are more likely under its mixtures of keys than those of a trained model with one Gaussian at each key are \
            under these, in both layers.",
    data: "generated",
    models: &[],
    paper_setting: "Two models of 2 layers trained for retrieval: 0.180 and 0.182 of MGK against 0.187 and 0.292 of the baseline, in \
                    layers 1 and 2.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "2 layers of width 64, 4 heads of 32, 100 updates of 32 expressions, one seed; 4 test sequences, every query of each.",
            differences: &[TASKS, UNIT, VARIANCES, BASELINE, QUICK],
            minutes: 2.0,
        },
        Setup {
            scale: Scale::Here,
            setting: "2 layers of width 64, 4 heads of 32, 1,600 updates of 32 expressions, five seeds; 30 test sequences, every query of each.",
            differences: &[TASKS, UNIT, VARIANCES, BASELINE, "1,600 updates of 32 expressions"],
            minutes: 30.0,
        },
    ],
    run: likelihood,
};

/// A family of models: its name, what it is trained on, and its members.
struct Family {
    name: &'static str,
    text: bool,
    members: [(&'static str, &'static str); 3],
}

const EXPRESSIONS: Family = Family {
    name: "expressions",
    text: false,
    members: [("softmax, 4 heads", "softmax"), ("MGK, 4 heads", "mgk"), ("MGK, 2 heads", "mgk:heads=2")],
};
/// The baseline of the likelihood.
const ONE_GAUSSIAN: (&str, &str) = ("one Gaussian, 4 heads", "gaussian");
/// Language models, which others measure too.
pub(super) const TEXT_MODELS: [(&str, &str); 3] =
    [("softmax, 8 heads", "softmax"), ("MGK, 8 heads", "mgk"), ("MGK, 4 heads", "mgk:heads=4")];
const CHARACTERS: Family = Family { name: "text", text: true, members: TEXT_MODELS };
/// Shown by the paper without a word on them.
const LINEAR: Family = Family {
    name: "expressions, linear",
    text: false,
    members: [("linear, 4 heads", "linear"), ("MLK, 4 heads", "mlk"), ("MLK, 2 heads", "mlk:heads=2")],
};

fn expressions_recipe(scale: Scale, mechanisms: &[&str]) -> String {
    let models = "preset = \"quick\"\nheads = 4\n\n[model]\nhead_width = 32\n\n[task.listops]\nmin_length = 100\nmax_length = 128\n";
    trained(models, if scale == Scale::Quick { 100 } else { 1_600 }, 32, scale, mechanisms)
}

/// Language models with heads of 16, which others measure too.
pub(super) fn text_recipe(scale: Scale, mechanisms: &[&str]) -> String {
    let models = "preset = \"char-lm\"\nheads = 8\n\n[model]\nhead_width = 16\n\n[task.char_lm]\ncontext = 256\n";
    trained(models, if scale == Scale::Quick { 20 } else { 1_500 }, 8, scale, mechanisms)
}

fn trained(models: &str, steps: usize, batch: usize, scale: Scale, mechanisms: &[&str]) -> String {
    let (evaluate, warm_up) = (steps / 2, steps / 10);
    let seeds: Vec<usize> = (1..=if scale == Scale::Quick { 1 } else { 5 }).collect();
    format!(
        "{models}\n[train]\nsteps = {steps}\nbatch = {batch}\nevaluate_every = {evaluate}\ncheckpoint_every = {evaluate}\n\n\
         [train.schedule]\nwarmup = {warm_up}\n\n[compare]\nmechanisms = {mechanisms:?}\nseeds = {seeds:?}\n"
    )
}

impl Family {
    /// The baseline is the first of its members; these are compared with it.
    const MIXTURES: [usize; 2] = [1, 2];

    fn recipe(&self, scale: Scale) -> String {
        let mechanisms = self.members.map(|(_, entry)| entry);
        if self.text { text_recipe(scale, &mechanisms) } else { expressions_recipe(scale, &mechanisms) }
    }

    /// Surveys of each member's models, a seed each.
    fn surveys(&self, bench: &Workbench, scale: Scale, parts: &[Part]) -> Result<[Vec<Survey>; 3], Failure> {
        let name = format!("mgk-inside-{}", self.name.replace(", ", "-"));
        let mut all = surveyed(bench, scale, &name, &self.recipe(scale), parts)?.into_iter();
        Ok([(); 3].map(|()| all.next().unwrap_or_default()))
    }
}

/// Surveys of each candidate's models, a seed each.
fn surveyed(
    bench: &Workbench,
    scale: Scale,
    name: &str,
    recipe: &str,
    parts: &[Part],
) -> Result<Vec<Vec<Survey>>, Failure> {
    let compared = bench.train(name, recipe)?;
    let plan = Plan { parts: parts.to_vec(), layers: Vec::new(), heads: Vec::new(), matrices: usize::MAX };
    let sequences = if scale == Scale::Quick { 4 } else { 30 };
    let own = |runs: &[RunResult]| {
        let own = |run: &RunResult| {
            if bench.stopped() {
                return Err(Failure::interrupted("stopped"));
            }
            bench.note(&format!("matrices of {}, seed {}", run.label, run.seed));
            let (model, data) = bench.open(&compared, run)?;
            let recordings = Recording::all(&model, &data, Split::Test, sequences)?;
            Ok(survey(recordings, &plan, false, &|| ())?)
        };
        runs.iter().map(own).collect::<Result<Vec<_>, Failure>>()
    };
    compared.candidates().into_iter().map(own).collect()
}

/// Mean over the attentions of a model.
fn of_model(survey: &Survey, of: fn(&Attention) -> Moments) -> f64 {
    Sample::of(&survey.attentions.iter().map(|attention| of(attention).mean).collect::<Vec<_>>()).mean
}

fn of_models(surveys: &[Survey], of: fn(&Attention) -> Moments) -> Vec<f64> {
    surveys.iter().map(|survey| of_model(survey, of)).collect()
}

/// One row per member and attention: mean and deviation over seeds.
fn rows(
    table: &mut Table,
    models: &str,
    members: &[(&str, &str)],
    surveys: &[Vec<Survey>],
    of: &[fn(&Attention) -> Moments],
) {
    for ((member, _), own) in members.iter().zip(surveys) {
        for (at, attention) in own[0].attentions.iter().enumerate() {
            let seeds = |of: &fn(&Attention) -> Moments| {
                own.iter().map(|seed| of(&seed.attentions[at]).mean).collect::<Vec<_>>()
            };
            let mut row: Vec<Cell> = vec![models.into(), (*member).into(), attention.name.as_str().into()];
            row.extend(of.iter().map(|of| Cell::estimate(&seeds(of))));
            table.push(row);
        }
    }
}

fn table(title: &str, values: &[&str], digits: usize) -> Table {
    let mut columns = ["models", "attention", "layer"].map(Column::text).to_vec();
    columns.extend(values.iter().map(|value| Column::number(*value, Format::Fixed(digits))));
    Table::new(title, columns).note("Mean over matrices; mean and deviation over seeds.")
}

/// Shares of the full rank above this leave no room for a difference.
const CEILING: f64 = 0.99;

fn rank(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let share = |attention: &Attention| {
        Moments::of_finite(attention.ranks.iter().map(|rank| rank.rank as f64 / rank.full as f64))
    };
    let effective = |attention: &Attention| {
        Moments::of_finite(attention.ranks.iter().map(|rank| rank.effective / rank.full as f64))
    };
    let mut all = table("Rank of attention matrices, as a share of the full rank", &["above 1e-6", "effective"], 3);
    let (mut clauses, mut observations, mut said, mut charts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for family in [EXPRESSIONS, CHARACTERS] {
        let surveys = family.surveys(bench, scale, &[Part::Rank])?;
        rows(&mut all, family.name, &family.members, &surveys, &[share, effective]);
        let shares = surveys.each_ref().map(|own| of_models(own, share));
        let wide = surveys.each_ref().map(|own| of_models(own, effective));
        let means = shares.each_ref().map(|own| Sample::of(own).mean);
        for at in Family::MIXTURES {
            let text = format!("{}: {} over {}.", family.name, family.members[at].0, family.members[0].0);
            let clause = Clause::paper(text.clone());
            clauses.push(if means[0].min(means[at]) > CEILING {
                clause.note(format!("both above {CEILING} of the full rank, where the measure is at its ceiling"))
            } else {
                clause.above(Estimate::paired(&shares[at], &shares[0], confidence(4), "seeds"), 0.0)
            });
            let estimate = Estimate::paired(&wide[at], &wide[0], confidence(1), "seeds");
            observations.push(Clause::ours(format!("Effective rank, {text}")).above(estimate, 0.0));
        }
        let of = |at: usize| format!("{} {:.3}", family.members[at].0, means[at]);
        said.push(format!("{}: {}", family.name, [0, 1, 2].map(of).join(", ")));
        charts.push((format!("ranks-{}", family.name), distribution(&family, &surveys)));
    }
    clauses.extend(observations);
    let statement = format!("Singular values above 1e-6 of the largest, as a share of all. {}.", said.join("; "));
    Ok(Finding { clauses, statement, tables: vec![all], charts })
}

/// The distribution of ranks over all matrices of all seeds, as a share of matrices up to each rank.
fn distribution(family: &Family, surveys: &[Vec<Survey>; 3]) -> Chart {
    let line = |(style, ((name, _), own)): (usize, (&(&str, &str), &Vec<Survey>))| {
        let ranks = own.iter().flat_map(|survey| &survey.attentions).flat_map(|attention| &attention.ranks);
        let mut shares: Vec<f64> = ranks.map(|rank| rank.rank as f64 / rank.full as f64).collect();
        shares.sort_by(f64::total_cmp);
        let count = shares.len() as f64;
        Series::new(*name, style, shares.into_iter().enumerate().map(|(at, share)| (share, (at + 1) as f64 / count)))
    };
    let lines = family.members.iter().zip(surveys).enumerate().map(line).collect();
    Chart::new(format!("Ranks of attention matrices, {}", family.name), "All matrices of all seeds", Data::Lines(lines))
        .axes(Axis::new("share of the full rank", ""), Axis::new("share of matrices up to it", ""))
}

fn redundancy(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let distance = |attention: &Attention| Moments::joined(attention.redundancy.iter().map(|pair| &pair.distance));
    let correlation =
        |attention: &Attention| Moments::joined(attention.redundancy.iter().map(|pair| &pair.correlation));
    let spread = |attention: &Attention| Moments::joined(attention.entropy.iter().map(|head| &head.normalised));
    let mut all = table("Attention of two heads", &["distance", "correlation", "entropy"], 3)
        .note("Entropy: of a row over that of an even one, how widely a head attends.");
    let (mut clauses, mut observations, mut said) = (Vec::new(), Vec::new(), Vec::new());
    for family in [EXPRESSIONS, CHARACTERS, LINEAR] {
        let surveys = family.surveys(bench, scale, &[Part::Redundancy, Part::Entropy])?;
        rows(&mut all, family.name, &family.members, &surveys, &[distance, correlation, spread]);
        let of = |of: fn(&Attention) -> Moments| surveys.each_ref().map(|own| of_models(own, of));
        let (apart, alike, wide) = (of(distance), of(correlation), of(spread));
        let of_paper = family.name != LINEAR.name;
        for at in Family::MIXTURES {
            let pair = format!("{}: {} against {}", family.name, family.members[at].0, family.members[0].0);
            let observed = |one: &[f64], other: &[f64]| Estimate::paired(one, other, confidence(1), "seeds");
            for (what, own) in [("distance of two heads", &apart), ("entropy of rows", &wide)] {
                let clause = Clause { of_paper, ..Clause::paper(format!("{pair}, {what}.")) };
                if of_paper {
                    clauses.push(clause.above(Estimate::paired(&own[at], &own[0], confidence(8), "seeds"), 0.0));
                } else {
                    observations.push(clause.above(observed(&own[at], &own[0]), 0.0));
                }
            }
            let less = Clause::ours(format!("{pair}, correlation of two heads."));
            observations.push(less.below(observed(&alike[at], &alike[0]), 0.0));
        }
        let mean = |at: usize| format!("{} {:.3}", family.members[at].0, Sample::of(&apart[at]).mean);
        said.push(format!("{}: {}", family.name, [0, 1, 2].map(mean).join(", ")));
    }
    clauses.extend(observations);
    let statement = format!("Distance of two heads' rows of attention, at most 1.41. {}.", said.join("; "));
    Ok(Finding { clauses, statement, tables: vec![all], charts: Vec::new() })
}

fn likelihood(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let own = |attention: &Attention| Moments::joined(attention.likelihood.iter().map(|one| &one.mixture));
    let per_key = |attention: &Attention| Moments::joined(attention.likelihood.iter().map(|one| &one.per_key));
    let surveys = EXPRESSIONS.surveys(bench, scale, &[Part::Likelihood])?;
    let recipe = expressions_recipe(scale, &[ONE_GAUSSIAN.1]);
    let gaussian = surveyed(bench, scale, "mgk-inside-gaussian", &recipe, &[Part::Likelihood])?.remove(0);
    let mut all = table("Negative log-likelihood of queries, nats a channel", &["own keys", "one Gaussian a key"], 4);
    rows(&mut all, EXPRESSIONS.name, &EXPRESSIONS.members, &surveys, &[own, per_key]);
    rows(&mut all, EXPRESSIONS.name, &[ONE_GAUSSIAN], std::slice::from_ref(&gaussian), &[own, per_key]);
    let layers = surveys[0][0].attentions.len();
    let (mut clauses, mut observations, mut said) = (Vec::new(), Vec::new(), Vec::new());
    for layer in 0..layers {
        let of = |surveys: &[Survey], of: fn(&Attention) -> Moments| {
            surveys.iter().map(|survey| of(&survey.attentions[layer]).mean).collect::<Vec<f64>>()
        };
        let [mgk, softmax, one] = [&surveys[1], &surveys[0], &gaussian].map(|surveys| of(surveys, own));
        let text = format!("Layer {}: MGK less one Gaussian a key, each with its own queries.", layer + 1);
        let difference = Estimate::paired(&mgk, &one, confidence(layers), "seeds");
        clauses.push(Clause::paper(text).below(difference, 0.0));
        let observed = [
            ("MGK less softmax, each with its own queries", &softmax),
            ("the mixtures of MGK less one Gaussian at each of its keys", &of(&surveys[1], per_key)),
        ];
        for (what, other) in observed {
            let text = format!("Layer {}: {what}.", layer + 1);
            observations.push(Clause::ours(text).below(Estimate::paired(&mgk, other, confidence(1), "seeds"), 0.0));
        }
        let means = [&mgk, &one, &softmax].map(|own| Sample::of(own).mean);
        said.push(format!("layer {}: {:.4}, {:.4} and {:.4}", layer + 1, means[0], means[1], means[2]));
    }
    clauses.extend(observations);
    let statement = format!(
        "Nats a channel of MGK, one Gaussian a key and softmax: {}. Each model has its own queries and keys, whose lengths move these numbers.",
        said.join("; ")
    );
    Ok(Finding { clauses, statement, tables: vec![all], charts: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_resolve_with_heads_of_the_paper() {
        for (family, width) in [(EXPRESSIONS, 32), (CHARACTERS, 16), (LINEAR, 32)] {
            for scale in [Scale::Quick, Scale::Here] {
                let mut layers = regard_tasks::run::Layers::new();
                layers.text(&family.recipe(scale), family.name).expect("TOML");
                let config = layers.resolve().expect("a configuration");
                for (_, entry) in family.members.into_iter().chain([ONE_GAUSSIAN]) {
                    let (_, own) = config.candidate(entry).expect("an entry");
                    assert_eq!(own.model.head_width(&own.attention), width, "{entry}");
                }
            }
        }
    }
}
