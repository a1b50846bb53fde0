//! Reading of safetensors files.

use std::{collections::HashSet, fmt};

use safetensors::SafeTensors;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

/// The tensors of a file.
///
/// # Errors
/// A truncated file, or one that names a tensor twice.
pub(crate) fn tensors(file: &[u8]) -> Result<SafeTensors<'_>, String> {
    if let Some(name) = repeated(file) {
        return Err(format!("duplicate tensor name '{name}' in the header, expected each once; write the file again"));
    }
    SafeTensors::deserialize(file)
        .map_err(|error| format!("not a whole safetensors file ({error}); write it again, or copy it whole"))
}

/// The first duplicate name in the header. `safetensors` keeps the last one, and then misses the bytes of the first.
fn repeated(file: &[u8]) -> Option<String> {
    let (length, rest) = file.split_first_chunk()?;
    let header = rest.get(..usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    serde_json::from_slice::<Repeated>(header).ok()?.0
}

struct Repeated(Option<String>);

impl<'de> Deserialize<'de> for Repeated {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;

        impl<'de> Visitor<'de> for Names {
            type Value = Repeated;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Repeated, A::Error> {
                let (mut seen, mut repeated) = (HashSet::new(), None);
                while let Some((name, IgnoredAny)) = map.next_entry::<String, _>()? {
                    if let Some(name) = seen.replace(name) {
                        repeated.get_or_insert(name);
                    }
                }
                Ok(Repeated(repeated))
            }
        }

        deserializer.deserialize_map(Names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_there_twice_is_named() {
        let file = |header: &str| [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 8]].concat();
        let one = r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
        let two = r#"{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#;
        let problem = |header: &str| tensors(&file(header)).err().unwrap_or_default();
        assert_eq!(problem(&format!(r#"{{"q":{one},"k":{two}}}"#)), "");
        for second in ["q", r"\u0071"] {
            let problem = problem(&format!(r#"{{"q":{one},"{second}":{two}}}"#));
            assert!(problem.starts_with("duplicate tensor name 'q'"), "{problem}");
        }
        assert!(problem("[]").starts_with("not a whole safetensors file"));
        assert!(tensors(&[255; 9]).is_err_and(|problem| problem.starts_with("not a whole")));
    }
}
