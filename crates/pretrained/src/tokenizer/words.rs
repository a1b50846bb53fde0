//! The `vocab.txt` of a BERT: one piece a line, its number is that of the line.

use std::{fs, path::Path};

use tokenizers::{
    AddedToken, decoders::wordpiece::WordPiece as Decoder, models::wordpiece::WordPiece, normalizers::BertNormalizer,
    pre_tokenizers::bert::BertPreTokenizer, processors::bert::BertProcessing,
};

use super::settings::Settings;
use crate::PretrainedError;

/// The prefix of a piece that continues a word.
const CONTINUED: &str = "##";

/// Reads the file.
pub(super) fn read(path: &Path, settings: &Settings) -> Result<tokenizers::Tokenizer, PretrainedError> {
    let text = fs::read_to_string(path).map_err(PretrainedError::reading(path))?;
    let pieces: Vec<&str> = text.lines().map(str::trim_end).collect();
    let token = |key: &str, usual: &str| settings.tokens.get(key).map_or(usual, String::as_str).to_string();
    let number = |token: String| match pieces.iter().rposition(|piece| *piece == token) {
        Some(at) => Ok((token, at as u32)),
        None => Err(PretrainedError::content(path, format!("no line '{token}', expected one; fetch the file again"))),
    };
    let unknown = number(token("unk_token", "[UNK]"))?;
    let class = number(token("cls_token", "[CLS]"))?;
    let separator = number(token("sep_token", "[SEP]"))?;
    let broken = |error| PretrainedError::content(path, format!("not a vocabulary: {error}; fetch it again"));
    let model = WordPiece::builder()
        .vocab(WordPiece::read_bytes(text.as_bytes()).map_err(broken)?)
        .unk_token(unknown.0.clone())
        .continuing_subword_prefix(CONTINUED.into())
        .build()
        .map_err(broken)?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    let normalizer = BertNormalizer::new(true, settings.chinese, settings.strip_accents, settings.lowercase);
    tokenizer.with_normalizer(Some(normalizer)).map_err(broken)?;
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
    tokenizer.with_decoder(Some(Decoder::new(CONTINUED.into(), true)));
    let names =
        [token("pad_token", "[PAD]"), token("mask_token", "[MASK]"), unknown.0, class.0.clone(), separator.0.clone()];
    let known = names.into_iter().filter(|name| pieces.contains(&name.as_str()));
    let special: Vec<_> = known.map(|name| AddedToken::from(name, true)).collect();
    tokenizer.add_special_tokens(special).map_err(broken)?;
    tokenizer.with_post_processor(Some(BertProcessing::new(separator, class)));
    Ok(tokenizer)
}
