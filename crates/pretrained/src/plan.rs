//! Which attention each head of a trained model has, in a file.

use std::path::{Path, PathBuf};

use regard_files::write_whole;
use regard_kernels::Error;
use regard_nn::{
    attention::{AttentionConfig, HeadPlan},
    models::{ParameterMap, load_parameters, named_parameters},
};
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};

use crate::{Pretrained, PretrainedError};

/// A plan for all layers of a model.
///
/// ```toml
/// layers = 2
/// seed = 1
///
/// [[group]]
/// layer = 2
/// key_heads = [0, 2]
/// attention = { mechanism = "sparse", support = { kind = "longformer", globals = 16, radius = 255 } }
/// ```
///
/// Heads that no group names stay exact. A group without `attention` is dropped: its heads give 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Layers of the model, those with weights of their own.
    pub layers: usize,
    /// Seed of what mechanisms draw.
    #[serde(default)]
    pub seed: u64,
    /// A safetensors file of parameters that were trained under this plan, by the names of [the crate](crate); beside the plan
    /// where it is not absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<PathBuf>,
    /// What changes.
    #[serde(default, rename = "group", skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<PlanGroup>,
}

/// Key heads of a layer that attend in the same way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanGroup {
    /// The layer, from 1.
    pub layer: usize,
    /// Its key heads, from 0; the query heads that read them go with them.
    pub key_heads: Vec<usize>,
    /// Mechanism and its options, as in a configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<AttentionConfig>,
}

/// Options that a group takes from its layer.
const OF_LAYER: [&str; 5] = ["heads", "key_value_heads", "position", "causal", "budget"];

/// More layers than any model has.
const MOST_LAYERS: usize = 1 << 16;

/// The groups of a plan; none of a text that is not TOML.
fn groups_of(text: &str) -> Vec<toml::Value> {
    let plan: toml::Table = toml::from_str(text).unwrap_or_default();
    plan.get("group").and_then(toml::Value::as_array).cloned().unwrap_or_default()
}

impl Plan {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read, is not TOML, or has a key or value that is none.
    pub fn read(path: &Path) -> Result<Self, PretrainedError> {
        let text = std::fs::read_to_string(path).map_err(PretrainedError::reading(path))?;
        for group in groups_of(&text) {
            let own = group.get("attention").and_then(toml::Value::as_table);
            if let Some(key) = own.and_then(|own| OF_LAYER.iter().find(|key| own.contains_key(**key))) {
                let problem = format!("attention.{key} of a group is that of its layer; leave it out");
                return Err(PretrainedError::content(path, problem));
            }
        }
        let mut plan: Self = toml::from_str(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            let problem = error.message().lines().next().unwrap_or("not TOML");
            PretrainedError::content(
                path,
                format!("line {line}: {problem}; expected a plan, as 'regard swap' writes it"),
            )
        })?;
        if plan.layers > MOST_LAYERS {
            let problem = format!("layers is {}, expected at most {MOST_LAYERS}", plan.layers);
            return Err(PretrainedError::content(path, problem));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        plan.parameters = plan.parameters.map(|parameters| folder.join(parameters));
        Ok(plan)
    }

    /// Writes a file, by another name first.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), PretrainedError> {
        write_whole(path, self.to_toml().as_bytes()).map_err(PretrainedError::WriteWhole)
    }

    /// As TOML, with the options that are not the defaults.
    pub fn to_toml(&self) -> String {
        let mut table = toml::Table::try_from(self).expect("numbers, names and lists");
        let defaults = toml::Table::try_from(AttentionConfig::default()).expect("numbers, names and lists");
        for group in table.get_mut("group").and_then(toml::Value::as_array_mut).into_iter().flatten() {
            if let Some(attention) = group.get_mut("attention").and_then(toml::Value::as_table_mut) {
                for key in OF_LAYER {
                    attention.remove(key);
                }
                remove_equal(attention, &defaults);
            }
        }
        table.to_string()
    }

    /// What [`Pretrained::planned`] takes.
    ///
    /// # Errors
    /// A layer that is not one of `layers`.
    pub fn heads(&self) -> Result<Vec<Vec<HeadPlan>>, Error> {
        let mut layers = vec![Vec::new(); self.layers];
        for group in &self.groups {
            let layer = group.layer.checked_sub(1).and_then(|layer| layers.get_mut(layer)).ok_or_else(|| {
                Error::option("layer of a plan", group.layer, format!("a number from 1 to {}", self.layers))
            })?;
            layer.push(HeadPlan { key_heads: group.key_heads.clone(), attention: group.attention.clone() });
        }
        Ok(layers)
    }
}

