//! `regard attend` on what it cannot use: one sentence, the right code, nothing left behind.

use std::{fs, path::Path};

use regard_testkit::Random;
use safetensors::Dtype;
use tempfile::TempDir;

use crate::{
    program::{Ended, argument, names, regard, run},
    tensors::{File, Stored},
};

const USAGE: i32 = 2;
const DATA: i32 = 3;
const NUMERIC: i32 = 4;
const BUDGET: i32 = 5;

/// A directory with an input file, made from a golden case.
struct Setting {
    folder: TempDir,
    mechanism: &'static str,
}

impl Setting {
    fn new(mechanism: &'static str, bytes: &[u8]) -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("in.safetensors"), bytes).unwrap();
        Self { folder, mechanism }
    }

    fn attend(&self, further: &[&str]) -> Ended {
        let mut command = regard(["attend", "--mechanism", self.mechanism]);
        command.arg("--input").arg(self.folder.path().join("in.safetensors"));
        command.arg("--output").arg(self.folder.path().join("out.safetensors")).args(further);
        Ended::of(&mut command)
    }

    #[track_caller]
    fn fails(&self, further: &[&str], code: i32, parts: &[&str]) {
        self.attend(further).failure(code, parts);
        assert_eq!(names(self.folder.path()), ["in.safetensors"], "left behind");
    }
}

/// A golden case with a change must fail with code 3 and these parts in the sentence.
#[track_caller]
fn spoiled(mechanism: &'static str, case: &str, change: impl Fn(&mut File), parts: &[&str]) {
    let mut file = File::golden(case);
    change(&mut file);
    Setting::new(mechanism, &file.bytes()).fails(&[], DATA, parts);
}

/// Options on a golden case must fail with code 2 and these parts in the sentence.
#[track_caller]
fn refused(mechanism: &'static str, case: &str, options: &[&str], parts: &[&str]) {
    Setting::new(mechanism, &File::golden(case).bytes()).fails(options, USAGE, parts);
}

