//! Configuration layers, merged key by key, with the origin of each value.

use std::{collections::BTreeMap, ffi::OsString, fs::File, io::Read, path::Path};

use toml::{
    Table, Value,
    de::{DeTable, DeValue},
};

use regard_files::text::decode_text;
use regard_kernels::Mechanism;

use super::{
    RunConfig,
    nearest::{nearest, nearest_variant, parted},
    preset,
    schema::{join, list, lookup, schema},
};
use crate::{Failure, data::TaskName};

/// Environment variables that are not configuration keys: they correspond to flags, and the last one is for the build.
const FLAGS: [&str; 9] = [
    "REGARD_THREADS",
    "REGARD_DEVICE",
    "REGARD_VECTORS",
    "REGARD_CACHE",
    "REGARD_DATA",
    "REGARD_MODELS",
    "REGARD_CONFIG",
    "REGARD_PRESET",
    "REGARD_COMMIT",
];

/// Longest file of settings, in bytes: what is longer is another file, or no file at all.
const LONGEST: u64 = 16 << 20;

/// The text of a file of settings.
///
/// # Errors
/// A file that cannot be read, that is no text, or that is longer than settings are.
pub fn read_settings(path: &Path) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST + 1).read_to_end(&mut bytes));
    let length = read.map_err(|error| Failure::reading(path, &error))?;
    if length as u64 > LONGEST {
        let path = path.display();
        return Err(Failure::data(format!("{path} has more than {LONGEST} bytes, expected a file of settings")));
    }
    let text = decode_text(&bytes);
    let text = text.map_err(|error| Failure::data(format!("{}:{}: {error}", path.display(), error.line)))?;
    Ok(text.into_owned())
}

/// A configuration builder.
#[derive(Clone, Debug)]
pub struct Layers {
    values: Table,
    /// Every valid key, with a value of its type.
    schema: Table,
    /// Origins of values, by dotted key; defaults and presets are not listed.
    origins: BTreeMap<String, String>,
}

impl Default for Layers {
    fn default() -> Self {
        Self::new()
    }
}

impl Layers {
    /// Layers on top of the defaults.
    pub fn new() -> Self {
        Self::over(RunConfig::default())
    }

    /// Layers on top of a complete configuration.
    pub fn over(config: RunConfig) -> Self {
        Self { values: config.to_table(), schema: schema(), origins: BTreeMap::new() }
    }

    /// Applies a preset.
    ///
    /// # Errors
    /// An unknown preset.
    pub fn preset(&mut self, name: &str) -> Result<(), Failure> {
        let text = preset::find(name).ok_or_else(|| {
            let names: Vec<&str> = preset::PRESETS.iter().map(|(name, ..)| *name).collect();
            let near = nearest(name, names.iter().copied());
            Failure::usage(format!("preset is '{name}', expected one of {}{near}", names.join(", ")))
        })?;
        self.text(text, &format!("preset {name}"))
    }

    /// Applies a file; the preset of its key `preset`, if any, is applied first.
    ///
    /// # Errors
    /// A file that cannot be read or is not TOML, an unknown key.
    pub fn file(&mut self, path: &Path) -> Result<(), Failure> {
        self.text(&read_settings(path)?, &path.display().to_string())
    }

