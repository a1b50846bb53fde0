//! `regard score`

use std::path::{Path, PathBuf};

use clap::Args;
use regard_metrics::{pearson, spearman};
use regard_pretrained::run::{
    EmbedOptions, MaskedTokens, Pooling, embed, hide, judgements, masked_accuracy, rank, read_masked, read_text,
    sentence_pairs, smart_documents,
};
use serde_json::json;

use super::{
    embed::POOLINGS,
    folder::{Loading, Opened, Watch, told},
};
use crate::{
    args::{Common, Named},
    error::{Failure, Outcome},
    output,
    values::{choice, size},
};

/// A scoring task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    Sts,
    Retrieval,
    Masked,
}

const TASKS: Named<Task, 3> = [
    ("sts", "Similarity of sentences: Spearman's correlation with what people say", Task::Sts),
    ("retrieval", "Documents ranked for queries: nDCG@10 and mean average precision", Task::Retrieval),
    ("masked", "Hidden tokens that are found", Task::Masked),
];

#[derive(Debug, Args)]
pub struct Score {
    /// Hugging Face model folder of an encoder.
    pub folder: PathBuf,
    /// Task sts: lines of the STS benchmark. Task masked: texts, one per line, to mask tokens in, or a safetensors file
    /// with input_ids, labels (-100 where no token is masked) and attention_mask.
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The scoring task.
    #[arg(long, value_parser = choice(&TASKS))]
    pub task: Task,
    /// Task retrieval: documents in the SMART format, like Cranfield.
    #[arg(long, value_name = "FILE")]
    pub corpus: Option<PathBuf>,
    /// Task retrieval: queries in the same format.
    #[arg(long, value_name = "FILE")]
    pub queries: Option<PathBuf>,
    /// Task retrieval: lines of query position, document number and a grade from 1 (best) to 4.
    #[arg(long, value_name = "FILE")]
    pub relevance: Option<PathBuf>,
    /// Task masked: mask one of every N tokens of each text.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 7)]
    pub every: usize,
    /// How the hidden states of a text are pooled.
    #[arg(long, value_parser = choice(&POOLINGS), default_value = "mean")]
    pub pooling: Pooling,
    /// Maximum number of texts per batch.
    #[arg(long, value_parser = size(1), value_name = "N", default_value_t = 64)]
    pub batch: usize,
    #[command(flatten)]
    pub loading: Loading,
}

/// Scores an encoder.
///
/// # Errors
/// A folder without an encoder, files that are missing or have another format.
pub fn run(args: &Score, common: &Common) -> Outcome {
    match args.task {
        Task::Sts => sts(args, common),
        Task::Retrieval => retrieval(args, common),
        Task::Masked => masked(args, common),
    }
}

impl Score {
    fn file(&self) -> Outcome<&Path> {
        self.file.as_deref().ok_or_else(|| Failure::usage("this task needs a file after the folder, expected one"))
    }

    fn options(&self) -> EmbedOptions {
        EmbedOptions { pooling: self.pooling, normalize: true, batch: self.batch }
    }
}

/// The parsed content of a file.
fn read<T>(file: &Path, parse: impl FnOnce(&str) -> Result<Vec<T>, String>) -> Outcome<Vec<T>> {
    let read = parse(&read_text(file).map_err(told)?);
    let all = read.map_err(|problem| Failure::data(format!("{}: {problem}", file.display())))?;
    if all.is_empty() {
        return Err(Failure::data(format!("{} holds nothing, expected at least one line", file.display())));
    }
    Ok(all)
}

