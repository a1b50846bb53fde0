//! `regard perplexity`

use std::path::PathBuf;

use clap::Args;
use regard_pretrained::{
    Model, Tokenizer,
    run::{Beginning, Perplexity as Measured, PerplexityOptions, perplexity, read_text},
};

use super::folder::{Loading, Opened, Watch, told};
use crate::{
    args::{Common, Named},
    console,
    error::Outcome,
    output,
    values::{choice, size},
};

const BEGINNINGS: Named<Beginning, 3> = [
    ("always", "Before every window", Beginning::Always),
    ("document", "Before every document", Beginning::Document),
    ("never", "Nowhere: the first token of a document is not scored", Beginning::Never),
];

#[derive(Debug, Args)]
pub struct Perplexity {
    /// Hugging Face model folder of a language model.
    pub folder: PathBuf,
    /// Text files, plain or gzip, each a document.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub text: Vec<PathBuf>,
    /// Separator between the documents of a file; whitespace around documents is then trimmed.
    #[arg(long, value_name = "TEXT")]
    pub separator: Option<String>,
    /// Use only the first N tokens of each document; default: all.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub tokens: Option<usize>,
    /// Distance between the starts of neighbouring windows; default: the context length.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub stride: Option<usize>,
    /// Where to put the beginning-of-text token; default: as the tokenizer does, before documents or nowhere.
    #[arg(long, value_parser = choice(&BEGINNINGS))]
    pub bos: Option<Beginning>,
    #[command(flatten)]
    pub loading: Loading,
}

/// Measures how well a language model predicts texts.
///
/// # Errors
/// A folder without a language model, texts that cannot be read or have no tokens to score.
pub fn run(args: &Perplexity, common: &Common) -> Outcome {
    let texts = args.text.iter().map(|file| read_text(file).map_err(told)).collect::<Outcome<Vec<_>>>()?;
    let opened = Opened::new(&args.folder, &args.loading)?;
    let Model::Language(model) = &opened.pretrained.model else {
        return Err(opened.another("one that predicts the next token, such as Llama or GPT-2"));
    };
    let tokenizer = opened.tokenizer()?;
    let bos = match tokenizer.special().bos {
        Some(bos) => Some(bos),
        None => opened.folder.generation().map_err(told)?.bos,
    };
    let mut documents = Vec::new();
    for text in &texts {
        let parts: Vec<&str> = match args.separator.as_deref().filter(|separator| !separator.is_empty()) {
            Some(separator) => text.split(separator).map(str::trim).filter(|part| !part.is_empty()).collect(),
            None => vec![text],
        };
        for part in parts {
            let mut ids = tokenizer.encode(part, false, None).map_err(told)?.ids;
            ids.truncate(args.tokens.unwrap_or(usize::MAX));
            documents.push(ids);
        }
    }
    let context = opened.pretrained.context;
    let options = PerplexityOptions {
        context,
        stride: args.stride.unwrap_or(context),
        beginning: args.bos.map_or_else(|| usual(&tokenizer, bos), Ok)?,
        bos,
    };
    let watch = Watch::new("windows", common);
    let measured = perplexity(model, &documents, options, |progress| watch.on(progress)).map_err(told)?;
    if !measured.complete {
        console::line(format_args!("so far, after {} windows: {}", measured.windows, summary(&measured)));
        return watch.complete(false);
    }
    if common.json {
        return output::json(&serde_json::to_value(&measured).expect("plain numbers"));
    }
    output::line(table(&measured))
}

/// Where the tokenizer itself puts the beginning-of-text token.
fn usual(tokenizer: &Tokenizer, bos: Option<u32>) -> Outcome<Beginning> {
    let around = tokenizer.encode("", true, None).map_err(told)?.ids;
    Ok(if bos.is_some() && around.first().copied() == bos { Beginning::Document } else { Beginning::Never })
}

fn summary(measured: &Measured) -> String {
    let error = measured.standard_error.map_or(String::new(), |error| format!(" ± {error:.4}"));
    format!("perplexity {:.4}, {:.4}{error} nats per token", measured.perplexity, measured.nats)
}

fn table(measured: &Measured) -> String {
    let PerplexityOptions { context, stride, beginning, .. } = measured.options;
    let (name, ..) = BEGINNINGS.iter().find(|(.., value)| *value == beginning).expect("all are listed");
    let error = measured.standard_error.map_or(String::new(), |error| format!(" ± {error:.4}"));
    let speed = measured.tokens as f64 / measured.seconds;
    let mut lines = vec![
        format!("perplexity  {:.4}", measured.perplexity),
        format!("loss        {:.4}{error} nats per token", measured.nats),
        format!(
            "scored      {} tokens in {} windows of {} documents",
            measured.tokens, measured.windows, measured.documents
        ),
        format!("context     {context} tokens, stride {stride}, beginning: {name}"),
        format!("speed       {speed:.0} tokens/s"),
        String::new(),
        "tokens before      scored    nats".into(),
    ];
    lines.extend(
        measured
            .buckets
            .iter()
            .map(|bucket| format!("{:>6} to {:<6} {:>9}  {:.4}", bucket.from, bucket.to, bucket.tokens, bucket.nats)),
    );
    lines.join("\n")
}
