//! Configurations: files of TOML and single assignments, through every check before data are read.

use rand::{Rng, seq::IndexedRandom};
use regard_lab::cost::check_training;
use regard_tasks::{
    Class, Failure,
    run::{Layers, PRESETS, RunConfig, keys},
};

use super::Target;
use crate::mutate::{EXTREMES, Stream, mutated};

const WORDS: [&str; 16] = [
    "[",
    "]",
    "=",
    "\"",
    "'''",
    "{",
    "}",
    "\n",
    ".",
    ",",
    "#",
    "0x",
    "1979-05-27",
    "preset = \"quick\"\n",
    "[model]\n",
    "\u{feff}",
];

/// A configuration from all layers, or why there is none: code 2 or 5 in one sentence.
fn checked(layers: &Layers) -> Result<(), Failure> {
    let config = layers.resolve()?;
    config.check_model()?;
    check_training(&config, 1)?;
    config.train.check()?;
    for entry in &config.compare.mechanisms {
        // Not every candidate fits every task.
        let fits = |own: RunConfig| own.check_model().and_then(|()| check_training(&own, 1));
        judge(config.candidate(entry).and_then(|(_, own)| fits(own)));
    }
    let again = config.to_toml();
    let mut layers = Layers::new();
    layers.text(&again, "again")?;
    assert_eq!(layers.resolve()?.to_toml(), again, "a configuration reads back as another");
    Ok(())
}

fn judge(result: Result<(), Failure>) -> bool {
    let Err(failure) = result else { return true };
    assert!(matches!(failure.class, Class::Usage | Class::Budget), "{failure:?}");
    assert!(!failure.message.is_empty() && failure.message.len() < 4000, "an error of {} bytes", failure.message.len());
    false
}

/// Files.
pub fn toml() -> Target {
    let samples: Vec<Vec<u8>> = PRESETS.iter().map(|(.., text)| text.as_bytes().to_vec()).collect();
    Target::new("config", samples, &WORDS, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return false };
        let mut layers = Layers::new();
        judge(layers.text(text, "fuzz.toml").and_then(|()| checked(&layers)))
    })
}

/// Assignments of `--set`, one per line.
pub fn assignments() -> Target {
    let keys = keys();
    let samples = vec![
        b"model.width=128\nheads=8\ncompare.seeds=1,2,3".to_vec(),
        b"mechanism=sparse\nsupport.kind=smyrf\nsupport.cluster=4\nbudget=1/8".to_vec(),
        b"compare.mechanisms=softmax,mgk:heads=2\nmixture.variances=[1.0, 2.5]".to_vec(),
    ];
    let make = move |stream: &mut Stream| {
        let assignment = |stream: &mut Stream| {
            let key = keys.choose(stream).expect("keys");
            let value = EXTREMES.choose(stream).expect("some");
            match stream.random_range(0..12) {
                0 => format!("{key}={value},{value}"),
                1 => format!("{key}=[{}]", [*value; 40].join(",")),
                2 => format!("{key}={}{value}{}", "[".repeat(300), "]".repeat(300)),
                3 => format!("{key}={}", value.repeat(1 << stream.random_range(0..10))),
                4 => String::from_utf8_lossy(&mutated(stream, format!("{key}={value}").as_bytes(), &[], &WORDS))
                    .into_owned(),
                _ => format!("{key}={value}"),
            }
        };
        (0..stream.random_range(1..4)).map(|_| assignment(stream)).collect::<Vec<_>>().join("\n").into_bytes()
    };
    Target::new("set", samples, &WORDS, |input| {
        let text = String::from_utf8_lossy(input);
        let mut layers = Layers::new();
        let assigned = text.split('\n').try_for_each(|assignment| layers.assign(assignment, "--set"));
        judge(assigned.and_then(|()| checked(&layers)))
    })
    .making(make)
}
