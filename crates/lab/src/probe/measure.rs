//! Measurements of untrained decoders.

use std::sync::atomic::AtomicBool;

use burn::tensor::Tensor;
use regard_kernels::{Mechanism, random::substream};

use super::{
    ProbeError,
    channels::{ChannelCheck, channels},
    check,
    classifier::{Accuracy, Classifier, Features},
    curves::Replicates,
    decoder::{Decoder, host},
    lemma::Lemmas,
    tally::{Tally, normalise},
    twin::twin,
};

/// Sequences per batch.
const BATCH: usize = 8;
/// Random stream of the decoder whose hidden states the classifier reads.
const CLASSIFIED: u64 = u64::MAX;

/// A kind of decoder with a name.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Name in tables and charts.
    pub label: String,
    /// The decoder; its seed determines all decoders of its kind.
    pub decoder: Decoder,
    /// Layers after which the classifier reads; 0 for the inputs.
    pub classified: Vec<usize>,
}

/// Measurements for every setting.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// Kinds of decoders.
    pub settings: &'a [Setting],
    /// Number of decoders of each kind.
    pub decoders: usize,
    /// Sequences per decoder.
    pub sequences: usize,
    /// Sequences for each decoder's check of lemma 4; 0 for none.
    pub channel_sequences: usize,
    /// The position classifier.
    pub classifier: &'a Classifier,
    /// Use double precision: softmax only.
    pub double: bool,
}

/// Results for one kind.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The kind.
    pub setting: Setting,
    /// One tally per decoder.
    pub replicates: Replicates,
    /// Lemma 4.
    pub channels: Vec<ChannelCheck>,
    /// Accuracy of the position classifier after some layers.
    pub accuracies: Vec<(usize, Accuracy)>,
}

impl Setting {
    /// Decoder `number` of this kind.
    pub fn draw(&self, number: u64) -> Decoder {
        Decoder { seed: substream(self.decoder.seed, number), ..self.decoder.clone() }
    }

    /// The theory for it.
    pub fn lemmas(&self) -> Lemmas {
        let Decoder { attention, width, length, deviation, .. } = &self.decoder;
        Lemmas {
            width: *width,
            heads: attention.heads,
            length: *length,
            deviation: *deviation,
            causal: attention.causal,
        }
    }

    /// Whether the lemmas apply: softmax with as many key heads as query heads.
    pub fn has_lemmas(&self) -> bool {
        let attention = &self.decoder.attention;
        attention.mechanism == Mechanism::Softmax
            && attention.key_heads() == attention.heads
            && attention.window.is_none()
    }
}

/// Total number of layers to run, the unit of progress.
pub fn steps(plan: &Plan) -> usize {
    plan.settings.iter().map(|setting| setting.decoder.layers * plan.decoders + setting.classified.len()).sum()
}

/// Measures every setting; `progress` is called [`steps`] times.
///
/// # Errors
/// Options that do not fit each other, non-finite numbers, an interrupt.
pub fn measure(plan: &Plan, progress: &dyn Fn(&str), stop: &AtomicBool) -> Result<Vec<Measured>, ProbeError> {
    let one = |setting: &Setting| {
        let drawn: Vec<Decoder> = (0..plan.decoders as u64).map(|number| setting.draw(number)).collect();
        let tallies = drawn.iter().map(|decoder| match plan.double {
            true => {
                let tally = twin(decoder, plan.sequences)?;
                (0..decoder.layers).for_each(|_| progress(&setting.label));
                Ok(tally)
            }
            false => tally(decoder, plan.sequences, &|| progress(&setting.label), stop),
        });
        let replicates = Replicates(tallies.collect::<Result<_, ProbeError>>()?);
        // Bidirectional: all positions are equivalent.
        let checked = setting.has_lemmas() && setting.decoder.attention.causal && plan.channel_sequences > 1;
        let channels = match checked {
            true => channels(&drawn, plan.channel_sequences)?,
            false => Vec::new(),
        };
        let accuracies = match setting.classified.is_empty() {
            true => Vec::new(),
            false => classify(setting, plan.classifier, &|| progress(&setting.label), stop)?,
        };
        Ok(Measured { setting: setting.clone(), replicates, channels, accuracies })
    };
    plan.settings.iter().map(one).collect()
}

/// Moments of `sequences` sequences of one decoder.
fn tally(decoder: &Decoder, sequences: usize, progress: &dyn Fn(), stop: &AtomicBool) -> Result<Tally, ProbeError> {
    let mut tally = Tally::default();
    let starts = (0..sequences).step_by(BATCH);
    let mut states: Vec<Tensor<3>> =
        starts.map(|start| decoder.tensor(decoder.inputs(start, BATCH.min(sequences - start)))).collect();
    for number in 1..=decoder.layers {
        check(stop)?;
        let layer = decoder.layer(number)?;
        for state in &mut states {
            *state = layer.watched(state.clone(), number, &mut tally);
        }
        progress();
    }
    let finite = tally.keys().all(|(layer, quantity)| {
        let curve = tally.curve(layer, quantity).unwrap_or_default();
        curve.iter().all(|moments| moments.mean.is_finite() && moments.squares.is_finite())
    });
    if finite { Ok(tally) } else { Err(ProbeError::Numeric { deviation: decoder.deviation }) }
}

/// The classifier after each requested layer, on the normalised hidden states of one decoder.
fn classify(
    setting: &Setting,
    classifier: &Classifier,
    progress: &dyn Fn(),
    stop: &AtomicBool,
) -> Result<Vec<(usize, Accuracy)>, ProbeError> {
    let decoder = setting.draw(CLASSIFIED);
    let (train, held) = (classifier.sequences, classifier.held);
    let mut states = decoder.inputs(0, train + held);
    let size = decoder.length * decoder.width;
    let mut accuracies = Vec::new();
    for number in 0..=setting.classified.iter().copied().max().unwrap_or(0).min(decoder.layers) {
        if number > 0 {
            let layer = decoder.layer(number)?;
            for chunk in states.chunks_mut(BATCH * size) {
                check(stop)?;
                let out = host(layer.forward(decoder.tensor(chunk.to_vec())));
                chunk.copy_from_slice(&out);
            }
        }
        if setting.classified.contains(&number) {
            let mut seen = states.clone();
            normalise(&mut seen, decoder.width);
            let (train, held) = seen.split_at(train * size);
            let features = Features { train, held, length: decoder.length, width: decoder.width };
            accuracies.push((number, classifier.probe(&features, stop)?));
            progress();
        }
    }
    Ok(accuracies)
}
