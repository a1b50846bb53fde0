//! Tries inputs in a process of their own, which may end in any way: what ended it is a finding, and the next process goes on
//! behind it. Input `i` is a function of target, seed and `i`.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    os::unix::fs::FileExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    process::{Command, Stdio, exit},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use clap::Args;

use crate::{
    report::Section,
    targets::{ALL, Target},
};

/// Longest time for one input, on a machine with other work.
const PATIENCE: Duration = Duration::from_secs(20);
/// Findings of a target after which it is left.
const ENOUGH: usize = 50;
/// Inputs between two looks at the clock.
const BLOCK: u64 = 64;

#[derive(Args, Clone)]
pub struct Options {
    /// One target instead of all.
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// Inputs for each target.
    #[arg(long, value_name = "N")]
    inputs: Option<u64>,
    /// Seconds in all, shared evenly, where no number of inputs is given.
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    seconds: f64,
    /// Directory for inputs that were findings.
    #[arg(long, value_name = "DIR", default_value = "target/trials")]
    findings: PathBuf,
}

#[derive(Args)]
pub struct Worker {
    target: String,
    from: u64,
    to: u64,
    seconds: f64,
    progress: PathBuf,
}

fn build(name: &str) -> Option<Target> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, build)| build())
}

/// The input that is being tried, and when that began in milliseconds.
static TRYING: (AtomicU64, AtomicU64) = (AtomicU64::new(0), AtomicU64::new(0));
/// Where the last panic was, and what it said.
static PANIC: Mutex<String> = Mutex::new(String::new());

/// Tries inputs until there are enough, or time is up. Prints one line per finding and one at the end.
pub fn work(worker: &Worker, seed: u64) {
    let begin = Instant::now();
    let millis = move || begin.elapsed().as_millis() as u64;
    std::panic::set_hook(Box::new(|about| {
        *PANIC.lock().expect("no panic here") = about.to_string().replace('\n', " ");
    }));
    let target = build(&worker.target).expect("the parent knows the targets");
    let progress = File::create(&worker.progress).expect("a file in a temporary directory");
    TRYING.1.store(millis(), Relaxed);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_millis(100));
            if millis().saturating_sub(TRYING.1.load(Relaxed)) > PATIENCE.as_millis() as u64 {
                eprintln!("no end after {} s", PATIENCE.as_secs());
                exit(97);
            }
        }
    });
    let (mut accepted, mut index) = (0u64, worker.from);
    while index < worker.to && !(index % BLOCK == 0 && begin.elapsed().as_secs_f64() > worker.seconds) {
        // What a kill or an abort leaves.
        progress.write_all_at(&[index.to_le_bytes(), accepted.to_le_bytes()].concat(), 0).expect("a file in memory");
        TRYING.0.store(index, Relaxed);
        TRYING.1.store(millis(), Relaxed);
        let input = target.input(seed, index);
        match catch_unwind(AssertUnwindSafe(|| target.run(&input))) {
            Ok(good) => accepted += u64::from(good),
            Err(_) => println!("{index}\t{}", PANIC.lock().expect("no panic here")),
        }
        index += 1;
    }
    println!("end\t{index}\t{accepted}");
}

/// Figures of one target.
#[derive(Default)]
struct Tally {
    inputs: u64,
    accepted: u64,
    seconds: f64,
    /// The first input of each kind of finding, and how many there were.
    findings: BTreeMap<String, (u64, usize)>,
}

