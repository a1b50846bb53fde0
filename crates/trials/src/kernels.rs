//! The kernels on every instruction set and number of threads, and their memory accesses under Valgrind.

use std::{env, process::Command, time::Instant};

use crate::report::Section;

/// Unit tests of raw memory: products, gathers, transposes, kept buffers, padding, the allocator.
const RAW: [&str; 6] = ["simd::", "gemm", "parallel", "padding", "memory", "elementwise"];

/// A test program of the kernels, built where it is missing.
fn program(name: &str) -> Result<String, String> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--locked", "--release", "-p", "regard-kernels", "--no-run", "--message-format=json"]);
    match name {
        "lib" => cargo.arg("--lib"),
        _ => cargo.args(["--test", name]),
    };
    let output = cargo.output().map_err(|error| format!("cargo: {error}"))?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let executable = messages.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(message.get("executable")?.as_str()?.to_owned())
    });
    executable.ok_or_else(|| format!("{name} is not built: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// Instruction sets and threads against each other.
pub fn determinism() -> Section {
    let mut section = Section {
        title: "Determinism".into(),
        about: "Every variant of every mechanism, forward and backward: bits on 1, 2, 3 and 7 threads and of a repeated pass are \
                those of one thread, on each instruction set of this processor; the sets agree within the bounds."
            .into(),
        columns: vec!["what", "result"],
        rows: Vec::new(),
        findings: 0,
    };
    let run = program("instruction_sets")
        .and_then(|program| Command::new(program).arg("--nocapture").output().map_err(|error| error.to_string()));
    match run {
        Err(problem) => section.finding("instruction sets", problem),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            for line in text.lines() {
                if let Some((sets, result)) = line.split_once(": ").filter(|(sets, _)| sets.contains(" against ")) {
                    section.rows.push(vec![sets.to_owned(), result.to_owned()]);
                }
            }
            match output.status.success() {
                true => section.rows.push(vec!["threads and repeats".into(), "the same bits".into()]),
                false => section.finding("instruction sets", "a check failed; see the test instruction_sets"),
            }
        }
    }
    section
}

/// Golden cases and the tests of raw memory under Valgrind, in one thread: it runs threads one after another, and those that
/// wait for work would take its time.
pub fn memory() -> Section {
    let mut section = Section {
        title: "Memory accesses".into(),
        about: "Optimised test programs of the kernels under Valgrind (memcheck), which knows AVX2 and no AVX-512: reads and \
                writes outside their buffers, and decisions by memory that nothing was written to."
            .into(),
        columns: vec!["tests", "passed", "errors", "seconds"],
        rows: Vec::new(),
        findings: 0,
    };
    if Command::new("valgrind").arg("--version").output().is_err() {
        section.rows.push(vec![
            "all".into(),
            "not run: valgrind is not installed".into(),
            String::new(),
            String::new(),
        ]);
        return section;
    }
    for (name, filters) in [("golden", &[][..]), ("lib", &RAW[..])] {
        let program = match program(name) {
            Ok(program) => program,
            Err(problem) => {
                section.finding(name, problem);
                continue;
            }
        };
        let start = Instant::now();
        let run = Command::new("valgrind")
            .args(["--error-exitcode=9", "--errors-for-leak-kinds=none", &program, "--test-threads", "1"])
            .args(filters)
            .env("RAYON_NUM_THREADS", "1")
            // Where the golden data lie.
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels"))
            .output();
        match run {
            Err(problem) => section.finding(name, problem),
            Ok(output) => {
                let after = |text: &[u8], mark: &str| {
                    let text = String::from_utf8_lossy(text).into_owned();
                    let rest = text.split_once(mark)?.1.split_whitespace().next()?.to_owned();
                    Some(rest)
                };
                let passed = after(&output.stdout, "test result: ok.").unwrap_or("failed".into());
                let errors = after(&output.stderr, "ERROR SUMMARY:").unwrap_or("unknown".into());
                section.findings += usize::from(!output.status.success());
                section.rows.push(vec![name.into(), passed, errors, start.elapsed().as_secs().to_string()]);
            }
        }
    }
    section
}