#[test]
fn files_that_are_no_whole_safetensors_files() {
    let whole = File::golden("softmax_plain").bytes();
    for length in [0, 1, 7, 8, 9, 100, whole.len() / 2, whole.len() - 1] {
        Setting::new("softmax", &whole[..length]).fails(&[], DATA, &["in.safetensors", "not a whole safetensors file"]);
    }
    let longer = [&whole[..], b"more"].concat();
    for bytes in [&longer[..], b"PK\x03\x04 an archive of something else", &[0xff; 64], &[0; 64]] {
        Setting::new("softmax", bytes).fails(&[], DATA, &["in.safetensors", "not a whole safetensors file"]);
    }
    // The header names q twice, the second time for the bytes of k.
    let at = whole.windows(4).position(|bytes| bytes == br#""k":"#).expect("k in the header");
    let mut twice = whole.clone();
    twice[at + 1] = b'q';
    let parts = ["in.safetensors", "duplicate tensor name 'q'", "expected each once"];
    Setting::new("softmax", &twice).fails(&[], DATA, &parts);
    // The header of an empty file is sound: the tensors are missing.
    Setting::new("softmax", &File::default().bytes()).fails(&[], DATA, &["tensor 'q' is missing", "softmax needs it"]);
}

#[test]
fn damaged_bytes_are_an_error_or_other_numbers_but_never_a_panic() {
    let whole = File::golden("mgk_m2").bytes();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let mut random = Random::new(5);
    for trial in 0..60 {
        let mut bytes = whole.clone();
        for _ in 0..=random.below(3) {
            // Most of the damage to the header, where there is more to misread.
            let end = if trial % 4 == 0 { bytes.len() } else { header };
            bytes[random.below(end)] = random.bits() as u8;
        }
        let setting = Setting::new("mgk", &bytes);
        let ended = setting.attend(&[]);
        match ended.code {
            Some(0) => assert!(ended.stderr.is_empty(), "{ended:?}"),
            Some(code) => {
                let problem = ended.failure_problem(if code == USAGE { USAGE } else { DATA }, &[]);
                assert_eq!(problem, None, "trial {trial}");
                assert_eq!(names(setting.folder.path()), ["in.safetensors"], "trial {trial}");
            }
            None => panic!("trial {trial}: {ended:?}"),
        }
    }
}

#[test]
fn missing_tensors() {
    for name in ["q", "k", "v"] {
        let parts = [&*format!("tensor '{name}' is missing"), "softmax needs it"];
        spoiled("softmax", "softmax_plain", |file| file.remove(name), &parts);
    }
    for name in ["w_q", "w_k", "w_t"] {
        let parts = [&*format!("tensor '{name}' is missing"), "fastformer needs it"];
        spoiled("fastformer", "fastformer_paper", |file| file.remove(name), &parts);
    }
}

#[test]
fn tensors_of_the_wrong_shape() {
    let reshape = |name: &'static str, shape: &'static [usize]| {
        move |file: &mut File| file.0.get_mut(name).unwrap().shape = shape.to_vec()
    };
    // The same number of elements on other axes: q is [2, 3, 17, 8], k [2, 3, 23, 8], v [2, 3, 23, 5].
    spoiled("softmax", "softmax_plain", reshape("q", &[6, 17, 8]), &["tensor 'q' has shape [6, 17, 8]", "4 axes"]);
    spoiled("softmax", "softmax_plain", reshape("q", &[816]), &["tensor 'q' has shape [816]", "4 axes"]);
    spoiled("softmax", "softmax_plain", reshape("k", &[6, 23, 8]), &["tensor 'k' has shape [6, 23, 8]"]);
    spoiled("softmax", "softmax_plain", reshape("v", &[2, 3, 5, 23]), &["tensor 'v' has shape [2, 3, 5, 23]"]);
    spoiled("softmax", "softmax_plain", reshape("k", &[2, 3, 46, 4]), &["tensor 'k' has shape [2, 3, 46, 4]"]);
    spoiled("softmax", "softmax_plain", reshape("q", &[3, 2, 17, 8]), &["has shape [", "3, 2"]);
    spoiled(
        "softmax",
        "softmax_plain",
        reshape("grad_out", &[2, 3, 5, 17]),
        &["'grad_out' has shape [2, 3, 5, 17]", "[2, 3, 17, 5]"],
    );
    spoiled("softmax", "softmax_bias", reshape("bias", &[2, 13, 9]), &["tensor 'bias' has shape [2, 13, 9]"]);
    spoiled("mgk", "mgk_m2", reshape("log_prior", &[2, 3]), &["tensor 'log_prior' has shape [2, 3]"]);
    spoiled("mgk", "mgk_m2", |file| file.put("variance", &[3], &[1.0; 3]), &["tensor 'variance' has shape [3]"]);
    spoiled(
        "mgk",
        "smgk_m2",
        |file| file.put("shift", &[2, 2, 4], &[0.0; 16]),
        &["tensor 'shift' has shape [2, 2, 4]"],
    );
    spoiled("fastformer", "fastformer_paper", reshape("w_t", &[12, 48]), &["tensor 'w_t' has shape [12, 48]"]);
    let plain_keys = |file: &mut File| {
        let k = file.tensor("k").shape.clone();
        file.0.get_mut("k").unwrap().shape = vec![k[0], k[1], k[2] * k[3], k[4]];
    };
    spoiled("mgk", "mgk_m2", plain_keys, &["tensor 'k' has shape [2, 3, 46, 8]", "[B,Hk,M,S,D]", "shift"]);
    let cross = |file: &mut File| {
        for name in ["k", "v"] {
            let data = file.real(name);
            file.put(name, &[2, 3, 10, 8], &data[..480]);
        }
    };
    spoiled("fastformer", "fastformer_paper", cross, &["tensor 'k' has shape [2, 3, 10, 8]"]);
}

#[test]
fn tensors_without_elements() {
    for (mechanism, case) in [("softmax", "softmax_square"), ("linear", "softmax_square"), ("mgk", "mgk_m2")] {
        for name in ["q", "k", "v"] {
            for axis in 0..4 {
                let empty = |file: &mut File| {
                    let mut shape = file.tensor(name).shape.clone();
                    shape[axis] = 0;
                    file.put(name, &shape, &[]);
                };
                spoiled(mechanism, case, empty, &[&format!("tensor '{name}' has shape ["), "every size at least 1"]);
            }
        }
    }
}

#[test]
fn numbers_that_are_not_finite_or_not_possible() {
    let at = |name: &'static str, at: usize, value: f64| move |file: &mut File| file.spoil(name, at, value);
    // Element 3 * 17 * 8 + 17 * 8 + 2 * 8 + 5 of q [2, 3, 17, 8].
    spoiled("softmax", "softmax_plain", at("q", 565, f64::NAN), &["tensor 'q' holds NaN at [1, 1, 2, 5]"]);
    spoiled("softmax", "softmax_plain", at("k", 0, f64::INFINITY), &["tensor 'k' holds inf at [0, 0, 0, 0]"]);
    spoiled("softmax", "softmax_plain", at("v", 1, f64::NEG_INFINITY), &["tensor 'v' holds -inf at [0, 0, 0, 1]"]);
    spoiled("softmax", "softmax_plain", at("grad_out", 4, f64::NAN), &["tensor 'grad_out' holds NaN at [0, 0, 0, 4]"]);
    spoiled("softmax", "softmax_bias", at("bias", 13, f64::NAN), &["tensor 'bias' holds NaN at [0, 1, 0]"]);
    spoiled("mgk", "mgk_m2", at("log_prior", 5, f64::NAN), &["tensor 'log_prior' holds NaN at [2, 1]"]);
    spoiled("mgk", "mgk_m2", at("variance", 1, 0.0), &["tensor 'variance' holds 0 at [1]", "positive"]);
    spoiled("mgk", "mgk_m2", at("variance", 0, -2.0), &["tensor 'variance' holds -2 at [0]", "positive"]);
    spoiled("mlk", "mlk_m2", at("k", 0, f64::NAN), &["tensor 'k' holds NaN at [0, 0, 0, 0, 0]"]);
    spoiled("fastformer", "fastformer_paper", at("w_t", 25, f64::NAN), &["tensor 'w_t' holds NaN at [1, 1]"]);
    let mut prior = File::golden("mgk_soft_em");
    prior.spoil("prior", 2, -0.5);
    let soft_em = ["--set", "mixture.inference=soft-em"];
    Setting::new("mgk", &prior.bytes()).fails(
        &soft_em,
        DATA,
        &["tensor 'prior' holds -0.5 at [0, 0, 2]", "probabilities"],
    );
    // 1e300 is finite in the file and not in the kernel's float32.
    spoiled("softmax", "softmax_plain", at("v", 0, 1e300), &["tensor 'v' holds 1e300 at [0, 0, 0, 0]", "--reference"]);
    spoiled("mgk", "mgk_m2", at("variance", 1, 1e-300), &["tensor 'variance' holds 1e-300 at [1]", "--reference"]);
}

#[test]
fn results_that_are_no_numbers() {
    // Each number fits float32, and a product of two does not.
    let large = |name: &'static str, file: &mut File| {
        let shape = file.tensor(name).shape.clone();
        file.put(name, &shape, &vec![1e30; shape.iter().product()]);
    };
    let mut file = File::golden("softmax_plain");
    ["q", "k"].into_iter().for_each(|name| large(name, &mut file));
    let parts = ["result '", "numbers as large as 1e30 in '", "overflow", "--reference"];
    let setting = Setting::new("softmax", &file.bytes());
    setting.fails(&[], NUMERIC, &parts);
    setting.attend(&["--reference"]).success();
    // A row without keys has no sum, and is no failure.
    Setting::new("softmax", &File::golden("softmax_causal_tall").bytes()).attend(&[]).success();
}

