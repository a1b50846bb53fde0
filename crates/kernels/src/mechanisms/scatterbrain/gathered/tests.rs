use std::sync::Arc;

use regard_testkit::{Random, Report, error, narrow, wide};

use crate::{
    Layout, Mask, Operator, Padding, Reference, Saved, Scatterbrain, View, draws,
    features::{FeatureKind, RowNorms, RowsDrawn},
    support::{SupportKind, SupportOptions},
};

const WIDTH: usize = 8;
const VALUE_WIDTH: usize = 5;
const ROWS: usize = 6;

/// Sizes of a call: batch rows, query heads, key heads, queries, keys.
#[derive(Clone, Copy, Debug)]
struct Sizes(usize, usize, usize, usize, usize);

/// An operator with inputs and an output gradient, all exactly float32.
struct Sample {
    operator: Scatterbrain,
    shapes: Vec<Vec<usize>>,
    inputs: Vec<Vec<f64>>,
    grad_out: Vec<f64>,
}

/// Results of the kernel.
struct Outcome {
    out: Vec<f32>,
    saved: Saved,
    grads: Vec<Option<Vec<f32>>>,
}

impl Sample {
    /// Queries and keys are normal with standard deviation `spread`.
    fn new(operator: Scatterbrain, Sizes(batch, heads, key_heads, queries, keys): Sizes, spread: f64) -> Self {
        let tensor = |heads, tokens, width| match operator.layout {
            Layout::HeadFirst => vec![batch, heads, tokens, width],
            Layout::TokenFirst => vec![batch, tokens, heads, width],
        };
        let options = operator.support.clone().unwrap();
        let mut random = Random::new(7);
        let (mut shapes, mut inputs) = (Vec::new(), Vec::new());
        for name in operator.inputs() {
            let values = options.hash_values(keys);
            let shape = match name {
                "q" => tensor(heads, queries, WIDTH),
                "k" => tensor(key_heads, keys, WIDTH),
                "v" => tensor(key_heads, keys, VALUE_WIDTH),
                "projection" => vec![ROWS, WIDTH],
                "directions" => vec![options.rounds, WIDTH + 2],
                _ => vec![options.rounds, WIDTH, values / 2],
            };
            let scale = if name == "q" || name == "k" { spread } else { 1.0 };
            let count = shape.iter().product();
            inputs.push(match name {
                "projection" => wide(&draws::projection(ROWS, WIDTH, RowsDrawn::Orthogonal, RowNorms::Gaussian, 1)),
                "directions" => wide(&draws::directions(options.rounds, WIDTH, 2)),
                "rotations" => wide(&draws::rotations(options.rounds, WIDTH, values, 3)),
                _ => wide(&random.normals(count).iter().map(|x| (x * scale) as f32).collect::<Vec<_>>()),
            });
            shapes.push(shape);
        }
        let grad_out = tensor(heads, queries, VALUE_WIDTH).iter().product();
        let grad_out = wide(&random.normals(grad_out).iter().map(|&x| x as f32).collect::<Vec<_>>());
        Self { operator, shapes, inputs, grad_out }
    }

    fn reference(&self) -> Reference {
        let views: Vec<_> = self.inputs.iter().zip(&self.shapes).map(|(data, shape)| View::new(data, shape)).collect();
        self.operator.reference(&views, Some(&self.grad_out))
    }

    /// The kernel's output buffer starts as NaN.
    fn kernel(&self) -> Outcome {
        let inputs: Vec<Vec<f32>> = self.inputs.iter().map(|data| narrow(data)).collect();
        let views: Vec<_> = inputs.iter().zip(&self.shapes).map(|(data, shape)| View::new(data, shape)).collect();
        let grad_out = narrow(&self.grad_out);
        let mut out = vec![f32::NAN; grad_out.len()];
        let saved = self.operator.forward(&views, &mut out);
        let grads = self.operator.backward(&views, &out, &saved, &grad_out, &vec![true; views.len()]);
        Outcome { out, saved, grads }
    }

