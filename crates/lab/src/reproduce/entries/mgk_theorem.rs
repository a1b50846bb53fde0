//! Theorem 1 of the MGK paper: how many Gaussians of one variance come near a density.

use std::f64::consts::PI;

use regard_report::{Axis, Cell, Chart, Column, Data, Format, Scale as Ticks, Series, Table};
use regard_tasks::Failure;

use crate::reproduce::{Clause, Entry, Finding, Paper, Scale, Setup, Workbench};

pub const ENTRY: Entry = Entry {
    name: "mgk-theorem",
    paper: Paper::Mgk,
    figures: "theorem 1",
    claim: "For any variance and any tolerance e, a mixture of at most (C ln 1/e)^d Gaussians of this variance comes within e of any \
            differentiable and bounded density on a box.",
    data: "none",
    models: &[],
    paper_setting: "A theorem with its proof, for every dimension d.",
    setups: &[Setup {
        scale: Scale::Paper,
        setting: "Dimension 1: a density that no mixture of the variance comes near, and mixtures of 1 to 40 Gaussians at Gauss-Legendre \
                  nodes for a density that is a mixture of infinitely many.",
        differences: &[],
        minutes: 0.0,
    }],
    run,
};

/// Deviations of the Gaussians.
const DEVIATIONS: [f64; 3] = [1.0, 0.5, 0.25];
/// Half the width of the bump that the theorem, as printed, is tried on.
const BUMP: f64 = 0.1;
/// Tolerances, each the square of the one before.
const TOLERANCES: [f64; 4] = [1e-1, 1e-2, 1e-4, 1e-8];
const MOST: usize = 40;

fn run(_: &Workbench, _: Scale) -> Result<Finding, Failure> {
    let number = |name: &str| Column::number(name, Format::Significant(3));
    let mut bumps = Table::new(
        "A bump and mixtures of Gaussians",
        vec![number("deviation"), number("top of the bump"), number("highest mixture"), number("least distance")],
    )
    .note("The bump (1 + cos(pi x / h)) / 2h on [-h, h] is differentiable and bounded. No mixture is anywhere above 1 / (s sqrt(2 pi)).");
    let mut far = true;
    for deviation in DEVIATIONS {
        let (top, highest) = (bump(0.0), gaussian(0.0, deviation));
        far &= top > highest;
        bumps.push([deviation, top, highest, top - highest].map(Cell::from).to_vec());
    }

    let mut columns = vec![number("deviation")];
    columns.extend(TOLERANCES.map(|tolerance| Column::number(format!("e = {tolerance:e}"), Format::Plain)));
    let mut needed = Table::new("Gaussians needed for a density that is a mixture of infinitely many", columns).note(
        "The even density on [-1, 1] blurred by a Gaussian of the deviation; centres and weights by Gauss-Legendre.",
    );
    let (mut lines, mut grows_slowly) = (Vec::new(), true);
    for (style, deviation) in DEVIATIONS.into_iter().enumerate() {
        let errors: Vec<f64> = (1..=MOST).map(|count| farthest(count, deviation)).collect();
        let counts = TOLERANCES.map(|tolerance| errors.iter().position(|error| *error <= tolerance).map(|at| at + 1));
        // The logarithm doubles from one tolerance to the next.
        grows_slowly &= counts.windows(2).all(|pair| matches!(pair, [Some(one), Some(next)] if *next <= 2 * one));
        let mut row = vec![deviation.into()];
        row.extend(counts.map(Cell::from));
        needed.push(row);
        let points = errors.iter().enumerate().map(|(at, error)| ((at + 1) as f64, *error)).filter(|(_, e)| *e > 1e-14);
        lines.push(Series::new(format!("s = {deviation}"), style, points));
    }
    let chart = Chart::new("Distance of mixtures", "Largest distance of the densities", Data::Lines(lines))
        .axes(Axis::new("Gaussians", "").whole(), Axis::new("distance", "").scale(Ticks::Log));
    Ok(Finding {
        clauses: vec![
            Clause::paper("As printed, for a fixed variance and every density.")
                .exactly(!far)
                .note("a bump higher than the Gaussian stays away from every mixture"),
            Clause::ours(
                "For a density that is itself blurred by the Gaussian, doubling ln 1/e at most doubles the number of Gaussians.",
            )
            .exactly(grows_slowly),
        ],
        statement: format!(
            "A bump of height {:.0} is at least {:.2} away from every mixture of deviation 1, however many Gaussians: the first step of \
             the proof needs the variance free. Its second step holds where it applies.",
            bump(0.0),
            bump(0.0) - gaussian(0.0, 1.0)
        ),
        tables: vec![bumps, needed],
        charts: vec![("distance".into(), chart)],
    })
}

