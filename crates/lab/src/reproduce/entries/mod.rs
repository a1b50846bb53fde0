//! The entries, paper by paper.

mod answered;
mod fastformer;
mod fastformer_complexity;
mod language;
mod mgk_accuracy;
mod mgk_costs;
mod mgk_efficiency;
mod mgk_inside;
mod mgk_language;
mod mgk_operations;
mod mgk_priors;
mod mgk_theorem;
mod mgk_trained;
mod moa_complexity;
mod moa_operations;
mod moa_trained;
mod nope;
mod nope_deviations;
mod nope_lemmas;
mod nope_masked;
mod nope_probe;
mod nope_trained;
mod scatterbrain_efficiency;
mod scatterbrain_heads;
mod scatterbrain_process;
mod scatterbrain_replaced;
mod scatterbrain_separation;
mod scatterbrain_tasks;
mod scatterbrain_theory;
mod scatterbrain_trained;
mod scatterbrain_variance;
mod swap;
mod timing;
mod translation;

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
    translation::KEYS,
    mgk_accuracy::ABLATION,
    mgk_accuracy::INFERENCE,
    mgk_accuracy::VARIANCE,
    mgk_priors::ENTRY,
    mgk_inside::RANK,
    mgk_inside::REDUNDANCY,
    mgk_inside::LIKELIHOOD,
    scatterbrain_theory::REGIMES,
    scatterbrain_separation::SEPARATION,
    scatterbrain_variance::ENTRIES,
    scatterbrain_process::ESTIMATORS,
    scatterbrain_heads::CORRELATION,
    scatterbrain_trained::ORACLES,
    scatterbrain_heads::ORACLE,
    scatterbrain_heads::TRAINING,
    scatterbrain_replaced::REPLACED,
    scatterbrain_efficiency::ENTRY,
    scatterbrain_tasks::COPYING,
    scatterbrain_tasks::ARENA,
    scatterbrain_trained::ENTRIES,
    moa_operations::ENTRY,
    moa_complexity::ENTRY,
    translation::HEADS_MIXED,
    moa_trained::MASKED,
    moa_trained::SIZES,
    moa_trained::LOSSES,
    moa_trained::LOADS,
    moa_trained::SPECIALISED,
    fastformer_complexity::ENTRY,
    fastformer::TOPICS,
    fastformer::SENTIMENT,
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
    swap::MINILM,
    swap::SMOLLM2,
    swap::MEETING,
    swap::VIT,
    swap::VIT_REPLACED,
];
