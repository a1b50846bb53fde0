//! Forms of a layer that must agree: kernels, composed of tensor operations, on other devices, token by token.

use super::*;

/// Error of one form against another in float32: a few hundred roundings.
const BOUND: f64 = 5e-5;

#[test]
fn kernels_and_composed_forms_agree_for_every_mechanism_in_value_and_gradient() {
    agrees_with_kernels("composed", Device::flex());
}

/// The same on every other device of this machine.
#[cfg(feature = "cube")]
#[test]
fn other_devices_agree_with_the_kernels() {
    for (found, device) in other_devices() {
        agrees_with_kernels(&found.name, device);
    }
}

/// The same by fused kernels, for what they take.
#[cfg(feature = "cube")]
#[test]
fn other_devices_agree_with_the_kernels_by_fused_forms() {
    use crate::ops::{fused_passes, runs_fused};

    let mut report = Report::new();
    for (found, device) in other_devices() {
        let device_name = &found.name;
        each_setting(0.0, |name, setting| {
            let options = &setting.options;
            let fused = runs_fused(options, options.causal, &device);
            if !fused && (setting.padding.is_some() || !runs_fused(options, true, &device)) {
                return;
            }
            let before = fused_passes();
            let seen = setting.run(&device);
            let passes = fused_passes();
            let [forward, backward] = [passes[0] - before[0], passes[1] - before[1]];
            report.require(
                forward == backward && (forward > 0) == fused,
                format!(
                    "{device_name}: {name}, {setting}: {forward} and {backward} passes were fused, expected {fused}"
                ),
            );
            if fused {
                let kernel = setting.run(&Device::flex());
                compare(&mut report, &format!("{device_name}: {name} fused, {setting}"), &kernel, &seen);
            }
        });
    }
    report.finish();
}

#[cfg(feature = "cube")]
fn other_devices() -> Vec<(crate::device::Found, Device)> {
    let others = crate::device::list().into_iter().filter(|found| !found.kernels);
    let others: Vec<_> = others
        .map(|found| {
            let device = crate::device::find(&found.name).expect("a device that was listed");
            (found, device)
        })
        .collect();
    assert!(!others.is_empty(), "no device but the CPU: on a machine without a GPU, a software Vulkan driver serves");
    others
}

/// A layer with a mask.
struct Setting<'a> {
    options: AttentionConfig,
    padding: Option<&'a Arc<Padding>>,
    dropout: f64,
}

impl Setting<'_> {
    fn run(&self, device: &Device) -> BTreeMap<String, Vec<f64>> {
        let device = device.clone().autodiff();
        let model = ModelConfig { attention_dropout: self.dropout, ..model() };
        let attention = layer_on(&device, &model, &self.options);
        run_on(&device, &attention, &attention.mask(self.padding.cloned()), &Context::training(3, 4))
    }
}

impl std::fmt::Display for Setting<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "causal {}, padded {}", self.options.causal, self.padding.is_some())
    }
}

/// Every mechanism, mask and option.
fn each_setting(dropout: f64, mut task: impl FnMut(&str, &Setting)) {
    let padding = Arc::new(Padding::from_lengths(&[LENGTH, 6], LENGTH));
    for (name, options) in variants() {
        for (causal, padding) in [(false, None), (true, None), (false, Some(&padding)), (true, Some(&padding))] {
            let options = AttentionConfig { causal, ..options.clone() };
            task(&name, &Setting { options, padding, dropout });
        }
    }
}

/// Holds the composed forms on `device` against the kernels, for every mechanism, mask and option.
fn agrees_with_kernels(what: &str, device: Device) {
    let mut report = Report::new();
    each_setting(0.2, |name, setting| {
        let kernel = setting.run(&Device::flex());
        let once = || setting.run(&device);
        // At once, and in blocks of a few queries, of which the last is shorter.
        for (form, composed) in [("at once", force_composed(once)), ("in blocks", force_blocks(4, once))] {
            compare(&mut report, &format!("{what}: {name} {form}, {setting}"), &kernel, &composed);
        }
    });
    report.finish();
}

/// Compares what [`run_on`] returns.
fn compare(report: &mut Report, what: &str, kernel: &BTreeMap<String, Vec<f64>>, other: &BTreeMap<String, Vec<f64>>) {
    assert!(kernel.keys().eq(other.keys()));
    for (tensor, seen) in kernel {
        let largest = |tensor: &str| other[tensor].iter().fold(0f64, |most, x| most.max(x.abs()));
        // A key bias that shifts all scores of a query alike has a gradient of 0, a sum of terms that are not.
        let largest = largest(if tensor == "b_k" { "w_k" } else { tensor });
        let apart = seen.iter().zip(&other[tensor]).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0.0, |most, x| if x.is_nan() { f64::INFINITY } else { most.max(x) });
        report.require(
            apart <= BOUND * largest.max(1e-6),
            format!("{what}: {tensor} differs by {apart:.1e} of {largest:.1e}"),
        );
    }
}

