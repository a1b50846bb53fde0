//! A program that runs, and what can be done to it.

use std::{
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(300);

pub struct Running(Child);

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// None where a signal ended it.
    pub code: Option<i32>,
    pub stderr: String,
}

impl Running {
    /// Starts the program with `--out`, its files of at most `most` bytes.
    pub fn start(binary: &Path, arguments: &[&str], out: &Path, most: Option<u64>) -> Self {
        let mut command = Command::new(binary);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("REGARD_")) {
            command.env_remove(name);
        }
        command.args(arguments).arg("--out").arg(out).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        if let Some(most) = most {
            let limit = libc::rlimit { rlim_cur: most, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: between fork and exec only a system call is made, which may be made there.
            unsafe {
                command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                });
            }
        }
        Self(command.spawn().unwrap_or_else(|error| panic!("{}: {error}", binary.display())))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: the child has not been waited for, so the number is still its.
        unsafe { libc::kill(self.0.id() as libc::pid_t, signal) };
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("a child").is_some()
    }

    /// Waits until `ready`, or the end.
    pub fn wait_until(&mut self, ready: impl Fn() -> bool) -> bool {
        let begin = Instant::now();
        while !ready() {
            if self.has_ended() || begin.elapsed() > PATIENCE {
                return false;
            }
            sleep(Duration::from_millis(1));
        }
        true
    }

    /// Waits for the end; ends what does not end.
    pub fn end(mut self) -> Ended {
        if !self.wait_until(|| false) && !self.has_ended() {
            self.signal(libc::SIGKILL);
        }
        let output = self.0.wait_with_output().expect("a child");
        Ended { code: output.status.code(), stderr: String::from_utf8_lossy(&output.stderr).into_owned() }
    }
}

impl Ended {
    /// What is wrong with an end that should have been in success, or with one of `codes` and one sentence that holds `part`.
    pub fn problem(&self, codes: &[i32], part: &str) -> Option<String> {
        let right = match self.code {
            Some(0) => codes.contains(&0) && self.stderr.is_empty(),
            Some(code) => {
                let sentence = self.stderr.starts_with("error: ") && self.stderr.trim_end().lines().count() == 1;
                codes.contains(&code) && sentence && self.stderr.contains(part)
            }
            None => false,
        };
        (!right).then(|| format!("expected code {codes:?} and one sentence with '{part}', seen {self:?}"))
    }
}
