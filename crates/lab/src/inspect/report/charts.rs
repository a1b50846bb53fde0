//! Charts of a survey.

use regard_report::{Axis, Block, Chart, Data, Mark, Series};

use super::super::{rank::MatrixRank, survey::Attention};

/// Maximum lines in one readable chart.
const MOST_LINES: usize = 8;

/// Normalised entropy by position, one line per head, one chart per attention.
pub fn entropy(attentions: &[Attention]) -> Vec<Block> {
    let chart = |attention: &Attention| {
        let line = |(style, (head, entropy)): (usize, (&usize, &super::super::entropy::Entropy))| {
            Series::new(format!("head {head}"), style, entropy.curve().into_iter().map(|(at, mean)| (at + 1.0, mean)))
        };
        let all = attention.heads.iter().zip(&attention.entropy).enumerate();
        let shown: Vec<Series> = all.take(MOST_LINES).map(line).collect();
        let left_out = attention.heads.len().saturating_sub(MOST_LINES);
        let subtitle = match left_out {
            0 => "mean over sequences".to_owned(),
            _ => format!("mean over sequences; the first {MOST_LINES} of {} heads", attention.heads.len()),
        };
        let chart = Chart::new(format!("Entropy by position, {}", attention.name), subtitle, Data::Lines(shown)).axes(
            Axis::new("position of the query", "").whole(),
            Axis::new("entropy by ln(visible keys)", "%").range(0.0, 1.0),
        );
        Block::Chart { name: format!("entropy {}", attention.name), chart }
    };
    attentions.iter().filter(|attention| !attention.entropy.is_empty()).map(chart).collect()
}

/// Distribution of rank and effective rank over matrices, one line per attention.
pub fn rank(attentions: &[Attention]) -> Vec<Block> {
    let ranked: Vec<&Attention> = attentions.iter().filter(|attention| !attention.ranks.is_empty()).collect();
    if ranked.is_empty() {
        return Vec::new();
    }
    let chart = |name: &str, title: &str, of: &dyn Fn(&MatrixRank) -> f64| {
        let line = |(style, attention): (usize, &&Attention)| {
            let shares = attention.ranks.iter().map(|rank| of(rank) / rank.full as f64).collect();
            Series::new(&*attention.name, style, distribution(shares))
        };
        let lines = ranked.iter().enumerate().take(MOST_LINES).map(line).collect();
        let count: usize = ranked.iter().map(|attention| attention.ranks.len()).sum();
        let chart = Chart::new(title, format!("{count} matrices"), Data::Lines(lines)).axes(
            Axis::new("of the full rank", "%"),
            Axis::new("matrices with at most this rank", "%").range(0.0, 1.0),
        );
        Block::Chart { name: name.into(), chart }
    };
    vec![
        chart("rank", "Numerical rank of attention matrices", &|rank| rank.rank as f64),
        chart("effective rank", "Effective rank of attention matrices", &|rank| rank.effective),
    ]
}

/// Corners of the empirical distribution function of some values.
fn distribution(mut values: Vec<f64>) -> Vec<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let steps = values.iter().enumerate();
    steps.flat_map(|(below, value)| [(*value, below as f64 / count), (*value, (below + 1) as f64 / count)]).collect()
}

/// Distance of heads, one dot per attention.
pub fn redundancy(attentions: &[Attention]) -> Vec<Block> {
    let compared: Vec<&Attention> = attentions.iter().filter(|attention| !attention.redundancy.is_empty()).collect();
    if compared.is_empty() {
        return Vec::new();
    }
    let mark = |attention: &&Attention| {
        let all: Vec<_> = attention.redundancy.iter().map(|pair| pair.distance).collect();
        let joined = super::Moments::joined(&all);
        let deviation = joined.deviation().unwrap_or(0.0);
        Mark { name: attention.name.clone(), x: 0.0, y: joined.mean, deviation, style: 0 }
    };
    let marks = compared.iter().map(mark).collect();
    let subtitle = "mean and deviation over pairs of heads and sequences";
    let chart = Chart::new("Distance of heads' weights", subtitle, Data::Dots(marks))
        .axes(Axis::default(), Axis::new("root mean square over queries", "").range(0.0, 2f64.sqrt()));
    vec![Block::Chart { name: "distance".into(), chart }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distribution_rises_at_each_value() {
        assert_eq!(distribution(vec![2.0, 1.0]), [(1.0, 0.0), (1.0, 0.5), (2.0, 0.5), (2.0, 1.0)]);
    }
}
