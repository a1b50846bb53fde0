//! The book and the READMEs: links lead somewhere, commands are such as the program takes, listings are what the files hold.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use clap::Command;

use crate::program::{run, text};

/// The folder of the repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// All pages of the book.
fn book() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    let mut folders = vec![repository().join("docs/src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    assert!(pages.len() > 40, "{pages:?}");
    pages
}

/// Pages of the book, and what else readers meet first.
fn pages() -> Vec<PathBuf> {
    let others = ["README.md", "README.vi.md", "CONTRIBUTING.md", "SECURITY.md", "crates/cli/README.md"];
    let mut pages = book();
    pages.extend(others.map(|name| repository().join(name)));
    pages
}

/// A fenced block: its language and its lines.
struct Fence {
    language: String,
    lines: Vec<String>,
}

/// The blocks of a page, and its other lines.
fn parts(page: &str) -> (Vec<Fence>, Vec<&str>) {
    let (mut fences, mut prose) = (Vec::new(), Vec::new());
    let mut open: Option<Fence> = None;
    for line in page.lines() {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(language)) => open = Some(Fence { language: language.to_owned(), lines: Vec::new() }),
            (Some(_), Some("")) => fences.extend(open.take()),
            (Some(fence), _) => fence.lines.push(line.to_owned()),
            (None, None) => prose.push(line),
        }
    }
    assert!(open.is_none(), "a block that does not end: {page}");
    (fences, prose)
}

/// A line without what stands between backquotes.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Targets of links and images.
fn links(line: &str) -> Vec<String> {
    let line = without_code(line);
    let ends = line.split("](").skip(1).filter_map(|rest| rest.split(')').next().map(str::to_owned));
    ends.collect()
}

/// What a heading is called in links.
fn anchor(heading: &str) -> String {
    let plain = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = plain.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut checked = 0;
    for page in pages() {
        let content = text(&page);
        for target in parts(&content).1.into_iter().flat_map(links) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, part) = target.split_once('#').unwrap_or((&target, ""));
            let file = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            assert!(file.exists(), "{}: {target}", page.display());
            if !part.is_empty() {
                let there = text(&file);
                let headings = parts(&there).1.into_iter().filter(|line| line.starts_with('#')).map(anchor);
                assert!(headings.into_iter().any(|own| own == part), "{}: {target}", page.display());
            }
            checked += 1;
        }
    }
    assert!(checked > 200, "{checked}");
}

#[test]
fn every_page_is_in_the_summary() {
    let source = repository().join("docs/src");
    let summary = text(source.join("SUMMARY.md"));
    let listed: BTreeSet<PathBuf> = summary.lines().flat_map(links).map(|target| source.join(target)).collect();
    let there = book().into_iter().filter(|page| !page.ends_with("SUMMARY.md")).collect();
    assert_eq!(listed, there);
}

/// The words of each command of a line of a shell, as far as these pages need it: quotes, comments, pipes, redirections.
fn commands(line: &str) -> Vec<Vec<String>> {
    let (mut all, mut words, mut word, mut quote) = (Vec::new(), Vec::new(), None::<String>, None);
    for c in line.trim_start_matches("$ ").chars().chain([' ']) {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ') => words.extend(word.take()),
            (None, '|' | ';' | '&' | '(' | ')') => {
                words.extend(word.take());
                all.push(std::mem::take(&mut words));
            }
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    all.push(words);
    all.retain(|words| !words.is_empty());
    all
}

/// The arguments of the commands of a page that run the program, without redirections.
fn program_lines(page: &str) -> Vec<Vec<String>> {
    let shell = |fence: &Fence| matches!(fence.language.as_str(), "sh" | "bash" | "console");
    let joined = parts(page).0.into_iter().filter(shell).map(|fence| fence.lines.join("\n").replace("\\\n", " "));
    let commands: Vec<Vec<String>> =
        joined.flat_map(|block| block.lines().flat_map(commands).collect::<Vec<_>>()).collect();
    let mut lines = Vec::new();
    for mut words in commands {
        // `REGARD_X=y regard ...`
        while words.first().is_some_and(|word| word.starts_with("REGARD_") && word.contains('=')) {
            words.remove(0);
        }
        let cargo =
            words.iter().position(|word| word == "--").filter(|_| words.starts_with(&["cargo".into(), "run".into()]));
        let ours = cargo.is_some() && !words.iter().any(|word| word == "-p");
        let start = if words.first().is_some_and(|word| word == "regard") {
            Some(1)
        } else {
            cargo.filter(|_| ours).map(|at| at + 1)
        };
        let Some(start) = start else { continue };
        let mut arguments = Vec::new();
        let mut rest = words[start..].iter();
        while let Some(word) = rest.next() {
            match word.trim_start_matches(['1', '2']) {
                ">" | "<" | ">>" => drop(rest.next()),
                other if other.starts_with('>') || other.starts_with('<') => {}
                _ => arguments.push(word.clone()),
            }
        }
        lines.push(arguments);
    }
    lines
}

#[test]
fn commands_are_such_as_the_program_takes() {
    let mut seen = 0;
    for page in pages() {
        for arguments in program_lines(&text(&page)) {
            let line = arguments.join(" ");
            let parsed = regard_cli::described().try_get_matches_from(["regard".to_owned()].iter().chain(&arguments));
            // Help and version end the parser, too.
            let wrong = parsed.err().filter(|error| error.use_stderr());
            assert!(wrong.is_none(), "{}: regard {line}\n{}", page.display(), wrong.unwrap());
            seen += 1;
        }
    }
    assert!(seen > 150, "{seen}");
}

/// Options that make a configuration, with the value that follows.
const CONFIGURING: [&str; 6] = ["--preset", "--config", "--set", "--mechanism", "--task", "--seed"];

#[test]
fn configurations_of_commands_are_valid() {
    let mut seen = BTreeSet::new();
    for page in pages() {
        for arguments in program_lines(&text(&page)) {
            if !arguments.first().is_some_and(|name| matches!(name.as_str(), "train" | "compare" | "cost" | "config")) {
                continue;
            }
            let mut given: Vec<String> = vec!["config".into()];
            for pair in arguments.windows(2).filter(|pair| CONFIGURING.contains(&pair[0].as_str())) {
                // Files of the reader are not here, those of the repository are.
                let value = if pair[0] == "--config" {
                    repository().join(&pair[1]).display().to_string()
                } else {
                    pair[1].clone()
                };
                let there = pair[0] != "--config" || Path::new(&value).exists();
                // `NAME` stands for what the reader puts there.
                if there && !value.contains("NAME") {
                    given.extend([pair[0].clone(), value]);
                }
            }
            if given.len() > 1 && seen.insert(given.clone()) {
                let ended = run(&given);
                assert_eq!(ended.code, Some(0), "{}: {arguments:?}: {}", page.display(), ended.stderr);
            }
        }
    }
    assert!(seen.len() > 40, "{}", seen.len());
}

/// The command of a synopsis, with those above it.
fn found<'a>(program: &'a Command, words: &[&str]) -> &'a Command {
    words.first().and_then(|word| program.find_subcommand(word)).map_or(program, |own| found(own, &words[1..]))
}

