//! What stands beside a tokenizer: `tokenizer_config.json`, `special_tokens_map.json`, `chat_template.jinja`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{ConfigProblem, PretrainedError, keys::Keys, shards::read_optional_json};

/// A length above this says that there is none: `transformers` writes 1e30.
const LONGEST: f64 = 1e9;
/// Tokens with a meaning of their own, by the keys of the file.
const NAMES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token"];

/// Numbers of the tokens with a meaning of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Stands for what has no token.
    pub unknown: Option<u32>,
    /// Fills up rows.
    pub padding: Option<u32>,
    /// Stands first and is what a classifier looks at.
    pub class: Option<u32>,
    /// Stands between and after texts.
    pub separator: Option<u32>,
    /// Stands for a hidden token.
    pub mask: Option<u32>,
}

/// What the files say.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    /// Texts of special tokens by their keys.
    pub tokens: BTreeMap<String, String>,
    pub add_bos: Option<bool>,
    /// Whether `add_bos` counts for more than the tokenizer itself, as it does with Llama's class.
    pub llama: bool,
    pub lowercase: bool,
    pub strip_accents: Option<bool>,
    pub chinese: bool,
    /// Tokens that the model takes.
    pub length: Option<usize>,
    /// The chat template and its file.
    pub template: Option<(PathBuf, String)>,
}

impl Settings {
    pub fn of_folder(folder: &Path) -> Result<Self, PretrainedError> {
        let mut settings = Self { lowercase: true, chinese: true, ..Self::default() };
        if let Some((path, value)) = read_optional_json(folder.join("special_tokens_map.json"))? {
            let keys = Keys::of(&value).map_err(PretrainedError::config(&path))?;
            settings.read_tokens(&keys).map_err(PretrainedError::config(&path))?;
        }
        if let Some((path, value)) = read_optional_json(folder.join("tokenizer_config.json"))? {
            let keys = Keys::of(&value).map_err(PretrainedError::config(&path))?;
            settings.read(&keys).map_err(PretrainedError::config(&path))?;
            let template = template(&keys).map_err(PretrainedError::config(&path))?;
            settings.template = template.map(|source| (path, source));
        }
        let path = folder.join("chat_template.jinja");
        if path.exists() {
            let source = fs::read_to_string(&path).map_err(PretrainedError::reading(&path))?;
            settings.template = Some((path, source));
        }
        Ok(settings)
    }

    fn read(&mut self, keys: &Keys<'_>) -> Result<(), ConfigProblem> {
        self.read_tokens(keys)?;
        self.add_bos = keys.optional_flag("add_bos_token")?;
        self.llama = keys.optional_text("tokenizer_class")?.is_some_and(|name| name.starts_with("Llama"));
        self.lowercase = keys.flag("do_lower_case", true)?;
        self.strip_accents = keys.optional_flag("strip_accents")?;
        self.chinese = keys.flag("tokenize_chinese_chars", true)?;
        self.length = keys.optional_positive("model_max_length")?.filter(|n| *n < LONGEST).map(|n| n as usize);
        Ok(())
    }

    fn read_tokens(&mut self, keys: &Keys<'_>) -> Result<(), ConfigProblem> {
        for name in NAMES {
            let Some(value) = keys.get(name) else { continue };
            let text = value.as_str().or_else(|| value.get("content")?.as_str());
            let text = text.ok_or_else(|| keys.problem(name, "a text, or an object with its content"))?;
            self.tokens.insert(name.into(), text.into());
        }
        Ok(())
    }

    /// The numbers of the special tokens; those of BERT, GPT-2 and RoBERTa are known without a file.
    pub fn special(&self, inner: &tokenizers::Tokenizer) -> SpecialTokens {
        let find = |key: &str, usual: &[&str]| match self.tokens.get(key) {
            Some(name) => inner.token_to_id(name),
            None => usual.iter().find_map(|name| inner.token_to_id(name)),
        };
        SpecialTokens {
            bos: find("bos_token", &["<s>", "<|endoftext|>"]),
            eos: find("eos_token", &["</s>", "<|endoftext|>"]),
            unknown: find("unk_token", &["[UNK]", "<unk>"]),
            padding: find("pad_token", &["[PAD]", "<pad>"]),
            class: find("cls_token", &["[CLS]"]),
            separator: find("sep_token", &["[SEP]"]),
            mask: find("mask_token", &["[MASK]", "<mask>"]),
        }
    }
}

/// `chat_template`: a text, or a list of named ones of which `default` counts.
fn template(keys: &Keys<'_>) -> Result<Option<String>, ConfigProblem> {
    let expected = "a text, or a list of objects with name and template, one of them named default";
    match keys.get("chat_template") {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(value) => {
            let named = value.as_array().and_then(|list| list.iter().find(|entry| entry["name"] == "default"));
            let text = named.and_then(|entry| entry["template"].as_str());
            text.map(|text| Some(text.into())).ok_or_else(|| keys.problem("chat_template", expected))
        }
    }
}
