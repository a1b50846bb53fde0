//! Recipe of the models with mixtures of keys that are trained on short expressions.

use crate::reproduce::Scale;

/// What differs from the paper in every comparison on short expressions.
pub const TASK: &str = "ListOps of 20 to 128 tokens for the long range arena, whose expressions have 500 to 2,000";
/// What differs besides when the run is quick.
pub const QUICK: &str = "200 updates and one model of each kind: it cannot decide";
/// What differs besides when it takes its time.
pub const HERE: &str = "1,600 updates of 32";
/// The setting of quick runs.
pub const QUICK_SETTING: &str = "ListOps, 2 layers of width 64, heads of 32, 200 updates of 32 expressions, 1 seed; answers to 2,000 test expressions.";
/// The setting of longer runs.
pub const HERE_SETTING: &str = "ListOps, 2 layers of width 64, heads of 32, 1,600 updates of 32 expressions, 8 seeds; answers to 20,000 test expressions.";

/// The recipe of the models named by `mechanisms`, over `more` settings.
pub fn recipe(scale: Scale, mechanisms: &[&str], more: &str) -> String {
    let (steps, test, seeds) = match scale {
        Scale::Quick => (200, 2_000, 1),
        Scale::Here | Scale::Paper => (1_600, 20_000, 8),
    };
    recipe_of([steps, test, seeds], mechanisms, &format!("heads = 1\n{more}"))
}

/// The same for so many updates, test expressions and seeds.
pub fn recipe_of([steps, test, seeds]: [u64; 3], mechanisms: &[&str], more: &str) -> String {
    let (evaluate, warm_up, seeds) = (steps / 4, steps / 10, (1..=seeds).collect::<Vec<_>>());
    format!(
        "preset = \"quick\"\n{more}\n[model]\nhead_width = 32\n\n[task.listops]\ntest = {test}\n\n[train]\n\
         steps = {steps}\nevaluate_every = {evaluate}\ncheckpoint_every = {evaluate}\n\n[train.schedule]\nwarmup = {warm_up}\n\n\
         [compare]\nmechanisms = {mechanisms:?}\nseeds = {seeds:?}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_resolve_at_every_scale() {
        for scale in [Scale::Quick, Scale::Here] {
            let mut layers = regard_tasks::run::Layers::new();
            layers
                .text(&recipe(scale, &["softmax:heads=2", "mgk"], "\n[mixture]\nvariances = [5.0, 6.0]\n"), "x")
                .expect("TOML");
            let config = layers.resolve().expect("a configuration");
            let (_, two) = config.candidate("softmax:heads=2").expect("an entry");
            assert_eq!((two.attention.heads, two.model.head_width(&two.attention)), (2, 32));
        }
    }
}
