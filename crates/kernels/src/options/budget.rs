//! Sizes of support and features from a fraction of the `N x S` entries (`budget`).

use crate::{
    AttentionOptions, Error, Mechanism,
    features::FeatureKind,
    support::{SupportKind, SupportOptions},
};

impl AttentionOptions {
    /// These options with the sizes that the budget allows for `queries x keys` entries, and without the budget;
    /// unchanged if there is no budget, or nothing to size.
    ///
    /// Of `f N S` entries the support gets the share `s`: all in sparse attention, none in Performer, and
    /// `scatterbrain.sparse_share` in Scatterbrain (arXiv 2110.15343, section 5); the features get the rest,
    /// `m = (1 - s) f S` per row. With `e = s f S` entries of the support per row:
    ///
    /// - `local`: `2 radius + 1 <= e`, causal `radius + 1 <= e`;
    /// - `longformer`, `bigbird`: the same, after subtracting global tokens and random blocks;
    /// - `smyrf`: `rounds * cluster <= e`; `lsh`: `rounds * 2 bucket <= e`;
    /// - hyperbolic features: `2 rows <= m`; plain ones: `rows <= m`.
    ///
    /// # Errors
    /// A budget too small for the smallest sizes, and parts whose size a budget cannot set: `elu` features, supports
    /// `block` and `full`.
    pub fn within_budget(&self, queries: usize, keys: usize, head_width: usize) -> Result<Self, Error> {
        let Some(budget) = self.budget else { return Ok(self.clone()) };
        let mut options = Self { budget: None, ..self.clone() };
        let share = match self.mechanism {
            Mechanism::Performer => 0.0,
            Mechanism::Sparse => 1.0,
            // Without a support there are only features.
            Mechanism::Scatterbrain if self.support.kind == SupportKind::Empty => 0.0,
            Mechanism::Scatterbrain => self.scatterbrain.sparse_share,
            _ => return Ok(options),
        };
        self.check()?;
        let row = budget.value() * keys as f64;
        let part =
            |name: &'static str, share: f64| Part { name, budget: budget.value(), share, keys, entries: share * row };
        if self.uses_support() && self.support.kind != SupportKind::Empty {
            size_support(&mut options.support, part("the support", share), self.causal, queries)?;
        }
        if self.uses_features() {
            let m = part("the features", 1.0 - share);
            options.features.rows = match self.features.kind {
                FeatureKind::Hyperbolic => m.whole(2.0)? / 2,
                FeatureKind::Plain => m.whole(1.0)?,
                FeatureKind::Elu => {
                    let seen = format!("set with elu features, which are {head_width} whatever it is");
                    return Err(Error::option("budget", seen, "features.kind = hyperbolic or plain"));
                }
            };
        }
        Ok(options)
    }

    /// The sizes of support and features as text, as `radius 24, 16 rows`; empty if the mechanism has none.
    pub fn sizes(&self) -> String {
        let mut words = Vec::new();
        let support = &self.support;
        if self.uses_support() {
            match support.kind {
                SupportKind::Local => words.push(format!("radius {}", support.radius)),
                SupportKind::Longformer => {
                    words.push(format!("radius {}, {} globals", support.radius, support.globals))
                }
                SupportKind::Bigbird => words.push(format!(
                    "radius {}, {} globals, {} blocks of {}",
                    support.radius, support.globals, support.random, support.block
                )),
                SupportKind::Block => words.push(format!("blocks of {}", support.block)),
                SupportKind::Smyrf => words.push(format!("{} rounds, clusters of {}", support.rounds, support.cluster)),
                SupportKind::Lsh => words.push(format!("{} rounds, chunks of {}", support.rounds, support.bucket)),
                SupportKind::Full | SupportKind::Empty => {}
            }
        }
        if self.uses_features() && self.features.kind != FeatureKind::Elu {
            words.push(format!("{} rows", self.features.rows));
        }
        words.join(", ")
    }
}

/// Share of a budget for the support of a trained model whose attention rows have a mean entropy of `mean_row_entropy`
/// nats over `keys` keys.
///
/// `1 - H / ln S`, clamped to `[0.1, 0.9]`: uniform rows, of entropy `ln S`, are low-rank, rows that attend to one key
/// are sparse, and neither part is ever dropped. The rule is ours: the paper (arXiv 2110.15343, section 5) only says
/// that high entropy should shift budget to the low-rank part.
pub fn sparse_share_for_entropy(mean_row_entropy: f64, keys: usize) -> f64 {
    let most = (keys.max(2) as f64).ln();
    let share = 1.0 - mean_row_entropy / most;
    if share.is_nan() { 0.5 } else { share.clamp(0.1, 0.9) }
}

