//! All entries with their outcomes: as a table, and as a page of the book.

use std::path::Path;

use regard_report::{Cell, Column, PAGE, Table, number::fixed};

use super::{
    ENTRIES, Entry, Outcome, OutcomeError, Paper, Setup, Verdict,
    catalogue::{CATALOGUE, Here},
    outcome,
};

/// One row per entry and scale: paper, figures, data, time and last verdict recorded below `all`.
///
/// # Errors
/// A recorded outcome that cannot be read.
pub fn listing(all: &Path) -> Result<Table, OutcomeError> {
    let columns = ["name", "paper", "figures", "data", "scale", "time", "verdict"].map(Column::text).to_vec();
    let mut table = Table::new("Figures and tables of the papers", columns);
    for entry in ENTRIES {
        for (at, Setup { scale, minutes: about, .. }) in entry.setups.iter().enumerate() {
            let outcome = Outcome::read(all, entry, *scale)?;
            let time = match &outcome {
                Some(outcome) => format!("{} min", minutes(outcome.seconds / 60.0)),
                None => format!("about {} min", minutes(*about)),
            };
            // What is the same at every scale stands once.
            let once = [entry.paper.to_string(), entry.figures.into(), entry.data.into()];
            let once = once.map(|text| if at == 0 { Cell::from(text) } else { Cell::from("") });
            let mut row = vec![entry.name.into()];
            row.extend(once);
            let verdict = outcome.map(|outcome| Verdict::said(outcome.verdict));
            row.extend([scale.name().into(), time.into(), verdict.into()]);
            table.push(row);
        }
    }
    Ok(table
        .note("Time and verdict: of the last recorded run; where there is none, the time that it takes on two cores."))
}

fn minutes(value: f64) -> String {
    if value < 10.0 { fixed(value, 1) } else { fixed(value, 0) }
}

const INTRODUCTION: &str = "# Reproduction

Written by `regard reproduce --page` from recorded runs; not by hand.

A claim is judged clause by clause, as the paper makes it. A clause holds, or does not, where the whole interval of its estimate lies
on one side of the border; otherwise it is not decided, which says more about the run than about the paper. The verdict on an entry is
that on all clauses of the paper together. What the paper does not say is listed apart as an observation, and is no part of the verdict.

Intervals are two-sided. An entry with `k` clauses of the paper has intervals of confidence `1 - 0.05 / k`, so that chance alone refutes
at most one true paper in twenty. The unit of replication is what was drawn or trained independently: of trained models the seed, and
fewer than three decide nothing. Of a pretrained model there is one: its queries, images or heads are the units, and the verdict is on that model
alone. \"An effect of X would be seen\": the smallest distance from the border that the run would detect in
four of five repetitions. Times are another matter: repetitions on one machine are no independent draws. Their ratios lie between those of their
deciles, which has no confidence.

A verdict is on the claim in the setting that stands beside it. Where data, size or steps differ from the paper's, it says whether the
claim carries over to them, not whether the paper's own runs were right: every difference is listed.

Scales: `quick` takes minutes, `here` is what two cores do in about an hour, `paper` has the paper's data, size and steps.
";

/// The page of the book: what there is of each paper, then every entry with claim, setting, verdicts and numbers, from the
/// outcomes recorded below `all`; `pictures` is the path of that folder relative to the page.
///
/// # Errors
/// A recorded outcome that cannot be read.
pub fn page(all: &Path, pictures: &str) -> Result<String, OutcomeError> {
    let mut page = INTRODUCTION.to_owned();
    let mut details = String::new();
    for paper in Paper::ALL {
        let mut recorded = Vec::new();
        for entry in ENTRIES.iter().filter(|entry| entry.paper == paper) {
            let mut own = Vec::new();
            for setup in entry.setups {
                own.extend(Outcome::read(all, entry, setup.scale)?);
            }
            recorded.push((entry, own));
        }
        page += &format!("\n## {paper}\n\n{}", contents(paper, &recorded));
        details += &recorded.iter().map(|(entry, own)| section(entry, own, pictures)).collect::<String>();
    }
    Ok(format!("{page}\n## Entries\n{details}"))
}