fn sts(args: &Score, common: &Common) -> Outcome {
    let pairs = read(args.file()?, sentence_pairs)?;
    let opened = Opened::new(&args.folder, &args.loading)?;
    let texts: Vec<&str> = pairs.iter().flat_map(|pair| [&pair.first[..], &pair.second[..]]).collect();
    let watch = Watch::new("texts", common);
    let tokenizer = opened.tokenizer()?;
    let vectors =
        embed(&opened.pretrained, &tokenizer, &texts, args.options(), |progress| watch.on(progress)).map_err(told)?;
    watch.complete(vectors.complete)?;
    watch.cut(vectors.truncated, vectors.dropped);
    let cosines: Vec<f64> = (0..pairs.len()).map(|pair| vectors.cosine(2 * pair, 2 * pair + 1)).collect();
    let given: Vec<f64> = pairs.iter().map(|pair| pair.score).collect();
    let (spearman, pearson) = (spearman(&cosines, &given), pearson(&cosines, &given));
    if !(spearman.is_finite() && pearson.is_finite()) {
        let file = args.file()?.display();
        return Err(Failure::data(format!("{file}: a correlation needs pairs of different scores on both sides")));
    }
    if common.json {
        return output::json(&json!({
            "task": "sts", "pairs": pairs.len(), "spearman": spearman, "pearson": pearson, "truncated_texts": vectors.truncated,
        }));
    }
    output::line(format_args!("pairs     {}\nspearman  {spearman:.4}\npearson   {pearson:.4}", pairs.len()))
}

fn retrieval(args: &Score, common: &Common) -> Outcome {
    let given = |file: &Option<PathBuf>, option: &str| {
        file.clone().ok_or_else(|| Failure::usage(format!("task retrieval needs {option} FILE")))
    };
    let documents = read(&given(&args.corpus, "--corpus")?, smart_documents)?;
    let queries = read(&given(&args.queries, "--queries")?, smart_documents)?;
    let relevance = given(&args.relevance, "--relevance")?;
    let judged = read(&relevance, judgements)?;
    let opened = Opened::new(&args.folder, &args.loading)?;
    let tokenizer = opened.tokenizer()?;
    let texts: Vec<&str> = documents.iter().chain(&queries).map(|document| &document.text[..]).collect();
    let watch = Watch::new("texts", common);
    let mut vectors =
        embed(&opened.pretrained, &tokenizer, &texts, args.options(), |progress| watch.on(progress)).map_err(told)?;
    watch.complete(vectors.complete)?;
    watch.cut(vectors.truncated, vectors.dropped);
    let of_queries = vectors.split_off(documents.len());
    let ranked = rank(&documents, &vectors, &of_queries, queries.len(), &judged)
        .map_err(|problem| Failure::data(format!("{}: {problem}", relevance.display())))?;
    if common.json {
        let mut json = serde_json::to_value(ranked).expect("plain numbers");
        let map = json.as_object_mut().expect("an object");
        map.insert("task".into(), "retrieval".into());
        map.insert("truncated_texts".into(), vectors.truncated.into());
        return output::json(&json);
    }
    output::line(format_args!(
        "documents  {}\nqueries    {}\nnDCG@10    {:.4}\nMAP        {:.4}",
        ranked.documents, ranked.queries, ranked.ndcg_10, ranked.map
    ))
}

fn masked(args: &Score, common: &Common) -> Outcome {
    let file = args.file()?;
    let opened = Opened::new(&args.folder, &args.loading)?;
    let padding = opened.folder.architecture().padding.unwrap_or(0);
    let (texts, truncated) = if file.extension().is_some_and(|extension| extension == "safetensors") {
        (read_masked(file).map_err(told)?, 0)
    } else {
        let tokenizer = opened.tokenizer()?;
        let text = read_text(file).map_err(told)?;
        let mut truncated = 0;
        let hidden = |line: &str| -> Outcome<MaskedTokens> {
            let encoded = tokenizer.encode(line, true, Some(opened.pretrained.context)).map_err(told)?;
            truncated += usize::from(encoded.dropped > 0);
            hide(&tokenizer, encoded, args.every).map_err(told)
        };
        (text.lines().map(hidden).collect::<Outcome<Vec<_>>>()?, truncated)
    };
    let watch = Watch::new("texts", common);
    let score = masked_accuracy(&opened.pretrained, &texts, padding, args.batch, |progress| watch.on(progress))
        .map_err(told)?;
    watch.complete(score.complete)?;
    if common.json {
        let mut json = serde_json::to_value(score).expect("plain numbers");
        let map = json.as_object_mut().expect("an object");
        map.insert("task".into(), "masked".into());
        map.insert("truncated_texts".into(), truncated.into());
        return output::json(&json);
    }
    output::line(format_args!(
        "texts     {}\nfound     {} of {} hidden tokens\naccuracy  {:.2} %\nloss      {:.4} nats per hidden token",
        score.texts,
        score.correct,
        score.hidden,
        100.0 * score.accuracy,
        score.nats
    ))
}
