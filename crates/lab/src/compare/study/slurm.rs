//! A study as an array job of Slurm.

use std::path::Path;

/// A script for `sbatch` that trains a study in `parts` tasks, each a shard in a directory of its own beside `out`, which needs
/// no MPI. `command` is what trains the whole, without `--out`; `threads` are the processors of a task. The last task that ends
/// well puts the results together in `out`.
pub fn slurm(command: &str, out: &Path, parts: usize, threads: Option<usize>) -> String {
    let out = quoted(&out.to_string_lossy());
    let shard = format!("{out}-\"$SLURM_ARRAY_TASK_ID\"-of-{parts}");
    // One shard is no range for a shell.
    let numbers = if parts == 1 { "1".into() } else { format!("{{1..{parts}}}") };
    let shards = format!("{out}-{numbers}-of-{parts}");
    let cpus = threads.map_or(String::new(), |threads| format!("#SBATCH --cpus-per-task={threads}\n"));
    format!(
        "#!/bin/bash\n\
         #SBATCH --job-name=regard\n\
         #SBATCH --array=1-{parts}\n\
         #SBATCH --ntasks=1\n\
         {cpus}\
         # A minute before the time is up: the run in progress writes a checkpoint, and the same job goes on from it.\n\
         #SBATCH --signal=TERM@60\n\
         #SBATCH --output=regard-%A-%a.txt\n\
         set -euo pipefail\n\
         \n\
         # Cells that ended are passed over: sbatch this file again until all have.\n\
         if ! ls {shard}/report.html >/dev/null 2>&1; then\n    \
             srun {command} --shard \"$SLURM_ARRAY_TASK_ID\"/{parts} --out {shard} || [ $? -eq 1 ] # 1: cells failed, which the report says.\n\
         fi\n\
         \n\
         # Whoever is last puts the results together; where that fails, submit once more.\n\
         merging={out}.merging\n\
         if ls {shards}/report.html >/dev/null 2>&1 \\\n    \
             && [ ! -e {out}/report.html ] && mkdir \"$merging\" 2>/dev/null; then\n    \
             trap 'rmdir \"$merging\"' EXIT\n    \
             regard compare --merge {shards} --out {out}\n\
         fi\n"
    )
}

/// A word as a shell reads it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    /// The script as Slurm runs it, with stand-ins for `srun` and `regard` that leave what those leave.
    #[test]
    fn the_last_part_puts_all_together() {
        let folder = tempfile::tempdir().unwrap();
        let tools = folder.path().join("tools");
        fs::create_dir(&tools).unwrap();
        let regard = "#!/bin/bash\necho \"$@\" >>calls\nout=\"${@: -1}\"\nmkdir -p \"$out\"\n\
             if [ \"$2\" = --merge ] && [ ! -e once ]; then touch once; exit 3; fi\ntouch \"$out/report.html\"\n";
        for (name, text) in [("regard", regard), ("srun", "#!/bin/bash\n\"$@\"\n")] {
            let path = tools.join(name);
            fs::write(&path, text).unwrap();
            Command::new("chmod").arg("+x").arg(path).status().unwrap();
        }
        let script = slurm("regard compare --study s.toml", Path::new("runs/a b"), 2, Some(4));
        assert!(script.contains("#SBATCH --array=1-2\n") && script.contains("--cpus-per-task=4\n"), "{script}");
        fs::write(folder.path().join("job"), script).unwrap();
        fs::create_dir(folder.path().join("runs")).unwrap();
        let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
        // The first merge fails, the second is the last.
        for (task, fails) in [("2", false), ("2", false), ("1", true), ("1", false), ("2", false)] {
            let mut bash = Command::new("bash");
            bash.arg("job").current_dir(folder.path()).env("PATH", &path).env("SLURM_ARRAY_TASK_ID", task);
            assert_eq!(bash.status().unwrap().success(), !fails);
        }
        assert!(!folder.path().join("runs/a b.merging").exists());
        let calls = fs::read_to_string(folder.path().join("calls")).unwrap();
        let want = [
            "compare --study s.toml --shard 2/2 --out runs/a b-2-of-2",
            "compare --study s.toml --shard 1/2 --out runs/a b-1-of-2",
            "compare --merge runs/a b-1-of-2 runs/a b-2-of-2 --out runs/a b",
            "compare --merge runs/a b-1-of-2 runs/a b-2-of-2 --out runs/a b",
        ];
        assert_eq!(calls.lines().collect::<Vec<_>>(), want);
    }
}
