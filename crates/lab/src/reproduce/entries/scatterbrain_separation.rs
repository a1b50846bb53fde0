//! Scatterbrain's theorems 3 and 4: matrices that a sparse and a low-rank part together describe with few parameters.

use regard_kernels::random::{bits, substream};
use regard_report::{Column, Format, Sample, Table};
use regard_tasks::Failure;

use super::scatterbrain_theory::beyond_ranks;
use crate::{
    approx::Dense,
    reproduce::{Clause, Entry, Estimate, Finding, Paper, Scale, Setup, Workbench, confidence},
};

pub const SEPARATION: Entry = Entry {
    name: "scatterbrain-separation",
    paper: Paper::Scatterbrain,
    figures: "theorems 3 and 4",
    claim: "There are n tokens whose exp(Q Q^T) the sum of a sparse and a low-rank matrix brings to an error of a small share of n with \
            linearly many parameters (theorem 4), or to a small share of the square root of n with n^1.5 log n / eps of them (theorem 3), while \
            neither kind alone does with any number of parameters that grows slower than n^2.",
    data: "none",
    models: &[],
    paper_setting: "Theorems on n to infinity, with tokens of random signs: theorem 4 with |q|^2 = r, theorem 3 with |q| = 1.",
    setups: &[
        Setup {
            scale: Scale::Quick,
            setting: "Theorem 4: r = ln(n) / 2, (e^r - 1) I + J, 2 n parameters, n = 256 and 512. Theorem 3: 64 channels, (e - 2) I + J + Q Q^T, n \
                      = 512. 4 draws.",
            differences: DIFFERENCES,
            minutes: 0.5,
        },
        Setup {
            scale: Scale::Here,
            setting: "Theorem 4: r = ln(n) / 2, (e^r - 1) I + J, 2 n parameters, n = 256 and 1,024. Theorem 3: 128 channels, (e - 2) I + J + Q Q^T, \
                      n = 1,024. 4 draws.",
            differences: DIFFERENCES,
            minutes: 3.0,
        },
    ],
    run,
};

const DIFFERENCES: &[&str] = &[
    "theorem 4 with r = ln(n) / 2, where the example as printed has r of a lower order than log n",
    "a small share is below 0.5, and for theorem 4 below 0.1",
    "either kind alone has half of n^2 parameters in theorem 4, and as many as the sum in theorem 3",
    "theorem 3 with fewer channels than its constants ask for: with these the rank is above n up to some 2,100 tokens",
];

const DRAWS: u64 = 4;

/// `n` tokens of `width` random signs, scaled to a squared norm.
fn signs(n: usize, width: usize, square: f64, draw: u64) -> Dense {
    let size = (square / width as f64).sqrt();
    let key = substream(substream(0x7369_676e, draw), n as u64);
    Dense::from_fn(n, width, |i, c| if bits(key, (i * width + c) as u32) & 1 == 0 { size } else { -size })
}

/// The error of the largest entries, `count` of them.
fn beyond_entries(matrix: &Dense, count: usize) -> f64 {
    let mut squares: Vec<f64> = matrix.data.iter().map(|x| x * x).collect();
    squares.sort_by(|one, other| other.total_cmp(one));
    squares.iter().skip(count).sum::<f64>().sqrt()
}

/// Errors of the sum, of the best low-rank and of the best sparse matrix, in units of `n` or its square root.
type Errors = [f64; 3];

/// Theorem 4: `r = ln(n) / 2`, so wide that `|q.k| <= 1/4` for different tokens.
fn fourth(n: usize, draw: u64) -> Result<Errors, Failure> {
    let log = (n as f64).ln();
    let r = log / 2.0;
    let width = (6.0 * r * r * log / 0.0625).ceil() as usize;
    let tokens = signs(n, width, r, draw);
    let matrix = tokens.product(&tokens, true).map(f64::exp);
    let sum = Dense::from_fn(n, n, |i, j| if i == j { r.exp() } else { 1.0 });
    // Rank k has 2 n k parameters.
    let errors =
        [sum.zip(&matrix, |x, y| x - y).norm(), beyond_ranks(&matrix, [n / 4])?[0], beyond_entries(&matrix, n * n / 2)];
    Ok(errors.map(|error| error / n as f64))
}

