//! `regard doctor`

use std::path::PathBuf;

use regard_kernels::{
    AttentionOptions, Call, Mask, Mechanism, Operator, View, simd,
    support::{SupportKind, SupportOptions},
};
use regard_lab::report::write_atomically;
use serde_json::json;

use super::{cache_directory, environment, print_json};
use crate::{
    args::Common,
    error::{Code, Failure, Outcome},
};

/// Largest relative difference between a kernel and its twin that passes.
const BOUND: f64 = 1e-5;

/// Numbers of the twin below this are 0 but for its own rounding.
const VANISHING: f64 = 1e-12;

/// One thing that was looked at.
struct Check {
    name: String,
    passed: bool,
    detail: String,
}

/// Looks at the machine and runs every kernel against its float64 twin.
///
/// # Errors
/// A check that failed.
pub fn run(common: &Common) -> Outcome {
    let environment = environment();
    let mut checks: Vec<Check> = variants().into_iter().map(|(name, options)| kernel(name, options)).collect();
    let given = std::env::var_os("REGARD_CACHE").map(PathBuf::from);
    checks.extend(cache_directory(given.as_deref()).map(|directory| writable(&directory)));
    let vectors = simd::instruction_set();
    if common.json {
        let checks = checks.iter().map(|c| json!({ "name": c.name, "passed": c.passed, "detail": c.detail }));
        print_json(&json!({
            "environment": environment, "vectors": vectors, "checks": checks.collect::<Vec<_>>(),
        }));
    } else {
        println!(
            "regard      {} ({})",
            environment.version,
            environment.commit.as_deref().unwrap_or("no commit known")
        );
        println!("processor   {}", environment.processor);
        println!("vectors     {vectors}");
        println!("threads     {} of {}", environment.threads, environment.processors);
        println!("platform    {}", environment.platform);
        println!();
        for check in &checks {
            println!("{:<5} {:<30} {}", if check.passed { "ok" } else { "FAIL" }, check.name, check.detail);
        }
    }
    match checks.iter().filter(|check| !check.passed).count() {
        0 => Ok(()),
        failed => Err(Failure { code: Code::Check, message: format!("{failed} of {} checks failed", checks.len()) }),
    }
}

/// Every mechanism, Scatterbrain with every support that has a kernel of its own, by name.
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
    let name = format!("kernel {name}");
    match options.operator(Call { mask: Mask::causal(), ..Call::default() }) {
        Err(error) => Check { name, passed: false, detail: error.to_string() },
        Ok(operator) => {
            let error = distance(operator.as_ref(), &options);
            Check { name, passed: error <= BOUND, detail: format!("differs from its twin by {error:.1e} at most") }
        }
    }
}

/// Largest difference of output and gradients from those of the twin, relative to the largest number of each.
fn distance(operator: &dyn Operator, options: &AttentionOptions) -> f64 {
    const TOKENS: usize = 37;
    const WIDTH: usize = 16;
    let (heads, components, experts) = (options.heads, options.components(), options.moa.experts);
    let mixture = matches!(options.mechanism, Mechanism::Gaussian | Mechanism::Mgk | Mechanism::Mlk);
    let shape = |name: &str| match name {
        "k" if mixture => vec![1, heads, components, TOKENS, WIDTH],
        "variance" => vec![components],
        "log_prior" => vec![heads, components],
        "x" => vec![1, TOKENS, heads * WIDTH],
        "w_gate" => vec![heads * WIDTH, experts],
        "w_query" => vec![experts, heads * WIDTH, WIDTH],
        "w_key" | "w_value" => vec![heads * WIDTH, WIDTH],
        "w_out" => vec![experts, WIDTH, heads * WIDTH],
        "w_q" | "w_k" => vec![heads, WIDTH],
        "w_t" => vec![heads * WIDTH, heads * WIDTH],
        "projection" => vec![options.features.rows, WIDTH],
        "directions" => vec![options.support.rounds, WIDTH + 2],
        "rotations" => vec![options.support.rounds, WIDTH, options.support.hash_values(TOKENS) / 2],
        _ => vec![1, heads, TOKENS, WIDTH],
    };
    let mut state = 1u64;
    let mut draw = |name: &str, shape: &[usize]| -> Vec<f32> {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..shape.iter().product()).map(|_| if name == "variance" { 4.0 } else { next() }).collect()
    };
    let names = operator.inputs();
    let shapes: Vec<Vec<usize>> = names.iter().map(|name| shape(name)).collect();
    let data: Vec<Vec<f32>> = names.iter().zip(&shapes).map(|(name, shape)| draw(name, shape)).collect();
    let dims: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
    let Ok(out_shape) = operator.out_shape(&dims) else { return f64::INFINITY };
    let grad_out = draw("grad_out", &out_shape);
    let wide: Vec<Vec<f64>> = data.iter().map(|data| data.iter().map(|x| f64::from(*x)).collect()).collect();
    let wide_grad: Vec<f64> = grad_out.iter().map(|x| f64::from(*x)).collect();

    let views: Vec<View<f32>> = data.iter().zip(&dims).map(|(data, shape)| View::new(data, shape)).collect();
    let mut out = vec![f32::NAN; grad_out.len()];
    let saved = operator.forward(&views, &mut out);
    let grads = operator.backward(&views, &out, &saved, &grad_out, &vec![true; views.len()]);
    let views: Vec<View<f64>> = wide.iter().zip(&dims).map(|(data, shape)| View::new(data, shape)).collect();
    let twin = operator.reference(&views, Some(&wide_grad));

    let apart = |a: &[f32], b: &[f64]| {
        let scale = b.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        // A gradient that vanishes, as that of the prior of a single component, leaves the rounding alone to be seen.
        let scale = if scale < VANISHING { 1.0 } else { scale };
        let most = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).abs());
        // NaN must not pass for a small difference.
        most.fold(0.0f64, |most, x| if x.is_nan() { f64::INFINITY } else { most.max(x) }) / scale
    };
    let learned = names.iter().map(|name| !operator.constants().contains(name));
    let grads = grads.iter().zip(&twin.grads).zip(learned).filter(|(_, learned)| *learned);
    let grads = grads.map(|((grad, want), _)| grad.as_ref().map_or(f64::INFINITY, |g| apart(g, want)));
    grads.fold(apart(&out, &twin.out), f64::max)
}

fn writable(directory: &std::path::Path) -> Check {
    let path = directory.join(".regard-doctor");
    let result = write_atomically(&path, b"ok").and_then(|()| std::fs::remove_file(&path));
    let detail = match &result {
        Ok(()) => directory.display().to_string(),
        Err(error) => format!("{}: {error}; choose another with REGARD_CACHE", directory.display()),
    };
    Check { name: "cache directory".into(), passed: result.is_ok(), detail }
}
