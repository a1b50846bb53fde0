//! `regard reproduce`

use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::Instant,
};

use clap::Args;
use regard_cluster::deal;
use regard_files::write_whole;
use regard_lab::reproduce::{self, ENTRIES, Entry, Outcome as Recorded, Scale, Setup, Workbench};
use regard_tasks::run::nearest;
use serde_json::json;

use super::{cache_directory, environment, make_out};
use crate::{
    args::{Common, SCALES},
    console::Console,
    error::{Failure, Outcome},
    job, output, signal,
    values::choice,
};

#[derive(Debug, Args)]
pub struct Reproduce {
    /// Entries to run, or 'all'; recorded entries are not run again.
    #[arg(value_name = "NAME", required_unless_present_any = ["list", "page"])]
    pub names: Vec<String>,
    /// List all entries with the data that they need, and time and verdict of the last recorded run.
    #[arg(long, conflicts_with = "names")]
    pub list: bool,
    /// Scale; by default the smallest that an entry has.
    #[arg(long, value_parser = choice(&SCALES))]
    pub scale: Option<Scale>,
    /// Directory of all outcomes, one directory per entry below it.
    #[arg(long, value_name = "DIR", default_value = "runs/reproduce")]
    pub out: PathBuf,
    /// Write all recorded outcomes to one Markdown page.
    #[arg(long, value_name = "FILE")]
    pub page: Option<PathBuf>,
    /// Run recorded entries again, training included.
    #[arg(long)]
    pub overwrite: bool,
    /// Cache directory for generated data, or 'none' to generate it each time.
    #[arg(long, env = "REGARD_CACHE", value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Folder of the folders of trained models that some entries read.
    #[arg(long, env = "REGARD_MODELS", value_name = "DIR")]
    pub models: Option<PathBuf>,
    /// Folder of the data sets that some entries read, one folder each.
    #[arg(long, env = "REGARD_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// Runs entries, lists them, or writes the page of their outcomes.
///
/// # Errors
/// An unknown entry, training that fails, files that cannot be read or written, an interrupt.
pub fn run(args: &Reproduce, common: &Common) -> Outcome {
    if args.list {
        return if job::rank() == 0 { list(args, common) } else { Ok(()) };
    }
    make_out(Some(&args.out))?;
    let cache = cache_directory(args.cache.as_deref());
    let stop = signal::stop_flag();
    let cluster = job::join(&stop)?;
    let shared = cluster.ranks() > 1;
    if shared && args.overwrite {
        let told = "--overwrite is for one rank: which models are old, several cannot tell; remove the directory, or start it \
                    without mpirun";
        return Err(Failure::usage(told));
    }
    let common = &Common { quiet: common.quiet || cluster.rank() > 0, ..common.clone() };
    let console = Console::new(common);
    let mut bench = Workbench {
        shared,
        scale: Scale::Quick,
        out: &args.out,
        cache: cache.as_deref(),
        models: args.models.as_deref(),
        data: args.data.as_deref(),
        overwrite: args.overwrite,
        environment: environment(),
        observer: &console,
        stop: stop.clone(),
        trained: RefCell::default(),
    };
    let all = args.names.iter().any(|name| name == "all");
    let mut runs = Vec::new();
    for entry in chosen(&args.names)? {
        match setup(entry, args.scale) {
            Err(failure) if all => bench.note(&format!("left out: {}", failure.message)),
            Ok(_) if all && args.models.is_none() && !entry.models.is_empty() => {
                bench.note(&format!("{}: left out, it reads {} below --models", entry.name, entry.models.join(", ")));
            }
            setup => runs.push((entry, setup?)),
        }
    }
    let mut outcomes: Vec<Option<Recorded>> = runs.iter().map(|_| None).collect();
    let work = |number: usize| {
        let (entry, setup) = runs[number];
        bench.scale = setup.scale;
        outcome(&bench, entry, setup).map(drop)
    };
    let done = |number: usize| {
        let (entry, setup): (&Entry, &Setup) = runs[number];
        let recorded = Recorded::read(&args.out, entry, setup.scale).map_err(Failure::data)?;
        let missing =
            || Failure::data(format!("{}: no outcome here, expected the same --out on all ranks", entry.name));
        let recorded = recorded.ok_or_else(missing)?;
        if !common.json {
            output::text(recorded.to_text())?;
        }
        outcomes[number] = Some(recorded);
        Ok(())
    };
    let go_on = || match stop.load(Ordering::Relaxed) {
        true => Err(Failure::interrupted("interrupted; the same command goes on where it stopped")),
        false => Ok(()),
    };
    deal(&cluster, (0..runs.len()).collect(), work, done, go_on).map_err(job::told_by_first)?;
    if cluster.rank() > 0 {
        return Ok(());
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

/// Writes the page; its images are those of the recorded outcomes, with paths relative to the page.
fn write_page(path: &Path, all: &Path) -> Outcome {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let text = reproduce::page(all, &relative(folder, all)).map_err(Failure::data)?;
    write_whole(path, text.as_bytes()).map_err(|error| Failure::written(&error))
}

/// The path `to` relative to `from` if both are relative; `to` itself otherwise.
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

/// The entries with these names; all of them, in list order, for 'all'.
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

/// How an entry runs at this scale, or at its smallest.
fn setup(entry: &'static Entry, scale: Option<Scale>) -> Outcome<&'static Setup> {
    let Some(scale) = scale else { return Ok(entry.first()) };
    entry.setup(scale).ok_or_else(|| {
        let own: Vec<&str> = entry.setups.iter().map(|setup| setup.scale.name()).collect();
        let (name, scale, own) = (entry.name, scale.name(), own.join(", "));
        Failure::usage(format!("{name} does not run at the scale '{scale}', expected one that it has: {own}"))
    })
}

/// The recorded outcome of an entry, or the outcome of running it now.
fn outcome(bench: &Workbench, entry: &'static Entry, setup: &Setup) -> Outcome<Recorded> {
    let Workbench { out, scale, .. } = *bench;
    if bench.overwrite {
        Recorded::remove(out, entry, scale)?;
    } else if let Some(outcome) = Recorded::read(out, entry, scale).map_err(Failure::data)? {
        let date = &outcome.environment.date;
        bench.note(&format!("{}: recorded on {date}; --overwrite runs it again", entry.name));
        return Ok(outcome);
    }
    for model in entry.models {
        bench.model(model).map_err(|failure| failure.at(entry.name))?;
    }
    bench.note(&format!("{} ({}): {}", entry.name, scale.name(), setup.setting));
    let (environment, begin) = (environment(), Instant::now());
    let finding = (entry.run)(bench, scale).map_err(|failure| failure.at(entry.name))?;
    let seconds = begin.elapsed().as_secs_f64();
    Recorded::write(out, entry, setup, &finding, seconds, environment).map_err(|error| Failure::written(&error))
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
    fn an_entry_runs_at_its_own_scales_only() {
        let entry = reproduce::find("mgk-operations").expect("an entry");
        assert_eq!(setup(entry, None).expect("its smallest").scale, Scale::Paper);
        let failure = setup(entry, Some(Scale::Here)).expect_err("not one of its scales");
        assert!(failure.message.ends_with("expected one that it has: paper"), "{}", failure.message);
    }

    #[test]
    fn names_are_those_of_the_list() {
        assert_eq!(chosen(&["all".into()]).expect("all").len(), ENTRIES.len());
        let failure = chosen(&["mgk-operation".into()]).expect_err("no such entry");
        assert!(failure.message.contains("mgk-operations"), "{}", failure.message);
    }
}
