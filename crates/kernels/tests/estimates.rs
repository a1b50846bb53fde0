//! Statistics of random features and of Scatterbrain's estimates, over draws of projections and hashes.

mod support;

use regard_kernels::{
    Operator, Scatterbrain, View, draws,
    features::{FeatureKind, RowNorms, RowsDrawn},
    reference::scatterbrain::{log_features, matrix, support as support_of},
    support::{SupportKind, SupportOptions},
};
use regard_testkit::{Random, Report};
use support::Array;

/// Draws whose mean is known, and how far the mean of those seen lies from it.
struct Draws(Vec<f64>);

impl Draws {
    fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    /// Distance of the mean from `expected` in units of its standard deviation.
    fn deviation(&self, expected: f64) -> f64 {
        let (mean, count) = (self.mean(), self.0.len() as f64);
        let variance = self.0.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (count - 1.0);
        (mean - expected) / (variance / count).sqrt()
    }

    fn squares_about(&self, centre: f64) -> Self {
        Self(self.0.iter().map(|x| (x - centre).powi(2)).collect())
    }
}

const DRAWS: u64 = 2_000;
const SCALE: f64 = 0.4;

/// `phi(q).phi(k)` for many projections of `rows` rows.
fn products(kind: FeatureKind, rows: usize, drawn: RowsDrawn, norms: RowNorms, q: &[f64], k: &[f64]) -> Draws {
    let product = |key: u64| {
        let projection: Vec<f64> =
            draws::projection(rows, q.len(), drawn, norms, key).into_iter().map(f64::from).collect();
        let [q, k] = [q, k].map(|x| log_features(kind, &projection, SCALE, x));
        q.iter().zip(&k).map(|(a, b)| (a + b).exp()).sum()
    };
    Draws((0..DRAWS).map(product).collect())
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(a, b)| a * b).sum()
}

/// Variance of the estimate of `exp(tau q.k)` by `m` features of independent rows.
fn predicted_variance(kind: FeatureKind, rows: usize, q: &[f64], k: &[f64]) -> f64 {
    let sum: Vec<f64> = q.iter().zip(k).map(|(a, b)| a + b).collect();
    let (product, squared) = (SCALE * dot(q, k), SCALE * dot(&sum, &sum));
    let one = (2.0 * product).exp() * (squared.exp() - 1.0);
    match kind {
        FeatureKind::Hyperbolic => one * (1.0 - (-squared).exp()) / (2.0 * rows as f64),
        _ => one / rows as f64,
    }
}

#[test]
fn products_of_features_have_the_predicted_mean_and_variance() {
    let mut report = Report::new();
    let random = &mut Random::new(3);
    let mut require = |what: String, deviation: f64| {
        report.require(deviation.abs() < 4.5, format_args!("{what}: {deviation:.1} standard deviations off"));
    };
    for (kind, rows) in [(FeatureKind::Plain, 8), (FeatureKind::Hyperbolic, 8), (FeatureKind::Hyperbolic, 3)] {
        for trial in 0..4 {
            let [q, k] = [0, 1].map(|_| Array::normal(&[6], 0.4, random).data);
            let expected = (SCALE * dot(&q, &k)).exp();
            let variance = predicted_variance(kind, rows, &q, &k);
            let iid = products(kind, rows, RowsDrawn::Iid, RowNorms::Gaussian, &q, &k);
            require(format!("{kind:?} {trial}: mean of independent rows"), iid.deviation(expected));
            require(format!("{kind:?} {trial}: their variance"), iid.squares_about(expected).deviation(variance));
            let orthogonal = products(kind, rows, RowsDrawn::Orthogonal, RowNorms::Gaussian, &q, &k);
            require(format!("{kind:?} {trial}: mean of orthogonal rows"), orthogonal.deviation(expected));
        }
    }
    report.finish();
}