/// Theorem 3: unit tokens; the sum has `2 n (width + 1) + n` parameters, and either kind alone as many or more.
fn third(n: usize, width: usize, draw: u64) -> Result<Errors, Failure> {
    let tokens = signs(n, width, 1.0, draw);
    let products = tokens.product(&tokens, true);
    let matrix = products.map(f64::exp);
    let diagonal = std::f64::consts::E - 2.0;
    let sum = Dense::from_fn(n, n, |i, j| 1.0 + products.data[i * n + j] + if i == j { diagonal } else { 0.0 });
    let errors = [
        sum.zip(&matrix, |x, y| x - y).norm(),
        beyond_ranks(&matrix, [width + 2])?[0],
        beyond_entries(&matrix, 2 * n * (width + 2)),
    ];
    Ok(errors.map(|error| error / (n as f64).sqrt()))
}

fn run(bench: &Workbench, scale: Scale) -> Result<Finding, Failure> {
    let (few, many, width) = if scale == Scale::Quick { (256, 512, 64) } else { (256, 1024, 128) };
    let sure = confidence(6);
    let mut table = Table::new(
        "Errors",
        ["theorem", "tokens", "unit"]
            .map(Column::text)
            .into_iter()
            .chain(["sparse and low-rank", "low-rank", "sparse"].map(|name| Column::number(name, Format::Fixed(3))))
            .collect(),
    )
    .note(format!("Frobenius norms in this unit, means over {DRAWS} draws."));
    let mut measured = |theorem: &str, n: usize, unit: &str, errors: &dyn Fn(u64) -> Result<Errors, Failure>| {
        let mut drawn = Vec::new();
        for draw in 0..DRAWS {
            if bench.stopped() {
                return Err(Failure::interrupted("stopped"));
            }
            bench.note(&format!("theorem {theorem}, {n} tokens, draw {}", draw + 1));
            drawn.push(errors(draw)?);
        }
        let kinds = [0, 1, 2].map(|kind| drawn.iter().map(|own| own[kind]).collect::<Vec<f64>>());
        let mut row = vec![theorem.into(), n.to_string().into(), unit.into()];
        row.extend(kinds.iter().map(|own| Sample::of(own).mean.into()));
        table.push(row);
        Ok(kinds)
    };
    let small = measured("4", few, "n", &|draw| fourth(few, draw))?;
    let large = measured("4", many, "n", &|draw| fourth(many, draw))?;
    let root = measured("3", many, "root of n", &|draw| third(many, width, draw))?;
    let mean = |values: &[f64]| Estimate::mean(values, sure, "draws");
    let clauses = vec![
        Clause::paper("Theorem 4: the sum has an error of a small share of n.").below(mean(&large[0]), 0.1),
        Clause::paper("Theorem 4: low-rank alone does not.").above(mean(&large[1]), 0.5),
        Clause::paper("Theorem 4: sparse alone does not.").above(mean(&large[2]), 0.5),
        Clause::paper("Theorem 3: the sum has an error of a small share of the root of n.").below(mean(&root[0]), 0.5),
        Clause::paper("Theorem 3: low-rank alone does not.").above(mean(&root[1]), 0.5),
        Clause::paper("Theorem 3: sparse alone does not.").above(mean(&root[2]), 0.5),
        Clause::ours("Theorem 4: the share of the sum does not grow with n.")
            .below(Estimate::paired(&large[0], &small[0], sure, "draws"), 0.005),
    ];
    let said = |values: &[Vec<f64>; 3]| values.each_ref().map(|own| format!("{:.3}", Sample::of(own).mean)).join(", ");
    Ok(Finding {
        clauses,
        statement: format!(
            "At {many} tokens, errors of the sum, of low-rank and of sparse alone: theorem 4 {} of n; theorem 3 {} of its root.",
            said(&large),
            said(&root)
        ),
        tables: vec![table],
        charts: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: two tokens of one sign pattern have q.k = r, and the largest entries of a matrix leave the rest of its norm.
    #[test]
    fn tokens_have_the_norm_and_entries_leave_the_rest() {
        let tokens = signs(8, 32, 2.5, 1);
        let products = tokens.product(&tokens, true);
        assert!((0..8).all(|i| (products.data[i * 9] - 2.5).abs() < 1e-12));
        assert_ne!(tokens, signs(8, 32, 2.5, 2));
        let matrix = Dense::new(2, 2, vec![1.0, -3.0, 4.0, 2.0]);
        assert!((beyond_entries(&matrix, 2) - 5f64.sqrt()).abs() < 1e-12);
    }
}
