//! Scatterbrain's figure 4 and theorem 2: mean and variance of the estimate of one entry, simulated on the unit sphere.

use rayon::prelude::*;
use regard_kernels::{
    draws,
    features::{FeatureKind, RowNorms, RowsDrawn},
    random::substream,
    reference::scatterbrain::log_features,
};
use regard_report::{Axis, Chart, Column, Data, Format, Sample, Scale as Ticks, Series, Table};
use regard_tasks::Failure;

use crate::reproduce::{Clause, Entry, Estimate, Finding, Paper, Scale, Setup, Workbench, confidence};

pub const ENTRIES: Entry = Entry {
    name: "scatterbrain-entries",
    paper: Paper::Scatterbrain,
    figures: "figure 4 and theorem 2",
    claim: "For q and k on the unit sphere, Scatterbrain's estimate of exp(q.k) has the mean exp(q.k) and 1 - p times the variance of random \
            features, strictly less, where p is the probability of a common hash; so its squared error is below that of random features for large \
            entries and below that of hashing for small ones.",
    data: "none",
    models: &[],
    paper_setting: "Unit vectors, positive random features, hashing by cross-polytopes; squared errors by the size of q.k.",
    setups: &[Setup {
        scale: Scale::Quick,
        setting: "64 plain features, 8 hash values by 4 Gaussian directions and their opposites; 1,000,000 draws at each of 9 sizes of q.k.",
        differences: &[
            "features and hash values are ours: the paper does not name those of the figure",
            "independent Gaussian directions for a random rotation",
            "p is measured, not computed; a share of variance is met within p / 2, a mean within 0.1",
            "large entries are those of q.k from 0.5, small ones those up to 0",
        ],
        minutes: 1.0,
    }],
    run,
};

const DRAWS: u64 = 1_000_000;

/// Channels. Independent Gaussian rows see no more of `q` and `k` than their norms and product, so that the plane of both
/// stands for any number of channels.
const WIDTH: usize = 2;
const FEATURES: usize = 64;
/// Directions of the hash, each with both signs.
const DIRECTIONS: usize = 4;
/// Sizes of `q.k`, from small to large entries.
const PRODUCTS: [f64; 9] = [-0.9, -0.6, -0.3, 0.0, 0.3, 0.5, 0.7, 0.9, 0.97];
/// What counts as equal, of means over exact values.
const TOLERANCE: f64 = 0.1;

/// One draw at one `q.k`: the estimate by features, and whether the hashes are the same.
#[derive(Clone, Copy, Debug)]
struct Draw {
    features: f64,
    same: bool,
}

/// `[1, 0]` and the unit vector with this product with it.
fn pair(product: f64) -> [Vec<f64>; 2] {
    let unit = |first: f64| vec![first, (1.0 - first * first).sqrt()];
    [unit(1.0), unit(product)]
}

fn draw(number: u64, at: usize) -> Draw {
    let key = substream(substream(0x0068_6173_6865, at as u64), number);
    let random = |rows, stream| -> Vec<f64> {
        let drawn = draws::projection(rows, WIDTH, RowsDrawn::Iid, RowNorms::Gaussian, substream(key, stream));
        drawn.into_iter().map(f64::from).collect()
    };
    // Independent draws: the theorem needs it.
    let (projection, directions) = (random(FEATURES, 0), random(DIRECTIONS, 1));
    let [q, k] = pair(PRODUCTS[at]);
    let [of_q, of_k] = [&q, &k].map(|x| log_features(FeatureKind::Plain, &projection, 1.0, x));
    let features = of_q.iter().zip(&of_k).map(|(a, b)| (a + b).exp()).sum();
    Draw { features, same: hash(&directions, &q) == hash(&directions, &k) }
}

/// The nearest of the directions and their opposites.
fn hash(directions: &[f64], x: &[f64]) -> (usize, bool) {
    let products = directions.chunks_exact(WIDTH).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>());
    let largest = products.enumerate().max_by(|(_, one), (_, other)| one.abs().total_cmp(&other.abs()));
    largest.map_or((0, false), |(direction, product)| (direction, product < 0.0))
}

/// What is known of the estimates at one `q.k`.
struct At {
    product: f64,
    exact: f64,
    /// Share of draws with a common hash.
    same: f64,
    /// Mean squared errors of hashing, features and both.
    errors: [f64; 3],
    /// Mean estimate over the exact value.
    mean: Estimate,
    /// Variance of both over that of features, less `1 - p`.
    ratio: Estimate,
    /// Squared errors of features and of hashing less those of both.
    gains: [Estimate; 2],
}

