//! `regard attend` against the golden data: every case of every mechanism, kernel and twin, with every gradient.

use std::{
    num::NonZero,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use regard_testkit::{Case, Report, cases, golden};
use safetensors::Dtype;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    program::{Ended, argument, regard, run},
    tensors::{File, Stored},
};

const MECHANISMS: [&str; 10] =
    ["softmax", "gaussian", "mgk", "linear", "mlk", "performer", "sparse", "scatterbrain", "moa", "fastformer"];
/// Those with scores to be normalised, whose logarithm of the sum is an output.
const WITH_LSE: [&str; 6] = ["softmax", "gaussian", "mgk", "performer", "sparse", "scatterbrain"];
/// Float64 implementations of one formula agree to this.
const FLOAT64_BOUND: f64 = 1e-10;
/// A single float32 rounding, relative to the largest element.
const ROUNDING: f64 = 1e-7;

/// The options of a case as arguments.
fn arguments(case: &Case) -> Vec<String> {
    let mut arguments = vec!["attend".to_owned(), "--mechanism".into(), case.mechanism.clone()];
    let text = |name: &str| case.options.get(name).and_then(Value::as_str);
    let keys = [
        ("inference", "mixture.inference"),
        ("score", "mixture.score"),
        ("variances", "mixture.variances"),
        ("prior", "mixture.prior"),
        ("keys", "keys.design"),
        ("scores", "fastformer.scores"),
        ("sharing", "fastformer.sharing"),
        ("features", "features.kind"),
        ("support", "support.kind"),
    ];
    for (option, key) in keys {
        match (option, text(option)) {
            // The variances are in the file then; hard inference has no prior.
            (_, None) | ("variances", Some("list")) | ("prior", Some("none")) => {}
            (_, Some(value)) => arguments.extend(["--set".into(), format!("{key}={value}")]),
        }
    }
    for option in ["active", "gates"] {
        // The sizes of the experts are in the file.
        if let Some(value) = case.options.get(option) {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            arguments.extend(["--set".into(), format!("moa.{option}={value}")]);
        }
    }
    for option in ["radius", "globals", "block", "cluster", "rounds", "bucket", "hash_values", "cyclic"] {
        // How many rounds there are is in the file.
        if let Some(value) = case.options.get(option).filter(|_| option != "rounds") {
            arguments.extend(["--set".into(), format!("support.{option}={value}")]);
        }
    }
    if case.options.get("causal") == Some(&Value::Bool(true)) {
        arguments.push("--causal".into());
    }
    if let Some(scale) = case.options.get("scale").and_then(Value::as_f64) {
        arguments.extend(["--scale".into(), scale.to_string()]);
    }
    arguments
}

/// Runs `arguments` on the file `input` and reads the output, a file of its own beside the others in `folder`.
fn attend(arguments: &[String], input: &Path, folder: &Path, name: &str, further: &[&str]) -> Result<File, Ended> {
    let output = folder.join(format!("{name}.safetensors"));
    let mut command = regard(arguments);
    command.arg("--input").arg(input).arg("--output").arg(&output).args(further);
    let ended = Ended::of(&mut command);
    let silent = ended.stdout.is_empty() && ended.stderr.is_empty();
    if ended.code == Some(0) && silent { Ok(File::read(&output)) } else { Err(ended) }
}

/// Calls `work` with every case of our mechanisms, on all processors.
fn each_case(work: impl Fn(&Case, &Mutex<Report>) + Sync) {
    let cases: Vec<_> = cases().into_iter().filter(|case| MECHANISMS.contains(&&*case.mechanism)).collect();
    assert_eq!(cases.len(), 113, "cases of {MECHANISMS:?}");
    let (next, report) = (AtomicUsize::new(0), Mutex::new(Report::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(case, &report);
                }
            });
        }
    });
    report.into_inner().expect("no test panicked").finish();
}

