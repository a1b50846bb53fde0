//! Untrained decoders against the lemmas and their float64 twins.

use std::sync::atomic::AtomicBool;

use regard_kernels::Mechanism;
use regard_nn::attention::AttentionConfig;

use super::*;

fn decoder(deviation: f64) -> Decoder {
    let attention = AttentionConfig { heads: 4, causal: true, ..AttentionConfig::default() };
    Decoder {
        attention,
        width: 64,
        layers: 1,
        feed_forward: 0,
        length: 128,
        deviation,
        weights: Distribution::Normal,
        uniform: false,
        seed: 1,
    }
}

fn measured(decoder: Decoder, decoders: usize, sequences: usize) -> Measured {
    let settings = [Setting { label: "one".into(), decoder, classified: Vec::new() }];
    let classifier =
        Classifier { updates: 0, batch: 1, positions: 0, rate: 1e-3, hidden: 0, sequences: 1, held: 1, seed: 0 };
    let plan =
        Plan { settings: &settings, decoders, sequences, channel_sequences: 0, classifier: &classifier, double: false };
    measure(&plan, &|_| {}, &AtomicBool::new(false)).unwrap().remove(0)
}

fn variance(measured: &Measured, quantity: Quantity) -> Curve {
    measured.replicates.curve(1, quantity, Statistic::Variance).unwrap()
}

/// Lemma 3 where its premise holds: small weights, hence uniform attention.
#[test]
fn variance_of_attention_falls_as_one_over_position() {
    for weights in [Distribution::Normal, Distribution::Uniform] {
        let found = measured(Decoder { weights, ..decoder(0.02) }, 16, 8);
        let lemmas = found.setting.lemmas();
        let slope = found.replicates.log_slope(1, Quantity::Attention).unwrap();
        assert!((slope.mean + 1.0).abs() < 0.05, "{weights}: slope {slope:?}");
        let curve = variance(&found, Quantity::Attention);
        let held = curve.share_held(|m| lemmas.output(m));
        // Positions share their tokens, so misses are correlated.
        assert!(held > 0.7, "{weights}: {held} of the intervals hold d^2 s^4 / m");
        let times = found.replicates.scaled(1, Quantity::Attention, |m| m as f64).unwrap();
        let errors = (times.mean - lemmas.output(1)).abs() / times.standard_error().unwrap();
        assert!(errors < 3.0, "{weights}: m var {times:?}, expected {}: {errors} standard errors", lemmas.output(1));
    }
}

#[test]
fn uniform_attention_has_the_lemmas_constants() {
    let found = measured(Decoder { uniform: true, width: 128, ..decoder(0.1) }, 16, 8);
    let lemmas = found.setting.lemmas();
    for m in [1, 4, 16, 64, 128] {
        let (_, estimate) = variance(&found, Quantity::Attention).points[m - 1];
        let errors = (estimate.mean - lemmas.output(m)).abs() / estimate.standard_error().unwrap();
        assert!(errors < 3.0, "position {m}: {estimate:?}, expected {}: {errors} standard errors", lemmas.output(m));
        let (_, heads) = variance(&found, Quantity::Heads).points[m - 1];
        let errors = (heads.mean - lemmas.heads(m)).abs() / heads.standard_error().unwrap();
        assert!(errors < 3.0, "heads at {m}: {heads:?}, expected {}", lemmas.heads(m));
    }
    // All weights of the last query are equal.
    let share = found.replicates.curve(1, Quantity::Cumulative, Statistic::Mean).unwrap();
    for (c, estimate) in share.points {
        assert!((estimate.mean - c as f64 / 32.0).abs() < 1e-5, "before threshold {c}: {estimate:?}");
    }
}

#[test]
fn projections_and_logits_have_the_corrected_constants() {
    let found = measured(decoder(0.06), 16, 8);
    let lemmas = found.setting.lemmas();
    for quantity in [Quantity::Query, Quantity::Key, Quantity::Value] {
        let overall = found.replicates.overall(1, quantity).unwrap();
        let errors = (overall.mean - lemmas.projection().corrected).abs() / overall.standard_error().unwrap();
        assert!(errors < 3.0, "{quantity:?}: {overall:?}, expected {:?}", lemmas.projection());
    }
    let logit = found.replicates.overall(1, Quantity::Logit).unwrap();
    let Constant { printed, corrected } = lemmas.logit();
    assert!((logit.mean / corrected - 1.0).abs() < 0.08, "{logit:?}, expected {corrected}");
    assert!(logit.mean > 3.0 * printed, "{logit:?} against the printed {printed}");
}

