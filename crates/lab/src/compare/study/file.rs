//! The file of a study: axes of tasks, settings and models, resolved to the configuration of every cell.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
};

use regard_tasks::{
    Failure,
    run::{CompareConfig, Layers, RunConfig, nearest, read_settings},
};
use serde::Deserialize;
use toml::{Table, Value};

use super::{Figure, Group, Measure, Place, Study, TaskAxis, cell::flatten, directory::plain};

/// More cells than any study has: what is larger is a slip.
const MOST: usize = 100_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    study: Axes,
}

/// `[study]`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Axes {
    title: Option<String>,
    #[serde(default)]
    seeds: Vec<u64>,
    baseline: Option<String>,
    #[serde(default)]
    columns: Vec<Figure>,
    #[serde(default)]
    set: Table,
    #[serde(default)]
    task: Vec<Task>,
    #[serde(default)]
    setting: Vec<Setting>,
    #[serde(default)]
    model: Vec<Model>,
    #[serde(default)]
    case: Vec<Case>,
}

/// `[[study.task]]`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Task {
    label: Option<String>,
    preset: Option<String>,
    config: Option<PathBuf>,
    task: Option<String>,
    measure: Option<Measure>,
    #[serde(default)]
    set: Table,
}

/// `[[study.setting]]`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Setting {
    label: String,
    #[serde(default)]
    set: Table,
}

/// `[[study.model]]`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    label: Option<String>,
    mechanism: Option<String>,
    #[serde(default)]
    set: Table,
}

/// `[[study.case]]`: what is different for some of the cells.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    task: Option<Labels>,
    setting: Option<Labels>,
    model: Option<Labels>,
    #[serde(default)]
    exclude: bool,
    seeds: Option<Vec<u64>>,
    #[serde(default)]
    set: Table,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Labels {
    One(String),
    Several(Vec<String>),
}

impl Labels {
    fn all(&self) -> &[String] {
        match self {
            Self::One(label) => std::slice::from_ref(label),
            Self::Several(labels) => labels,
        }
    }
}

impl Task {
    fn label(&self) -> Option<&str> {
        [&self.label, &self.preset, &self.task].into_iter().flatten().map(String::as_str).next()
    }
}

impl Model {
    fn label(&self) -> Option<&str> {
        [&self.label, &self.mechanism].into_iter().flatten().map(String::as_str).next()
    }
}

impl Case {
    fn holds(&self, place: &Place) -> bool {
        let among = |labels: &Option<Labels>, own: Option<&String>| {
            labels.as_ref().is_none_or(|labels| own.is_some_and(|own| labels.all().contains(own)))
        };
        among(&self.task, Some(&place.task))
            && among(&self.setting, place.setting.as_ref())
            && among(&self.model, Some(&place.model))
    }
}

/// Reads the file of a study and resolves every cell: presets and files of tasks, then the changes of the study, the task,
/// the setting, the model and the cases, the environment, and `further` assignments (`KEY=VALUE`).
///
/// # Errors
/// A file that cannot be read or is no study; unknown keys, labels, mechanisms or presets; a model that changes the data.
/// Sizes that do not fit each other are no error here: their cells will fail.
pub fn read(
    path: &Path,
    environment: impl Iterator<Item = (OsString, OsString)>,
    further: &[String],
) -> Result<Study, Failure> {
    let text = read_settings(path)?;
    let name = path.display().to_string();
    let File { study: axes } = toml::from_str(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count();
        let problem = error.message().lines().collect::<Vec<_>>().join(" ");
        let problem = problem.replace("expected u64", "expected a whole number from 0");
        Failure::usage(format!("{name}:{line}: {problem}; the page on studies has all keys"))
    })?;
    let environment: Vec<_> = environment.collect();
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let folder = path.parent().unwrap_or(Path::new(""));
    Resolver { axes: &axes, name: &name, folder, environment, further }.study(stem)
}