    /// Applies TOML text; `name` is its name in errors.
    ///
    /// # Errors
    /// Text that is not TOML, an unknown key.
    pub fn text(&mut self, text: &str, name: &str) -> Result<(), Failure> {
        let parsed = DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            let problem = error.message().lines().next().unwrap_or("not TOML").to_owned();
            Failure::usage(format!("{name}:{line}: {problem}; expected TOML, as 'regard config' prints it"))
        })?;
        let table = parsed.into_inner();
        if let Some((_, value)) = table.iter().find(|(key, _)| key.get_ref() == "preset") {
            let DeValue::String(below) = value.get_ref() else {
                let line = line_of(text, value.span().start);
                return Err(Failure::usage(format!("{name}:{line}: preset is no text, expected the name of a preset")));
            };
            self.preset(below)?;
        }
        self.merge(&table, "", &|start| format!("{name}:{}", line_of(text, start)))
    }

    fn merge(&mut self, table: &DeTable, prefix: &str, origin: &dyn Fn(usize) -> String) -> Result<(), Failure> {
        for (key, value) in table {
            let path = join(prefix, key.get_ref());
            if path == "preset" {
                continue;
            }
            let place = origin(key.span().start);
            match (self.known(&path, &place)?, value.get_ref()) {
                (Value::Table(_), DeValue::Table(inner)) => self.merge(inner, &path, origin)?,
                (Value::Table(_), _) => {
                    return Err(Failure::usage(format!(
                        "{place}: {path} is a single value, expected the table [{path}]"
                    )));
                }
                (_, value) => {
                    let value =
                        plain(value).ok_or_else(|| Failure::usage(format!("{place}: {path}: no such number")))?;
                    self.put(&path, value, place);
                }
            }
        }
        Ok(())
    }

    /// Applies the environment: `REGARD_MODEL__WIDTH=64` sets `model.width`.
    ///
    /// # Errors
    /// An unknown key, a value that is not text.
    pub fn environment(&mut self, variables: impl Iterator<Item = (OsString, OsString)>) -> Result<(), Failure> {
        let named = variables.map(|(name, value)| (name.to_string_lossy().into_owned(), value));
        let mut ours: Vec<_> = named.filter(|(name, _)| name.starts_with("REGARD_")).collect();
        ours.sort();
        for (name, value) in ours {
            if !FLAGS.contains(&name.as_str()) {
                let value = value.into_string().map_err(|value| {
                    let seen = value.to_string_lossy();
                    Failure::usage(format!("environment variable {name} is '{seen}', expected text in UTF-8"))
                })?;
                let key = name["REGARD_".len()..].to_lowercase().replace("__", ".");
                self.set(&key, &value, &format!("environment variable {name}"))?;
            }
        }
        Ok(())
    }

    /// Applies `key=value`.
    ///
    /// # Errors
    /// No `=`, or an unknown key.
    pub fn assign(&mut self, assignment: &str, origin: &str) -> Result<(), Failure> {
        let (key, value) = assignment.split_once('=').ok_or_else(|| {
            Failure::usage(format!("{origin} '{assignment}' has no '=', expected KEY=VALUE, as in model.width=128"))
        })?;
        self.set(key.trim(), value.trim(), origin)
    }

    /// Sets one key. The text is read as TOML; anything else is taken as a string.
    ///
    /// # Errors
    /// An unknown key.
    pub fn set(&mut self, key: &str, text: &str, origin: &str) -> Result<(), Failure> {
        let known = self.known(key, origin)?.clone();
        if known.is_table() {
            return Err(Failure::usage(format!("{origin}: {key} is a table, expected one of its keys")));
        }
        if known.is_integer() && text.parse::<i64>().is_err() && text.parse::<f64>().is_ok_and(|x| x.abs() > 9e18) {
            return Err(Failure::usage(format!("{origin}: {key} is {text}, expected at most {}", i64::MAX)));
        }
        let parsed = format!("x = {text}").parse::<Table>().ok().and_then(|mut table| table.remove("x"));
        let value = match (parsed, &known) {
            // A string that happens to look like a number stays a string if a string is expected.
            (Some(value), Value::String(_)) if !value.is_array() => match value {
                Value::String(text) => Value::String(text),
                _ => Value::String(text.to_owned()),
            },
            // Lists may be written without brackets and quotes: softmax,mgk.
            (parsed @ (None | Some(Value::Integer(_) | Value::String(_))), Value::Array(_)) => {
                let text = parsed.as_ref().and_then(Value::as_str).unwrap_or(text);
                let items = text.split(',').map(|item| item.trim());
                let numbers = matches!(&known, Value::Array(known) if known.first().is_some_and(Value::is_integer));
                let item = |text: &str| match text.parse() {
                    Ok(number) if numbers => Value::Integer(number),
                    _ => Value::String(text.to_owned()),
                };
                Value::Array(items.filter(|item| !item.is_empty()).map(item).collect())
            }
            // So may numbers where a name is expected too.
            (None, Value::String(_)) if text.contains(',') => {
                let numbers: Result<Vec<f64>, _> = text.split(',').map(|item| item.trim().parse()).collect();
                numbers.map_or_else(
                    |_| Value::String(text.to_owned()),
                    |numbers| Value::Array(numbers.into_iter().map(Value::Float).collect()),
                )
            }
            (Some(value), _) => value,
            (None, _) => Value::String(text.to_owned()),
        };
        self.put(key, value, origin.to_owned());
        Ok(())
    }

    /// Sets `mechanism` or `task.name` from `origin`, as `--mechanism` does. `smgk` and `smlk` are valid mechanism
    /// names here too.
    ///
    /// # Errors
    /// An unknown name.
    pub fn set_named(&mut self, key: &str, name: &str, origin: &str) -> Result<(), Failure> {
        let names: Vec<&str> = match key {
            "mechanism" => Mechanism::ALL.iter().map(|mechanism| mechanism.name()).chain(["smgk", "smlk"]).collect(),
            _ => TaskName::ALL.iter().map(|task| task.name()).collect(),
        };
        if !names.contains(&name) {
            let near = nearest(name, names.iter().copied());
            return Err(Failure::usage(format!("{origin} is '{name}', expected one of {}{near}", names.join(", "))));
        }
        let plain = match name {
            "smgk" | "smlk" => {
                self.set("keys.design", "shifted", origin)?;
                &name[1..]
            }
            _ => name,
        };
        self.set(key, plain, origin)
    }

    /// Whether this key was set explicitly, in a file, the environment or on the command line.
    pub fn is_set(&self, key: &str) -> bool {
        self.origins.contains_key(key)
    }

    /// The configuration.
    ///
    /// # Errors
    /// A value of the wrong type, with its location.
    pub fn resolve(&self) -> Result<RunConfig, Failure> {
        RunConfig::from_table(self.values.clone()).map_err(|(key, problem)| {
            // An element of a list has the origin of the list.
            let list = key.split('[').next().unwrap_or(&key);
            let place = self.origins.get(list).map_or(String::new(), |origin| format!("{origin}: "));
            let near = nearest_variant(&problem);
            Failure::usage(format!("{place}{key}: {problem}{near}"))
        })
    }

    fn put(&mut self, path: &str, value: Value, origin: String) {
        let mut table = &mut self.values;
        let mut parts = path.split('.').peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                // An integer is accepted where a float is expected.
                let value = match (lookup(&self.schema, path), value) {
                    (Some(Value::Float(_)), Value::Integer(whole)) => Value::Float(whole as f64),
                    (_, value) => value,
                };
                table.insert(part.to_owned(), value);
                break;
            }
            let inner = table.entry(part.to_owned()).or_insert_with(|| Value::Table(Table::new()));
            let Value::Table(inner) = inner else { unreachable!("the schema says that this is a table") };
            table = inner;
        }
        self.origins.insert(path.to_owned(), origin);
    }

    /// The schema's value of a key.
    fn known(&self, path: &str, place: &str) -> Result<&Value, Failure> {
        let mut table = &self.schema;
        let mut found = None;
        for part in path.split('.') {
            found = table.get(part);
            table = match found {
                Some(Value::Table(inner)) => inner,
                Some(_) if path.ends_with(part) => table,
                _ => break,
            };
        }
        let whole = found.filter(|_| lookup(&self.schema, path).is_some());
        whole.ok_or_else(|| {
            let mut keys = Vec::new();
            list(&self.schema, "", &mut keys);
            let mut near = nearest(path, keys.iter().map(String::as_str));
            if let (true, Some(Value::Table(table))) = (near.is_empty(), lookup(&self.schema, parted(path).0)) {
                near = format!(", expected one of {}", table.keys().cloned().collect::<Vec<_>>().join(", "));
            }
            Failure::usage(format!("{place}: unknown key '{path}'{near}; 'regard config' lists all keys"))
        })
    }
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

