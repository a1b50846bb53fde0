//! Another revision of this program: found, built, and run with the options of this command.

use std::{
    ffi::OsString,
    fmt, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use regard_lab::bench::Earlier;

use super::super::cache_directory;
use crate::{
    console,
    error::{Failure, Outcome},
    values::variable,
};

/// The package to build, and its binary.
const PACKAGE: &str = "regard-cli";
const PROGRAM: &str = "regard";
/// Options that are not passed on, and whether they take a value.
const OWN: [(&str, bool); 8] = [
    ("--compare", true),
    ("--out", true),
    ("--repeats", true),
    ("--json", false),
    ("--quiet", false),
    ("-q", false),
    ("--crossover", false),
    ("--threads", true),
];

/// A commit of the repository around the current directory.
pub struct Revision {
    /// The name as given.
    name: String,
    /// The full hash.
    commit: String,
    /// Root of the checkout.
    repository: PathBuf,
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, &self.commit[..self.commit.len().min(9)])
    }
}

impl Revision {
    /// # Errors
    /// No git, no checkout of this program, no such commit.
    pub fn find(name: &str) -> Outcome<Self> {
        let place = format!("--compare {name}: no such file, and");
        let top = git(Path::new("."), &["rev-parse", "--show-toplevel"], &place)?.ok_or_else(|| {
            Failure::usage(format!(
                "{place} this directory is in no git checkout; give the JSON of an earlier result, or go into a checkout of \
                 Regard"
            ))
        })?;
        let repository = PathBuf::from(top);
        if !repository.join("crates/cli/Cargo.toml").is_file() {
            return Err(Failure::usage(format!(
                "{place} the checkout {} is not of Regard; go into one that is",
                repository.display()
            )));
        }
        let wanted = format!("{name}^{{commit}}");
        let commit = git(&repository, &["rev-parse", "--verify", "--quiet", "--end-of-options", &wanted], &place)?;
        let commit = commit.ok_or_else(|| {
            Failure::usage(format!(
                "{place} no revision in {}; 'git log --oneline' lists those there are",
                repository.display()
            ))
        })?;
        let commit = commit.to_string_lossy().into_owned();
        Ok(Self { name: name.into(), commit, repository })
    }

    /// The program of this revision: built in a temporary worktree and kept in the cache directory.
    ///
    /// # Errors
    /// No cargo, a revision that does not build, files that cannot be written.
    pub fn build(&self, quiet: bool) -> Outcome<PathBuf> {
        let given = variable("REGARD_CACHE").map(PathBuf::from);
        let kept = cache_directory(given.as_deref());
        let folder = kept.clone().unwrap_or_else(|| std::env::temp_dir().join("regard")).join("revisions");
        let program = folder.join(&self.commit).join(PROGRAM);
        if program.is_file() && kept.is_some() {
            return Ok(program);
        }
        fs::create_dir_all(&folder).map_err(|error| Failure::writing(&folder, &error))?;
        let worktree =
            Worktree::add(self, folder.join(format!("{}-source-{}", &self.commit[..9], std::process::id())))?;
        if !quiet {
            console::line(format_args!("building {self}; its program is kept in {}", folder.display()));
        }
        let target = folder.join("target");
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--release", "--package", PACKAGE, "--quiet", "--target-dir"]).arg(&target);
        cargo.current_dir(&worktree.path).stdin(Stdio::null()).stdout(Stdio::null());
        // Override a commit that the environment names for the current build.
        cargo.env("REGARD_COMMIT", &self.commit[..self.commit.len().min(7)]);
        let output = cargo.output().map_err(|error| {
            Failure::data(format!("--compare {self}: cannot run cargo ({error}); install Rust, or compare with a file"))
        })?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let problem = text.lines().find(|line| line.starts_with("error")).unwrap_or("cargo failed").to_owned();
            return Err(Failure::data(format!("--compare {self} does not build: {problem}; try another revision")));
        }
        let built = target.join("release").join(PROGRAM);
        // Renamed when it is whole, as a copy cut short would be taken for the program from then on.
        let part = program.with_extension("part");
        let copied = program.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::copy(&built, &part));
        copied.and_then(|_| fs::rename(&part, &program)).map_err(|error| Failure::writing(&program, &error))?;
        Ok(program)
    }
}

