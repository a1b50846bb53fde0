//! Charts of curves over positions, for trained and untrained decoders.

use regard_report::{Axis, Chart, Data, Point, Scale, Series};

use super::{
    classifier::{Accuracy, ByDepth},
    curves::{Replicates, Statistic},
    tally::Quantity,
};

/// Maximum layers per chart.
const MOST_LAYERS: usize = 6;

/// The first and last layers, and some in between.
pub(super) fn shown_layers(layers: usize) -> Vec<usize> {
    if layers <= MOST_LAYERS {
        return (1..=layers).collect();
    }
    let mut shown: Vec<usize> = (0..).map(|power| 1 << power).take_while(|layer| *layer < layers).collect();
    shown.push(layers);
    while shown.len() > MOST_LAYERS {
        shown.remove(shown.len() / 2);
    }
    shown
}

/// One line per layer.
fn by_layer(replicates: &Replicates, layers: usize, quantity: Quantity, statistic: Statistic) -> Vec<Series> {
    let line = |(style, layer): (usize, usize)| {
        let curve = replicates.curve(layer, quantity, statistic)?;
        Some(Series { name: format!("layer {layer}"), points: curve.drawn(|_| 1.0), style })
    };
    shown_layers(layers).into_iter().enumerate().filter_map(line).collect()
}

/// Variances over positions, on log-log axes: one line per layer, and the theory for the first layer if applicable.
pub(super) fn variances(
    replicates: &Replicates,
    layers: usize,
    quantity: Quantity,
    title: &str,
    subtitle: String,
    theory: Option<Vec<(f64, f64)>>,
) -> Option<Chart> {
    let mut series = by_layer(replicates, layers, quantity, Statistic::Variance);
    if series.is_empty() {
        return None;
    }
    series.extend(theory.map(|points| Series::new("lemma 3", 7, points)));
    Some(
        Chart::new(title, subtitle, Data::Lines(series))
            .axes(Axis::new("position", "").scale(Scale::Log), Axis::new("variance", "").scale(Scale::Log)),
    )
}

/// Cumulative attention of the last query over the sequence, one line per layer.
pub(super) fn cumulative(replicates: &Replicates, layers: usize, subtitle: String) -> Option<Chart> {
    let layers = shown_layers(layers).into_iter().map(|layer| (format!("layer {layer}"), replicates, layer));
    let mut series = cumulative_lines(layers);
    if series.is_empty() {
        return None;
    }
    series.push(Series::new("even attention", 7, [(0.0, 0.0), (1.0, 1.0)]));
    Some(cumulative_chart(series, subtitle))
}

/// One line per name, for this layer of these measurements, if available.
pub(crate) fn cumulative_lines<'a>(of: impl Iterator<Item = (String, &'a Replicates, usize)>) -> Vec<Series> {
    let line = |(style, (name, replicates, layer)): (usize, (String, &Replicates, usize))| {
        let curve = replicates.curve(layer, Quantity::Cumulative, Statistic::Mean)?;
        let count = curve.points.len() as f64;
        let point = |(c, estimate): &(usize, super::Estimate)| {
            Point::deviating(*c as f64 / count, estimate.mean, estimate.half.unwrap_or(0.0))
        };
        let points = [Point::new(0.0, 0.0)].into_iter().chain(curve.points.iter().map(point)).collect();
        Some(Series { name, points, style })
    };
    of.enumerate().filter_map(line).collect()
}

/// The lines of [`cumulative_lines`] on their axes.
pub(crate) fn cumulative_chart(series: Vec<Series>, subtitle: impl Into<String>) -> Chart {
    Chart::new("Cumulative attention of the last query", subtitle, Data::Lines(series)).axes(
        Axis::new("share of the sequence", "%").range(0.0, 1.0),
        Axis::new("attention before it", "%").range(0.0, 1.0),
    )
}

/// Cosine similarity of neighbouring tokens over positions, one line per layer.
pub(super) fn neighbours(replicates: &Replicates, layers: usize, subtitle: String) -> Option<Chart> {
    let series = by_layer(replicates, layers, Quantity::Neighbours, Statistic::Mean);
    let chart = Chart::new("Cosine similarity of neighbouring tokens", subtitle, Data::Lines(series.clone()));
    (!series.is_empty())
        .then(|| chart.axes(Axis::new("position", "").scale(Scale::Log), Axis::new("cosine of m and m + 1", "")))
}

/// Error of the classifier over the number of layers, one line per setting.
pub(super) fn errors(settings: &[ByDepth], subtitle: String) -> Option<Chart> {
    let line = |(style, one): (usize, &ByDepth)| {
        Series::new(
            one.label.clone(),
            style,
            one.accuracies.iter().map(|(layers, accuracy)| (*layers as f64, accuracy.error)),
        )
    };
    let chance = settings.iter().flat_map(|one| one.accuracies.first()).next()?.1.chance;
    let series = settings.iter().enumerate().map(line).collect();
    Some(
        Chart::new("How well a classifier tells positions", subtitle, Data::Lines(series))
            .axes(Axis::new("layers", "").whole(), Axis::new("mean absolute error", "tokens"))
            .rule(chance, "always the middle"),
    )
}

/// Error of the classifier at each position, one line per number of layers (figure 2 of the paper).
pub(super) fn errors_by_position(accuracies: &[(usize, Accuracy)], subtitle: String) -> Chart {
    // Averages over neighbours, since one position has few sequences.
    const NEIGHBOURS: usize = 8;
    let line = |(style, (layers, accuracy)): (usize, &(usize, Accuracy))| {
        let chunk = |(at, errors): (usize, &[f64])| {
            let middle = (at * NEIGHBOURS) as f64 + (errors.len() as f64 + 1.0) / 2.0;
            (middle, errors.iter().sum::<f64>() / errors.len() as f64)
        };
        let name = if *layers == 1 { "1 layer".into() } else { format!("{layers} layers") };
        Series::new(name, style, accuracy.by_position.chunks(NEIGHBOURS).enumerate().map(chunk))
    };
    let series = accuracies.iter().enumerate().map(line).collect();
    Chart::new("Error of the classifier by position", subtitle, Data::Lines(series))
        .axes(Axis::new("position", "").whole(), Axis::new("mean absolute error", "tokens"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_and_last_layers_are_shown() {
        assert_eq!(shown_layers(4), [1, 2, 3, 4]);
        assert_eq!(shown_layers(12), [1, 2, 4, 8, 12]);
        assert!(shown_layers(96).len() <= MOST_LAYERS && shown_layers(96).ends_with(&[96]));
    }
}
