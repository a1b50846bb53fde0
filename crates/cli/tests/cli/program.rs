//! Running the binary and judging what it left.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// Longest wait for anything that a test waits for.
const PATIENCE: Duration = Duration::from_secs(120);

/// A command in an environment of its own: the settings of whoever runs the tests do not reach it.
pub fn regard<I: IntoIterator<Item: AsRef<OsStr>>>(arguments: I) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_regard"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("REGARD_") {
            command.env_remove(name);
        }
    }
    // The tests run beside each other: one thread each keeps them from waiting for one another.
    command.env("REGARD_THREADS", "1").stdin(Stdio::null()).args(arguments);
    command
}

/// Runs a command to its end.
pub fn run<I: IntoIterator<Item: AsRef<OsStr>>>(arguments: I) -> Ended {
    Ended::of(&mut regard(arguments))
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; `None` where a signal ended the process itself.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Ended {
    /// Runs a prepared command to its end.
    pub fn of(command: &mut Command) -> Self {
        let output = command.output().expect("the binary runs");
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("UTF-8 on standard output"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8 on standard error"),
        }
    }

    /// Standard output of a command that must have worked.
    #[track_caller]
    pub fn success(self) -> String {
        assert_eq!(self.code, Some(0), "{self:#?}");
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        self.stdout
    }

    /// Standard output, as JSON, of a command that must have worked.
    #[track_caller]
    pub fn json(self) -> serde_json::Value {
        let text = self.success();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
    }

    /// What is wrong with a command that should have failed with `code` and one sentence holding all `parts`.
    pub fn failure_problem(&self, code: i32, parts: &[&str]) -> Option<String> {
        let line = self.stderr.strip_suffix('\n').unwrap_or(&self.stderr);
        let sentence = line.starts_with("error: ") && !line.contains('\n') && !line.contains("panicked");
        let whole = parts.iter().all(|part| line.contains(part));
        let right = self.code == Some(code) && sentence && whole && self.stdout.is_empty();
        (!right).then(|| format!("expected code {code} and one line with {parts:?}, seen {self:#?}"))
    }

    /// Asserts a failure with `code` and one sentence on standard error that holds all `parts`.
    #[track_caller]
    pub fn failure(self, code: i32, parts: &[&str]) {
        if let Some(problem) = self.failure_problem(code, parts) {
            panic!("{problem}");
        }
    }

    /// Asserts that the arguments were refused: code 2 and an explanation, which for arguments may have several lines.
    #[track_caller]
    pub fn usage_failure(self, parts: &[&str]) {
        assert_eq!(self.code, Some(2), "{self:#?}");
        let whole = parts.iter().all(|part| self.stderr.contains(part));
        assert!(whole && !self.stderr.contains("panicked") && self.stdout.is_empty(), "{parts:?} in {self:#?}");
    }
}

/// A command that is running.
pub struct Running(Child);

impl Running {
    /// Starts a command with its output kept for later; it must print less than a pipe holds.
    pub fn start(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self(child.expect("the binary runs"))
    }

    /// Waits until `ready`.
    ///
    /// # Panics
    /// If the command ends before, or patience does.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, ready: impl Fn() -> bool) {
        let start = Instant::now();
        while !ready() {
            if let Some(status) = self.0.try_wait().expect("a child") {
                panic!("the command ended ({status}) before {what}");
            }
            assert!(start.elapsed() < PATIENCE, "{what} did not happen");
            sleep(Duration::from_millis(2));
        }
    }

    /// Ends the process at once, as `kill -9` does.
    pub fn kill(mut self) {
        self.0.kill().expect("a running process");
        self.0.wait().expect("a child");
    }

    /// Sends a signal by name, as in `INT`, and waits for the end.
    #[cfg(unix)]
    pub fn signal(self, name: &str) -> Ended {
        let kill = format!("kill -{name} {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success(), "{kill}");
        self.end()
    }

    /// Waits for the end.
    pub fn end(self) -> Ended {
        let output = self.0.wait_with_output().expect("a child");
        Ended {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Gives up the reading end of its standard output.
    pub fn close_stdout(&mut self) {
        drop(self.0.stdout.take());
    }

    /// Gives up the reading end of its standard error.
    pub fn close_stderr(&mut self) {
        drop(self.0.stderr.take());
    }
}

/// A stream that takes nothing. No test gives its path to the program: one that replaced the device would spoil the machine.
#[cfg(target_os = "linux")]
pub fn full() -> Stdio {
    fs::File::options().write(true).open("/dev/full").expect("a device of Linux").into()
}

/// Names in a directory, sorted; none where there is no directory.
pub fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let mut names: Vec<_> = entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The text of a file.
///
/// # Panics
/// If it cannot be read.
#[track_caller]
pub fn text(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A path as an argument.
pub fn argument(path: impl Into<PathBuf>) -> String {
    path.into().into_os_string().into_string().expect("a temporary path is text")
}

/// Asserts that a page has a picture and needs nothing from elsewhere.
#[track_caller]
pub fn assert_self_contained(page: &str) {
    assert!(page.contains("<svg"), "no picture");
    // The namespace of SVG is a name, not an address.
    let page = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for outside in ["http://", "https://", "src=", "<link", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
}