/// Every figure and table of a paper with its entries and their verdicts, or why there is none.
fn contents(paper: Paper, recorded: &[(&Entry, Vec<Outcome>)]) -> String {
    let linked = |(entry, own): &(&Entry, Vec<Outcome>), place: &str| {
        format!("[{0}](#{0}): {1}", entry.name, verdicts(own, place))
    };
    let mut text = String::from("| place | shows | here |\n|---|---|---|\n");
    let mut beyond: Vec<_> = recorded.iter().collect();
    for item in CATALOGUE.iter().filter(|item| item.paper == paper) {
        let here = match item.here {
            Here::Entries(names) => {
                beyond.retain(|(entry, _)| !names.contains(&entry.name));
                let own = recorded.iter().filter(|(entry, _)| names.contains(&entry.name));
                own.map(|one| linked(one, item.place)).collect::<Vec<_>>().join("; ")
            }
            Here::Not { reason, preset: Some(preset) } => format!("{reason}; preset `{preset}`"),
            Here::Not { reason, preset: None } => reason.to_owned(),
            Here::Drawing => "nothing to measure".to_owned(),
        };
        text += &format!("| {} | {} | {here} |\n", item.place, item.shows);
    }
    for one in beyond {
        text += &format!("| {} | | {} |\n", one.0.figures, linked(one, ""));
    }
    text
}

/// The verdict at each recorded scale on an item of the paper: that on the clauses which begin with its place, as "Figure 6:",
/// if there are any, and otherwise that on the entry.
fn verdicts(own: &[Outcome], place: &str) -> String {
    let start = format!("{}:", outcome::capitalised(place));
    let of = |outcome: &Outcome| {
        let mut named = outcome.clauses.iter().filter(|clause| clause.text.starts_with(&start)).peekable();
        let verdict = match named.peek() {
            Some(_) => Verdict::all(named.filter(|clause| clause.of_paper).map(|clause| clause.verdict)),
            None => outcome.verdict,
        };
        format!("{} ({})", Verdict::said(verdict), outcome.scale.name())
    };
    match own {
        [] => "not run".into(),
        some => some.iter().map(of).collect::<Vec<_>>().join(", "),
    }
}

/// Longest table and most pictures that the page shows of an entry; the rest is in its report.
const ROWS: usize = 12;
const PICTURES: usize = 2;

/// An entry, with the numbers of its largest recorded scale.
fn section(entry: &Entry, recorded: &[Outcome], pictures: &str) -> String {
    let Entry { name, paper, figures, claim, data, .. } = entry;
    let mut text = format!("\n### {name}\n\n{paper}, {figures}. Data: {data}.\n\n**Claim.** {claim}\n");
    let Some((largest, smaller)) = recorded.split_last() else {
        return text + "\nNot run.\n";
    };
    for outcome in smaller {
        let verdict = outcome::capitalised(&Verdict::said(outcome.verdict));
        text += &format!("\n**{verdict}** ({}). {}\n", outcome.scale.name(), outcome.statement);
    }
    let Outcome { scale, paper_setting, setting, verdict, statement, seconds, command, environment, .. } = largest;
    let verdict = outcome::capitalised(&Verdict::said(*verdict));
    text += &format!("\n**{verdict}** ({}). {statement}\n", scale.name());
    let tables = largest.verdicts();
    text += &tables.iter().map(|table| format!("\n{}", table.to_markdown())).collect::<String>();
    let difference = largest.difference();
    text += &format!("\nThe paper: {paper_setting}\n\nOurs: {setting}\n\n{difference}\n");
    let folder = outcome::directory(Path::new(pictures), name, *scale).display().to_string();
    for picture in largest.pictures.iter().take(PICTURES) {
        let title = Path::new(picture).file_stem().map(|stem| stem.to_string_lossy().replace('-', " "));
        text += &format!("\n![{}]({folder}/{picture})\n", title.unwrap_or_default());
    }
    let short = |table: &&String| table.lines().filter(|line| line.starts_with('|')).count() <= ROWS + 2;
    text += &largest.markdown.iter().filter(short).map(|table| format!("\n{table}")).collect::<String>();
    let commit = environment.commit.as_deref().unwrap_or("unknown");
    text + &format!(
        "\n`{command}`, {} min, commit {commit}, {}, {}; [report with all numbers]({folder}/{PAGE})\n",
        minutes(seconds / 60.0),
        environment.machine(),
        environment.date,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::Scale;

    #[test]
    fn every_entry_stands_in_the_list_and_on_the_page() {
        let folder = tempfile::tempdir().expect("a directory");
        let page = page(folder.path(), "results").expect("nothing recorded");
        let listed = listing(folder.path()).expect("nothing recorded");
        assert_eq!(listed.rows.len(), ENTRIES.iter().map(|entry| entry.setups.len()).sum::<usize>());
        for entry in ENTRIES {
            let count = |text: String| page.matches(&text).count();
            assert!(count(format!("[{0}](#{0})", entry.name)) > 0, "{}", entry.name);
            assert_eq!(count(format!("### {}\n", entry.name)), 1, "{}", entry.name);
        }
        for scale in Scale::ALL {
            assert!(page.contains(&format!("`{}`", scale.name())), "{}", scale.name());
        }
    }
}
