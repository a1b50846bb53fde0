use std::{cell::Cell, fs, path::Path};

use burn::{module::Module, tensor::Device};
use regard_kernels::Mechanism;
use regard_nn::blocks::Context;
use regard_pretrained::{Folder, LoadOptions, Model, Plan, PlanGroup, Pretrained};
use regard_tasks::train::Environment;
use tempfile::TempDir;

use super::{data::Texts, learned::Learned, session::Session, *};

fn folder(name: &str) -> Folder {
    Folder::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("../pretrained/tests").join(name)).expect("a model")
}

const STORY: &str = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a \
                     big, red ball. She wanted to play with it, but it was too high. Lily's mom said, \"Lily, let's go to the \
                     park.\" Lily was sad and didn't know what to do. She said, \"I want to play with your ball, but I can't find it.\" ";

fn ids(folder: &Folder) -> Vec<u32> {
    folder.tokenizer().expect("a tokenizer").encode(&STORY.repeat(4), false, None).expect("a text").ids
}

/// The first token and a narrow window in all heads.
fn window(folder: &Folder) -> Plan {
    let architecture = folder.architecture();
    let attention =
        serde_json::json!({ "mechanism": "sparse", "support": { "kind": "longformer", "globals": 1, "radius": 2 } });
    let attention: Option<regard_nn::attention::AttentionConfig> = serde_json::from_value(attention).expect("options");
    let layers = if architecture.shared_blocks { 1 } else { architecture.layers };
    let key_heads: Vec<usize> = (0..architecture.key_value_heads).collect();
    let group = |layer| PlanGroup { layer, key_heads: key_heads.clone(), attention: attention.clone() };
    Plan { layers, seed: 1, parameters: None, groups: (1..=layers).map(group).collect() }
}

fn config() -> AdaptConfig {
    AdaptConfig {
        length: 48,
        batch: 2,
        held_out: 2,
        match_steps: 12,
        steps: 12,
        match_rate: 3e-3,
        rate: 2e-3,
        warmup: 2,
        clip: 1.0,
        training: Training::Lora { rank: 4, alpha: 8.0 },
        distill: 0.0,
        control: false,
        seed: 3,
        checkpoint_every: 5,
    }
}

fn run(
    folder: &Folder,
    plan: &Plan,
    config: AdaptConfig,
    out: &Path,
    resume: bool,
    progress: &dyn Fn(&str, usize, usize) -> Result<(), AdaptError>,
) -> Result<Adaptation, AdaptError> {
    let study = Study { config, plan: plan.clone() };
    let tokenizer = folder.tokenizer()?;
    let environment = Environment::capture(None);
    study.run(folder, &tokenizer, &ids(folder), out, resume, progress, "regard adapt".into(), environment)
}

fn whole(folder: &Folder, plan: &Plan, config: AdaptConfig, out: &Path) -> Adaptation {
    run(folder, plan, config, out, false, &|_, _, _| Ok(())).expect("an adaptation")
}

fn loss(adapted: &Adaptation, name: &str) -> f64 {
    adapted.rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no row {name}")).loss
}

#[test]
fn matching_lowers_the_error_of_every_layer_and_tuning_the_loss() {
    let cases = [
        ("stories260k", Training::Lora { rank: 4, alpha: 8.0 }),
        ("stories260k", Training::Full),
        ("golden/bert-masked", Training::Lora { rank: 4, alpha: 8.0 }),
        ("golden/bert-sentences", Training::Full),
    ];
    for (name, training) in cases {
        let folder = folder(name);
        let length = folder.architecture().context.min(48);
        let out = TempDir::new().unwrap();
        let config = AdaptConfig { length, training, steps: 20, ..config() };
        let adapted = whole(&folder, &window(&folder), config, out.path());
        for [before, matched, _] in &adapted.layers {
            assert!(*before > 1e-4 && matched < before, "{name}, {training:?}: {:?}", adapted.layers);
        }
        let [planned, after] = ["planned", "planned, adapted"].map(|row| loss(&adapted, row));
        assert!(after < planned, "{name}, {training:?}: {:?}", adapted.rows);
        assert_eq!(adapted.has_loss, name != "golden/bert-sentences");
        assert_eq!(adapted.losses.len(), 32);
    }
}

