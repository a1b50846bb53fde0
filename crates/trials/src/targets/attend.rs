//! `regard attend` in process: a line with mechanism and options, then a safetensors file. Samples are the golden cases.

use std::collections::BTreeMap;

use rand::{Rng, seq::IndexedRandom};
use regard_lab::attend::{Ranks, Request, attend};
use regard_tasks::run::Layers;
use regard_testkit::{Case, cases, golden};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use super::Target;
use crate::mutate::Stream;

/// Options that any mechanism may be given.
const OPTIONS: [&str; 42] = [
    "causal",
    "window=0",
    "window=1",
    "window=9223372036854775807",
    "heads=1",
    "heads=3",
    "key_value_heads=1",
    "reference",
    "keys.design=shifted",
    "keys.design=projected",
    "keys.components=1",
    "keys.components=1024",
    "mixture.inference=hard",
    "mixture.inference=soft-em",
    "mixture.score=dot",
    "mixture.prior=per-position",
    "mixture.variances=paper-1-3",
    "mixture.variances=[1e-300,1e300]",
    "mixture.variances=[-1.0]",
    "features.kind=plain",
    "features.kind=elu",
    "features.rows=1",
    "features.rows=4096",
    "features.rows_drawn=iid",
    "support.kind=local",
    "support.kind=longformer",
    "support.kind=bigbird",
    "support.kind=block",
    "support.kind=smyrf",
    "support.kind=lsh",
    "support.kind=full",
    "support.kind=empty",
    "support.radius=0",
    "support.radius=9223372036854775807",
    "support.globals=9223372036854775807",
    "support.block=9223372036854775807",
    "support.cluster=1",
    "support.bucket=9223372036854775807",
    "support.hash_values=65536",
    "budget=1/1000000",
    "budget=1",
    "scale=1e300",
];

/// A tensor in the making.
#[derive(Clone)]
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

type Stack = BTreeMap<String, Stored>;

/// The line of a case.
fn line(case: &Case) -> String {
    let mut words = vec![case.mechanism.clone()];
    let options = case.options.as_object().expect("options");
    for (option, value) in options {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let key = match option.as_str() {
            "inference" | "score" | "prior" if value != "none" => format!("mixture.{option}"),
            "variances" if value != "list" => "mixture.variances".into(),
            "keys" => "keys.design".into(),
            "scores" | "sharing" => format!("fastformer.{option}"),
            "features" => "features.kind".into(),
            "support" => "support.kind".into(),
            "active" | "gates" => format!("moa.{option}"),
            "radius" | "globals" | "block" | "cluster" | "bucket" | "hash_values" | "cyclic" => {
                format!("support.{option}")
            }
            "causal" if value == "true" => "causal".into(),
            "scale" if options["scale"].is_number() => "scale".into(),
            _ => continue,
        };
        words.push(if key == "causal" { key } else { format!("{key}={value}") });
    }
    words.join(" ")
}

/// The inputs of a case.
fn inputs(case: &Case) -> Stack {
    let bytes = std::fs::read(golden::folder().join(&case.file)).expect("golden data");
    let file = SafeTensors::deserialize(&bytes).expect("golden data");
    let results = ["out", "lse", "prior_after", "balance_loss", "z_loss", "chosen", "out_after", "support"];
    let input = |name: &str| !results.contains(&name) && !name.contains('.') && !name.ends_with("_cluster");
    let stored =
        |view: TensorView| Stored { dtype: view.dtype(), shape: view.shape().to_vec(), data: view.data().to_vec() };
    file.iter().filter(|(name, _)| input(name)).map(|(name, view)| (name.to_owned(), stored(view))).collect()
}

fn encode(line: &str, tensors: &Stack) -> Vec<u8> {
    let view = |stored: &Stored| TensorView::new(stored.dtype, stored.shape.clone(), &stored.data.clone()).is_ok();
    let whole = tensors.iter().filter(|(_, stored)| view(stored));
    let views = whole.map(|(name, stored)| {
        (name.clone(), TensorView::new(stored.dtype, stored.shape.clone(), &stored.data).expect("just made"))
    });
    let file = safetensors::serialize(views.collect::<Vec<_>>(), None).expect("views are whole");
    [line.as_bytes(), b"\n", &file].concat()
}

/// Gives a tensor another shape, its data repeated or cut.
fn reshape(stored: &mut Stored, shape: Vec<usize>) {
    let width = stored.dtype.bitsize() / 8;
    let bytes = shape.iter().product::<usize>() * width;
    let source = if stored.data.is_empty() { vec![0; width] } else { std::mem::take(&mut stored.data) };
    stored.data = source.iter().copied().cycle().take(bytes).collect();
    stored.shape = shape;
}

fn size(stream: &mut Stream) -> usize {
    *[0, 1, 1, 2, 2, 3, 4, 5, 8, 17, 33].choose(stream).expect("some")
}

