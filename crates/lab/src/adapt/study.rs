//! A whole adaptation: judge, match, tune, write, judge again.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use burn::module::Module;
use regard_files::write_whole;
use regard_kernels::{
    Mechanism,
    mechanism::{MixtureOptions, Variances},
};
use regard_nn::{
    attention::AttentionConfig,
    models::{ParameterMap, named_parameters, parameter_count},
};
use regard_pretrained::{Folder, LoadOptions, Plan, PlanGroup, Position, Pretrained, PretrainedError, Tokenizer};
use regard_tasks::train::{DirectoryLock, Environment, HostTensor, TrainError, encode_tensors, occupied};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{AdaptConfig, AdaptError, data::Texts, matching, session::Session, tuning};

/// Files of an adaptation.
const OPTIONS: &str = "adapt.json";
const JUDGED: &str = "judged.json";
const PLAN: &str = "plan.toml";
const MODEL: &str = "model";
const PARAMETERS: &str = "parameters.safetensors";

/// Models that are judged.
pub(super) const EXACT: &str = "exact";
pub(super) const PLANNED: &str = "planned";
const MATCHED: &str = "planned, layers matched";
pub(super) const ADAPTED: &str = "planned, adapted";
pub(super) const CONTROL: &str = "exact, tuned alike";

/// Variance of all components of a mixture that begins as a trained model, in terms of that of the paper: the `|k|^2 / (2 s)` that
/// tells it from softmax becomes this many times smaller, while scores still have 3 digits after the point.
const WIDENED: f64 = 1024.0;

/// What is adapted, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// How.
    pub config: AdaptConfig,
    /// The attention to adapt to.
    pub plan: Plan,
}

/// A model judged on sequences that nothing learned from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Which.
    pub name: String,
    /// Nats per token that counts; for a model without a head over tokens, 1 - cosine of mean states to those of exact attention.
    pub loss: f64,
}

/// The result.
#[derive(Clone, Debug)]
pub struct Adaptation {
    /// What was asked for.
    pub study: Study,
    /// Exact attention, the plan before and after, the control.
    pub rows: Vec<Row>,
    /// Error of each layer before and after it was matched, and after all.
    pub layers: Vec<[f64; 3]>,
    /// Loss of each step: the mean error of layers, then the loss of the model.
    pub losses: Vec<f32>,
    /// Seconds of all steps, without those of the control.
    pub seconds: f64,
    /// Numbers that learned, and that the model has.
    pub learned: [usize; 2],
    /// Sequences there were to learn from.
    pub sequences: usize,
    /// Whether losses are nats per token.
    pub has_loss: bool,
    /// What a command takes: a model folder, or a plan for the folder that was adapted.
    pub written: PathBuf,
    /// The model in a few words.
    pub source: String,
    /// The command that was typed.
    pub command: String,
    /// Where and when.
    pub environment: Environment,
}

/// The plan that makes all of a model a mixture of keys.
pub fn mixture_plan(folder: &Folder, mechanism: Mechanism, seed: u64) -> Plan {
    let architecture = folder.architecture();
    let mut attention = AttentionConfig { mechanism, ..AttentionConfig::default() };
    if mechanism == Mechanism::Mgk {
        let variance = WIDENED * (architecture.head_width as f64).sqrt();
        let variances = Variances::List(vec![variance; attention.keys.components]);
        attention.mixture = MixtureOptions { variances, ..MixtureOptions::default() };
    }
    let layers = if architecture.shared_blocks { 1 } else { architecture.layers };
    let key_heads: Vec<usize> = (0..architecture.key_value_heads).collect();
    let group = |layer| PlanGroup { layer, key_heads: key_heads.clone(), attention: Some(attention.clone()) };
    Plan { layers, seed, parameters: None, groups: (1..=layers).map(group).collect() }
}

