//! What is refused, by name and with the reason.

use regard_kernels::{
    AttentionOptions, Call, Error,
    mechanism::{Combination, Mechanism},
    support::SupportKind,
};

/// Refuses what no scheme spreads over ranks, and padding of other lengths.
pub(crate) fn check(options: &AttentionOptions, call: &Call, [queries, keys]: [usize; 2]) -> Result<(), Error> {
    let refuse = |option: &str, seen: String, why: &str| Err(Error::option(option, seen, why));
    for (name, padding, length) in [("valid", &call.mask.valid, keys), ("query_valid", &call.mask.query_valid, queries)]
    {
        if let Some(padding) = padding {
            Error::check_shape(name, &[padding.batch(), padding.length()], &[padding.batch(), length])?;
        }
    }
    if call.dropout.is_some_and(|dropout| dropout.rate > 0.0) {
        let why = "none over ranks: it is drawn for each pair of tokens by their places in one process";
        return refuse("dropout", "on the attention weights".to_owned(), why);
    }
    if call.bias {
        let why = "none over ranks: it is as large as the matrix that no rank holds; slopes of ALiBi are exact there";
        return refuse("bias", "given".to_owned(), why);
    }
    if options.uses_support() {
        let kind = options.support.kind;
        let why = match kind {
            SupportKind::Smyrf | SupportKind::Lsh => {
                "local, longformer, full or empty over ranks: a hash brings together tokens from anywhere in the sequence"
            }
            SupportKind::Bigbird => {
                "local, longformer, full or empty over ranks: random blocks lie anywhere in the sequence"
            }
            SupportKind::Block => {
                "local, longformer, full or empty over ranks: a layout may show any block to any other"
            }
            _ => "",
        };
        if !why.is_empty() {
            return refuse("support.kind", format!("'{}'", options.support.name()), why);
        }
        let naive =
            options.mechanism == Mechanism::Scatterbrain && options.scatterbrain.combination == Combination::Naive;
        if naive && !matches!(kind, SupportKind::Local | SupportKind::Empty) {
            let why = "corrected over ranks with this support: the naive baseline counts its pairs twice";
            return refuse("scatterbrain.combination", "'naive'".to_owned(), why);
        }
    }
    let alike = match options.mechanism {
        Mechanism::Linear | Mechanism::Mlk => call.mask.causal,
        Mechanism::Fastformer => true,
        Mechanism::Performer => true,
        Mechanism::Sparse => options.support.kind == SupportKind::Longformer,
        Mechanism::Scatterbrain => options.support.kind != SupportKind::Full,
        Mechanism::Moa => !call.cross,
        _ => false,
    };
    if alike && queries != keys {
        let expected =
            format!("{queries}, as queries: over ranks both are cut at the same places for {}", options.label());
        return Err(Error::option("keys", keys, expected));
    }
    Ok(())
}
