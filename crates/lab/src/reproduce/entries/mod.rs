//! The entries, paper by paper.

mod fastformer;
mod language;
mod mgk_efficiency;
mod mgk_inside;
mod mgk_operations;
mod mgk_training;
mod moa_operations;
mod nope;
mod nope_deviations;
mod nope_lemmas;
mod nope_masked;
mod nope_probe;
mod nope_trained;
mod scatterbrain;
mod scatterbrain_trained;

use super::Entry;

/// All entries, in the order in which they are listed and run.
pub const ENTRIES: &[Entry] = &[
    mgk_operations::ENTRY,
    mgk_efficiency::ENTRY,
    mgk_training::ABLATION,
    mgk_training::INFERENCE,
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
    nope_lemmas::PRODUCTS,
    nope::VARIANCE,
    nope_deviations::DEVIATIONS,
    nope_deviations::INITIALISATIONS,
    nope_probe::PROBE,
    nope_masked::ENTRY,
    nope_trained::TRAINED,
    nope::MECHANISMS,
];
