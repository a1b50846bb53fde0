//! A preprocessor of mdBook: sets each block of formulas as MathML, which browsers draw by themselves.
//!
//! The pages hold formulas as LaTeX between lines of three backquotes, the first followed by `math`; that is also how code
//! hosts show them. No script, no font and no network is needed, neither to build the book nor to read it. [`records`] adds
//! what was measured.

mod records;

use std::{
    io::{Read, Write, stdin, stdout},
    path::Path,
    process::ExitCode,
};

use math_core::{LatexToMathML, MathCoreConfig, MathDisplay};
use serde_json::Value;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // mdBook asks first which output it can serve.
    if let [question, output] = &words[..]
        && question == "supports"
    {
        return if output == "html" { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Reads context and book, writes the book.
fn run() -> Result<(), String> {
    let mut text = String::new();
    stdin().read_to_string(&mut text).map_err(|error| format!("cannot read the book: {error}"))?;
    let input: Value = serde_json::from_str(&text).map_err(|error| format!("the book is not JSON: {error}"))?;
    let Value::Array(mut parts) = input else { return Err("expected context and book".into()) };
    let mut book = parts.pop().ok_or("expected context and book")?;
    let root = parts.first().and_then(|context| context["root"].as_str()).ok_or("expected the root of the book")?;
    records::add(&mut book, &Path::new(root).join(".."))?;
    let converter =
        LatexToMathML::new(MathCoreConfig::default()).map_err(|_| "the converter has no macros to refuse")?;
    chapters(&mut book, &converter)?;
    stdout().write_all(book.to_string().as_bytes()).map_err(|error| format!("cannot write the book: {error}"))
}

/// Sets the formulas of every chapter, however deep.
fn chapters(value: &mut Value, converter: &LatexToMathML) -> Result<(), String> {
    match value {
        Value::Array(items) => items.iter_mut().try_for_each(|item| chapters(item, converter)),
        Value::Object(fields) => {
            let text = |field: &str| fields.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
            let (name, path) = (text("name"), text("path"));
            if let Some(Value::String(content)) = fields.get_mut("content") {
                *content = page(content, &path, converter).map_err(|problem| format!("{name}: {problem}"))?;
            }
            fields.values_mut().try_for_each(|field| chapters(field, converter))
        }
        _ => Ok(()),
    }
}

/// A page with its formulas set and its links led to files of the site.
fn page(text: &str, path: &str, converter: &LatexToMathML) -> Result<String, String> {
    let mut set = String::with_capacity(text.len());
    let mut lines = text.split_inclusive('\n');
    while let Some(line) = lines.next() {
        if !line.starts_with("```") {
            set += &records::led(line, path)?;
            continue;
        }
        let math = line.trim_end() == "```math";
        let mut inner = String::new();
        let end = lines.by_ref().find(|line| {
            let end = line.trim_end() == "```";
            if !end {
                inner += line;
            }
            end
        });
        if !math {
            set.extend([line, &inner, end.unwrap_or_default()]);
            continue;
        }
        end.ok_or_else(|| format!("a formula does not end: {inner}"))?;
        let formula = converter
            .convert_with_local_state(inner.trim(), MathDisplay::Block)
            .map_err(|error| format!("{error} in the formula\n{inner}"))?;
        // A blank line would end the block of HTML.
        set += &format!("<div class=\"formula\">{}</div>\n", formula.mathml.replace('\n', ""));
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> Result<String, String> {
        page(text, "a.md", &LatexToMathML::new(MathCoreConfig::default()).unwrap())
    }

    #[test]
    fn formulas_become_mathml_and_all_else_stays() {
        let page = "a\n\n```math\nx_i = \\frac{1}{2}\n```\nb\n```sh\n$ x\n```math\n```\n";
        let set = set(page).unwrap();
        assert!(set.starts_with("a\n\n<div class=\"formula\"><math display=\"block\">"), "{set}");
        assert!(set.contains("<mfrac>") && set.ends_with("</math></div>\nb\n```sh\n$ x\n```math\n```\n"), "{set}");
    }

    #[test]
    fn a_wrong_formula_is_told() {
        assert!(set("```math\n\\nonsense{x}\n```\n").unwrap_err().contains("nonsense"));
        assert!(set("```math\nx\n").unwrap_err().contains("does not end"));
    }

    #[test]
    fn chapters_are_found_at_any_depth() {
        let inner = serde_json::json!({ "Chapter": { "name": "b", "path": "b.md", "content": "```math\ny\n```\n", "sub_items": [] } });
        let mut book = serde_json::json!({ "items": [{ "Chapter": { "name": "a", "path": "a.md", "content": "", "sub_items": [inner] } }] });
        chapters(&mut book, &LatexToMathML::new(MathCoreConfig::default()).unwrap()).unwrap();
        assert!(book.to_string().contains("<mi>y</mi>"), "{book}");
    }

    /// The pages beside this crate.
    #[test]
    fn every_formula_and_every_link_of_the_book_is_set() {
        let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../src"));
        let converter = LatexToMathML::new(MathCoreConfig::default()).unwrap();
        let mut formulas = 0;
        for folder in ["", "mechanisms", "tasks", "tutorials"] {
            for entry in std::fs::read_dir(source.join(folder)).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                if !path.ends_with(".md") {
                    continue;
                }
                let text = std::fs::read_to_string(source.join(&path)).unwrap();
                let set = page(&text, &path, &converter).unwrap_or_else(|problem| panic!("{path}: {problem}"));
                formulas += set.matches("class=\"formula\"").count();
                assert!(!set.contains("```math"), "{path}");
            }
        }
        assert!(formulas > 10, "{formulas}");
    }
}
