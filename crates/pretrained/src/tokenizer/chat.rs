//! Conversations as text, by the template that a model was trained with.

use std::{collections::BTreeMap, fmt, path::Path};

use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};

use super::Result;
use crate::PretrainedError;

const NAME: &str = "chat";

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A turn.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// A Jinja template with the surroundings that `transformers` gives it.
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ChatTemplate").finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Compiles the template of a file.
    pub fn new(path: &Path, source: String) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> std::result::Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_filter("tojson", json);
        environment.add_template_owned(NAME, without_marks(source)).map_err(|error| {
            let problem = format!("its chat template is not one that is read: {}; correct it", said(&error));
            PretrainedError::content(path, problem)
        })?;
        Ok(Self { environment })
    }

    /// The text of a conversation.
    pub fn render(&self, messages: &[Message], answer: bool, tokens: &BTreeMap<String, String>) -> Result<String> {
        let template = self.environment.get_template(NAME).expect("it was added");
        let context = context! { messages, add_generation_prompt => answer, ..Value::from_serialize(tokens) };
        template.render(context).map_err(|error| {
            PretrainedError::Text(format!(
                "the chat template refuses this conversation: {}; change its turns",
                said(&error)
            ))
        })
    }
}

/// The message of an error, and its line.
fn said(error: &Error) -> String {
    let message = error.detail().map_or_else(|| error.kind().to_string(), str::to_string);
    error.line().map_or_else(|| message.clone(), |line| format!("{message} (line {line})"))
}

/// JSON as Python writes it, which templates were trained with; that of Jinja is made for web pages.
fn json(value: &Value) -> std::result::Result<String, Error> {
    let value: serde_json::Value = serde_json::to_value(value)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("not a value of JSON: {error}")))?;
    let mut out = String::new();
    write_json(&value, &mut out);
    Ok(out)
}

fn write_json(value: &serde_json::Value, out: &mut String) {
    match value {
        serde_json::Value::Array(list) => {
            out.push('[');
            for (i, value) in list.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                write_json(value, out);
            }
            out.push(']');
        }
        serde_json::Value::Object(map) => {
            out.push('{');
            for (i, (key, value)) in map.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { ", " });
                out.push_str(&serde_json::Value::from(key.as_str()).to_string());
                out.push_str(": ");
                write_json(value, out);
            }
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}

/// The same without `generation` blocks, by which `transformers` finds what the model says in a training text.
fn without_marks(source: String) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some((before, tagged)) = rest.split_once("{%") {
        let Some((tag, after)) = tagged.split_once("%}") else { break };
        out.push_str(before);
        out.push_str("{%");
        match tag.trim_matches(['-', '+']).trim() {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        out.push_str("%}");
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> Result<ChatTemplate> {
        ChatTemplate::new(Path::new("tokenizer_config.json"), source.into())
    }

    fn turns() -> Vec<Message> {
        vec![Message::new("user", " Hi <b> "), Message::new("assistant", "Yes.")]
    }

    #[test]
    fn methods_of_python_and_marks_are_understood() {
        let source = "{{ bos_token }}{% for m in messages %}\n    {%- if m['role'].startswith('user') %}\n[{{ m.content.strip() }}]\n    {%- else %}\n{%- generation %}{{ m['content'] | trim }}{% endgeneration %}{% endif %}{% endfor %}";
        let tokens = BTreeMap::from([("bos_token".to_string(), "<s>".to_string())]);
        let text = template(source).unwrap().render(&turns(), false, &tokens).unwrap();
        assert_eq!(text, "<s>[Hi <b>]Yes.");
    }

    #[test]
    fn text_without_marks_stays() {
        for source in ["", "{%", "{%}", "a {%}{% b %}", "{% if x %}%}{{ y }}{%", "%}{%%}"] {
            assert_eq!(without_marks(source.into()), source);
        }
        assert_eq!(without_marks("{%- generation %}x{% endgeneration -%}".into()), "{%- if true %}x{% endif -%}");
    }

    #[test]
    fn json_is_that_of_python() {
        let text = template("{{ messages | tojson }}").unwrap().render(&turns()[..1], false, &BTreeMap::new());
        let either = [r#"[{"role": "user", "content": " Hi <b> "}]"#, r#"[{"content": " Hi <b> ", "role": "user"}]"#];
        assert!(either.contains(&text.unwrap().as_str()));
    }

    #[test]
    fn refusals_and_broken_templates_are_told() {
        let refused = template("{{ raise_exception('roles must alternate') }}").unwrap();
        let error = refused.render(&turns(), true, &BTreeMap::new()).unwrap_err().to_string();
        assert!(error.starts_with("the chat template refuses this conversation: roles must alternate"), "{error}");
        let error = template("{% for m in %}").unwrap_err().to_string();
        assert!(error.starts_with("tokenizer_config.json: its chat template is not one that is read"), "{error}");
    }
}