/// A differentiable bounded density on `[-BUMP, BUMP]`.
fn bump(x: f64) -> f64 {
    if x.abs() > BUMP { 0.0 } else { (1.0 + (PI * x / BUMP).cos()) / (2.0 * BUMP) }
}

fn gaussian(x: f64, deviation: f64) -> f64 {
    (-0.5 * (x / deviation).powi(2)).exp() / (deviation * (2.0 * PI).sqrt())
}

/// Largest distance between the blurred even density and its mixture of `count` Gaussians.
fn farthest(count: usize, deviation: f64) -> f64 {
    let (all, few) = (nodes(160), nodes(count));
    let density = |of: &[(f64, f64)], x: f64| {
        of.iter().map(|(at, weight)| weight / 2.0 * gaussian(x - at, deviation)).sum::<f64>()
    };
    let reach = 1.0 + 6.0 * deviation;
    let grid = (0..=800).map(|i| reach * f64::from(i) / 800.0);
    grid.map(|x| (density(&all, x) - density(&few, x)).abs()).fold(0.0, f64::max)
}

/// Nodes and weights of Gauss-Legendre quadrature on `[-1, 1]`, by Newton's method.
fn nodes(count: usize) -> Vec<(f64, f64)> {
    let n = count as f64;
    let node = |i: usize| {
        let mut x = (PI * (i as f64 + 0.75) / (n + 0.5)).cos();
        let mut slope = 1.0;
        for _ in 0..50 {
            let (mut before, mut value) = (0.0, 1.0);
            for k in 0..count {
                let k = k as f64;
                (before, value) = (value, ((2.0 * k + 1.0) * x * value - k * before) / (k + 1.0));
            }
            slope = n * (x * value - before) / (x * x - 1.0);
            x -= value / slope;
        }
        (x, 2.0 / ((1.0 - x * x) * slope * slope))
    };
    (0..count).map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables of Gauss-Legendre: of 3 nodes 0 and 0.7745966692 with weights 8/9 and 5/9.
    #[test]
    fn nodes_are_those_of_the_tables() {
        let three = nodes(3);
        let near =
            |(x, w): (f64, f64), expected: (f64, f64)| (x - expected.0).abs() < 1e-9 && (w - expected.1).abs() < 1e-9;
        assert!(near(three[0], (0.774_596_669_2, 5.0 / 9.0)) && near(three[1], (0.0, 8.0 / 9.0)), "{three:?}");
        let quadrature = |power: i32| nodes(20).iter().map(|(x, w)| w * x.powi(power)).sum::<f64>();
        assert!((quadrature(0) - 2.0).abs() < 1e-12 && (quadrature(10) - 2.0 / 11.0).abs() < 1e-12);
    }

    /// By a script of NumPy with the error function: one Gaussian of deviation 1 is 5.8e-2 away, three 1.5e-4, five 1.2e-7.
    #[test]
    fn distances_fall_as_computed_elsewhere() {
        for (count, expected) in [(1, 5.8e-2), (3, 1.5e-4), (5, 1.2e-7)] {
            let seen = farthest(count, 1.0);
            assert!((seen / expected - 1.0).abs() < 0.06, "{count}: {seen}, expected {expected}");
        }
    }

    #[test]
    fn the_bump_is_a_density() {
        let sum: f64 = (-1000..=1000).map(|i| bump(f64::from(i) * BUMP / 1000.0) * BUMP / 1000.0).sum();
        assert!((sum - 1.0).abs() < 1e-9 && bump(1.01 * BUMP) == 0.0);
    }
}