/// Runs git in a directory: the line that it prints, `None` if it fails.
fn git(directory: &Path, arguments: &[&str], place: &str) -> Outcome<Option<OsString>> {
    let output = Command::new("git").args(arguments).current_dir(directory).stdin(Stdio::null()).output();
    let output = output.map_err(|error| {
        Failure::usage(format!("{place} cannot run git ({error}); install it, or give the JSON of an earlier result"))
    })?;
    let line = output.stdout.trim_ascii_end();
    Ok((output.status.success() && !line.is_empty()).then(|| system_text(line)))
}

/// Bytes of the system as a path.
fn system_text(bytes: &[u8]) -> OsString {
    #[cfg(unix)]
    return std::os::unix::ffi::OsStringExt::from_vec(bytes.to_vec());
    #[cfg(not(unix))]
    String::from_utf8_lossy(bytes).into_owned().into()
}

/// The files of a revision while it is built.
struct Worktree {
    repository: PathBuf,
    path: PathBuf,
}

impl Worktree {
    fn add(revision: &Revision, path: PathBuf) -> Outcome<Self> {
        let mut command = Command::new("git");
        command.args(["worktree", "add", "--detach", "--force"]).arg(&path).arg(&revision.commit);
        let output = command.current_dir(&revision.repository).stdin(Stdio::null()).output();
        let worktree = Self { repository: revision.repository.clone(), path };
        let problem = match output {
            Ok(output) if output.status.success() => return Ok(worktree),
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().lines().last().unwrap_or_default().to_owned(),
            Err(error) => error.to_string(),
        };
        Err(Failure::data(format!("--compare {revision}: no worktree in {}: {problem}", worktree.path.display())))
    }
}

impl Drop for Worktree {
    fn drop(&mut self) {
        let mut command = Command::new("git");
        command.args(["worktree", "remove", "--force"]).arg(&self.path).current_dir(&self.repository);
        // A leftover does no harm; 'git worktree prune' removes it.
        let _ = command.stdin(Stdio::null()).output();
    }
}

/// One run of a program with the options of this command, each mechanism timed once.
///
/// # Errors
/// A program that rejects the options, or fails.
pub fn once(program: &Path, who: &str) -> Outcome<Earlier> {
    let mut command = Command::new(program);
    command.args(handed_on(std::env::args_os().skip(1))).args(["--repeats", "1", "--json", "--quiet"]);
    command.arg("--threads").arg(rayon::current_num_threads().to_string());
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| Failure::data(format!("cannot run {}: {error}", program.display())))?;
    // A wrong mechanism fails the command, but the result is still printed.
    let text = String::from_utf8_lossy(&output.stdout);
    Earlier::read(who, &text).map_err(|problem| {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().find(|line| line.starts_with("error")).map_or(problem, str::to_owned);
        Failure::usage(format!("{who} does not run with these options: {said}; give options that both know"))
    })
}

/// The arguments without those that only this command uses.
fn handed_on(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy().into_owned();
        let (name, value) = text.split_once('=').map_or((&*text, None), |(name, value)| (name, Some(value)));
        match OWN.iter().find(|(own, _)| *own == name) {
            None => kept.push(argument),
            Some((_, true)) if value.is_none() => drop(arguments.next()),
            Some(_) => {}
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn options_of_the_comparison_are_not_handed_on() {
        let typed = "bench --mechanism mgk --compare HEAD~1 --repeats=5 -q --set support.kind=local --out x --causal";
        let kept = handed_on(typed.split(' ').map(OsString::from));
        assert_eq!(kept.join(OsStr::new(" ")), "bench --mechanism mgk --set support.kind=local --causal");
    }
}
