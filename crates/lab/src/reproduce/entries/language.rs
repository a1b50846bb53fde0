//! Small models that several entries share: by a common name they are trained once.

use regard_tasks::Failure;

use crate::reproduce::{Compared, Scale, Workbench};

/// What [`characters`] trains at each scale, for the text of a setup.
pub(super) const CHARACTERS: [&str; 2] = [
    "Characters of tinyshakespeare, 4 layers of width 64, 4 heads, context 128, 400 updates of 16, 3 seeds.",
    "Characters of tinyshakespeare, 4 layers of width 64, 4 heads, context 128, 2,000 updates of 16, 5 seeds.",
];

/// Character models without positions and with rotary ones, in this order, from each seed.
pub(super) fn characters(bench: &Workbench, scale: Scale) -> Result<Compared, Failure> {
    let (steps, seeds): (usize, &[u64]) = match scale {
        Scale::Quick => (400, &[1, 2, 3]),
        Scale::Here | Scale::Paper => (2000, &[1, 2, 3, 4, 5]),
    };
    let recipe = format!(
        "preset = \"char-lm\"\n\n[model]\nwidth = 64\nfeed_forward = 256\n\n[train]\nsteps = {steps}\nevaluate_every = {steps}\n\
         checkpoint_every = {steps}\n\n[train.schedule]\nwarmup = {}\n\n[compare]\nmechanisms = [\"softmax:position=none\", \
         \"softmax:position=rotary\"]\nseeds = {seeds:?}\n",
        steps / 10,
    );
    bench.train("characters", &recipe)
}

/// Classifiers of ListOps expressions with softmax attention, from three seeds.
pub(super) fn expressions(bench: &Workbench, scale: Scale) -> Result<Compared, Failure> {
    let steps = if scale == Scale::Quick { 800 } else { 1600 };
    let recipe = format!(
        "preset = \"quick\"\n\n[train]\nsteps = {steps}\nevaluate_every = {steps}\ncheckpoint_every = {steps}\n\n[train.schedule]\n\
         warmup = {}\n\n[compare]\nmechanisms = [\"softmax\"]\nseeds = [1, 2, 3]\n",
        steps / 10
    );
    bench.train("expressions", &recipe)
}

/// What [`masked`] trains at each scale, for the text of a setup.
pub(super) const MASKED: [&str; 2] = [
    "Masked language models on 1,000 byte pairs of tinyshakespeare, 2 layers of width 64, windows of 64, 400 updates of 32, 3 seeds.",
    "Masked language models on 1,000 byte pairs of tinyshakespeare, 2 layers of width 64, windows of 64, 2,000 updates of 32, 8 seeds.",
];

/// Masked language models with each of these attentions: a minute each, so that there can be seeds enough to tell small differences.
pub(super) fn masked(bench: &Workbench, name: &str, scale: Scale, mechanisms: &[String]) -> Result<Compared, Failure> {
    let (steps, seeds) = if scale == Scale::Quick { (400, 1..4) } else { (2000, 1..9) };
    let seeds: Vec<u64> = seeds.collect();
    let recipe = format!(
        "preset = \"mlm\"\n\n[model]\nwidth = 64\nlayers = 2\nfeed_forward = 256\n\n[task.masked_lm]\nvocabulary = 1000\ncontext = 64\n\n\
         [train]\nsteps = {steps}\nevaluate_every = {steps}\ncheckpoint_every = {steps}\n\n[train.schedule]\nwarmup = {}\n\n[compare]\n\
         mechanisms = {mechanisms:?}\nseeds = {seeds:?}\n",
        steps / 10
    );
    bench.train(name, &recipe)
}
