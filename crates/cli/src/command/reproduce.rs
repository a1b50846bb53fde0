//! `regard reproduce`

use std::{
    error::Error,
    fs, io,
    path::{Path, PathBuf},
    time::Instant,
};

use regard_lab::{
    report::write_atomically,
    reproduce::{self, Compared, ENTRIES, Entry, Outcome as Recorded, Scale, Workbench},
};
use regard_tasks::data::TaskData;
use serde_json::json;

use super::{Trained, compare, environment, print_json, trained};
use crate::{
    args::{self, Common, Reproduce, Which},
    config::{Layers, nearest},
    error::{Failure, Outcome},
    signal,
};

const CONFIG: &str = "config.toml";

/// Runs entries, lists them, or writes the page of their outcomes.
///
/// # Errors
/// An unknown entry, training that fails, files that cannot be read or written, an interrupt.
pub fn run(args: &Reproduce, common: &Common) -> Outcome {
    if args.list {
        return list(args, common);
    }
    let scale = match args.scale {
        args::Scale::Reduced => Scale::Reduced,
        args::Scale::Paper => Scale::Paper,
    };
    let mut outcomes = Vec::new();
    for entry in chosen(&args.names)? {
        let outcome = one(entry, scale, args, common)?;
        if !common.json {
            println!("{}: {}. {}", entry.name, outcome.verdict, outcome.statement);
        }
        outcomes.push(outcome);
    }
    if common.json {
        print_json(&json!(outcomes));
    }
    if let Some(path) = &args.page {
        write_page(path, &args.out)?;
    }
    Ok(())
}

fn list(args: &Reproduce, common: &Common) -> Outcome {
    let table = reproduce::listing(&args.out).map_err(Failure::data)?;
    if common.json {
        print_json(&table.to_json());
    } else {
        print!("{}", table.to_text());
    }
    match &args.page {
        Some(path) => write_page(path, &args.out),
        None => Ok(()),
    }
}

/// Writes the page; its pictures are those of the recorded outcomes, named as seen from the page.
fn write_page(path: &Path, all: &Path) -> Outcome {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let text = reproduce::page(all, &relative(folder, all)).map_err(Failure::data)?;
    write_atomically(path, text.as_bytes()).map_err(|error| Failure::written(&error))
}

/// `to` as seen from `from`: up as often as `from` is deep, where both are relative; `to` itself otherwise.
fn relative(from: &Path, to: &Path) -> String {
    let from: Vec<_> = from.components().filter(|part| part.as_os_str() != ".").collect();
    let to_parts: Vec<_> = to.components().filter(|part| part.as_os_str() != ".").collect();
    let shared = from.iter().zip(&to_parts).take_while(|(one, other)| one == other).count();
    if to.is_absolute() && shared == 0 {
        return to.display().to_string();
    }
    let up = from[shared..].iter().map(|_| "..".to_owned());
    let down = to_parts[shared..].iter().map(|part| part.as_os_str().to_string_lossy().into_owned());
    up.chain(down).collect::<Vec<_>>().join("/")
}

/// The entries of these names, in the order of the list where all are meant.
fn chosen(names: &[String]) -> Outcome<Vec<&'static Entry>> {
    if names.iter().any(|name| name == "all") {
        return Ok(ENTRIES.iter().collect());
    }
    let find = |name: &String| {
        reproduce::find(name).ok_or_else(|| {
            let near = nearest(name, ENTRIES.iter().map(|entry| entry.name));
            Failure::usage(format!(
                "no entry is named '{name}', expected one that 'regard reproduce --list' shows{near}"
            ))
        })
    };
    names.iter().map(find).collect()
}

/// The recorded outcome, or that of a run now.
fn one(entry: &'static Entry, scale: Scale, args: &Reproduce, common: &Common) -> Outcome<Recorded> {
    let directory = Recorded::directory(&args.out, entry, scale);
    if args.overwrite {
        remove(&directory).map_err(|error| Failure::writing(&directory, &error))?;
    } else if let Some(outcome) = Recorded::read(&args.out, entry, scale).map_err(Failure::data)? {
        note(common, &format!("{}: recorded on {}; --overwrite runs it again", entry.name, outcome.environment.date));
        return Ok(outcome);
    }
    note(common, &format!("{}: {}", entry.name, entry.setting(scale)));
    let environment = environment();
    let begin = Instant::now();
    let train = |recipe: &str, out: &Path| train(entry, recipe, out, args.cache.as_deref(), common).map_err(boxed);
    let open = |run: &Path| {
        let Trained { model, data, .. } = trained(run, Which::Best, args.cache.as_deref(), common).map_err(boxed)?;
        Ok((model, data))
    };
    let said = |text: &str| note(common, text);
    let stop = signal::stop_flag();
    let bench = Workbench { directory, train: &train, open: &open, note: &said, stop };
    let finding = (entry.run)(&bench, scale).map_err(|error| {
        let failure = error.downcast::<Failure>().map_or_else(Failure::usage, |failure| *failure);
        Failure { message: format!("{}: {}", entry.name, failure.message), ..failure }
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    Recorded::write(&args.out, entry, scale, &finding, seconds, environment).map_err(|error| Failure::written(&error))
}

fn note(common: &Common, text: &str) {
    if !common.quiet {
        eprintln!("{text}");
    }
}

fn boxed(failure: Failure) -> Box<dyn Error> {
    failure.into()
}

/// Trains a recipe of an entry in `out`; goes on with what is there.
fn train(entry: &Entry, recipe: &str, out: &Path, cache: Option<&Path>, common: &Common) -> Outcome<Compared> {
    let mut layers = Layers::new();
    layers.text(recipe, entry.name)?;
    let config = layers.resolve()?;
    let candidates = compare::candidates(&config)?;
    let (path, text) = (out.join(CONFIG), config.to_toml());
    match fs::read_to_string(&path) {
        Ok(before) if before != text => {
            return Err(Failure::usage(format!(
                "{} holds models of another setting; train them anew with --overwrite",
                out.display()
            )));
        }
        Ok(_) => {}
        Err(_) => write_atomically(&path, text.as_bytes()).map_err(|error| Failure::written(&error))?,
    }
    let (data, results) = compare::train(&config, &candidates, out, cache, &environment(), common)?;
    let test_sequences = match &data {
        TaskData::Classification(data) => data.test.len(),
        _ => 0,
    };
    Ok(Compared { results, test_sequences })
}

/// Removes what entries write, and nothing else.
fn remove(directory: &Path) -> io::Result<()> {
    let gone = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    let file = |name: &str| gone(fs::remove_file(directory.join(name)));
    file("outcome.json").and_then(|()| file("report.html"))?;
    gone(fs::remove_dir_all(directory.join("plots")))?;
    let runs: PathBuf = directory.join("runs");
    if runs.join(CONFIG).is_file() {
        compare::remove_comparison(&runs)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_named_as_seen_from_the_page() {
        let seen = |from: &str, to: &str| relative(Path::new(from), Path::new(to));
        assert_eq!(seen("docs/src", "results/reproduce"), "../../results/reproduce");
        assert_eq!(seen(".", "runs/reproduce"), "runs/reproduce");
        assert_eq!(seen("runs", "runs/reproduce"), "reproduce");
        assert_eq!(seen("docs", "/elsewhere"), "/elsewhere");
    }

    #[test]
    fn names_are_those_of_the_list() {
        assert_eq!(chosen(&["all".into()]).expect("all").len(), ENTRIES.len());
        let failure = chosen(&["mgk-operation".into()]).expect_err("no such entry");
        assert!(failure.message.contains("mgk-operations"), "{}", failure.message);
    }
}