#[test]
fn a_loss_in_parts_is_the_whole_loss_and_distillation_ends_at_the_teacher() {
    let folder = folder("stories260k");
    let exact = folder.model(LoadOptions::default(), &Device::flex().autodiff()).unwrap().frozen();
    let teacher = Pretrained { model: exact.model.valid(), ..exact.clone() };
    let learned = Learned::new(&exact.model, Training::Full, 1);
    let tracked =
        |model: &Pretrained| Pretrained { model: learned.apply(model.model.clone(), "", true), ..model.clone() };
    let student = tracked(&exact);
    // More rows than logits are computed for at a time.
    let texts = Texts::new(&folder, &folder.tokenizer().unwrap(), &ids(&folder), 258, 1, 3).unwrap();
    let example = texts.batch(0, 2).unwrap();
    assert_eq!(example.rows.len(), 2 * 257);
    let (loss, gradients) = tuning::backward(&student, &teacher, &example, 0.0).unwrap();
    let Model::Language(model) = &student.model else { panic!("a language model") };
    let ids = &example.tokens.ids;
    let targets: Vec<i32> = (0..516).map(|at| if at % 258 == 257 { -1 } else { ids[at + 1] }).collect();
    let whole = model.loss(&example.tokens, targets.into(), 0.0, &Context::evaluation());
    assert!((f64::from(whole.clone().inner().into_scalar::<f32>()) - loss).abs() < 1e-5, "{loss}");
    let mut expected = learned::HostGradients::new();
    learned::collect(&student.model, "", whole.backward(), &mut expected);
    assert_eq!(gradients.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, gradient) in &gradients {
        let largest = expected[name].iter().fold(0f32, |a, b| a.max(b.abs()));
        let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-4 * largest + 1e-7;
        assert!(!gradient.iter().zip(&expected[name]).any(far), "gradient of {name}");
    }
    let (none, still) = tuning::backward(&student, &teacher, &example, 1.0).unwrap();
    assert!(none.abs() < 1e-5 && learned::norm(&still) < 1e-3 * learned::norm(&gradients), "{none}");
    let planned = tracked(&exact.clone().with_plan(&window(&folder)).unwrap().frozen());
    let (far, _) = tuning::backward(&planned, &teacher, &example, 1.0).unwrap();
    let (half, _) = tuning::backward(&planned, &teacher, &example, 0.5).unwrap();
    let (task, _) = tuning::backward(&planned, &teacher, &example, 0.0).unwrap();
    assert!(far > 0.01 && (half - 0.5 * (far + task)).abs() < 1e-4, "{far} {half} {task}");
}

#[test]
fn what_is_written_is_what_was_trained() {
    let (folder, out) = (folder("stories260k"), TempDir::new().unwrap());
    let plan = window(&folder);
    let adapted = whole(&folder, &plan, config(), out.path());
    let options = LoadOptions::default();
    let exact = folder.model(options, &Device::flex().autodiff()).unwrap().frozen();
    let teacher = Pretrained { model: exact.model.valid(), ..exact.clone() };
    let student = exact.with_plan(&plan).unwrap().frozen();
    let config = config();
    let texts =
        Texts::new(&folder, &folder.tokenizer().unwrap(), &ids(&folder), config.length, 2, config.seed).unwrap();
    let directory = out.path().join("checkpoints/adapted");
    let session = Session::open(&config, [&teacher, &student], &texts, 12, directory).unwrap();
    let kept = tuning::loss(&session.model(), &teacher, &texts.judges().unwrap(), |_| Ok(())).unwrap();
    assert_eq!(kept, loss(&adapted, "planned, adapted"));
    // Only projections of attention learned: all else is as it was, to the byte.
    let written = Folder::open(&adapted.written).unwrap();
    for (before, after) in folder.load().zip(written.load()) {
        let projection = ["w_q", "w_k", "w_v", "w_o"].iter().any(|end| before.name().ends_with(end));
        assert_eq!(before.bytes() == after.bytes(), !projection, "{}", before.name());
    }
}

