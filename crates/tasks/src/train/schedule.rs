//! The learning rate as a function of the step.

use std::f64::consts::PI;

use super::{ScheduleConfig, ScheduleKind};

/// First learning rate of one-cycle as a part of the peak: `1 / div_factor` of PyTorch's `OneCycleLR`.
const ONE_CYCLE_START: f64 = 1.0 / 25.0;

impl ScheduleConfig {
    /// Learning rate of update `step` of `0 .. steps`, as a part of the peak.
    ///
    /// Of all kinds but one-cycle, update `warmup - 1` is the first at the peak. Linear and cosine would reach
    /// `final_fraction` at update `steps`, one past the last, so that the last still learns. One-cycle is at its peak
    /// at update `warmup - 1` and at `final_fraction` at the last; PyTorch's default is `final_fraction = 4e-6`.
    pub fn factor(&self, step: usize, steps: usize) -> f64 {
        let (t, warmup, steps) = (step as f64, self.warmup as f64, steps as f64);
        let between = |from: f64, to: f64, part: f64| from + (to - from) * part.clamp(0.0, 1.0);
        if self.kind == ScheduleKind::OneCycle {
            let top = (warmup - 1.0).max(0.0);
            if t < top {
                return between(ONE_CYCLE_START, 1.0, t / top);
            }
            return between(1.0, self.final_fraction, (t - top) / (steps - 1.0 - top).max(1.0));
        }
        if t < warmup {
            return (t + 1.0) / warmup;
        }
        let past = (t - warmup) / (steps - warmup).max(1.0);
        match self.kind {
            ScheduleKind::InverseSqrt => (warmup.max(1.0) / (t + 1.0)).sqrt(),
            ScheduleKind::Linear => between(1.0, self.final_fraction, past),
            ScheduleKind::Cosine => between(self.final_fraction, 1.0, 0.5 * (1.0 + (PI * past.min(1.0)).cos())),
            ScheduleKind::Constant | ScheduleKind::OneCycle => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(kind: ScheduleKind, warmup: usize, final_fraction: f64, steps: usize) -> Vec<f64> {
        let schedule = ScheduleConfig { kind, warmup, final_fraction };
        (0..steps).map(|step| schedule.factor(step, steps)).collect()
    }

    fn assert_near(got: &[f64], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-12), "{got:?}, expected {want:?}");
    }

    #[test]
    fn each_kind_draws_its_curve() {
        assert_near(&curve(ScheduleKind::Constant, 2, 0.0, 4), &[0.5, 1.0, 1.0, 1.0]);
        assert_near(
            &curve(ScheduleKind::InverseSqrt, 4, 0.0, 16)[..9],
            &[
                0.25,
                0.5,
                0.75,
                1.0,
                0.8f64.sqrt(),
                (4.0f64 / 6.0).sqrt(),
                (4.0f64 / 7.0).sqrt(),
                0.5f64.sqrt(),
                2.0 / 3.0,
            ],
        );
        assert_near(&curve(ScheduleKind::Linear, 2, 0.0, 6), &[0.5, 1.0, 1.0, 0.75, 0.5, 0.25]);
        assert_near(&curve(ScheduleKind::Linear, 0, 0.5, 4), &[1.0, 0.875, 0.75, 0.625]);
        let half = 0.5f64.sqrt();
        assert_near(
            &curve(ScheduleKind::Cosine, 0, 0.2, 4),
            &[1.0, 0.2 + 0.4 * (1.0 + half), 0.6, 0.2 + 0.4 * (1.0 - half)],
        );
        // torch.optim.lr_scheduler.OneCycleLR(max_lr=1, total_steps=10, pct_start=0.4, anneal_strategy="linear").
        assert_near(
            &curve(ScheduleKind::OneCycle, 4, 4e-6, 10),
            &[
                0.04,
                0.36,
                0.68,
                1.0,
                1.0 - 0.999_996 / 6.0,
                1.0 - 0.999_996 / 3.0,
                1.0 - 0.999_996 / 2.0,
                1.0 - 0.999_996 / 1.5,
                1.0 - 0.999_996 / 1.2,
                4e-6,
            ],
        );
    }

    #[test]
    fn degenerate_sizes_stay_within_the_peak() {
        for kind in [
            ScheduleKind::Constant,
            ScheduleKind::InverseSqrt,
            ScheduleKind::Linear,
            ScheduleKind::Cosine,
            ScheduleKind::OneCycle,
        ] {
            for (warmup, steps) in [(0, 1), (1, 1), (3, 3), (0, 2), (1, 2)] {
                let values = curve(kind, warmup, 0.0, steps);
                assert!(values.iter().all(|v| (0.0..=1.0).contains(v)), "{kind:?} {warmup} {steps}: {values:?}");
                assert!(values.iter().any(|v| *v > 0.0));
            }
        }
    }
}
