//! `regard doctor`

use std::path::PathBuf;

use regard_files::write_whole;
use regard_kernels::{
    AttentionOptions, Mechanism, simd,
    support::{SupportKind, SupportOptions},
};
use regard_lab::bench;
use regard_nn::device;
use regard_tasks::{Class, train::Environment};
use serde_json::json;

use super::{cache_directory, environment};
use crate::{
    args::Common,
    error::{Failure, Outcome},
    output,
    values::variable,
};

/// One check and its result.
struct Check {
    name: String,
    passed: bool,
    detail: String,
}

/// Inspects the machine and checks every kernel against its float64 twin.
///
/// # Errors
/// A check that failed.
pub fn run(common: &Common) -> Outcome {
    let environment = environment();
    let mut checks: Vec<Check> = variants().into_iter().map(|(name, options)| kernel(name, options)).collect();
    let given = variable("REGARD_CACHE").map(PathBuf::from);
    checks.extend(cache_directory(given.as_deref()).map(|directory| writable(&directory)));
    let vectors = simd::vectors().name();
    let devices = device::list();
    if common.json {
        let checks = checks.iter().map(|c| json!({ "name": c.name, "passed": c.passed, "detail": c.detail }));
        output::json(&json!({
            "environment": environment, "vectors": vectors, "devices": devices, "kinds": device::built(),
            "checks": checks.collect::<Vec<_>>(),
        }))?;
    } else {
        let Environment { version, commit, processor, threads, processors, platform, .. } = &environment;
        let commit = commit.as_deref().unwrap_or("no commit known");
        output::line(format_args!(
            "regard      {version} ({commit})\nprocessor   {processor}\nvectors     {vectors}\n\
             threads     {threads} of {processors}\nplatform    {platform}"
        ))?;
        for (n, found) in devices.iter().enumerate() {
            output::line(format_args!("{:<11} {found}", if n == 0 { "devices" } else { "" }))?;
        }
        output::line(format_args!("kinds       {}; others by features\n", device::built().join(", ")))?;
        for check in &checks {
            let word = if check.passed { "ok" } else { "FAIL" };
            output::line(format_args!("{word:<5} {:<30} {}", check.name, check.detail))?;
        }
    }
    match checks.iter().filter(|check| !check.passed).count() {
        0 => Ok(()),
        failed => Err(Failure::new(Class::Check, format!("{failed} of {} checks failed", checks.len()))),
    }
}

/// Every mechanism, and Scatterbrain with every support that has a separate kernel, by name.
fn variants() -> Vec<(String, AttentionOptions)> {
    let plain = |mechanism| AttentionOptions { mechanism, causal: true, ..AttentionOptions::default() };
    let mut all: Vec<_> =
        Mechanism::ALL.iter().map(|mechanism| (mechanism.name().to_owned(), plain(*mechanism))).collect();
    use SupportKind::{Bigbird, Block, Longformer, Lsh, Smyrf};
    for kind in [Longformer, Bigbird, Block, Smyrf, Lsh] {
        let mut options = plain(Mechanism::Scatterbrain);
        options.support = SupportOptions {
            kind,
            radius: 4,
            globals: 2,
            random: 1,
            block: 8,
            layout: Some(["10000", "11000", "10100", "00110", "01011"].map(String::from).to_vec()),
            cluster: 8,
            bucket: 8,
            ..SupportOptions::default()
        };
        all.push((options.label(), options));
    }
    all
}

/// Forward and backward of a mechanism at small sizes against its twin.
fn kernel(name: String, options: AttentionOptions) -> Check {
    /// An odd number of tokens, so that no tile is full.
    const TOKENS: usize = 37;
    const WIDTH: usize = 16;
    let name = format!("kernel {name}");
    match bench::check(&options, TOKENS, WIDTH, 1) {
        Err(error) => Check { name, passed: false, detail: error.to_string() },
        Ok(check) => {
            let error = check.error.unwrap_or(f64::INFINITY);
            Check { name, passed: check.passed, detail: format!("differs from its twin by {error:.1e} at most") }
        }
    }
}

fn writable(directory: &std::path::Path) -> Check {
    let path = directory.join(".regard-doctor");
    let result = write_whole(&path, b"ok").and_then(|()| std::fs::remove_file(&path));
    let detail = match &result {
        Ok(()) => directory.display().to_string(),
        Err(error) => format!("{}: {error}; choose another with REGARD_CACHE", directory.display()),
    };
    Check { name: "cache directory".into(), passed: result.is_ok(), detail }
}