/// Holds an output against its case.
fn compare(case: &Case, output: &File, report: &Mutex<Report>, form: &str, bound: impl Fn(&str) -> f64) {
    let golden = case.load();
    let mut report = report.lock().expect("no test panicked");
    let mut expected: Vec<String> = vec!["out".into()];
    expected.extend(case.differentiated().iter().map(|name| format!("grad.{name}")));
    let of_losses = ["grad_balance.x", "grad_balance.w_gate", "grad_z.x", "grad_z.w_gate"];
    let more = ["prior_after", "balance_loss", "z_loss"]
        .into_iter()
        .chain(of_losses)
        .filter(|name| golden.get(name).is_some());
    expected.extend(more.map(String::from));
    for name in expected {
        let label = format!("{} {form} {name}", case.name());
        let Some(seen) = output.0.get(&name) else {
            report.require(false, format_args!("{label}: missing"));
            continue;
        };
        let wanted = golden.tensor(&name);
        report.require(seen.shape == wanted.shape, format_args!("{label}: shape {:?}", seen.shape));
        report.compare(label, &output.real(&name), wanted.f64(), bound(&name));
    }
    let q = golden.get("q").map(|q| q.shape[..3].to_vec());
    let lse = output.0.get("lse").map(|lse| lse.shape.clone());
    let expected = q.filter(|_| WITH_LSE.contains(&&*case.mechanism));
    report.require(lse == expected, format_args!("{} {form} lse: shape {lse:?}, not {expected:?}", case.name()));
}

#[test]
fn every_case_in_both_forms() {
    let folder = TempDir::new().unwrap();
    each_case(|case, report| {
        let input = golden::folder().join(&case.file);
        for (form, further) in [("kernel", &[][..]), ("twin", &["--reference"][..])] {
            let name = format!("{} {form}", case.name());
            match attend(&arguments(case), &input, folder.path(), &name, further) {
                Err(ended) => report.lock().unwrap().require(false, format_args!("{name}: {ended:?}")),
                Ok(output) => {
                    let wide = output.0.values().all(|tensor| tensor.dtype == Dtype::F64);
                    report.lock().unwrap().require(wide, format_args!("{name}: not all of float64"));
                    let bound = |name: &str| if form == "twin" { FLOAT64_BOUND } else { case.bound(name) };
                    compare(case, &output, report, form, bound);
                }
            }
        }
    });
}

