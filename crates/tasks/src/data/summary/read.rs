//! Documents and summaries from lines of JSON.

use std::{io::BufRead, path::Path};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::data::{DataError, plain_text::TextLines, sentences::split};

/// Fields of a document, the first that a line has: a text, or its sentences.
const DOCUMENTS: [&str; 4] = ["document", "article", "article_text", "source"];

/// Fields of its summary, and what a list is there.
const SUMMARIES: [(&str, List); 4] = [
    ("summary", List::References),
    ("highlights", List::Sentences),
    ("abstract_text", List::Sentences),
    ("target", List::References),
];

/// Marks around the sentences of PubMed's abstracts.
const SENTENCE_MARKS: [&str; 2] = ["<S>", "</S>"];

/// Field that only meetings have.
const MEETING: &str = "meeting_transcripts";

/// What the texts in a list are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    /// Parts of one text.
    Sentences,
    /// Texts that say the same.
    References,
}

/// A document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Document {
    pub text: String,
    /// Where its sentences or turns end, if the file divides it.
    ends: Vec<usize>,
}

impl Document {
    fn of(parts: &[String]) -> Self {
        let mut document = Self::default();
        for part in parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty()) {
            if !document.text.is_empty() {
                document.text.push(' ');
            }
            document.text.push_str(part);
            document.ends.push(document.text.len());
        }
        if document.ends.len() < 2 {
            document.ends.clear();
        }
        document
    }

    /// Its first `count` sentences.
    pub fn lead(&self, count: usize) -> String {
        match self.ends.get(count - 1).or(self.ends.last()) {
            Some(&end) => self.text[..end].to_owned(),
            None => split(&self.text).into_iter().take(count).collect::<Vec<_>>().join(" "),
        }
    }
}

/// What is to be summarised, and how it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// Index of the document.
    pub document: usize,
    /// What the summary is to answer, in meetings.
    pub query: Option<String>,
    /// Summaries, at least one.
    pub references: Vec<String>,
}

/// A file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Collection {
    pub documents: Vec<Document>,
    pub items: Vec<Item>,
    /// Documents or summaries without a word, which are left out.
    pub empty: usize,
}

/// A meeting of QMSum.
#[derive(Deserialize)]
struct Meeting {
    meeting_transcripts: Vec<Turn>,
    #[serde(default)]
    general_query_list: Vec<Query>,
    #[serde(default)]
    specific_query_list: Vec<Query>,
}

#[derive(Deserialize)]
struct Turn {
    speaker: String,
    content: String,
}

#[derive(Deserialize)]
struct Query {
    query: String,
    answer: String,
}

/// All documents of a file and their summaries.
///
/// # Errors
/// A file that cannot be read, a line that is no JSON or has other fields, a file without summaries.
pub(super) fn read(source: impl BufRead, path: &Path) -> Result<Collection, DataError> {
    let mut all = Collection::default();
    for (line, number) in TextLines::new(source, path).zip(1..) {
        let line = line?;
        if !line.trim().is_empty() {
            let failed = |problem| DataError::Row { path: path.into(), line: number, problem };
            all.add(&line).map_err(failed)?;
        }
    }
    if all.items.is_empty() {
        let problem = match all.empty {
            0 => "has no lines; give a file with a JSON object in each, of a document and its summary".into(),
            empty => format!("has no words in any of its {empty} documents or summaries; give a file with text"),
        };
        return Err(DataError::Content { path: path.into(), problem });
    }
    Ok(all)
}

impl Collection {
    fn add(&mut self, line: &str) -> Result<(), String> {
        let fields = match serde_json::from_str(line) {
            Ok(Value::Object(fields)) => fields,
            Ok(other) => {
                let seen = kind(&other);
                return Err(format!(
                    "is {seen}, expected an object; put a document and its summary into each line: {EXAMPLE}"
                ));
            }
            Err(error) if error.is_eof() => {
                return Err("ends in the middle of its JSON; the file may be truncated: fetch it again".into());
            }
            Err(error) => {
                let column = error.column();
                return Err(format!("is no JSON from column {column} on; put one object into each line: {EXAMPLE}"));
            }
        };
        if fields.contains_key(MEETING) { self.add_meeting(fields) } else { self.add_document(&fields) }
    }

