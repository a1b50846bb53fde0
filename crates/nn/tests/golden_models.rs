//! Whole language models against the golden data: logits, loss, every gradient, ten updates.

mod common;

use std::{collections::BTreeMap, sync::Arc};

use burn::tensor::Device;
use common::{doubles, gradients};
use regard_nn::{
    attention::AttentionConfig,
    blocks::Context,
    models::{LanguageModel, ModelConfig, TokenBatch, load_parameters, named_parameters},
};
use regard_testkit::{Case, Report, Tensors, cases};

struct Golden {
    case: Case,
    tensors: Tensors,
    model: LanguageModel,
    tokens: TokenBatch,
    targets: Arc<[i32]>,
}

fn golden(name: &str, checkpointing: bool) -> Golden {
    let case = cases().into_iter().find(|case| case.name() == name).unwrap();
    let tensors = case.load();
    let size = |name: &str| case.options[name].as_u64().unwrap() as usize;
    let config = ModelConfig {
        width: size("width"),
        layers: size("layers"),
        feed_forward: size("feed_forward"),
        tied_head: case.options["tied_head"].as_bool().unwrap(),
        checkpointing,
        ..ModelConfig::default()
    };
    let attention = AttentionConfig {
        mechanism: case.options["attention"].as_str().unwrap().parse().unwrap(),
        heads: size("heads"),
        position: serde_json::from_value(case.options["positions"].clone()).unwrap(),
        ..AttentionConfig::default()
    };
    let device = Device::flex().autodiff();
    let model = LanguageModel::new(&config, &attention, size("vocab"), size("context"), 1, &device).unwrap();
    let parameters = tensors
        .iter()
        .filter_map(|(name, tensor)| {
            let name = name.strip_prefix("param.")?;
            Some((name.to_string(), (tensor.shape.clone(), tensor.f32())))
        })
        .collect();
    let model = load_parameters(model, parameters).unwrap();
    let numbers = |name: &str| tensors.tensor(name).i64().iter().map(|&id| id as i32).collect::<Arc<[i32]>>();
    let tokens = TokenBatch::full(numbers("tokens"), size("batch")).unwrap();
    let targets = numbers("targets");
    Golden { case, tensors, model, tokens, targets }
}

const MODELS: [&str; 2] = ["model_softmax", "model_nope_mgk"];

#[test]
fn logits_loss_and_every_gradient_are_the_golden_ones() {
    let mut report = Report::new();
    for (name, checkpointing) in MODELS.into_iter().flat_map(|name| [(name, false), (name, true)]) {
        let Golden { case, tensors, model, tokens, targets } = golden(name, checkpointing);
        let context = Context::training(0, 0);
        let mut check = |what: &str, seen: Vec<f64>| {
            let what = what.to_string();
            report.compare(format!("{name} {what}"), &seen, tensors.tensor(&what).f64(), case.bound(&what));
        };
        check("logits", doubles(model.forward(&tokens, &context)));
        let loss = model.loss(&tokens, targets, 0.0, &context);
        check("loss", doubles(loss.clone()));
        let grads = gradients(&model, &loss.backward());
        let expected = tensors.iter().filter(|(name, _)| name.starts_with("grad.")).count();
        assert_eq!(grads.len(), expected, "{name}: {:?}", grads.keys());
        for (name, grad) in grads {
            check(&format!("grad.{name}"), grad);
        }
    }
    report.finish();
}

#[test]
fn ten_updates_of_adam_give_the_golden_losses() {
    let mut report = Report::new();
    for name in MODELS {
        let Golden { case, tensors, mut model, tokens, targets } = golden(name, false);
        let option = |name: &str| case.options[name].as_f64().unwrap();
        let (rate, decay) = (option("lr"), option("weight_decay"));
        let (beta1, beta2, epsilon) = (option("beta1"), option("beta2"), option("eps"));
        let mut moments: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        let mut losses = Vec::new();
        for step in 1.. {
            let loss = model.loss(&tokens, targets.clone(), 0.0, &Context::training(0, step));
            losses.push(doubles(loss.clone())[0]);
            if step > option("steps") as u64 {
                break;
            }
            let grads = gradients(&model, &loss.backward());
            let (correct1, correct2) = (1.0 - beta1.powi(step as i32), 1.0 - beta2.powi(step as i32));
            let parameters = named_parameters(&model).into_iter().map(|mut parameter| {
                let grad = &grads[&parameter.name];
                let moments = moments.entry(parameter.name.clone()).or_insert(vec![(0.0, 0.0); grad.len()]);
                for ((value, (m, v)), g) in parameter.values.iter_mut().zip(moments).zip(grad) {
                    *m = beta1 * *m + (1.0 - beta1) * g;
                    *v = beta2 * *v + (1.0 - beta2) * g * g;
                    let change = (*m / correct1) / ((*v / correct2).sqrt() + epsilon);
                    *value = (f64::from(*value) * (1.0 - rate * decay) - rate * change) as f32;
                }
                (parameter.name, (parameter.shape, parameter.values))
            });
            let parameters = parameters.collect();
            model = load_parameters(model, parameters).unwrap();
        }
        let bound = case.bound("step_losses");
        report.compare(format!("{name} losses"), &losses, tensors.tensor("step_losses").f64(), bound);
        let norms: BTreeMap<String, f64> = named_parameters(&model)
            .into_iter()
            .filter(|parameter| name != "model_softmax" || !parameter.name.ends_with(".b_k"))
            .map(|parameter| {
                let square: f64 = parameter.values.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
                (parameter.name, square.sqrt())
            })
            .collect();
        let norms: Vec<f64> = norms.into_values().collect();
        let expected = tensors.tensor("final_norms").f64();
        report.compare(format!("{name} norms"), &norms, expected, case.bound("final_norms"));
    }
    report.finish();
}
