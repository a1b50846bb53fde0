//! Files of collections that encoders are scored on.

use std::collections::{BTreeMap, BTreeSet};

use regard_metrics::{average_precision, ndcg};
use serde::{Deserialize, Serialize};

use super::{Embeddings, embed::cosine};

/// Places of a ranking whose gains count.
const DEPTH: usize = 10;

/// The lowest grade of Cranfield's judgements that is relevant, 1 being the best.
const LOWEST: i64 = 4;

/// Two sentences and how similar people find them.
#[derive(Clone, Debug, PartialEq)]
pub struct SentencePair {
    /// One of them.
    pub first: String,
    /// The other.
    pub second: String,
    /// From 0 to 5.
    pub score: f64,
}

/// Reads lines of the Semantic Textual Similarity benchmark (Cer et al. 2017, arXiv 1708.00055): columns genre, source, year, id,
/// score, first and second sentence between tabs; more are left out. Lines of three columns are score and sentences.
///
/// # Errors
/// The line that is not one of these, and why.
pub fn sentence_pairs(text: &str) -> Result<Vec<SentencePair>, String> {
    let pair = |(number, line): (usize, &str)| {
        let columns: Vec<&str> = line.split('\t').collect();
        let (given, first, second) = match columns[..] {
            [score, first, second] => (score, first, second),
            [_, _, _, _, score, first, second, ..] => (score, first, second),
            _ => {
                let seen = columns.len();
                return Err(format!("line {number} has {seen} columns, expected 7, or 3: score and two sentences"));
            }
        };
        let score = given.trim().parse::<f64>().ok().filter(|score| score.is_finite());
        let score = score.ok_or_else(|| format!("line {number} has score '{given}', expected a number"))?;
        Ok(SentencePair { first: first.trim().into(), second: second.trim().into(), score })
    };
    lines(text).map(pair).collect()
}

/// A document or query of a collection in the format of the SMART system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SmartDocument {
    /// Its number.
    pub id: String,
    /// Title and text in one line.
    pub text: String,
}

/// Reads documents or queries of the SMART format: `.I` and a number, then `.T` with a title, `.W` with the text, and parts that
/// are left out. A title that the text repeats counts once.
///
/// # Errors
/// The line that is not one of these, and why.
pub fn smart_documents(text: &str) -> Result<Vec<SmartDocument>, String> {
    let mut documents: Vec<(String, [String; 2])> = Vec::new();
    let (mut part, mut seen) = (None, BTreeSet::new());
    for (number, line) in lines(text) {
        if let Some(id) = line.strip_prefix(".I").filter(|rest| rest.starts_with([' ', '\t'])) {
            let id = id.trim();
            if !seen.insert(id) {
                return Err(format!("line {number}: the number {id} is there twice, expected each once"));
            }
            documents.push((id.into(), Default::default()));
            part = None;
            continue;
        }
        let Some((_, parts)) = documents.last_mut() else {
            return Err(format!("line {number} is '{}', expected .I and a number", shortened(line)));
        };
        match line.trim_end() {
            ".T" => part = Some(0),
            ".W" => part = Some(1),
            ".A" | ".B" | ".K" | ".N" | ".X" | ".C" => part = None,
            text => {
                if let Some(part) = part {
                    parts[part].push(' ');
                    parts[part].push_str(text.trim());
                }
            }
        }
    }
    let put = |(id, [title, text]): (String, [String; 2])| {
        let text = if text.starts_with(&title) { text } else { title + &text };
        SmartDocument { id, text: text.split_whitespace().collect::<Vec<_>>().join(" ") }
    };
    Ok(documents.into_iter().map(put).collect())
}

/// How relevant a document is for a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The place of the query among the queries, from 1.
    pub query: usize,
    /// The number of the document.
    pub document: String,
    /// 4 for a complete answer down to 1 for the least interest, 0 for none.
    pub gain: u32,
}

/// Reads lines of Cranfield's judgements: the place of a query, the number of a document and a grade from 1, a complete answer, to
/// 4, of the least interest. Other grades are none.
///
/// # Errors
/// The line that is not one of these, and why.
pub fn judgements(text: &str) -> Result<Vec<Judgement>, String> {
    let judgement = |(number, line): (usize, &str)| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let read = match columns[..] {
            [query, document, grade] => {
                query.parse().ok().filter(|query| *query > 0).zip(grade.parse::<i64>().ok()).map(|(query, grade)| {
                    let gain = if (1..=LOWEST).contains(&grade) { (LOWEST + 1 - grade) as u32 } else { 0 };
                    Judgement { query, document: document.into(), gain }
                })
            }
            _ => None,
        };
        read.ok_or_else(|| format!("line {number} is '{}', expected query, document and grade", shortened(line)))
    };
    lines(text).map(judgement).collect()
}

/// How well documents are ranked for queries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranked {
    /// Mean normalised discounted gain of the first ten.
    pub ndcg_10: f64,
    /// Mean average precision over the whole ranking; everything with a gain is relevant.
    pub map: f64,
    /// Queries with a relevant document, over which the means are.
    pub queries: usize,
    /// Documents.
    pub documents: usize,
    /// The gain of each of these queries.
    #[serde(skip)]
    pub gains: Vec<f64>,
}

