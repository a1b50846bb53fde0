//! Cost as a curve over length, width and heads: tables and charts.

use regard_report::{Axis, Cell, Chart, Column, Data, Format, Scale, Series, Table};

use super::formulas::{self, PaperSizes};
use super::{CostError, ModelCost, ModelSizes, Part, Run, sizes::common_multiple};

/// One curve: numbers and chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// File name.
    pub name: String,
    /// The numbers: one row per value of the horizontal axis, one column per line.
    pub table: Table,
    /// The chart.
    pub chart: Chart,
}

/// The quantity of a curve, and its horizontal axis.
struct Question<'a> {
    name: &'a str,
    title: &'a str,
    setting: String,
    x: Axis,
    y: Axis,
    format: Format,
}

impl Question<'_> {
    /// Evaluates `cost` at each value of the horizontal axis for each line.
    fn curve(self, over: &[usize], lines: &[String], cost: impl Fn(usize, usize) -> Cell) -> Curve {
        let mut columns = vec![Column::number(self.x.label.as_str(), Format::Plain)];
        columns.extend(lines.iter().map(|line| Column::number(line.as_str(), self.format)));
        let mut table = Table::new(self.title, columns).note(self.setting.as_str());
        for at in over {
            table.push([Cell::from(*at)].into_iter().chain((0..lines.len()).map(|line| cost(line, *at))).collect());
        }
        let series = lines.iter().enumerate().map(|(line, name)| {
            let points = over.iter().zip(&table.rows);
            let points = points.map(|(at, row)| (*at as f64, row[line + 1].value().unwrap_or(f64::NAN)));
            Series::new(name.as_str(), line, points)
        });
        let data = Data::Lines(series.collect());
        let chart = Chart::new(self.title, self.setting, data).axes(self.x, self.y);
        Curve { name: self.name.into(), table, chart }
    }
}

fn factors(label: &str) -> Axis {
    Axis::new(label, "").scale(Scale::Log2)
}

/// The powers of two from `first` to `last`.
fn doublings(first: usize, last: usize) -> Vec<usize> {
    std::iter::successors(Some(first), |size| size.checked_mul(2)).take_while(|size| *size <= last).collect()
}

/// Transformer-MGK with two keys and half the heads against softmax with `base.heads` heads, by the closed forms of its
/// paper (appendix B): the ratio of operations over length and head width, operations and parameters over the
/// number of heads. The input is as wide as the heads together; `base.width` is not used.
pub fn paper(base: PaperSizes) -> Vec<Curve> {
    let even = base.heads.max(2).next_multiple_of(2);
    let sizes = |tokens: usize, heads: usize, head_width: usize| PaperSizes {
        tokens: tokens.max(1),
        heads,
        head_width: head_width.max(1),
        width: heads * head_width.max(1),
    };
    let operations = |sizes: PaperSizes| {
        let mgk = formulas::mgk_operations_closed(sizes)? as f64;
        Some(mgk / formulas::softmax_operations_closed(sizes) as f64)
    };
    let lengths = doublings(128, 65_536);
    let (widths, few_lengths) = ([16, 32, 64, 128], [256, 1_024, 4_096, 16_384]);
    let heads = [2, 4, 8, 12, 16];
    let against = format!("Two keys and {} heads over softmax with {even}; input as wide as the heads", even / 2);
    let ratio = || Axis::new("ratio of operations", "");
    let rule = |mut curve: Curve| {
        curve.chart = curve.chart.rule(0.75, "3/4");
        curve
    };
    let over_length = Question {
        name: "operations-over-length",
        title: "Operations of MGK over those of softmax, by length",
        setting: against.clone(),
        x: factors("tokens N"),
        y: ratio(),
        format: Format::Ratio,
    };
    let over_width = Question {
        name: "operations-over-head-width",
        title: "Operations of MGK over those of softmax, by head width",
        setting: against,
        x: factors("head width D"),
        y: ratio(),
        format: Format::Ratio,
    };
    let both = |heads: &str| vec!["softmax, H heads".to_owned(), format!("MGK, {heads}")];
    let over_heads = Question {
        name: "operations-over-heads",
        title: "Operations by number of heads",
        setting: format!(
            "One layer, head width {}, {} tokens; input as wide as the heads",
            base.head_width, base.tokens
        ),
        x: Axis::new("heads H", "").whole(),
        y: Axis::new("operations", ""),
        format: Format::Count,
    };
    let parameters = Question {
        name: "parameters-over-heads",
        title: "Parameters by number of heads",
        setting: format!("One layer, head width {}; input as wide as the heads, biases apart", base.head_width),
        x: Axis::new("heads H", "").whole(),
        y: Axis::new("parameters", ""),
        format: Format::Count,
    };
    let named =
        |letter: &str, values: &[usize]| values.iter().map(|value| format!("{letter} = {value}")).collect::<Vec<_>>();
    vec![
        rule(
            over_length
                .curve(&lengths, &named("D", &widths), |line, n| operations(sizes(n, even, widths[line])).into()),
        ),
        rule(over_width.curve(&doublings(8, 512), &named("N", &few_lengths), |line, d| {
            operations(sizes(few_lengths[line], even, d)).into()
        })),
        over_heads.curve(&heads, &both("two keys, H/2 heads"), |line, h| {
            let sizes = sizes(base.tokens, h, base.head_width);
            if line == 0 { formulas::softmax_operations(sizes).into() } else { formulas::mgk_operations(sizes).into() }
        }),
        parameters.curve(&heads, &both("two keys, H/2 heads"), |line, h| {
            let sizes = sizes(1, h, base.head_width);
            if line == 0 { formulas::softmax_parameters(sizes).into() } else { formulas::mgk_parameters(sizes).into() }
        }),
    ]
}

