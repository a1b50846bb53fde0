//! How well a model ranks what was offered, impression by impression.

use std::{cmp::Reverse, time::Instant};

use burn::{
    module::Module,
    tensor::{Device, Tensor, TensorData},
};
use regard_cluster::{ClusterError, Communicator};
use regard_metrics::{area_under_curve, ndcg, reciprocal_rank};
use regard_nn::{blocks::Context, models::Recommender, ops::with_elements};
use serde::{Deserialize, Serialize};

use super::{
    Evaluation, Items, TrainError,
    parallel::{Reader, Writer, spread},
};
use crate::data::{
    Impression, ImpressionLog, ImpressionPart, NewsRows, Split, check_impressions, evenly, news_histories, news_titles,
};

/// Titles that are encoded at a time in an evaluation.
const TITLES: usize = 256;

/// Scores of rankings, each the mean over impressions, as in the MIND challenge (Wu et al. 2020). From 0 to 1; more is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankingScores {
    /// Area under the ROC curve.
    pub auc: f64,
    /// Mean reciprocal rank of what was clicked on.
    pub mrr: f64,
    /// Normalised discounted cumulative gain of the first five places.
    pub ndcg_5: f64,
    /// The same of the first ten.
    pub ndcg_10: f64,
}

/// Scores of a model, and what they lie between.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankingFigures {
    /// Those of the model.
    #[serde(flatten)]
    pub scores: RankingScores,
    /// Expected of a random order.
    pub chance: RankingScores,
    /// Those of the true probabilities of the clicks, where they are known: no model can be expected to do better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<RankingScores>,
}

impl RankingScores {
    /// Names of the scores in tables, in the order of [`RankingScores::values`].
    pub const NAMES: [&str; 4] = ["AUC", "MRR", "nDCG@5", "nDCG@10"];

    /// AUC, MRR, nDCG@5 and nDCG@10.
    pub fn values(&self) -> [f64; 4] {
        [self.auc, self.mrr, self.ndcg_5, self.ndcg_10]
    }

    fn of(values: [f64; 4]) -> Self {
        let [auc, mrr, ndcg_5, ndcg_10] = values;
        Self { auc, mrr, ndcg_5, ndcg_10 }
    }

    /// Those of one impression by `scores`. Of equal scores the first in the impression comes first; they share the area.
    fn of_impression(clicked: &[bool], scores: &[f32]) -> Self {
        let mut order: Vec<usize> = (0..clicked.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        let ranked: Vec<bool> = order.iter().map(|&i| clicked[i]).collect();
        let gains: Vec<f64> = ranked.iter().map(|clicked| f64::from(u8::from(*clicked))).collect();
        let scores: Vec<f64> = scores.iter().map(|score| f64::from(*score)).collect();
        Self {
            auc: area_under_curve(clicked, &scores).unwrap_or(0.5),
            mrr: reciprocal_rank(&ranked),
            ndcg_5: ndcg(&gains, &gains, 5),
            ndcg_10: ndcg(&gains, &gains, 10),
        }
    }

    /// What a random order of `clicked` can be expected to score.
    fn expected(clicked: &[bool]) -> Self {
        let (all, clicks) = (clicked.len(), clicked.iter().filter(|clicked| **clicked).count());
        let discounts = |places: usize| (0..places).map(|place| (place as f64 + 2.0).log2().recip()).sum::<f64>();
        let gain = |depth: usize| {
            clicks as f64 / all as f64 * discounts(all.min(depth)) / discounts(clicks.min(depth)).max(f64::MIN_POSITIVE)
        };
        let mrr = (1..=all).map(|place| (place as f64).recip()).sum::<f64>() / all as f64;
        Self { auc: 0.5, mrr, ndcg_5: gain(5), ndcg_10: gain(10) }
    }
}

/// Sums over impressions.
#[derive(Debug, Default)]
struct Tally {
    sums: [[f64; 4]; 3],
    impressions: usize,
    /// Impressions with known probabilities.
    known: usize,
}

impl Tally {
    fn add(&mut self, impression: &Impression<'_>, scores: &[f32]) {
        let clicked = impression.clicked;
        let best = impression.probabilities.map(|chances| RankingScores::of_impression(clicked, chances));
        let all =
            [RankingScores::of_impression(clicked, scores), RankingScores::expected(clicked), best.unwrap_or_default()];
        for (sums, own) in self.sums.iter_mut().zip(all) {
            sums.iter_mut().zip(own.values()).for_each(|(sum, value)| *sum += value);
        }
        self.impressions += 1;
        self.known += usize::from(best.is_some());
    }