/// Sizes `support` for the entries of `part`.
fn size_support(support: &mut SupportOptions, part: Part, causal: bool, queries: usize) -> Result<(), Error> {
    let fixed = |seen: &str, expected: &str| Err(Error::option("budget", seen, expected));
    // Keys per row independent of the radius: global tokens, the rows of global tokens, random blocks.
    let (n, s) = (queries.max(1) as f64, part.keys as f64);
    let globals = support.globals.min(part.keys);
    let global_rows = globals.saturating_sub(part.keys.saturating_sub(queries)).min(queries) as f64;
    let whole_rows = global_rows * (s - globals as f64) / n;
    let drawn = (support.random as f64 * support.block as f64).min(s);
    let beside = match support.kind {
        SupportKind::Longformer => globals as f64 + whole_rows,
        SupportKind::Bigbird => globals as f64 + whole_rows + drawn,
        _ => 0.0,
    };
    match support.kind {
        SupportKind::Local | SupportKind::Longformer | SupportKind::Bigbird => {
            let width = part.whole(beside + 1.0)? as f64 - beside.ceil();
            let width = width.max(1.0) as usize;
            support.radius = if causal { width - 1 } else { (width - 1) / 2 };
        }
        SupportKind::Smyrf => support.cluster = part.whole(support.rounds as f64)? / support.rounds,
        SupportKind::Lsh => support.bucket = part.whole(2.0 * support.rounds as f64)? / (2 * support.rounds),
        SupportKind::Block => return fixed("set with support.kind 'block', whose layout says it", "another support"),
        SupportKind::Full => return fixed("set with support.kind 'full', which is everything", "another support"),
        SupportKind::Empty => {}
    }
    Ok(())
}

/// Entries per row available to one part.
#[derive(Clone, Copy)]
struct Part {
    name: &'static str,
    budget: f64,
    share: f64,
    keys: usize,
    entries: f64,
}

impl Part {
    /// Its entries rounded down to an integer of at least `least`.
    fn whole(self, least: f64) -> Result<usize, Error> {
        // A budget of 1/8 of 800 is 100, despite rounding errors.
        let whole = (self.entries * (1.0 + 1e-12)).floor();
        if whole >= least {
            return Ok(whole as usize);
        }
        let Self { name, budget, share, keys, .. } = self;
        let needed = least / (share * keys as f64);
        let remedy = if share <= 0.0 {
            format!("scatterbrain.sparse_share to leave {name} anything")
        } else if needed <= 1.0 {
            format!("at least {}", rounded_up(needed))
        } else {
            format!("more than {keys} keys, or smaller globals, blocks or rounds")
        };
        Err(Error::Budget {
            seen: budget.to_string(),
            expected: format!(
                "{remedy}: {name} would have {whole} of the {keys} entries of a row and needs {}",
                least.ceil()
            ),
        })
    }
}

