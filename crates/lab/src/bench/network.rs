//! What a network between ranks is worth to attention over them: measured here, and predicted for other numbers of ranks.

use std::sync::Arc;

use regard_cluster::{Alone, Communicator, barrier};
use regard_kernels::AttentionOptions;
use regard_report::{Block, Column, Format, Report, Section, Table};
use regard_sequence::{Network, Step};
use regard_tasks::train::Environment;
use serde_json::json;

use crate::{
    attend::AttendError,
    record::{Record, Shown},
};

/// Longest sequence that one rank measures alone for mechanisms of quadratic and of linear time, from which longer ones are
/// predicted.
const ALONE: [usize; 2] = [8192, 65_536];
/// Ranks of a prediction.
const RANKS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Tag of barriers.
const TURN: u32 = 0x5e30;

/// What to measure.
#[derive(Clone, Debug)]
pub struct NetworkPlan {
    /// The attentions by name.
    pub subjects: Vec<(String, AttentionOptions)>,
    /// Width of their heads.
    pub head_width: usize,
    /// Tokens of a step over the ranks that are there.
    pub tokens: usize,
    /// Tokens of the steps that are predicted.
    pub predicted: usize,
}

/// Measurements and predictions of one job.
#[derive(Clone, Debug)]
pub struct NetworkReport {
    plan: NetworkPlan,
    ranks: usize,
    /// Between rank 0 and each other one.
    networks: Vec<Network>,
    rows: Vec<Row>,
    /// The command line.
    pub command: String,
    /// Machine, version and date.
    pub environment: Environment,
}

/// Seconds forward and backward together.
#[derive(Clone, Debug)]
struct Row {
    label: String,
    bytes: u64,
    one: f64,
    predicted: f64,
    measured: f64,
    /// By [`RANKS`].
    ahead: Vec<f64>,
}

impl NetworkReport {
    /// Measures; all ranks of the job have to call it. The slowest way between rank 0 and another counts in predictions.
    ///
    /// # Errors
    /// A mechanism that is not spread over ranks, fewer tokens than chunks, or a rank that has left.
    pub fn measure(
        plan: NetworkPlan,
        peers: &Arc<dyn Communicator>,
        (command, environment): (String, Environment),
        note: &dyn Fn(&str),
    ) -> Result<Self, AttendError> {
        let ranks = peers.ranks();
        note("network");
        let networks = (1..ranks).map(|other| Network::measure(&**peers, other)).collect::<Result<Vec<_>, _>>()?;
        let latency = networks.iter().map(|network| network.latency).fold(0.0, f64::max);
        let bandwidth = networks.iter().map(|network| network.bandwidth).fold(f64::INFINITY, f64::min);
        let slowest = Network { latency, bandwidth };
        let alone: Arc<dyn Communicator> = Arc::new(Alone);
        let mut rows = Vec::new();
        for (label, options) in &plan.subjects {
            note(label);
            let step = Step::new(options.clone(), plan.head_width);
            // Ranks of one machine share its processors: all compute the whole at the same time, each for itself.
            barrier(&**peers, TURN)?;
            let one = step.measure(plan.tokens, &alone)?;
            let measured = step.measure(plan.tokens, peers)?;
            let share = |seconds: [f64; 2], ranks: usize| seconds.map(|seconds| seconds / ranks as f64);
            let (predicted, bytes) = step.predict(plan.tokens, ranks, share(one, ranks), &slowest)?;
            let (most, power) = if step.is_quadratic() { (ALONE[0], 2) } else { (ALONE[1], 1) };
            let tokens = most.min(plan.predicted);
            let long = if tokens == plan.tokens { one } else { step.measure(tokens, &alone)? };
            let long = long.map(|seconds| seconds * (plan.predicted as f64 / tokens as f64).powi(power));
            let ahead = RANKS.map(|ranks| step.predict(plan.predicted, ranks, share(long, ranks), &slowest));
            let ahead = ahead.into_iter().map(|step| step.map(|(seconds, _)| seconds.iter().sum()));
            rows.push(Row {
                label: label.clone(),
                bytes,
                one: one.iter().sum(),
                predicted: predicted.iter().sum(),
                measured: measured.iter().sum(),
                ahead: ahead.collect::<Result<_, _>>()?,
            });
        }
        barrier(&**peers, TURN)?;
        Ok(Self { plan, ranks, networks, rows, command, environment })
    }

