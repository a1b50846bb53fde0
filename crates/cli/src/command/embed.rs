//! `regard embed`

use std::path::PathBuf;

use clap::Args;
use regard_pretrained::{
    Model,
    run::{EmbedOptions, Embeddings, Pooling, embed},
};
use serde_json::json;

use super::folder::{Loading, Opened, Watch, input, lines, told};
use crate::{
    args::{Common, Named},
    error::{Failure, Outcome},
    output,
    values::{choice, size},
};

pub const POOLINGS: Named<Pooling, 3> = [
    ("mean", "The mean over the tokens", Pooling::Mean),
    ("class", "The state of the first token", Pooling::Class),
    ("pooler", "What the pooler of the model makes of it", Pooling::Pooler),
];

#[derive(Debug, Args)]
pub struct Embed {
    /// Hugging Face model folder of an encoder.
    pub folder: PathBuf,
    /// Texts, one per line, plain or gzip; default: standard input.
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Write a safetensors file with embeddings (texts, width) instead of one list per line.
    #[arg(long, value_name = "FILE", conflicts_with = "pairs")]
    pub output: Option<PathBuf>,
    /// Print the cosine similarity of the two tab-separated texts of each line.
    #[arg(long)]
    pub pairs: bool,
    /// How the hidden states of a text are pooled.
    #[arg(long, value_parser = choice(&POOLINGS), default_value = "mean")]
    pub pooling: Pooling,
    /// Do not normalise the vectors.
    #[arg(long)]
    pub raw: bool,
    /// Maximum number of texts per batch.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 64)]
    pub batch: usize,
    #[command(flatten)]
    pub loading: Loading,
}

/// Embeds texts.
///
/// # Errors
/// A folder without an encoder, no text, lines that are not pairs.
pub fn run(args: &Embed, common: &Common) -> Outcome {
    let opened = Opened::new(&args.folder, &args.loading)?;
    if matches!(opened.pretrained.model, Model::Language(_) | Model::Image(_)) {
        return Err(opened.another("an encoder of texts, such as BERT"));
    }
    let tokenizer = opened.tokenizer()?;
    let text = input(args.input.as_deref())?;
    let texts = if args.pairs { pairs(&text)? } else { lines(&text)? };
    let options = EmbedOptions { pooling: args.pooling, normalize: !args.raw, batch: args.batch };
    let watch = Watch::new("texts", common);
    let vectors =
        embed(&opened.pretrained, &tokenizer, &texts, options, |progress| watch.on(progress)).map_err(told)?;
    watch.complete(vectors.complete)?;
    watch.cut(vectors.truncated, vectors.dropped);
    let count = texts.len();
    if args.pairs {
        let cosines: Vec<f64> = (0..count / 2).map(|pair| vectors.cosine(2 * pair, 2 * pair + 1)).collect();
        if common.json {
            return output::json(&summary(&vectors, count, &json!({ "cosines": cosines })));
        }
        return cosines.iter().try_for_each(|cosine| output::line(format_args!("{cosine:.6}")));
    }
    if let Some(file) = &args.output {
        vectors.write(file).map_err(told)?;
        if common.json {
            return output::json(&summary(&vectors, count, &json!({ "output": file })));
        }
        return output::line(format_args!("{count} texts of width {}: {}", vectors.width, file.display()));
    }
    let rows: Vec<&[f32]> = (0..count).map(|text| vectors.row(text)).collect();
    if common.json {
        return output::json(&summary(&vectors, count, &json!({ "embeddings": rows })));
    }
    rows.iter().try_for_each(|row| output::line(serde_json::to_string(row).expect("finite numbers")))
}

fn summary(vectors: &Embeddings, texts: usize, result: &serde_json::Value) -> serde_json::Value {
    let mut all = json!({
        "texts": texts,
        "width": vectors.width,
        "tokens": vectors.tokens,
        "truncated_texts": vectors.truncated,
        "dropped_tokens": vectors.dropped,
    });
    let map = all.as_object_mut().expect("an object");
    map.extend(result.as_object().expect("an object").clone());
    all
}

/// The texts of two-column lines, one after the other.
fn pairs(text: &str) -> Outcome<Vec<&str>> {
    let mut texts = Vec::new();
    for (number, line) in (1..).zip(lines(text)?) {
        let columns: Vec<&str> = line.split('\t').collect();
        let &[first, second] = &columns[..] else {
            let seen = columns.len();
            return Err(Failure::data(format!(
                "line {number} of the input has {seen} columns, expected 2 with a tab between"
            )));
        };
        texts.extend([first, second]);
    }
    Ok(texts)
}
