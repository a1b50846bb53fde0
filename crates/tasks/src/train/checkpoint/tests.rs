use super::*;
use crate::train::LossScale;

fn checkpoint(step: usize) -> Checkpoint {
    let weight = HostTensor { shape: vec![2, 2], data: vec![1.0, 2.0, 3.0, step as f32] };
    let moments = Moments { first: vec![0.1; 4], second: vec![0.2; 4] };
    Checkpoint {
        model: HostTensors::from([("layer.weight".into(), weight)]),
        moments: BTreeMap::from([("layer.weight".into(), moments)]),
        state: RunState {
            step,
            seed: 7,
            batch: 2,
            accumulate: 1,
            best: Some(Best { step: 20, score: -0.1 - 0.2 }),
            evaluations_since_best: 1,
            seconds: 0.1,
            loss_scale: Some(LossScale { factor: 4096.0, steady: 3 }),
        },
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_is_saved_comes_back_and_old_ones_go() {
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(directory.path().join("checkpoints"), 2);
    assert_eq!(checkpoints.last(), None);
    for step in [10, 20, 30, 40, 50] {
        let path = checkpoints.save(&checkpoint(step)).unwrap();
        assert_eq!(checkpoints.last(), Some(path.clone()));
        assert_eq!(Checkpoint::load(&path).unwrap(), checkpoint(step));
    }
    assert_eq!(names(&checkpoints.directory), ["best", "last", "step-20", "step-40", "step-50"]);
    assert!(checkpoints.best().unwrap().ends_with("step-20"));
    let files = names(&checkpoints.last().unwrap());
    assert_eq!(files, ["model.safetensors", "optimizer.safetensors", "state.json"]);
}

#[test]
fn regular_ones_are_kept_for_the_mean_which_lasts_until_the_run_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(directory.path(), 1).keeping_regular(2, 10);
    for step in [10, 20, 25, 30, 33, 34] {
        checkpoints.save(&checkpoint(step)).unwrap();
    }
    assert_eq!(names(directory.path()), ["best", "last", "step-20", "step-30", "step-34"]);
    assert!(checkpoints.best().unwrap().ends_with("step-20"));
    let mut mean = checkpoint(34);
    mean.model.get_mut("layer.weight").unwrap().data[0] = 9.0;
    mean.moments.clear();
    let path = checkpoints.save_average(&mean).unwrap();
    assert_eq!((checkpoints.best(), checkpoints.average()), (Some(path.clone()), Some(path.clone())));
    assert!(checkpoints.last().unwrap().ends_with("step-34"));
    assert_eq!(Checkpoint::load(&path).unwrap(), mean);
    checkpoints.save(&checkpoint(40)).unwrap();
    assert_eq!(names(directory.path()), ["best", "last", "step-20", "step-30", "step-40"]);
    assert!(checkpoints.best().unwrap().ends_with("step-20"));
}

#[test]
fn writing_a_step_again_replaces_it_and_drops_its_future() {
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(directory.path(), 3);
    for step in [10, 30, 40] {
        checkpoints.save(&checkpoint(step)).unwrap();
    }
    let mut again = checkpoint(30);
    again.model.get_mut("layer.weight").unwrap().data[0] = 9.0;
    let path = checkpoints.save(&again).unwrap();
    assert_eq!(Checkpoint::load(&path).unwrap(), again);
    assert_eq!(names(directory.path()), ["last", "step-10", "step-30"]);
}

#[test]
fn a_write_that_was_cut_short_does_not_count() {
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(directory.path(), 2);
    checkpoints.save(&checkpoint(10)).unwrap();
    // As a kill leaves it: files under the temporary name, and a checkpoint renamed but not yet pointed to.
    fs::create_dir_all(directory.path().join(".removed-5.tmp")).unwrap();
    fs::write(directory.path().join("best.tmp"), "half").unwrap();
    fs::create_dir(directory.path().join(".step-20.tmp")).unwrap();
    fs::write(directory.path().join(".step-20.tmp").join(MODEL), b"half").unwrap();
    assert_eq!(checkpoints.steps(), [10]);
    assert!(checkpoints.last().unwrap().ends_with("step-10"));
    checkpoints.save(&checkpoint(20)).unwrap();
    assert_eq!(names(directory.path()), ["best", "last", "step-10", "step-20"]);
    // A pointer to nothing falls back on the newest.
    fs::write(directory.path().join("last"), "step-99").unwrap();
    assert!(checkpoints.last().unwrap().ends_with("step-20"));
}

#[test]
fn damage_of_any_file_is_seen_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(directory.path(), 2);
    let path = checkpoints.save(&checkpoint(10)).unwrap();
    let message = || Checkpoint::load(&path).unwrap_err().to_string();
    for file in [MODEL, OPTIMIZER] {
        let file = path.join(file);
        let sound = fs::read(&file).unwrap();
        fs::write(&file, &sound[..sound.len() - 3]).unwrap();
        let expected = format!("{}: {} bytes; state.json says {}", file.display(), sound.len() - 3, sound.len());
        assert!(message().starts_with(&expected), "{}", message());
        let mut flipped = sound.clone();
        *flipped.last_mut().unwrap() ^= 1;
        fs::write(&file, flipped).unwrap();
        assert!(message().contains("SHA-256"), "{}", message());
        fs::remove_file(&file).unwrap();
        assert!(message().starts_with("cannot read"), "{}", message());
        fs::write(&file, sound).unwrap();
    }
    let file = path.join(STATE);
    let sound = fs::read_to_string(&file).unwrap();
    fs::write(&file, &sound[..sound.len() / 2]).unwrap();
    assert!(message().contains("not the state of a run"), "{}", message());
    let mut later: serde_json::Value = serde_json::from_str(&sound).unwrap();
    later["format"] = 9.into();
    later.as_object_mut().unwrap().remove("sha256");
    fs::write(&file, later.to_string()).unwrap();
    assert!(message().contains("format 9, expected 1 or 2; use the version"), "{}", message());
    // The format before had no checksum.
    later["format"] = 1.into();
    fs::write(&file, later.to_string()).unwrap();
    assert_eq!(Checkpoint::load(&path).unwrap(), checkpoint(10));
    fs::write(&file, sound).unwrap();
    Checkpoint::load(&path).unwrap();
}