/// Multiply-adds, activations and decode state of named models over sequence length, and the first two relative to the
/// first model. Each length is also the context, so that models are compared beyond their own.
///
/// # Errors
/// Invalid sizes.
pub fn over_length(models: &[(String, ModelSizes)], batch: usize, lengths: &[usize]) -> Result<Vec<Curve>, CostError> {
    let totals = |length: usize| {
        let run = Run { batch, length, decoded: length };
        let at = |model: &(String, ModelSizes)| {
            // A budget is a fraction of the entries at each length.
            let context = match model.1.attention.options.budget {
                Some(_) => length,
                None => length.max(model.1.context),
            };
            let sizes = ModelSizes { context, ..model.1.clone() };
            Ok(ModelCost::of(&sizes, run)?.total())
        };
        models.iter().map(at).collect::<Result<Vec<Part>, CostError>>()
    };
    let costs = lengths.iter().map(|length| totals(*length)).collect::<Result<Vec<_>, _>>()?;
    let tokens = || factors("tokens N");
    let questions = [
        question(
            "multiply-adds-over-length",
            "Multiply-adds by length",
            "Forward pass, one sequence".into(),
            tokens(),
            "multiply-adds",
            Format::Count,
        ),
        question(
            "activations-over-length",
            "Activations by length",
            format!("Kept for the backward pass of a training step, batch of {batch}, f32"),
            tokens(),
            "activations",
            Format::Bytes,
        ),
        question(
            "state-over-length",
            "Decode state by length",
            "One sequence, f32".into(),
            tokens(),
            "decode state",
            Format::Bytes,
        ),
    ];
    let measures =
        [|part: &Part| part.multiply_adds, |part: &Part| part.activation_bytes, |part: &Part| part.state_bytes];
    let mut curves = curves(questions, measures, models, lengths, &costs);
    // Lines that overlap over many powers of two become distinct relative to the first.
    if let Some((first, _)) = models.first() {
        let against = |measured: &str| format!("{measured}, as a share of that of {first}");
        let ratios = [
            ("multiply-adds-ratio-over-length", "Multiply-adds against the first model", against("Forward pass")),
            ("activations-ratio-over-length", "Activations against the first model", against("Training step")),
        ];
        for ((name, title, setting), measure) in ratios.into_iter().zip(measures) {
            let y = Axis::new("ratio", "");
            let question = Question { name, title, setting, x: tokens(), y, format: Format::Ratio };
            let share = |at: usize, line: usize| measure(&costs[at][line]) as f64 / measure(&costs[at][0]) as f64;
            curves.push(question.curve(lengths, &names(models), |line, at| {
                lengths.iter().position(|length| *length == at).map(|at| share(at, line)).into()
            }));
        }
    }
    Ok(curves)
}

/// Parameters, multiply-adds and activations of named models over model width. The number of heads and the feed-forward
/// ratio are fixed, and the head width grows with the model; widths are rounded up to what the heads of all can share.
///
/// # Errors
/// Invalid sizes.
pub fn over_width(models: &[(String, ModelSizes)], run: Run, widths: &[usize]) -> Result<Vec<Curve>, CostError> {
    let unit = models.iter().map(|(_, sizes)| sizes.width_unit()).fold(1, common_multiple);
    let mut rounded: Vec<usize> = widths.iter().map(|width| width.next_multiple_of(unit)).collect();
    rounded.dedup();
    let widths = &rounded[..];
    let totals = |width: usize| {
        let at = |model: &(String, ModelSizes)| Ok(ModelCost::of(&model.1.scaled(width)?, run)?.total());
        models.iter().map(at).collect::<Result<Vec<Part>, CostError>>()
    };
    let costs = widths.iter().map(|width| totals(*width)).collect::<Result<Vec<_>, _>>()?;
    let Run { batch, length, .. } = run;
    let width = || factors("width d");
    let questions = [
        question(
            "parameters-over-width",
            "Parameters by width",
            "Whole model".into(),
            width(),
            "parameters",
            Format::Count,
        ),
        question(
            "multiply-adds-over-width",
            "Multiply-adds by width",
            format!("Forward pass, one sequence of {length} tokens"),
            width(),
            "multiply-adds",
            Format::Count,
        ),
        question(
            "activations-over-width",
            "Activations by width",
            format!("Kept for the backward pass of a step on {batch} x {length} tokens, f32"),
            width(),
            "activations",
            Format::Bytes,
        ),
    ];
    let measures =
        [|part: &Part| part.parameters, |part: &Part| part.multiply_adds, |part: &Part| part.activation_bytes];
    Ok(curves(questions, measures, models, widths, &costs))
}

