//! Writing texts from others by beam search, with the model of a run: what `translate` and `summarize` share.

use std::{
    io::{IsTerminal, stdin},
    path::Path,
    sync::atomic::Ordering,
};

use clap::Args;
use regard_lab::load;
use regard_nn::models::{BeamOptions, Translator};
use regard_tasks::{
    data::{TaskName, TextTokenizer},
    run::Which,
    train::{CONFIG, Checkpoint, Model, TOKENIZER, TrainError, Translation},
};
use serde_json::{Value, json};

use crate::{
    args::{CHECKPOINTS, Common},
    console,
    error::{Failure, Outcome},
    output, signal,
    values::{Real, choice, size},
};

/// Options of the search.
#[derive(Debug, Args)]
pub struct Search {
    /// Beam size, 1 for greedy decoding; default: train.beam.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub beam: Option<usize>,
    /// Exponent of the length penalty; default: train.length_penalty.
    #[arg(long, value_parser = Real, value_name = "NUMBER")]
    pub length_penalty: Option<f64>,
    /// Tokens written at least, the end included; default: train.shortest.
    #[arg(long, value_parser = size(0), value_name = "N")]
    pub shortest: Option<usize>,
    /// Tokens in a row that are not written twice, 0 for no limit; default: train.no_repeat.
    #[arg(long, value_parser = size(0), value_name = "N")]
    pub no_repeat: Option<usize>,
    /// Checkpoint of the run.
    #[arg(long, value_parser = choice(&CHECKPOINTS), default_value = "best")]
    pub checkpoint: Which,
}

/// A model that writes.
pub struct Writer {
    pub model: Translator,
    pub tokenizer: TextTokenizer,
    pub options: BeamOptions,
}

impl Writer {
    /// The model and the vocabulary of a run of a task; its data are not read.
    ///
    /// # Errors
    /// A run of another task, options that do not fit.
    pub fn open(run: &Path, task: TaskName, search: &Search) -> Outcome<Self> {
        let stored = load::stored(run)?;
        let (_, Checkpoint { model: tensors, .. }) = stored.checkpoint(search.checkpoint)?;
        let config = stored.config;
        if config.task.name != task {
            let remedy = match config.task.name {
                TaskName::Translation => "use regard translate",
                TaskName::Summary => "use regard summarize",
                _ if task == TaskName::Summary => "train one with --preset scitldr",
                _ => "train one with --preset translation",
            };
            let (run, seen) = (run.display(), config.task.name);
            return Err(Failure::usage(format!("{run} holds a run of {seen}, expected one of {task}; {remedy}")));
        }
        let tokenizer = TextTokenizer::load(&run.join(TOKENIZER))?;
        let (vocabulary, shape) = (tokenizer.vocabulary(), config.task.options().shape());
        let (attentions, seed) = (config.attentions(), config.seed);
        let model = Translator::new(
            &config.model,
            &attentions,
            vocabulary,
            shape.max_length,
            seed,
            &regard_nn::device::chosen(),
        )?;
        let model = Model::Translator(model)
            .with_host(tensors)
            .map_err(|problem| Failure::data(format!("{}: {problem}; was {CONFIG} edited?", run.display())))?;
        let Model::Translator(model) = model else { unreachable!("it was put in as a translator") };
        let usual = config.train.search(shape.longest_written());
        let options = BeamOptions {
            beam: search.beam.unwrap_or(usual.beam),
            length_penalty: search.length_penalty.unwrap_or(usual.length_penalty),
            longest: usual.longest,
            shortest: search.shortest.unwrap_or(usual.shortest),
            no_repeat: search.no_repeat.unwrap_or(usual.no_repeat),
        };
        options.check()?;
        Ok(Self { model, tokenizer, options })
    }
}

/// Rows of a batch: a user at a terminal waits for each line.
pub fn rows(batch: Option<usize>) -> usize {
    batch.unwrap_or(if stdin().is_terminal() { 1 } else { 64 })
}

/// What a command calls its texts.
pub struct Words<'a> {
    /// The list in JSON.
    pub all: &'a str,
    /// A text that was written, in JSON.
    pub one: &'a str,
    /// A text that was read: its key and value in JSON, by its number and itself.
    pub source: &'a dyn Fn(usize, &str) -> (&'static str, String),
    /// Where the text of a number comes from.
    pub place: &'a dyn Fn(usize) -> String,
}

/// Prints what `write` makes of `texts`, in batches of `rows`: a line each, or all as JSON.
///
/// # Errors
/// Those of the texts and of `write`, an interrupt, an output that cannot be written.
pub fn write_all(
    mut texts: impl Iterator<Item = Outcome<String>>,
    rows: usize,
    longest: usize,
    words: &Words,
    common: &Common,
    write: impl Fn(&[String]) -> Result<Vec<Translation>, TrainError>,
) -> Outcome {
    let stop = signal::stop_flag();
    let (mut number, mut all) = (0, Vec::new());
    loop {
        let batch = texts.by_ref().take(rows).collect::<Outcome<Vec<_>>>()?;
        if batch.is_empty() {
            break;
        }
        if stop.load(Ordering::Relaxed) {
            return Err(Failure::interrupted("stopped"));
        }
        for (i, Translation { text, cut }) in write(&batch)?.into_iter().enumerate() {
            if cut && !common.quiet {
                let place = (words.place)(number + i);
                console::line(format_args!("note: {place} is longer than the model's {longest} tokens and was cut"));
            }
            if common.json {
                let (key, source) = (words.source)(number + i, &batch[i]);
                all.push(json!({ key: source, words.one: text }));
            } else {
                output::line(text)?;
            }
        }
        number += batch.len();
    }
    if common.json {
        output::json(&json!({ words.all: Value::Array(all) }))?;
    }
    Ok(())
}
