//! `vocab.txt`: one piece per line, its number is that of the line.

use std::{fs, path::Path};

use tokenizers::{
    AddedToken, SplitDelimiterBehavior,
    decoders::{fuse::Fuse, wordpiece::WordPiece as Decoder},
    models::{wordlevel::WordLevel, wordpiece::WordPiece},
    normalizers::BertNormalizer,
    pre_tokenizers::{
        bert::BertPreTokenizer,
        split::{Split, SplitPattern},
    },
    processors::bert::BertProcessing,
};

use super::settings::Settings;
use crate::PretrainedError;

/// The prefix of a piece that continues a word.
const CONTINUED: &str = "##";

/// How texts are cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// Into words as BERT does, words into their longest pieces from the left, all but the first of them with `##`.
    Words,
    /// Anywhere, into the longest pieces from the left, as tokenizers of formulas do; what is no piece is unknown.
    Anywhere,
}

/// Reads the file.
pub(super) fn read(path: &Path, settings: &Settings, cut: Cut) -> Result<tokenizers::Tokenizer, PretrainedError> {
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
    let names = [
        token("pad_token", "[PAD]"),
        token("mask_token", "[MASK]"),
        unknown.0.clone(),
        class.0.clone(),
        separator.0.clone(),
    ];
    let broken = |error| PretrainedError::content(path, format!("not a vocabulary: {error}; fetch it again"));
    let mut tokenizer = match cut {
        Cut::Words => words(&text, unknown.0, settings),
        Cut::Anywhere => anywhere(&pieces, unknown.0, &names),
    }
    .map_err(broken)?;
    let known = names.into_iter().filter(|name| pieces.contains(&name.as_str()));
    let special: Vec<_> = known.map(|name| AddedToken::from(name, true)).collect();
    tokenizer.add_special_tokens(special).map_err(broken)?;
    tokenizer.with_post_processor(Some(BertProcessing::new(separator, class)));
    Ok(tokenizer)
}

fn words(text: &str, unknown: String, settings: &Settings) -> tokenizers::Result<tokenizers::Tokenizer> {
    let model = WordPiece::builder()
        .vocab(WordPiece::read_bytes(text.as_bytes())?)
        .unk_token(unknown)
        .continuing_subword_prefix(CONTINUED.into())
        .build()?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    let normalizer = BertNormalizer::new(true, settings.chinese, settings.strip_accents, settings.lowercase);
    tokenizer.with_normalizer(Some(normalizer))?;
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
    tokenizer.with_decoder(Some(Decoder::new(CONTINUED.into(), true)));
    Ok(tokenizer)
}

fn anywhere(pieces: &[&str], unknown: String, special: &[String]) -> tokenizers::Result<tokenizers::Tokenizer> {
    let numbered = pieces.iter().zip(0..).map(|(piece, number)| (piece.to_string(), number));
    let model = WordLevel::builder().vocab(numbered.collect()).unk_token(unknown).build()?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    let mut longest: Vec<&str> =
        pieces.iter().copied().filter(|piece| !piece.is_empty() && !special.iter().any(|name| name == piece)).collect();
    // Of alternatives the first one that fits is taken.
    longest.sort_by_key(|piece| std::cmp::Reverse(piece.len()));
    let pattern = longest.into_iter().map(escaped).collect::<Vec<_>>().join("|");
    let cuts = Split::new(SplitPattern::Regex(pattern), SplitDelimiterBehavior::Isolated, false)?;
    tokenizer.with_pre_tokenizer(Some(cuts));
    tokenizer.with_decoder(Some(Fuse::new()));
    Ok(tokenizer)
}

/// A regular expression of the text itself.
fn escaped(text: &str) -> String {
    let escape = |c: char| if c.is_ascii_punctuation() { format!("\\{c}") } else { c.to_string() };
    text.chars().map(escape).collect()
}