#[test]
fn elements_of_the_wrong_type() {
    let integers = |name: &'static str| {
        move |file: &mut File| {
            let shape = file.tensor(name).shape.clone();
            let bytes = vec![0; 8 * shape.iter().product::<usize>()];
            file.0.insert(name.into(), Stored { dtype: Dtype::I64, shape, bytes });
        }
    };
    for name in ["q", "k", "v", "grad_out"] {
        let parts = [&*format!("tensor '{name}' holds I64 numbers"), "F32 or F64"];
        spoiled("softmax", "softmax_plain", integers(name), &parts);
    }
    spoiled("softmax", "softmax_bias", integers("bias"), &["tensor 'bias' holds I64 numbers", "F32 or F64"]);
    spoiled("mgk", "mgk_m2", integers("log_prior"), &["tensor 'log_prior' holds I64 numbers", "F32 or F64"]);
    let mask = |file: &mut File| file.put("valid", &[3, 13], &[1.0; 39]);
    spoiled("softmax", "softmax_padding", mask, &["tensor 'valid' holds F64 numbers", "U8"]);
    let two = |file: &mut File| file.0.get_mut("valid").expect("its padding").bytes[14] = 2;
    spoiled("softmax", "softmax_padding", two, &["tensor 'valid' holds 2 at [1, 1]", "1 for a real token or 0"]);
}

