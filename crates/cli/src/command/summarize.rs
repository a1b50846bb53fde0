//! `regard summarize`

use std::path::PathBuf;

use clap::Args;
use regard_tasks::{
    data::{TaskName, TextLines, read_text},
    train::summarize,
};

use super::search::{Search, Words, Writer, rows, write_all};
use crate::{
    args::Common,
    error::{Failure, Outcome},
    signal,
    values::size,
};

#[derive(Debug, Args)]
pub struct Summarize {
    /// Run directory of a model of summaries.
    pub run: PathBuf,
    /// Documents, one in each file; default: one in each line of standard input.
    pub files: Vec<PathBuf>,
    /// What the summaries are to answer, for a model of meetings with queries.
    #[arg(long, value_name = "TEXT")]
    pub query: Option<String>,
    #[command(flatten)]
    pub search: Search,
    /// Documents per batch; default: 64, 1 on a terminal.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub batch: Option<usize>,
}

/// Summarises files, or lines of standard input, with the model and vocabulary of a run; its data are not read.
///
/// # Errors
/// A run of another task, a file that is not there or no text.
pub fn run(args: &Summarize, common: &Common) -> Outcome {
    let Writer { model, tokenizer, options } = Writer::open(&args.run, TaskName::Summary, &args.search)?;
    let (files, query, longest) = (&args.files, args.query.as_deref(), model.sizes().context);
    let write = |texts: &[String]| summarize(&model, &tokenizer, texts, query, &options);
    let file = |number: usize| files[number].display().to_string();
    let (all, one) = ("summaries", "summary");
    if files.is_empty() {
        let lines = TextLines::new(signal::input(), "standard input").map(|line| line.map_err(Failure::from));
        let source = |_, text: &str| ("document", text.to_owned());
        let words = Words { all, one, source: &source, place: &|number| format!("line {}", number + 1) };
        return write_all(lines, rows(args.batch), longest, &words, common, write);
    }
    let texts = files.iter().map(|path| read_text(path).map_err(Failure::from));
    let words = Words { all, one, source: &|number, _| ("file", file(number)), place: &file };
    write_all(texts, rows(args.batch), longest, &words, common, write)
}
