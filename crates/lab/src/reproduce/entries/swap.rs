//! Other attention in trained models, within budgets of memory: the planner's choice beside single candidates.

use std::cell::RefCell;

use regard_kernels::{Storage, mechanism::Fraction};
use regard_pretrained::{
    Folder, PretrainedError,
    run::{read_pixels, read_text, smart_documents},
};
use regard_report::{Axis, Chart, Column, Data, Format, Sample, Scale as Ticks, Series, Table, number::significant};
use regard_tasks::Failure;
use serde_json::Value;

use crate::{
    folder::{check_memory, class},
    reproduce::{Clause, Entry, Estimate, Finding, Paper, Scale, Setup, Workbench, confidence},
    swap::{Budget, Example, Kind, Row, Study, Swap, SwapError, sample, sample_images},
};

const DOCUMENTS: &str = "cranfield/cran.all.1400.gz";
const NOVEL: &str = "austen/emma.txt.gz";
const MEETINGS: &str = "qmsum/test.jsonl.gz";
const IMAGES: &str = "images.safetensors";

/// What every one of these entries claims of its model.
const CLAIM: &str = "Within each budget of memory, on sequences that nothing was measured on, the choice of the planner loses less than \
                     the single candidate that loses least there when it stands in every head, or is that candidate.";
const NO_PAPER: &str = "No paper has this claim.";

pub const MINILM: Entry = Entry {
    name: "swap-minilm",
    paper: Paper::Planner,
    figures: "beyond the papers: an encoder, 1/32 to 1/2 of the entries",
    claim: CLAIM,
    data: "all-MiniLM-L6-v2 and the Cranfield collection, by --models and --data",
    models: &["minilm"],
    paper_setting: NO_PAPER,
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "512 tokens, budgets of 1/32, 1/16, 1/8, 1/4 and 1/2, 8 sequences to measure on and 8 to judge by.",
            differences: &["8 sequences", ONE_MODEL, RIVAL],
            minutes: 1.5,
        },
        Setup {
            scale: Scale::Here,
            setting: "512 tokens, budgets of 1/32, 1/16, 1/8, 1/4 and 1/2, 32 sequences to measure on and 32 to judge by.",
            differences: &["32 sequences", ONE_MODEL, RIVAL],
            minutes: 6.0,
        },
    ],
    run: |bench, scale| {
        let sequences = sized(scale, 8, 32);
        judged(bench, "swap-minilm", "minilm", &study(512, sequences, &ALL, &["1/32", "1/16", "1/8", "1/4", "1/2"])?)
    },
};

pub const SMOLLM2: Entry = Entry {
    name: "swap-smollm2",
    paper: Paper::Planner,
    figures: "beyond the papers: a language model on a novel, 1/32 to 1/4 of the memory",
    claim: CLAIM,
    data: "SmolLM2-135M and a novel, by --models and --data",
    models: &["smollm2"],
    paper_setting: NO_PAPER,
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "1,024 tokens, keys and values as int8, windows and Scatterbrain on them, budgets of 1/32, 1/8 and 1/4, 4 \
                      sequences to measure on and 4 to judge by.",
            differences: &["1,024 tokens", "4 sequences", ONE_MODEL, RIVAL],
            minutes: 6.0,
        },
        Setup {
            scale: Scale::Here,
            setting: "2,048 tokens, keys and values as int8, budgets of 1/32, 1/16, 1/8 and 1/4, 8 sequences to measure on and 8 \
                      to judge by.",
            differences: &["2,048 tokens", "8 sequences", ONE_MODEL, RIVAL],
            minutes: 35.0,
        },
    ],
    run: |bench, scale| {
        let study = match scale {
            Scale::Quick => study(1024, 4, &[Kind::Window, Kind::Scatterbrain], &["1/32", "1/8", "1/4"])?,
            Scale::Here | Scale::Paper => study(2048, 8, &ALL, &["1/32", "1/16", "1/8", "1/4"])?,
        };
        judged(bench, "swap-smollm2", "smollm2", &Study { storage: Storage::Int8, ..study })
    },
};