#[test]
fn padding_of_the_wrong_size() {
    let padding = |name: &'static str, shape: &'static [usize]| {
        move |file: &mut File| {
            let bytes = vec![1; shape.iter().product()];
            file.0.insert(name.into(), Stored { dtype: Dtype::U8, shape: shape.to_vec(), bytes });
        }
    };
    for mechanism in ["softmax", "linear"] {
        spoiled(mechanism, "softmax_padding", padding("valid", &[3, 12]), &["'valid' has shape [3, 12]", "[3, 13]"]);
        spoiled(mechanism, "softmax_padding", padding("valid", &[2, 13]), &["'valid' has shape [2, 13]", "[3, 13]"]);
        spoiled(mechanism, "softmax_padding", padding("valid", &[39]), &["'valid' has shape [39]", "2 axes"]);
    }
    spoiled("mgk", "mgk_padding", padding("valid", &[3, 14]), &["'valid' has shape [3, 14]", "[3, 13]"]);
    spoiled("fastformer", "fastformer_paper", padding("valid", &[2, 12]), &["'valid' has shape [2, 12]", "[2, 11]"]);
    spoiled(
        "softmax",
        "softmax_padding",
        padding("query_valid", &[3, 8]),
        &["'query_valid' has shape [3, 8]", "[3, 9]"],
    );
}