/// Runs workers until the work is done.
fn tally(name: &str, options: &Options, seed: u64, seconds: f64) -> Tally {
    let begin = Instant::now();
    let (to, seconds) = options.inputs.map_or((u64::MAX, seconds), |inputs| (inputs, f64::MAX));
    let directory = tempfile::tempdir().expect("a temporary directory");
    let progress = directory.path().join("progress");
    let mut tally = Tally::default();
    let mut count = 0;
    let found = |tally: &mut Tally, index: u64, what: String| {
        // Numbers differ from input to input: the place tells findings apart.
        let place =
            what.strip_prefix("panicked at ").map_or(what.as_str(), |what| what.split(": ").next().unwrap_or(what));
        let kind = place.chars().filter(|c| !c.is_ascii_digit() || what.starts_with("panicked")).take(160).collect();
        tally.findings.entry(kind).or_insert((index, 0)).1 += 1;
    };
    while tally.inputs < to && begin.elapsed().as_secs_f64() < seconds && count < ENOUGH {
        let left = seconds - begin.elapsed().as_secs_f64();
        let program = std::env::current_exe().expect("this program");
        let mut worker = Command::new(program);
        worker.args(["worker", name]).args([tally.inputs, to].map(|number| number.to_string()));
        worker.arg(left.to_string()).args(["--seed", &seed.to_string()]).arg(&progress).env("RAYON_NUM_THREADS", "1");
        let mut child = worker.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("this program again");
        let stderr = child.stderr.take().expect("piped");
        let said = std::thread::spawn(move || {
            let mut text = String::new();
            // What cannot be read was not said.
            let _ = BufReader::new(stderr).read_to_string(&mut text);
            text
        });
        let mut ended = false;
        for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
            let line = line.unwrap_or_default();
            let (index, what) = line.split_once('\t').unwrap_or(("0", &line));
            if index == "end" {
                let (index, accepted) = what.split_once('\t').expect("two numbers");
                tally.inputs = index.parse().expect("a number");
                tally.accepted += accepted.parse::<u64>().expect("a number");
                ended = true;
            } else {
                count += 1;
                found(&mut tally, index.parse().unwrap_or(0), what.to_owned());
            }
        }
        let status = child.wait().expect("a child");
        let said = said.join().unwrap_or_default();
        if !ended {
            let mut place = [[0; 8]; 2];
            let bytes = fs::read(&progress).unwrap_or_default();
            place.iter_mut().zip(bytes.chunks_exact(8)).for_each(|(to, from)| to.copy_from_slice(from));
            let [index, accepted] = place.map(u64::from_le_bytes);
            count += 1;
            let why = said.lines().find(|line| !line.is_empty()).unwrap_or("nothing said");
            found(&mut tally, index, format!("{status}: {why}"));
            tally.inputs = index + 1;
            tally.accepted += accepted;
        }
    }
    tally.seconds = begin.elapsed().as_secs_f64();
    tally
}

/// Fuzzes, saves what is found, and tells the figures.
pub fn section(options: &Options, seed: u64) -> Section {
    let names: Vec<&str> = ALL
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| options.target.as_deref().is_none_or(|one| one == *name))
        .collect();
    if names.is_empty() {
        let all: Vec<&str> = ALL.iter().map(|(name, _)| *name).collect();
        eprintln!(
            "error: --target is '{}', expected one of {}",
            options.target.as_deref().unwrap_or_default(),
            all.join(", ")
        );
        exit(2);
    }
    println!("seed {seed}");
    let seconds = options.seconds / names.len() as f64;
    let (mut rows, mut findings) = (Vec::new(), 0);
    for name in names {
        let tally = tally(name, options, seed, seconds);
        findings += tally.findings.len();
        for (what, (index, times)) in &tally.findings {
            let input = build(name).expect("a known name").input(seed, *index);
            let file = options.findings.join(format!("{name}-{seed}-{index}.hex"));
            let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
            let saved =
                fs::create_dir_all(&options.findings).and_then(|()| File::create(&file)?.write_all(hex.as_bytes()));
            println!(
                "FINDING {name}, input {index}, {times} times: {what}\n  {}",
                hex.chars().take(400).collect::<String>()
            );
            println!("  {}", saved.map_or_else(|error| format!("not saved: {error}"), |()| file.display().to_string()));
        }
        let share = 100.0 * tally.accepted as f64 / tally.inputs.max(1) as f64;
        eprintln!(
            "{name}: {} inputs, {share:.1} % accepted, {} findings, {:.1} s",
            tally.inputs,
            tally.findings.len(),
            tally.seconds
        );
        rows.push(vec![
            name.into(),
            tally.inputs.to_string(),
            format!("{share:.1} %"),
            tally.findings.len().to_string(),
            format!("{:.0}", tally.seconds),
        ]);
    }
    let about = format!(
        "Inputs made from valid ones by structure and by bytes, seed {seed}. A finding is a panic, an abort, a block of memory \
         beyond 1 GiB, more than 2 GiB in all, {} s without an end, or a damaged file that was taken for sound.",
        PATIENCE.as_secs()
    );
    let columns = vec!["target", "inputs", "accepted", "findings", "seconds"];
    Section { title: "Damaged input".into(), about, columns, rows, findings }
}