    /// Checks the kernel against the twin.
    fn check(&self, report: &mut Report, label: &str, bound: f64) -> Outcome {
        let (twin, kernel) = (self.reference(), self.kernel());
        report.compare(format!("{label}: out"), &wide(&kernel.out), &twin.out, bound);
        let lse = wide(&kernel.saved[0]);
        let finite = |x: &&f64| x.is_finite();
        let expected = twin.lse.unwrap();
        let [seen, wanted] = [&lse, &expected].map(|x| x.iter().filter(finite).copied().collect::<Vec<_>>());
        report.require(seen.len() == wanted.len(), format!("{label}: rows that see nothing"));
        report.compare(format!("{label}: lse"), &seen, &wanted, bound);
        for ((name, seen), wanted) in self.operator.inputs().iter().zip(&kernel.grads).zip(&twin.grads) {
            match seen {
                Some(seen) => report.compare(format!("{label}: grad.{name}"), &wide(seen), wanted, bound),
                None => report.require(wanted.is_empty(), format!("{label}: grad.{name} is missing")),
            }
        }
        kernel
    }
}

fn operator(support: SupportOptions, features: Option<FeatureKind>, mask: Mask) -> Scatterbrain {
    Scatterbrain { layout: Layout::TokenFirst, mask, scale: None, support: Some(support), features, naive: false }
}

/// Supports whose groups have more queries and keys than a tile.
fn wide_supports() -> Vec<SupportOptions> {
    let options = |kind| SupportOptions {
        kind,
        radius: 90,
        globals: 5,
        random: 2,
        block: 150,
        layout: Some(["11010", "00101"].map(String::from).to_vec()),
        cluster: 330,
        bucket: 210,
        hash_values: Some(8),
        ..SupportOptions::default()
    };
    [SupportKind::Longformer, SupportKind::Bigbird, SupportKind::Block, SupportKind::Smyrf, SupportKind::Lsh]
        .map(options)
        .to_vec()
}

#[test]
fn groups_larger_than_tiles_agree_with_the_twin() {
    let mut report = Report::new();
    for support in wide_supports() {
        let lsh = support.kind == SupportKind::Lsh;
        let sizes = if lsh { Sizes(2, 1, 1, 640, 640) } else { Sizes(2, 2, 1, 290, 700) };
        let valid = Arc::new(Padding::from_lengths(&[sizes.4, sizes.4 - 60], sizes.4));
        for (features, mask) in [
            (None, Mask::none()),
            (None, Mask::causal().with_valid(Some(valid.clone()))),
            (Some(FeatureKind::Hyperbolic), Mask::none()),
            (Some(FeatureKind::Plain), Mask::causal().with_valid(Some(valid.clone()))),
            (Some(FeatureKind::Elu), Mask::none().with_valid(Some(valid.clone()))),
        ] {
            let label = format!("{} {features:?} causal {}", support.name(), mask.causal);
            Sample::new(operator(support.clone(), features, mask), sizes, 1.0).check(&mut report, &label, 1e-5);
        }
    }
    report.finish();
}

#[test]
fn queries_cut_into_parts_agree_with_the_twin() {
    let mut report = Report::new();
    let options =
        SupportOptions { kind: SupportKind::Bigbird, radius: 7, random: 1, block: 16, ..SupportOptions::default() };
    for (features, globals) in [(None, 4), (None, 45), (Some(FeatureKind::Hyperbolic), 4)] {
        let options = SupportOptions { globals, ..options.clone() };
        let sample = Sample::new(operator(options, features, Mask::none()), Sizes(1, 1, 1, 4100, 40), 1.0);
        sample.check(&mut report, &format!("{features:?}, {globals} globals"), 1e-5);
    }
    report.finish();
}

