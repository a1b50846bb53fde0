//! All entries with their outcomes: as a table, and as a page of the book.

use std::path::Path;

use regard_report::{Cell, Column, Table, number::fixed};

use super::{ENTRIES, Entry, Outcome, OutcomeError, Scale};

const SCALES: [Scale; 2] = [Scale::Reduced, Scale::Paper];

/// One row per entry: paper, figures, data, time and last verdict at each scale recorded below `all`.
///
/// # Errors
/// A recorded outcome that cannot be read.
pub fn listing(all: &Path) -> Result<Table, OutcomeError> {
    let columns = ["name", "paper", "figures", "data"].map(Column::text).into_iter();
    let scales = SCALES.iter().flat_map(|scale| {
        let name = scale.name();
        [Column::text(format!("time, {name}")), Column::text(format!("verdict, {name}"))]
    });
    let mut table = Table::new("Figures and tables of the papers", columns.chain(scales).collect());
    for entry in ENTRIES {
        let mut row: Vec<Cell> =
            vec![entry.name.into(), entry.paper.to_string().into(), entry.figures.into(), entry.data.into()];
        for scale in SCALES {
            let outcome = Outcome::read(all, entry, scale)?;
            let time = match &outcome {
                Some(outcome) => format!("{} min", minutes(outcome.seconds / 60.0)),
                None => format!("about {} min", minutes(entry.minutes(scale))),
            };
            row.push(time.into());
            row.push(outcome.map(|outcome| outcome.verdict.to_string()).into());
        }
        table.push(row);
    }
    Ok(table
        .note("Time and verdict: of the last recorded run; where there is none, the time that it takes on two cores."))
}

fn minutes(value: f64) -> String {
    if value < 10.0 { fixed(value, 1) } else { fixed(value, 0) }
}

/// The page of the book: every entry with claim, setting, verdict and numbers, from the outcomes recorded below `all`;
/// `pictures` is the path of the images relative to the page.
///
/// # Errors
/// A recorded outcome that cannot be read.
pub fn page(all: &Path, pictures: &str) -> Result<String, OutcomeError> {
    let mut page = String::from(
        "# Reproduction\n\nWritten by `regard reproduce --page` from recorded runs; not by hand. A verdict is computed from the \
         numbers of its entry: a claim holds, or does not, where the numbers stand two standard errors off the border.\n\n\
         | entry | paper | figures | verdict | scale |\n|---|---|---|---|---|\n",
    );
    let mut details = String::new();
    for entry in ENTRIES {
        let mut recorded = Vec::new();
        for scale in SCALES {
            recorded.extend(Outcome::read(all, entry, scale)?);
        }
        let head = format!("| [{0}](#{0}) | {1} | {2} |", entry.name, entry.paper, entry.figures);
        if recorded.is_empty() {
            page += &format!("{head} not run | |\n");
        }
        for outcome in &recorded {
            page += &format!("{head} {} | {} |\n", outcome.verdict, outcome.scale.name());
        }
        details += &section(entry, &recorded, pictures);
    }
    Ok(page + &details)
}

fn section(entry: &Entry, recorded: &[Outcome], pictures: &str) -> String {
    let Entry { name, paper, figures, claim, data, .. } = entry;
    let mut text = format!("\n## {name}\n\n{paper}, {figures}. Data: {data}.\n\n**Claim.** {claim}\n");
    for outcome in recorded {
        let Outcome { scale, setting, verdict, statement, seconds, command, environment, .. } = outcome;
        let commit = environment.commit.as_deref().unwrap_or("unknown");
        text += &format!(
            "\n**{}.** {statement}\n\nSetting ({}): {setting}\n\n`{command}`, {:.1} min, commit {commit}, {}, {} threads, {}\n",
            super::outcome::capitalised(&verdict.to_string()),
            scale.name(),
            seconds / 60.0,
            environment.processor,
            environment.threads,
            environment.date,
        );
        let folder = super::outcome::directory(Path::new(pictures), name, *scale);
        for picture in &outcome.pictures {
            let title = Path::new(picture).file_stem().map(|stem| stem.to_string_lossy().replace('-', " "));
            text += &format!("\n![{}]({}/{picture})\n", title.unwrap_or_default(), folder.display());
        }
        for table in &outcome.markdown {
            text += &format!("\n{table}");
        }
    }
    text
}
