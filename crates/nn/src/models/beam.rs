//! Beam search.

use burn::tensor::Tensor;
use regard_kernels::{Error, simd};
use serde::{Deserialize, Serialize};

use super::{TokenBatch, Translator, special};
use crate::blocks::Context;

/// Options of a beam search.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BeamOptions {
    /// Beam width: hypotheses kept at each step; 1 is greedy search.
    pub beam: usize,
    /// Exponent `alpha` of the length penalty `((5 + n) / 6)^alpha` by which the log-probability of `n` tokens is divided
    /// (Wu et al. 2016, equation 14; Vaswani et al. 2017, section 6.1); 0 is none. The end counts as a token.
    pub length_penalty: f64,
    /// Tokens of a translation, its end included, at most; never more than the model's context.
    pub longest: usize,
    /// Tokens of a translation, its end included, at least, where `longest` allows them: no end is written before.
    pub shortest: usize,
    /// Number of tokens in a row that no translation may have twice, as 3 for trigrams (Paulus et al. 2018, section 2.5);
    /// 0: they may.
    pub no_repeat: usize,
}

impl Default for BeamOptions {
    fn default() -> Self {
        Self { beam: 4, length_penalty: 0.6, longest: 128, shortest: 0, no_repeat: 0 }
    }
}

impl BeamOptions {
    /// The widest beam.
    pub const WIDEST: usize = 4096;

    /// # Errors
    /// A beam or length of 0, a beam above [the widest](Self::WIDEST), a shortest length above the longest, or a penalty
    /// that is negative or NaN.
    pub fn check(&self) -> Result<(), Error> {
        for (name, size) in [("beam", self.beam), ("longest", self.longest)] {
            if size == 0 {
                return Err(Error::option(name, 0, "at least 1"));
            }
        }
        if self.beam > Self::WIDEST {
            return Err(Error::option("beam", self.beam, format!("at most {}", Self::WIDEST)));
        }
        if self.shortest > self.longest {
            return Err(Error::option(
                "shortest",
                self.shortest,
                format!("at most {}, the longest length", self.longest),
            ));
        }
        if !(self.length_penalty.is_finite() && self.length_penalty >= 0.0) {
            return Err(Error::option("length_penalty", self.length_penalty, "a number of at least 0"));
        }
        Ok(())
    }

    /// What the log-probability of `tokens` tokens is divided by.
    fn penalty(&self, tokens: usize) -> f64 {
        ((5 + tokens) as f64 / 6.0).powf(self.length_penalty)
    }

    /// Tokens that must not follow `tokens`.
    fn barred(&self, tokens: &[i32]) -> Vec<i32> {
        let end = (tokens.len() + 1 < self.shortest).then_some(special::END);
        let mut barred: Vec<i32> = end.into_iter().collect();
        if self.no_repeat > 0 && tokens.len() >= self.no_repeat {
            let last = &tokens[tokens.len() + 1 - self.no_repeat..];
            barred
                .extend(tokens.windows(self.no_repeat).filter(|run| run.starts_with(last)).map(|run| run[last.len()]));
        }
        barred
    }
}

/// Translations of the rows of `source`, without begin and end; `source` ends as the model was trained to see it.
///
/// Rows are searched side by side; a row's result does not depend on the others. At each step the extensions of a row's
/// hypotheses are ranked by log-probability (ties: earlier hypothesis, then lower token). An end among the best `beam`
/// finishes its hypothesis; the best `beam` others go on. A row is done when `beam` hypotheses have finished, when the best
/// finished one is at least as good as the best open one could become, or at the longest length, where open hypotheses
/// count as finished. The first with the largest log-probability over length penalty wins. Padding, begin and mask are
/// never written, nor what `shortest` and `no_repeat` bar.
///
/// # Errors
/// Options or tokens that do not fit.
pub fn beam_search(model: &Translator, source: &TokenBatch, options: &BeamOptions) -> Result<Vec<Vec<i32>>, Error> {
    options.check()?;
    let sizes = model.sizes();
    source.check(sizes.vocabulary, sizes.context)?;
    let options = &BeamOptions { longest: options.longest.min(sizes.context), ..*options };
    let memory = model.encode(source, &Context::evaluation());
    let mut state = model.start(memory, source.padding.clone())?;
    let mut searches: Vec<_> = (0..source.batch).map(|_| Search::new()).collect();
    let mut tokens = vec![special::BEGIN; source.batch];
    for length in 1..=options.longest {
        let open = searches.iter().flat_map(|search| &search.open);
        let barred: Vec<_> = open.map(|open| options.barred(&open.tokens)).collect();
        let rows = Candidates::of(model.step(&tokens, &mut state)?, &barred, options.beam);
        let mut row = 0;
        let mut parents = Vec::new();
        tokens.clear();
        for search in &mut searches {
            let first = row;
            row += search.open.len();
            search.extend(&rows[first..row], length, options);
            parents.extend(search.open.iter().map(|open| first + open.parent));
            tokens.extend(search.open.iter().map(|open| open.tokens[length - 1]));
        }
        if parents.is_empty() {
            break;
        }
        state.reorder(&parents);
    }
    Ok(searches.into_iter().map(Search::best).collect())
}

