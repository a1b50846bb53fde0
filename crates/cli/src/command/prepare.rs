//! `regard data prepare`

use std::path::PathBuf;

use clap::Args;
use regard_datasets::parquet_reader;
use regard_tasks::{
    Classed,
    data::{LmConfig, PrepareError, TokenKind, is_wikitext, prepare},
};
use serde_json::json;

use crate::{
    args::{Common, Named},
    console,
    error::{Failure, Outcome},
    output, signal,
    values::{choice, size},
};

const TOKENS: Named<TokenKind, 4> = [
    ("subwords", "Byte pairs learned from the training text", TokenKind::Subwords),
    ("words", "Words of the training text", TokenKind::Words),
    ("characters", "Characters of all parts", TokenKind::Characters),
    ("bytes", "Bytes of UTF-8", TokenKind::Bytes),
];

#[derive(Debug, Args)]
pub struct Prepare {
    /// Files (plain, gzip or bzip2; JSON lines and Parquet by their names) and folders of them, or one folder laid out as WikiText.
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<PathBuf>,
    /// The folder to be made.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Units of text.
    #[arg(long, value_parser = choice(&TOKENS), default_value = "subwords", value_name = "KIND")]
    tokens: TokenKind,
    /// Maximum vocabulary of words or subwords.
    #[arg(long, value_parser = size(1), default_value_t = LmConfig::default().vocabulary, value_name = "N")]
    vocabulary: usize,
    /// Rarer words are unknown.
    #[arg(long, value_parser = size(1), default_value_t = 1, value_name = "N")]
    min_count: usize,
    /// The tokenizer.json of a run or of another prepared text, instead of subwords learned here.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Validation text: a fraction of the sources, cut off at their end before the test text, or a file, which may be repeated;
    /// default: 0.05, or that of the WikiText folder.
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE|FILE")]
    valid: Vec<String>,
    /// Test text, likewise.
    #[arg(long, allow_hyphen_values = true, value_name = "SHARE|FILE")]
    test: Vec<String>,
    /// Field of JSON lines, or column of Parquet files, that holds the text.
    #[arg(long, default_value = "text", value_name = "NAME")]
    field: String,
    /// Join the lines of a paragraph, which ends with an empty line.
    #[arg(long)]
    paragraphs: bool,
    /// Replace the prepared text in the folder.
    #[arg(long)]
    overwrite: bool,
}

/// A share, or files.
fn part(name: &str, given: &[String], fraction: &mut f64, files: &mut Vec<PathBuf>) -> Outcome {
    if let [one] = given
        && let Ok(share) = one.parse()
    {
        *fraction = share;
        return Ok(());
    }
    if let Some(share) = given.iter().find(|one| one.parse::<f64>().is_ok()) {
        return Err(Failure::usage(format!(
            "--{name} is {share} and more, expected one share, or files (a file of this name is ./{share})"
        )));
    }
    files.extend(given.iter().map(PathBuf::from));
    Ok(())
}

impl Prepare {
    fn config(&self) -> Outcome<LmConfig> {
        let mut config = LmConfig {
            tokens: self.tokens,
            field: self.field.clone(),
            paragraphs: self.paragraphs,
            vocabulary: self.vocabulary,
            min_count: self.min_count,
            tokenizer: self.tokenizer.clone(),
            ..LmConfig::default()
        };
        match &self.sources[..] {
            [folder] if is_wikitext(folder) => {
                let share = |given: &[String]| given.iter().any(|one| one.parse::<f64>().is_ok());
                if share(&self.valid) || share(&self.test) {
                    return Err(Failure::usage(format!(
                        "{} is laid out as WikiText, with parts of its own, and a share is to be cut off; name its training \
                         file alone, or leave the share out",
                        folder.display()
                    )));
                }
                config.directory = Some(folder.clone());
            }
            sources => config.train = sources.to_vec(),
        }
        part("valid", &self.valid, &mut config.valid_fraction, &mut config.valid)?;
        part("test", &self.test, &mut config.test_fraction, &mut config.test)?;
        Ok(config)
    }
}

/// The failure in the words of the options: the task has them as keys.
fn told(error: &PrepareError) -> Failure {
    let keys = [("valid_fraction", "valid"), ("test_fraction", "test"), ("min_count", "min-count")];
    let message = keys
        .iter()
        .fold(error.to_string(), |told, (key, option)| told.replace(&format!("task.lm.{key}"), &format!("--{option}")));
    Failure::new(error.class(), message.replace("task.lm.", "--"))
}

/// Prepares a text for the task `lm`.
///
/// # Errors
/// Texts that cannot be read, options that are impossible, a folder that cannot be made; a stop.
pub fn run(args: &Prepare, common: &Common) -> Outcome {
    let config = args.config()?;
    let bar = console::bar(0, common.quiet);
    bar.set_prefix("prepare");
    let progress = |done: u64, total: u64| {
        bar.set_length(total >> 20);
        bar.set_position(done >> 20);
        bar.set_message("MiB");
    };
    let prepared = prepare(&config, &args.out, args.overwrite, parquet_reader(), &signal::stop_flag(), &progress);
    bar.finish_and_clear();
    let prepared = prepared.map_err(|error| told(&error))?;
    if !common.quiet {
        prepared.notes.iter().for_each(|note| console::line(format_args!("note: {note}")));
    }
    if common.json {
        let mut all = json!(prepared);
        all["folder"] = json!(args.out);
        return output::json(&all);
    }
    let (name, _, _) =
        TOKENS.iter().find(|(.., tokens)| *tokens == prepared.tokens).expect("every kind is in the list");
    output::line(format_args!("{}: {name}, a vocabulary of {}", args.out.display(), prepared.vocabulary))?;
    for (part, counts) in ["train", "valid", "test"].into_iter().zip(&prepared.parts) {
        output::line(format_args!("{part:<6} {} tokens, {} bytes of text", counts.tokens, counts.bytes))?;
    }
    output::line(format_args!("train on it with --task lm --set task.lm.prepared={}", args.out.display()))
}
