//! Kills at random moments, between which a process is stopped and goes on now and then.

use std::{path::Path, thread::sleep, time::Instant};

use rand::Rng;

use super::{Recipe, Stage, Tally, remains::difference};

/// Kills of one run after which it is left in peace.
const MOST: usize = 12;

/// The run of a recipe that nothing disturbed, and its seconds.
pub fn undisturbed(stage: &mut Stage, recipe: Recipe) -> (std::path::PathBuf, f64, Option<String>) {
    let out = stage.folder.path().join(if recipe == Recipe::Train { "train" } else { "compare" });
    if out.exists() {
        // Made by the trial before.
        return (out, 1.0, None);
    }
    let begin = Instant::now();
    let problem = stage.start(recipe, &out, &[]).end().problem(&[0], "");
    (out, begin.elapsed().as_secs_f64(), problem)
}

/// Arguments that go on with what is in a directory.
pub fn going_on(out: &Path) -> &'static [&'static str] {
    let entries = std::fs::read_dir(out).into_iter().flatten().flatten();
    let begun = entries.into_iter().any(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    if begun { &["--resume"] } else { &[] }
}

/// Ends a run in peace and compares what it left.
pub fn finish(stage: &mut Stage, recipe: Recipe, out: &Path, expected: &Path, tally: &mut Tally) {
    let ended = stage.start(recipe, out, going_on(out)).end();
    tally.resumes += 1;
    tally.problems.extend(ended.problem(&[0], "").or_else(|| difference(out, expected)));
    // A disk in memory is small.
    let _ = std::fs::remove_dir_all(out);
}

pub fn killed(stage: &mut Stage, recipe: Recipe, times: usize) -> Tally {
    let (expected, seconds, problem) = undisturbed(stage, recipe);
    let mut tally = Tally { problems: problem.into_iter().collect(), ..Tally::default() };
    for number in 0..times {
        let out = stage.folder.path().join(format!("killed-{number}"));
        tally.runs += 1;
        let mut kills = 0;
        while kills < MOST {
            let mut running = stage.start(recipe, &out, going_on(&out));
            tally.resumes += usize::from(kills > 0);
            if stage.stream.random_bool(0.3) {
                sleep(stage.moment(seconds / 2.0));
                running.signal(libc::SIGSTOP);
                sleep(stage.moment(0.1));
                running.signal(libc::SIGCONT);
            }
            sleep(stage.moment(seconds));
            if running.has_ended() {
                let ended = running.end();
                tally.problems.extend(ended.problem(&[0], ""));
                break;
            }
            running.signal(libc::SIGKILL);
            running.end();
            kills += 1;
        }
        tally.kills += kills;
        finish(stage, recipe, &out, &expected, &mut tally);
    }
    tally
}
