//! Measured time and memory of mixtures of keys with half the heads.

use regard_kernels::{AttentionOptions, Mechanism, mechanism::KeyDesign};
use regard_report::{
    Axis, Cell, Chart, Column, Data, Format, Point, Scale as Ticks, Series, Table,
    number::{self, significant},
};
use regard_tasks::Failure;

use super::timing;
use crate::{
    bench::{self, Level, Measurement, Pass, Sizes, Subject, TimeRatio},
    reproduce::{Clause, Entry, Finding, Paper, Scale, Setup, Verdict, Workbench},
};

pub const ENTRY: Entry = Entry {
    name: "mgk-efficiency",
    paper: Paper::Mgk,
    figures: "table 7",
    claim: "At test time, with two keys per position and half as many heads, MGK and sMGK take less time and memory than softmax \
            attention with all heads, and MLK and sMLK less than linear attention; shifted keys take less than projected ones.",
    data: "none",
    models: &[],
    paper_setting: "Whole models of 2 layers trained for retrieval, batch 32, seconds and memory of an iteration at test time on a GPU.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "Layers with their projections: 8 heads of 64, width 512, one sequence of 512 to 4,096 tokens, medians of up to \
                      15 runs in turns.",
            differences: DIFFERENCES,
            minutes: 3.0,
        },
        Setup {
            scale: Scale::Here,
            setting: "Layers with their projections: 4, 8 and 12 heads of 64, as wide as all heads together, one sequence of 512 to \
                      8,192 tokens, medians of up to 15 runs in turns.",
            differences: DIFFERENCES,
            minutes: 40.0,
        },
    ],
    run,
};

const DIFFERENCES: &[&str] = &[
    "a processor for a GPU",
    "a layer for a whole model",
    "one sequence for 32",
    "heads of 64 for 32, width 512 for 64",
    "4,096 tokens for 4,000",
    "of memory, the working bytes alone: neither parameters nor input",
    "8 heads are judged, as in the paper; 4 and 12 are an observation",
];

/// Length at which the claim is judged, about that of the paper's 4,000 bytes.
const LENGTH: usize = 4096;

/// All heads of the paper's models, of which the mixtures have half.
const HEADS: usize = 8;

/// Head width, the same with all heads and with half of them.
const HEAD_WIDTH: usize = 64;

/// Labels of a mixture with half the heads and of its baseline; then of shifted and of projected keys. A layer is measured, not the operator alone: half the
/// heads means half the queries, values and outputs to project, which is most of what a mixture saves at short lengths.
const PAIRS: [(&str, &str); 6] =
    [("mgk", "softmax"), ("smgk", "softmax"), ("mlk", "linear"), ("smlk", "linear"), ("smgk", "mgk"), ("smlk", "mlk")];

/// Those of them with a baseline of all heads.
const HALVED: usize = 4;

/// Timed level and pass, with its name.
const USES: [(Level, Pass, &str); 2] =
    [(Level::Inference, Pass::Forward, "inference"), (Level::Layer, Pass::Both, "training")];

fn run(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let (heads, lengths): (&[usize], &[usize]) = match scale {
        Scale::Quick => (&[8], &[512, 1024, 2048, 4096]),
        _ => (&[4, 8, 12], &[512, 1024, 2048, 4096, 8192]),
    };
    let mut measurements = Vec::new();
    for &heads in heads {
        let subjects = subjects(heads);
        for (level, pass, name) in USES {
            let heads_of = [heads];
            let plan = timing::plan(level, &subjects, lengths, &heads_of, &[HEAD_WIDTH]);
            let watch = |m: &Measurement| {
                let time = m.time(pass).map_or(f64::NAN, |time| time.median);
                let (label, length, time) = (&m.label, m.at.length, significant(time, 3));
                bench.note(&format!("{heads} heads, {name}: {label} at {length} tokens, {time} ms"));
            };
            measurements.extend(bench::run(&plan, &watch, &bench.stop)?);
        }
    }
    Ok(judge(&measurements))
}

