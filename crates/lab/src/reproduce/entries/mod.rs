//! The entries, paper by paper.

mod fastformer;
mod mgk_accuracy;
mod mgk_costs;
mod mgk_efficiency;
mod mgk_inside;
mod mgk_language;
mod mgk_operations;
mod mgk_priors;
mod mgk_theorem;
mod mgk_trained;
mod mgk_training;
mod moa_operations;
mod nope;
mod nope_lemmas;
mod scatterbrain;
mod scatterbrain_trained;
mod swap;

use super::Entry;

/// All entries, in the order in which they are listed and run.
pub static ENTRIES: &[Entry] = &[
    mgk_theorem::ENTRY,
    mgk_operations::ENTRY,
    mgk_costs::ENTRY,
    mgk_efficiency::ENTRY,
    mgk_accuracy::HALF_HEADS,
    mgk_accuracy::LINEAR,
    mgk_language::ENTRY,
    mgk_accuracy::ABLATION,
    mgk_accuracy::INFERENCE,
    mgk_accuracy::VARIANCE,
    mgk_priors::ENTRY,
    mgk_inside::RANK,
    mgk_inside::REDUNDANCY,
    mgk_inside::LIKELIHOOD,
    scatterbrain::REGIMES,
    scatterbrain::CORRELATION,
    scatterbrain::ORACLE,
    scatterbrain_trained::ORACLES,
    scatterbrain_trained::ENTRIES,
    scatterbrain_trained::REPLACED,
    moa_operations::ENTRY,
    fastformer::INTERACTION,
    fastformer::SHARING,
    nope_lemmas::LEMMAS,
    nope::VARIANCE,
    nope_lemmas::DEVIATIONS,
    nope::PROBE,
    nope::MECHANISMS,
    nope::TRAINED,
    swap::MINILM,
    swap::SMOLLM2,
    swap::MEETING,
    swap::VIT,
    swap::VIT_REPLACED,
];
