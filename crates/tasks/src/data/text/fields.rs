//! Which columns of a record hold texts and target.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A column by its place, from 0, or from the end if negative (-1 being the last), or by its name in the header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected the number or the name of a column")]
pub enum Column {
    /// Place.
    Place(i64),
    /// Name.
    Name(String),
}

/// One column, or several whose texts are joined by a space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected the number or the name of a column, or a list of them")]
pub enum Columns {
    /// One.
    One(Column),
    /// Several.
    Several(Vec<Column>),
}

impl From<i64> for Column {
    fn from(place: i64) -> Self {
        Self::Place(place)
    }
}

impl From<&str> for Column {
    fn from(name: &str) -> Self {
        Self::Name(name.into())
    }
}

impl<C: Into<Column>> From<C> for Columns {
    fn from(column: C) -> Self {
        Self::One(column.into())
    }
}

impl Columns {
    /// The columns, in order.
    pub fn all(&self) -> &[Column] {
        match self {
            Self::One(column) => std::slice::from_ref(column),
            Self::Several(columns) => columns,
        }
    }
}

impl Column {
    fn is_name(&self) -> bool {
        matches!(self, Self::Name(_))
    }
}

/// The columns of a set.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fields {
    /// Of the label or the score.
    pub label: Column,
    /// Of the first text.
    pub text: Columns,
    /// Of the second one, where there are pairs.
    pub second: Option<Column>,
    /// Whether the first line names the columns.
    pub header: bool,
}

/// The values of a record.
pub(super) enum Record<'r> {
    /// Columns, and what separates them.
    Columns(Vec<Cow<'r, [u8]>>, &'static str),
    /// A JSON object.
    Object(Map<String, Value>),
}

/// Names of the text in JSON objects whose column is given by place, the first that is there.
const TEXTS: [&str; 2] = ["text", "sentence"];

/// Texts of a record, and its target as it is written, if it has one.
pub(super) type Parts<'r> = (Vec<Cow<'r, [u8]>>, Option<Cow<'r, [u8]>>);

impl Fields {
    /// Whether the first line names the columns: said so, or needed by a column given by name.
    pub fn has_header(&self) -> bool {
        self.header || self.columns().any(Column::is_name)
    }

    /// Whether a column is given by its place from the end.
    pub fn count_from_end(&self) -> bool {
        self.columns().any(|column| matches!(column, Column::Place(..0)))
    }

    fn columns(&self) -> impl Iterator<Item = &Column> {
        [&self.label].into_iter().chain(self.texts().flat_map(|(_, columns)| columns))
    }

    /// The columns of each text, with their keys.
    fn texts(&self) -> impl Iterator<Item = (&'static str, &[Column])> {
        let second = self.second.as_ref().map(|column| ("second_column", std::slice::from_ref(column)));
        [("text_column", self.text.all())].into_iter().chain(second)
    }

    /// Number of texts of a row.
    pub fn count(&self) -> usize {
        1 + usize::from(self.second.is_some())
    }

    /// Whether a record has a target: by the name of its column, else by columns besides those of the texts.
    pub fn labelled(&self, record: &Record, names: &[String]) -> bool {
        match (record, &self.label) {
            (Record::Object(object), Column::Place(_)) => object.contains_key("label"),
            (Record::Object(object), Column::Name(name)) => object.contains_key(name),
            (Record::Columns(..), Column::Name(name)) => names.contains(name),
            (Record::Columns(values, _), Column::Place(_)) => {
                values.len() > self.texts().map(|(_, columns)| columns.len()).sum()
            }
        }
    }

