//! Options by name: dictionaries, dotted names and names with double underscores, to the typed options of the kernels.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::OnceLock,
};

use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple},
};
use regard_kernels::{AttentionOptions, Mechanism};
use serde_json::{Map, Value, json};

/// Options of one mechanism.
#[derive(Clone, Debug)]
pub struct Options {
    pub typed: AttentionOptions,
    /// Names that somebody chose; what the tensors say yields to them, or is an error.
    chosen: BTreeSet<String>,
}

/// Options of whole models, which mean nothing to an operator.
const OF_MODELS: [&str; 2] = ["mechanism", "position"];

impl Options {
    /// # Errors
    /// `ValueError` for an unknown name or value, with the nearest known one.
    pub fn new(mechanism: &str, given: &Bound<'_, PyDict>) -> PyResult<Self> {
        let mut values = BTreeMap::new();
        for (name, value) in given {
            let name = name.cast_into::<PyString>()?.to_string_lossy().replace("__", ".");
            collect(name, &value, &mut values)?;
        }
        let mechanism = match mechanism {
            "smgk" | "smlk" => {
                values.entry("keys.design".to_owned()).or_insert(json!("shifted"));
                &mechanism[1..]
            }
            name => name,
        };
        if let Err(error) = mechanism.parse::<Mechanism>() {
            let names = Mechanism::ALL.iter().map(|mechanism| mechanism.name()).chain(["smgk", "smlk"]);
            return Err(PyValueError::new_err(format!("{error}{}", nearest(mechanism, names))));
        }
        let chosen: BTreeSet<String> = values.keys().cloned().collect();
        let mut tree = Map::new();
        for (path, value) in values {
            if let Some(name) = OF_MODELS.iter().find(|name| **name == path) {
                return Err(PyValueError::new_err(format!("{name} is an option of models, not of an operator")));
            }
            let keys = keys();
            if keys.get(&path) == Some(&Key::Table) {
                return Err(PyValueError::new_err(format!(
                    "option '{path}' holds others, expected a dictionary of them"
                )));
            }
            if !keys.contains_key(&path) {
                let names =
                    keys.iter().filter(|(name, key)| **key == Key::Value && !OF_MODELS.contains(&name.as_str()));
                let hint = nearest(&path, names.map(|(name, _)| name.as_str()));
                return Err(PyValueError::new_err(format!("unknown option '{path}'{hint}")));
            }
            insert(&mut tree, &path, value);
        }
        tree.insert("mechanism".to_owned(), json!(mechanism));
        let typed = serde_path_to_error::deserialize(Value::Object(tree)).map_err(|error| {
            let problem = error.inner().to_string();
            PyValueError::new_err(format!("option {}: {problem}{}", error.path(), nearest_variant(&problem)))
        })?;
        Ok(Self { typed, chosen })
    }

    pub fn is_chosen(&self, name: &str) -> bool {
        self.chosen.contains(name)
    }
}

/// Names of all options of an operator, sorted.
#[pyfunction]
pub fn option_names() -> Vec<&'static str> {
    let values = keys().iter().filter(|(_, key)| **key == Key::Value).map(|(name, _)| name.as_str());
    values.filter(|name| !OF_MODELS.contains(name)).collect()
}

/// Names that an option may begin with.
#[pyfunction]
pub fn option_roots() -> BTreeSet<&'static str> {
    option_names().into_iter().filter_map(|name| name.split('.').next()).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Table,
    Value,
}

/// All names of options, and whether they hold others.
///
/// The typed options say which names they know when they meet one that they do not: so no list has to be kept here.
fn keys() -> &'static BTreeMap<String, Key> {
    static KEYS: OnceLock<BTreeMap<String, Key>> = OnceLock::new();
    KEYS.get_or_init(|| {
        let mut keys = BTreeMap::new();
        let mut pending = vec![String::new()];
        while let Some(table) = pending.pop() {
            for name in members(&table) {
                let path = if table.is_empty() { name } else { format!("{table}.{name}") };
                let is_table = !members(&path).is_empty();
                keys.insert(path.clone(), if is_table { Key::Table } else { Key::Value });
                pending.extend(is_table.then_some(path));
            }
        }
        keys
    })
}