/// A number with four significant digits that is not below `x`.
fn rounded_up(x: f64) -> f64 {
    let unit = 10f64.powi(x.log10().floor() as i32 - 3);
    let digits = (x / unit).ceil();
    // Printed short: 0.0313, not 0.031299999999999994.
    format!("{:.*}", (3 - x.log10().floor() as i32).max(0) as usize, digits * unit).parse().unwrap_or(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mechanism::{Combination, Fraction};

    fn options(mechanism: Mechanism, kind: SupportKind, budget: f64) -> AttentionOptions {
        let mut options = AttentionOptions { mechanism, ..AttentionOptions::default() };
        options.support.kind = kind;
        options.budget = Some(Fraction::new(budget).unwrap());
        options
    }

    fn sized(options: &AttentionOptions, keys: usize) -> AttentionOptions {
        let sized = options.within_budget(keys, keys, 16).unwrap();
        assert_eq!(sized.budget, None);
        assert_eq!(sized.within_budget(keys, keys, 16).unwrap(), sized, "sized once");
        sized
    }

    #[test]
    fn shares_of_a_row() {
        use SupportKind::{Empty, Local, Lsh, Smyrf};
        // 1/8 of 800 are 100: 75 for the support, 25 features.
        let both = sized(&options(Mechanism::Scatterbrain, Local, 0.125), 800);
        assert_eq!((both.support.radius, both.features.rows), (37, 12));
        let causal = AttentionOptions { causal: true, ..options(Mechanism::Scatterbrain, Local, 0.125) };
        assert_eq!(sized(&causal, 800).support.radius, 74);
        let mut plain = options(Mechanism::Performer, Local, 0.125);
        plain.features.kind = FeatureKind::Plain;
        assert_eq!(sized(&plain, 800).features.rows, 100);
        assert_eq!(sized(&options(Mechanism::Performer, Local, 0.125), 800).features.rows, 50);
        assert_eq!(sized(&options(Mechanism::Scatterbrain, Empty, 0.125), 800).features.rows, 50);
        assert_eq!(sized(&options(Mechanism::Sparse, Local, 0.125), 800).support.radius, 49);
        assert_eq!(sized(&options(Mechanism::Sparse, Smyrf, 0.125), 800).support.cluster, 50);
        assert_eq!(sized(&options(Mechanism::Sparse, Lsh, 0.125), 800).support.bucket, 25);
        let mut gated = options(Mechanism::Scatterbrain, Local, 0.125);
        (gated.scatterbrain.combination, gated.scatterbrain.sparse_share) = (Combination::Gated, 0.5);
        let gated = sized(&gated, 800);
        assert_eq!((gated.support.radius, gated.features.rows), (24, 25));
        assert_eq!(gated.sizes(), "radius 24, 25 rows");
    }

    #[test]
    fn what_a_support_has_beside_its_radius_comes_first() {
        let mut longformer = options(Mechanism::Sparse, SupportKind::Longformer, 0.125);
        longformer.support.globals = 4;
        // 100 entries a row: 4 global keys, and 4 rows of 796 more over all 800, 3.98 each.
        assert_eq!(sized(&longformer, 800).support.radius, 45);
        let mut bigbird = longformer.clone();
        (bigbird.support.kind, bigbird.support.random, bigbird.support.block) = (SupportKind::Bigbird, 2, 10);
        assert_eq!(sized(&bigbird, 800).support.radius, 35);
        // Queries that are not among the first tokens have no global rows.
        assert_eq!(longformer.within_budget(10, 800, 16).unwrap().support.radius, 47);
    }

    /// The resulting entries are within the budget, and one more step would exceed it.
    #[test]
    fn sizes_use_the_budget_and_no_more() {
        for keys in [16, 100, 1000, 4096] {
            for budget in [0.5, 0.25, 0.125, 0.0625] {
                for kind in [SupportKind::Local, SupportKind::Smyrf, SupportKind::Lsh] {
                    let Ok(sized) = options(Mechanism::Scatterbrain, kind, budget).within_budget(keys, keys, 8) else {
                        continue;
                    };
                    let rounds = sized.support.rounds;
                    let (entries, step) = match kind {
                        SupportKind::Local => (2 * sized.support.radius + 1, 2),
                        SupportKind::Smyrf => (rounds * sized.support.cluster, rounds),
                        _ => (2 * rounds * sized.support.bucket, 2 * rounds),
                    };
                    let (row, m) = (budget * keys as f64, 2 * sized.features.rows);
                    assert!(entries as f64 <= 0.75 * row && (entries + step) as f64 > 0.75 * row);
                    assert!(m as f64 <= 0.25 * row && (m + 2) as f64 > 0.25 * row);
                }
            }
        }
    }

    #[test]
    fn impossible_budgets_name_the_least() {
        let refused = |options: &AttentionOptions, keys: usize, parts: &[&str]| {
            let error = options.within_budget(keys, keys, 16).unwrap_err();
            parts.iter().for_each(|part| assert!(error.to_string().contains(part), "{part} in {error}"));
            error
        };
        let local = options(Mechanism::Scatterbrain, SupportKind::Local, 0.01);
        let error =
            refused(&local, 100, &["budget is 0.01", "at least 0.01334", "the support would have 0 of the 100"]);
        assert!(matches!(error, Error::Budget { .. }));
        let again = AttentionOptions { budget: Some(Fraction::new(0.01334).unwrap()), ..local };
        refused(&again, 100, &["at least 0.08", "the features"]);
        let enough = AttentionOptions { budget: Some(Fraction::new(0.08).unwrap()), ..again.clone() };
        assert_eq!(sized(&enough, 100).features.rows, 1);
        let mut longformer = options(Mechanism::Sparse, SupportKind::Longformer, 0.5);
        longformer.support.globals = 90;
        refused(&longformer, 100, &["at least 1: the support would have 50 of the 100 entries of a row and needs 100"]);
        let smyrf = options(Mechanism::Sparse, SupportKind::Smyrf, 1.0);
        refused(&smyrf, 1, &["more than 1 keys", "needs 2"]);
        let mut whole = enough;
        whole.scatterbrain.sparse_share = 1.0;
        refused(&whole, 100, &["scatterbrain.sparse_share to leave the features anything"]);

        let mut elu = options(Mechanism::Scatterbrain, SupportKind::Local, 0.5);
        elu.features.kind = FeatureKind::Elu;
        assert!(matches!(refused(&elu, 100, &["elu features", "hyperbolic or plain"]), Error::Option { .. }));
        refused(&options(Mechanism::Sparse, SupportKind::Full, 0.5), 100, &["'full'"]);
        let mut block = options(Mechanism::Sparse, SupportKind::Block, 0.5);
        block.support.layout = Some(vec!["1".into()]);
        refused(&block, 100, &["'block'"]);
    }

    #[test]
    fn mechanisms_without_sizes_pass_the_budget_over() {
        for mechanism in [Mechanism::Softmax, Mechanism::Mgk, Mechanism::Linear, Mechanism::Fastformer] {
            let options = options(mechanism, SupportKind::Local, 0.125);
            assert_eq!(sized(&options, 1), AttentionOptions { budget: None, ..options });
        }
    }

    #[test]
    fn flat_rows_leave_less_to_the_support() {
        assert_eq!(sparse_share_for_entropy(0.0, 1000), 0.9);
        assert_eq!(sparse_share_for_entropy(1000f64.ln(), 1000), 0.1);
        assert!((sparse_share_for_entropy(0.5 * 1000f64.ln(), 1000) - 0.5).abs() < 1e-12);
        assert!((0.1..=0.9).contains(&sparse_share_for_entropy(0.0, 1)));
        assert!(sparse_share_for_entropy(f64::NAN, 8).is_finite());
    }
}