#[test]
fn no_step_changes_nothing() {
    let (folder, out) = (folder("golden/bert-masked"), TempDir::new().unwrap());
    let length = folder.architecture().context.min(48);
    let config = AdaptConfig { match_steps: 0, steps: 0, length, ..config() };
    let adapted = whole(&folder, &window(&folder), config, out.path());
    assert_eq!(loss(&adapted, "planned"), loss(&adapted, "planned, adapted"));
    for file in ["model.safetensors", "config.json"] {
        assert_eq!(
            fs::read(folder.path().join(file)).unwrap(),
            fs::read(adapted.written.join(file)).unwrap(),
            "{file}"
        );
    }
}

#[test]
fn an_interrupted_adaptation_goes_on_bit_for_bit() {
    let folder = folder("stories260k");
    let plan = window(&folder);
    let config = AdaptConfig { distill: 0.5, control: true, ..config() };
    let [straight, broken] = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let whole = whole(&folder, &plan, config.clone(), straight.path());
    // Between checkpoints, at the end of a stage, and in the control.
    let mut resume = false;
    for stop in [("match", 7), ("judge", 0), ("tune", 0), ("tune", 6), ("control", 8)] {
        let seen = Cell::new(false);
        let progress = |what: &str, done: usize, _: usize| {
            seen.set(seen.get() || (what, done) == stop);
            if (what, done) == stop { Err(AdaptError::Interrupted) } else { Ok(()) }
        };
        let ended = run(&folder, &plan, config.clone(), broken.path(), resume, &progress);
        // What was judged before an interrupt is not judged again.
        assert!(matches!(ended, Err(AdaptError::Interrupted)) && seen.get() || stop.0 == "judge", "{stop:?}");
        resume = true;
    }
    let resumed = run(&folder, &plan, config.clone(), broken.path(), true, &|_, _, _| Ok(())).unwrap();
    assert_eq!(resumed.rows, whole.rows);
    assert_eq!((resumed.layers, resumed.losses), (whole.layers, whole.losses));
    let bytes = |out: &TempDir| fs::read(out.path().join("model/model.safetensors")).unwrap();
    assert!(bytes(&straight) == bytes(&broken));

    let other = AdaptConfig { rate: 1e-3, ..config };
    let refused = run(&folder, &plan, other.clone(), broken.path(), true, &|_, _, _| Ok(())).unwrap_err().to_string();
    assert!(refused.starts_with("rate is 0.001, but") && refused.contains("has 0.002"), "{refused}");
    let refused = run(&folder, &plan, other, broken.path(), false, &|_, _, _| Ok(())).unwrap_err().to_string();
    assert!(refused.contains("is not empty"), "{refused}");
}

#[test]
fn layers_that_share_weights_are_matched_in_all_their_uses() {
    let folder = folder("golden/albert");
    let exact = folder.model(LoadOptions::default(), &Device::flex().autodiff()).unwrap().frozen();
    let teacher = Pretrained { model: exact.model.valid(), ..exact.clone() };
    let student = exact.with_plan(&window(&folder)).unwrap().frozen();
    let tokens = regard_nn::models::TokenBatch::full((0..24).map(|id| id % 17).collect::<Vec<_>>(), 2).unwrap();
    let example = data::Example { tokens, rows: Vec::new(), targets: Vec::new().into() };
    let learned = Learned::new(&student.model, Training::Full, 1);
    let layers = matching::layers(&student).unwrap();
    assert_eq!(layers.len(), 1);
    let mut seen = Vec::new();
    matching::backward(&teacher, &layers, &learned, &example, |error, gradients| {
        seen.push((error, gradients.keys().cloned().collect::<Vec<_>>()));
        Ok(())
    })
    .unwrap();
    let [(error, names)] = &seen[..] else { panic!("{seen:?}") };
    assert!(*error > 0.0 && names.contains(&"layers.0.attention.w_q".to_owned()), "{seen:?}");
    let layers = matching::layers(&Pretrained { model: student.model.valid(), ..student.clone() }).unwrap();
    let whole = matching::errors(&teacher, &layers, std::slice::from_ref(&example), |_| Ok(())).unwrap();
    assert!((whole[0] - error).abs() < 1e-4 * error, "{whole:?} {error}");
}

