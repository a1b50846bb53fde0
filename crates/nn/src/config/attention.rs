//! What the attention of a layer is, and how it fits the model around it.

use regard_kernels::{
    Error, Mechanism,
    mechanism::{Position, Sharing},
    support::SupportKind,
};

pub use regard_kernels::AttentionOptions as AttentionConfig;

/// Whether all blocks of a model share one layer.
pub fn shared_by_layers(options: &AttentionConfig) -> bool {
    options.mechanism == Mechanism::Fastformer && options.fastformer.sharing == Sharing::LayerWise
}

/// Whether queries and keys may come from two sequences.
pub fn reads_second_sequence(options: &AttentionConfig) -> bool {
    options.mechanism.facts().cross && !(options.uses_support() && options.support.kind == SupportKind::Lsh)
}

/// Checks the options against the width of a model and of its heads.
pub(crate) fn check(options: &AttentionConfig, width: usize, head_width: usize) -> Result<(), Error> {
    let mechanism = options.mechanism;
    if mechanism == Mechanism::Mgk || mechanism == Mechanism::Gaussian {
        options.mixture.variances.resolve(options.components(), head_width)?;
    }
    if mechanism == Mechanism::Fastformer {
        if head_width * options.heads != width {
            return Err(Error::option(
                "model.head_width",
                head_width,
                format!("{width} / {} with fastformer, whose output adds the queries", options.heads),
            ));
        }
        if options.position == Position::Rotary {
            return Err(Error::option(
                "position",
                "'rotary' with fastformer",
                "learned, sinusoidal or none: rotation shows in products of queries and keys, of which there are none",
            ));
        }
    }
    Ok(())
}
