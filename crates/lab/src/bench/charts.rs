//! Time and memory as lines over the swept size.

use regard_report::{Axis, Block, Chart, Data, Point, Scale, Series};

use super::{Benchmark, Measurement, Pass, sizes::Dimension};

/// One line: a mechanism, and the sizes that are not on the axis.
struct Line<'a> {
    name: String,
    style: usize,
    measurements: Vec<&'a Measurement>,
}

impl Benchmark {
    /// Time of every pass, with a band from p10 to p90.
    pub(super) fn time_charts(&self) -> Vec<Block> {
        let chart = |&pass: &Pass| {
            let title = match pass {
                Pass::Forward => "Time of the forward pass",
                Pass::Both => "Time of forward and backward pass",
                Pass::Step => "Time of a training step",
                Pass::Token => "Time of a decoded token",
            };
            self.chart(&format!("time-{}", pass.name()), title, Axis::new("time", "ms"), |x, m| {
                let time = m.time(pass).filter(|_| !m.is_wrong())?;
                Some(Point::between(x, time.median, time.p10, time.p90))
            })
        };
        self.level().passes().iter().map(chart).collect()
    }

    /// Bytes of every pass.
    pub(super) fn memory_charts(&self) -> Vec<Block> {
        let chart = |&pass: &Pass| {
            let (title, axis) = match pass {
                Pass::Forward => ("Memory of the forward pass", "peak memory"),
                Pass::Both => ("Memory of forward and backward pass", "peak memory"),
                Pass::Step => ("Memory of a training step", "peak memory"),
                Pass::Token => ("State of the decoder", "memory"),
            };
            self.chart(&format!("memory-{}", pass.name()), title, Axis::new(axis, "B"), |x, m| {
                Some(Point::new(x, m.bytes(pass)? as f64))
            })
        };
        self.level().passes().iter().map(chart).collect()
    }

    fn chart(&self, name: &str, title: &str, y: Axis, point: impl Fn(f64, &Measurement) -> Option<Point>) -> Block {
        let (across, rest) = self.axis();
        let of = |line: Line| {
            let points = line.measurements.iter().filter_map(|m| point(across.of(m.at) as f64, m)).collect();
            Series { name: line.name, points, style: line.style }
        };
        let lines = Data::Lines(self.lines(across, &rest).into_iter().map(of).collect());
        let title =
            if across == Dimension::Length { title.to_owned() } else { format!("{title} over {}", across.title()) };
        let chart = Chart::new(title, self.setting.as_str(), lines)
            .axes(Axis::new(across.title(), "").scale(Scale::Log2), y.scale(Scale::Log));
        Block::Chart { name: name.into(), chart }
    }

    /// The size on the axis, which is the first that varies, and the other varying ones.
    fn axis(&self) -> (Dimension, Vec<Dimension>) {
        let mut varied = self.varied();
        let across = if varied.is_empty() { Dimension::Length } else { varied.remove(0) };
        (across, varied)
    }

    fn lines(&self, across: Dimension, rest: &[Dimension]) -> Vec<Line<'_>> {
        let mut lines: Vec<Line> = Vec::new();
        for label in &self.labels {
            let mut places = Vec::new();
            for m in self.of(label) {
                let place = across.others(m.at);
                let at = places.iter().position(|other| *other == place).unwrap_or_else(|| {
                    places.push(place);
                    let words = Dimension::words(rest, m.at);
                    let name = if words.is_empty() { label.clone() } else { format!("{label}, {words}") };
                    lines.push(Line { name, style: lines.len(), measurements: Vec::new() });
                    places.len() - 1
                });
                let from = lines.len() - places.len();
                lines[from + at].measurements.push(m);
            }
        }
        for line in &mut lines {
            line.measurements.sort_by_key(|m| across.of(m.at));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{benchmark, measurement, wrong};
    use super::*;

    #[test]
    fn the_first_size_that_varies_is_the_axis_and_the_others_are_in_the_names() {
        let mut all = Vec::new();
        for (batch, threads) in [(4, 1), (1, 1), (4, 2), (1, 2)] {
            let mut m = measurement("mgk", 64, 1.0);
            (m.at.batch, m.at.threads) = (batch, threads);
            all.push(m);
        }
        let benchmark = benchmark(all);
        let (across, rest) = benchmark.axis();
        assert_eq!((across, rest.as_slice()), (Dimension::Batch, &[Dimension::Threads][..]));
        let lines = benchmark.lines(across, &rest);
        let names: Vec<_> = lines.iter().map(|line| (line.name.as_str(), line.style)).collect();
        assert_eq!(names, [("mgk, threads 1", 0), ("mgk, threads 2", 1)]);
        let batches: Vec<_> = lines[1].measurements.iter().map(|m| m.at.batch).collect();
        assert_eq!(batches, [1, 4]);
        let Block::Chart { chart, .. } = &benchmark.time_charts()[0] else { panic!("a chart") };
        assert!(chart.title.ends_with("over batch") && chart.to_svg().contains("threads 2"));
    }

    #[test]
    fn times_that_mean_nothing_are_not_drawn() {
        let benchmark = benchmark(vec![measurement("a", 64, 1.0), wrong(measurement("b", 64, 1.0))]);
        let Block::Chart { chart, .. } = &benchmark.time_charts()[0] else { panic!("a chart") };
        let Data::Lines(lines) = &chart.data else { panic!("lines") };
        assert_eq!((lines[0].points.len(), lines[1].points.len()), (1, 0));
    }
}