/// Ranks all documents for each query by the cosine of their vectors; those with the same one stay in their order.
///
/// # Errors
/// A judgement of a query or document that is none of them, no query with a relevant document.
pub fn rank(
    documents: &[SmartDocument],
    document_vectors: &Embeddings,
    query_vectors: &Embeddings,
    queries: usize,
    judgements: &[Judgement],
) -> Result<Ranked, String> {
    let known: BTreeSet<&str> = documents.iter().map(|document| &document.id[..]).collect();
    let mut gains: BTreeMap<usize, BTreeMap<&str, f64>> = BTreeMap::new();
    for Judgement { query, document, gain } in judgements {
        if *query > queries || !known.contains(&document[..]) {
            return Err(format!(
                "query {query} and document '{document}' are judged; expected one of {queries} queries and {} documents",
                documents.len()
            ));
        }
        if *gain > 0 {
            gains.entry(*query).or_default().insert(document, f64::from(*gain));
        }
    }
    if gains.is_empty() {
        return Err("no query has a relevant document; expected at least one".into());
    }
    let (mut ndcgs, mut precisions) = (Vec::new(), 0.0);
    for (query, gains) in &gains {
        let vector = query_vectors.row(query - 1);
        let mut order: Vec<(f64, &str)> = documents
            .iter()
            .enumerate()
            .map(|(place, document)| (cosine(vector, document_vectors.row(place)), &document.id[..]))
            .collect();
        order.sort_by(|a, b| b.0.total_cmp(&a.0));
        let ranked: Vec<f64> = order.iter().map(|(_, id)| gains.get(id).copied().unwrap_or(0.0)).collect();
        let all: Vec<f64> = gains.values().copied().collect();
        ndcgs.push(ndcg(&ranked, &all, DEPTH));
        precisions += average_precision(&ranked.iter().map(|gain| *gain > 0.0).collect::<Vec<_>>(), gains.len());
    }
    let count = gains.len() as f64;
    Ok(Ranked {
        ndcg_10: ndcgs.iter().sum::<f64>() / count,
        map: precisions / count,
        queries: gains.len(),
        documents: documents.len(),
        gains: ndcgs,
    })
}

/// Lines that are not empty, and their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty())
}

fn shortened(line: &str) -> String {
    line.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_and_told_apart_from_others() {
        let text = "main-captions\timages\t2014\t0000\t3.6\tA cat.\tB \"cat.\tmore\n\n5\ta\tb\n";
        let pairs = sentence_pairs(text).unwrap();
        assert_eq!(pairs[0], SentencePair { first: "A cat.".into(), second: "B \"cat.".into(), score: 3.6 });
        assert_eq!(pairs[1].score, 5.0);
        assert!(sentence_pairs("\n5\ta\n").unwrap_err().starts_with("line 2 has 2 columns"));
        assert!(sentence_pairs("high\ta\tb").unwrap_err().contains("'high'"));
    }

    #[test]
    fn documents_hold_title_and_text_once() {
        let text = ".I 1\n.T\na wing\nin air .\n.A\nsomebody\n.W\na wing\nin air .\n  lift is\n.I 2\n.T\nother\n.W\ntext\n.I 3\n.W\n";
        let documents = smart_documents(text).unwrap();
        let texts: Vec<&str> = documents.iter().map(|document| &document.text[..]).collect();
        assert_eq!(texts, ["a wing in air . lift is", "other text", ""]);
        assert_eq!(documents[1].id, "2");
        assert!(smart_documents("hello\n.I 1").unwrap_err().starts_with("line 1 is 'hello'"));
    }

    #[test]
    fn judgements_count_from_the_best() {
        let gains: Vec<u32> =
            judgements("1 184 2\n1 29 1 \n2 3 4\n2 4 -1\n2 5 5").unwrap().iter().map(|judged| judged.gain).collect();
        assert_eq!(gains, [3, 4, 1, 0, 0]);
        for broken in ["0 1 1", "1 1", "a b c"] {
            assert!(judgements(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn rankings_are_scored() {
        let vectors = |values: &[f32]| Embeddings {
            values: values.to_vec(),
            width: 2,
            tokens: 0,
            truncated: 0,
            dropped: 0,
            complete: true,
        };
        let document = |id: &str| SmartDocument { id: id.into(), text: String::new() };
        let documents = [document("a"), document("b"), document("c")];
        let of_documents = vectors(&[1.0, 0.0, 1.0, 1.0, 0.0, 1.0]);
        let judged = judgements("1 a 4\n1 c 1\n2 c 1\n2 b -1").unwrap();
        // The first query ranks a, b, c; the second c, b, a.
        let ranked = rank(&documents, &of_documents, &vectors(&[1.0, 0.1, 0.0, 2.0]), 2, &judged).unwrap();
        let first = (1.0 + 4.0 / 4f64.log2()) / (4.0 + 1.0 / 3f64.log2());
        assert!((ranked.ndcg_10 - (first + 1.0) / 2.0).abs() < 1e-12, "{ranked:?}");
        assert!((ranked.map - ((1.0 + 2.0 / 3.0) / 2.0 + 1.0) / 2.0).abs() < 1e-12);
        let unknown = judgements("3 a 1").unwrap();
        assert!(rank(&documents, &of_documents, &vectors(&[1.0, 0.0]), 1, &unknown).is_err());
        assert!(rank(&documents, &of_documents, &vectors(&[1.0, 0.0]), 1, &[]).is_err());
    }
}