#[test]
fn options_that_do_not_exist_or_do_not_fit() {
    let plain = "softmax_plain";
    refused("sofmax", plain, &[], &["--mechanism is 'sofmax'", "did you mean 'softmax'?"]);
    refused("mkg", plain, &[], &["--mechanism is 'mkg'", "did you mean 'mgk'?"]);
    refused("softmax", plain, &["--set", "keys.component=3"], &["unknown key 'keys.component'", "'keys.components'"]);
    refused("softmax", plain, &["--set", "keys=3"], &["keys is a table"]);
    refused("softmax", plain, &["--set", "causal"], &["--set 'causal' has no '='"]);
    refused("softmax", plain, &["--set", "causal=perhaps"], &["--set: causal: ", "perhaps"]);
    refused("softmax", plain, &["--set", "window=-1"], &["--set: window: ", "-1"]);
    refused("mgk", "mgk_m2", &["--set", "mixture.inference=sfot"], &["mixture.inference", "sfot", "soft-em"]);
    refused("mgk", "mgk_m2", &["--set", "keys.components=3"], &["keys.components is 3", "expected 2"]);
    refused("mgk", "smgk_m2", &["--set", "keys.components=0"], &["keys.components is 0"]);
    refused("mgk", "mgk_m2", &["--scale", "0.5"], &["scale is given to mgk", "softmax"]);
    let both = ["--set", "mixture.inference=hard", "--set", "mixture.score=dot"];
    refused("mgk", "mgk_m2", &both, &["mixture.score is 'dot' with hard inference"]);
    refused("softmax", plain, &["--set", "heads=2"], &["heads is 2", "expected 3"]);
    refused("softmax", "softmax_gqa_causal", &["--set", "key_value_heads=3"], &["key_value_heads is 3", "expected 2"]);
    refused("linear", "linear_plain", &["--set", "window=4"], &["window is set with linear", "softmax"]);
    refused("fastformer", "fastformer_paper", &["--set", "window=4"], &["window is set with fastformer", "softmax"]);
    for interaction in ["sum", "concatenation"] {
        let (option, seen) =
            (format!("fastformer.interaction={interaction}"), format!("fastformer.interaction is '{interaction}'"));
        refused("fastformer", "fastformer_paper", &["--set", &option], &[&seen, "'product' here", "without a kernel"]);
        let causal = ["--causal", "--set", &option];
        refused("fastformer", "fastformer_paper", &causal, &[&seen, "with causal attention", "'product'"]);
    }
    refused("softmax", plain, &["--threads", "-1"], &["--threads is -1, expected 1 to 1024"]);
    refused("softmax", plain, &["--scale", "-1"], &["scale is -1, expected a positive number"]);
    refused("softmax", plain, &["--scale", "nan"], &["--scale is NaN", "finite"]);
    refused("softmax", plain, &["--threads", "0"], &["--threads is 0"]);
    // Not passed over: without its bias the file means something else.
    refused("gaussian", "softmax_bias", &[], &["bias is given to gaussian", "softmax"]);
    // What belongs to a model and not to a mechanism.
    refused("softmax", plain, &["--set", "model.width=3"], &["model.width", "no option of a mechanism"]);

    let mut shiftless = File::golden("smgk_m2");
    shiftless.remove("shift");
    let two = ["keys.components is 3", "expected 2"];
    Setting::new("smgk", &shiftless.bytes()).fails(&["--set", "keys.components=3"], USAGE, &two);
    shiftless.remove("log_prior");
    shiftless.remove("variance");
    for (components, parts) in [
        ("0", ["keys.components is 0", "at least 1"]),
        ("99999999999999", ["--set: keys.components: is", "at most 1024"]),
    ] {
        let option = format!("keys.components={components}");
        Setting::new("smgk", &shiftless.bytes()).fails(&["--set", &option], USAGE, &parts);
    }
}