#[test]
fn any_changed_byte_of_the_state_is_seen() {
    let directory = tempfile::tempdir().unwrap();
    let path = Checkpoints::new(directory.path(), 2).save(&checkpoint(10)).unwrap();
    let file = path.join(STATE);
    let sound = fs::read(&file).unwrap();
    for place in 0..sound.len() {
        for mask in [1, 2, 3, 16, 0x29, 0x80] {
            let mut changed = sound.clone();
            changed[place] ^= mask;
            fs::write(&file, &changed).unwrap();
            let error = Checkpoint::load(&path).expect_err(&format!("byte {place} ^ {mask}")).to_string();
            assert!(error.contains("state.json"), "{error}");
        }
    }
}

#[test]
fn damage_names_the_newest_checkpoint_that_is_sound() {
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(directory.path(), 4);
    for step in [10, 30, 40] {
        checkpoints.save(&checkpoint(step)).unwrap();
    }
    let flip = |step: usize, file: &str| {
        let file = directory.path().join(format!("step-{step}")).join(file);
        let mut bytes = fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(file, bytes).unwrap();
    };
    let last = checkpoints.last().unwrap();
    let message = || Checkpoint::load(&last).unwrap_err().to_string();
    flip(40, OPTIMIZER);
    let expected = format!("; step-30 is sound: remove {} and use --resume", last.display());
    assert!(message().ends_with(&expected), "{}", message());
    flip(30, STATE);
    assert!(message().contains("step-10 is sound"), "{}", message());
    flip(10, MODEL);
    assert!(
        message().ends_with(
            "no other checkpoint of the run is sound: train again with --overwrite, or in another directory"
        ),
        "{}",
        message()
    );
    flip(30, STATE);
    // The remedy works.
    fs::remove_dir_all(&last).unwrap();
    assert_eq!(Checkpoint::load(&checkpoints.last().unwrap()).unwrap(), checkpoint(30));
}

#[test]
fn damaged_pointers_are_done_without() {
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(directory.path(), 4);
    for step in [10, 20, 30] {
        checkpoints.save(&checkpoint(step)).unwrap();
    }
    // A kill between the two pointers leaves the second one behind; the state knows better.
    for content in [&b"step-10"[..], b"", b"step-99", b"step-020", b"\xff\xfe", b"../../step-10"] {
        fs::write(directory.path().join("best"), content).unwrap();
        assert!(checkpoints.best().unwrap().ends_with("step-20"));
    }
    for content in [&b""[..], b"step-99", b"step-030", b"\xff\xfe", b"step-18446744073709551616"] {
        fs::write(directory.path().join("last"), content).unwrap();
        assert!(checkpoints.last().unwrap().ends_with("step-30"));
    }
    fs::write(directory.path().join("best"), "step-10").unwrap();
    fs::write(directory.path().join("step-30").join(STATE), "{").unwrap();
    assert!(checkpoints.best().unwrap().ends_with("step-10"));
    // A directory that was removed is not begun anew.
    let gone = Checkpoints::new(directory.path().join("gone").join("checkpoints"), 2);
    let error = gone.save(&checkpoint(10)).unwrap_err().to_string();
    assert!(error.contains("removed or moved") && !directory.path().join("gone").exists(), "{error}");
}

#[test]
fn a_directory_that_cannot_be_written_keeps_what_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::new(directory.path(), 2);
    let path = checkpoints.save(&checkpoint(10)).unwrap();
    // Permissions do not stop the superuser; a file in the way stops anybody.
    fs::write(directory.path().join(".step-20.tmp"), b"in the way").unwrap();
    let error = checkpoints.save(&checkpoint(20)).unwrap_err();
    assert!(matches!(error, TrainError::Write { .. }), "{error}");
    assert_eq!(checkpoints.last(), Some(path.clone()));
    assert_eq!(Checkpoint::load(&path).unwrap(), checkpoint(10));
}
