//! Charts as data: values, units, number of runs. [`Chart::to_svg`] draws them.

use super::Sample;

/// How values map to distances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scale {
    /// Equal steps.
    #[default]
    Linear,
    /// Logarithmic, base 10; values that are not positive are left out.
    Log,
    /// Logarithmic with ticks at powers of two: sequence lengths, widths, heads.
    Log2,
}

/// One axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// The measured quantity.
    pub label: String,
    /// Unit, shown in parentheses; empty for none. `%` multiplies ticks by 100; `B` gives IEC prefixes.
    pub unit: String,
    /// How values map to distances.
    pub scale: Scale,
    /// Ends; taken from the data where `None`.
    pub range: Option<(f64, f64)>,
    /// Whether it counts: no tick of a linear scale stands between two whole numbers.
    pub whole: bool,
}

impl Axis {
    /// A linear axis.
    pub fn new(label: impl Into<String>, unit: impl Into<String>) -> Self {
        Self { label: label.into(), unit: unit.into(), ..Self::default() }
    }

    /// With this scale.
    #[must_use]
    pub fn scale(mut self, scale: Scale) -> Self {
        self.scale = scale;
        self
    }

    /// Of whole numbers.
    #[must_use]
    pub fn whole(mut self) -> Self {
        self.whole = true;
        self
    }

    /// Between these ends.
    #[must_use]
    pub fn range(mut self, low: f64, high: f64) -> Self {
        self.range = Some((low, high));
        self
    }
}

/// One value, with its band if there is one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Across.
    pub x: f64,
    /// Up.
    pub y: f64,
    /// How far the band extends below the value; 0 for none.
    pub below: f64,
    /// How far it extends above.
    pub above: f64,
}

impl Point {
    /// A value without a band.
    pub fn new(x: f64, y: f64) -> Self {
        Self::deviating(x, y, 0.0)
    }

    /// A value with a symmetric deviation.
    pub fn deviating(x: f64, y: f64, deviation: f64) -> Self {
        Self { x, y, below: deviation, above: deviation }
    }

    /// A value in an interval from `low` to `high`.
    pub fn between(x: f64, y: f64, low: f64, high: f64) -> Self {
        Self { x, y, below: y - low, above: high - y }
    }
}

/// One line: points in the order in which they are joined. A non-finite value breaks the line.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name, written at the end of the line or in the legend.
    pub name: String,
    /// Its values.
    pub points: Vec<Point>,
    /// Index of its colour, marker and dash; give one mechanism the same number in every chart.
    pub style: usize,
}

impl Series {
    /// A series without deviations.
    pub fn new(name: impl Into<String>, style: usize, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let points = points.into_iter().map(|(x, y)| Point::new(x, y)).collect();
        Self { name: name.into(), points, style }
    }

    /// Mean and sample deviation over runs at each step that any run has; all runs are `(x, y)` lists.
    pub fn over_runs(name: impl Into<String>, style: usize, runs: &[Vec<(f64, f64)>]) -> Self {
        let mut steps: Vec<f64> = runs.iter().flatten().map(|point| point.0).filter(|x| x.is_finite()).collect();
        steps.sort_by(f64::total_cmp);
        steps.dedup();
        let mean_at = |x: f64| {
            let here = runs.iter().flatten().filter(|point| point.0 == x).map(|point| point.1);
            let here: Vec<f64> = here.filter(|y| y.is_finite()).collect();
            let sample = Sample::of(&here);
            Point::deviating(x, sample.mean, sample.deviation().unwrap_or(0.0))
        };
        Self { name: name.into(), points: steps.into_iter().map(mean_at).collect(), style }
    }
}

/// One named value: a bar, or a labelled point of a scatter chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// Name, written next to it.
    pub name: String,
    /// Across; not used by bars.
    pub x: f64,
    /// The value: the length of a bar, or the height of a point.
    pub y: f64,
    /// Half the length of the error bar; 0 for none.
    pub deviation: f64,
    /// Index of its colour and marker.
    pub style: usize,
}

/// The data.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Data {
    /// Lines, with bands where points have deviations.
    Lines(Vec<Series>),
    /// Horizontal bars, one per name, with error bars; `y` is the axis of the values.
    Bars(Vec<Mark>),
    /// Dots on one line per name, with error bars: for values where zero has no meaning.
    Dots(Vec<Mark>),
    /// Labelled points.
    Scatter(Vec<Mark>),
}

/// A chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Title.
    pub title: String,
    /// Second line: setting and number of runs ("mean of 3 seeds, band = deviation").
    pub subtitle: String,
    /// Horizontal axis; not drawn for bars and dots.
    pub x: Axis,
    /// Vertical axis; horizontal for bars and dots.
    pub y: Axis,
    /// The data.
    pub data: Data,
    /// A dashed reference line at this value of `y`, with its name: chance level, the majority class, the baseline.
    pub rule: Option<(f64, String)>,
}

impl Chart {
    /// A chart with linear axes without labels.
    pub fn new(title: impl Into<String>, subtitle: impl Into<String>, data: Data) -> Self {
        let (x, y) = (Axis::default(), Axis::default());
        Self { title: title.into(), subtitle: subtitle.into(), x, y, data, rule: None }
    }

    /// With these axes.
    #[must_use]
    pub fn axes(mut self, x: Axis, y: Axis) -> Self {
        self.x = x;
        self.y = y;
        self
    }

    /// With a reference line.
    #[must_use]
    pub fn rule(mut self, value: f64, name: impl Into<String>) -> Self {
        self.rule = Some((value, name.into()));
        self
    }

    /// The chart as a standalone file, on white.
    pub fn to_svg(&self) -> String {
        super::draw::document(self)
    }

    /// The chart for a page with the style sheet (see [`super::html`]): colours follow the page.
    pub fn to_inline_svg(&self) -> String {
        super::draw::inline(self)
    }
}