/// Names in the table at `path`; none where there is no table.
fn members(path: &str) -> Vec<String> {
    const UNKNOWN: &str = "?";
    let mut tree = Map::new();
    insert(
        &mut tree,
        if path.is_empty() { UNKNOWN.to_owned() } else { format!("{path}.{UNKNOWN}") }.as_str(),
        Value::Null,
    );
    let problem = match serde_json::from_value::<AttentionOptions>(Value::Object(tree)) {
        Err(error) => error.to_string(),
        Ok(_) => return Vec::new(),
    };
    if !problem.starts_with("unknown field") {
        return Vec::new();
    }
    problem.split('`').skip(1).step_by(2).skip(1).map(str::to_owned).collect()
}

fn insert(tree: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            tree.insert(path.to_owned(), value);
        }
        Some((table, rest)) => {
            if let Value::Object(inner) = tree.entry(table).or_insert_with(|| json!({})) {
                insert(inner, rest, value);
            }
        }
    }
}

/// Adds `value`, or if it is a dictionary what it holds, under its dotted name.
fn collect(name: String, value: &Bound<'_, PyAny>, values: &mut BTreeMap<String, Value>) -> PyResult<()> {
    if let Ok(table) = value.cast::<PyDict>() {
        for (key, value) in table {
            let key = key.cast_into::<PyString>()?.to_string_lossy().replace("__", ".");
            collect(format!("{name}.{key}"), &value, values)?;
        }
        return Ok(());
    }
    let mut json = to_json(&name, value)?;
    if name == "support.layout" {
        json = layout(json);
    }
    // None stands for the default.
    if !json.is_null() && values.insert(name.clone(), json).is_some() {
        return Err(PyValueError::new_err(format!("option '{name}' is given twice")));
    }
    Ok(())
}

fn to_json(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Value> {
    if value.is_none() {
        return Ok(Value::Null);
    }
    if value.is_instance_of::<PyBool>() {
        return Ok(json!(value.extract::<bool>()?));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(json!(text.to_string_lossy()));
    }
    if value.is_instance_of::<PyInt>() {
        let seen = value.extract::<i64>().map(Value::from).or_else(|_| value.extract::<u64>().map(Value::from));
        return seen
            .map_err(|_| PyValueError::new_err(format!("option {name} is {value}, expected an integer of 64 bits")));
    }
    if value.is_instance_of::<PyFloat>() {
        let number = value.extract::<f64>()?;
        let json = serde_json::Number::from_f64(number).map(Value::Number);
        return json
            .ok_or_else(|| PyValueError::new_err(format!("option {name} is {number}, expected a finite number")));
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let items = value.try_iter()?.map(|item| to_json(name, &item?)).collect::<PyResult<Vec<_>>>()?;
        return Ok(Value::Array(items));
    }
    // Numbers and arrays of other libraries.
    if value.hasattr("tolist")? {
        return to_json(name, &value.call_method0("tolist")?);
    }
    let seen = value.get_type().name()?;
    Err(PyTypeError::new_err(format!("option {name} is a {seen}, expected a number, a string, a list or a dictionary")))
}

/// A block layout given as rows of numbers or booleans, as strings of 0 and 1.
fn layout(rows: Value) -> Value {
    let bit = |item: &Value| match item {
        Value::Bool(seen) => Some(if *seen { '1' } else { '0' }),
        Value::Number(number) => Some(if number.as_f64() == Some(0.0) { '0' } else { '1' }),
        _ => None,
    };
    let row = |row: &Value| row.as_array()?.iter().map(bit).collect::<Option<String>>().map(Value::String);
    let strings = rows.as_array().and_then(|rows| rows.iter().map(row).collect::<Option<Vec<_>>>());
    strings.map_or(rows, Value::Array)
}

/// ", did you mean 'x'?" where something is near.
pub fn nearest<'a>(seen: &str, names: impl Iterator<Item = &'a str>) -> String {
    // A name is often right but for the table it stands in.
    let last = |path: &str| path.rsplit('.').next().unwrap_or(path).to_owned();
    let alike = |a: &str, b: &str| if strsim::osa_distance(a, b) == 1 { 0.99 } else { strsim::jaro_winkler(a, b) };
    let score = |name: &str| alike(seen, name).max(0.98 * alike(&last(seen), &last(name)));
    match names.map(|name| (score(name), name)).max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((score, name)) if score > 0.8 => format!(", did you mean '{name}'?"),
        _ => String::new(),
    }
}

/// The same for a problem such as "unknown variant `smyfr`, expected one of `local`, `smyrf`".
fn nearest_variant(problem: &str) -> String {
    let mut quoted = problem.split('`').skip(1).step_by(2);
    match quoted.next() {
        Some(seen) if problem.starts_with("unknown variant") => nearest(seen, quoted),
        _ => String::new(),
    }
}