impl Study {
    /// Runs it on the tokens `ids` of texts, in the directory `out`, which is new or empty unless it goes on with what is there.
    /// `progress` gets what is being done, and how much of it is done.
    ///
    /// # Errors
    /// Options that do not fit the model or the directory, texts that are too short, an interrupt.
    #[expect(clippy::too_many_arguments, reason = "what a command knows")]
    pub fn run(
        &self,
        folder: &Folder,
        tokenizer: &Tokenizer,
        ids: &[u32],
        out: &Path,
        resume: bool,
        progress: &dyn Fn(&str, usize, usize) -> Result<(), AdaptError>,
        command: String,
        environment: Environment,
    ) -> Result<Adaptation, AdaptError> {
        let config = &self.config;
        config.check()?;
        if resume && !out.join(OPTIONS).is_file() {
            let problem = "no adaptation to resume; start one without --resume".into();
            return Err(TrainError::Checkpoint { path: out.into(), problem }.into());
        }
        let architecture = folder.architecture();
        if architecture.patch.is_some() {
            return Err(AdaptError::NoText);
        }
        if let (Ok(source), Ok(target)) = (folder.path().canonicalize(), out.canonicalize())
            && source.starts_with(&target)
        {
            let problem =
                format!("is in {}, which is written to; copy it elsewhere, or choose another --out", out.display());
            return Err(TrainError::Checkpoint { path: folder.path().into(), problem }.into());
        }
        let texts = Texts::new(folder, tokenizer, ids, config.length, config.held_out, config.seed)?;
        let judges = texts.judges()?;
        let has_loss = !judges[0].rows.is_empty();
        if config.control && !has_loss {
            return Err(AdaptError::NoControl);
        }
        // A model on a device with autodiff, none of whose numbers is tracked, and the same for inference.
        let context = (config.length > architecture.context).then_some(config.length);
        let options = LoadOptions { context, stretch: false };
        let exact = folder.model(options, &regard_nn::device::chosen().autodiff())?.frozen();
        let teacher = Pretrained { model: exact.model.valid(), ..exact.clone() };
        let student = exact.clone().with_plan(&self.plan)?.frozen();
        let _lock = self.open(out, resume, [("model", of_folder(folder.path())?), ("texts", of_tokens(ids))])?;

        let judge = |what: &str, model: &Pretrained| {
            let step = |done| progress(what, done, judges.len());
            tuning::loss(model, &teacher, &judges, step)
        };
        let errors = |model: &Pretrained| {
            let step = |done| progress("errors", done, judges.len());
            matching::errors(&teacher, &matching::layers(model)?, &judges, step)
        };
        let before = Pretrained { model: student.model.valid(), ..student.clone() };
        let mut judged = Judged::open(out)?;
        let mut rows = Vec::new();
        let mut row = |name: &str, loss: f64| rows.push(Row { name: name.into(), loss });
        row(EXACT, judged.once("exact", || Ok(vec![judge("judge", &teacher)?]))?[0]);
        row(PLANNED, judged.once("planned", || Ok(vec![judge("judge", &before)?]))?[0]);
        let first = judged.once("errors", || errors(&before))?;
        drop(before);

        let checkpoints = |name: &str| out.join("checkpoints").join(name);
        fs::create_dir_all(out.join("checkpoints")).map_err(|error| writing(out, error))?;
        let mut session =
            Session::open(config, [&teacher, &student], &texts, config.match_steps, checkpoints("adapted"))?;
        session.matching(&|done| progress("match", done, config.match_steps))?;
        let mut second = first.clone();
        if config.match_steps > 0 {
            // Remembered before the next step: then this model is gone.
            let loss = judged.once("matched", || Ok(vec![judge("judge", &session.model())?]))?[0];
            row(MATCHED, loss);
            second = judged.once("errors when matched", || errors(&session.model()))?;
        }
        session.tuning(&|done| progress("tune", done - config.match_steps, config.steps))?;
        let model = session.model();
        let third = if config.steps == 0 { second.clone() } else { errors(&model)? };
        let learned = [session.learned.count(), parameter_count(&model.model)];
        let (seconds, losses) = session.took();
        let losses = losses.to_vec();
        drop(session);
        let (written, model) = self.write(folder, model, options, out)?;
        row(ADAPTED, judge("judge", &model)?);
        drop(model);
        if config.control {
            let mut session = Session::open(config, [&teacher, &exact], &texts, 0, checkpoints("control"))?;
            session.tuning(&|done| progress("control", done, config.steps))?;
            row(CONTROL, judge("judge", &session.model())?);
        }
        let source = format!(
            "{} of {} layers, {} heads of {}",
            architecture.family.name(),
            architecture.layers,
            architecture.heads,
            architecture.head_width
        );
        let layers = first.into_iter().zip(second).zip(third).map(|((a, b), c)| [a, b, c]).collect();
        Ok(Adaptation {
            study: self.clone(),
            rows,
            layers,
            losses,
            seconds,
            learned,
            sequences: texts.training(),
            has_loss,
            written,
            source,
            command,
            environment,
        })
    }