pub const MEETING: Entry = Entry {
    name: "swap-meeting",
    paper: Paper::Planner,
    figures: "beyond the papers: a language model on meetings, 1/32 and 1/8 of the memory",
    claim: CLAIM,
    data: "SmolLM2-135M and the meetings of QMSum, by --models and --data",
    models: &["smollm2"],
    paper_setting: NO_PAPER,
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "2,048 tokens, keys and values as int8, windows, budgets of 1/32 and 1/8, 4 sequences to measure on and 4 to \
                      judge by.",
            differences: &["2,048 tokens", "4 sequences", ONE_MODEL, RIVAL],
            minutes: 5.0,
        },
        Setup {
            scale: Scale::Here,
            setting: "4,096 tokens, keys and values as int8, windows, budgets of 1/32 and 1/8, 8 sequences to measure on and 8 to \
                      judge by.",
            differences: &["4,096 tokens", "8 sequences", ONE_MODEL],
            minutes: 25.0,
        },
    ],
    run: |bench, scale| {
        let (length, sequences) = sized(scale, (2048, 4), (4096, 8));
        let study = study(length, sequences, &[Kind::Window], &["1/32", "1/8"])?;
        judged(bench, "swap-meeting", "smollm2", &Study { storage: Storage::Int8, ..study })
    },
};

pub const VIT: Entry = Entry {
    name: "swap-vit",
    paper: Paper::Planner,
    figures: "beyond the papers: a vision transformer, 1/32 and 1/8 of the entries",
    claim: CLAIM,
    data: PICTURES,
    models: &["vit"],
    paper_setting: NO_PAPER,
    setups: &[Setup {
        scale: Scale::Quick,
        setting: "1,370 tokens, budgets of 1/32 and 1/8, 4 images to measure on and 4 to judge by.",
        differences: &["4 images", ONE_MODEL, RIVAL],
        minutes: 1.5,
    }],
    run: |bench, _| judged(bench, "swap-vit", "vit", &study(0, 4, &ALL, &["1/32", "1/8"])?),
};

pub const VIT_REPLACED: Entry = Entry {
    name: "swap-vit-replaced",
    paper: Paper::Scatterbrain,
    figures: "tables 1 and 6",
    claim: "Put into every head of a trained vision transformer without training, with a small share of the memory, Scatterbrain keeps \
            nearer to what the model says with exact attention than hashing and than random features.",
    data: PICTURES,
    models: &["vit"],
    paper_setting: "A pretrained T2T vision transformer on ImageNet, in which 2 % of the memory of attention is left: accuracy, and error \
                    of the attention of each layer.",
    setups: &[Setup {
        scale: Scale::Quick,
        setting: "1,370 tokens, 1/32 of the entries, 8 images.",
        differences: &[
            "a DINOv2 of 12 layers and 6 heads for T2T-ViT",
            "1 - cosine of the mean states to those of exact attention for accuracy",
            "8 images for ImageNet",
            "1/32 of the entries for 2 %",
            "neither the plain sum of both nor the errors of attention are judged; the images of one model are the units",
        ],
        minutes: 1.5,
    }],
    run: replaced,
};

const PICTURES: &str = "a vision transformer and images.safetensors with its pixel_values, by --models and --data";
const ONE_MODEL: &str = "one model of its kind";
/// What makes the comparison easier for one side.
const RIVAL: &str = "a single candidate has 1/2, 1/4 .. 1/32 of the entries and may leave half of a budget unused, as the table says; the best one is \
                     picked on the sequences that judge, which is to its advantage";

/// Kinds of candidates that attend at all.
const ALL: [Kind; 5] = [Kind::Window, Kind::Scatterbrain, Kind::Performer, Kind::Smyrf, Kind::ScatterbrainSmyrf];

/// One of two settings.
fn sized<T>(scale: Scale, quick: T, longer: T) -> T {
    if scale == Scale::Quick { quick } else { longer }
}