    fn add_document(&mut self, fields: &Map<String, Value>) -> Result<(), String> {
        let Some(name) = DOCUMENTS.into_iter().find(|name| fields.contains_key(*name)) else {
            return Err(missing("document", &DOCUMENTS, fields));
        };
        let document = Document::of(&texts(name, &fields[name])?);
        let Some((name, list)) = SUMMARIES.into_iter().find(|(name, _)| fields.contains_key(*name)) else {
            return Err(missing("summary", &SUMMARIES.map(|(name, _)| name), fields));
        };
        let parts = texts(name, &fields[name])?;
        let clean = |text: &str| SENTENCE_MARKS.iter().fold(text.to_owned(), |text, mark| text.replace(mark, " "));
        let references = match list {
            List::References => parts,
            List::Sentences => vec![clean(&parts.join(" "))],
        };
        self.push(document, [(None, references)]);
        Ok(())
    }

    fn add_meeting(&mut self, fields: Map<String, Value>) -> Result<(), String> {
        let meeting: Meeting = serde_path_to_error::deserialize(Value::Object(fields)).map_err(|error| {
            format!(
                "is a meeting of another form: {}: {}; expected turns of speaker and content, and lists of query and answer",
                error.path(),
                error.inner()
            )
        })?;
        let turns = meeting.meeting_transcripts.iter().map(|turn| format!("{}: {}", turn.speaker, turn.content));
        let document = Document::of(&turns.collect::<Vec<_>>());
        let queries = meeting.general_query_list.into_iter().chain(meeting.specific_query_list);
        let items: Vec<_> = queries.map(|own| (Some(own.query), vec![own.answer])).collect();
        if items.is_empty() {
            return Err(
                "is a meeting without queries; expected some in general_query_list or specific_query_list".into()
            );
        }
        self.push(document, items);
        Ok(())
    }

    /// Adds a document with its summaries, but for those without words.
    fn push(&mut self, document: Document, items: impl IntoIterator<Item = (Option<String>, Vec<String>)>) {
        let before = self.items.len();
        for (query, mut references) in items {
            references.retain(|reference| !reference.trim().is_empty());
            if document.text.is_empty() || references.is_empty() {
                self.empty += 1;
            } else {
                self.items.push(Item { document: self.documents.len(), query, references });
            }
        }
        if self.items.len() > before {
            self.documents.push(document);
        }
    }
}

/// A line as it should be.
const EXAMPLE: &str = r#"{"document": "..", "summary": ".."}"#;

/// A text, or several.
fn texts(name: &str, value: &Value) -> Result<Vec<String>, String> {
    let wrong = |other: &Value, place: &str| {
        format!("has {} {place} '{name}', expected a text or a list of texts; check the file", kind(other))
    };
    match value {
        Value::String(text) => Ok(vec![text.clone()]),
        Value::Array(parts) => {
            let text = |part: &Value| part.as_str().map(str::to_owned).ok_or_else(|| wrong(part, "in"));
            parts.iter().map(text).collect()
        }
        other => Err(wrong(other, "as")),
    }
}

