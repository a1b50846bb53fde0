//! `regard translate`

use std::{
    io::{IsTerminal, stdin},
    path::PathBuf,
};

use burn::tensor::Device;
use clap::Args;
use regard_lab::load;
use regard_nn::models::{BeamOptions, Translator};
use regard_tasks::{
    data::{TaskName, TextLines, TextTokenizer},
    run::Which,
    train::{CONFIG, Checkpoint, Model, TOKENIZER, Translation, translate},
};
use serde_json::json;

use crate::{
    args::{CHECKPOINTS, Common},
    console,
    error::{Failure, Outcome},
    output, signal,
    values::{Real, choice, size},
};

#[derive(Debug, Args)]
pub struct Translate {
    /// Run directory of a translation model.
    pub run: PathBuf,
    /// Beam size, 1 for greedy decoding; default: train.beam.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub beam: Option<usize>,
    /// Exponent of the length penalty; default: train.length_penalty.
    #[arg(long, value_parser = Real, value_name = "NUMBER")]
    pub length_penalty: Option<f64>,
    /// Lines per batch; default: 64, 1 on a terminal.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub batch: Option<usize>,
    /// Checkpoint of the run.
    #[arg(long, value_parser = choice(&CHECKPOINTS), default_value = "best")]
    pub checkpoint: Which,
}

/// Translates standard input line by line with the model and vocabulary of a run; its data are not read.
///
/// # Errors
/// A run of another task, a line that is not text.
pub fn run(args: &Translate, common: &Common) -> Outcome {
    let stored = load::stored(&args.run)?;
    let (_, Checkpoint { model: tensors, .. }) = stored.checkpoint(args.checkpoint)?;
    let config = stored.config;
    if config.task.name != TaskName::Translation {
        return Err(Failure::usage(format!(
            "{} holds a run of {}, expected one of translation; train one with --preset translation",
            args.run.display(),
            config.task.name
        )));
    }
    let tokenizer = TextTokenizer::load(&args.run.join(TOKENIZER))?;
    let (vocabulary, longest) = (tokenizer.vocabulary(), config.task.translation.max_length);
    let model =
        Translator::new(&config.model, &config.attentions(), vocabulary, longest, config.seed, &Device::flex())?;
    let model = Model::Translator(model)
        .with_host(tensors)
        .map_err(|problem| Failure::data(format!("{}: {problem}; was {CONFIG} edited?", args.run.display())))?;
    let Model::Translator(model) = model else { unreachable!("it was put in as a translator") };
    let options = BeamOptions {
        beam: args.beam.unwrap_or(config.train.beam),
        length_penalty: args.length_penalty.unwrap_or(config.train.length_penalty),
        longest,
    };
    options.check()?;
    // A user at a terminal waits for each line.
    let rows = args.batch.unwrap_or(if stdin().is_terminal() { 1 } else { 64 });
    let stop = signal::stop_flag();
    let mut lines = TextLines::new(stdin().lock(), "standard input");
    let (mut number, mut all) = (0, Vec::new());
    loop {
        let texts = lines.by_ref().take(rows).collect::<Result<Vec<_>, _>>()?;
        if texts.is_empty() {
            break;
        }
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Failure::interrupted("stopped"));
        }
        for (i, Translation { text, cut }) in translate(&model, &tokenizer, &texts, &options)?.into_iter().enumerate() {
            if cut && !common.quiet {
                let line = number + i + 1;
                console::line(format_args!(
                    "note: line {line} is longer than the model's {longest} tokens and was cut"
                ));
            }
            if common.json {
                all.push(json!({ "source": texts[i], "translation": text }));
            } else {
                output::line(text)?;
            }
        }
        number += texts.len();
    }
    if common.json {
        output::json(&json!({ "translations": all }))?;
    }
    Ok(())
}
