//! The head of a model, by the class that `architectures` names.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Architecture, Family, Features, Head};
use crate::{ConfigProblem, keys::Keys};

/// Classes that a classifier may have; more are taken for damage.
const MOST_CLASSES: usize = 1 << 20;

/// The architecture with its head.
pub(super) fn read(base: Architecture, keys: &Keys<'_>) -> Result<Architecture, ConfigProblem> {
    let expected = "a list with one name of a class";
    let class = match keys.get("architectures").map(Value::as_array) {
        None => None,
        Some(Some(names)) if names.is_empty() => None,
        Some(Some(names)) => Some(names[0].as_str().ok_or_else(|| keys.problem("architectures", expected))?),
        Some(None) => return Err(keys.problem("architectures", expected)),
    };
    let family = base.family;
    let text = !matches!(family, Family::Vit | Family::Dinov2);
    let encoder = text && !base.causal;
    // As the class without a head has it; a file may lack it.
    let Some(class) = class else { return Ok(Architecture { pooler: encoder || family == Family::Vit, ..base }) };
    let tied = || keys.flag("tie_word_embeddings", family != Family::Llama);
    let unread = || {
        let mut kinds = vec!["Model"];
        kinds.extend(encoder.then_some("ForMaskedLM"));
        kinds.extend(base.causal.then_some("ForCausalLM"));
        kinds.push(if text { "ForSequenceClassification" } else { "ForImageClassification" });
        kinds.extend(encoder.then_some("ForTokenClassification"));
        keys.problem("architectures", format!("a class whose name ends with {}", kinds.join(", ")))
    };
    let bias = true;
    let (head, pooler) = match class.find("For").map(|at| &class[at..]) {
        _ if class.ends_with("LMHeadModel") && family == Family::Gpt2 => {
            (Head::Language { tied: tied()?, bias: false }, false)
        }
        None if class.ends_with("Model") || class.ends_with("Backbone") => {
            (Head::None, encoder || family == Family::Vit)
        }
        Some("ForCausalLM") if base.causal => (Head::Language { tied: tied()?, bias: false }, false),
        Some("ForMaskedLM" | "ForPreTraining") if encoder => (Head::Masked { tied: tied()?, bias }, false),
        Some("ForSequenceClassification") if encoder => {
            (Head::Classifier { classes: 0, features: Features::First, bias }, true)
        }
        Some("ForTokenClassification") if encoder => {
            (Head::Classifier { classes: 0, features: Features::Each, bias }, false)
        }
        Some("ForSequenceClassification") if base.causal => {
            (Head::Classifier { classes: 0, features: Features::Last, bias: false }, false)
        }
        Some("ForImageClassification") if family == Family::Vit => {
            (Head::Classifier { classes: 0, features: Features::First, bias }, false)
        }
        Some("ForImageClassification") if family == Family::Dinov2 => {
            (Head::Classifier { classes: 0, features: Features::FirstAndMean, bias }, false)
        }
        _ => return Err(unread()),
    };
    let mut architecture = Architecture { head, pooler, ..base };
    if let Head::Classifier { classes, .. } = &mut architecture.head {
        architecture.labels = labels(keys)?;
        *classes = architecture.labels.len();
    }
    Ok(architecture)
}

/// `id2label`, or as many invented names as `num_labels` says.
fn labels(keys: &Keys<'_>) -> Result<BTreeMap<usize, String>, ConfigProblem> {
    let number = keys.optional_size("num_labels")?;
    let Some(given) = keys.get("id2label") else {
        // Two is the default of `transformers`.
        let number = number.unwrap_or(2);
        if number > MOST_CLASSES {
            return Err(keys.problem("num_labels", format!("at most {MOST_CLASSES}")));
        }
        return Ok((0..number).map(|i| (i, format!("LABEL_{i}"))).collect());
    };
    let expected = "an object of names by number, from \"0\" without gaps";
    let given = given.as_object().ok_or_else(|| keys.problem("id2label", expected))?;
    let label = |(number, name): (&String, &Value)| {
        // Numbers are names too, for those who wrote them so.
        let name = name.as_str().map_or_else(|| name.to_string(), str::to_string);
        Some((number.parse().ok()?, name))
    };
    let labels: Option<BTreeMap<usize, String>> = given.iter().map(label).collect();
    let labels = labels.filter(|labels| labels.keys().copied().eq(0..given.len()) && !labels.is_empty());
    let labels = labels.ok_or_else(|| keys.problem("id2label", expected))?;
    match number {
        Some(number) if number != labels.len() => {
            Err(keys.problem("num_labels", format!("{}, as many as id2label has", labels.len())))
        }
        _ => Ok(labels),
    }
}