fn missing(what: &str, names: &[&str], fields: &Map<String, Value>) -> String {
    let seen: Vec<&str> = fields.keys().map(String::as_str).take(8).collect();
    let seen = if seen.is_empty() { "none".into() } else { seen.join(", ") };
    format!("has no {what}: its fields are {seen}; expected one of {}; rename the field", names.join(", "))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Collection, DataError> {
        read(text.as_bytes(), Path::new("file.jsonl"))
    }

    /// Document, first sentence and references of the only item.
    fn one(line: &str) -> (String, String, Vec<String>) {
        let mut all = of(line).unwrap();
        assert_eq!((all.items.len(), all.items[0].document, all.documents.len()), (1, 0, 1));
        (all.documents[0].text.clone(), all.documents[0].lead(1), all.items.remove(0).references)
    }

    #[test]
    fn every_form_gives_a_document_and_its_summaries() {
        for (line, document, lead, references) in [
            (r#"{"document": "One. Two.", "summary": "S"}"#, "One. Two.", "One.", vec!["S"]),
            (
                r#"{"id": 3, "article": "(CNN) One. two\nthree.\n\nFour", "highlights": "A .\nB ."}"#,
                "(CNN) One. two\nthree.\n\nFour",
                "(CNN) One. two three.",
                vec!["A .\nB ."],
            ),
            (
                r#"{"article_text": ["a . b", " ", "c ."], "abstract_text": ["<S> d . </S>", "<S> e . </S>"]}"#,
                "a . b c .",
                "a . b",
                vec!["  d .     e .  "],
            ),
            (
                r#"{"source": ["One. Two", "three."], "source_labels": [0, 1], "target": ["S", "", "T"]}"#,
                "One. Two three.",
                "One. Two",
                vec!["S", "T"],
            ),
            (r#"{"document": ["One. Two."], "summary": ["S"]}"#, "One. Two.", "One.", vec!["S"]),
        ] {
            let references = references.into_iter().map(String::from).collect();
            assert_eq!(one(line), (document.into(), lead.into(), references), "{line}");
        }
        let all = of(r#"{"document": ["a", "b", "c"], "summary": "S"}"#).unwrap();
        assert_eq!([1, 2, 3, 9].map(|count| all.documents[0].lead(count)), ["a", "a b", "a b c", "a b c"]);
    }

    #[test]
    fn a_meeting_is_summarised_once_for_each_query() {
        let line = r#"{"meeting_id": "x", "topic_list": [],
            "meeting_transcripts": [{"speaker": "A", "content": "Hm ."}, {"speaker": "B", "content": "So ?"}],
            "general_query_list": [{"query": "All", "answer": "They met."}],
            "specific_query_list": [{"query": "What?", "answer": "That.", "relevant_text_span": [["0", "1"]]},
                                    {"query": "Why?", "answer": " "}]}"#;
        let all = of(&line.replace('\n', " ")).unwrap();
        assert_eq!((all.documents.len(), all.empty), (1, 1));
        assert_eq!((&*all.documents[0].text, &*all.documents[0].lead(1)), ("A: Hm . B: So ?", "A: Hm ."));
        let item = |query: &str, answer: &str| Item {
            document: 0,
            query: Some(query.into()),
            references: vec![answer.into()],
        };
        assert_eq!(all.items, [item("All", "They met."), item("What?", "That.")]);
    }

    #[test]
    fn lines_without_words_are_counted_and_left_out() {
        let good = r#"{"document": "One.", "summary": "S"}"#;
        let bad = [
            r#"{"document": " ", "summary": "S"}"#,
            r#"{"document": [], "summary": "S"}"#,
            r#"{"document": "One.", "summary": []}"#,
        ];
        let all = of(&[&bad[..], &["", good]].concat().join("\n")).unwrap();
        assert_eq!((all.empty, all.items.len(), all.documents.len()), (3, 1, 1));
        let error = of(&bad.join("\r\n")).unwrap_err().to_string();
        assert!(error.contains("file.jsonl: has no words in any of its 3 documents"), "{error}");
        let error = of("\n").unwrap_err().to_string();
        assert!(error.contains("file.jsonl: has no lines; give a file with a JSON object in each"), "{error}");
    }

    #[test]
    fn lines_of_another_form_are_named_with_a_remedy() {
        let good = r#"{"document": "One.", "summary": "S"}"#;
        for (line, expected) in [
            (
                r#"{"document": "One.", "summ"#,
                "ends in the middle of its JSON; the file may be truncated: fetch it again",
            ),
            ("{'document': 'One.'}", "is no JSON from column 2 on; put one object into each line"),
            (r#"["One.", "S"]"#, "is a list, expected an object"),
            (
                r#"{"text": "One.", "summary": "S"}"#,
                "has no document: its fields are summary, text; expected one of document, article, article_text, source",
            ),
            (r#"{"document": "One."}"#, "has no summary: its fields are document; expected one of summary, highlights"),
            ("{}", "has no document: its fields are none"),
            (r#"{"document": 3, "summary": "S"}"#, "has a number as 'document', expected a text or a list of texts"),
            (r#"{"document": "One.", "summary": ["S", null]}"#, "has null in 'summary', expected a text"),
            (
                r#"{"meeting_transcripts": [{"speaker": "A"}]}"#,
                "is a meeting of another form: meeting_transcripts[0]: missing field `content`",
            ),
            (r#"{"meeting_transcripts": []}"#, "is a meeting without queries"),
        ] {
            let error = of(&format!("{good}\n{line}\n")).unwrap_err();
            assert!(!error.is_config());
            let error = error.to_string();
            assert!(error.starts_with(&format!("file.jsonl:2: {expected}")), "{error}");
        }
    }
}