/// A value without its source spans.
fn plain(value: &DeValue) -> Option<Value> {
    Some(match value {
        DeValue::String(text) => Value::String(text.clone().into_owned()),
        DeValue::Integer(number) => Value::Integer(i64::from_str_radix(number.as_str(), number.radix()).ok()?),
        DeValue::Float(number) => Value::Float(number.as_str().parse().ok()?),
        DeValue::Boolean(truth) => Value::Boolean(*truth),
        DeValue::Datetime(date) => Value::Datetime(*date),
        DeValue::Array(items) => {
            Value::Array(items.iter().map(|item| plain(item.get_ref())).collect::<Option<Vec<_>>>()?)
        }
        DeValue::Table(table) => Value::Table(
            table
                .iter()
                .map(|(key, value)| Some((key.get_ref().clone().into_owned(), plain(value.get_ref())?)))
                .collect::<Option<Table>>()?,
        ),
    })
}

#[cfg(test)]
mod tests {
    use regard_nn::attention::AttentionConfig;

    use std::fs;

    use super::*;

    fn error(result: Result<(), Failure>) -> String {
        let failure = result.unwrap_err();
        assert_eq!(failure.class, crate::Class::Usage);
        failure.message
    }

    #[test]
    fn later_layers_win_and_numbers_fit_their_kind() {
        let mut layers = Layers::new();
        layers.text("heads = 2\n[model]\nwidth = 32\ndropout = 0\n", "a.toml").unwrap();
        layers
            .environment([("REGARD_MODEL__WIDTH".into(), "48".into()), ("PATH".into(), "x".into())].into_iter())
            .unwrap();
        layers.assign("model.width=96", "--set").unwrap();
        layers.assign("compare.mechanisms=softmax,mgk:heads=2", "--set").unwrap();
        layers.assign("compare.seeds=3,4", "--set").unwrap();
        layers.assign("task.lm.train=\"a text.txt\"", "--set").unwrap();
        layers.assign("mixture.variances=[1.0, 2.5]", "--set").unwrap();
        layers.assign("mechanism=mgk", "--set").unwrap();
        let config = layers.resolve().unwrap();
        assert_eq!((config.attention.heads, config.model.width, config.model.dropout), (2, 96, 0.0));
        assert_eq!(config.compare.mechanisms, ["softmax", "mgk:heads=2"]);
        assert_eq!(config.compare.seeds, [3, 4]);
        assert_eq!(config.task.lm.train, [Path::new("a text.txt")]);
        assert!(layers.is_set("model.width") && !layers.is_set("model.layers"));
    }