#[test]
fn orthogonal_rows_vary_less_and_rows_of_fixed_norm_are_biased() {
    // Scaled to x = y with this |x + y|.
    let vector = |length: f64| vec![length / 2.0 / (8.0 * SCALE).sqrt(); 8];
    let x = vector(1.0);
    let variance = predicted_variance(FeatureKind::Hyperbolic, 8, &x, &x);
    let orthogonal = products(FeatureKind::Hyperbolic, 8, RowsDrawn::Orthogonal, RowNorms::Gaussian, &x, &x);
    let seen = orthogonal.squares_about((SCALE * dot(&x, &x)).exp()).mean();
    assert!(seen < 0.85 * variance, "variance {seen} of orthogonal rows, {variance} of independent ones");

    let x = vector(2.0);
    // Of e^(|x + y|^2 / 2) = 7.39 the estimate reaches 5.6.
    let fixed = products(FeatureKind::Hyperbolic, 8, RowsDrawn::Orthogonal, RowNorms::SqrtWidth, &x, &x);
    let seen = fixed.mean() / 1f64.exp() * 2f64.exp();
    assert!((seen - 5.6).abs() < 0.1, "{seen}, expected 5.6");
}

#[test]
fn an_entry_varies_as_often_as_the_hash_misses_it() {
    let mut report = Report::new();
    let (length, width, rows) = (12, 6, 4);
    let random = &mut Random::new(8);
    let shape = [1, 1, length, width];
    let [q, k, v] = [0; 3].map(|_| Array::normal(&shape, 0.35, random));
    let operator = Scatterbrain {
        scale: Some(SCALE),
        support: Some(SupportOptions { kind: SupportKind::Smyrf, cluster: 4, rounds: 1, ..SupportOptions::default() }),
        features: Some(FeatureKind::Hyperbolic),
        ..Scatterbrain::default()
    };
    assert_eq!(operator.inputs(), ["q", "k", "v", "projection", "directions"]);
    let wide = |data: Vec<f32>| data.into_iter().map(f64::from).collect::<Vec<_>>();

    // The unnormalised entry, and whether it is on the support: hash and features drawn from one key.
    let mut entries = vec![Vec::new(); length * length];
    for key in 0..DRAWS {
        let projection = wide(draws::projection(rows, width, RowsDrawn::Iid, RowNorms::Gaussian, key));
        let directions = wide(draws::directions(1, width, key));
        let projection_shape = [rows, width];
        let directions_shape = [1, width + 2];
        let views = [
            q.view(),
            k.view(),
            v.view(),
            View::new(&projection, &projection_shape),
            View::new(&directions, &directions_shape),
        ];
        let lse = operator.reference(&views, None).lse.expect("a denominator");
        let on_support = support_of(&operator, &views);
        for (n, weight) in matrix(&operator, &views).into_iter().enumerate() {
            entries[n].push((weight * lse[n / length].exp(), on_support[n]));
        }
    }
    let (mut shares, mut ratio) = (Vec::new(), 0.0);
    for (n, entry) in entries.iter().enumerate() {
        let (q, k) = (&q.data[n / length * width..][..width], &k.data[n % length * width..][..width]);
        let expected = (SCALE * dot(q, k)).exp();
        let performer = predicted_variance(FeatureKind::Hyperbolic, rows, q, k);
        let label = format!("entry {n}");
        for (value, _) in entry.iter().filter(|(_, on)| *on) {
            report.require((value / expected - 1.0).abs() < 1e-12, format_args!("{label} is not exact on the support"));
        }
        let values = Draws(entry.iter().map(|(value, _)| *value).collect());
        let off = values.deviation(expected);
        report.require(off.abs() < 4.5, format_args!("{label}: mean {off:.1} standard deviations off"));
        // Zero on average where the variance is `(1 - p) Var`: only if features know nothing of the hash.
        let excess = entry.iter().map(|(value, on)| (value - expected).powi(2) - if *on { 0.0 } else { performer });
        let off = Draws(excess.collect()).deviation(0.0);
        report.require(off.abs() < 4.5, format_args!("{label}: variance {off:.1} standard deviations off"));
        let share = entry.iter().filter(|(_, on)| *on).count() as f64 / DRAWS as f64;
        shares.push(share);
        ratio += values.squares_about(expected).mean() / ((1.0 - share) * performer) / entries.len() as f64;
    }
    report.require((ratio - 1.0).abs() < 0.1, format_args!("{ratio} times the predicted variance on average"));
    let [low, high] = [f64::min, f64::max].map(|pick| shares.iter().copied().reduce(pick).expect("entries"));
    report.require(low > 0.05 && high < 0.95 && high - low > 0.2, format_args!("shares from {low} to {high}"));
    report.finish();
}
