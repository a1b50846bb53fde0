//! Training with the tokens of each sequence spread over ranks, against one rank that has them all.

use std::sync::Arc;

use burn::tensor::Device;
use regard_cluster::{Alone, Communicator, Threads};
use regard_kernels::{
    AttentionOptions, Mechanism,
    mechanism::{Combination, Interaction, KeyDesign, Position, Prior},
    support::SupportKind,
};
use regard_nn::models::{ModelConfig, Pooling};
use regard_tasks::{
    data::{CharLmConfig, ListOpsConfig, MaskedLmConfig, TaskConfig, TaskData, TaskName},
    train::{Model, TrainConfig, Trainer},
};

fn data(name: TaskName) -> TaskData {
    let config = TaskConfig {
        name,
        listops: ListOpsConfig {
            min_length: 12,
            max_length: 30,
            train: 24,
            valid: 4,
            test: 4,
            ..ListOpsConfig::default()
        },
        char_lm: CharLmConfig { context: 21, ..CharLmConfig::default() },
        masked_lm: MaskedLmConfig { context: 18, vocabulary: 300, ..MaskedLmConfig::default() },
        ..TaskConfig::default()
    };
    config.load(3, None, &|_, _| {}).unwrap()
}

fn config() -> TrainConfig {
    TrainConfig { steps: 3, batch: 4, clip: 0.0, ..TrainConfig::default() }
}

#[derive(Clone)]
struct Case {
    attention: AttentionOptions,
    model: ModelConfig,
    train: TrainConfig,
}

