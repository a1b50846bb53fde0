//! Rivals, directories that go away, and disks that are full or cannot be written.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use rand::Rng;

use super::{
    Recipe, Stage, Tally,
    kills::{finish, going_on, undisturbed},
    process::Running,
};

/// Whether a run has begun: it writes its configuration first, under the lock.
fn begun(out: &Path) -> impl Fn() -> bool {
    let file = out.join("config.toml");
    move || file.is_file()
}

/// While one process writes to a directory, another is refused, whatever it wants there.
pub fn rivals(stage: &mut Stage, recipe: Recipe, times: usize) -> Tally {
    let (expected, _, problem) = undisturbed(stage, recipe);
    let mut tally = Tally { problems: problem.into_iter().collect(), ..Tally::default() };
    for number in 0..times.div_ceil(5) {
        let out = stage.folder.path().join(format!("rivals-{number}"));
        tally.runs += 1;
        let mut first = stage.start(recipe, &out, &[]);
        if first.wait_until(begun(&out)) {
            first.signal(libc::SIGSTOP);
            for further in [&[][..], &["--resume"], &["--overwrite"]] {
                let problem = stage.start(recipe, &out, further).end().problem(&[2], "in use by another process");
                tally.problems.extend(problem);
            }
            first.signal(libc::SIGCONT);
        }
        if number % 2 == 0 {
            first.signal(libc::SIGKILL);
            tally.kills += 1;
        }
        first.end();
        finish(stage, recipe, &out, &expected, &mut tally);
    }
    tally
}

/// A directory that is removed in the middle of a run.
pub fn removed(stage: &mut Stage, times: usize) -> Tally {
    let mut tally = Tally::default();
    for number in 0..times.div_ceil(5) {
        let out = stage.folder.path().join(format!("removed-{number}"));
        tally.runs += 1;
        let mut running = stage.start(Recipe::Train, &out, &["--set", "train.steps=100000"]);
        running.wait_until(begun(&out));
        std::thread::sleep(stage.moment(0.5));
        // What is written meanwhile may have to be removed again.
        let gone = (0..1000).any(|_| fs::remove_dir_all(&out).is_ok() || !out.exists());
        let problem = running.end().problem(&[3], "removed or moved");
        tally.problems.extend(problem);
        if !gone || out.exists() {
            tally.problems.push("the directory came back".into());
        }
    }
    tally
}

/// A limit on the size of files, as `ulimit -f` sets it.
pub fn limited(stage: &mut Stage, times: usize) -> Tally {
    let (expected, _, problem) = undisturbed(stage, Recipe::Train);
    let mut tally = Tally { problems: problem.into_iter().collect(), ..Tally::default() };
    for number in 0..times {
        let out = stage.folder.path().join(format!("limited-{number}"));
        tally.runs += 1;
        let most = 1 << stage.stream.random_range(5..17);
        let ended = Running::start(&stage.binary, &Recipe::Train.arguments(), &out, Some(most)).end();
        tally
            .problems
            .extend(ended.problem(&[0, 3], "limit on the size").map(|problem| format!("{most} bytes: {problem}")));
        finish(stage, Recipe::Train, &out, &expected, &mut tally);
    }
    tally
}

/// A disk in memory, gone when dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(path: PathBuf, kibibytes: u32) -> Result<Self, String> {
        fs::create_dir_all(&path).map_err(|error| error.to_string())?;
        let output = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={kibibytes}k"), "regard-trials"])
            .arg(&path)
            .output();
        match output {
            Ok(output) if output.status.success() => Ok(Self(path)),
            Ok(_) => Err("mounting is not permitted here".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn remount(&self, option: &str) {
        let status = Command::new("mount").args(["-o", &format!("remount,{option}")]).arg(&self.0).status();
        assert!(status.is_ok_and(|status| status.success()), "remount with {option}");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// A disk without room for the whole run, then with.
pub fn full(stage: &mut Stage, times: usize) -> Tally {
    let (expected, _, problem) = undisturbed(stage, Recipe::Train);
    let mut tally = Tally { problems: problem.into_iter().collect(), ..Tally::default() };
    for number in 0..times {
        let kibibytes = stage.stream.random_range(4..600);
        let disk = match Disk::mount(stage.folder.path().join(format!("disk-{number}")), kibibytes) {
            Ok(disk) => disk,
            Err(why) => return Tally { skipped: Some(why), ..tally },
        };
        let out = disk.0.join("run");
        tally.runs += 1;
        let ended = stage.start(Recipe::Train, &out, &[]).end();
        tally.problems.extend(ended.problem(&[0, 3], "space").map(|problem| format!("{kibibytes} KiB: {problem}")));
        let kept: Vec<_> =
            fs::read_dir(out.join("checkpoints")).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        for path in
            kept.iter().filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-")))
        {
            tally.problems.extend(regard_tasks::train::Checkpoint::load(path).err().map(|error| error.to_string()));
        }
        disk.remount("size=64m");
        finish(stage, Recipe::Train, &out, &expected, &mut tally);
    }
    tally
}

/// A disk that cannot be written, with and without a run on it.
pub fn read_only(stage: &mut Stage, times: usize) -> Tally {
    let mut tally = Tally::default();
    for number in 0..times.div_ceil(10) {
        let disk = match Disk::mount(stage.folder.path().join(format!("read-only-{number}")), 1 << 16) {
            Ok(disk) => disk,
            Err(why) => return Tally { skipped: Some(why), ..tally },
        };
        let out = disk.0.join("run");
        for _ in 0..2 {
            tally.runs += 1;
            disk.remount("ro");
            let ended = stage.start(Recipe::Train, &out, going_on(&out)).end();
            tally.problems.extend(ended.problem(&[3], "choose a directory that can be written"));
            disk.remount("rw");
            let _ = stage.start(Recipe::Train, &out, going_on(&out)).end();
        }
    }
    tally
}