#[test]
fn dropout_acts_where_a_mechanism_has_weights() {
    for (name, options) in variants() {
        let outputs = [0.0, 0.5].map(|dropout| {
            let setting = Setting { options: options.clone(), padding: None, dropout };
            setting.run(&Device::flex()).remove("out").unwrap()
        });
        assert_eq!(outputs[0] != outputs[1], options.mechanism.facts().dropout, "{name}");
    }
}

#[test]
fn decoding_token_by_token_gives_the_whole_forward_pass() {
    let mut report = Report::new();
    let device = Device::flex();
    for (name, options) in variants() {
        let options = AttentionConfig { causal: true, ..options };
        let attention = layer(&model(), &options).valid();
        let x = input(3, 2, LENGTH, &device);
        let context = Context::evaluation();
        let whole = attention.forward(x.clone(), x.clone(), &attention.mask(None), &context, Place::Weights);
        use SupportKind::{Bigbird, Lsh, Smyrf};
        let whole_at_once = options.uses_support() && matches!(options.support.kind, Bigbird | Lsh | Smyrf);
        let mut state = match attention.decoder(Storage::F32) {
            Ok(state) => state,
            Err(error) => {
                let error = error.to_string();
                let why = ["depends on all tokens", "drawn among those of the whole sequence"];
                let named = error.contains(&options.label()) && why.iter().any(|why| error.contains(why));
                report.require(whole_at_once && named, format!("{name}: {error}"));
                continue;
            }
        };
        let steps = (0..LENGTH).map(|i| attention.decode(x.clone().narrow(1, i, 1), &mut state)).collect();
        let whole = doubles(whole);
        report.compare(&name, &doubles(Tensor::cat(steps, 1)), &whole, 2e-5);
        report.require(state.bytes() > 0 && state.position() == LENGTH, format!("{name}: state"));
        report.require(!whole_at_once, format!("{name}: a state that cannot know the whole"));
        // A prompt, another chunk, and single tokens.
        let mut chunked = attention.decoder(Storage::F32).unwrap();
        let cuts = [0, 4, 7, 8, LENGTH];
        let chunks = cuts.windows(2).map(|cut| x.clone().narrow(1, cut[0], cut[1] - cut[0]));
        let chunks = chunks.map(|chunk| attention.decode(chunk, &mut chunked)).collect();
        report.compare(format!("{name}, in chunks"), &doubles(Tensor::cat(chunks, 1)), &whole, 2e-5);
        let layout = options.uses_support() && options.support.kind == SupportKind::Block;
        // Four blocks of three.
        report.require(chunked.check(13 - LENGTH).is_err() == layout, format!("{name}: room"));
        report.require(chunked.check(12 - LENGTH).is_ok(), format!("{name}: no room"));
        let open = layer(&model(), &AttentionConfig { causal: false, ..options });
        assert!(open.decoder(Storage::F32).unwrap_err().to_string().contains("causal"), "{name}");
    }
    report.finish();
}

#[test]
fn cross_attention_reads_sequences_of_another_length() {
    let device = Device::flex();
    for (name, options) in variants().into_iter().filter(|(_, options)| reads_second_sequence(options)) {
        let attention = layer(&model(), &options).valid();
        let (x, keys) = (input(4, 2, 5, &device), input(5, 2, LENGTH, &device));
        let padding = Arc::new(Padding::from_lengths(&[LENGTH, 4], LENGTH));
        let mask = Mask { window: options.window, ..Mask::none().with_valid(Some(padding)) };
        let forward = |keys: Tensor<3>| {
            doubles(attention.forward(x.clone(), keys, &mask, &Context::evaluation(), Place::CrossWeights))
        };
        let out = forward(keys.clone());
        assert!(out.len() == 2 * 5 * WIDTH && out.iter().all(|x| x.is_finite()), "{name}");
        // The padded keys of the second row are never read.
        let other = keys.slice_assign([1..2, 4..LENGTH, 0..WIDTH], Tensor::full([1, LENGTH - 4, WIDTH], 7.0, &device));
        assert_eq!(out, forward(other), "{name}");
    }
}
