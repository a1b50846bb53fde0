//! `regard translate`

use std::path::PathBuf;

use clap::Args;
use regard_tasks::{
    data::{TaskName, TextLines},
    train::translate,
};

use super::search::{Search, Words, Writer, rows, write_all};
use crate::{
    args::Common,
    error::{Failure, Outcome},
    signal,
    values::size,
};

#[derive(Debug, Args)]
pub struct Translate {
    /// Run directory of a translation model.
    pub run: PathBuf,
    #[command(flatten)]
    pub search: Search,
    /// Lines per batch; default: 64, 1 on a terminal.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub batch: Option<usize>,
}

/// Translates standard input line by line with the model and vocabulary of a run; its data are not read.
///
/// # Errors
/// A run of another task, a line that is not text.
pub fn run(args: &Translate, common: &Common) -> Outcome {
    let Writer { model, tokenizer, options } = Writer::open(&args.run, TaskName::Translation, &args.search)?;
    let lines = TextLines::new(signal::input(), "standard input").map(|line| line.map_err(Failure::from));
    let words = Words {
        all: "translations",
        one: "translation",
        source: &|_, text| ("source", text.to_owned()),
        place: &|number| format!("line {}", number + 1),
    };
    let longest = model.sizes().context;
    write_all(lines, rows(args.batch), longest, &words, common, |texts| translate(&model, &tokenizer, texts, &options))
}