fn study(length: usize, sequences: usize, kinds: &[Kind], budgets: &[&str]) -> Result<Study, Failure> {
    let budget = |name: &&str| -> Result<Budget, Failure> {
        Ok(Budget { name: (*name).into(), share: name.parse::<Fraction>()?.value() })
    };
    Ok(Study {
        length,
        calibration: length,
        sequences,
        kinds: kinds.to_vec(),
        divisors: vec![2, 4, 8, 16, 32],
        memory: budgets.iter().map(budget).collect::<Result<_, _>>()?,
        time: None,
        storage: Storage::F32,
        predictor: None,
        compare: false,
        validate: 0,
        seed: 0,
        stretch: false,
    })
}

fn of_folder(error: PretrainedError) -> Failure {
    Failure::new(class(&error), error)
}

/// Runs a study of a model on its data; where nothing that was measured decides, all sequences judge.
fn swapped(bench: &Workbench, entry: &str, model: &str, study: &Study, judge_by_all: bool) -> Result<Swap, Failure> {
    let path = bench.model(model)?;
    // The folder of the vision transformer has a decoder that belongs to no transformer.
    let folder = Folder::open_allowing(&path, &["saliency_decoder.*"]).map_err(of_folder)?;
    let patch = folder.architecture().patch;
    let length = if patch.is_some() { folder.architecture().context } else { study.length };
    let study = Study { length, calibration: length, ..study.clone() };
    check_memory(&folder, Some(length), length)?;
    let mut parts = match patch {
        Some(patch) => {
            let pixels = read_pixels(&bench.data_file(IMAGES)?, patch).map_err(of_folder)?;
            sample_images(&pixels, patch.channels * patch.image * patch.image, study.sequences)?
        }
        None => texts(bench, entry, &folder, &study)?,
    };
    if judge_by_all {
        let [sample, judges] = &mut parts;
        judges.extend(sample.iter().cloned());
    }
    let last = RefCell::new(String::new());
    let progress = |what: &str, _: usize, _: usize| {
        if last.replace(what.to_owned()) != what {
            bench.note(&format!("{entry}: {what}"));
        }
        if bench.stopped() { Err(SwapError::Interrupted) } else { Ok(()) }
    };
    let command = format!("regard reproduce {entry}");
    Ok(study.run(&folder, &parts, &progress, command, bench.environment.clone())?)
}

/// Sequences of the texts of an entry.
fn texts(bench: &Workbench, entry: &str, folder: &Folder, study: &Study) -> Result<[Vec<Example>; 2], Failure> {
    let read = |name: &str, parse: fn(&str) -> Result<String, String>| {
        let path = bench.data_file(name)?;
        let text = parse(&read_text(&path).map_err(of_folder)?);
        text.map_err(|problem| Failure::data(format!("{}: {problem}", path.display())))
    };
    let text = match entry {
        "swap-minilm" => read(DOCUMENTS, documents)?,
        "swap-meeting" => read(MEETINGS, meetings)?,
        _ => read(NOVEL, |text| Ok(text.to_owned()))?,
    };
    let ids = folder.tokenizer().and_then(|tokenizer| tokenizer.encode(&text, false, None)).map_err(of_folder)?.ids;
    Ok(sample(&ids, study.length, study.sequences)?)
}

/// The texts of documents in the SMART format, a line each.
fn documents(text: &str) -> Result<String, String> {
    Ok(smart_documents(text)?.into_iter().map(|document| document.text).collect::<Vec<_>>().join("\n"))
}

/// Meetings, one a line, as lines `speaker: content`, a line for each turn.
fn meetings(text: &str) -> Result<String, String> {
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let meeting: Value = serde_json::from_str(line).map_err(|error| format!("line {}: {error}", number + 1))?;
        let turns = meeting["meeting_transcripts"].as_array();
        let expected =
            || format!("line {}: no 'meeting_transcripts' with 'speaker' and 'content'; fetch it again", number + 1);
        for turn in turns.ok_or_else(expected)? {
            match (turn["speaker"].as_str(), turn["content"].as_str()) {
                (Some(speaker), Some(content)) => lines.push(format!("{speaker}: {content}")),
                _ => return Err(expected()),
            }
        }
    }
    Ok(lines.join("\n"))
}