    /// Takes the directory, and writes what is asked for into it or compares it with what is there.
    /// `sources` are digests of what the options do not name.
    fn open(&self, out: &Path, resume: bool, sources: [(&str, String); 2]) -> Result<DirectoryLock, AdaptError> {
        let options = out.join(OPTIONS);
        fs::create_dir_all(out).map_err(|error| writing(out, error))?;
        let lock = DirectoryLock::take(out)?;
        if !resume && occupied(out).map_err(|error| writing(out, error))? {
            return Err(AdaptError::NotEmpty { path: out.display().to_string() });
        }
        let mut own = serde_json::to_value(self).expect("numbers, names and lists");
        for (key, digest) in sources {
            own[key] = digest.into();
        }
        if resume {
            let damaged = |problem: String| TrainError::Checkpoint { path: options.clone(), problem };
            let text = fs::read(&options).map_err(|error| damaged(error.to_string()))?;
            let before = serde_json::from_slice(&text)
                .map_err(|error| damaged(format!("not sound JSON: {error}; start over in another directory")))?;
            if let Some((key, seen, expected)) = difference("", &own, &before) {
                return Err(AdaptError::Changed { key, seen, expected, path: out.display().to_string() });
            }
            return Ok(lock);
        }
        let text = serde_json::to_string_pretty(&own).expect("numbers, names and lists");
        write_whole(&options, text.as_bytes()).map_err(|error| writing(&options, error))?;
        Ok(lock)
    }

    /// Writes the model: as a folder where its parameters are those of the one it came from, else as a plan with its parameters.
    /// Gives back where, and the model as it was written.
    fn write(
        &self,
        folder: &Folder,
        model: Pretrained,
        options: LoadOptions,
        out: &Path,
    ) -> Result<(PathBuf, Pretrained), AdaptError> {
        let own = self.plan.groups.iter().flat_map(|group| &group.attention).any(|one| one.mechanism.is_mixture());
        let changed = changed(folder, &model);
        drop(model);
        let mut plan = Plan { parameters: None, ..self.plan.clone() };
        let written = if own {
            let tensors = changed.into_iter().map(|(name, (shape, data))| (name, HostTensor { shape, data })).collect();
            let path = out.join(PARAMETERS);
            write_whole(&path, &encode_tensors(&tensors)).map_err(|error| writing(&path, error))?;
            plan.parameters = Some(PARAMETERS.into());
            out.join(PLAN)
        } else {
            let (path, new, old) = (out.join(MODEL), out.join("model.new"), out.join("model.old"));
            let _ = fs::remove_dir_all(&new);
            folder
                .save(&new, |entry| changed.get(&entry.name).map(|(_, values)| whole(folder, &entry.name, values)))?;
            // Of the same adaptation, ended before.
            if path.exists() {
                let _ = fs::remove_dir_all(&old);
                fs::rename(&path, &old).map_err(|error| writing(&path, error))?;
            }
            fs::rename(&new, &path).map_err(|error| writing(&path, error))?;
            let _ = fs::remove_dir_all(&old);
            path
        };
        plan.write(&out.join(PLAN))?;
        let plan = Plan::read(&out.join(PLAN))?;
        let model = match own {
            true => folder.model(options, &regard_nn::device::chosen())?,
            false => {
                let allowed: Vec<&str> = folder.ignored().iter().map(String::as_str).collect();
                Folder::open_allowing(&written, &allowed)?.model(options, &regard_nn::device::chosen())?
            }
        };
        Ok((written, model.with_plan(&plan)?))
    }
}

/// A digest of the files of a model: their sizes, and parts of their bytes.
fn of_folder(folder: &Path) -> Result<String, AdaptError> {
    let reading = |error| TrainError::Checkpoint { path: folder.into(), problem: format!("cannot be read: {error}") };
    let names = fs::read_dir(folder).map_err(reading)?.map(|entry| entry.map(|entry| entry.path()));
    let mut files: Vec<PathBuf> = names.collect::<Result<_, _>>().map_err(reading)?;
    files.retain(|path| path.extension().is_some_and(|ending| ending == "safetensors" || ending == "json"));
    files.sort();
    let mut digest = Sha256::new();
    for path in files {
        let mut file = fs::File::open(&path).map_err(reading)?;
        let size = file.metadata().map_err(reading)?.len();
        digest.update(size.to_le_bytes());
        for start in [0, size / 2] {
            let mut part = Vec::new();
            file.seek(SeekFrom::Start(start)).map_err(reading)?;
            file.by_ref().take(1 << 20).read_to_end(&mut part).map_err(reading)?;
            digest.update(&part);
        }
    }
    Ok(shortened(digest))
}

/// A digest of tokens.
fn of_tokens(ids: &[u32]) -> String {
    let mut digest = Sha256::new();
    ids.iter().for_each(|id| digest.update(id.to_le_bytes()));
    shortened(digest)
}