fn at(place: usize, draws: &[Draw], sure: f64) -> At {
    let product = PRODUCTS[place];
    let exact = product.exp();
    let of = |value: &dyn Fn(&Draw) -> f64| draws.iter().map(value).collect::<Vec<f64>>();
    let mean = |values: &[f64]| Sample::of(values).mean;
    let features = of(&|own| (own.features - exact).powi(2));
    let both = of(&|own| if own.same { 0.0 } else { (own.features - exact).powi(2) });
    let hashing = of(&|own| if own.same { 0.0 } else { exact * exact });
    let same = of(&|own| f64::from(u8::from(own.same)));
    let [of_features, of_both, of_same] = [&features, &both, &same].map(|values| mean(values));
    let ratio = of_both / of_features;
    // A ratio of means, linearised: its error is that of the mean of these.
    let influence: Vec<f64> =
        (0..draws.len()).map(|i| (both[i] - ratio * features[i]) / of_features + (same[i] - of_same)).collect();
    let error = Sample::of(&influence).variance_of_mean().map(f64::sqrt);
    let estimates = of(&|own| if own.same { 1.0 } else { own.features / exact });
    At {
        product,
        exact,
        same: of_same,
        errors: [mean(&hashing), of_features, of_both],
        mean: Estimate::mean(&estimates, sure, "draws"),
        ratio: Estimate::of_error(ratio - (1.0 - of_same), error, draws.len() as f64 - 1.0, sure, "draws"),
        gains: [&features, &hashing].map(|other| Estimate::paired(other, &both, sure, "draws")),
    }
}

fn run(bench: &Workbench, _: Scale) -> Result<Finding, Failure> {
    let sure = confidence(2 * PRODUCTS.len() + 2 * 4);
    let mut measured = Vec::new();
    for place in 0..PRODUCTS.len() {
        bench.note(&format!("q.k = {}", PRODUCTS[place]));
        if bench.stopped() {
            return Err(Failure::interrupted("stopped"));
        }
        let drawn: Vec<Draw> = (0..DRAWS).into_par_iter().map(|number| draw(number, place)).collect();
        measured.push(at(place, &drawn, sure));
    }
    let mut columns = vec![Column::number("q.k", Format::Fixed(2)), Column::number("exp(q.k)", Format::Fixed(3))];
    columns.extend(["p", "mean over exact"].map(|name| Column::number(name, Format::Fixed(3))));
    columns.push(Column::number("variance over that of features", Format::Fixed(3)));
    columns.extend(["hashing", "features", "both"].map(|name| Column::number(name, Format::Significant(3))));
    let mut table = Table::new("Estimates of exp(q.k) on the unit sphere", columns).note(format!(
        "{DRAWS} draws of features and hash; p: share with a common hash; last columns: mean squared errors."
    ));
    for own in &measured {
        let [hashing, features, both] = own.errors;
        table.push(vec![
            own.product.into(),
            own.exact.into(),
            own.same.into(),
            own.mean.value.into(),
            (both / features).into(),
            hashing.into(),
            features.into(),
            both.into(),
        ]);
    }
    let mut clauses = Vec::new();
    for own in &measured {
        let product = own.product;
        clauses.push(Clause::paper(format!("At q.k = {product} the mean over exp(q.k) is 1.")).within(
            own.mean.clone(),
            1.0,
            TOLERANCE,
        ));
        let text = format!(
            "At q.k = {product} the variance over that of features is 1 - p, less than 1: the difference is 0, to within p / 2."
        );
        clauses.push(Clause::paper(text).within(own.ratio.clone(), 0.0, 0.5 * own.same));
        let [features, hashing] = &own.gains;
        if product >= 0.5 {
            let text = format!("At q.k = {product}, a large entry, features have the larger squared error.");
            clauses.push(Clause::paper(text).above(features.clone(), 0.0));
        } else if product <= 0.0 {
            let text = format!("At q.k = {product}, a small entry, hashing has the larger squared error.");
            clauses.push(Clause::paper(text).above(hashing.clone(), 0.0));
        }
    }
    let lines = ["hashing", "features", "both"]
        .into_iter()
        .enumerate()
        .map(|(kind, name)| Series::new(name, kind, measured.iter().map(|own| (own.product, own.errors[kind]))));
    let chart = Chart::new("Squared error of exp(q.k)", format!("{DRAWS} draws"), Data::Lines(lines.collect()))
        .axes(Axis::new("q.k", ""), Axis::new("mean squared error", "").scale(Ticks::Log));
    let said = |place: usize| {
        let [hashing, features, both] = measured[place].errors;
        format!("{}: {hashing:.4}, {features:.4}, {both:.4}", measured[place].product)
    };
    Ok(Finding {
        clauses,
        statement: format!(
            "Squared errors of hashing, features and both at q.k = {}; {}; {}.",
            said(0),
            said(3),
            said(8)
        ),
        tables: vec![table],
        charts: vec![("squared-error".into(), chart)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Estimates by hand: features 2 and 4 of an exact 1 have squared errors 1 and 9; with a common hash at the second only,
    /// both have 1 and 0, so that a share of 1/10 of the variance remains, and p is 1/2.
    #[test]
    fn a_common_hash_leaves_no_error() {
        let draws = [Draw { features: 2.0, same: false }, Draw { features: 4.0, same: true }];
        let own = at(3, &draws, 0.95);
        assert_eq!((own.exact, own.same, own.errors), (1.0, 0.5, [0.5, 5.0, 0.5]));
        assert!((own.ratio.value - (0.1 - 0.5)).abs() < 1e-12);
        assert_eq!((own.mean.value, own.gains[0].value), (1.5, 4.5));
    }

    #[test]
    fn hashes_are_the_nearest_directions() {
        let mut directions = vec![0.0; 2 * WIDTH];
        (directions[0], directions[WIDTH + 1]) = (1.0, -2.0);
        let [q, k] = pair(-0.6);
        assert_eq!((hash(&directions, &q), hash(&directions, &k)), ((0, false), (1, true)));
        assert!((k.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-12);
    }
}
