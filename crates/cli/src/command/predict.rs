//! `regard predict`

use std::path::PathBuf;

use clap::Args;
use regard_pretrained::{
    Folder, Model,
    run::{classify_images, classify_texts, read_pixels},
};
use serde_json::json;

use super::{
    classify::{self, Rows},
    folder::{Loading, Opened, Watch, input, is_folder, lines, told},
};
use crate::{
    args::Common,
    error::{Failure, Outcome},
    output,
    values::size,
};

/// Classes to print of a model folder.
const TOP: usize = 5;

/// Texts per batch of a model folder.
const BATCH: usize = 64;

#[derive(Debug, Args)]
pub struct Predict {
    /// Run directory of a classifier, or Hugging Face model folder of a text or image classifier.
    pub folder: PathBuf,
    /// Texts, one per line, plain or gzip; default: standard input. Run: rows of texts in any form that its task reads, with
    /// or without labels. Images of a folder: a safetensors file with pixel_values (images, channels, height, width),
    /// preprocessed as in training.
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Folder: number of most probable classes to print; default: 5.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub top: Option<usize>,
    /// Maximum number of texts per batch; default: 64, for a run as in training.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub batch: Option<usize>,
    #[command(flatten)]
    pub rows: Rows,
    #[command(flatten)]
    pub loading: Loading,
}

/// Prints the most probable classes of texts or images.
///
/// # Errors
/// A folder without a classifier, an input that is missing or has another format.
pub fn run(args: &Predict, common: &Common) -> Outcome {
    if !is_folder(&args.folder) {
        return classify::run(args, common);
    }
    if let Some(name) = args.rows.of_run() {
        return Err(Failure::usage(format!("{name} is for a run, but {} is a model folder", args.folder.display())));
    }
    let opened = Opened::new(&args.folder, &args.loading)?;
    let watch = Watch::new("inputs", common);
    let pretrained = &opened.pretrained;
    let images = match &pretrained.model {
        Model::Image(model) if model.classifies() => true,
        Model::Features(model) if model.classifies() => false,
        _ => return Err(opened.another("a classifier of texts or images")),
    };
    check_one_class(&opened.folder)?;
    let predictions = if images {
        let file = args.input.as_ref().ok_or_else(|| {
            Failure::usage("images come from a safetensors file with pixel_values, expected --input FILE")
        })?;
        let patch = opened.folder.architecture().patch.expect("of images");
        let pixels = read_pixels(file, patch).map_err(told)?;
        classify_images(pretrained, &pixels, |progress| watch.on(progress)).map_err(told)?
    } else {
        let tokenizer = opened.tokenizer()?;
        let text = input(args.input.as_deref())?;
        classify_texts(pretrained, &tokenizer, &lines(&text)?, args.batch.unwrap_or(BATCH), |progress| {
            watch.on(progress)
        })
        .map_err(told)?
    };
    watch.complete(predictions.complete)?;
    watch.cut(predictions.truncated, predictions.dropped);
    let count = predictions.probabilities.len() / predictions.classes;
    let top = |row: usize| predictions.top(row, args.top.unwrap_or(TOP), opened.folder.architecture());
    if common.json {
        let rows: Vec<_> = (0..count).map(top).collect();
        return output::json(&json!({
            "classes": predictions.classes,
            "truncated_texts": predictions.truncated,
            "predictions": rows,
        }));
    }
    for row in 0..count {
        let classes: Vec<String> =
            top(row).iter().map(|class| format!("{} {:.4}", class.label, class.probability)).collect();
        output::line(format_args!("{}\t{}", row + 1, classes.join("\t")))?;
    }
    Ok(())
}

/// Refuses classifiers whose outputs are not the probabilities of classes of which one is right.
fn check_one_class(folder: &Folder) -> Outcome {
    let problem = folder.config().get("problem_type").and_then(serde_json::Value::as_str).unwrap_or_default();
    let what = match problem {
        "multi_label_classification" => "has classes of which several may be right (problem_type)",
        "regression" => "gives a number, no class (problem_type)",
        _ if folder.architecture().labels.len() == 1 => "has a single output, no classes",
        _ => return Ok(()),
    };
    Err(Failure::usage(format!(
        "the model of {} {what}, expected classes of which one is right",
        folder.path().display()
    )))
}