#[test]
fn logits_that_spread_add_what_the_lemma_leaves_out() {
    let found = measured(Decoder { length: 256, ..decoder(0.1) }, 16, 8);
    let lemmas = found.setting.lemmas();
    let curve = variance(&found, Quantity::Attention);
    let last = curve.points.last().unwrap().1.mean;
    let (even, spread) = (lemmas.output(256), lemmas.output_of_spread_logits(256));
    assert!(last > 1.3 * even, "{last} against {even} of even attention");
    assert!((last / spread - 1.0).abs() < 0.15, "{last} against {spread}");
}

#[test]
fn both_ways_there_is_no_signal() {
    let mut both_ways = decoder(0.02);
    both_ways.attention.causal = false;
    let found = measured(both_ways, 16, 8);
    let slope = found.replicates.log_slope(1, Quantity::Attention).unwrap();
    assert!(slope.mean.abs() < 0.01, "{slope:?}");
    let lemmas = found.setting.lemmas();
    let overall = found.replicates.scaled(1, Quantity::Attention, |_| 1.0).unwrap();
    let errors = (overall.mean - lemmas.output(1)).abs() / overall.standard_error().unwrap();
    assert!(errors < 3.0, "{overall:?}, expected {}", lemmas.output(1));
}

#[test]
fn single_and_double_precision_agree() {
    for (causal, deviation) in [(true, 0.02), (true, 0.2), (false, 0.1)] {
        let mut small = Decoder { width: 32, length: 40, layers: 3, feed_forward: 48, ..decoder(deviation) };
        small.attention.causal = causal;
        let setting = Setting { label: String::new(), decoder: small, classified: Vec::new() };
        let double = twin(&setting.draw(0), 2).unwrap();
        let single = measured(setting.decoder.clone(), 1, 2);
        let mut compared = 0;
        for (layer, quantity) in double.keys() {
            let (a, b) = (single.replicates.0[0].curve(layer, quantity), double.curve(layer, quantity));
            for (a, b) in a.unwrap().iter().zip(b.unwrap()) {
                let scale = b.variance().sqrt().max(b.mean.abs());
                assert!((a.mean - b.mean).abs() < 2e-4 * scale, "{layer} {quantity:?}: {a:?} {b:?}");
                let apart = (a.variance() - b.variance()).abs();
                assert!(apart < 2e-4 * scale * scale, "{layer} {quantity:?}: {a:?} {b:?}");
                compared += 1;
            }
        }
        assert!(compared > 1000, "{compared}");
    }
}

#[test]
fn channels_follow_lemma_4() {
    let drawn: Vec<Decoder> = (0..3).map(|seed| Decoder { seed, length: 16, ..decoder(0.05) }).collect();
    for check in channels(&drawn, 192).unwrap() {
        let half = check.slope.half.unwrap();
        assert!((check.slope.mean - 1.0).abs() < 0.3_f64.max(half), "{check:?}");
        assert!(check.correlation > 0.4, "{check:?}");
    }
}

/// The signal comes from causal averaging, whatever the weights; a mechanism that is not an average has no cumulative
/// weights.
#[test]
fn every_causal_mechanism_is_measured() {
    for &mechanism in Mechanism::ALL {
        let mut one = Decoder { width: 32, length: 64, ..decoder(0.02) };
        one.attention.mechanism = mechanism;
        let found = measured(one, 4, 4);
        let curve = variance(&found, Quantity::Attention);
        assert!(curve.points.iter().all(|(_, estimate)| estimate.mean > 0.0), "{mechanism}");
        let share = found.replicates.curve(1, Quantity::Cumulative, Statistic::Mean);
        assert_eq!(share.is_none(), mechanism == Mechanism::Fastformer, "{mechanism}");
        if let Some(share) = share {
            let last = share.points.last().unwrap().1.mean;
            assert!((last - 1.0).abs() < 1e-3, "{mechanism}: weights add up to {last}");
        }
    }
}
