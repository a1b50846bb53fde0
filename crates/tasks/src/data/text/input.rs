//! Texts for a trained model: rows of any form, with or without targets.

use std::{
    borrow::Cow,
    io::Read,
    path::{Path, PathBuf},
};

use super::{
    Column, Columns, Encoded, Target, TextConfig, TextEncoder, TextFormat, TextPart, csv,
    fields::Fields,
    folder::Glue,
    rows::{Form, Labels, Reading},
};
use crate::data::{
    DataError,
    file::Meter,
    plain_text::{TextLines, each_line},
};

/// Rows for a trained model.
#[derive(Clone, Debug)]
pub struct TextInput {
    /// The rows, encoded.
    pub part: TextPart,
    /// Their targets; none where the input has none.
    pub targets: Vec<Target>,
    /// Rows of a set known for broken ones that were left out.
    pub skipped: usize,
    /// How the first line was taken, where that may be a surprise.
    pub note: Option<String>,
}

/// Where rows come from, and how they are read.
#[derive(Clone, Debug, Default)]
pub struct InputOptions {
    /// The form; absent: by the name of the file, and columns separated by tabs on standard input.
    pub format: Option<TextFormat>,
    /// Leave targets aside.
    pub unlabelled: bool,
}

impl TextConfig {
    /// Names of the classes; none where rows have scores.
    pub fn class_names(&self) -> Vec<String> {
        let (_, labels) = self.known();
        (0..labels.classes().unwrap_or(0)).map(|class| labels.name(class)).collect()
    }

    /// Whether the form of the training data, on which columns and labels depend, is known: it may have been told from a
    /// folder that is no longer there.
    pub fn form_is_known(&self) -> bool {
        self.path.is_none() || self.form().is_some()
    }

    /// Reads and encodes the rows of a file or folder, or of `source`. Columns are those of the training data; a row may lack
    /// the target, and then have the texts alone.
    ///
    /// # Errors
    /// An input that cannot be read, a row that is not of its form.
    pub fn input(
        &self,
        encoder: &TextEncoder,
        path: Option<&Path>,
        source: impl Read,
        options: &InputOptions,
    ) -> Result<TextInput, DataError> {
        let config =
            Self { format: options.format.filter(|format| format.known().is_some()).or(self.format), ..self.clone() };
        let (fields, labels) = config.known();
        let reading = if options.unlabelled { Reading::Texts } else { Reading::AsFound };
        let format = options.format.unwrap_or_else(|| match path.map_or(TextFormat::Tsv, TextFormat::of_file) {
            // The form of the training data is one of tab-separated columns, too.
            TextFormat::Tsv => config.form().filter(|form| Glue::of(*form).is_some()).unwrap_or(TextFormat::Tsv),
            other => other,
        });
        let form = |format, fields| Form { format, fields, labels: labels.clone(), reading, most: usize::MAX };
        let meter = Meter::new([], &|_, _| {});
        let (rows, note) = match path {
            Some(folder) if folder.is_dir() => (form(TextFormat::AclImdb, fields).read(&meter, folder)?, None),
            _ => {
                let (name, bytes) = whole(path, source)?;
                let (fields, note) = fields
                    .of_input(first(&bytes, &name, format)?.as_deref(), &labels)
                    .map_err(|problem| DataError::Row { path: name.clone(), line: 1, problem })?;
                (form(format, fields).rows(&bytes[..], &name)?, note)
            }
        };
        let part = TextPart::of(&rows, &labels, encoder)?;
        Ok(TextInput { part, skipped: rows.skipped, targets: rows.targets, note })
    }
}

/// The content of a file, decompressed, or of `source`, and its name.
fn whole<'s>(path: Option<&Path>, source: impl Read + 's) -> Result<(PathBuf, Vec<u8>), DataError> {
    let meter = Meter::new([], &|_, _| {});
    let (name, mut source): (PathBuf, Box<dyn Read + '_>) = match path {
        Some(path) => (path.into(), Box::new(meter.open(path)?)),
        None => ("standard input".into(), Box::new(source)),
    };
    let mut bytes = Vec::new();
    source.read_to_end(&mut bytes).map_err(|error| DataError::read(&name, error))?;
    Ok((name, bytes))
}