/// Softmax and linear attention with `heads` heads, the mixtures with half as many.
fn subjects(heads: usize) -> Vec<Subject> {
    let subject = |(mechanism, halved, design)| {
        let own = if halved { heads / 2 } else { heads };
        let mut options = AttentionOptions { mechanism, heads: own, ..AttentionOptions::default() };
        (options.keys.components, options.keys.design) = (2, design);
        Subject { label: options.label(), options, own_heads: halved, recipe: None }
    };
    let all = [
        (Mechanism::Softmax, false, KeyDesign::Projected),
        (Mechanism::Linear, false, KeyDesign::Projected),
        (Mechanism::Mgk, true, KeyDesign::Projected),
        (Mechanism::Mgk, true, KeyDesign::Shifted),
        (Mechanism::Mlk, true, KeyDesign::Projected),
        (Mechanism::Mlk, true, KeyDesign::Shifted),
    ];
    all.into_iter().map(subject).collect()
}

/// A mixture and its baseline at the same sizes.
struct Beside<'a> {
    mixture: &'a Measurement,
    baseline: &'a Measurement,
    pass: Pass,
}

impl Beside<'_> {
    fn time(&self) -> Option<TimeRatio> {
        Some(self.mixture.time(self.pass)?.over(&self.baseline.time(self.pass)?))
    }

    fn bytes(&self) -> Option<f64> {
        Some(self.mixture.bytes(self.pass)? as f64 / self.baseline.bytes(self.pass)? as f64)
    }

    /// Times of a wrong computation are meaningless.
    fn is_wrong(&self) -> bool {
        self.mixture.is_wrong() || self.baseline.is_wrong()
    }

    /// Whether it takes less time: decided if the interval of the ratio excludes 1.
    fn faster(&self) -> Verdict {
        match self.time().filter(|_| !self.is_wrong()) {
            Some(ratio) if ratio.high < 1.0 => Verdict::Holds,
            Some(ratio) if ratio.low > 1.0 => Verdict::DoesNotHold,
            _ => Verdict::NotDecided,
        }
    }

    /// Whether it takes less memory: bytes are counted and have no spread.
    fn smaller(&self) -> Verdict {
        self.bytes().filter(|_| !self.is_wrong()).map_or(Verdict::NotDecided, |ratio| Verdict::of(ratio < 1.0))
    }

    /// Verdicts on time and memory.
    fn verdicts(&self) -> [Verdict; 2] {
        [self.faster(), self.smaller()]
    }
}

/// Every mixture with its baseline, in the order of the pairs, for one use of a layer.
fn beside(measurements: &[Measurement], level: Level, pass: Pass) -> Vec<Vec<Beside<'_>>> {
    let of = |label| measurements.iter().filter(move |m| m.level == level && m.label == label);
    let pair = |(mixture, baseline)| {
        let one = |mixture: &'_ Measurement| of(baseline).find(|m| m.at == mixture.at);
        of(mixture).filter_map(|mixture| Some(Beside { mixture, baseline: one(mixture)?, pass })).collect()
    };
    PAIRS.into_iter().map(pair).collect()
}

/// The verdict on the claim from the measurements.
fn judge(measurements: &[Measurement]) -> Finding {
    let (mut clauses, mut said) = (Vec::new(), Vec::new());
    let (mut tables, mut charts) = (Vec::new(), Vec::new());
    for (level, pass, name) in USES {
        let pairs = beside(measurements, level, pass);
        for (pair, (mixture, baseline)) in pairs.iter().zip(PAIRS) {
            // A pair without measurements leaves the claim open.
            let of = |wanted: &dyn Fn(&Sizes) -> bool| {
                let here = pair.iter().filter(|one| wanted(&one.mixture.at));
                Verdict::all(here.flat_map(Beside::verdicts)).unwrap_or(Verdict::NotDecided)
            };
            let less = format!("less time and memory of {mixture} than of {baseline} in {name}.");
            if name == "inference" {
                let clause = Clause::paper(format!("At {} tokens, {less}", number::whole(LENGTH as u128)));
                let judged = of(&|at| at.length == LENGTH && at.heads == HEADS);
                clauses.push(clause.judged(judged).note(ratios(pair)));
            }
            clauses.push(Clause::ours(format!("At every size, {less}")).judged(of(&|_| true)));
            said.extend(sentence(pair, name));
        }
        tables.push(table(measurements, &pairs, (level, pass, name)));
        charts.extend(ratio_charts(&pairs[..HALVED], name));
    }
    if let Some(wrong) = measurements.iter().find(|m| m.is_wrong()) {
        said.push(format!("{} differs from its float64 twin, and nothing beside it is judged", wrong.label));
    }
    Finding { clauses, statement: said.join("; ") + ".", tables, charts }
}

