//! Measurements of untrained decoders as tables.

use regard_report::{Cell, Column, Format, Table};

use super::{
    charts::shown_layers,
    classifier::{Accuracy, ByDepth},
    curves::Statistic,
    estimate::Estimate,
    lemma::{Constant, spaced_positions},
    measure::Measured,
    tally::Quantity,
};

/// Variances of the first layer against the lemmas, one row per quantity of each setting.
pub fn lemma_table(measured: &[Measured]) -> Table {
    let number = |name: &str| Column::number(name, Format::Significant(4));
    let columns = vec![
        Column::text("decoder"),
        Column::text("variance of"),
        number("printed"),
        number("corrected"),
        number("uneven attention"),
        number("measured"),
        Column::number("measured / corrected", Format::Fixed(3)),
        Column::text("95 % interval holds"),
    ];
    let mut table = Table::new("Lemmas 1 to 4, first layer", columns);
    for one in measured.iter().filter(|one| one.setting.has_lemmas()) {
        for row in lemma_rows(one) {
            let Row { name, theory: Constant { printed, corrected }, uneven, measured } = row;
            let constants = [(Some(corrected), "corrected"), (uneven, "uneven"), (Some(printed), "printed")];
            let held = constants.into_iter().find(|(value, _)| value.is_some_and(|value| measured.holds(value)));
            let held = held.map_or("none", |(_, name)| name);
            table.push(vec![
                one.setting.label.as_str().into(),
                name.into(),
                printed.into(),
                corrected.into(),
                uneven.into(),
                measured.into(),
                (measured.mean / corrected).into(),
                held.into(),
            ]);
        }
    }
    let decoders = measured.first().map_or(0, |one| one.replicates.0.len());
    table
        .note(format!(
            "Measured: mean of {decoders} decoders with half its 95 % interval. n: keys that a query sees; what depends on it \
             is averaged over positions an eighth of an octave apart."
        ))
        .note(
            "Uneven attention: the lemma with logits of variance v = d^2 s^4, (1 + (e^v - 1)(1 - 1/n)) + n (v / d)(1 - 1/n) \
             times as much; for v well below 1.",
        )
}

struct Row {
    name: &'static str,
    theory: Constant,
    uneven: Option<f64>,
    measured: Estimate,
}

fn lemma_rows(one: &Measured) -> Vec<Row> {
    let (replicates, lemmas) = (&one.replicates, one.setting.lemmas());
    let head_width = one.setting.decoder.width as f64 / lemmas.heads as f64;
    let same = |value: f64| Constant { printed: value, corrected: value };
    let seen = |m: usize| if lemmas.causal { m as f64 } else { lemmas.length as f64 };
    let positions = spaced_positions(lemmas.length);
    let mean = |f: &dyn Fn(usize) -> f64| positions.iter().map(|m| f(*m)).sum::<f64>() / positions.len() as f64;
    // Beyond that the expansion is invalid.
    let spread = lemmas.logit().corrected < 1.0;
    let times = mean(&|m| seen(m) * lemmas.output_of_spread_logits(m));
    let mut rows = Vec::new();
    let mut push = |name, theory, uneven: Option<f64>, measured: Option<Estimate>| {
        let uneven = uneven.filter(|_| spread);
        rows.extend(measured.map(|measured| Row { name, theory, uneven, measured }));
    };
    if !one.setting.decoder.uniform {
        push("q", lemmas.projection(), None, replicates.overall(1, Quantity::Query));
        push("k", lemmas.projection(), None, replicates.overall(1, Quantity::Key));
        let logits = replicates.overall(1, Quantity::Logit);
        push("q.k", lemmas.product(), None, logits.map(|own| own.times(head_width)));
        push("q.k / sqrt(D)", lemmas.logit(), None, logits);
    }
    push("v", lemmas.projection(), None, replicates.overall(1, Quantity::Value));
    let uneven = (!one.setting.decoder.uniform).then_some(times);
    let projection = lemmas.projection().corrected;
    push(
        "heads' outputs, times n",
        same(projection),
        uneven.map(|times| times / projection),
        replicates.scaled(1, Quantity::Heads, seen),
    );
    push("o_m, times n", same(lemmas.logit().corrected), uneven, replicates.scaled(1, Quantity::Attention, seen));
    let share = mean(&|m| (lemmas.output_of_spread_logits(m) + lemmas.deviation.powi(2)) / lemmas.residual(m));
    push(
        "x + o_m, of s^2 + d^2 s^4 / n",
        same(1.0),
        uneven.map(|_| share),
        replicates.scaled(1, Quantity::Residual, |m| lemmas.residual(m).recip()),
    );
    push("norm of x + o_m", same(1.0), None, replicates.overall(1, Quantity::Normalised));
    rows
}