/// Large norms make feature products vary by orders of magnitude, so that low-rank parts exceed the final denominators.
#[test]
fn rows_that_would_cancel_agree_with_the_twin() {
    let mut report = Report::new();
    for mut support in wide_supports() {
        support.layout = Some(["1010", "1100", "0011", "1001"].map(String::from).to_vec());
        (support.radius, support.block, support.cluster, support.bucket) = (20, 40, 30, 50);
        // Keys of LSH have unit norm.
        let spread = if support.kind == SupportKind::Lsh { 3.0 } else { 1.5 };
        let mut redone = 0;
        for (features, mask) in [
            (FeatureKind::Hyperbolic, Mask::none()),
            (FeatureKind::Plain, Mask::causal()),
            (FeatureKind::Elu, Mask::none()),
        ] {
            let label = format!("{} {features:?} causal {}", support.name(), mask.causal);
            let sample = Sample::new(operator(support.clone(), Some(features), mask), Sizes(1, 2, 2, 140, 140), spread);
            let kernel = sample.check(&mut report, &label, 1e-5);
            redone += kernel.saved[2].iter().filter(|&&inverse| inverse < 0.0).count();
        }
        report.require(redone > 0, format!("{}: no row needs it", support.name()));
    }
    report.finish();
}

/// If the support covers every pair, each row is softmax, without features.
#[test]
fn supports_that_cover_everything_give_softmax() {
    let mut report = Report::new();
    for kind in [SupportKind::Longformer, SupportKind::Block, SupportKind::Smyrf] {
        for mask in [Mask::none(), Mask::causal()] {
            let support = SupportOptions {
                kind,
                radius: 100,
                block: 50,
                layout: Some(vec!["1".into()]),
                cluster: 50,
                ..SupportOptions::default()
            };
            let sizes = Sizes(1, 2, 2, 50, 50);
            let sparse = Sample::new(operator(support.clone(), None, mask.clone()), sizes, 1.0).kernel();
            let both = Sample::new(operator(support, Some(FeatureKind::Plain), mask.clone()), sizes, 1.0).kernel();
            report.same(format!("{kind:?} causal {}", mask.causal), &wide(&both.out), &wide(&sparse.out));
        }
    }
    report.finish();
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let mut report = Report::new();
    for mut support in wide_supports() {
        let lsh = support.kind == SupportKind::Lsh;
        support.layout = Some(vec!["1101".into(); 29]);
        let sizes = if lsh { Sizes(1, 2, 2, 600, 600) } else { Sizes(1, 4, 2, 4300, 550) };
        for features in [None, Some(FeatureKind::Hyperbolic)] {
            let sample = Sample::new(operator(support.clone(), features, Mask::none()), sizes, 1.5);
            let on = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| sample.kernel())
            };
            let one = on(1);
            for threads in [2, 7] {
                let other = on(threads);
                let label = format!("{} {features:?} on {threads} threads", support.name());
                report.same(format!("{label}: out"), &wide(&other.out), &wide(&one.out));
                for (seen, wanted) in other.grads.iter().flatten().zip(one.grads.iter().flatten()) {
                    report.same(format!("{label}: gradient"), &wide(seen), &wide(wanted));
                }
            }
        }
    }
    report.finish();
}

/// Feature products that overflow and underflow f32 by far.
#[test]
fn extreme_scores_stay_finite_and_right() {
    let mut report = Report::new();
    for kind in [SupportKind::Longformer, SupportKind::Smyrf] {
        for mask in [Mask::none(), Mask::causal()] {
            let support = SupportOptions { kind, radius: 3, globals: 2, cluster: 12, ..SupportOptions::default() };
            let label = format!("{kind:?} causal {}", mask.causal);
            let features = Some(FeatureKind::Hyperbolic);
            let sample = Sample::new(operator(support, features, mask), Sizes(1, 2, 1, 40, 40), 12.0);
            let (twin, kernel) = (sample.reference(), sample.kernel());
            report.compare(format!("{label}: out"), &wide(&kernel.out), &twin.out, 1e-4);
            for (seen, wanted) in kernel.grads.iter().flatten().zip(&twin.grads) {
                let off = error(&wide(seen), wanted);
                report.require(off < 1e-3, format!("{label}: gradient off by {off:e}"));
            }
        }
    }
    report.finish();
}
