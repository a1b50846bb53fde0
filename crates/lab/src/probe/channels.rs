//! Lemma 4, channel by channel: with the weights fixed, a channel's variance over inputs after the norm.

use regard_kernels::Error;
use regard_nn::models::named_parameters;
use serde::Serialize;

use super::{
    decoder::{Decoder, host},
    estimate::Estimate,
    lemma::Lemmas,
};
use crate::moments::Moments;

/// Agreement of measured channel variances with the lemma, at one position.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ChannelCheck {
    /// The position, from 1.
    pub position: usize,
    /// Standard deviation over channels of the lemma's variances.
    pub spread: f64,
    /// Regression slope of the measured variances on the lemma's; 1 if it holds.
    pub slope: Estimate,
    /// Their correlation, also below 1 because variances are measured on few sequences.
    pub correlation: f64,
}

impl ChannelCheck {
    /// Whether the lemma's variances differ enough (by 2 %) to be resolved with few sequences.
    pub fn tells(&self) -> bool {
        self.spread > 0.02
    }
}

/// Sequences per batch.
const BATCH: usize = 8;

/// Checks the first layer of each decoder, without its feed-forward layer, at powers of two. Each decoder gives one
/// slope.
///
/// # Errors
/// Options that do not fit the sizes.
pub fn channels(decoders: &[Decoder], sequences: usize) -> Result<Vec<ChannelCheck>, Error> {
    let Some(first) = decoders.first() else { return Ok(Vec::new()) };
    let positions: Vec<usize> = (0..).map(|power| 1 << power).take_while(|m| *m <= first.length).collect();
    let mut fits = vec![Vec::new(); positions.len()];
    for decoder in decoders {
        for (fits, fit) in fits.iter_mut().zip(fit(decoder, &positions, sequences)?) {
            fits.push(fit);
        }
    }
    let check = |(position, fits): (&usize, &Vec<Fit>)| {
        let mean = |f: fn(&Fit) -> f64| Moments::of(&fits.iter().map(f).collect::<Vec<_>>()).mean;
        ChannelCheck {
            position: *position,
            spread: mean(|fit| fit.spread),
            slope: Estimate::of(&fits.iter().map(|fit| fit.slope).collect::<Vec<_>>()),
            correlation: mean(|fit| fit.correlation),
        }
    };
    Ok(positions.iter().zip(&fits).map(check).collect())
}

#[derive(Clone, Copy, Debug)]
struct Fit {
    spread: f64,
    slope: f64,
    correlation: f64,
}

fn fit(decoder: &Decoder, positions: &[usize], sequences: usize) -> Result<Vec<Fit>, Error> {
    let decoder = &Decoder { feed_forward: 0, ..decoder.clone() };
    let width = decoder.width;
    let layer = decoder.layer(1)?;
    let mut measured = vec![vec![Moments::default(); width]; positions.len()];
    for start in (0..sequences).step_by(BATCH) {
        let count = BATCH.min(sequences - start);
        let out = host(layer.norm(layer.forward(decoder.tensor(decoder.inputs(start, count)))));
        for sequence in out.chunks_exact(decoder.length * width) {
            for (moments, position) in measured.iter_mut().zip(positions) {
                let row = &sequence[(position - 1) * width..position * width];
                moments.iter_mut().zip(row).for_each(|(own, x)| *own = own.and(Moments::of(&[*x])));
            }
        }
    }
    let lemmas = Lemmas {
        width,
        heads: decoder.attention.heads,
        length: decoder.length,
        deviation: decoder.deviation,
        causal: decoder.attention.causal,
    };
    let rows = row_lengths(&layer);
    let fits = positions.iter().zip(&measured).map(|(position, moments)| {
        let pairs = rows.iter().zip(moments).map(|(w, moments)| (lemmas.channel(*position, *w), moments.variance()));
        regression(&pairs.collect::<Vec<_>>())
    });
    Ok(fits.collect())
}

/// Squared norm of every channel's row of `W_o W_v`.
fn row_lengths(layer: &super::decoder::Layer) -> Vec<f64> {
    let parameters = named_parameters(&layer.attention);
    let weight = |name: &str| {
        let found = parameters.iter().find(|parameter| parameter.name == name).expect("softmax has this projection");
        ([found.shape[0], found.shape[1]], &found.values)
    };
    let (([from, inner], v), ([_, width], o)) = (weight("w_v"), weight("w_o"));
    let mut sums = vec![0.0; width];
    let mut row = vec![0.0f64; width];
    for i in 0..from {
        row.fill(0.0);
        for h in 0..inner {
            let x = f64::from(v[i * inner + h]);
            row.iter_mut().zip(&o[h * width..(h + 1) * width]).for_each(|(sum, o)| *sum += x * f64::from(*o));
        }
        sums.iter_mut().zip(&row).for_each(|(sum, x)| *sum += x * x);
    }
    sums
}

fn regression(pairs: &[(f64, f64)]) -> Fit {
    let of = |f: fn(&(f64, f64)) -> f64| Moments::of(&pairs.iter().map(f).collect::<Vec<_>>());
    let (x, y) = (of(|pair| pair.0), of(|pair| pair.1));
    let together: f64 = pairs.iter().map(|pair| (pair.0 - x.mean) * (pair.1 - y.mean)).sum();
    Fit {
        spread: x.variance().sqrt(),
        slope: together / x.squares,
        correlation: together / (x.squares * y.squares).sqrt(),
    }
}