#[test]
fn tensors_of_supports_and_features_that_do_not_fit() {
    let reshape = |name: &'static str, shape: &'static [usize]| {
        move |file: &mut File| file.0.get_mut(name).unwrap().shape = shape.to_vec()
    };
    spoiled(
        "performer",
        "performer_plain",
        reshape("projection", &[88]),
        &["'projection' has shape [88]", "[rows, 8]"],
    );
    let wide = reshape("projection", &[8, 11]);
    spoiled("scatterbrain", "scatterbrain_empty", wide, &["'projection' has shape [8, 11]", "[rows, 8]"]);
    spoiled(
        "performer",
        "performer_plain",
        |file| file.spoil("projection", 9, f64::NAN),
        &["'projection' holds NaN at [1, 1]"],
    );
    let fails =
        |mechanism: &'static str, case: &str, change: &dyn Fn(&mut File), options: &[&str], code, parts: &[&str]| {
            let mut file = File::golden(case);
            change(&mut file);
            let options: Vec<&str> = options.iter().flat_map(|option| ["--set", option]).collect();
            Setting::new(mechanism, &file.bytes()).fails(&options, code, parts);
        };
    let same = |_: &mut File| {};
    fails("performer", "performer_plain", &same, &["features.rows=12"], USAGE, &["features.rows is 12, expected 11"]);
    fails("performer", "performer_plain", &same, &["features.rows=0"], USAGE, &["features.rows is 0, expected 11"]);
    fails("performer", "performer_plain", &same, &["features.kind=elu"], USAGE, &["'elu' with performer", "'linear'"]);
    fails(
        "performer",
        "performer_plain",
        &same,
        &["features.rows=99999999999"],
        USAGE,
        &["features.rows", "at most 65536"],
    );

    let smyrf = &["support.kind=smyrf", "support.cluster=8"];
    let wide = reshape("directions", &[2, 5]);
    fails("sparse", "smyrf_1", &wide, smyrf, DATA, &["'directions' has shape [2, 5]", "[2, 10]"]);
    let rounds = &["support.kind=smyrf", "support.rounds=2"];
    fails("sparse", "smyrf_1", &same, rounds, USAGE, &["support.rounds is 2, expected 1"]);
    fails("sparse", "smyrf_1", &same, &["support.kind=smyrf", "support.cluster=0"], USAGE, &["support.cluster is 0"]);
    fails("sparse", "smyrf_1", &same, &["support.kind=smyfr"], USAGE, &["support.kind", "did you mean 'smyrf'?"]);

    let lsh = &["support.kind=lsh", "support.bucket=11"];
    let shorter = |file: &mut File| {
        let data = file.real("v");
        file.put("v", &[1, 2, 30, 5], &data[..300]);
    };
    fails("sparse", "lsh_1", &shorter, lsh, DATA, &["'v' has shape [1, 2, 30, 5]", "33 tokens, as q", "lsh"]);
    let fewer = |file: &mut File| {
        let data = file.real("v");
        file.put("v", &[1, 1, 33, 5], &data[..165]);
    };
    fails("sparse", "lsh_1", &fewer, lsh, USAGE, &["key_value_heads is 1", "as many as heads"]);
    let odd = reshape("rotations", &[2, 4, 2]);
    fails("sparse", "lsh_1", &odd, lsh, DATA, &["'rotations' has shape [2, 4, 2]", "[2, 8,"]);
    let values = &["support.kind=lsh", "support.hash_values=6"];
    fails("sparse", "lsh_1", &same, values, USAGE, &["support.hash_values is 6, expected 4"]);
    let bare = |file: &mut File| file.remove("rotations");
    fails(
        "sparse",
        "lsh_1",
        &bare,
        &["support.kind=lsh", "support.hash_values=5"],
        USAGE,
        &["support.hash_values is 5", "even"],
    );
    let missing = |file: &mut File| file.remove("v");
    fails("sparse", "lsh_1", &missing, lsh, DATA, &["tensor 'v' is missing"]);

    let block = &["support.kind=block", "support.block=5"];
    let flat = reshape("layout", &[25]);
    fails("sparse", "block_sparse", &flat, block, DATA, &["'layout' has shape [25]", "2 axes"]);
    let few = |file: &mut File| {
        file.put("layout", &[4, 4], &[1.0; 16]);
    };
    fails("sparse", "block_sparse", &few, block, DATA, &["'layout' has shape [4, 4]", "[5, 5]"]);
    let twice = &["support.kind=block", "support.layout=11,11"];
    fails("sparse", "block_sparse", &same, twice, USAGE, &["support.layout is given", "the tensor 'layout'"]);
    let bare = |file: &mut File| file.remove("layout");
    fails("sparse", "block_sparse", &bare, block, USAGE, &["support.layout is missing", "'block'"]);
    let ragged = &["support.kind=block", "support.layout=11,1"];
    fails("sparse", "block_sparse", &bare, ragged, USAGE, &["support.layout", "equal length"]);
}

