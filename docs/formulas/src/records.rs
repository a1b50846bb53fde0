//! Recorded results as the last part of the book, so that it is whole without the repository: their pages become chapters, and
//! links lead to where each file lies on the site. `docs/site` puts the pictures, reports and tables beside them.

use std::{fs, path::Path};

use serde_json::{Value, json};

/// Folders of the repository and where they are on the site; the first that fits counts.
const PLACES: [(&str, &str); 3] = [("docs/src/", ""), ("docs/playground/", "playground/"), ("results/", "results/")];

/// Adds the pages of `results` below `repository` to the book: those at its top, each with the pages below that it leads to.
pub fn add(book: &mut Value, repository: &Path) -> Result<(), String> {
    let Some(Value::Array(items)) = book.get_mut("items") else { return Err("expected a book with items".into()) };
    let folder = repository.join("results");
    let entries = fs::read_dir(&folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut pages: Vec<String> = names.filter(|name| name.ends_with(".md")).collect();
    // What is there and how it was made comes first.
    pages.sort_by_key(|name| (name != "README.md", name.clone()));
    items.push(json!({ "PartTitle": "Measurements" }));
    for name in pages {
        let mut page = chapter(repository, &format!("results/{name}"), &[])?;
        let mut below = Vec::new();
        let content = page["content"].as_str().unwrap_or_default();
        for link in links(content) {
            let path = resolved("results/", link.split('#').next().unwrap_or_default());
            if path.ends_with(".md") && path.matches('/').count() > 1 && path.starts_with("results/") {
                let mut part = chapter(repository, &path, &[page["name"].clone()])?;
                // Such pages are written by commands, which know nothing of what is beside them; the link says what it leads to.
                part["name"] = words(content, link).into();
                below.push(json!({ "Chapter": part }));
            }
        }
        page["sub_items"] = Value::Array(below);
        items.push(json!({ "Chapter": page }));
    }
    Ok(())
}

fn chapter(repository: &Path, path: &str, parents: &[Value]) -> Result<Value, String> {
    let file = repository.join(path);
    let content = fs::read_to_string(&file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let name = content.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or(path).to_owned();
    Ok(json!({
        "name": name, "content": content, "number": null, "sub_items": [], "path": path, "source_path": path,
        "parent_names": parents,
    }))
}

/// A line of the chapter at `path` with its links led to where the files are on the site.
pub fn led(line: &str, path: &str) -> Result<String, String> {
    let folder = path.rfind('/').map_or("", |end| &path[..=end]);
    let source = if path.starts_with("results/") { folder.to_owned() } else { format!("docs/src/{folder}") };
    let mut led = String::with_capacity(line.len());
    let mut rest = line;
    for link in links(line) {
        let (before, after) = rest.split_once(&format!("]({link})")).expect("a link of this line");
        let target = resolved(&source, link);
        let there = PLACES.iter().find_map(|(from, to)| target.strip_prefix(from).map(|name| format!("{to}{name}")));
        let there = there.ok_or_else(|| format!("{path}: the link to {link} leaves the site"))?;
        let up = "../".repeat(folder.matches('/').count());
        led += &match there.strip_prefix(folder) {
            Some(near) => format!("{before}]({near})"),
            None => format!("{before}]({up}{there})"),
        };
        rest = after;
    }
    Ok(led + rest)
}

/// Links of a text to files, as they are written.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| {
        let link = rest.split_once(')')?.0;
        (!link.is_empty() && !link.starts_with('#') && !link.contains([':', ' '])).then_some(link)
    })
}

/// What stands on a link of a text.
fn words<'a>(text: &'a str, link: &str) -> &'a str {
    let before = text.split_once(&format!("]({link})")).map_or("", |(before, _)| before);
    before.rsplit('[').next().unwrap_or_default()
}

/// A link of a file in `folder`, which is empty or ends with a slash, from the root of the repository.
fn resolved(folder: &str, link: &str) -> String {
    let mut parts: Vec<&str> = folder.split_terminator('/').collect();
    for part in link.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_where_files_are_on_the_site() {
        for (path, link, there) in [
            ("bench.md", "../../results/bench/report.html", "results/bench/report.html"),
            ("mechanisms/softmax.md", "../../../results/speed.md#a", "../results/speed.md#a"),
            ("mechanisms/softmax.md", "common.md", "common.md"),
            ("mechanisms/softmax.md", "../cost.md", "../cost.md"),
            ("playground.md", "../playground/index.html", "playground/index.html"),
            ("results/probe.md", "../docs/src/probe.md", "../probe.md"),
            ("results/probe.md", "probe/plots/a.svg", "probe/plots/a.svg"),
            ("results/speed/x/speed.md", "../../bench/report.html", "../../../results/bench/report.html"),
        ] {
            assert_eq!(
                led(&format!("a ![b]({link}), [c](#d)\n"), path).unwrap(),
                format!("a ![b]({there}), [c](#d)\n")
            );
        }
        assert_eq!(led("[a](https://example.org/)", "bench.md").unwrap(), "[a](https://example.org/)");
        assert!(led("[a](../../README.md)", "bench.md").unwrap_err().contains("leaves the site"));
    }

    #[test]
    fn a_page_below_another_has_the_name_of_the_link_to_it() {
        assert_eq!(words("| [one](a.md) | [two](b/c.md) |", "b/c.md"), "two");
    }

    /// The results beside this crate.
    #[test]
    fn every_link_of_the_records_stays_on_the_site() {
        let repository = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let mut book = json!({ "items": [] });
        add(&mut book, repository).unwrap();
        let mut seen = 0;
        let items = book["items"].as_array().unwrap().iter().filter_map(|item| item.get("Chapter"));
        let below =
            |page: &Value| page["sub_items"].as_array().unwrap().iter().map(|item| item["Chapter"].clone()).collect();
        for page in items.flat_map(|page| [vec![page.clone()], below(page)].concat()) {
            let path = page["path"].as_str().unwrap();
            for line in page["content"].as_str().unwrap().lines() {
                led(line, path).unwrap();
                seen += links(line).count();
            }
        }
        assert!(seen > 20, "{seen}");
    }
}