/// Its first digits.
fn shortened(digest: Sha256) -> String {
    digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// What was judged before training went on, in a file: a run that goes on later cannot judge it again.
struct Judged {
    path: PathBuf,
    values: BTreeMap<String, Vec<f64>>,
}

impl Judged {
    fn open(out: &Path) -> Result<Self, AdaptError> {
        let path = out.join(JUDGED);
        let values = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| TrainError::Checkpoint {
                path: path.clone(),
                problem: format!("not sound JSON: {error}; start again in another directory"),
            })?,
            Err(_) => BTreeMap::new(),
        };
        Ok(Self { path, values })
    }

    fn once(
        &mut self,
        name: &str,
        judge: impl FnOnce() -> Result<Vec<f64>, AdaptError>,
    ) -> Result<Vec<f64>, AdaptError> {
        if let Some(seen) = self.values.get(name).filter(|seen| !seen.is_empty()) {
            return Ok(seen.clone());
        }
        let seen = judge()?;
        self.values.insert(name.into(), seen.clone());
        let text = serde_json::to_string_pretty(&self.values).expect("names and numbers");
        write_whole(&self.path, text.as_bytes()).map_err(|error| writing(&self.path, error))?;
        Ok(seen)
    }
}

/// Parameters that are not as in the folder, by name.
fn changed(folder: &Folder, model: &Pretrained) -> ParameterMap {
    let own = named_parameters(&model.model).into_iter().filter(|own| !own.buffer);
    let other = own.filter(|own| {
        folder.parameter(&own.name).is_none_or(|before| before.values() != whole(folder, &own.name, &own.values))
    });
    other.map(|own| (own.name, (own.shape, own.values))).collect()
}

/// Values of a parameter as the folder has them: a table of positions with the rows that the model does not read.
fn whole(folder: &Folder, name: &str, values: &[f32]) -> Vec<f32> {
    let architecture = folder.architecture();
    match (folder.parameter(name), architecture.position) {
        (Some(before), Position::Learned { offset, .. }) if name == "position_embedding" => {
            let (mut all, first) = (before.values(), offset * before.shape()[1]);
            all[first..first + values.len()].copy_from_slice(values);
            all
        }
        _ => values.to_vec(),
    }
}

/// The first value that differs, with its name.
fn difference(key: &str, own: &serde_json::Value, before: &serde_json::Value) -> Option<(String, String, String)> {
    use serde_json::Value::Object;
    match (own, before) {
        (Object(one), Object(other)) => {
            let keys: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            keys.into_iter().find_map(|name| {
                let [one, other] = [one, other].map(|map| map.get(name).unwrap_or(&serde_json::Value::Null));
                difference(name, one, other)
            })
        }
        (one, other) if one != other => Some((key.into(), short(one), short(other))),
        _ => None,
    }
}

fn short(value: &serde_json::Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn writing(path: &Path, source: std::io::Error) -> AdaptError {
    PretrainedError::Write { path: path.into(), source }.into()
}

#[cfg(test)]
mod tests {
    use regard_nn::models::load_parameters;

    use super::*;

    #[test]
    fn a_table_of_positions_keeps_the_rows_that_the_model_does_not_read() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pretrained/tests/golden/roberta");
        let folder = Folder::open(path).unwrap();
        let model =
            folder.model(LoadOptions { context: Some(8), stretch: false }, &burn::tensor::Device::flex()).unwrap();
        assert!(changed(&folder, &model).is_empty());
        let mut all: ParameterMap =
            named_parameters(&model.model).into_iter().map(|own| (own.name, (own.shape, own.values))).collect();
        all.get_mut("position_embedding").unwrap().1.fill(0.5);
        let model = Pretrained { model: load_parameters(model.model.clone(), all).unwrap(), ..model };
        let changed = changed(&folder, &model);
        let [(name, (shape, values))] = &changed.iter().collect::<Vec<_>>()[..] else { panic!("one changed") };
        assert_eq!((name.as_str(), shape[0]), ("position_embedding", 8));
        let (whole, before) = (whole(&folder, name, values), folder.parameter(name).unwrap().values());
        let Position::Learned { offset, .. } = folder.architecture().position else { panic!("a table") };
        let (first, last) = (offset * shape[1], (offset + 8) * shape[1]);
        assert!(offset == 2 && whole.len() == before.len() && whole[first..last].iter().all(|x| *x == 0.5));
        assert!(whole[..first] == before[..first] && whole[last..] == before[last..]);
    }
}