/// The columns of the first line; none of a file without columns or lines.
fn first(bytes: &[u8], name: &Path, format: TextFormat) -> Result<Option<Vec<Vec<u8>>>, DataError> {
    let mut lines = TextLines::new(bytes, name);
    Ok(match format {
        TextFormat::JsonLines => None,
        TextFormat::Csv | TextFormat::AgNews => csv::next(&mut lines)?.map(|(_, values)| values),
        _ => lines.row()?.map(|row| row.split(|byte| *byte == b'\t').map(<[u8]>::to_vec).collect()),
    })
}

impl Fields {
    /// The columns of an input whose first line is `first`: those of the training data, unless that line is no header and has
    /// as many columns as there are texts, or one more, the target, before them. That is noted.
    ///
    /// # Errors
    /// A row where a header should be.
    fn of_input(self, first: Option<&[Vec<u8>]>, labels: &Labels) -> Result<(Self, Option<String>), String> {
        let Some(first) = first else { return Ok((self, None)) };
        let names: Vec<Cow<str>> = first.iter().map(|name| String::from_utf8_lossy(name.trim_ascii())).collect();
        // The test set of CoLA, whose other files have no header.
        if names == ["index", "sentence"] && self.text == Columns::from(3) {
            return Ok((Self { label: "label".into(), text: "sentence".into(), second: None, header: true }, None));
        }
        let named = |column: &Column| matches!(column, Column::Name(name) if names.iter().any(|own| own == name));
        let plain = [self.count(), self.count() + 1].contains(&first.len());
        if !self.has_header() || self.text.all().iter().any(named) || !plain {
            return Ok((self, None));
        }
        // Columns by place that the options say hold for a line with a target.
        if self.header
            && first.len() > self.count()
            && !self.text.all().iter().any(|column| matches!(column, Column::Name(_)))
        {
            if let Column::Place(place @ 0..) = self.label
                && let Some(cell) = first.get(place as usize)
                && labels.target(cell).is_ok()
            {
                return Err(format!(
                    "column {place} is '{}', a label, where the names of the columns are expected; the model was trained with \
                     task.text.header: give a header",
                    names[place as usize]
                ));
            }
            return Ok((self, None));
        }
        let target = if first.len() > self.count() { "the target and " } else { "" };
        let texts = if self.second.is_some() { "both texts" } else { "the text" };
        let note = format!("the first line is read as a row, since it does not name the columns: {target}{texts}");
        let (text, second) = if self.second.is_some() { (1, Some(2.into())) } else { (-1, None) };
        Ok((Self { label: 0.into(), text: text.into(), second, header: false }, Some(note)))
    }
}

/// Expressions for a trained model, one a line, or a value, a tab and the expression.
///
/// # Errors
/// An expression that is none, or a value out of range.
pub(crate) fn expressions(
    path: Option<&Path>,
    source: impl Read,
    encode: impl Fn(&str) -> Result<Encoded, DataError>,
    classes: usize,
    options: &InputOptions,
) -> Result<TextInput, DataError> {
    let (name, bytes) = whole(path, source)?;
    let labels = Labels::Numbers { first: 0, classes };
    let (mut part, mut targets, mut labelled) = (TextPart::empty(classes), Vec::new(), None);
    each_line(&bytes[..], &name, |_, row| {
        let text = std::str::from_utf8(row).map_err(|_| "is not UTF-8; give expressions as text".to_owned())?;
        let columns = text.split_once('\t');
        let (label, text) = columns.map_or((None, text), |(label, text)| (Some(label), text));
        if *labelled.get_or_insert(label.is_some()) != label.is_some() {
            return Err("some rows have a value and a tab before the expression, others not; give all or none".into());
        }
        let encoded = encode(text).map_err(|error| error.to_string())?;
        let label = label.filter(|_| !options.unlabelled).map(|label| labels.target(label.as_bytes())).transpose()?;
        let class = if let Some(Target::Class(class)) = label { class } else { 0 };
        targets.extend(label);
        part.push(&encoded, class).map_err(|error| error.to_string())
    })?;
    if part.is_empty() {
        return Err(DataError::Content { path: name, problem: "has no lines; give an expression a line".into() });
    }
    Ok(TextInput { part, targets, skipped: 0, note: None })
}