    fn ways(&self) -> Table {
        let columns = vec![
            Column::text("between"),
            Column::number("latency", Format::Significant(3)).unit("us"),
            Column::number("bandwidth", Format::Significant(3)).unit("MB/s"),
        ];
        let mut table = Table::new("Network", columns);
        for (network, other) in self.networks.iter().zip(1..) {
            let name = format!("ranks 0 and {other}");
            table.push(vec![name.into(), (1e6 * network.latency).into(), (network.bandwidth / 1e6).into()]);
        }
        table.note("Half the shortest of 200 round trips; the fastest of 6 messages of 16 MiB.")
    }

    fn steps(&self) -> Table {
        let seconds = |title: &str| Column::number(title, Format::Significant(3)).unit("s");
        let columns = vec![
            Column::text("attention"),
            Column::number("sent", Format::Bytes),
            seconds("one rank"),
            seconds("predicted"),
            seconds("measured"),
        ];
        let title = format!("A step of {} tokens over {} ranks", self.plan.tokens, self.ranks);
        let mut table = Table::new(title, columns);
        for row in &self.rows {
            let label = row.label.as_str().into();
            table.push(vec![label, row.bytes.into(), row.one.into(), row.predicted.into(), row.measured.into()]);
        }
        let heads = self.plan.subjects.first().map_or(0, |(_, options)| options.heads);
        table.note(format!(
            "Forward and backward, best of three; batch 1, {heads} heads of {}, causal. One rank: the whole sequence, all ranks at the \
             same time. Sent: by a rank in the middle.",
            self.plan.head_width
        ))
    }

    fn ahead(&self) -> Table {
        let mut columns = vec![Column::text("attention")];
        columns.extend(RANKS.map(|ranks| Column::number(ranks.to_string(), Format::Significant(3)).unit("s")));
        let title = format!("Predicted: a step of {} tokens by number of ranks", self.plan.predicted);
        let mut table = Table::new(title, columns);
        for row in &self.rows {
            let mut cells = vec![row.label.as_str().into()];
            cells.extend(row.ahead.iter().map(|seconds| (*seconds).into()));
            table.push(cells);
        }
        table.note(format!(
            "From a step of one rank at no more than {} tokens (quadratic time: {}), as fast as it is beside the other ranks here, and \
             the slowest way above between any two.",
            ALONE[1], ALONE[0]
        ))
    }
}

impl Shown for NetworkReport {
    fn record(&self) -> Record<'_> {
        Record { command: &self.command, environment: &self.environment }
    }

    fn report(&self) -> Report {
        Report {
            title: "Attention over ranks".into(),
            summary: format!("{} ranks, {} tokens.", self.ranks, self.plan.tokens),
            facts: self.record().facts(),
            sections: vec![Section {
                title: "Figures".into(),
                blocks: self.tables().into_iter().map(Block::Table).collect(),
            }],
        }
    }

    fn tables(&self) -> Vec<Table> {
        vec![self.ways(), self.steps(), self.ahead()]
    }

    fn to_json(&self) -> serde_json::Value {
        let networks = self
            .networks
            .iter()
            .map(|network| json!({ "latency_seconds": network.latency, "bytes_per_second": network.bandwidth }));
        let steps = self.rows.iter().map(|row| {
            json!({
                "label": row.label, "bytes": row.bytes, "one_rank_seconds": row.one, "predicted_seconds": row.predicted,
                "measured_seconds": row.measured, "ahead_seconds": row.ahead,
            })
        });
        json!({
            "command": self.command,
            "environment": self.environment,
            "ranks": self.ranks,
            "tokens": self.plan.tokens,
            "predicted_tokens": self.plan.predicted,
            "predicted_ranks": RANKS,
            "networks": networks.collect::<Vec<_>>(),
            "steps": steps.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use regard_cluster::Threads;
    use regard_kernels::Mechanism;

    use super::*;

    #[test]
    fn every_rank_measures_and_predicts() {
        let subjects = [Mechanism::Softmax, Mechanism::Linear, Mechanism::Fastformer].map(|mechanism| {
            (mechanism.name().to_owned(), AttentionOptions { mechanism, heads: 2, ..AttentionOptions::default() })
        });
        let plan = NetworkPlan { subjects: subjects.to_vec(), head_width: 8, tokens: 64, predicted: 256 };
        let reports = Threads::run(2, |rank| {
            let origin = (String::from("regard bench --network"), Environment::capture(None));
            NetworkReport::measure(plan.clone(), &rank, origin, &|_| ()).unwrap()
        });
        for report in reports {
            assert_eq!((report.networks.len(), report.rows.len()), (1, 3));
            for row in &report.rows {
                let all = [row.one, row.predicted, row.measured].into_iter().chain(row.ahead.iter().copied());
                assert!(all.into_iter().all(|seconds| seconds > 0.0) && row.bytes > 0, "{row:?}");
            }
            assert!(report.tables().iter().all(|table| !table.to_text().is_empty()));
        }
    }
}
