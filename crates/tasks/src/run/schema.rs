//! Every key of a configuration, with a value of its type.

use toml::{Table, Value};

use regard_kernels::mechanism::Fraction;
use regard_nn::attention::AttentionConfig;

use super::RunConfig;
use crate::data::TextFormat;

/// Every valid key, except tables.
pub fn keys() -> Vec<String> {
    let (schema, mut all) = (schema(), Vec::new());
    list(&schema, "", &mut all);
    all.retain(|key| !lookup(&schema, key).is_some_and(Value::is_table));
    all
}

/// The value at a dotted path.
pub(super) fn lookup<'a>(table: &'a Table, path: &str) -> Option<&'a Value> {
    match path.split_once('.') {
        None => table.get(path),
        Some((first, rest)) => lookup(table.get(first)?.as_table()?, rest),
    }
}

/// All keys, including tables and their content.
pub(super) fn list(table: &Table, prefix: &str, keys: &mut Vec<String>) {
    for (key, value) in table {
        let path = join(prefix, key);
        if let Value::Table(inner) = value {
            list(inner, &path, keys);
        }
        keys.push(path);
    }
}

pub(super) fn join(prefix: &str, key: &str) -> String {
    if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") }
}

/// A configuration with every optional key set.
pub(super) fn schema() -> Table {
    let mut full = RunConfig::default();
    full.attention = AttentionConfig { key_value_heads: Some(1), window: Some(1), ..full.attention };
    full.attention.budget = Fraction::new(1.0).ok();
    full.attention.support.layout = Some(vec!["1".into()]);
    full.attention.support.hash_values = Some(2);
    full.attention.moa.head_width = Some(1);
    full.model.head_width = Some(1);
    full.model.embedding_width = Some(1);
    full.model.layer_scale = Some(1.0);
    (full.model.qkv_bias, full.model.output_bias, full.model.feed_forward_bias) = (Some(true), Some(true), Some(true));
    full.task.seed = Some(1);
    let path = Some(std::path::PathBuf::from("file"));
    full.task.text.train = path.clone();
    full.task.text.valid = path.clone();
    full.task.text.test = path.clone();
    full.task.text.path = path.clone();
    full.task.text.format = Some(TextFormat::Tsv);
    full.task.text.second_column = Some(0.into());
    full.task.retrieval.train = path.clone();
    full.task.retrieval.valid = path.clone();
    full.task.retrieval.test = path.clone();
    (full.task.news.train, full.task.news.test) = (path.clone(), path.clone());
    full.task.image.path = path.clone();
    full.task.char_lm.path = path.clone();
    full.task.translation.directory = path.clone();
    full.task.summary.directory = path.clone();
    full.task.summary.train = path.clone();
    full.task.summary.valid = path.clone();
    full.task.summary.test = path.clone();
    full.task.lm.prepared = path.clone();
    full.task.lm.directory = path.clone();
    full.task.lm.tokenizer = path.clone();
    (full.task.lm.stride, full.task.lm.valid_stride) = (Some(1), Some(1));
    full.model.adaptive_softmax.cutoffs = vec![1];
    full.task.masked_lm.valid = path.clone();
    full.train.start = path;
    let attention = Table::try_from(&full.attention).expect("plain structures are TOML");
    let mut all = full.to_table();
    for name in ["decoder", "cross"] {
        all.insert(name.into(), Value::Table(attention.clone()));
    }
    all
}