impl Pretrained {
    /// The model under a plan, with the parameters that were trained under it, where there are some.
    ///
    /// # Errors
    /// A plan for another number of layers; heads, mechanisms or options that cannot stand there; parameters that cannot be read
    /// or are not those of the model.
    pub fn with_plan(self, plan: &Plan) -> Result<Self, PretrainedError> {
        let planned = self.planned(&plan.heads()?, plan.seed)?;
        match &plan.parameters {
            Some(file) => planned.with_parameters(file),
            None => Ok(planned),
        }
    }

    /// The model with the parameters of a safetensors file of f32 in place of those of the same names.
    fn with_parameters(self, path: &Path) -> Result<Self, PretrainedError> {
        let bytes = std::fs::read(path).map_err(PretrainedError::reading(path))?;
        let problem = |problem: String| PretrainedError::content(path, problem);
        let file = SafeTensors::deserialize(&bytes)
            .map_err(|error| problem(format!("not a sound safetensors file: {error}; write it again")))?;
        let own = named_parameters(&self.model).into_iter();
        let mut all: ParameterMap = own.map(|own| (own.name, (own.shape, own.values))).collect();
        for (name, view) in file.iter() {
            if view.dtype() != Dtype::F32 {
                return Err(problem(format!("tensor '{name}' holds {:?}; expected F32", view.dtype())));
            }
            let values = view.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            all.insert(name.into(), (view.shape().to_vec(), values));
        }
        let model = load_parameters(self.model, all)
            .map_err(|error| problem(format!("{error}; expected parameters of this model under this plan")))?;
        Ok(Self { model, ..self })
    }
}

/// Takes out of `table` what is as in `defaults`.
fn remove_equal(table: &mut toml::Table, defaults: &toml::Table) {
    table.retain(|key, value| match (value, defaults.get(key)) {
        (toml::Value::Table(inner), Some(toml::Value::Table(defaults))) => {
            remove_equal(inner, defaults);
            !inner.is_empty()
        }
        (value, default) => Some(&*value) != default,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_written_without_its_defaults_and_read_back() {
        let attention: AttentionConfig =
            toml::from_str("mechanism = 'sparse'\nheads = 3\nsupport = { kind = 'longformer', radius = 7 }").unwrap();
        let plan = Plan {
            layers: 2,
            seed: 5,
            parameters: None,
            groups: vec![
                PlanGroup { layer: 2, key_heads: vec![1], attention: Some(attention) },
                PlanGroup { layer: 1, key_heads: vec![0], attention: None },
            ],
        };
        let text = plan.to_toml();
        assert!(text.contains("radius = 7") && !text.contains("heads = 3") && !text.contains("features"), "{text}");
        let file = tempfile::tempdir().unwrap();
        let path = file.path().join("plan.toml");
        plan.write(&path).unwrap();
        let read = Plan::read(&path).unwrap();
        assert_eq!(read.groups[1], plan.groups[1]);
        assert_eq!(read.to_toml(), text);
        assert_eq!(read.heads().unwrap()[1][0].key_heads, [1]);
    }

    #[test]
    fn what_is_wrong_with_a_plan_is_named() {
        let read = |text: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), text).unwrap();
            Plan::read(file.path()).unwrap_err().to_string()
        };
        assert!(read("layers = 2\nseeds = 3").contains("seeds"));
        assert!(
            read("layers = 2\n[[group]]\nlayer = 1\nkey_heads = [0]\nattention = { mechanism = 'sofmax' }")
                .contains("sofmax")
        );
        let causal = "layers = 2\n[[group]]\nlayer = 1\nkey_heads = [0]\nattention = { causal = false }";
        assert!(read(causal).contains("attention.causal of a group is that of its layer"));
        let plan = Plan { groups: vec![PlanGroup { layer: 0, key_heads: vec![], attention: None }], ..Plan::default() };
        assert!(plan.heads().unwrap_err().to_string().contains("layer of a plan is 0"));
    }
}