fn question<'a>(
    name: &'a str,
    title: &'a str,
    setting: String,
    x: Axis,
    measured: &str,
    format: Format,
) -> Question<'a> {
    let unit = if format == Format::Bytes { "B" } else { "" };
    Question { name, title, setting, x, y: Axis::new(measured, unit).scale(Scale::Log), format }
}

fn names(models: &[(String, ModelSizes)]) -> Vec<String> {
    models.iter().map(|model| model.0.clone()).collect()
}

/// One curve per question; `costs[place][model]`.
fn curves<const N: usize>(
    questions: [Question; N],
    measures: [fn(&Part) -> super::Count; N],
    models: &[(String, ModelSizes)],
    over: &[usize],
    costs: &[Vec<Part>],
) -> Vec<Curve> {
    let names = names(models);
    let answered = questions.into_iter().zip(measures).map(|(question, measure)| {
        question.curve(over, &names, |line, at| {
            let place = over.iter().position(|value| *value == at);
            place.map(|place| measure(&costs[place][line])).into()
        })
    });
    answered.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::model::tests::sizes;
    use regard_kernels::Mechanism;

    #[test]
    fn ratios_run_from_five_eighths_to_three_quarters() {
        let curves = paper(PaperSizes { tokens: 1_024, heads: 8, head_width: 64, width: 512 });
        assert_eq!(curves.len(), 4);
        for curve in &curves[..2] {
            let ratios: Vec<f64> = curve.table.rows.iter().flat_map(|row| &row[1..]).filter_map(Cell::value).collect();
            assert_eq!(ratios.len(), curve.table.rows.len() * 4);
            assert!(ratios.iter().all(|ratio| (0.62..0.76).contains(ratio)), "{ratios:?}");
        }
        for row in curves[0].table.rows.windows(2) {
            assert!(row[0][3].value() < row[1][3].value(), "longer is nearer to three quarters");
        }
        let Cell::Whole(parameters) = curves[3].table.rows[2][2] else { panic!("exact") };
        assert_eq!(parameters, 2 * 512 * 512 + 512 * 512 / 2 + 8);
    }

    #[test]
    fn exact_attention_grows_with_the_square_and_linear_does_not() {
        let models =
            [("softmax".to_owned(), sizes(Mechanism::Softmax)), ("linear".to_owned(), sizes(Mechanism::Linear))];
        let curves = over_length(&models, 4, &[1 << 14, 1 << 15]).expect("sizes");
        let growth = |curve: &Curve, model: usize| {
            let value = |row: usize| curve.table.rows[row][model + 1].value().expect("a number");
            value(1) / value(0)
        };
        // All but the head on the pooled sequence.
        assert!(growth(&curves[0], 0) > 3.9 && (1.999..=2.0).contains(&growth(&curves[0], 1)));
        // Memory of training is linear in the length for both; decode state is for softmax alone.
        assert!(growth(&curves[1], 0) < 2.01 && growth(&curves[1], 1) < 2.01);
        let last = |curve: &Curve| curve.table.rows[1][2].value().expect("a number");
        assert!(last(&curves[3]) < 0.1 && (0.9..1.1).contains(&last(&curves[4])));
        assert!(growth(&curves[2], 0) == 2.0 && growth(&curves[2], 1) == 1.0);
        assert!(over_length(&models, 0, &[16]).is_err());
        let run = Run { batch: 4, length: 16, decoded: 16 };
        assert_eq!(over_width(&models, run, &[32, 64]).expect("sizes").len(), 3);
        // Widths that heads cannot share are rounded up.
        let rows = |widths: &[usize]| over_width(&models, run, widths).expect("sizes")[0].table.rows.clone();
        assert_eq!(rows(&[33, 34]), rows(&[33usize.next_multiple_of(models[0].1.width_unit())]));
        assert!(over_width(&models, run, &[0]).is_err());
    }
}