    #[test]
    fn a_resolved_configuration_reads_back_as_itself() {
        let mut layers = Layers::new();
        layers.preset("quick").unwrap();
        let config = layers.resolve().unwrap();
        let mut again = Layers::new();
        again.text(&config.to_toml(), "config.toml").unwrap();
        assert_eq!(again.resolve().unwrap(), config);
    }

    #[test]
    fn attentions_of_an_encoder_decoder_follow_the_top_but_for_their_own_keys() {
        let mut layers = Layers::new();
        layers.text("mechanism = \"mgk\"\nheads = 2\n[cross]\nmechanism = \"softmax\"\n", "a.toml").unwrap();
        layers.assign("decoder.keys.components=3", "--set").unwrap();
        layers.assign("decoder.scatterbrain.sparse_share=1", "--set").unwrap();
        let config = layers.resolve().unwrap();
        let seen = |attention: &AttentionConfig| (attention.mechanism, attention.heads, attention.keys.components);
        assert_eq!(seen(&config.attention), (Mechanism::Mgk, 2, 2));
        assert_eq!(seen(&config.decoder), (Mechanism::Mgk, 2, 3));
        assert_eq!(seen(&config.cross), (Mechanism::Softmax, 2, 2));
        let mut again = Layers::new();
        again.text(&config.to_toml(), "config.toml").unwrap();
        assert_eq!(again.resolve().unwrap(), config);
        // Unset keys follow the top level.
        let (_, other) = config.candidate("linear:heads=4").unwrap();
        assert_eq!(seen(&other.decoder), (Mechanism::Linear, 4, 3));
        assert_eq!(seen(&other.cross), (Mechanism::Softmax, 4, 2));
        assert!(error(layers.assign("cross.mechanisn=mgk", "--set")).contains("did you mean 'cross.mechanism'"));
        layers.assign("decoder.keys.components=9999", "--set").unwrap();
        assert!(layers.resolve().unwrap_err().message.contains("decoder.keys.components: is 9999"));
    }

