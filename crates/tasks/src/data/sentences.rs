//! Splitting of running text into sentences.

use std::path::Path;

use super::DataError;

/// A line that ends a document, as in collections of short texts.
const END_OF_DOCUMENT: &str = "<|endoftext|>";

/// A sentence of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sentence {
    pub text: String,
    /// Whether it is the first of its document.
    pub first: bool,
}

/// The sentences of a file, in order. Lines of a paragraph are joined; empty lines separate paragraphs; a paragraph is
/// split after words that end in a full stop, an exclamation or a question mark (ignoring closing quotes and brackets)
/// before a word that does not begin in lower case.
///
/// # Errors
/// A file without words.
pub(super) fn sentences(path: &Path, lines: &[String]) -> Result<Vec<Sentence>, DataError> {
    let (mut all, mut first) = (Vec::new(), true);
    let mut words: Vec<&str> = Vec::new();
    for line in lines {
        let ends_document = line.trim() == END_OF_DOCUMENT;
        if !ends_document && !line.trim().is_empty() {
            words.extend(line.split_whitespace());
            continue;
        }
        cut(&mut words, &mut first, &mut all);
        first |= ends_document;
    }
    cut(&mut words, &mut first, &mut all);
    if all.is_empty() {
        return Err(DataError::Content { path: path.into(), problem: "has no words; give a file with text".into() });
    }
    Ok(all)
}

/// The sentences of a text as [`sentences`] cuts them.
pub(super) fn split(text: &str) -> Vec<String> {
    let (mut all, mut words) = (Vec::new(), Vec::new());
    for line in text.lines() {
        words.extend(line.split_whitespace());
        if line.trim().is_empty() {
            cut(&mut words, &mut false, &mut all);
        }
    }
    cut(&mut words, &mut false, &mut all);
    all.into_iter().map(|sentence| sentence.text).collect()
}

/// Moves the words of a paragraph into sentences.
fn cut(words: &mut Vec<&str>, first: &mut bool, all: &mut Vec<Sentence>) {
    let mut start = 0;
    for end in 1..=words.len() {
        let last = end == words.len();
        if last || closes(words[end - 1]) && !words[end].starts_with(char::is_lowercase) {
            all.push(Sentence { text: words[start..end].join(" "), first: std::mem::take(first) });
            start = end;
        }
    }
    words.clear();
}

fn closes(word: &str) -> bool {
    word.trim_end_matches(['"', '\'', '”', '’', '»', ')', ']']).ends_with(['.', '!', '?', '…'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_cut_into_sentences_and_documents_begin() {
        let text = "\nOne day, at 3.5 miles\nfrom here. \"Stop!\" she said. So he did?\n\nA heading\n \nNext. \
                    \n<|endoftext|>\nAnother one\n<|endoftext|>\n<|endoftext|>\n";
        let lines: Vec<String> = text.split('\n').map(String::from).collect();
        let seen = sentences(Path::new("x"), &lines).unwrap();
        let seen: Vec<(&str, bool)> = seen.iter().map(|s| (s.text.as_str(), s.first)).collect();
        let expected = [
            ("One day, at 3.5 miles from here.", true),
            ("\"Stop!\" she said.", false),
            ("So he did?", false),
            ("A heading", false),
            ("Next.", false),
            ("Another one", true),
        ];
        assert_eq!(seen, expected);
        let error = sentences(Path::new("x"), &["  ".into()]).unwrap_err().to_string();
        assert!(error.contains("x: has no words"), "{error}");
    }
}