#[test]
fn a_trained_model_becomes_a_mixture_of_keys() {
    let folder = folder("stories260k");
    let out = TempDir::new().unwrap();
    let short = AdaptConfig { match_steps: 4, steps: 4, ..config() };
    let plan = mixture_plan(&folder, Mechanism::Mgk, 1);
    let adapted = whole(&folder, &plan, short, out.path());
    let (exact, planned) = (loss(&adapted, "exact"), loss(&adapted, "planned"));
    assert!((planned - exact).abs() < 0.01, "{planned} {exact}");
    // What a command opens again is what was judged.
    let read = Plan::read(&adapted.written).unwrap();
    let again = folder.model(LoadOptions::default(), &Device::flex()).unwrap().with_plan(&read).unwrap();
    let texts = Texts::new(&folder, &folder.tokenizer().unwrap(), &ids(&folder), 48, 2, 3).unwrap();
    let loss_of = |model: &Pretrained| tuning::loss(model, model, &texts.judges().unwrap(), |_| Ok(())).unwrap();
    assert_eq!(loss_of(&again), loss(&adapted, "planned, adapted"));

    let out = TempDir::new().unwrap();
    let plan = mixture_plan(&folder, Mechanism::Mlk, 1);
    let adapted = whole(&folder, &plan, AdaptConfig { match_steps: 30, ..config() }, out.path());
    assert!(adapted.layers.iter().all(|[before, matched, _]| matched < before), "{:?}", adapted.layers);
    assert!(loss(&adapted, "planned") > exact + 0.5, "linear attention is another function: {:?}", adapted.rows);
    assert!(loss(&adapted, "planned, adapted") < loss(&adapted, "planned"), "{:?}", adapted.rows);
}

#[test]
fn what_cannot_be_adapted_is_told() {
    let stories = folder("stories260k");
    let out = TempDir::new().unwrap();
    let refused = |folder: &Folder, plan: &Plan, config: AdaptConfig| {
        run(folder, plan, config, &out.path().join("x"), false, &|_, _, _| Ok(())).unwrap_err()
    };
    let told = |config: AdaptConfig| refused(&stories, &window(&stories), config).to_string();
    assert!(told(AdaptConfig { distill: 1.5, ..config() }).contains("distill is 1.5"));
    assert!(told(AdaptConfig { rate: -1.0, ..config() }).contains("rate is -1"));
    assert!(told(AdaptConfig { training: Training::Lora { rank: 4, alpha: 0.0 }, ..config() }).contains("alpha is 0"));
    assert!(told(AdaptConfig { held_out: 5000, ..config() }).contains("5000 sequences of 48 to judge by"));
    let encoder = folder("golden/bert-sentences");
    let length = encoder.architecture().context.min(48);
    let control = refused(&encoder, &window(&encoder), AdaptConfig { control: true, length, ..config() });
    assert!(matches!(control, AdaptError::NoControl));
    let other = Plan { layers: 3, groups: Vec::new(), ..window(&stories) };
    assert!(refused(&stories, &other, config()).to_string().contains("number of layers of a plan is 3"));
    assert!(!out.path().join("x").exists(), "nothing is written before all is known");
    let wild = AdaptConfig { training: Training::Full, match_steps: 0, rate: 3e38, warmup: 0, clip: 0.0, ..config() };
    assert!(matches!(refused(&stories, &window(&stories), wild), AdaptError::Numbers { .. }));
}