#[test]
fn options_of_the_synopses_exist() {
    let mut program = regard_cli::described();
    program.build();
    let page = text(repository().join("docs/src/command-line.md"));
    let mut seen = 0;
    for fence in parts(&page).0.into_iter().filter(|fence| fence.language == "text") {
        // A line that begins with a space goes on.
        let block = fence.lines.join("\n").replace("\n ", " ");
        for line in block.lines().filter(|line| line.starts_with("regard ")) {
            let words: Vec<&str> =
                line.split(|c: char| c.is_whitespace() || "[]|".contains(c)).filter(|word| !word.is_empty()).collect();
            let command = found(&program, &words[1..]);
            for name in words.iter().filter_map(|word| word.strip_prefix("--")) {
                let known = command.get_arguments().any(|argument| argument.get_long() == Some(name));
                assert!(known, "{} has no --{name}: {line}", command.get_name());
                seen += 1;
            }
        }
    }
    assert!(seen > 60, "{seen}");
    // Every command has its place on the page.
    let first = parts(&page).0.into_iter().next().expect("the list of commands").lines.join(" ");
    for command in program.get_subcommands().map(Command::get_name).filter(|name| *name != "help") {
        assert!(first.split([' ', '|']).any(|word| word == command), "{command} in {first}");
    }
}

#[test]
fn listings_of_the_tutorial_are_what_the_files_hold() {
    let page = text(repository().join("docs/src/tutorials/a-mechanism.md"));
    let (mut file, mut listing, mut seen) = (None, None::<String>, 0);
    for line in page.lines() {
        match (&mut listing, line) {
            (None, "```rust") => listing = Some(String::new()),
            (Some(own), "```") => {
                let path: &PathBuf = file.as_ref().expect("a file is named above the listing");
                assert!(text(path).contains(own.as_str()), "{} does not hold\n{own}", path.display());
                (listing, seen) = (None, seen + 1);
            }
            (Some(own), line) => *own += &format!("{line}\n"),
            (None, line) => {
                let named = line.split('`').skip(1).step_by(2).filter(|code| code.ends_with(".rs"));
                file = named.last().map(|name| repository().join(name)).or(file);
            }
        }
    }
    assert!(seen > 5, "{seen}");
    let shown = text(repository().join("docs/src/tutorials/compare-on-your-data.md"));
    let own = text(repository().join("docs/src/tutorials/opinions.toml"));
    let own: Vec<&str> = own.lines().skip(1).collect();
    assert!(shown.contains(&own.join("\n")), "opinions.toml is not what the page shows");
}

#[test]
fn the_readmes_of_both_languages_have_the_same_commands() {
    let commands = |name: &str| program_lines(&text(repository().join(name)));
    let (english, vietnamese) = (commands("README.md"), commands("README.vi.md"));
    assert!(vietnamese.len() > 5 && vietnamese.iter().all(|line| english.contains(line)), "{vietnamese:?}");
}