struct Resolver<'a> {
    axes: &'a Axes,
    name: &'a str,
    folder: &'a Path,
    environment: Vec<(OsString, OsString)>,
    further: &'a [String],
}

impl Resolver<'_> {
    fn study(&self, stem: String) -> Result<Study, Failure> {
        let axes = self.axes;
        let tasks = self.labels("task", axes.task.iter().map(Task::label))?;
        let settings = self.labels("setting", axes.setting.iter().map(|setting| Some(setting.label.as_str())))?;
        let models = self.labels("model", axes.model.iter().map(Model::label))?;
        for (axis, labels) in [("task", &tasks), ("model", &models)] {
            if labels.is_empty() {
                return Err(self.wrong(format!("has no [[study.{axis}]], expected at least one")));
            }
        }
        self.check_seeds("study.seeds", &axes.seeds)?;
        for (number, case) in axes.case.iter().enumerate() {
            self.check_case(number + 1, case, [&tasks, &settings, &models])?;
        }
        let mut groups: Vec<Group> = Vec::new();
        let mut cells = 0usize;
        for (task, label) in axes.task.iter().zip(&tasks) {
            let each: Vec<Option<&Setting>> =
                if settings.is_empty() { vec![None] } else { axes.setting.iter().map(Some).collect() };
            for setting in each {
                let mut column: Option<(RunConfig, String)> = None;
                for (model, model_label) in axes.model.iter().zip(&models) {
                    let setting_label = setting.map(|setting| setting.label.clone());
                    let place = Place { task: label.clone(), setting: setting_label, model: model_label.clone() };
                    let cases: Vec<&Case> = axes.case.iter().filter(|case| case.holds(&place)).collect();
                    if cases.iter().any(|case| case.exclude) {
                        continue;
                    }
                    let seeds = cases.iter().rev().find_map(|case| case.seeds.as_ref()).unwrap_or(&axes.seeds);
                    let config = self.config(task, setting, model, &cases, &place)?;
                    self.check_column(&mut column, &config, &place)?;
                    if let Some(measure) =
                        task.measure.filter(|own| !own.is_of(config.task.options().shape().objective))
                    {
                        let (measure, name) = (measure.name(), config.task.name);
                        return Err(self.wrong(format!(
                            "has the measure {measure} for the task '{label}', expected one that {name} has"
                        )));
                    }
                    cells = cells.saturating_add(seeds.len());
                    if cells > MOST {
                        return Err(self.wrong(format!("has more than {MOST} cells, expected fewer")));
                    }
                    groups.push(Group { place, seeds: seeds.clone(), config: config.to_toml() });
                }
            }
        }
        if groups.is_empty() {
            return Err(self.wrong("excludes every cell, expected at least one that is left"));
        }
        let measures = axes.task.iter().map(|task| task.measure);
        let tasks = tasks.into_iter().zip(measures).map(|(label, measure)| TaskAxis { label, measure }).collect();
        let baseline = models[0].clone();
        let title = axes.title.clone().unwrap_or(stem);
        let study = Study { title, tasks, settings, models, baseline, columns: axes.columns.clone(), groups };
        match &axes.baseline {
            Some(baseline) => study.with_baseline(baseline).map_err(|failure| failure.at(self.name)),
            None => Ok(study),
        }
    }

    fn wrong(&self, problem: impl std::fmt::Display) -> Failure {
        Failure::usage(format!("{}: {problem}", self.name))
    }

    /// Labels of an axis: each there, and each with a directory of its own.
    fn labels<'b>(&self, axis: &str, labels: impl Iterator<Item = Option<&'b str>>) -> Result<Vec<String>, Failure> {
        let mut all: Vec<String> = Vec::new();
        for (number, label) in labels.enumerate() {
            let label = label.ok_or_else(|| self.wrong(format!("study.{axis} {} has no label", number + 1)))?;
            if !label.chars().any(|c| c.is_ascii_alphanumeric())
                || label.len() > 100
                || label.contains(char::is_control)
            {
                return Err(self.wrong(format!(
                    "study.{axis} {} has the label '{label}', expected at most 100 bytes of text with a letter or digit of \
                     ASCII among them, since directories are named by it",
                    number + 1
                )));
            }
            let same = |other: &String| plain(other).to_lowercase() == plain(label).to_lowercase();
            if let Some(other) = all.iter().find(|other| same(other)) {
                return Err(self.wrong(format!(
                    "two of study.{axis} have the labels '{other}' and '{label}', expected labels that differ in more than \
                     case and punctuation, since directories are named by them"
                )));
            }
            all.push(label.to_owned());
        }
        Ok(all)
    }

    fn check_seeds(&self, key: &str, seeds: &[u64]) -> Result<(), Failure> {
        if seeds.is_empty() {
            return Err(self.wrong(format!("{key} is missing or empty, expected at least one, as in [1, 2, 3]")));
        }
        match seeds.iter().enumerate().find(|(i, seed)| seeds[..*i].contains(seed)) {
            Some((_, seed)) => Err(self.wrong(format!("{key} names {seed} twice, expected each once"))),
            None => match seeds.iter().find(|seed| i64::try_from(**seed).is_err()) {
                Some(seed) => Err(self.wrong(format!("{key} names {seed}, expected at most {}", i64::MAX))),
                None => Ok(()),
            },
        }
    }

    fn check_case(&self, number: usize, case: &Case, axes: [&Vec<String>; 3]) -> Result<(), Failure> {
        let labels = [("task", &case.task), ("setting", &case.setting), ("model", &case.model)];
        for ((axis, labels), known) in labels.into_iter().zip(axes) {
            if let Some(label) = labels.iter().flat_map(|l| l.all()).find(|label| !known.contains(label)) {
                let near = nearest(label, known.iter().map(String::as_str));
                let known = if known.is_empty() { "no label, there is none".into() } else { known.join(", ") };
                return Err(self
                    .wrong(format!("study.case {number} names the {axis} '{label}', expected one of {known}{near}")));
            }
        }
        if !case.exclude && case.seeds.is_none() && case.set.is_empty() {
            return Err(self.wrong(format!("study.case {number} changes nothing, expected exclude, seeds or set")));
        }
        case.seeds.as_ref().map_or(Ok(()), |seeds| self.check_seeds(&format!("seeds of study.case {number}"), seeds))
    }

    fn config(
        &self,
        task: &Task,
        setting: Option<&Setting>,
        model: &Model,
        cases: &[&Case],
        place: &Place,
    ) -> Result<RunConfig, Failure> {
        let mut layers = Layers::new();
        let at = |what: &str, label: &str| format!("{}: {what} '{label}'", self.name);
        let of_task = at("task", &place.task);
        if let Some(preset) = &task.preset {
            layers.preset(preset).map_err(|failure| failure.at(&of_task))?;
        }
        if let Some(config) = &task.config {
            layers.file(&self.folder.join(config))?;
        }
        apply(&mut layers, &self.axes.set, &format!("{}: study.set", self.name))?;
        if let Some(name) = &task.task {
            layers.set_named("task.name", name, &of_task)?;
        }
        apply(&mut layers, &task.set, &of_task)?;
        if let Some(setting) = setting {
            apply(&mut layers, &setting.set, &at("setting", &setting.label))?;
        }
        let of_model = at("model", &place.model);
        if let Some(mechanism) = &model.mechanism {
            layers.set_named("mechanism", mechanism, &of_model)?;
        }
        apply(&mut layers, &model.set, &of_model)?;
        for case in cases {
            apply(&mut layers, &case.set, &at("case of", &place.to_string()))?;
        }
        let own = model.mechanism.as_ref().map(|_| layers.clone().resolve()).transpose()?;
        layers.environment(self.environment.iter().cloned())?;
        for assignment in self.further {
            layers.assign(assignment, "--set")?;
        }
        let mut config = layers.resolve()?;
        if let Some(own) = own.filter(|own| own.attention.mechanism != config.attention.mechanism) {
            return Err(Failure::usage(format!(
                "mechanism is {} by --set or REGARD_MECHANISM, but {} for {of_model}; leave it out, or name mechanisms in the \
                 study",
                config.attention.mechanism, own.attention.mechanism
            )));
        }
        // Every seed trains on the same data.
        config.task.seed = Some(config.task.seed.unwrap_or(config.seed));
        Ok(RunConfig { seed: 0, compare: CompareConfig::default(), ..config })
    }

    /// All models of a task and setting have the same data: a comparison on others would say nothing.
    fn check_column(
        &self,
        column: &mut Option<(RunConfig, String)>,
        config: &RunConfig,
        place: &Place,
    ) -> Result<(), Failure> {
        let (first, model) = column.get_or_insert_with(|| (config.clone(), place.model.clone()));
        if first.task == config.task {
            return Ok(());
        }
        let (key, seen, expected) = super::cell::differences(config, first)
            .into_iter()
            .find(|(key, ..)| key.starts_with("task."))
            .unwrap_or_else(|| ("task".into(), "another".into(), "the same".into()));
        Err(self.wrong(format!(
            "{key} is {seen} for {place}, expected {expected} as for '{model}': the data are the same for all models of a task \
             and setting"
        )))
    }
}