impl Case {
    fn of(mechanism: Mechanism) -> Self {
        let mut attention = AttentionOptions { mechanism, heads: 2, ..AttentionOptions::default() };
        attention.support.kind = SupportKind::Local;
        attention.support.radius = 3;
        attention.features.rows = 8;
        attention.moa.experts = 4;
        let model = ModelConfig { width: 16, layers: 2, feed_forward: 32, ..ModelConfig::default() };
        Self { attention, model, train: config() }
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Losses of three updates, and the parameters after them.
    fn trained(&self, data: &TaskData, ranks: usize, cluster: Arc<dyn Communicator>) -> (Vec<f64>, Vec<f32>) {
        let model = Model::build(&self.model, &self.attention, data, 5, &Device::flex().autodiff()).unwrap();
        let trainer = Trainer::new(model, data, &self.train, 7).unwrap();
        let mut trainer = trainer.with_sequences_over(ranks, cluster).unwrap().following().unwrap();
        let losses = (0..3).map(|_| trainer.update().unwrap().loss).collect();
        (losses, trainer.model().to_host().into_values().flat_map(|tensor| tensor.data).collect())
    }

    /// Two updates of AdamW move every parameter by about its learning rate whatever the size of its gradient, so that those whose
    /// gradient is rounding alone may differ: few do.
    fn check(&self, name: &str, data: &TaskData, groups: &[(usize, usize)]) {
        let (losses, parameters) = self.trained(data, 1, Arc::new(Alone));
        for &(ranks, sequence) in groups {
            let all = Threads::run(ranks, |cluster| self.trained(data, sequence, cluster));
            assert!(all.iter().all(|rank| *rank == all[0]), "{name}: ranks disagree");
            let (seen, own) = &all[0];
            let close = |a: &f64, b: &f64| (a - b).abs() < 2e-5 * b.abs().max(1.0);
            assert!(losses.iter().zip(seen).all(|(a, b)| close(b, a)), "{name} on {ranks}: {seen:?}, not {losses:?}");
            let far = parameters.iter().zip(own).filter(|(a, b)| (*a - *b).abs() > 2e-4).count();
            assert!(far * 50 <= own.len(), "{name} on {ranks} ranks: {far} of {} parameters differ", own.len());
        }
    }
}

/// Every mechanism whose tokens can be spread, over two and three ranks, and over two groups of two.
#[test]
fn a_language_model_trains_as_on_one_rank() {
    let data = data(TaskName::CharLm);
    for mechanism in [
        Mechanism::Softmax,
        Mechanism::Cosine,
        Mechanism::Gaussian,
        Mechanism::Mgk,
        Mechanism::Linear,
        Mechanism::Mlk,
        Mechanism::Performer,
        Mechanism::Sparse,
        Mechanism::Scatterbrain,
        Mechanism::Fastformer,
    ] {
        Case::of(mechanism).check(mechanism.name(), &data, &[(2, 2), (3, 3), (4, 2)]);
    }
}

/// Its balance loss is that of each rank's tokens, as it is that of each part of a batch: without losses it is the same.
#[test]
fn a_mixture_of_heads_trains_as_on_one_rank() {
    let case = Case::of(Mechanism::Moa).with(|case| (case.attention.moa.balance, case.attention.moa.z) = (0.0, 0.0));
    case.check("moa", &data(TaskName::CharLm), &[(2, 2), (3, 3)]);
}

#[test]
fn positions_are_those_of_the_whole_sequence() {
    let data = data(TaskName::CharLm);
    for position in [Position::None, Position::Learned, Position::Sinusoidal, Position::Rotary, Position::Alibi] {
        let case = Case::of(Mechanism::Softmax).with(|case| case.attention.position = position);
        case.check(&format!("{position:?}"), &data, &[(2, 2)]);
    }
    let mixture = Case::of(Mechanism::Mgk).with(|case| case.attention.keys.design = KeyDesign::Shifted);
    mixture.clone().with(|case| case.attention.position = Position::Rotary).check("shifted", &data, &[(3, 3)]);
    mixture.with(|case| case.attention.mixture.prior = Prior::PerPosition).check("priors", &data, &[(3, 3)]);
}

#[test]
fn options_of_training_and_of_the_model_stay_what_they_are() {
    let data = data(TaskName::CharLm);
    let softmax = || Case::of(Mechanism::Softmax);
    softmax().with(|case| case.attention.window = Some(4)).check("window", &data, &[(2, 2), (3, 3)]);
    softmax().with(|case| case.attention.key_value_heads = Some(1)).check("shared keys", &data, &[(2, 2)]);
    softmax().with(|case| case.model.checkpointing = true).check("checkpointing", &data, &[(2, 2)]);
    softmax().with(|case| case.train.accumulate = 2).check("accumulation", &data, &[(2, 2), (4, 2)]);
    let gated = Case::of(Mechanism::Scatterbrain);
    gated.with(|case| case.attention.scatterbrain.combination = Combination::Gated).check("gated", &data, &[(2, 2)]);
}

/// Padded batches of one label a sequence, whose vector is a sum over all ranks.
#[test]
fn a_classifier_trains_as_on_one_rank() {
    let data = data(TaskName::Listops);
    for pooling in [Pooling::Mean, Pooling::First, Pooling::Attention] {
        for mechanism in [Mechanism::Softmax, Mechanism::Linear, Mechanism::Fastformer, Mechanism::Scatterbrain] {
            let case = Case::of(mechanism).with(|case| case.model.pooling = pooling);
            case.check(&format!("{} with {pooling:?}", mechanism.name()), &data, &[(2, 2), (3, 3)]);
        }
    }
}

/// One in seven tokens is a target: some ranks have none.
#[test]
fn a_masked_model_trains_as_on_one_rank() {
    Case::of(Mechanism::Softmax).check("masked", &data(TaskName::MaskedLm), &[(2, 2), (6, 6)]);
}

/// The same bits whoever takes which part, as long as a sequence is spread over as many.
#[test]
fn the_number_of_groups_does_not_matter() {
    let data = data(TaskName::CharLm);
    let mut case = Case::of(Mechanism::Scatterbrain);
    case.train.parts = 3;
    let run = |ranks| Threads::run(ranks, |cluster| case.trained(&data, 2, cluster)).remove(0);
    let alone = run(2);
    assert!(run(4) == alone && run(6) == alone);
}

#[test]
fn what_cannot_be_spread_is_refused() {
    let (characters, expressions) = (data(TaskName::CharLm), data(TaskName::Listops));
    let said_of = |data: &TaskData, case: &Case, ranks: usize, sequence: usize| {
        let said = Threads::run(ranks, |cluster| {
            let model = Model::build(&case.model, &case.attention, data, 5, &Device::flex().autodiff()).unwrap();
            let trainer = Trainer::new(model, data, &case.train, 7).unwrap();
            trainer.with_sequences_over(sequence, cluster).map(drop).unwrap_err().to_string()
        });
        assert!(said.iter().all(|sentence| *sentence == said[0]), "{said:?}");
        said[0].clone()
    };
    let said = |case: &Case, ranks, sequence| said_of(&characters, case, ranks, sequence);
    let softmax = Case::of(Mechanism::Softmax);
    let sums = Case::of(Mechanism::Fastformer).with(|case| case.attention.fastformer.interaction = Interaction::Sum);
    for (sentence, expected) in [
        (said(&softmax, 3, 2), "parallel.sequence is 2, expected a divisor of 3"),
        (
            said(&Case::of(Mechanism::Sparse).with(|case| case.attention.support.kind = SupportKind::Bigbird), 2, 2),
            "support.kind is 'bigbird'",
        ),
        (said_of(&expressions, &sums, 2, 2), "1 with fastformer.interaction other than 'product'"),
    ] {
        assert!(sentence.contains(expected), "{sentence}");
    }
}

#[test]
fn a_rank_that_is_gone_ends_the_update_of_the_other() {
    let (data, case) = (data(TaskName::CharLm), Case::of(Mechanism::Softmax));
    let seen = Threads::run(2, |cluster| {
        let leaves = cluster.rank() == 1;
        let model = Model::build(&case.model, &case.attention, &data, 5, &Device::flex().autodiff()).unwrap();
        let trainer = Trainer::new(model, &data, &case.train, 7).unwrap();
        let mut trainer = trainer.with_sequences_over(2, cluster).unwrap().following().unwrap();
        trainer.update().unwrap();
        if leaves { String::new() } else { trainer.update().unwrap_err().to_string() }
    });
    assert!(seen[0].contains("rank 1 has left"), "{}", seen[0]);
}