    fn finish(self) -> RankingFigures {
        let mean = |sums: [f64; 4]| RankingScores::of(sums.map(|sum| sum / self.impressions.max(1) as f64));
        let [scores, chance, best] = self.sums.map(mean);
        let known = self.known > 0 && self.known == self.impressions;
        RankingFigures { scores, chance, best: known.then_some(best) }
    }
}

/// Measures a model on impressions in batches of `rows`: all of them or, if `most` is not 0, that many batches spread over
/// them. Every title is encoded once, whoever reads it, by one of the ranks of a job. The loss is the mean over clicks of the cross entropy of a click among
/// itself and all that was not clicked on.
pub(super) fn measure(
    model: &Recommender,
    part: ImpressionPart<'_>,
    split: Split,
    [rows, most]: [usize; 2],
    step: usize,
    mut by_sequence: Option<&mut Items>,
    cluster: &dyn Communicator,
) -> Result<Evaluation, TrainError> {
    check_impressions(rows)?;
    let ImpressionPart { log, chosen } = part;
    let context = Context::evaluation();
    let start = Instant::now();
    let batches: Vec<&[u32]> = chosen.chunks(rows).collect();
    let batches: Vec<&[u32]> = evenly(batches.len(), most).map(|i| batches[i]).collect();
    let mut named = NewsRows::default();
    for impression in batches.iter().copied().flatten().map(|&i| log.impression(i as usize)) {
        for news in impression.offered.iter().chain(impression.history) {
            named.of(*news);
        }
    }
    let (mut tally, mut loss, mut clicks) = (Tally::default(), 0.0, 0);
    if !named.news.is_empty() {
        let news = encoded(model, log, &named.news, &context, cluster)?;
        for batch in &batches {
            let impressions: Vec<Impression<'_>> = batch.iter().map(|&i| log.impression(i as usize)).collect();
            let histories = news_histories(impressions.iter().map(|impression| impression.history), &mut named);
            let users = model.users(news.clone(), &histories, &context);
            // Shorter impressions are filled up with row 0, whose scores are passed over.
            let each = impressions.iter().map(|impression| impression.offered.len()).max().unwrap_or(1);
            let mut candidates = vec![0; batch.len() * each];
            for (row, impression) in candidates.chunks_exact_mut(each).zip(&impressions) {
                row.iter_mut().zip(impression.offered).for_each(|(row, news)| *row = named.of(*news));
            }
            let scores = model.scores(users, news.clone(), candidates.into());
            let scores: Vec<f32> = scores.into_data_as::<f32>().try_into_vec().expect("f32, as asked");
            for (scores, impression) in scores.chunks_exact(each).zip(&impressions) {
                let scores = &scores[..impression.offered.len()];
                tally.add(impression, scores);
                let own = click_losses(impression.clicked, scores);
                loss += own.iter().sum::<f64>();
                clicks += own.len();
                if let Some(by_sequence) = &mut by_sequence {
                    by_sequence.add_clicks(impression.clicked, own.iter().sum());
                }
            }
        }
    }
    Ok(Evaluation {
        step,
        split,
        loss: loss / clicks as f64,
        accuracy: None,
        classes: None,
        values: None,
        perplexity: None,
        bleu: None,
        rouge: None,
        ranking: Some(tally.finish()),
        averaged: None,
        language: None,
        items: clicks,
        sequences: batches.iter().map(|batch| batch.len()).sum(),
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// Vectors `[news,d]` of titles, which ranks encode in turn. Those of about one length go together; rows come back in the
/// order of `news`.
fn encoded(
    model: &Recommender,
    log: &ImpressionLog,
    news: &[u32],
    context: &Context,
    cluster: &dyn Communicator,
) -> Result<Tensor<2>, ClusterError> {
    let mut order: Vec<usize> = (0..news.len()).collect();
    order.sort_by_key(|&row| Reverse(log.title(news[row] as usize).len()));
    let part = |rows: &[usize]| {
        let some: Vec<u32> = rows.iter().map(|&row| news[row]).collect();
        model.news(&news_titles(log, &some), context)
    };
    let chunks = || order.chunks(TITLES);
    let parts = if cluster.ranks() == 1 {
        chunks().map(part).collect()
    } else {
        let own: Vec<Tensor<2>> = chunks().skip(cluster.rank()).step_by(cluster.ranks()).map(part).collect();
        shared_rows(own, &model.devices(), cluster)?
    };
    let all = Tensor::cat(parts, 0);
    let mut places = vec![0; order.len()];
    order.iter().zip(0..).for_each(|(&row, place)| places[row] = place);
    let count = places.len();
    Ok(regard_nn::ops::embedding(all, places, [1, count]).squeeze_dim(0))
}

/// Tensors of all ranks in order, of which each made every `ranks`-th.
fn shared_rows(
    own: Vec<Tensor<2>>,
    devices: &[Device],
    cluster: &dyn Communicator,
) -> Result<Vec<Tensor<2>>, ClusterError> {
    let written = own.iter().map(|part| {
        let mut writer = Writer::default();
        writer.count(part.dims()[1]);
        with_elements(part, |elements| writer.floats(elements));
        writer.done()
    });
    let device = devices.first().cloned().unwrap_or_default();
    let read = |message: Vec<u8>| {
        let mut reader = Reader::of(&message);
        let (width, values) = (reader.count(), reader.floats());
        let rows = values.len() / width;
        Tensor::from_data(TensorData::new(values, [rows, width]), &device)
    };
    Ok(spread(cluster, written.collect())?.into_iter().map(read).collect())
}

/// Cross entropy of each click among itself and what was not clicked on, in nats.
fn click_losses(clicked: &[bool], scores: &[f32]) -> Vec<f64> {
    let shift = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |score: f32| f64::from(score - shift).exp();
    let others: f64 =
        scores.iter().zip(clicked).filter(|(_, clicked)| !**clicked).map(|(score, _)| weight(*score)).sum();
    let clicks = scores.iter().zip(clicked).filter(|(_, clicked)| **clicked);
    clicks.map(|(score, _)| (others + weight(*score)).ln() - f64::from(*score - shift)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(seen: f64, expected: f64) {
        assert!((seen - expected).abs() < 1e-12, "{seen}, expected {expected}");
    }

    #[test]
    fn an_impression_is_ranked_by_its_scores() {
        let clicked = [false, true, false, true];
        // The order is 1, 0, 3, 2.
        let scores = RankingScores::of_impression(&clicked, &[0.5, 2.0, -1.0, 0.0]);
        close(scores.auc, 0.75);
        close(scores.mrr, (1.0 + 1.0 / 3.0) / 2.0);
        close(scores.ndcg_5, (1.0 + 0.5) / (1.0 + 3f64.log2().recip()));
        assert_eq!(scores.ndcg_5, scores.ndcg_10);
        // Equal scores: half the area, and the order of the log.
        let equal = RankingScores::of_impression(&clicked, &[0.0; 4]);
        close(equal.auc, 0.5);
        close(equal.mrr, (0.5 + 0.25) / 2.0);
    }

    #[test]
    fn chance_is_the_mean_over_all_orders() {
        let clicked = [true, false, true, false, false, false, false];
        let (mut sum, mut count) = ([0.0; 4], 0.0);
        // All places of two clicks among seven.
        for one in 0..7 {
            for other in (0..7).filter(|other| *other != one) {
                let mut scores = [0.0; 7];
                let mut rest = (0..7).filter(|place| *place != one && *place != other);
                let places = [one, rest.next().unwrap(), other].into_iter().chain(rest);
                scores.iter_mut().zip(places).for_each(|(score, place)| *score = -(place as f32));
                let own = RankingScores::of_impression(&clicked, &scores).values();
                sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
                count += 1.0;
            }
        }
        let expected = RankingScores::expected(&clicked).values();
        sum.iter().zip(expected).for_each(|(sum, expected)| close(sum / count, expected));
    }

    #[test]
    fn a_click_competes_with_what_was_not_clicked_on() {
        let losses = click_losses(&[true, false, true], &[0.0, 0.0, 3f32.ln()]);
        assert_eq!(losses.len(), 2);
        assert!((losses[0] - 2f64.ln()).abs() < 1e-6 && (losses[1] - (4.0f64 / 3.0).ln()).abs() < 1e-6, "{losses:?}");
        assert!(click_losses(&[true, false], &[-1e30, 1e30])[0] > 1e29);
        assert!(click_losses(&[true, false], &[f32::NAN, 0.0])[0].is_nan());
    }
}
