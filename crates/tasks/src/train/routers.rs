//! What the routers of mixtures of heads did in an update.

use std::collections::BTreeMap;

use regard_nn::blocks::{Place, RouterRecord, Stack};
use serde::{Deserialize, Serialize};

use super::parallel::{Reader, Writer};

/// Updates between two reports of the routers, whose loads are one number per expert and layer.
pub(super) const EVERY: usize = 20;

/// What one router did in one update, the mean over the tokens of its batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouterReport {
    /// Stack, layer from 1 and attention, as in `decoder.2.cross`.
    pub name: String,
    /// Balance loss before its coefficient: 1 where the load is even.
    pub balance: f64,
    /// z-loss before its coefficient.
    pub z: f64,
    /// Squared coefficient of variation of the experts' importance.
    pub cv: f64,
    /// Mean entropy of a token's probabilities in nats.
    pub entropy: f64,
    /// Share of the assignments of each expert; sums to 1.
    pub load: Vec<f64>,
}

/// Writes records into a message between ranks.
pub(super) fn write_records(records: &[RouterRecord], writer: &mut Writer) {
    writer.count(records.len());
    for record in records {
        writer.count((record.stack == Stack::Decoder).into());
        writer.count((record.place == Place::CrossWeights).into());
        writer.count(record.layer);
        writer.count(record.tokens);
        [record.balance, record.z, record.cv, record.entropy].iter().for_each(|value| writer.number(*value));
        writer.numbers(&record.load);
    }
}

/// The records of a message.
pub(super) fn read_records(reader: &mut Reader<'_>) -> Vec<RouterRecord> {
    let count = reader.count();
    let record = |_| RouterRecord {
        stack: if reader.count() != 0 { Stack::Decoder } else { Stack::Encoder },
        place: if reader.count() != 0 { Place::CrossWeights } else { Place::Weights },
        layer: reader.count(),
        tokens: reader.count(),
        balance: reader.number(),
        z: reader.number(),
        cv: reader.number(),
        entropy: reader.number(),
        load: reader.numbers(),
        chosen: None,
    };
    (0..count).map(record).collect()
}

impl RouterReport {
    /// Reports of the routers of a model, in the order of its layers, from the records of one or more batches.
    pub(super) fn of(records: &[RouterRecord]) -> Vec<Self> {
        let mut places: BTreeMap<(Stack, usize, Place), Vec<&RouterRecord>> = BTreeMap::new();
        for record in records {
            places.entry((record.stack, record.layer, record.place)).or_default().push(record);
        }
        let report = |((stack, layer, place), records): (_, Vec<&RouterRecord>)| {
            let total: f64 = records.iter().map(|record| record.tokens as f64).sum::<f64>().max(1.0);
            let mean = |value: &dyn Fn(&RouterRecord) -> f64| {
                records.iter().map(|record| record.tokens as f64 * value(record)).sum::<f64>() / total
            };
            let experts = records.iter().map(|record| record.load.len()).min().unwrap_or(0);
            Self {
                name: name(stack, layer, place),
                balance: mean(&|record| record.balance),
                z: mean(&|record| record.z),
                cv: mean(&|record| record.cv),
                entropy: mean(&|record| record.entropy),
                load: (0..experts).map(|expert| mean(&|record| record.load[expert])).collect(),
            }
        };
        places.into_iter().map(report).collect()
    }

    /// Values for curves, by tag.
    pub(super) fn scalars(&self) -> Vec<(String, f64)> {
        let extreme = |choose: fn(f64, f64) -> f64, start| self.load.iter().copied().fold(start, choose);
        let values = [
            ("balance", self.balance),
            ("z", self.z),
            ("cv", self.cv),
            ("entropy", self.entropy),
            ("largest_load", extreme(f64::max, 0.0)),
            ("smallest_load", extreme(f64::min, 1.0)),
        ];
        values.map(|(what, value)| (format!("router/{}/{what}", self.name), value)).to_vec()
    }
}

fn name(stack: Stack, layer: usize, place: Place) -> String {
    let stack = match stack {
        Stack::Encoder => "encoder",
        Stack::Decoder => "decoder",
    };
    let place = match place {
        Place::CrossWeights => "cross",
        _ => "self",
    };
    format!("{stack}.{layer}.{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_a_layer_are_averaged_over_their_tokens() {
        let record = |stack, layer, place, tokens, balance, load: [f64; 2]| RouterRecord {
            stack,
            layer,
            place,
            balance,
            z: 2.0 * balance,
            cv: 0.5,
            entropy: 0.25,
            load: load.to_vec(),
            chosen: None,
            tokens,
        };
        let records = [
            record(Stack::Decoder, 1, Place::Weights, 4, 1.0, [0.5, 0.5]),
            record(Stack::Decoder, 1, Place::CrossWeights, 4, 1.0, [1.0, 0.0]),
            record(Stack::Encoder, 2, Place::Weights, 1, 1.0, [1.0, 0.0]),
            record(Stack::Encoder, 2, Place::Weights, 3, 2.0, [0.0, 1.0]),
        ];
        let reports = RouterReport::of(&records);
        let names: Vec<_> = reports.iter().map(|report| report.name.as_str()).collect();
        assert_eq!(names, ["encoder.2.self", "decoder.1.self", "decoder.1.cross"]);
        assert_eq!((reports[0].balance, reports[0].z, reports[0].cv), (1.75, 3.5, 0.5));
        assert_eq!(reports[0].load, [0.25, 0.75]);
        let scalars = reports[0].scalars();
        assert!(scalars.contains(&("router/encoder.2.self/largest_load".into(), 0.75)), "{scalars:?}");
        assert!(scalars.contains(&("router/encoder.2.self/smallest_load".into(), 0.25)), "{scalars:?}");
        assert_eq!(RouterReport::of(&[]), []);
        let mut writer = Writer::default();
        write_records(&records, &mut writer);
        assert_eq!(RouterReport::of(&read_records(&mut Reader::of(&writer.done()))), reports);
    }
}