    /// Texts and, if `labelled`, target of a record. Columns of records without a target are the texts in order, where they
    /// are given by place.
    ///
    /// # Errors
    /// Columns that are not there or are the same, a text that is empty, as a sentence.
    pub fn take<'r>(&self, record: Record<'r>, names: &[String], labelled: bool) -> Result<Parts<'r>, String> {
        match record {
            Record::Columns(values, separator) => self.of_columns(values, separator, names, labelled),
            Record::Object(object) => self.of_object(object, labelled),
        }
    }

    fn of_columns<'r>(
        &self,
        mut values: Vec<Cow<'r, [u8]>>,
        separator: &str,
        names: &[String],
        labelled: bool,
    ) -> Result<Parts<'r>, String> {
        let count = values.len();
        let whole = |problem: String| format!("{count} {separator}-separated columns, {problem}");
        let mut next = 0;
        let mut place = |key: &str, column: &Column| match column {
            Column::Place(_) if !labelled && key != "label_column" && self.texts_alone(count) => {
                next += 1;
                Ok(next - 1)
            }
            Column::Place(place) => {
                let magnitude = usize::try_from(place.unsigned_abs()).unwrap_or(usize::MAX);
                let at = if *place < 0 { count.checked_sub(magnitude) } else { Some(magnitude) };
                at.filter(|at| *at < count)
                    .ok_or_else(|| whole(format!("none is column {place}; check the row or task.text.{key}")))
            }
            Column::Name(name) => {
                let at = names.iter().position(|own| own == name);
                let at = at.ok_or_else(|| {
                    format!("no column is named '{name}', only {}; check task.text.{key}", names.join(", "))
                })?;
                if at < count { Ok(at) } else { Err(whole(format!("expected {} as the header has", names.len()))) }
            }
        };
        let label = if labelled { Some(place("label_column", &self.label)?) } else { None };
        let mut texts = Vec::new();
        for (key, columns) in self.texts() {
            // A line of a single column is the text, however many columns it has elsewhere.
            let columns = if labelled || count > 1 { columns } else { &columns[..columns.len().min(1)] };
            texts.push(columns.iter().map(|column| place(key, column)).collect::<Result<Vec<_>, _>>()?);
        }
        let all: Vec<usize> = texts.iter().flatten().copied().collect();
        if all.iter().enumerate().any(|(i, column)| all[..i].contains(column)) {
            return Err(whole("where two texts have the same; check task.text.text_column and second_column".into()));
        }
        if let Some(label) = label
            && texts.iter().flatten().any(|text| *text == label)
        {
            let (own, text) = (shown(&self.label), self.text.all().first().map_or(String::new(), shown));
            return Err(whole(format!(
                "where columns {own} (label) and {text} (text) are the same; check the row, task.text.label_column and \
                 task.text.text_column"
            )));
        }
        // Each is taken once, as they differ.
        let mut taken = |at: usize| std::mem::take(&mut values[at]);
        let label = label.map(&mut taken);
        let mut parts = Vec::with_capacity(texts.len());
        for (columns, (key, _)) in texts.into_iter().zip(self.texts()) {
            parts.push(filled(joined(columns.into_iter().map(&mut taken)), key)?);
        }
        Ok((parts, label))
    }

    /// Whether `count` columns are as many as the texts have, or the one text as a whole.
    fn texts_alone(&self, count: usize) -> bool {
        count == self.texts().map(|(_, columns)| columns.len()).sum::<usize>() || count == 1 && self.second.is_none()
    }

    fn of_object(&self, mut object: Map<String, Value>, labelled: bool) -> Result<Parts<'static>, String> {
        let mut value = |key: &str, column: &Column| {
            let name = match column {
                Column::Name(name) => name.as_str(),
                Column::Place(_) if key == "label_column" => "label",
                Column::Place(_) => TEXTS.into_iter().find(|name| object.contains_key(*name)).unwrap_or(TEXTS[0]),
            };
            match object.remove(name) {
                Some(Value::String(text)) => Ok(Cow::Owned(text.into_bytes())),
                Some(Value::Number(number)) if key == "label_column" => Ok(Cow::Owned(number.to_string().into_bytes())),
                Some(other) => {
                    let shown: String = other.to_string().chars().take(40).collect();
                    Err(format!("'{name}' is {shown}, expected text; check the row or task.text.{key}"))
                }
                None => {
                    let names: Vec<&str> = object.keys().map(String::as_str).collect();
                    Err(format!("no '{name}' among {}; check the row or task.text.{key}", names.join(", ")))
                }
            }
        };
        let label = if labelled { Some(value("label_column", &self.label)?) } else { None };
        let mut parts = Vec::new();
        for (key, columns) in self.texts() {
            let values = columns.iter().map(|column| value(key, column)).collect::<Result<Vec<_>, _>>()?;
            parts.push(filled(joined(values.into_iter()), key)?);
        }
        Ok((parts, label))
    }
}

fn shown(column: &Column) -> String {
    match column {
        Column::Place(place) => place.to_string(),
        Column::Name(name) => format!("'{name}'"),
    }
}

/// Texts joined by a space.
fn joined<'r>(mut texts: impl Iterator<Item = Cow<'r, [u8]>>) -> Cow<'r, [u8]> {
    let mut whole = texts.next().unwrap_or_default();
    for text in texts {
        let own = whole.to_mut();
        own.push(b' ');
        own.extend_from_slice(&text);
    }
    whole
}

fn filled<'r>(text: Cow<'r, [u8]>, key: &str) -> Result<Cow<'r, [u8]>, String> {
    if text.is_empty() { Err(format!("the text is empty; remove the row or check task.text.{key}")) } else { Ok(text) }
}
