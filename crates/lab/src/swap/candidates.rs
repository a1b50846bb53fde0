//! What can stand in place of exact attention.

use regard_kernels::{
    AttentionOptions, Error, Mechanism,
    mechanism::Fraction,
    support::{SupportKind, SupportOptions},
};
use serde::Serialize;

/// First tokens that every query sees: trained models put much weight there (Xiao et al. 2024, arXiv 2309.17453).
const SINKS: usize = 16;

/// A kind of attention that takes a share of the entries of exact attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// The first tokens and the last ones, exact.
    Window,
    /// The same, and features of all tokens between.
    Scatterbrain,
    /// Features alone.
    Performer,
    /// Clusters of queries and keys that lie close to each other.
    Smyrf,
    /// The same, and features of all other pairs.
    ScatterbrainSmyrf,
    /// Nothing: the heads give 0.
    Drop,
}

impl Kind {
    /// All of them.
    pub const ALL: &[Self] =
        &[Self::Window, Self::Scatterbrain, Self::Performer, Self::Smyrf, Self::ScatterbrainSmyrf, Self::Drop];

    /// Its name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::Scatterbrain => "scatterbrain",
            Self::Performer => "performer",
            Self::Smyrf => "smyrf",
            Self::ScatterbrainSmyrf => "scatterbrain-smyrf",
            Self::Drop => "drop",
        }
    }

    /// Whether it can stand in causal attention: clusters of keys would need all queries at once.
    pub fn can_be_causal(self) -> bool {
        !matches!(self, Self::Smyrf | Self::ScatterbrainSmyrf)
    }
}

/// Attention that heads can have.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Name in tables, as `window-1/8`.
    pub name: String,
    /// Its kind; absent for exact attention.
    pub kind: Option<Kind>,
    /// Its options, of one key head; `None` gives 0.
    pub attention: Option<AttentionOptions>,
    /// Share of the entries of exact attention that it computes or keeps.
    pub share: f64,
}

/// Exact attention, and every kind at every share `1/divisor` for sequences of `length` tokens. Kinds that cannot be sized so
/// small, or not be causal where they have to, are left out.
///
/// `group` query heads read each key head.
pub fn candidates(
    kinds: &[Kind],
    divisors: &[usize],
    causal: bool,
    length: usize,
    width: usize,
    group: usize,
) -> Vec<Candidate> {
    let base = AttentionOptions { heads: group, key_value_heads: Some(1), causal, ..AttentionOptions::default() };
    let mut all = vec![Candidate { name: "exact".into(), kind: None, attention: Some(base.clone()), share: 1.0 }];
    for &kind in kinds.iter().filter(|kind| !causal || kind.can_be_causal()) {
        if kind == Kind::Drop {
            all.push(Candidate { name: kind.name().into(), kind: Some(kind), attention: None, share: 0.0 });
            continue;
        }
        for &divisor in divisors {
            let share = 1.0 / divisor as f64;
            if let Ok(attention) = sized(&base, kind, share, length, width) {
                let name = format!("{}-1/{divisor}", kind.name());
                all.push(Candidate { name, kind: Some(kind), attention: Some(attention), share });
            }
        }
    }
    all
}

fn sized(
    base: &AttentionOptions,
    kind: Kind,
    share: f64,
    length: usize,
    width: usize,
) -> Result<AttentionOptions, Error> {
    let mut options = base.clone();
    options.budget = Some(Fraction::new(share)?);
    options.mechanism = match kind {
        Kind::Window | Kind::Smyrf => Mechanism::Sparse,
        Kind::Scatterbrain | Kind::ScatterbrainSmyrf => Mechanism::Scatterbrain,
        Kind::Performer => Mechanism::Performer,
        Kind::Drop => unreachable!("has no options"),
    };
    options.support = match kind {
        Kind::Smyrf | Kind::ScatterbrainSmyrf => {
            SupportOptions { kind: SupportKind::Smyrf, ..SupportOptions::default() }
        }
        _ => {
            let globals = if base.causal { SINKS.min((share * length as f64 / 4.0) as usize) } else { 1 };
            SupportOptions { kind: SupportKind::Longformer, globals, ..SupportOptions::default() }
        }
    };
    let mut options = options.within_budget(length, length, width)?;
    if base.causal && options.uses_support() {
        // First tokens see nothing but each other here: all entries of a row are for what it sees.
        let exact = if options.uses_features() { options.scatterbrain.sparse_share } else { 1.0 };
        let entries = (exact * share * length as f64) as usize;
        options.support.radius = entries.saturating_sub(options.support.globals + 1);
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_keep_to_their_share() {
        let all = candidates(Kind::ALL, &[2, 8, 32], true, 1024, 64, 3);
        let window = all.iter().find(|candidate| candidate.name == "window-1/8").expect("a window");
        let support = &window.attention.as_ref().expect("options").support;
        assert_eq!((support.globals, support.globals + support.radius + 1), (16, 128));
        assert!(all.iter().all(|candidate| !candidate.name.contains("smyrf")), "{all:?}");
        assert_eq!(all.iter().filter(|candidate| candidate.attention.is_none()).count(), 1);
        let both = candidates(Kind::ALL, &[8], false, 1024, 64, 1);
        assert_eq!(both.len(), 7, "{both:?}");
    }
}
