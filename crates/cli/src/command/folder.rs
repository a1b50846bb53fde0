//! Shared code of the commands on a model folder.

use std::{
    io::{IsTerminal, Read, stdin},
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool, atomic::Ordering::Relaxed},
};

use clap::Args;
use indicatif::ProgressBar;
use regard_kernels::Storage;
use regard_lab::folder::check_memory;
use regard_pretrained::{
    Folder, HUB, LoadOptions, Plan, Pretrained, PretrainedError, Tokenizer,
    run::{Progress, read_text},
};

use crate::{
    args::Common,
    console,
    error::{Failure, Outcome},
    signal,
    values::size,
};

/// How the model of a folder is loaded.
#[derive(Clone, Debug, Default, Args)]
pub struct Loading {
    /// Plan of 'regard swap' (TOML) that replaces attention in some of the heads.
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Context length in tokens; default: the model's own.
    #[arg(long, value_parser = size(1), value_name = "N")]
    pub context: Option<usize>,
    /// Interpolate a position table to a longer context.
    #[arg(long, requires = "context")]
    pub stretch: bool,
    /// Ignore tensors that the model does not use, by name or by prefix with a final '*'; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub allow: Vec<String>,
}

/// Converts an error of a folder to a failure.
pub fn told(error: PretrainedError) -> Failure {
    Failure::new(regard_lab::folder::class(&error), error)
}

/// Whether a path is a model folder rather than a run.
pub fn is_folder(path: &Path) -> bool {
    let hub = path.to_str().is_some_and(|path| path.starts_with(HUB));
    hub || path.join("config.json").is_file() && !path.join("config.toml").is_file()
}

/// Reads what a model folder says of its model; `allow` names tensors to leave out.
///
/// # Errors
/// A path that is not a model folder.
pub fn open(path: &Path, allow: &[String]) -> Outcome<Folder> {
    if path.join("config.toml").is_file() && !path.join("config.json").is_file() {
        let path = path.display();
        return Err(Failure::usage(format!(
            "{path} is the directory of a run, expected a model folder with config.json"
        )));
    }
    let allowed: Vec<&str> = allow.iter().map(String::as_str).collect();
    Folder::open_allowing(path, &allowed).map_err(told)
}

/// A folder and its model.
pub struct Opened {
    pub folder: Folder,
    pub pretrained: Pretrained,
    /// Parameters came with the plan.
    trained: bool,
}

impl Opened {
    /// Reads a folder.
    ///
    /// # Errors
    /// A path that is not a model folder, a plan or a context that does not fit its model.
    pub fn new(path: &Path, loading: &Loading) -> Outcome<Self> {
        // Reject an invalid plan before a large model is read.
        let plan = loading.plan.as_ref().map(|file| read_plan(file)).transpose()?;
        let folder = open(path, &loading.allow)?;
        check_memory(&folder, loading.context, 0)?;
        let options = LoadOptions { context: loading.context, stretch: loading.stretch };
        let pretrained = folder.model(options, &regard_nn::device::chosen()).map_err(told)?;
        let trained = plan.as_ref().is_some_and(|plan| plan.parameters.is_some());
        let pretrained = match (plan, &loading.plan) {
            (Some(plan), Some(file)) => pretrained.with_plan(&plan).map_err(|error| told(error).at(file.display()))?,
            _ => pretrained,
        };
        Ok(Self { folder, pretrained, trained })
    }

    /// The storage in which matrices lose nothing.
    pub fn storage(&self) -> Storage {
        if self.trained { Storage::F32 } else { self.folder.storage() }
    }

    pub fn tokenizer(&self) -> Outcome<Tokenizer> {
        self.folder.tokenizer().map_err(told)
    }

    /// The failure for a command that needs another kind of model.
    pub fn another(&self, expected: &str) -> Failure {
        let (path, kind) = (self.folder.path().display(), self.pretrained.model.kind());
        Failure::usage(format!("the model of {path} is {kind}, expected {expected}"))
    }
}

/// Reads a plan that was named on the command line.
pub fn read_plan(file: &Path) -> Outcome<Plan> {
    Plan::read(file).map_err(|error| match error {
        PretrainedError::Content { .. } => Failure::usage(error),
        _ => told(error),
    })
}

/// The tokens of texts, one after the other, without special ones.
pub fn tokens(tokenizer: &Tokenizer, texts: &[PathBuf]) -> Outcome<Vec<u32>> {
    let mut ids = Vec::new();
    for path in texts {
        ids.extend(tokenizer.encode(&read_text(path).map_err(told)?, false, None).map_err(told)?.ids);
    }
    Ok(ids)
}

/// The text of a file, or of standard input without one.
pub fn input(file: Option<&Path>) -> Outcome<String> {
    if let Some(file) = file {
        return read_text(file).map_err(told);
    }
    if stdin().is_terminal() {
        console::line("reading standard input, one text a line; end it with Ctrl-D");
    }
    let mut text = String::new();
    signal::input()
        .read_to_string(&mut text)
        .map_err(|error| Failure::data(format!("cannot read standard input: {error}; give UTF-8, or a file")))?;
    Ok(text)
}

/// The texts of such a file, one per line.
///
/// # Errors
/// No lines.
pub fn lines(text: &str) -> Outcome<Vec<&str>> {
    let lines: Vec<&str> = text.lines().collect();
    if lines.iter().all(|line| line.trim().is_empty()) {
        return Err(Failure::data("the input holds no text, expected one a line"));
    }
    Ok(lines)
}

/// A progress bar that also checks for an interrupt; dropping it clears it.
pub struct Watch {
    bar: ProgressBar,
    prefix: &'static str,
    quiet: bool,
    stop: Arc<AtomicBool>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Watch {
    pub fn new(prefix: &'static str, common: &Common) -> Self {
        let bar = console::bar(0, common.quiet);
        bar.set_prefix(prefix);
        Self { bar, prefix, quiet: common.quiet, stop: signal::stop_flag() }
    }

    /// Shows progress; returns whether to continue.
    pub fn on(&self, progress: Progress) -> ControlFlow<()> {
        let go_on = self.part(self.prefix, progress);
        if progress.done == progress.total {
            self.bar.finish_and_clear();
        }
        go_on
    }

    /// The same of a part of the work, by its name.
    pub fn part(&self, name: &str, progress: Progress) -> ControlFlow<()> {
        if self.bar.prefix() != name {
            self.bar.set_prefix(name.to_owned());
        }
        self.bar.set_length(progress.total as u64);
        self.bar.set_position(progress.done as u64);
        // Without a bar, print a line every tenth of the way.
        let tenth = |done: usize| 10 * done / progress.total.max(1);
        let passed = progress.done > 0 && tenth(progress.done) > tenth(progress.done - 1);
        if passed && self.bar.is_hidden() && progress.total > 20 && !self.quiet {
            console::line(format_args!("{name}: {} of {}", progress.done, progress.total));
        }
        self.go_on()
    }

    /// Whether to continue.
    pub fn go_on(&self) -> ControlFlow<()> {
        if self.stop.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Fails with an interrupt if the work is not complete.
    ///
    /// # Errors
    /// The work is not complete.
    pub fn complete(&self, complete: bool) -> Outcome {
        if complete { Ok(()) } else { Err(Failure::interrupted("stopped")) }
    }

    /// Reports that texts were truncated.
    pub fn cut(&self, truncated: usize, dropped: usize) {
        if truncated > 0 {
            console::line(format_args!(
                "note: {truncated} texts are longer than the model takes; {dropped} tokens at their ends were left out"
            ));
        }
    }
}