    #[test]
    fn paths_without_a_default_can_be_set() {
        let mut layers = Layers::new();
        for key in ["text.valid", "retrieval.train", "retrieval.valid", "retrieval.test", "image.path", "news.train"] {
            layers.assign(&format!("task.{key}=some/file"), "--set").unwrap();
        }
        let task = layers.resolve().unwrap().task;
        assert!(task.image.path.is_some() && task.retrieval.valid.is_some() && task.retrieval.train.is_some());
    }

    #[test]
    fn every_preset_resolves_and_checks() {
        for (name, ..) in preset::PRESETS {
            let mut layers = Layers::new();
            layers.preset(name).unwrap();
            let config = layers.resolve().unwrap();
            config.model.check(&config.attention).unwrap();
            config.train.check().unwrap();
            for entry in &config.compare.mechanisms {
                config.candidate(entry).unwrap();
            }
        }
    }

    #[test]
    fn unknown_keys_name_their_place_and_a_near_key() {
        let mut layers = Layers::new();
        let message = error(layers.text("[model]\nwidht = 3\n", "a.toml"));
        assert!(message.contains("a.toml:2") && message.contains("did you mean 'model.width'"), "{message}");
        let message = error(layers.assign("width=3", "--set"));
        assert!(message.contains("did you mean 'model.width'"), "{message}");
        let message = error(layers.assign("model.width.x=3", "--set"));
        assert!(message.contains("unknown key"), "{message}");
        assert!(error(layers.assign("model=3", "--set")).contains("is a table"));
        assert!(error(layers.assign("model.width", "--set")).contains("KEY=VALUE"));
        assert!(error(layers.text("heads = \n", "a.toml")).starts_with("a.toml:1: "));
        assert!(error(layers.preset("quik")).contains("did you mean 'quick'"));
        for (key, hint) in [
            ("train.lr", "did you mean 'train.optimizer.learning_rate'?"),
            ("modle.width", "did you mean 'model.width'?"),
            ("model.head", "did you mean 'heads'?"),
            ("train.schedule.peak", "expected one of final_fraction, kind, warmup;"),
            ("nothing.of.this", "unknown key 'nothing.of.this'; 'regard"),
            ("", "unknown key ''"),
        ] {
            let message = error(layers.assign(&format!("{key}=1"), "--set"));
            assert!(message.contains(hint), "{message}");
        }
    }

