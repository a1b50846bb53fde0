//! `regard data`

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use regard_datasets::{CATALOGUE, Dataset, Finding, State, Store, find, option, verify};
use regard_report::{Cell, Column, Format, Table};
use regard_tasks::{Class, data::TaskName, run::nearest};
use serde_json::{Value, json};

use super::{
    cache_directory,
    prepare::{self, Prepare},
    resolve,
};
use crate::{
    args::{Common, Source},
    console,
    error::{Failure, Outcome},
    output,
};

#[derive(Debug, Args)]
pub struct Data {
    #[command(subcommand)]
    action: Action,
    /// Folder of the data sets, a folder each; default: 'data' in the user's cache directory.
    #[arg(long, env = "REGARD_DATA", value_name = "DIR", global = true)]
    data: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the data sets and which of them are there.
    List,
    /// Show where a data set comes from, its licence, files and checksums.
    Show {
        /// The data set.
        name: String,
    },
    /// Fetch a data set, hold it to its published checksums, and unpack it.
    Fetch {
        /// The data set.
        name: String,
        /// Take a file of the set from here in place of the network; may be repeated.
        #[arg(long, value_name = "FILE")]
        from_file: Vec<PathBuf>,
        /// Address of a folder that has the same files.
        #[arg(long, value_name = "URL")]
        mirror: Option<String>,
    },
    /// Prepare large texts for the task lm: ids in files that training maps into memory, written in bounded memory.
    Prepare(Prepare),
    /// Write the log that the task news generates, as the folders 'train' and 'test' in the format of MIND.
    Write {
        /// The folder to write to.
        folder: PathBuf,
        #[command(flatten)]
        source: Source,
    },
    /// Hold data sets, or folders with a SHA256SUMS, to their checksums; default: every set that is there.
    Verify {
        /// Data sets or folders.
        #[arg(value_name = "NAME|DIR")]
        what: Vec<String>,
    },
}

/// Lists, shows, fetches, prepares, writes or verifies data sets.
///
/// # Errors
/// An unknown set; files that are missing or not what they should be; a network or disk that fails.
pub fn run(args: &Data, common: &Common) -> Outcome {
    let folder = match &args.data {
        Some(folder) => folder.clone(),
        None => cache_directory(None).map_or_else(|| PathBuf::from("data"), |cache| cache.join("data")),
    };
    let store = Store::new(folder);
    match &args.action {
        Action::List => list(&store, common),
        Action::Show { name } => show(&store, known(name)?, common),
        Action::Fetch { name, from_file, mirror } => fetch(&store, known(name)?, from_file, mirror.as_deref(), common),
        Action::Prepare(args) => prepare::run(args, common),
        Action::Write { folder, source } => write(folder, source, common),
        Action::Verify { what } => verify_all(&store, what, common),
    }
}

fn known(name: &str) -> Outcome<&'static Dataset> {
    find(name).ok_or_else(|| {
        let near = nearest(name, CATALOGUE.iter().map(|set| set.name));
        Failure::usage(format!("no data set is named '{name}', expected one that 'regard data list' shows{near}"))
    })
}

/// The tasks that read a set as it is.
fn readers(set: &Dataset) -> String {
    if set.tasks.is_empty() { "–".into() } else { set.tasks.join(", ") }
}

/// What the state is called.
fn said(state: &State) -> &'static str {
    match state {
        State::Absent => "–",
        State::Begun { .. } => "begun",
        State::There { .. } => "there",
    }
}

/// Bytes as far as they are known: of what is there, or of the published files.
fn bytes(set: &Dataset, state: &State) -> Option<u64> {
    match state {
        State::There { bytes, .. } => Some(*bytes),
        _ if set.downloads.is_empty() => None,
        _ => set.downloads.iter().map(|file| file.bytes).sum(),
    }
}

fn list(store: &Store, common: &Common) -> Outcome {
    let texts = |names: &[&str]| names.iter().map(|name| Column::text(*name)).collect::<Vec<_>>();
    let mut columns = texts(&["name", "what it is", "tasks", "option", "licence"]);
    columns.push(Column::number("size", Format::Bytes));
    columns.extend(texts(&["from", "state"]));
    let mut table = Table::new("Data sets", columns)
        .note("Size: of the files where the set is there, else of what is fetched, if published.")
        .note("Tasks: those that read the set as it is. Option: the key whose value is the folder of the set.")
        .note("By hand: without a published checksum, or to be asked for; 'regard data show NAME' says where it is.");
    for (set, state) in store.states() {
        let from = if set.downloads.is_empty() { "by hand" } else { "network" };
        let size: Cell = bytes(set, &state).map(|bytes| bytes as usize).into();
        let words = [set.name, set.about, &readers(set), option(set.name).unwrap_or("–"), set.licence].map(Cell::from);
        table.push(words.into_iter().chain([size, from.into(), said(&state).into()]).collect());
    }
    if common.json { output::json(&table.to_json()) } else { output::text(table.to_text()) }
}

fn described(store: &Store, set: &Dataset) -> Value {
    let files: Vec<Value> = set
        .downloads
        .iter()
        .map(|file| json!({ "name": file.name, "urls": file.urls, "bytes": file.bytes, "sha256": file.sha256 }))
        .collect();
    json!({
        "name": set.name,
        "about": set.about,
        "licence": set.licence,
        "tasks": set.tasks,
        "option": option(set.name),
        "folder": store.path(set),
        "state": said(&store.state(set)),
        "files": files,
        "by_hand": (!set.by_hand.is_empty()).then_some(set.by_hand),
    })
}

