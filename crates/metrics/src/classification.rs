//! Scores of a classifier, from its confusion matrix.

use serde::{Deserialize, Serialize};

/// How often each class was predicted as each class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confusion {
    /// `counts[label][predicted]`.
    counts: Vec<Vec<u64>>,
}

impl Confusion {
    /// Of pairs `(label, predicted)`, both in `0 .. classes`.
    ///
    /// # Panics
    /// If one is no class.
    pub fn of(pairs: impl IntoIterator<Item = (usize, usize)>, classes: usize) -> Self {
        let mut all = Self { counts: vec![vec![0; classes]; classes] };
        pairs.into_iter().for_each(|(label, predicted)| all.add(label, predicted));
        all
    }

    /// Adds a prediction.
    ///
    /// # Panics
    /// As [`Confusion::of`].
    pub fn add(&mut self, label: usize, predicted: usize) {
        self.counts[label][predicted] += 1;
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.counts.len()
    }

    /// `counts[label][predicted]`.
    pub fn counts(&self) -> &[Vec<u64>] {
        &self.counts
    }

    /// Share of correct predictions; NaN of none.
    pub fn accuracy(&self) -> f64 {
        let right: u64 = (0..self.counts.len()).map(|class| self.counts[class][class]).sum();
        right as f64 / self.total() as f64
    }

    /// F1 of a class: twice the correct ones over those predicted and those there. 0 where it is neither predicted nor
    /// there.
    pub fn f1(&self, class: usize) -> f64 {
        let all = self.labelled(class) + self.predicted(class);
        if all == 0 { 0.0 } else { 2.0 * self.counts[class][class] as f64 / all as f64 }
    }

    /// Mean F1 of the classes that are predicted or there, as in `sklearn.metrics.f1_score(average="macro")`; NaN
    /// without predictions.
    pub fn macro_f1(&self) -> f64 {
        let seen = (0..self.counts.len()).filter(|&class| self.labelled(class) + self.predicted(class) > 0);
        let scores: Vec<f64> = seen.map(|class| self.f1(class)).collect();
        scores.iter().sum::<f64>() / scores.len() as f64
    }

    /// Matthews' correlation of labels and predictions, for any number of classes (Gorodkin 2004); 0 where one side
    /// does not vary.
    pub fn matthews(&self) -> f64 {
        let total = self.total() as f64;
        let (mut right, mut both, mut labels, mut predictions) = (0.0, 0.0, 0.0, 0.0);
        for class in 0..self.counts.len() {
            let (label, predicted) = (self.labelled(class) as f64, self.predicted(class) as f64);
            right += self.counts[class][class] as f64;
            both += label * predicted;
            labels += label * label;
            predictions += predicted * predicted;
        }
        let varies = (total * total - labels) * (total * total - predictions);
        if varies > 0.0 { (right * total - both) / varies.sqrt() } else { 0.0 }
    }

    fn total(&self) -> u64 {
        self.counts.iter().flatten().sum()
    }

    fn labelled(&self, class: usize) -> u64 {
        self.counts[class].iter().sum()
    }

    fn predicted(&self, class: usize) -> u64 {
        self.counts.iter().map(|row| row[class]).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::close;

    /// Figures of scikit-learn 1.9.1.
    #[test]
    fn scores_are_those_of_scikit_learn() {
        let labels = [0, 1, 2, 2, 1, 0, 2, 1, 3, 0];
        let predicted = [0, 2, 2, 1, 1, 0, 2, 1, 0, 3];
        let confusion = Confusion::of(labels.into_iter().zip(predicted), 5);
        close(confusion.accuracy(), 0.6);
        close(confusion.macro_f1(), 0.5);
        close(confusion.matthews(), 0.444_444_444_444_444_4);

        let labels = [1, 1, 0, 0, 1, 0, 1, 1];
        let predicted = [1, 0, 0, 1, 1, 0, 1, 1];
        let confusion = Confusion::of(labels.into_iter().zip(predicted), 2);
        close(confusion.f1(1), 0.8);
        close(confusion.matthews(), 0.466_666_666_666_666_7);
    }

    #[test]
    fn what_does_not_vary_has_no_correlation() {
        let confusion = Confusion::of([(0, 1), (1, 1)], 2);
        close(confusion.matthews(), 0.0);
        close(confusion.f1(0), 0.0);
        assert!(Confusion::of([], 2).accuracy().is_nan());
    }
}