    #[test]
    fn files_of_other_systems_are_read_or_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run.toml");
        let read = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let mut layers = Layers::new();
            layers.file(&path).map(|()| layers.resolve().unwrap().attention.heads)
        };
        assert_eq!(read("\u{feff}# größer\r\nheads = 2\r\n".as_bytes()).unwrap(), 2);
        let message = read(b"heads = 2\n# gr\xf6\xdfer\n").unwrap_err().message;
        assert!(message.contains("run.toml:2: is not UTF-8 from byte 14 (0xf6)"), "{message}");
        let message = read(b"\xff\xfeh\0").unwrap_err().message;
        assert!(message.contains("run.toml:1: is UTF-16LE"), "{message}");
        File::create(&path).unwrap().set_len(LONGEST + 1).unwrap();
        let message = Layers::new().file(&path).unwrap_err().message;
        assert!(message.contains("more than 16777216 bytes, expected a file of settings"), "{message}");
    }

    #[test]
    fn wrong_kinds_name_their_place() {
        let mut layers = Layers::new();
        layers.text("\n\nheads = \"many\"\n", "a.toml").unwrap();
        let message = layers.resolve().unwrap_err().message;
        assert!(message.starts_with("a.toml:3: heads: "), "{message}");
        let message = error(layers.assign("model.width=18446744073709551615", "--set"));
        assert!(
            message.contains("model.width is 18446744073709551615, expected at most 9223372036854775807"),
            "{message}"
        );
        let mut layers = Layers::new();
        layers.assign("model.width=-4", "--set").unwrap();
        let message = layers.resolve().unwrap_err().message;
        assert!(
            message.starts_with("--set: model.width: ") && message.ends_with("expected a whole number from 0"),
            "{message}"
        );
    }

    #[test]
    fn variances_are_a_name_or_numbers() {
        let read = |text: &str| {
            let mut layers = Layers::new();
            layers.assign(&format!("mixture.variances={text}"), "--set").unwrap();
            layers.resolve().map(|config| config.attention.mixture.variances)
        };
        use regard_kernels::mechanism::Variances;
        for text in ["1,2", "1.0, 2", "[1, 2.0]"] {
            assert_eq!(read(text).unwrap(), Variances::List(vec![1.0, 2.0]), "{text}");
        }
        assert_eq!(read("paper").unwrap(), Variances::default());
        for (text, hint) in [("papr", "did you mean 'paper'?"), ("1,x", "expected one of"), ("true", "expected one of")]
        {
            let message = read(text).unwrap_err().message;
            assert!(message.starts_with("--set: mixture.variances: ") && message.contains(hint), "{message}");
        }
    }

    #[test]
    fn wrong_variants_name_a_near_one() {
        let mut layers = Layers::new();
        layers.assign("support.kind=smyfr", "--set").unwrap();
        let message = layers.resolve().unwrap_err().message;
        assert!(message.starts_with("--set: support.kind: ") && message.contains("did you mean 'smyrf'?"), "{message}");
        let mut layers = Layers::new();
        layers.assign("support.kind=planets", "--set").unwrap();
        assert!(!layers.resolve().unwrap_err().message.contains("did you mean"));
    }

    #[test]
    fn options_of_supports_and_features_by_text() {
        let mut layers = Layers::new();
        for assignment in [
            "budget=1/8",
            "support.kind=block",
            "support.layout=110,011",
            "support.hash_values=8",
            "features.rows_drawn=iid",
            "scatterbrain.sparse_share=1",
        ] {
            layers.assign(assignment, "--set").unwrap();
        }
        layers.environment([("REGARD_SUPPORT__BLOCK".into(), "4".into())].into_iter()).unwrap();
        let config = layers.resolve().unwrap();
        let attention = &config.attention;
        assert_eq!(attention.budget.unwrap().value(), 0.125);
        assert_eq!(attention.support.layout, Some(vec!["110".into(), "011".into()]));
        assert_eq!((attention.support.block, attention.support.hash_values), (4, Some(8)));
        assert_eq!(attention.scatterbrain.sparse_share, 1.0);
        let mut again = Layers::new();
        again.text(&config.to_toml(), "config.toml").unwrap();
        assert_eq!(again.resolve().unwrap(), config);
        let (label, _) = config.candidate("sparse:support.kind=smyrf,budget=0.5").unwrap();
        assert!(label.starts_with("smyrf-support.kind=smyrf-budget=0.5-2-rounds-clusters-of-"), "{label}");
        layers.assign("budget=1", "--set").unwrap();
        assert_eq!(layers.resolve().unwrap().attention.budget.unwrap().value(), 1.0);
        layers.assign("budget=3/2", "--set").unwrap();
        let message = layers.resolve().unwrap_err().message;
        assert!(message.contains("budget: budget is") && message.contains("at most 1"), "{message}");
    }

    #[test]
    fn any_text_is_an_error_or_a_configuration_never_a_panic() {
        let mut state = 1u64;
        let pieces =
            ["[", "]", "=", "\"", "model", "width", ".", "\n", "1", "-", "{", "}", "é", "'", "heads", "\0", " ", "e9"];
        for _ in 0..3000 {
            let mut text = String::new();
            for _ in 0..12 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text += pieces[(state >> 33) as usize % pieces.len()];
            }
            let mut layers = Layers::new();
            let _ = layers.text(&text, "fuzz").and_then(|()| layers.resolve().map(|_| ()));
            let _ = layers.assign(&text, "--set");
            let _ = layers.resolve();
        }
    }
}