fn show(store: &Store, set: &Dataset, common: &Common) -> Outcome {
    if common.json {
        return output::json(&described(store, set));
    }
    let mut text = format!("{}: {}\n\n", set.name, set.about);
    text += &format!("licence  {}\ntasks    {}\n", set.licence, readers(set));
    let state = match store.state(set) {
        State::There { files, bytes } => format!("there, {files} files, {bytes} bytes"),
        State::Begun { bytes } => format!("begun, {bytes} bytes; 'regard data fetch {}' goes on", set.name),
        State::Absent => "not there".into(),
    };
    let folder = store.path(set);
    if let Some(option) = option(set.name) {
        text += &format!("option   --set {option}={}\n", folder.display());
    }
    text += &format!("folder   {}\nstate    {state}\n", folder.display());
    if !set.by_hand.is_empty() {
        text += &format!("by hand  {}\n", set.by_hand);
    }
    for file in set.downloads {
        let bytes = file.bytes.map_or_else(|| "size not published".into(), |bytes| format!("{bytes} bytes"));
        text += &format!("\n{} ({bytes})\n  SHA-256 {}\n", file.name, file.sha256);
        text += &file.urls.iter().map(|url| format!("  {url}\n")).collect::<String>();
    }
    output::text(text)
}

fn fetch(store: &Store, set: &Dataset, given: &[PathBuf], mirror: Option<&str>, common: &Common) -> Outcome {
    let bar = console::bar(0, common.quiet);
    let progress = |what: &str, done: u64, total: Option<u64>| {
        bar.set_length(total.unwrap_or(done) >> 20);
        bar.set_position(done >> 20);
        bar.set_message(format!("MiB  {what}"));
    };
    let fetched = store.fetch(set, given, mirror, &progress);
    bar.finish_and_clear();
    let fetched = fetched.map_err(Failure::data)?;
    if common.json {
        let from: Vec<Value> =
            fetched.from.iter().map(|(name, sha256)| json!({ "name": name, "sha256": sha256 })).collect();
        let (folder, files, bytes) = (&fetched.folder, fetched.files, fetched.bytes);
        return output::json(
            &json!({ "name": set.name, "folder": folder, "files": files, "bytes": bytes, "from": from }),
        );
    }
    let checked = if set.downloads.is_empty() { "seen, not published" } else { "as published" };
    for (name, sha256) in &fetched.from {
        output::line(format_args!("{name}  SHA-256 {sha256} ({checked})"))?;
    }
    output::line(format_args!(
        "{}: {} files, {} bytes in {}",
        set.name,
        fetched.files,
        fetched.bytes,
        fetched.folder.display()
    ))
}

fn write(folder: &Path, source: &Source, common: &Common) -> Outcome {
    let config = resolve(source)?;
    let (task, news) = (&config.task, &config.task.news);
    if task.name != TaskName::News || news.train.is_some() {
        let seen =
            if task.name == TaskName::News { "reads its log from folders".into() } else { format!("is {}", task.name) };
        return Err(Failure::usage(format!(
            "the task {seen}, expected one whose log is generated: --preset news, or --task news without folders"
        )));
    }
    task.check()?;
    news.generated.write(folder, task.seed.unwrap_or(config.seed)).map_err(|error| Failure::written(&error))?;
    let [train, test] = ["train", "test"].map(|name| folder.join(name));
    if common.json {
        return output::json(&json!({ "train": train, "test": test }));
    }
    output::line(format_args!("task.news.train={}\ntask.news.test={}", train.display(), test.display()))
}

fn verify_all(store: &Store, what: &[String], common: &Common) -> Outcome {
    let folders: Vec<(String, PathBuf)> = if what.is_empty() {
        let there = store.states().filter(|(_, state)| matches!(state, State::There { .. }));
        there.map(|(set, _)| (set.name.to_owned(), store.path(set))).collect()
    } else {
        let folder = |name: &String| match find(name) {
            None if Path::new(name).is_dir() => Ok((name.clone(), PathBuf::from(name))),
            _ => match store.path(known(name)?) {
                folder if folder.is_dir() => Ok((name.clone(), folder)),
                folder => Err(Failure::data(format!(
                    "{name} is not in {}; 'regard data show {name}' says how it gets there",
                    folder.display()
                ))),
            },
        };
        what.iter().map(folder).collect::<Outcome<_>>()?
    };
    let (mut results, mut failed) = (Vec::new(), 0);
    for (name, folder) in folders {
        let (count, wrong) = verify(&folder, &mut |_| ()).map_err(Failure::data)?;
        if !common.json {
            match wrong.len() {
                0 => output::line(format_args!("{name}: {count} files, all as they should be"))?,
                bad => output::line(format_args!("{name}: {bad} of {count} files are not as they should be"))?,
            }
            for (file, finding) in &wrong {
                match finding {
                    Finding::Missing => output::line(format_args!("  {}: missing", file.display()))?,
                    Finding::Changed { seen } => output::line(format_args!("  {}: SHA-256 {seen}", file.display()))?,
                }
            }
        }
        failed += wrong.len();
        let wrong: Vec<&PathBuf> = wrong.iter().map(|(file, _)| file).collect();
        results.push(json!({ "name": name, "files": count, "wrong": wrong }));
    }
    if common.json {
        output::json(&json!(results))?;
    } else if results.is_empty() {
        output::line("no data set is there; 'regard data list' shows what can be fetched")?;
    }
    match failed {
        0 => Ok(()),
        count => Err(Failure::new(
            Class::Check,
            format!(
                "{count} {} missing or changed; fetch the sets again, or prepare the text again",
                if count == 1 { "file is" } else { "files are" }
            ),
        )),
    }
}