/// Ratios of a pair at the length that is judged.
fn ratios(pair: &[Beside]) -> String {
    let here = pair.iter().filter(|one| one.mixture.at.length == LENGTH);
    let said = here.filter_map(|one| {
        let (TimeRatio { median, low, high }, bytes) = (one.time()?, one.bytes()?);
        Some(format!(
            "{} heads: time {median:.2} ({low:.2} to {high:.2} by deciles), memory {bytes:.2} of all heads'",
            one.mixture.at.heads / 2
        ))
    });
    said.collect::<Vec<_>>().join("; ")
}

/// Range of the ratios of a pair, and where the claim fails or stays open.
fn sentence(pair: &[Beside], name: &str) -> Option<String> {
    let (first, right) = (pair.first()?, pair.iter().filter(|one| !one.is_wrong()));
    let range = |ratios: Vec<f64>| {
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if ratios.is_empty() { "unknown".into() } else { format!("{least:.2} to {most:.2}") }
    };
    let times = range(right.clone().filter_map(|one| Some(one.time()?.median)).collect());
    let bytes = range(right.filter_map(Beside::bytes).collect());
    let mut text =
        format!("{} over {} in {name}: time {times}, memory {bytes}", first.mixture.label, first.baseline.label);
    for (verdict, what) in [(Verdict::DoesNotHold, "not less"), (Verdict::NotDecided, "open")] {
        for (n, quantity) in ["time", "memory"].into_iter().enumerate() {
            let here = pair.iter().filter(|one| one.verdicts()[n] == verdict);
            let places: Vec<String> = here.map(|one| place(pair, one.mixture.at)).collect();
            if !places.is_empty() {
                text += &format!(", {quantity} {what} at {}", places.join(", "));
            }
        }
    }
    Some(text)
}

/// The length, with the number of heads if it varies.
fn place(pair: &[Beside], at: Sizes) -> String {
    let length = number::whole(at.length as u128);
    if pair.iter().all(|one| one.mixture.at.heads == at.heads) {
        length
    } else {
        format!("{length} ({} heads)", at.heads)
    }
}

/// Times, bytes and ratios of one use of a layer.
fn table(measurements: &[Measurement], pairs: &[Vec<Beside>], (level, pass, name): (Level, Pass, &str)) -> Table {
    let columns = vec![
        Column::number("tokens", Format::Plain),
        Column::text("mechanism"),
        Column::number("heads", Format::Plain),
        Column::number("time", Format::Significant(3)).unit("ms"),
        Column::text("p10–p90").unit("ms"),
        Column::text("over"),
        Column::number("ratio of times", Format::Ratio),
        Column::text("its interval"),
        Column::text("less time"),
        Column::number("memory", Format::Bytes),
        Column::number("ratio of memory", Format::Ratio),
        Column::text("less memory"),
    ];
    let passes = if level == Level::Inference { "forward pass" } else { "forward and backward pass" };
    let mut table = Table::new(format!("Layers in {name}: {passes}"), columns)
        .note(
            "Mixtures have two keys a position. Ratio of times: of the medians; its interval: p10 of the one over p90 of the other, and \
             the reverse. A ratio whose interval contains 1 is not decided.",
        )
        .note("Memory: most bytes in use at once beyond parameters, input and the gradient of the output.");
    let interval = |low: f64, high: f64| format!("{}–{}", significant(low, 3), significant(high, 3));
    for m in measurements.iter().filter(|m| m.level == level) {
        let halved = pairs.iter().flatten().find(|one| std::ptr::eq(one.mixture, m));
        let heads = if halved.is_some() { m.at.heads / 2 } else { m.at.heads };
        let time = m.time(pass);
        let ratio = halved.and_then(Beside::time);
        table.push(vec![
            m.at.length.into(),
            m.label.as_str().into(),
            heads.into(),
            time.map(|time| time.median).into(),
            time.map(|time| interval(time.p10, time.p90)).into(),
            halved.map(|one| format!("{}, {} heads", one.baseline.label, m.at.heads)).into(),
            ratio.map(|ratio| ratio.median).into(),
            ratio.map(|ratio| interval(ratio.low, ratio.high)).into(),
            halved.map(|one| said(one.faster())).into(),
            Cell::from(m.bytes(pass)),
            halved.and_then(Beside::bytes).into(),
            halved.map(|one| said(one.smaller())).into(),
        ]);
    }
    table
}

