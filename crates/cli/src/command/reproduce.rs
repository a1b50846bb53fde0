//! `regard reproduce`

use std::{cell::RefCell, collections::BTreeSet, error::Error, fs, io, path::Path, time::Instant};

use regard_files::write_whole;
use regard_lab::{
    bench::BenchError,
    probe::ProbeError,
    reproduce::{self, Compared, ENTRIES, Entry, Outcome as Recorded, Scale, Workbench},
};
use regard_tasks::{data::TaskData, train::DirectoryLock};
use serde_json::json;

use super::{Trained, compare, environment, trained};
use crate::{
    args::{self, Common, Reproduce, Which},
    config::{Layers, nearest},
    console,
    error::{Failure, Outcome},
    output, signal,
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
    let session = Session { args, common, scale, trained: RefCell::default() };
    let mut outcomes = Vec::new();
    for entry in chosen(&args.names)? {
        let outcome = session.outcome(entry)?;
        if !common.json {
            output::line(format_args!("{}: {}. {}", entry.name, outcome.verdict, outcome.statement))?;
        }
        outcomes.push(outcome);
    }
    if let Some(path) = &args.page {
        write_page(path, &args.out)?;
    }
    if common.json { output::json(&json!(outcomes)) } else { Ok(()) }
}

fn list(args: &Reproduce, common: &Common) -> Outcome {
    let table = reproduce::listing(&args.out).map_err(Failure::data)?;
    if let Some(path) = &args.page {
        write_page(path, &args.out)?;
    }
    if common.json { output::json(&table.to_json()) } else { output::text(table.to_text()) }
}

/// Writes the page; its pictures are those of the recorded outcomes, named as seen from the page.
fn write_page(path: &Path, all: &Path) -> Outcome {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let text = reproduce::page(all, &relative(folder, all)).map_err(Failure::data)?;
    write_whole(path, text.as_bytes()).map_err(|error| Failure::written(&error))
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

/// One run of the command.
struct Session<'a> {
    args: &'a Reproduce,
    common: &'a Common,
    scale: Scale,
    /// Names of the models that this run has trained: entries share them, also where all are trained anew.
    trained: RefCell<BTreeSet<String>>,
}

impl Session<'_> {
    /// The recorded outcome of an entry, or that of a run now.
    fn outcome(&self, entry: &'static Entry) -> Outcome<Recorded> {
        let (args, scale) = (self.args, self.scale);
        if args.overwrite {
            let directory = Recorded::directory(&args.out, entry, scale);
            remove(&directory).map_err(|error| Failure::writing(&directory, &error))?;
        } else if let Some(outcome) = Recorded::read(&args.out, entry, scale).map_err(Failure::data)? {
            let date = &outcome.environment.date;
            self.note(&format!("{}: recorded on {date}; --overwrite runs it again", entry.name));
            return Ok(outcome);
        }
        self.note(&format!("{}: {}", entry.name, entry.setting(scale)));
        let environment = environment();
        let begin = Instant::now();
        let train = |name: &str, recipe: &str| self.train(name, recipe).map_err(Into::into);
        let open = |run: &Path| {
            let Trained { model, data, .. } = trained(run, Which::Best, args.cache.as_deref(), self.common)?;
            Ok((model, data))
        };
        let note = |text: &str| self.note(text);
        let bench = Workbench { train: &train, open: &open, note: &note, stop: signal::stop_flag() };
        let finding = (entry.run)(&bench, scale).map_err(|error| {
            let failure = failure(error);
            Failure { message: format!("{}: {}", entry.name, failure.message), ..failure }
        })?;
        let seconds = begin.elapsed().as_secs_f64();
        Recorded::write(&args.out, entry, scale, &finding, seconds, environment)
            .map_err(|error| Failure::written(&error))
    }

    /// Trains a recipe under a name, or goes on with what is there.
    fn train(&self, name: &str, recipe: &str) -> Outcome<Compared> {
        let mut layers = Layers::new();
        layers.text(recipe, name)?;
        let config = layers.resolve()?;
        let candidates = compare::candidates(&config)?;
        let directory = self.args.out.join("runs").join(match self.scale {
            Scale::Reduced => name.to_owned(),
            Scale::Paper => format!("{name}-paper"),
        });
        let (path, text) = (directory.join(CONFIG), config.to_toml());
        fs::create_dir_all(&directory).map_err(|error| Failure::writing(&directory, &error))?;
        let _lock = DirectoryLock::take(&directory)?;
        let fresh = self.trained.borrow_mut().insert(name.to_owned());
        if fresh && self.args.overwrite && path.is_file() {
            compare::remove_comparison(&directory)?;
        }
        match fs::read_to_string(&path) {
            Ok(before) if before != text => {
                return Err(Failure::usage(format!(
                    "{} holds models of another setting; train them anew with --overwrite",
                    directory.display()
                )));
            }
            Ok(_) => {}
            Err(_) => write_whole(&path, text.as_bytes()).map_err(|error| Failure::written(&error))?,
        }
        let cache = self.args.cache.as_deref();
        let (data, results) = compare::train(&config, &candidates, &directory, cache, &environment(), self.common)?;
        let test_sequences = match &data {
            TaskData::Classification(data) => data.test.len(),
            _ => 0,
        };
        Ok(Compared { directory, results, test_sequences })
    }

    fn note(&self, text: &str) {
        if !self.common.quiet {
            console::line(text);
        }
    }
}

/// Why an entry ended early, with the exit code of what it ran.
fn failure(error: Box<dyn Error>) -> Failure {
    let read = |error: Box<dyn Error>| error.downcast::<Failure>().map(|failure| *failure);
    let measured = |error: Box<dyn Error>| error.downcast::<BenchError>().map(|error| Failure::from(*error));
    let probed = |error: Box<dyn Error>| error.downcast::<ProbeError>().map(|error| Failure::from(*error));
    read(error).or_else(measured).or_else(probed).unwrap_or_else(Failure::usage)
}

/// Removes what entries write, and nothing else.
fn remove(directory: &Path) -> io::Result<()> {
    let gone = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    let file = |name: &str| gone(fs::remove_file(directory.join(name)));
    file("outcome.json").and_then(|()| file("report.html"))?;
    gone(fs::remove_dir_all(directory.join("plots")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn pictures_are_named_as_seen_from_the_page() {
        let seen = |from: &str, to: &str| relative(Path::new(from), Path::new(to));
        assert_eq!(seen("docs/src", "results/reproduce"), "../../results/reproduce");
        assert_eq!(seen(".", "runs/reproduce"), "runs/reproduce");
        assert_eq!(seen("runs", "runs/reproduce"), "reproduce");
        assert_eq!(seen("docs", "/elsewhere"), "/elsewhere");
    }

    #[test]
    fn an_entry_ends_with_the_code_of_what_it_ran() {
        for error in [BenchError::Interrupted.into(), ProbeError::Interrupted.into(), Failure::interrupted("x").into()]
        {
            assert_eq!(failure(error).code, Code::Interrupted);
        }
        assert_eq!(failure("the classifier gave nothing".into()).code, Code::Usage);
    }

    #[test]
    fn names_are_those_of_the_list() {
        assert_eq!(chosen(&["all".into()]).expect("all").len(), ENTRIES.len());
        let failure = chosen(&["mgk-operation".into()]).expect_err("no such entry");
        assert!(failure.message.contains("mgk-operations"), "{}", failure.message);
    }
}