/// The search of one row.
#[derive(Debug)]
struct Search {
    /// Best first.
    open: Vec<Open>,
    finished: Vec<Finished>,
}

/// An open hypothesis.
#[derive(Clone, Debug)]
struct Open {
    tokens: Vec<i32>,
    log_probability: f64,
    /// The hypothesis before its last token, among those open then.
    parent: usize,
}

/// A finished hypothesis without its end, and its log-probability over the length penalty.
#[derive(Debug)]
struct Finished {
    tokens: Vec<i32>,
    score: f64,
}

impl Search {
    fn new() -> Self {
        Self { open: vec![Open { tokens: Vec::new(), log_probability: 0.0, parent: 0 }], finished: Vec::new() }
    }

    /// Takes one more token, the `length`-th; `rows` has the candidates of each open hypothesis.
    fn extend(&mut self, rows: &[Candidates], length: usize, options: &BeamOptions) {
        let mut ranked: Vec<(f64, usize, i32)> = Vec::new();
        for (parent, (open, candidates)) in self.open.iter().zip(rows).enumerate() {
            ranked.extend(candidates.0.iter().map(|&(token, log)| (open.log_probability + log, parent, token)));
        }
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        let mut next = Vec::new();
        for (rank, &(log_probability, parent, token)) in ranked.iter().enumerate() {
            if next.len() == options.beam {
                break;
            }
            let mut tokens = self.open[parent].tokens.clone();
            if token != special::END {
                tokens.push(token);
                next.push(Open { tokens, log_probability, parent });
            } else if rank < options.beam {
                self.finished.push(Finished { tokens, score: log_probability / options.penalty(length) });
            }
        }
        self.open = next;
        let best = self.finished.iter().map(|finished| finished.score).fold(f64::NEG_INFINITY, f64::max);
        // Log-probabilities only fall; the penalty is largest at the longest length.
        let reachable = self.open.first().map(|open| open.log_probability / options.penalty(options.longest));
        if self.finished.len() >= options.beam || reachable.is_some_and(|reachable| best >= reachable) {
            self.open.clear();
        }
        if length == options.longest {
            let penalty = options.penalty(length);
            let cut = self.open.drain(..).map(|open| (open.tokens, open.log_probability / penalty));
            self.finished.extend(cut.map(|(tokens, score)| Finished { tokens, score }));
        }
    }

    /// The first finished hypothesis of the largest score.
    fn best(self) -> Vec<i32> {
        let better = |best: Finished, other: Finished| if other.score > best.score { other } else { best };
        self.finished.into_iter().reduce(better).map(|finished| finished.tokens).unwrap_or_default()
    }
}

/// The likeliest tokens after a hypothesis with their log-probabilities, best first, ties by the lower token.
#[derive(Debug)]
struct Candidates(Vec<(i32, f64)>);

impl Candidates {
    /// Of each row of `logits [rows,vocabulary]` without those that are `barred` there, as many as a beam can use: one more
    /// than it is wide, for an end.
    fn of(logits: Tensor<2>, barred: &[Vec<i32>], beam: usize) -> Vec<Self> {
        let vocabulary = logits.dims()[1];
        let logits = logits.into_data_as::<f32>().try_to_vec::<f32>().expect("f32, as asked");
        logits.chunks_exact(vocabulary).zip(barred).map(|(row, barred)| Self::best(row, barred, beam + 1)).collect()
    }