/// Changes tensors as a whole, so that most files get beyond the reader.
fn change(stream: &mut Stream, tensors: &mut Stack) {
    let names: Vec<String> = tensors.keys().cloned().collect();
    let Some(name) = names.choose(stream).cloned() else { return };
    let kind = stream.random_range(0..9);
    let stored = tensors.get_mut(&name).expect("its own name");
    let mut shape = stored.shape.clone();
    match kind {
        // The same size everywhere where it was the same.
        0..=2 => {
            let Some(&old) = shape.choose(stream) else { return };
            let new = size(stream);
            for stored in tensors.values_mut() {
                let shape: Vec<usize> = stored.shape.iter().map(|&size| if size == old { new } else { size }).collect();
                if shape.iter().product::<usize>() <= 1 << 16 {
                    reshape(stored, shape);
                }
            }
        }
        3 => {
            let axis = stream.random_range(0..=shape.len());
            match shape.get_mut(axis) {
                Some(old) => *old = size(stream),
                None => shape.push(1),
            }
            if shape.iter().product::<usize>() <= 1 << 16 {
                reshape(stored, shape);
            }
        }
        4 => drop(tensors.remove(&name)),
        5 => {
            stored.dtype =
                *[Dtype::F32, Dtype::F64, Dtype::U8, Dtype::BOOL, Dtype::I64, Dtype::F16].choose(stream).expect("some");
            reshape(stored, shape);
        }
        6 => {
            let copy = stored.clone();
            let other = [
                "q",
                "k",
                "v",
                "bias",
                "valid",
                "query_valid",
                "layout",
                "x_kv",
                "grad_out",
                "variance",
                "log_prior",
                "shift",
            ];
            tensors.insert((*other.choose(stream).expect("some")).into(), copy);
        }
        // Numbers at the ends of their range.
        _ => {
            let value = *[0.0, -0.0, 1e38, -3e38, 1e-45, 1e-300, 1e300, f64::NAN, f64::INFINITY, 88.8, -1e4]
                .choose(stream)
                .expect("some");
            let bytes = match stored.dtype {
                Dtype::F64 => f64::to_le_bytes(value).to_vec(),
                _ => f32::to_le_bytes(value as f32).to_vec(),
            };
            let all = stream.random_bool(0.2);
            let places = stored.data.len() / bytes.len();
            for place in 0..places {
                if all || stream.random_bool(1.0 / places as f64) {
                    stored.data[place * bytes.len()..][..bytes.len()].copy_from_slice(&bytes);
                }
            }
        }
    }
}

/// Whole files of tensors.
pub fn target() -> Target {
    let cases: Vec<(String, Stack)> = cases()
        .iter()
        .filter(|case| case.mechanism.parse::<regard_kernels::Mechanism>().is_ok())
        .map(|case| (line(case), inputs(case)))
        .filter(|(_, tensors)| tensors.values().map(|stored| stored.data.len()).sum::<usize>() < 1 << 15)
        .collect();
    let samples = cases.iter().map(|(line, tensors)| encode(line, tensors)).collect();
    let words = ["F32", "F64", "BF16", "shape", "data_offsets", "[", "]", ",", "9999999999", "q", "\"dtype\""];
    let make = move |stream: &mut Stream| {
        let (line, mut tensors) = cases.choose(stream).expect("cases").clone();
        let mut words: Vec<&str> = line.split(' ').collect();
        if stream.random_bool(0.1) {
            words[0] = regard_kernels::Mechanism::ALL.choose(stream).expect("some").name();
        }
        for _ in 0..*[0, 0, 0, 1, 1, 2].choose(stream).expect("some") {
            words.push(OPTIONS.choose(stream).expect("some"));
        }
        for _ in 0..stream.random_range(0..4) {
            change(stream, &mut tensors);
        }
        encode(&words.join(" "), &tensors)
    };
    Target::new("attend", samples, &words, call).making(make)
}

fn call(input: &[u8]) -> bool {
    let Some(end) = input.iter().position(|byte| *byte == b'\n') else { return false };
    let head = String::from_utf8_lossy(&input[..end]);
    let mut words = head.split(' ');
    let (mut layers, mut scale, mut reference) = (Layers::new(), None, false);
    let read = || {
        layers.set_named("mechanism", words.next().unwrap_or_default(), "--mechanism").ok()?;
        for word in words {
            match (word, word.strip_prefix("scale=")) {
                ("reference", _) => reference = true,
                ("causal", _) => layers.set("causal", "true", "--causal").ok()?,
                (_, Some(number)) => scale = Some(number.parse().ok().filter(|scale: &f64| scale.is_finite())?),
                _ => layers.assign(word, "--set").ok()?,
            }
        }
        layers.resolve().ok()
    };
    let Some(config) = read() else { return false };
    let chosen = |key: &str| layers.is_set(key);
    let request = Request { options: config.attention, chosen: &chosen, scale, reference, seed: 0, ranks: Ranks::One };
    match attend(&input[end + 1..], &request) {
        Ok(output) => SafeTensors::deserialize(&output).is_ok(),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}