/// Over ranks a case gives what it gives in one process, or is refused by the name of what stands against it.
#[test]
fn every_case_over_ranks() {
    const REFUSED: [&str; 4] = ["support.kind is", "bias is", "keys is", "tokens is"];
    let folder = TempDir::new().unwrap();
    let (spread, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    each_case(|case, report| {
        let input = golden::folder().join(&case.file);
        for ranks in ["2", "3"] {
            let name = format!("{} over {ranks}", case.name());
            match attend(&arguments(case), &input, folder.path(), &name, &["--ranks", ranks]) {
                Err(ended) => {
                    let named = REFUSED.iter().any(|reason| ended.stderr.contains(reason));
                    let told = named && ended.code == Some(2);
                    report.lock().unwrap().require(told, format_args!("{name}: {ended:?}"));
                    refused.fetch_add(1, Ordering::Relaxed);
                }
                Ok(output) => {
                    compare(case, &output, report, &format!("over {ranks}"), |name| case.bound(name));
                    spread.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    });
    let (spread, refused) = (spread.into_inner(), refused.into_inner());
    assert!(spread > refused, "{spread} cases over ranks, {refused} refused");
}

#[test]
fn float32_files_give_the_same_numbers_in_float32() {
    let folder = TempDir::new().unwrap();
    each_case(|case, report| {
        // One case a family of options is enough here.
        let names = [
            "softmax_bias",
            "mgk_causal_padding",
            "smgk_m2",
            "mlk_m3_padding",
            "fastformer_paper",
            "performer_causal",
            "block_sparse",
            "scatterbrain_smyrf_causal_padding",
            "lsh_2_padding",
            "moa_k2_cross_padding",
        ];
        if !names.contains(&case.name()) {
            return;
        }
        let wide = golden::folder().join(&case.file);
        let narrow = folder.path().join(format!("{} input.safetensors", case.name()));
        File::read(&wide).narrow().write(&narrow);
        let outputs = [(&wide, "f64"), (&narrow, "f32")].map(|(input, form)| {
            attend(&arguments(case), input, folder.path(), &format!("{} {form}", case.name()), &[]).unwrap()
        });
        let [wide_output, narrow_output] = &outputs;
        {
            let mut report = report.lock().unwrap();
            report.require(narrow_output.names() == wide_output.names(), format_args!("{}: names", case.name()));
            for (name, tensor) in &narrow_output.0 {
                let label = format!("{} f32 {name}", case.name());
                report.require(tensor.dtype == Dtype::F32, format_args!("{label}: {:?}", tensor.dtype));
                // Inputs are float32 numbers in both files, so the kernel computes the same.
                report.same(label, &narrow_output.real(name), &wide_output.real(name));
            }
        }
        let name = format!("{} f32 twin", case.name());
        let twin = attend(&arguments(case), &narrow, folder.path(), &name, &["--reference"]).unwrap();
        compare(case, &twin, report, "f32 twin", |_| ROUNDING);
    });
}

#[test]
fn without_a_gradient_of_the_output_there_are_no_gradients() {
    let folder = TempDir::new().unwrap();
    let input = folder.path().join("input.safetensors");
    for (mechanism, case, names) in [
        ("softmax", "softmax_plain", &["lse", "out"][..]),
        ("mgk", "mgk_m2", &["lse", "out"]),
        ("linear", "linear_plain", &["out"]),
    ] {
        let mut file = File::golden(case);
        let out = file.real("out");
        file.remove("grad_out");
        file.write(&input);
        let arguments = ["attend", "--mechanism", mechanism].map(String::from);
        let output = attend(&arguments, &input, folder.path(), case, &["--reference"]).unwrap();
        assert_eq!(output.names(), names);
        let mut report = Report::new();
        report.compare(case, &output.real("out"), &out, FLOAT64_BOUND);
        report.finish();
    }
}

/// Padded keys and values that are no number, or none that float32 has, change nothing, in any mechanism and form.
#[test]
fn what_padding_holds_never_matters() {
    let folder = TempDir::new().unwrap();
    each_case(|case, report| {
        let file = File::read(&golden::folder().join(&case.file));
        let Some(valid) = file.0.get("valid").map(|valid| valid.bytes.clone()) else { return };
        let names: &[&str] = match &*case.mechanism {
            // The row of a padded query is computed like any other, from its own query and value too.
            "fastformer" => &["k"],
            "moa" if file.0.contains_key("x_kv") => &["x_kv"],
            "moa" => &["x"],
            _ => &["k", "v"],
        };
        let place = |name: &str| folder.path().join(format!("{} {name}.safetensors", case.name()));
        for (form, further) in [("kernel", &[][..]), ("twin", &["--reference"][..])] {
            let mut clean = None;
            for (n, junk) in [0.5, 3e38, 1e300, f64::NEG_INFINITY, f64::NAN].into_iter().enumerate() {
                let mut spoilt = file.clone();
                for name in names.iter().filter(|name| file.0.contains_key(**name)) {
                    let (shape, mut data) = (file.tensor(name).shape.clone(), file.real(name));
                    let axis = if name.starts_with('x') { 1 } else { shape.len() - 2 };
                    let inner: usize = shape[axis + 1..].iter().product();
                    for (i, x) in data.iter_mut().enumerate() {
                        let (batch, token) = (i / shape[1..].iter().product::<usize>(), i / inner % shape[axis]);
                        *x = if valid[batch * shape[axis] + token] == 0 { junk } else { *x };
                    }
                    spoilt.put(name, &shape, &data);
                }
                let input = place(&format!("{form} {n} in"));
                spoilt.write(&input);
                let label = format!("{} {form}, {junk:e} in padding", case.name());
                match attend(&arguments(case), &input, folder.path(), &label, further) {
                    Err(ended) => report.lock().unwrap().require(false, format_args!("{label}: {ended:?}")),
                    Ok(output) => {
                        let same = clean.get_or_insert_with(|| output.clone());
                        let same = same.names() == output.names()
                            && same.names().into_iter().all(|name| same.real(name) == output.real(name));
                        report.lock().unwrap().require(same, label);
                    }
                }
            }
        }
    });
}

/// What soft-EM does not use has no gradient either, whatever its shape.
#[test]
fn a_log_prior_beside_the_buffer_of_soft_em_is_passed_over() {
    let folder = TempDir::new().unwrap();
    let (plain, both) = (folder.path().join("plain.safetensors"), folder.path().join("both.safetensors"));
    let mut file = File::golden("mgk_soft_em");
    file.write(&plain);
    file.0.insert("log_prior".into(), Stored { dtype: Dtype::F64, shape: vec![3], bytes: vec![0; 24] });
    file.write(&both);
    let arguments = ["attend", "--mechanism", "mgk", "--set", "mixture.inference=soft-em"].map(String::from);
    for further in [&[][..], &["--reference"]] {
        let [plain, both] =
            [&plain, &both].map(|input| attend(&arguments, input, folder.path(), "out", further).unwrap());
        assert_eq!(both.0, plain.0);
        assert!(both.names().contains(&"grad.k") && !both.names().contains(&"grad.log_prior"));
    }
}

#[test]
fn the_logarithm_of_the_sum_is_that_of_the_formula() {
    let folder = TempDir::new().unwrap();
    let mut report = Report::new();
    for case in ["softmax_plain", "mgk_m2"] {
        let file = File::golden(case);
        let (q, k) = (file.real("q"), file.real("k"));
        let &[batch, heads, queries, width] = &file.tensor("q").shape[..] else { panic!("four axes") };
        let keys = file.tensor("v").shape[2];
        let root = (width as f64).sqrt();
        let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let distance = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
        let mut expected = Vec::new();
        for (row, q) in q.chunks_exact(width).enumerate() {
            let (b, h) = (row / (heads * queries), row / queries % heads);
            let sum: f64 = if case == "softmax_plain" {
                let key = |j| &k[((b * heads + h) * keys + j) * width..][..width];
                (0..keys).map(|j| (product(q, key(j)) / root).exp()).sum()
            } else {
                let (prior, variance) = (file.real("log_prior"), file.real("variance"));
                let key = |r, j| &k[(((b * heads + h) * 2 + r) * keys + j) * width..][..width];
                let score = |r: usize, j| prior[h * 2 + r] - distance(q, key(r, j)) / (2.0 * variance[r]);
                (0..2).flat_map(|r| (0..keys).map(move |j| (r, j))).map(|(r, j)| score(r, j).exp()).sum()
            };
            expected.push(sum.ln());
        }
        assert_eq!(expected.len(), batch * heads * queries);
        let case = cases().into_iter().find(|c| c.name() == case).unwrap();
        let input = golden::folder().join(&case.file);
        for (further, bound) in [(&["--reference"][..], FLOAT64_BOUND), (&[], case.bound("lse"))] {
            let output = attend(&arguments(&case), &input, folder.path(), "lse", further).unwrap();
            report.compare(format!("{} {further:?}", case.name()), &output.real("lse"), &expected, bound);
        }
    }
    report.finish();
}

#[test]
fn named_variances_stand_in_for_those_of_the_file() {
    let folder = TempDir::new().unwrap();
    let mut report = Report::new();
    for name in ["mgk_m2_square", "mgk_m2_unequal", "mgk_m2_released_lm", "mgk_m1"] {
        let case = cases().into_iter().find(|case| case.name() == name).unwrap();
        let mut file = File::golden(name);
        let out = file.real("out");
        file.remove("variance");
        let input = folder.path().join("input.safetensors");
        file.write(&input);
        let output = attend(&arguments(&case), &input, folder.path(), name, &["--reference"]).unwrap();
        // The files round variances to float32.
        report.compare(name, &output.real("out"), &out, 1e-6);
        report
            .require(!output.0.contains_key("grad.variance"), format_args!("{name}: a gradient of what is not there"));
    }
    report.finish();
}

#[test]
fn the_prior_of_soft_em_goes_round() {
    let folder = TempDir::new().unwrap();
    let mut report = Report::new();
    for name in ["mgk_soft_em", "mgk_soft_em_causal"] {
        let case = cases().into_iter().find(|case| case.name() == name).unwrap();
        let mut file = File::golden(name);
        let input = folder.path().join("input.safetensors");
        for (further, bound) in [(&["--reference"][..], FLOAT64_BOUND), (&[], case.bound("out_after"))] {
            let first = attend(&arguments(&case), &golden::folder().join(&case.file), folder.path(), name, further);
            let prior = first.unwrap().real("prior_after");
            file.put("prior", &case.tensors["prior"].shape, &prior);
            file.write(&input);
            let second = attend(&arguments(&case), &input, folder.path(), name, further).unwrap();
            report.compare(format!("{name} {further:?}"), &second.real("out"), &file.real("out_after"), bound);
            // A longer buffer keeps the rest.
            let [heads, components, keys] = case.tensors["prior"].shape[..] else { panic!("three axes") };
            let longer = |prior: &[f64]| -> Vec<f64> {
                prior.chunks_exact(keys).flat_map(|row| row.iter().copied().chain([0.25, 0.75])).collect()
            };
            file.put("prior", &[heads, components, keys + 2], &longer(&prior));
            file.write(&input);
            let third = attend(&arguments(&case), &input, folder.path(), name, further).unwrap();
            assert_eq!(third.real("out"), second.real("out"));
            assert_eq!(third.real("prior_after"), longer(&second.real("prior_after")));
        }
    }
    report.finish();
}

#[test]
fn what_is_drawn_depends_on_the_seed_alone() {
    let folder = TempDir::new().unwrap();
    let mut file = File::golden("smgk_m2");
    file.remove("shift");
    file.remove("log_prior");
    file.remove("variance");
    let input = folder.path().join("input.safetensors");
    file.write(&input);
    let draw = |name: &str, mechanism: &str, further: &[&str]| {
        let arguments = ["attend", "--mechanism", mechanism].map(String::from);
        attend(&arguments, &input, folder.path(), name, further).unwrap()
    };
    let first = draw("first", "smgk", &["--seed", "3"]);
    assert!(!first.0.contains_key("grad.shift") && first.0.contains_key("grad.k"), "{:?}", first.names());
    assert_eq!(first.0, draw("again", "mgk", &["--seed", "3", "--set", "keys.design=shifted"]).0);
    assert_ne!(first.0, draw("other", "smgk", &["--seed", "4"]).0);
    assert_ne!(first.0, draw("three", "smgk", &["--seed", "3", "--set", "keys.components=3"]).0);
}

#[test]
fn projections_and_hashes_that_are_not_given_are_drawn_by_seed() {
    let folder = TempDir::new().unwrap();
    for (name, drawn, more) in [
        ("performer_plain", "projection", &["--set", "features.rows_drawn=iid"][..]),
        ("smyrf_3", "directions", &["--set", "support.rounds=1"]),
        ("lsh_1", "rotations", &["--set", "support.hash_values=8"]),
    ] {
        let case = cases().into_iter().find(|case| case.name() == name).unwrap();
        let mut file = File::golden(name);
        file.remove(drawn);
        let input = folder.path().join("input.safetensors");
        file.write(&input);
        let mut arguments = arguments(&case);
        if name == "lsh_1" {
            arguments.retain(|argument| !argument.starts_with("support.hash_values"));
            arguments.retain(|argument| argument != "--set");
            let options = arguments.split_off(3);
            arguments.extend(options.into_iter().flat_map(|option| ["--set".to_owned(), option]));
        }
        let draw = |further: &[&str]| attend(&arguments, &input, folder.path(), "out", further).unwrap();
        let first = draw(&["--seed", "3"]);
        assert!(!first.0.contains_key(&format!("grad.{drawn}")) && first.0.contains_key("grad.q"), "{name}");
        assert_eq!(first.0, draw(&["--seed", "3"]).0, "{name}");
        assert_ne!(first.0, draw(&["--seed", "4"]).0, "{name}");
        assert_ne!(first.0, draw(&[&["--seed", "3"], more].concat()).0, "{name}");
    }
}

#[test]
fn a_layout_may_stand_in_the_options_or_be_of_any_number() {
    let folder = TempDir::new().unwrap();
    let case = cases().into_iter().find(|case| case.name() == "block_sparse").unwrap();
    let file = File::golden("block_sparse");
    let layout = file.tensor("layout").bytes.clone();
    let run = |file: &File, arguments: &[String], name: &str| {
        let input = folder.path().join("input.safetensors");
        file.write(&input);
        attend(arguments, &input, folder.path(), name, &["--reference"]).unwrap().0
    };
    let expected = run(&file, &arguments(&case), "bytes");
    let wide: Vec<f64> = layout.iter().map(|seen| f64::from(*seen)).collect();
    let mut real = file.clone();
    real.put("layout", &[5, 5], &wide);
    assert_eq!(run(&real, &arguments(&case), "real"), expected);
    let mut long = file.clone();
    let bytes = layout.iter().flat_map(|seen| u64::from(*seen).to_le_bytes()).collect();
    long.0.insert("layout".into(), Stored { dtype: Dtype::I64, shape: vec![5, 5], bytes });
    assert_eq!(run(&long, &arguments(&case), "long"), expected);
    // The number of blocks tells how long they are.
    let blocks = ["attend", "--mechanism", "sparse", "--set", "support.kind=block"].map(String::from);
    assert_eq!(run(&file, &blocks, "unsized"), expected);
    let mut bare = file.clone();
    bare.remove("layout");
    let rows: Vec<String> =
        layout.chunks_exact(5).map(|row| row.iter().map(|seen| if *seen == 0 { '0' } else { '1' }).collect()).collect();
    let option = ["--set".to_owned(), format!("support.layout={}", rows.join(","))];
    assert_eq!(run(&bare, &[&arguments(&case)[..], &option].concat(), "option"), expected);
}

#[test]
fn a_budget_sets_sizes_for_the_tokens_of_the_file() {
    let folder = TempDir::new().unwrap();
    let mut file = File::golden("scatterbrain_local_hyperbolic");
    file.remove("projection");
    let input = folder.path().join("input.safetensors");
    file.write(&input);
    let run = |options: &[&str]| {
        let options = options.iter().flat_map(|option| ["--set".to_owned(), (*option).to_owned()]);
        let arguments: Vec<String> =
            ["attend", "--mechanism", "scatterbrain"].map(String::from).into_iter().chain(options).collect();
        attend(&arguments, &input, folder.path(), "out", &["--seed", "1"]).unwrap().0
    };
    // Half of 33 entries: 12.4 for the support, 4.1 for the features.
    assert_eq!(run(&["budget=1/2"]), run(&["support.radius=5", "features.rows=2"]));
    assert_ne!(run(&["budget=1/2"]), run(&["support.radius=4", "features.rows=2"]));
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let folder = TempDir::new().unwrap();
    for name in [
        "softmax_causal_padding",
        "smgk_m3_causal_padding",
        "linear_gqa",
        "fastformer_causal",
        "performer_causal_hyperbolic_padding",
        "scatterbrain_large",
        "lsh_4_causal",
        "moa_k3_causal_padding",
    ] {
        let case = cases().into_iter().find(|case| case.name() == name).unwrap();
        let input = golden::folder().join(&case.file);
        let [one, three] = ["1", "3"]
            .map(|threads| attend(&arguments(&case), &input, folder.path(), name, &["--threads", threads]).unwrap().0);
        assert_eq!(one, three, "{name}");
    }
}

#[test]
fn the_output_may_lie_in_a_new_directory_and_replaces_what_was_there() {
    let folder = TempDir::new().unwrap();
    let input = argument(golden::folder().join("linear_plain.safetensors"));
    let output = argument(folder.path().join("new/deep/out.safetensors"));
    let arguments = ["attend", "--mechanism", "linear", "--input", &input, "--output", &output, "--json"];
    let first = run(arguments).json();
    let size = std::fs::metadata(&output).unwrap().len();
    assert_eq!(first["bytes"], size);
    std::fs::write(&output, "older").unwrap();
    run(arguments).success();
    assert_eq!(std::fs::metadata(&output).unwrap().len(), size);
}

#[test]
fn experts_are_those_of_the_file() {
    let folder = TempDir::new().unwrap();
    let case = cases().into_iter().find(|case| case.name() == "moa_k2").unwrap();
    let input = golden::folder().join(&case.file);
    let run = |input: &Path, options: &[&str]| {
        let options = options.iter().flat_map(|option| ["--set".to_owned(), (*option).to_owned()]);
        let arguments: Vec<String> =
            ["attend", "--mechanism", "moa"].map(String::from).into_iter().chain(options).collect();
        attend(&arguments, input, folder.path(), "out", &[])
    };
    let plain = run(&input, &[]).unwrap();
    assert_eq!(plain.0, run(&input, &["moa.experts=6", "moa.head_width=8", "moa.active=2"]).unwrap().0);
    assert_ne!(plain.0, run(&input, &["moa.active=3"]).unwrap().0);
    let refused = |input: &Path, options: &[&str], code: i32, part: &str| {
        let ended = run(input, options).unwrap_err();
        assert!(ended.code == Some(code) && ended.stderr.contains(part), "{part}: {ended:?}");
    };
    refused(&input, &["moa.experts=7"], 2, "moa.experts is 7, expected 6, as the tensors have them");
    refused(&input, &["moa.head_width=4"], 2, "moa.head_width is 4, expected 8, as the tensors have them");
    refused(&input, &["moa.active=9"], 2, "moa.active is 9");
    let mut file = File::golden("moa_k2");
    file.remove("w_gate");
    let bare = folder.path().join("bare.safetensors");
    file.write(&bare);
    refused(&bare, &[], 3, "tensor 'w_gate' is missing: moa needs it");
    file.put("w_gate", &[3, 6], &[0.0; 18]);
    file.write(&bare);
    refused(&bare, &[], 3, "'w_gate' has shape [3, 6], expected [12, 6]");
}
