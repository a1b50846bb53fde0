//! `vocab.json` and `merges.txt` of GPT-2 and RoBERTa: bytes of a word joined pair by pair (Sennrich et al. 2016).

use std::path::Path;

use tokenizers::{
    AddedToken, PostProcessorWrapper, models::bpe::BPE, pre_tokenizers::byte_level::ByteLevel,
    processors::roberta::RobertaProcessing,
};

use super::settings::Settings;
use crate::PretrainedError;

/// Reads the files. A vocabulary with RoBERTa's first and last token gets them around its texts.
pub(super) fn read(
    [vocabulary, merges]: [&Path; 2],
    settings: &Settings,
) -> Result<tokenizers::Tokenizer, PretrainedError> {
    let broken =
        |error| PretrainedError::content(merges, format!("not merges of a vocabulary: {error}; fetch both again"));
    let [vocabulary, merges] = [vocabulary, merges].map(|path| {
        path.to_str().ok_or_else(|| PretrainedError::content(path, "its path is not UTF-8; move the folder"))
    });
    let model = BPE::from_file(vocabulary?, merges?).build().map_err(broken)?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    let bytes = ByteLevel::new(false, true, true);
    tokenizer.with_pre_tokenizer(Some(bytes)).with_decoder(Some(bytes));
    let names = ["<s>", "</s>", "<unk>", "<pad>", "<mask>", "<|endoftext|>"].map(str::to_owned);
    let named = settings.tokens.values().cloned().chain(names);
    let special: Vec<_> = named
        .filter(|name| tokenizer.token_to_id(name).is_some())
        // A hidden word takes the space before it.
        .map(|name| AddedToken::from(name.clone(), true).lstrip(name == "<mask>"))
        .collect();
    tokenizer.add_special_tokens(special).map_err(broken)?;
    let number = |name: &str| tokenizer.token_to_id(name).map(|id| (name.to_owned(), id));
    let around = match (number("</s>"), number("<s>")) {
        (Some(separator), Some(class)) => {
            PostProcessorWrapper::from(RobertaProcessing::new(separator, class).add_prefix_space(false))
        }
        _ => PostProcessorWrapper::from(ByteLevel::new(false, false, true)),
    };
    tokenizer.with_post_processor(Some(around));
    Ok(tokenizer)
}
