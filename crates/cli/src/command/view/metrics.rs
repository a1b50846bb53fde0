//! `metrics.jsonl` in pieces: what has been added since the last look.

use std::{
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

use regard_tasks::train::Record;
use serde_json::{Value, json};

/// Most bytes of a piece.
const PIECE: u64 = 1 << 20;

/// The records from a byte on, up to the last whole line or the end of a piece.
///
/// `next` is where to go on, `size` the length of the file, `run` a name of the run by its first line: another one has taken
/// its place where that changes. A file that has become shorter, as that of a resumed or repeated run does, is read from its
/// start, and `again` says so.
///
/// # Errors
/// A file that cannot be read.
pub fn since(file: &Path, from: u64) -> io::Result<Value> {
    let mut file = File::open(file)?;
    let size = file.metadata()?.len();
    let again = from > size;
    let from = if again { 0 } else { from };
    let run = first_line(&file)?;
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(PIECE).read_to_end(&mut bytes)?;
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    // A line longer than a piece is none of ours: passed over.
    let taken = if whole == 0 && bytes.len() as u64 == PIECE { bytes.len() } else { whole };
    let (mut steps, mut evaluations) = (Vec::new(), Vec::new());
    for record in records(&bytes[..whole]) {
        match record {
            Record::Step(step) => steps.push(json!([step.step, step.loss, step.milliseconds])),
            Record::Evaluation(evaluation) => evaluations.push(json!({
                "step": evaluation.step,
                "split": evaluation.split.name(),
                "loss": evaluation.loss,
                "accuracy": evaluation.accuracy,
                "perplexity": evaluation.perplexity,
            })),
        }
    }
    Ok(json!({
        "next": from + taken as u64, "size": size, "again": again, "run": run, "steps": steps, "evaluations": evaluations,
    }))
}

/// A hash of the first line, which has the time of an update and is that of one run alone.
fn first_line(file: &File) -> io::Result<String> {
    let mut start = Vec::new();
    file.take(1 << 12).read_to_end(&mut start)?;
    let mut hasher = DefaultHasher::new();
    start.split(|byte| *byte == b'\n').next().hash(&mut hasher);
    Ok(format!("{:x}", hasher.finish()))
}

/// The last records of a file, in order, as many as the last kibibytes hold.
pub fn last(file: &Path) -> io::Result<Vec<Record>> {
    let mut file = File::open(file)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(1 << 16)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(records(&bytes))
}

/// The lines that are records: the first and the last of a piece may be cut.
fn records(bytes: &[u8]) -> Vec<Record> {
    bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::NamedTempFile;

    use super::*;

    /// A line as a run writes it.
    fn line(step: usize) -> String {
        format!(
            "{{\"kind\":\"step\",\"step\":{step},\"loss\":0.5,\"learning_rate\":1,\"gradient_norm\":1,\"milliseconds\":2,\
             \"tokens_per_second\":3,\"peak_bytes\":4}}\n"
        )
    }

    #[test]
    fn a_growing_file_is_read_once() {
        let file = NamedTempFile::new().unwrap();
        let (first, second) = (line(1), line(2));
        // The second line is half written.
        fs::write(file.path(), format!("{first}{}", &second[..20])).unwrap();
        let piece = since(file.path(), 0).unwrap();
        assert_eq!(piece["steps"], json!([[1, 0.5, 2.0]]));
        assert_eq!(piece["next"], first.len());
        fs::write(file.path(), format!("{first}{second}")).unwrap();
        let piece = since(file.path(), first.len() as u64).unwrap();
        assert_eq!(piece["steps"], json!([[2, 0.5, 2.0]]));
        let end = piece["next"].as_u64().unwrap();
        assert_eq!(since(file.path(), end).unwrap()["steps"], json!([]));
        assert_eq!(last(file.path()).unwrap().len(), 2);
        // The run begins anew.
        fs::write(file.path(), line(3)).unwrap();
        let piece = since(file.path(), end).unwrap();
        assert_eq!((&piece["again"], &piece["steps"]), (&json!(true), &json!([[3, 0.5, 2.0]])));
        // Or it is another one, as long as the one before.
        let end = piece["next"].as_u64().unwrap();
        assert_eq!(since(file.path(), end).unwrap()["run"], piece["run"]);
        fs::write(file.path(), line(4)).unwrap();
        let other = since(file.path(), end).unwrap();
        assert_eq!((&other["again"], &other["next"]), (&json!(false), &piece["next"]));
        assert_ne!(other["run"], piece["run"]);
    }

    #[test]
    fn a_long_file_comes_in_pieces() {
        let file = NamedTempFile::new().unwrap();
        let count = 12_000;
        fs::write(file.path(), (1..=count).map(line).collect::<String>()).unwrap();
        let (mut from, mut seen, mut pieces) = (0, 0, 0);
        loop {
            let piece = since(file.path(), from).unwrap();
            seen += piece["steps"].as_array().unwrap().len();
            from = piece["next"].as_u64().unwrap();
            pieces += 1;
            if Some(from) == piece["size"].as_u64() {
                break;
            }
        }
        assert!(seen == count && pieces > 1, "{seen} in {pieces}");
    }
}