/// Sets every key of a table, nested or dotted.
fn apply(layers: &mut Layers, table: &Table, origin: &str) -> Result<(), Failure> {
    let mut keys = BTreeMap::new();
    flatten(table.clone(), "", &mut keys);
    // A list stays one value.
    keys.into_iter().try_for_each(|(key, value): (String, Value)| layers.set(&key, &value.to_string(), origin))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    pub(crate) const TWO: &str = r#"
[study]
seeds = [1, 2]
baseline = "exact"
set = { "train.steps" = 7 }
[[study.task]]
label = "short"
preset = "smoke"
[[study.task]]
task = "copy"
[study.task.set.task.copy]
length = 16
[[study.setting]]
label = "wide"
set = { "model.width" = 32 }
[[study.setting]]
label = "narrow"
[[study.model]]
label = "exact"
[[study.model]]
mechanism = "smgk"
set = { heads = 1, train = { batch = 5 } }
[[study.case]]
task = "copy"
setting = ["narrow"]
exclude = true
[[study.case]]
model = "smgk"
seeds = [7]
[[study.case]]
model = "smgk"
task = "short"
set = { "train.steps" = 9 }
"#;

    fn of(text: &str) -> Result<Study, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("two.toml");
        fs::write(&path, text).unwrap();
        let study = read(&path, std::iter::empty(), &[]);
        study.map_err(|failure| Failure {
            message: failure.message.replace(&format!("{}/", folder.path().display()), ""),
            ..failure
        })
    }

    #[test]
    fn axes_span_cells_and_later_layers_win() {
        let study = of(TWO).unwrap();
        assert_eq!((study.title.as_str(), study.baseline.as_str()), ("two", "exact"));
        let places: Vec<String> = study.groups.iter().map(|group| group.place.to_string()).collect();
        let expected = ["exact", "smgk"]
            .map(|model| ["short, wide", "short, narrow", "copy, wide"].map(|column| format!("{column}, {model}")));
        let mut sorted = (places.clone(), expected.concat());
        sorted.0.sort();
        sorted.1.sort();
        assert_eq!(sorted.0, sorted.1);
        assert_eq!(study.cells().count(), 3 * (2 + 1));
        let config = |place: &str| {
            let group = study.groups.iter().find(|group| group.place.to_string() == place).unwrap();
            group.config().unwrap()
        };
        let exact = config("short, narrow, exact");
        // The preset has 20 steps, a width of 16 and a seed of 1.
        assert_eq!((exact.train.steps, exact.model.width, exact.task.seed, exact.seed), (7, 16, Some(1), 0));
        let mixture = config("short, wide, smgk");
        assert_eq!((mixture.train.steps, mixture.model.width, mixture.train.batch), (9, 32, 5));
        assert_eq!(mixture.attention.label(), "smgk");
        assert_eq!((config("copy, wide, smgk").train.steps, config("copy, wide, smgk").task.copy.length), (7, 16));
    }

    #[test]
    fn what_is_no_study_is_refused_in_a_sentence() {
        let changed = |from: &str, to: &str| {
            assert!(TWO.contains(from), "{from}");
            of(&TWO.replacen(from, to, 1)).map(|_| ()).unwrap_err().message
        };
        for (from, to, parts) in [
            ("seeds = [1, 2]", "seeds = []", &["two.toml: study.seeds is missing or empty"][..]),
            ("seeds = [1, 2]", "", &["two.toml: study.seeds is missing or empty, expected at least one"]),
            ("seeds = [1, 2]", "seeds = [-1]", &["two.toml:3: ", "`-1`, expected a whole number from 0"]),
            ("seeds = [1, 2]", "seeds = [1, 1]", &["names 1 twice"]),
            ("seeds = [1, 2]", "sedes = [1]", &["two.toml:3: ", "unknown field `sedes`"]),
            ("seeds = [1, 2]", "seeds = [", &["two.toml:"]),
            ("baseline = \"exact\"", "baseline = \"exakt\"", &["baseline is 'exakt'", "exact, smgk"]),
            ("preset = \"smoke\"", "preset = \"smok\"", &["task 'short'", "did you mean 'smoke'?"]),
            ("heads = 1", "haeds = 1", &["model 'smgk'", "'haeds'", "'heads'?"]),
            ("heads = 1", "heads = \"one\"", &["model 'smgk': heads"]),
            ("mechanism = \"smgk\"", "label = \"smgk\"\nmechanism = \"smkg\"", &["'smkg'", "did you mean 'smgk'?"]),
            (
                "task = \"copy\"\nsetting",
                "task = \"coyp\"\nsetting",
                &["study.case 1 names the task 'coyp'", "'copy'?"],
            ),
            ("label = \"exact\"", "label = \"Smgk\"", &["two of study.model", "'Smgk' and 'smgk'"]),
            ("label = \"exact\"", "label = \"..\"", &["study.model 1 has the label '..'"]),
            (
                "heads = 1",
                "\"task.listops.train\" = 10",
                &["task.listops.train is 10 for short, wide, smgk", "same for all"],
            ),
            ("seeds = [7]", "", &["study.case 2 changes nothing"]),
            ("task = \"copy\"\nsetting = [\"narrow\"]", "", &["excludes every cell"]),
        ] {
            let message = changed(from, to);
            assert!(parts.iter().all(|part| message.contains(part)), "{parts:?} in {message}");
        }
    }

    #[test]
    fn every_part_deals_its_cells_and_all_parts_deal_each_once() {
        use super::super::Shard;
        let study = of(TWO).unwrap();
        let named = |shard| study.dealt(shard).iter().map(ToString::to_string).collect::<Vec<_>>();
        let all = named(None);
        for of in [1, 2, 3, 20] {
            let parts: Vec<Vec<String>> = (1..=of).map(|number| named(Some(Shard { number, of }))).collect();
            let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
            assert_eq!(sizes.iter().sum::<usize>(), all.len(), "{sizes:?}");
            assert!(all.iter().all(|cell| parts.iter().any(|part| part.contains(cell))), "{parts:?}");
            assert!(of > 9 || sizes.iter().all(|size| *size > 0), "{sizes:?}");
        }
    }
}