/// How much less `one` loses than `other`, sequence by sequence.
fn gain(one: &Row, other: &Row, clauses: usize, units: &str) -> Estimate {
    Estimate::paired(&other.losses, &one.losses, confidence(clauses), units)
}

/// The name of a way without the mark of a choice.
fn plain(row: &Row) -> &str {
    row.name.trim_start_matches("* ")
}

/// The choice within a budget, and the single candidate that loses least where both are judged.
fn rivals<'s>(rows: &'s [Row], budget: &str) -> Option<(&'s Row, &'s Row)> {
    let within = || rows.iter().filter(|row| row.budget.as_deref() == Some(budget));
    let best = within().filter(|row| row.single.is_some()).min_by(|a, b| a.loss.total_cmp(&b.loss))?;
    Some((within().find(|row| row.is_chosen())?, best))
}

fn judged(bench: &Workbench, entry: &str, model: &str, study: &Study) -> Result<Finding, Failure> {
    let swap = swapped(bench, entry, model, study, false)?;
    let what = if swap.has_loss { "nats per token" } else { "1 - cosine" };
    let mut table = Table::new(
        format!("The choice and the best single candidate: {}, {} tokens", swap.source, swap.study.length),
        vec![
            Column::text("budget"),
            Column::text("choice"),
            Column::number("memory", Format::Percent(1)),
            Column::number("lost", Format::Significant(3)),
            Column::text("best single"),
            Column::number("memory of it", Format::Percent(1)),
            Column::number("lost by it", Format::Significant(3)),
            Column::number("gain", Format::Significant(3)),
            Column::number("error of the gain", Format::Significant(2)),
        ],
    )
    .note(format!(
        "Lost: {what} beside exact attention, mean over {} sequences that nothing was measured on; best single: the one that loses \
         least on these; gain: how much less the choice loses, with the standard error over the sequences.",
        swap.study.sequences
    ));
    let exact = if swap.has_loss { swap.rows[0].loss } else { 0.0 };
    let units = if matches!(entry, "swap-vit") { "images" } else { "sequences" };
    let (mut clauses, mut told) = (Vec::new(), Vec::new());
    for chosen in &swap.chosen {
        let Some(budget) = &chosen.budget else { continue };
        let Some((choice, single)) = rivals(&swap.rows, &budget.name) else { continue };
        let gain = gain(choice, single, swap.chosen.len(), units);
        let gains: Vec<f64> = choice.losses.iter().zip(&single.losses).map(|(own, other)| other - own).collect();
        let error = Sample::of(&gains).variance_of_mean().map(f64::sqrt);
        told.push(format!("{} at {}", significant(gain.value, 3), budget.name));
        let clause = Clause::paper(format!("With {} of the memory it loses less than {}.", budget.name, plain(single)));
        let value = gain.value;
        clauses.push(match choice.losses == single.losses {
            true => clause.exactly(true).note("the choice is this candidate, or does the same"),
            false => clause.above(gain, 0.0),
        });
        table.push(vec![
            budget.name.as_str().into(),
            plain(choice).into(),
            choice.predicted.bytes.into(),
            (choice.loss - exact).into(),
            plain(single).into(),
            single.predicted.bytes.into(),
            (single.loss - exact).into(),
            value.into(),
            error.into(),
        ]);
    }
    Ok(Finding {
        clauses,
        statement: format!(
            "What the choice loses less than the best single candidate, in {what}: {}.",
            told.join(", ")
        ),
        charts: vec![("budgets".into(), swap.over_budgets())],
        tables: vec![table, swap.judged(), swap.choice()],
    })
}