#[test]
fn combinations_and_budgets_that_cannot_be() {
    let case = "scatterbrain_local_plain";
    let set = |options: &[&'static str]| options.iter().flat_map(|option| ["--set", option]).collect::<Vec<_>>();
    refused(
        "scatterbrain",
        case,
        &set(&["scatterbrain.combination=gated"]),
        &["scatterbrain.combination is 'gated'", "layer"],
    );
    refused("scatterbrain", case, &set(&["scatterbrain.sparse_share=1.5"]), &["scatterbrain.sparse_share is 1.5"]);
    refused("scatterbrain", case, &set(&["window=3"]), &["window is set with scatterbrain"]);
    refused("scatterbrain", case, &["--scale=-1"], &["scale is -1", "positive"]);
    refused("sparse", case, &set(&["budget=0"]), &["budget is 0", "above 0"]);
    refused("sparse", case, &set(&["budget=1/0"]), &["budget is '1/0'"]);
    // The file has 11 rows; half of 23 entries leaves features for one.
    let rows = ["features.rows is 1, expected 11"];
    refused("scatterbrain", case, &set(&["budget=1/2", "features.kind=hyperbolic"]), &rows);
    let elu = set(&["budget=1/2", "features.kind=elu"]);
    refused("scatterbrain", case, &elu, &["budget is set with elu features", "hyperbolic"]);
    let small = set(&["budget=0.05"]);
    Setting::new("scatterbrain", &File::golden(case).bytes()).fails(
        &small,
        BUDGET,
        &["budget is 0.05", "at least 0.05798"],
    );
}

#[test]
fn heads_that_cannot_share_keys() {
    let two_of_three = |file: &mut File| {
        for (name, width) in [("k", 8), ("v", 5)] {
            let data = file.real(name);
            file.put(name, &[2, 2, 23, width], &data[..2 * 2 * 23 * width]);
        }
    };
    let parts = ["tensor 'k' has shape [2, 2, 23, 8]", "divides that of q, 3"];
    spoiled("softmax", "softmax_plain", two_of_three, &parts);
}

/// Fails to write to `output`, and leaves `folder` as it is.
#[track_caller]
fn cannot_write(folder: &Path, output: &Path) {
    let before = names(folder);
    let input = argument(folder.join("in.safetensors"));
    let output = argument(output);
    let ended = run(["attend", "--mechanism", "softmax", "--input", &input, "--output", &output]);
    assert_eq!(ended.stderr.matches("cannot write").count(), 1, "{ended:?}");
    ended.failure(DATA, &["cannot write", &output, "choose another path"]);
    assert_eq!(names(folder), before);
}

#[test]
fn outputs_that_cannot_be_written() {
    let setting = Setting::new("softmax", &File::golden("softmax_plain").bytes());
    let folder = setting.folder.path();
    fs::write(folder.join("file"), "in the way").unwrap();
    cannot_write(folder, &folder.join("file/out.safetensors"));
    cannot_write(folder, &folder.join("file/deep/out.safetensors"));
    fs::create_dir_all(folder.join("full/of/things")).unwrap();
    cannot_write(folder, &folder.join("full"));
    assert_eq!(fs::read_to_string(folder.join("file")).unwrap(), "in the way");
    if cfg!(target_os = "linux") {
        cannot_write(folder, Path::new("/proc/regard/out.safetensors"));
    }
}

#[test]
fn a_failure_leaves_an_older_output_alone() {
    let mut file = File::golden("softmax_plain");
    file.spoil("q", 0, f64::NAN);
    let setting = Setting::new("softmax", &file.bytes());
    let output = setting.folder.path().join("out.safetensors");
    fs::write(&output, "older").unwrap();
    setting.attend(&[]).failure(DATA, &["tensor 'q' holds NaN"]);
    assert_eq!(fs::read_to_string(&output).unwrap(), "older");
}

#[test]
fn inputs_that_cannot_be_read() {
    let folder = TempDir::new().unwrap();
    let output = argument(folder.path().join("out.safetensors"));
    for input in [folder.path().join("absent.safetensors"), folder.path().to_owned()] {
        let input = argument(input);
        let ended = run(["attend", "--mechanism", "softmax", "--input", &input, "--output", &output]);
        ended.failure(DATA, &["cannot read", &input, "check the path"]);
        assert!(names(folder.path()).is_empty());
    }
}

#[test]
fn arguments_that_are_missing() {
    run(["attend"]).usage_failure(&["--mechanism", "--input", "--output"]);
    run(["attend", "--mechanism", "softmax", "--scale", "much"]).usage_failure(&["--scale", "much"]);
    run(["attend", "--mechanism", "softmax", "--ranks", "0"]).usage_failure(&["--ranks", "0"]);
}
