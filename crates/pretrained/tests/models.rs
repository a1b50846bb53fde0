//! Models of the usual sizes, where they are at hand: `REGARD_MODELS` names a folder of model folders. Tensors that are no part of
//! the model are allowed by a file `ALLOWED` there, one `MODEL PATTERN` a line.
#![expect(clippy::print_stderr, reason = "a test that does nothing has to say so")]

use std::{env, fs, path::Path};

use regard_pretrained::Folder;

#[test]
fn models_at_hand_are_read_and_written_back() {
    let Ok(models) = env::var("REGARD_MODELS") else {
        eprintln!("skipped: REGARD_MODELS names no folder of models");
        return;
    };
    let allowed = fs::read_to_string(Path::new(&models).join("ALLOWED")).unwrap_or_default();
    let mut seen = 0;
    for entry in fs::read_dir(&models).unwrap() {
        let path = entry.unwrap().path();
        if !path.join("config.json").is_file() {
            continue;
        }
        let model = path.file_name().unwrap().to_str().unwrap().to_string();
        let patterns: Vec<&str> = allowed
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(name, _)| *name == model)
            .map(|(_, p)| p)
            .collect();
        let folder = Folder::open_allowing(&path, &patterns).unwrap_or_else(|error| panic!("{model}: {error}"));
        let numbers: usize = folder.load().map(|parameter| parameter.values().len()).sum();
        let tokenizer = folder.tokenizer();
        eprintln!(
            "{model}: {:?}, {} parameters, {numbers} numbers",
            folder.architecture().family,
            folder.entries().len()
        );
        eprintln!("    left out: {:?}", folder.ignored());
        match &tokenizer {
            Ok(tokenizer) => {
                let text = "The quick brown fox 🙂 jumps.";
                let encoded = tokenizer.encode(text, true, None).unwrap();
                eprintln!(
                    "    {} tokens, {:?} -> {:?}",
                    tokenizer.size(),
                    encoded.ids,
                    tokenizer.decode(&encoded.ids, false).unwrap()
                );
            }
            Err(error) => eprintln!("    {error}"),
        }
        let out = tempfile::tempdir().unwrap();
        let target = out.path().join(&model);
        folder.save(&target, |_| None).unwrap();
        for name in ["config.json", "model.safetensors"] {
            assert!(fs::read(path.join(name)).unwrap() == fs::read(target.join(name)).unwrap(), "{model}: {name}");
        }
        seen += 1;
    }
    assert!(seen > 0, "{models} has no folder with config.json");
}