/// Slope of the variance of `o_m`, and similarity of neighbours, one row per layer of each setting.
pub(super) fn slopes(measured: &[Measured]) -> Table {
    let number = |name: &str, digits| Column::number(name, Format::Fixed(digits));
    let columns = vec![
        Column::text("decoder"),
        Column::number("layer", Format::Plain),
        number("slope of o_m", 3),
        number("slope of x + o_m", 3),
        number("logits' variance", 4),
        Column::number("o_m at 1", Format::Significant(3)),
        Column::number("o_m at L", Format::Significant(3)),
        number("neighbours' cosine at L", 3),
    ];
    let mut table = Table::new("Variance against position, by layer", columns);
    for one in measured {
        let layers = one.setting.decoder.layers;
        for layer in shown_layers(layers) {
            let replicates = &one.replicates;
            let curve = replicates.curve(layer, Quantity::Attention, Statistic::Variance);
            let end = |last: bool| {
                let points = curve.as_ref().map(|curve| &curve.points)?;
                if last { points.last() } else { points.first() }.map(|(_, estimate)| estimate.mean)
            };
            let neighbours = replicates.curve(layer, Quantity::Neighbours, Statistic::Mean);
            table.push(vec![
                one.setting.label.as_str().into(),
                layer.into(),
                replicates.log_slope(layer, Quantity::Attention).into(),
                replicates.log_slope(layer, Quantity::Residual).into(),
                replicates.overall(layer, Quantity::Logit).into(),
                end(false).into(),
                end(true).into(),
                neighbours.and_then(|curve| curve.points.last().map(|(_, estimate)| *estimate)).into(),
            ]);
        }
    }
    table.note(
        "Slopes: of the logarithm of the variance over that of the position, -1 where the variance falls as one over the \
         position; ± half the 95 % interval over decoders.",
    )
}

/// Lemma 4 channel by channel, one row per position of each setting; `None` if it was not checked.
pub fn channel_table(measured: &[Measured]) -> Option<Table> {
    let columns = vec![
        Column::text("decoder"),
        Column::number("position", Format::Plain),
        Column::number("lemma's deviation over channels", Format::Significant(3)),
        Column::number("slope of measured on lemma", Format::Fixed(2)),
        Column::number("correlation", Format::Fixed(2)),
    ];
    let mut table = Table::new("Lemma 4, channel by channel", columns);
    for one in measured {
        for check in one.channels.iter().filter(|check| check.tells()) {
            table.push(vec![
                one.setting.label.as_str().into(),
                check.position.into(),
                check.spread.into(),
                check.slope.into(),
                check.correlation.into(),
            ]);
        }
    }
    let any = measured.iter().any(|one| !one.channels.is_empty());
    any.then(|| {
        table.note(
            "Variance of each channel after the norm over inputs, weights fixed, against (n s^2 + |row of W_o W_v|^2) / \
             (n s^2 + d^2 s^4): slope 1 where it holds. Left out: positions where the lemma's variances differ by less than 2 %.",
        )
    })
}

/// The classifier, one row per number of layers of each setting; `None` if there was none.
pub(super) fn accuracies(settings: &[ByDepth]) -> Option<Table> {
    let columns = vec![
        Column::text("decoder"),
        Column::number("layers", Format::Plain),
        Column::number("mean absolute error", Format::Fixed(1)).unit("tokens"),
        Column::number("of the median", Format::Fixed(1)).unit("tokens"),
        Column::number("always the middle", Format::Fixed(1)).unit("tokens"),
        Column::number("exact", Format::Percent(1)),
        Column::number("cross entropy", Format::Fixed(3)).unit("nat"),
    ];
    let mut table = Table::new("A classifier of positions", columns);
    for ByDepth { label, accuracies } in settings {
        for (layers, accuracy) in *accuracies {
            let Accuracy { error, median_error, chance, exact, loss, .. } = accuracy;
            let numbers = [*error, *median_error, *chance, *exact, *loss].map(Cell::from);
            table.push([Cell::from(label.as_str()), (*layers).into()].into_iter().chain(numbers).collect());
        }
    }
    let any = settings.iter().any(|one| !one.accuracies.is_empty());
    any.then(|| {
        table.note(
            "On sequences that it has not seen. Error: distance of the most probable position from the true one, as in the \
             paper; of the median: distance of the median of the classifier's distribution. Cross entropy: of the last \
             updates.",
        )
    })
}
