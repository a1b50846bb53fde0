//! From a golden case to the operator it describes.

use std::sync::Arc;

use super::{Array, Subject};
use regard_kernels::{
    AttentionOptions, Call, GaussianMixture, Layout, Mask, Padding, Scatterbrain, mechanism::Inference,
};
use regard_testkit::{Case, Tensors};
use serde_json::{Map, Value, json};

/// Tensor `name` of a case, head first as all golden data are.
pub fn array(tensors: &Tensors, name: &str) -> Array {
    let tensor = tensors.tensor(name);
    Array::new(&tensor.shape, tensor.f64().to_vec())
}

/// The options of a case, named as in configurations.
pub fn options(case: &Case, tensors: &Tensors) -> AttentionOptions {
    let given = &case.options;
    if case.mechanism == "moa" {
        let moa: Map<String, Value> = ["experts", "active", "head_width", "gates"]
            .iter()
            .map(|key| (key.to_string(), given[key].clone()))
            .collect();
        let named = json!({ "mechanism": "moa", "causal": given["causal"], "moa": moa });
        return serde_json::from_value(named).unwrap_or_else(|e| panic!("{}: {e}", case.file));
    }
    // With LSH the queries are the keys.
    let (q, k) = (&tensors.tensor("q").shape, &tensors.get("k").unwrap_or(tensors.tensor("q")).shape);
    let copy = |names: &[&str]| -> Map<String, Value> {
        names.iter().filter_map(|&name| given.get(name).map(|value| (name.to_string(), value.clone()))).collect()
    };
    let mut mixture = copy(&["inference", "score", "variances", "prior"]);
    if mixture.get("variances") == Some(&json!("list")) {
        mixture.insert("variances".into(), json!(tensors.tensor("variance").f64()));
    }
    if mixture.get("prior") == Some(&json!("none")) {
        mixture.remove("prior");
    }
    let mut keys = Map::new();
    if let Some(design) = given.get("keys") {
        keys.insert("design".into(), design.clone());
        let components = tensors.get("shift").map_or(k[2], |shift| shift.shape[1]);
        keys.insert("components".into(), json!(components));
    }
    let mut features = Map::new();
    if let Some(kind) = given.get("features") {
        features.insert("kind".into(), kind.clone());
        features.insert("rows".into(), json!(tensors.get("projection").map_or(1, |projection| projection.shape[0])));
    }
    let mut support = copy(&["radius", "globals", "block", "cluster", "rounds", "bucket", "hash_values", "cyclic"]);
    if let Some(kind) = given.get("support") {
        support.insert("kind".into(), kind.clone());
    }
    if let Some(layout) = tensors.get("layout") {
        let row = |blocks: &[u8]| blocks.iter().map(|block| if *block == 0 { '0' } else { '1' }).collect::<String>();
        support.insert("layout".into(), layout.u8().chunks_exact(layout.shape[1]).map(row).collect());
    }
    let named = json!({
        "mechanism": case.mechanism,
        "heads": q[1],
        "key_value_heads": k[1],
        "causal": given.get("causal").and_then(Value::as_bool).unwrap_or(false),
        "mixture": mixture,
        "keys": keys,
        "features": features,
        "support": support,
        "fastformer": copy(&["scores", "sharing"]),
    });
    serde_json::from_value(named).unwrap_or_else(|e| panic!("{}: {e}", case.file))
}

/// What a case adds to its options, in one layout.
fn call(case: &Case, tensors: &Tensors, layout: Layout) -> Call {
    let padding = |name| {
        tensors.get(name).map(|t| Arc::new(Padding::new(t.shape[0], t.shape[1], t.u8().to_vec()).expect("[B, length]")))
    };
    let mask = Mask {
        causal: options(case, tensors).causal,
        window: None,
        valid: padding("valid"),
        query_valid: padding("query_valid"),
        ..Mask::none()
    };
    Call {
        layout,
        mask,
        scale: case.options.get("scale").and_then(Value::as_f64),
        bias: tensors.get("bias").is_some(),
        cross: tensors.get("x_kv").is_some(),
        ..Call::default()
    }
}

/// The operator of a case in one layout.
pub fn subject(case: &Case, tensors: &Tensors, layout: Layout) -> Subject {
    let operator = options(case, tensors).operator(call(case, tensors, layout));
    Subject { operator: operator.unwrap_or_else(|e| panic!("{}: {e}", case.file)), layout }
}

/// The operator of a soft-EM case by its own type, which alone can update a prior.
pub fn soft_em(case: &Case, tensors: &Tensors, layout: Layout) -> GaussianMixture {
    let Call { mask, .. } = call(case, tensors, layout);
    let options = options(case, tensors);
    assert_eq!(options.mixture.inference, Inference::SoftEm, "{}", case.file);
    GaussianMixture {
        layout,
        mask,
        hard: false,
        score: options.mixture.score,
        shifted: options.shifted(),
        dropout: None,
    }
}

/// The operator of a sparse or low-rank case by its own type, head first.
pub fn scatterbrain(case: &Case, tensors: &Tensors) -> Scatterbrain {
    super::scatterbrain(&options(case, tensors), call(case, tensors, Layout::HeadFirst))
}

/// Inputs of the operator, head first. Where a case has a prior and not its log, the log is taken.
pub fn inputs(subject: &Subject, tensors: &Tensors) -> Vec<Array> {
    let input = |name: &&str| match tensors.get(name) {
        Some(_) => array(tensors, name),
        None if *name == "log_prior" => log(&array(tensors, "prior")),
        None => panic!("no tensor for input '{name}' of {:?}", subject.operator),
    };
    subject.names().iter().map(input).collect()
}

/// Elementwise logarithm.
pub fn log(array: &Array) -> Array {
    Array::new(&array.shape, array.data.iter().map(|x| x.ln()).collect())
}
