//! Figures of trained models that others computed, where models and data are at hand: `REGARD_MODELS` names a folder of model
//! folders, `REGARD_DATA` one of data sets.
#![expect(clippy::print_stderr, reason = "a test that does nothing has to say so")]

mod support;

use std::{env, ops::ControlFlow, path::PathBuf};

use burn::tensor::Device;
use regard_metrics::spearman;
use regard_pretrained::{
    Folder, LoadOptions, Model,
    run::{Beginning, EmbedOptions, PerplexityOptions, Progress, embed, perplexity, read_text, sentence_pairs},
};
use support::stories;

fn at(variable: &str, path: &str) -> Option<PathBuf> {
    let found = env::var_os(variable).map(|place| PathBuf::from(place).join(path)).filter(|path| path.exists());
    if found.is_none() {
        eprintln!("skipped: {path} is not in the folder that {variable} names");
    }
    found
}

fn on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn short_stories_are_predicted_as_well_as_by_transformers() {
    let Some(data) = at("REGARD_DATA", "tinystories-sample/tinystories_sample.txt.gz") else { return };
    let folder = Folder::open(stories()).unwrap();
    let Model::Language(model) = folder.model(LoadOptions::default(), &Device::flex()).unwrap().model else { panic!() };
    let tokenizer = folder.tokenizer().unwrap();
    let text = read_text(&data).unwrap();
    let story = |story: &str| {
        let mut ids = tokenizer.encode(story.trim(), false, None).unwrap().ids;
        // One more token begins it.
        ids.truncate(511);
        ids
    };
    let documents: Vec<Vec<u32>> = text.split("<|endoftext|>").skip(100).take(40).map(story).collect();
    let options = PerplexityOptions { context: 512, stride: 512, beginning: Beginning::Document, bos: Some(1) };
    let seen = perplexity(&model, &documents, options, on).unwrap();
    assert!((seen.nats - 1.5653).abs() < 5e-5 && seen.tokens == 17_109, "{seen:?}");
}

#[test]
fn sentences_are_as_similar_as_people_find_them() {
    let Some(minilm) = at("REGARD_MODELS", "minilm") else { return };
    let folder = Folder::open(minilm).unwrap();
    let pretrained = folder.model(LoadOptions::default(), &Device::flex()).unwrap();
    let tokenizer = folder.tokenizer().unwrap();
    for (name, expected) in [("dev", 0.855), ("test", 0.789)] {
        let Some(data) = at("REGARD_DATA", &format!("sts-b-cc/sts-{name}.tsv.gz")) else { return };
        let pairs = sentence_pairs(&read_text(&data).unwrap()).unwrap();
        let pairs: Vec<_> = pairs.into_iter().step_by(2).collect();
        let texts: Vec<&str> = pairs.iter().flat_map(|pair| [&pair.first[..], &pair.second[..]]).collect();
        let vectors = embed(&pretrained, &tokenizer, &texts, EmbedOptions::default(), on).unwrap();
        let cosines: Vec<f64> = (0..pairs.len()).map(|i| vectors.cosine(2 * i, 2 * i + 1)).collect();
        let given: Vec<f64> = pairs.iter().map(|pair| pair.score).collect();
        let seen = spearman(&cosines, &given);
        assert!((seen - expected).abs() < 5e-4, "{name}: {seen}");
    }
}