    fn best(logits: &[f32], barred: &[i32], count: usize) -> Self {
        let top = simd::max(logits);
        let sum = simd::vectorize(
            #[inline(always)]
            || simd::sum_pairs(logits, logits, |z, _| simd::exp(z - top)),
        );
        let normaliser = f64::from(top) + f64::from(sum).ln();
        let count = count.min(logits.len());
        let mut best: Vec<(i32, f32)> = Vec::with_capacity(count + 1);
        for (token, &z) in logits.iter().enumerate() {
            let token = token as i32;
            let silent = [special::PADDING, special::BEGIN, special::MASK].contains(&token) || barred.contains(&token);
            if silent || best.len() == count && z <= best[count - 1].1 {
                continue;
            }
            let at = best.partition_point(|&(_, other)| other >= z);
            best.insert(at, (token, z));
            best.truncate(count);
        }
        Self(best.into_iter().map(|(token, z)| (token, f64::from(z) - normaliser)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_the_largest_with_ties_to_the_lower_token() {
        let Candidates(best) = Candidates::best(&[9.0, 9.0, 1.0, 2.0, 9.0, 2.0, 3.0, 1.0], &[], 4);
        assert_eq!(best.iter().map(|&(token, _)| token).collect::<Vec<_>>(), [6, 3, 5, 2]);
        let sum: f64 = [9.0, 9.0, 1.0, 2.0, 9.0, 2.0, 3.0, 1.0f64].iter().map(|z| z.exp()).sum();
        assert!((best[0].1 - (3.0 - sum.ln())).abs() < 1e-6, "{best:?}");
        // Those that are barred leave the others as probable as they are.
        let Candidates(fewer) = Candidates::best(&[9.0, 9.0, 1.0, 2.0, 9.0, 2.0, 3.0, 1.0], &[3, 6], 2);
        assert_eq!(fewer, [best[2], best[3]]);
    }

    #[test]
    fn ends_that_come_early_and_runs_that_come_again_are_barred() {
        let options = |shortest, no_repeat| BeamOptions { shortest, no_repeat, ..BeamOptions::default() };
        assert_eq!(options(0, 0).barred(&[5, 5, 5]), [0; 0]);
        assert_eq!(options(3, 0).barred(&[5]), [special::END]);
        assert_eq!(options(3, 0).barred(&[5, 6]), [0; 0]);
        assert_eq!(options(0, 3).barred(&[5, 6, 7, 8, 5, 6]), [7]);
        assert_eq!(options(0, 3).barred(&[5, 6, 7, 5, 6, 8, 5, 6]), [7, 8]);
        assert_eq!(options(0, 3).barred(&[5, 5, 5]), [5]);
        assert_eq!(options(0, 3).barred(&[5, 5]), [0; 0]);
        assert_eq!(options(0, 2).barred(&[5, 6, 5]), [6]);
        assert_eq!(options(0, 1).barred(&[5, 6]), [5, 6]);
        assert_eq!(options(4, 1).barred(&[5]), [special::END, 5]);
    }

    #[test]
    fn the_penalty_is_the_published_one() {
        let options = BeamOptions { length_penalty: 0.6, ..BeamOptions::default() };
        assert_eq!(options.penalty(1), 1.0);
        assert!((options.penalty(7) - 2f64.powf(0.6)).abs() < 1e-12);
        assert_eq!(BeamOptions { length_penalty: 0.0, ..options }.penalty(50), 1.0);
    }

    #[test]
    fn a_length_penalty_lets_the_longer_hypothesis_win() {
        // An end at once has 0.4; a word has 0.6 and is followed by an end with 0.6.
        let search = |length_penalty| {
            let options = BeamOptions { beam: 2, length_penalty, longest: 3, ..BeamOptions::default() };
            let mut search = Search::new();
            search.extend(&[Candidates(vec![(7, 0.6f64.ln()), (special::END, 0.4f64.ln())])], 1, &options);
            for length in 2..=3 {
                let next = Candidates(vec![(special::END, 0.6f64.ln()), (8, 0.4f64.ln())]);
                if !search.open.is_empty() {
                    search.extend(&[next], length, &options);
                }
            }
            search.best()
        };
        assert_eq!(search(0.0), Vec::<i32>::new());
        assert_eq!(search(1.0), [7]);
    }

    #[test]
    fn options_that_search_nothing_are_refused() {
        let refused = |options: BeamOptions, part: &str| {
            let error = options.check().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        refused(BeamOptions { beam: 0, ..BeamOptions::default() }, "beam is 0");
        refused(BeamOptions { longest: 0, ..BeamOptions::default() }, "longest is 0");
        refused(BeamOptions { shortest: 129, ..BeamOptions::default() }, "shortest is 129");
        refused(BeamOptions { length_penalty: -0.1, ..BeamOptions::default() }, "length_penalty is -0.1");
        refused(BeamOptions { length_penalty: f64::NAN, ..BeamOptions::default() }, "length_penalty is NaN");
    }
}