fn said(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "yes",
        Verdict::DoesNotHold => "no",
        Verdict::NotDecided => "not decided",
    }
}

/// Ratios of times and of memory against length, one line per pair, for every number of heads.
fn ratio_charts(pairs: &[Vec<Beside>], name: &str) -> Vec<(String, Chart)> {
    let mut all: Vec<usize> = pairs.iter().flatten().map(|one| one.mixture.at.heads).collect();
    all.sort_unstable();
    all.dedup();
    let several = all.len() > 1;
    let chart = |heads: usize, what: &str, band: &str, point: fn(&Beside) -> Option<Point>| {
        let line = |(style, pair): (usize, &Vec<Beside>)| {
            let here = || pair.iter().filter(|one| one.mixture.at.heads == heads && !one.is_wrong());
            let (mixture, baseline) = here().next().map(|one| (&one.mixture.label, &one.baseline.label))?;
            Some(Series {
                name: format!("{mixture} over {baseline}"),
                points: here().filter_map(point).collect(),
                style,
            })
        };
        let lines = pairs.iter().enumerate().filter_map(line).collect();
        let subtitle =
            format!("{} heads of {HEAD_WIDTH} with two keys a position against {heads} heads{band}", heads / 2);
        let chart = Chart::new(format!("Ratio of {what} in {name}"), subtitle, Data::Lines(lines))
            .axes(Axis::new("tokens", "").scale(Ticks::Log2), Axis::new(format!("ratio of {what}"), ""))
            .rule(1.0, "all heads");
        let heads = if several { format!("-{heads}-heads") } else { String::new() };
        (format!("{what}-{name}{heads}"), chart)
    };
    let time = |one: &Beside| {
        let TimeRatio { median, low, high } = one.time()?;
        Some(Point::between(one.mixture.at.length as f64, median, low, high))
    };
    let bytes = |one: &Beside| Some(Point::new(one.mixture.at.length as f64, one.bytes()?));
    all.into_iter()
        .flat_map(|heads| {
            [chart(heads, "time", "; band: its interval by p10 and p90", time), chart(heads, "memory", "", bytes)]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Check, Timing};

    const BASELINE: (f64, u64) = (10.0, 1000);

    /// A measurement of a layer: milliseconds within five percent, and bytes.
    fn measured(level: Level, label: &str, length: usize, (median, bytes): (f64, u64)) -> Measurement {
        let timing =
            Timing { median, p10: 0.95 * median, p90: 1.05 * median, fastest: 0.9 * median, slowest: 1.5 * median };
        let inference = level == Level::Inference;
        Measurement {
            label: label.into(),
            level,
            at: Sizes { length, head_width: 64, heads: 8, batch: 1, threads: 2 },
            causal: false,
            exact: label == "softmax",
            sizes: String::new(),
            check: Some(Check { passed: true, error: Some(1e-7), tensor: "output".into() }),
            warm_ups: 1,
            runs: 15,
            // The forward pass in training is not judged: a huge value must have no effect.
            forward: Some(if inference { timing } else { Timing { median: 1e9, ..timing } }),
            both: (!inference).then_some(timing),
            step: None,
            token: None,
            forward_bytes: Some(if inference { bytes } else { u64::MAX }),
            both_bytes: (!inference).then_some(bytes),
            step_bytes: None,
            state_bytes: None,
        }
    }

    /// All mechanisms in both uses at two lengths: mixtures take 7 ms and 600 bytes, their baselines 10 ms and 1000
    /// bytes, unless `other` overrides a mixture.
    fn all(other: impl Fn(Level, &str, usize) -> Option<(f64, u64)>) -> Vec<Measurement> {
        let mut all = Vec::new();
        for (level, ..) in USES {
            for length in [512, LENGTH] {
                all.extend(["softmax", "linear"].map(|label| measured(level, label, length, BASELINE)));
                for label in ["mgk", "smgk", "mlk", "smlk"] {
                    let usual = if label.starts_with('s') { (5.0, 500) } else { (7.0, 600) };
                    let taken = other(level, label, length).unwrap_or(usual);
                    all.push(measured(level, label, length, taken));
                }
            }
        }
        all
    }

    fn at_one_place(taken: (f64, u64)) -> Finding {
        let place = |level, label: &str, length| level == Level::Inference && label == "mlk" && length == LENGTH;
        judge(&all(|level, label, length| place(level, label, length).then_some(taken)))
    }

    #[test]
    fn the_claim_holds_where_every_ratio_is_clearly_below_one() {
        let finding = judge(&all(|_, _, _| None));
        assert_eq!(finding.verdict(), Some(Verdict::Holds));
        assert!(finding.statement.contains("mgk over softmax in inference: time 0.70 to 0.70, memory 0.60 to 0.60;"));
        assert_eq!((finding.tables.len(), finding.charts.len()), (2, 4));
        let text = finding.tables[1].to_text();
        assert!(text.contains("0.633–0.774") && !text.contains("not decided\u{a0}"), "{text}");
    }

    #[test]
    fn one_larger_time_or_size_sinks_it() {
        let shorter = judge(&all(|_, label, length| (label == "mlk" && length < LENGTH).then_some((12.0, 600))));
        assert_eq!(shorter.verdict(), Some(Verdict::Holds), "the paper has one length");
        let slower = at_one_place((12.0, 600));
        assert_eq!(slower.verdict(), Some(Verdict::DoesNotHold));
        assert!(slower.statement.contains("mlk over linear in inference: time 0.70 to 1.20"), "{}", slower.statement);
        assert!(slower.statement.contains("time not less at 4,096"), "{}", slower.statement);
        let larger = at_one_place((7.0, 1000));
        assert_eq!(larger.verdict(), Some(Verdict::DoesNotHold));
        assert!(larger.statement.contains("memory not less at 4,096"), "{}", larger.statement);
    }

    #[test]
    fn a_ratio_whose_interval_contains_one_decides_nothing() {
        // 9.6 ms within five percent overlaps 10 ms within five percent.
        let near = at_one_place((9.6, 600));
        assert_eq!(near.verdict(), Some(Verdict::NotDecided));
        assert!(near.statement.contains("time open at 4,096"), "{}", near.statement);
        let mut uncounted = all(|_, _, _| None);
        uncounted[6].forward_bytes = None;
        assert_eq!(judge(&uncounted).verdict(), Some(Verdict::NotDecided));
        assert_eq!(judge(&uncounted[12..]).verdict(), Some(Verdict::NotDecided), "nothing of inference");
    }

    #[test]
    fn what_computes_something_else_is_not_judged() {
        let mut wrong = all(|_, _, _| None);
        wrong[7].check = Some(Check { passed: false, error: Some(0.1), tensor: "output".into() });
        let finding = judge(&wrong);
        assert_eq!(finding.verdict(), Some(Verdict::NotDecided));
        assert!(finding.statement.contains("linear differs from its float64 twin"), "{}", finding.statement);
    }

    #[test]
    fn half_the_heads_stand_beside_all_of_them() {
        let subjects = subjects(8);
        let of: Vec<_> = subjects.iter().map(|one| (one.label.as_str(), one.options.heads, one.own_heads)).collect();
        assert_eq!(
            of,
            [
                ("softmax", 8, false),
                ("linear", 8, false),
                ("mgk", 4, true),
                ("smgk", 4, true),
                ("mlk", 4, true),
                ("smlk", 4, true)
            ]
        );
        let known = |label: &str| subjects.iter().any(|one| one.label == label);
        assert!(PAIRS.iter().all(|(mixture, baseline)| known(mixture) && known(baseline)));
    }
}
