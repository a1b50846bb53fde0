//! `regard predict` on a run.

use std::io::{IsTerminal, stdin};

use clap::Args;
use regard_lab::load;
use regard_pretrained::run::Progress;
use regard_tasks::{
    data::{FORMATS, InputOptions, TextFormat},
    run::{Figures, Predictions, Which},
    train::Split,
};
use serde_json::{Value, json};

use super::{
    cache_directory,
    folder::{Loading, Watch},
    predict::Predict,
    quality::predicted,
};
use crate::{
    args::{CHECKPOINTS, Common, SPLITS},
    console::{self, Console},
    error::{Failure, Outcome},
    output, signal,
    values::choice,
};

/// Options for a run alone.
#[derive(Clone, Debug, Default, Args)]
pub struct Rows {
    /// Run: form of the rows; default: by the name of the file, columns separated by tabs on standard input.
    #[arg(long, value_parser = choice(&FORMATS), value_name = "FORM")]
    pub format: Option<TextFormat>,
    /// Run: leave labels and scores of the rows aside.
    #[arg(long)]
    pub unlabelled: bool,
    /// Run: predict a split of its own data instead of given rows.
    #[arg(long, value_parser = choice(&SPLITS), conflicts_with_all = ["input", "format", "unlabelled"])]
    pub split: Option<Split>,
    /// Checkpoint of the run; default: the best.
    #[arg(long, value_parser = choice(&CHECKPOINTS))]
    pub checkpoint: Option<Which>,
}

impl Rows {
    /// The first given option that only applies to a run.
    pub fn of_run(&self) -> Option<&'static str> {
        let given = [
            ("--format", self.format.is_some()),
            ("--unlabelled", self.unlabelled),
            ("--split", self.split.is_some()),
            ("--checkpoint", self.checkpoint.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }
}

/// The first given option that only applies to a model folder.
fn of_folder(args: &Predict) -> Option<&'static str> {
    let Loading { plan, context, stretch, allow } = &args.loading;
    let given = [
        ("--top", args.top.is_some()),
        ("--plan", plan.is_some()),
        ("--context", context.is_some()),
        ("--stretch", *stretch),
        ("--allow", !allow.is_empty()),
    ];
    given.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
}

/// Prints the label and the probabilities of each row, or its score, and figures where the rows have labels.
///
/// # Errors
/// A run that is no classifier, rows that are not of their form.
pub fn run(args: &Predict, common: &Common) -> Outcome {
    if let Some(name) = of_folder(args) {
        return Err(Failure::usage(format!("{name} is for a model folder, but {} holds a run", args.folder.display())));
    }
    let rows = &args.rows;
    let which = rows.checkpoint.unwrap_or_default();
    let watch = Watch::new("rows", common);
    let on = |done, total| watch.on(Progress { done, total }).is_continue();
    let stored = load::stored(&args.folder)?;
    let predictions = match rows.split {
        Some(split) => {
            let cache = cache_directory(None);
            let console = Console::new(common);
            let run = stored.load(which, |config| load::data(config, cache.as_deref(), &console))?;
            let batch = args.batch.unwrap_or(run.config.train.batch);
            run.predict(split, batch, on)?
        }
        None => {
            let options = InputOptions { format: rows.format, unlabelled: rows.unlabelled };
            let predictor = stored.predictor(which, &options)?;
            let predictor = match args.batch {
                Some(batch) => predictor.with_rows(batch),
                None => predictor,
            };
            if args.input.is_none() && stdin().is_terminal() {
                console::line("reading standard input, one row a line; end it with Ctrl-D");
            }
            let input = predictor.read(args.input.as_deref(), signal::input(), &options)?;
            if let Some(note) = input.note.as_ref().filter(|_| !common.quiet) {
                console::line(format_args!("note: {note}"));
            }
            predictor.predict(&input, on)?
        }
    };
    watch.complete(predictions.is_some())?;
    let Some(predictions) = predictions else { return Ok(()) };
    watch.cut(predictions.truncated, predictions.dropped);
    if predictions.skipped > 0 {
        console::line(format_args!(
            "note: {} rows with fewer columns than the header were left out",
            predictions.skipped
        ));
    }
    if common.json { output::json(&described(&predictions)) } else { output::text(table(&predictions)) }
}

fn described(predictions: &Predictions) -> Value {
    let scores = predictions.classes.is_empty();
    let rows: Vec<Value> = (0..predictions.len())
        .map(|row| {
            let values = predictions.row(row);
            let mut json = match scores {
                true => json!({ "score": values[0] }),
                false => json!({ "label": predictions.class(row), "probabilities": values }),
            };
            if let (Some(given), Some(json)) = (predictions.target(row), json.as_object_mut()) {
                json.insert("given".into(), given.into());
            }
            json
        })
        .collect();
    json!({
        "classes": predictions.classes,
        "predictions": rows,
        "truncated_texts": predictions.truncated,
        "dropped_tokens": predictions.dropped,
        "skipped_rows": predictions.skipped,
        "figures": predictions.figures,
    })
}

/// Tab-separated columns with a header; figures follow in lines that begin with `#`.
fn table(predictions: &Predictions) -> String {
    let given = !predictions.targets.is_empty();
    let mut text = String::new();
    if predictions.classes.is_empty() {
        text += "score";
    } else {
        text +=
            &["label"].into_iter().chain(predictions.classes.iter().map(String::as_str)).collect::<Vec<_>>().join("\t");
    }
    text += if given { "\tgiven\n" } else { "\n" };
    for row in 0..predictions.len() {
        let values = predictions.row(row).iter().map(|value| format!("{value:.6}"));
        let label = (!predictions.classes.is_empty()).then(|| predictions.class(row).unwrap_or("none").to_owned());
        let columns: Vec<String> = label.into_iter().chain(values).chain(predictions.target(row)).collect();
        text += &columns.join("\t");
        text.push('\n');
    }
    if let Some(figures) = &predictions.figures {
        text += &lines(figures).lines().map(|line| format!("# {line}\n")).collect::<String>();
    }
    text
}

fn lines(figures: &Figures) -> String {
    let Figures { rows, loss, accuracy, classes, values } = figures;
    let lines = [
        Some(format!("rows        {rows}")),
        Some(format!("loss        {loss:.4}")),
        predicted(*accuracy, classes.as_ref(), values.as_ref()),
    ];
    lines.into_iter().flatten().collect::<Vec<_>>().join("\n")
}