fn replaced(bench: &Workbench, _: Scale) -> Result<Finding, Failure> {
    // Sizes alone make a single candidate.
    let study = Study { compare: true, ..study(0, 4, &ALL, &["1/32"])? };
    let swap = swapped(bench, "swap-vit-replaced", "vit", &study, true)?;
    let of = |kind: Kind| {
        let row = swap.rows.iter().find(|row| row.single == Some(kind));
        row.ok_or_else(|| Failure::data(format!("no '{}' keeps to the budget", kind.name())))
    };
    let pairs = [
        (Kind::ScatterbrainSmyrf, Kind::Smyrf),
        (Kind::ScatterbrainSmyrf, Kind::Performer),
        (Kind::Scatterbrain, Kind::Window),
    ];
    let mut table = Table::new(
        "Attention replaced in every head",
        vec![
            Column::text("attention"),
            Column::number("entries", Format::Percent(1)),
            Column::number("1 - cosine", Format::Significant(3)),
            Column::number("deviation", Format::Significant(2)),
        ],
    )
    .note("1 - cosine of the mean states to those of exact attention; deviation over the images.");
    for kind in ALL {
        let row = of(kind)?;
        let deviation = Sample::of(&row.losses).deviation();
        table.push(vec![plain(row).into(), row.predicted.bytes.into(), row.loss.into(), deviation.into()]);
    }
    let mut clauses = Vec::new();
    for (ours, other) in pairs {
        let gain = gain(of(ours)?, of(other)?, 2, "images");
        let text = format!("{} is nearer to exact attention than {}.", ours.name(), other.name());
        // Of bands the paper has numbers alone.
        clauses.push(Clause { of_paper: other != Kind::Window, ..Clause::paper(text) }.above(gain, 0.0));
    }
    let told = ALL.iter().map(|kind| Ok(format!("{} {}", kind.name(), significant(of(*kind)?.loss, 3))));
    let told = told.collect::<Result<Vec<_>, Failure>>()?;
    let series = ALL.iter().enumerate().map(|(style, kind)| {
        let losses = of(*kind).map(|row| row.losses.clone()).unwrap_or_default();
        Series::new(kind.name(), style, losses.into_iter().enumerate().map(|(n, loss)| ((n + 1) as f64, loss)))
    });
    let chart = Chart::new("Attention replaced in every head", "Image by image", Data::Lines(series.collect()))
        .axes(Axis::new("image", "").whole(), Axis::new("1 - cosine", "").scale(Ticks::Log));
    Ok(Finding {
        clauses,
        statement: format!("1 - cosine to exact attention: {}.", told.join(", ")),
        tables: vec![table, swap.judged()],
        charts: vec![("images".into(), chart)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meetings_are_lines_of_turns() {
        let line = r#"{"meeting_transcripts": [{"speaker": "A", "content": "Hello ."}, {"speaker": "B", "content": "Yes ."}]}"#;
        assert_eq!(meetings(&format!("{line}\n{line}\n")).unwrap(), "A: Hello .\nB: Yes .\nA: Hello .\nB: Yes .");
        let error = meetings(&format!("{line}\n{{\"meeting_transcripts\": [{{}}]}}")).unwrap_err();
        assert!(error.contains("line 2") && error.contains("'speaker'"), "{error}");
        assert!(meetings("{").unwrap_err().contains("line 1"));
    }

    #[test]
    fn the_best_single_candidate_of_a_budget_is_the_rival() {
        let row = |name: &str, budget: &str, single: Option<Kind>, losses: [f64; 3]| Row {
            name: name.into(),
            budget: Some(budget.into()),
            single,
            sample_loss: None,
            predicted: crate::swap::Total::default(),
            loss: losses.iter().sum::<f64>() / 3.0,
            losses: losses.to_vec(),
            seconds: 0.0,
        };
        let rows = [
            row("* mix", "1/8", None, [0.1, 0.2, 0.3]),
            row("window-1/8", "1/8", Some(Kind::Window), [0.3, 0.3, 0.5]),
            row("smyrf-1/8", "1/8", Some(Kind::Smyrf), [0.6, 0.2, 0.6]),
            row("window-1/4", "1/4", Some(Kind::Window), [0.0, 0.0, 0.0]),
        ];
        let (choice, single) = rivals(&rows, "1/8").unwrap();
        assert_eq!((&choice.name[..], &single.name[..]), ("* mix", "window-1/8"));
        let gain = gain(choice, single, 1, "sequences");
        assert!((gain.value - 1.0 / 6.0).abs() < 1e-12 && gain.count == 3, "{gain:?}");
        assert!(rivals(&rows, "1/4").is_none(), "no choice");
    }
}
