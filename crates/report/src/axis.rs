//! From values to positions on an axis, and tick placement.

use super::chart::{Axis, Scale};
use super::number;

/// Values beyond this are not drawn: their differences must stay finite.
const LARGEST: f64 = 1e150;

/// An axis fitted to its data.
#[derive(Clone, Debug)]
pub(super) struct Ruler {
    low: f64,
    high: f64,
    scale: Scale,
    /// Values and labels of the ticks.
    pub ticks: Vec<(f64, String)>,
}

/// Whether a value can be drawn on an axis of this scale.
pub(super) fn drawable(value: f64, scale: Scale) -> bool {
    value.is_finite() && value.abs() < LARGEST && (scale == Scale::Linear || value > 1.0 / LARGEST)
}

impl Ruler {
    /// Fits an axis to values with at most `most` ticks. `zero` includes zero on a linear axis; `padded` adds room
    /// beyond the values. `None` if no value can be drawn.
    pub fn fit(axis: &Axis, values: impl Iterator<Item = f64>, zero: bool, padded: bool, most: usize) -> Option<Self> {
        let scale = axis.scale;
        let mut ends: Option<(f64, f64)> = None;
        for value in values.filter(|value| drawable(*value, scale)) {
            ends = Some(ends.map_or((value, value), |(low, high)| (low.min(value), high.max(value))));
        }
        let given = axis.range.filter(|(low, high)| drawable(*low, scale) && drawable(*high, scale) && low < high);
        let (mut low, mut high) = match (given, ends) {
            // A range without data is not a chart.
            (_, None) => return None,
            (Some(given), _) => given,
            (None, Some(ends)) => ends,
        };
        if given.is_none() {
            if scale == Scale::Linear {
                // Widely spread data include zero anyway.
                if zero || (low > 0.0 && low < 0.3 * high && padded) {
                    (low, high) = (low.min(0.0), high.max(0.0));
                }
                if high - low <= 1e-12 * high.abs().max(low.abs()) {
                    let room = if low == 0.0 { 1.0 } else { 0.1 * low.abs() };
                    (low, high) = (low - room, high + room);
                }
                if padded {
                    // Up to the next tick, so that the data lie between two grid lines.
                    let step = linear_step(low, high, most.max(2), axis);
                    let outward = ((low / step + 1e-9).floor() * step, (high / step - 1e-9).ceil() * step);
                    (low, high) = (low.min(outward.0), high.max(outward.1));
                }
            } else {
                let room = if high / low < 1.0 + 1e-9 {
                    2.0
                } else if padded {
                    (high / low).powf(0.05)
                } else {
                    1.0
                };
                (low, high) = (low / room, high * room);
            }
        }
        let most = most.max(2);
        let ticks = match scale {
            Scale::Linear => linear_ticks(low, high, most, axis),
            Scale::Log if axis.unit == "B" => power_of_two_ticks(low, high, most, axis),
            Scale::Log => decade_ticks(low, high, most, axis),
            Scale::Log2 => power_of_two_ticks(low, high, most, axis),
        };
        Some(Self { low, high, scale, ticks })
    }

    /// Position of a value: 0 at the low end, 1 at the high end, outside this range for values outside. `None` if it
    /// cannot be drawn.
    pub fn place(&self, value: f64) -> Option<f64> {
        if !drawable(value, self.scale) {
            return None;
        }
        Some(match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log | Scale::Log2 => (value / self.low).ln() / (self.high / self.low).ln(),
        })
    }

    /// Where bars start: at zero, or at the low end of an axis without zero.
    pub fn base(&self) -> f64 {
        self.place(0.0).map_or(0.0, |place| place.clamp(0.0, 1.0))
    }
}

/// Names of 1024 to the powers from 0.
const BYTES: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// The power of 1024 in which bytes up to these ends are written.
fn byte_power(low: f64, high: f64) -> usize {
    (high.abs().max(low.abs()).log2() / 10.0).floor().clamp(0.0, 6.0) as usize
}

/// The step, 1, 2 or 5 times a power of ten (of 1024 times that for bytes), that gives at most `most` ticks.
fn linear_step(low: f64, high: f64, most: usize, axis: &Axis) -> f64 {
    let prefix = if axis.unit == "B" { 1024f64.powi(byte_power(low, high) as i32) } else { 1.0 };
    let rough = (high - low) / most as f64 / prefix;
    let decade = 10f64.powf(rough.log10().floor());
    let enough = |factor: &f64| factor * decade >= rough * (1.0 - 1e-9);
    let step = [1.0, 2.0, 5.0].into_iter().find(enough).unwrap_or(10.0) * decade * prefix;
    if axis.whole { step.max(1.0) } else { step }
}

/// Multiples of the step of [`linear_step`] within the ends.
fn linear_ticks(low: f64, high: f64, most: usize, axis: &Axis) -> Vec<(f64, String)> {
    let step = linear_step(low, high, most, axis);
    let first = (low / step - 1e-6).ceil();
    let count = ((high / step + 1e-6).floor() - first).clamp(0.0, 2.0 * most as f64) as usize;
    let values: Vec<f64> = (0..=count).map(|index| (first + index as f64) * step + 0.0).collect();
    let text = |value: &f64| match axis.unit.as_str() {
        "B" => byte_text(*value, step, byte_power(low, high)),
        "%" => tick_text(value * 100.0, step * 100.0),
        _ => tick_text(*value, step),
    };
    let texts: Vec<String> = values.iter().map(text).collect();
    values.into_iter().zip(texts).collect()
}

/// Decimals that tell multiples of a step apart.
fn decimals(step: f64) -> usize {
    (-(step * (1.0 + 1e-9)).log10().floor()).clamp(0.0, 9.0) as usize
}

/// A tick label of a linear axis of bytes, all in the same power of 1024.
fn byte_text(value: f64, step: f64, power: usize) -> String {
    let prefix = 1024f64.powi(power as i32);
    if value == 0.0 {
        "0".into()
    } else {
        format!("{} {}", number::fixed(value / prefix, decimals(step / prefix)), BYTES[power])
    }
}

/// A tick label of a linear axis, with the decimals that its step needs.
fn tick_text(value: f64, step: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let magnitude = value.abs();
    if !(1e-6..1e16).contains(&step) {
        return number::significant(value, 3);
    }
    let (scaled, prefix, size) = match magnitude {
        m if m >= 1e12 => (value / 1e12, " T", 1e12),
        m if m >= 1e9 => (value / 1e9, " G", 1e9),
        m if m >= 1e6 => (value / 1e6, " M", 1e6),
        m if m >= 1e4 => (value / 1e3, " k", 1e3),
        _ => (value, "", 1.0),
    };
    let text = number::fixed(scaled, decimals(step / size));
    // A small step at a large value: 1.50 M next to 1.55 M, but 2 M alone.
    let text = if prefix.is_empty() || !text.contains('.') { text } else { trimmed(&text) };
    format!("{text}{prefix}")
}

fn trimmed(text: &str) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A tick label of a logarithmic axis.
fn factor_text(value: f64, unit: &str) -> String {
    match unit {
        "%" => trimmed_number(100.0 * value),
        "B" => {
            let text = number::bytes(value);
            let (number, unit) = text.split_once(' ').unwrap_or((&text, ""));
            let number = if number.contains('.') { trimmed(number) } else { number.to_owned() };
            format!("{number} {unit}")
        }
        _ => trimmed_number(value),
    }
}

fn trimmed_number(value: f64) -> String {
    if (1e4..1e18).contains(&value) {
        let text = number::count(value);
        return match text.split_once(' ') {
            Some((number, prefix)) if number.contains('.') => format!("{} {prefix}", trimmed(number)),
            _ => text,
        };
    }
    let text = number::significant(value, 3);
    let (digits, power) = text.split_at(text.find('e').unwrap_or(text.len()));
    if digits.contains('.') { trimmed(digits) + power } else { text }
}

/// Powers of ten, with 2 and 5 or 3 in between where there is room; equal steps for a short range.
fn decade_ticks(low: f64, high: f64, most: usize, axis: &Axis) -> Vec<(f64, String)> {
    let within = |value: &f64| (low * (1.0 - 1e-9)..=high * (1.0 + 1e-9)).contains(value);
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let multiples = |factors: &[f64]| -> Vec<f64> {
        let all = powers.clone().flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)));
        all.filter(within).collect()
    };
    let fitting = [&[1.0, 2.0, 5.0][..], &[1.0, 3.0]].map(multiples).into_iter().find(|values| values.len() <= most);
    let values = fitting.unwrap_or_else(|| {
        let stride = ((high / low).log10() / most as f64).ceil().max(1.0) as i32;
        let decades = powers.clone().filter(|power| power % stride == 0);
        decades.map(|power| 10f64.powi(power)).filter(within).collect()
    });
    if values.len() < 3 {
        return linear_ticks(low, high, most, axis);
    }
    values.iter().map(|value| (*value, factor_text(*value, &axis.unit))).collect()
}

/// Powers of two, every second, third ... if there are many; equal steps for a short range.
fn power_of_two_ticks(low: f64, high: f64, most: usize, axis: &Axis) -> Vec<(f64, String)> {
    let first = (low.log2() - 1e-9).ceil() as i32;
    let last = (high.log2() + 1e-9).floor() as i32;
    if last - first < 1 {
        return linear_ticks(low, high, most, axis);
    }
    let stride = ((last - first) as usize / most + 1) as i32;
    let values = (first..=last).filter(|power| (power - first) % stride == 0).map(|power| 2f64.powi(power));
    let text = |value: f64| {
        // Lengths and widths are shown as written in configurations.
        if axis.unit != "B" && (1.0..1e6).contains(&value) {
            format!("{value}")
        } else {
            factor_text(value, &axis.unit)
        }
    };
    values.map(|value| (value, text(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis, low: f64, high: f64) -> Vec<String> {
        let ruler = Ruler::fit(axis, [low, high].into_iter(), false, false, 6).expect("drawable");
        ruler.ticks.into_iter().map(|tick| tick.1).collect()
    }

    #[test]
    fn ticks_are_round() {
        let linear = |unit: &str| Axis::new("x", unit);
        assert_eq!(texts(&linear(""), 0.0, 1.0), ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(texts(&linear("%"), 0.0, 0.5), ["0", "10", "20", "30", "40", "50"]);
        assert_eq!(texts(&linear(""), 0.0, 30_000.0), ["0", "5,000", "10 k", "15 k", "20 k", "25 k", "30 k"]);
        assert_eq!(texts(&linear("B"), 0.0, 4.0 * 1024.0 * 1024.0).last().map(String::as_str), Some("4 MiB"));
        assert_eq!(texts(&linear("B"), 0.0, 1_048_576.0), ["0", "0.2 MiB", "0.4 MiB", "0.6 MiB", "0.8 MiB", "1.0 MiB"]);
        assert_eq!(texts(&linear(""), 1.0, 4.0), ["1.0", "1.5", "2.0", "2.5", "3.0", "3.5", "4.0"]);
        assert_eq!(texts(&linear("").whole(), 1.0, 4.0), ["1", "2", "3", "4"]);
        assert_eq!(texts(&linear("").scale(Scale::Log), 1.0, 1e4), ["1", "10", "100", "1,000", "10 k"]);
        assert_eq!(texts(&linear("").scale(Scale::Log), 0.24, 97.0), ["0.3", "1", "3", "10", "30"]);
        assert_eq!(texts(&linear("").scale(Scale::Log), 1e-6, 1e-2), ["1e-6", "1e-5", "0.0001", "0.001", "0.01"]);
        assert_eq!(texts(&linear("").scale(Scale::Log2), 128.0, 1024.0), ["128", "256", "512", "1024"]);
        assert_eq!(texts(&linear("").scale(Scale::Log), 0.5, 5.0), ["0.5", "1", "2", "5"]);
    }

    #[test]
    fn extreme_values_give_finite_places() {
        for scale in [Scale::Linear, Scale::Log, Scale::Log2] {
            let axis = Axis::new("", "").scale(scale);
            for values in [
                vec![0.0],
                vec![5.0, 5.0],
                vec![-1e300, 1e149, 3.0],
                vec![f64::NAN, f64::INFINITY, 1e-149],
                vec![1e-9, 1e-8],
                vec![1.0, 1.0 + 1e-15],
                vec![-1e20, -1e20 + 1e5],
            ] {
                let Some(ruler) = Ruler::fit(&axis, values.iter().copied(), false, true, 6) else {
                    assert!(!values.iter().any(|value| drawable(*value, scale)));
                    continue;
                };
                assert!(ruler.ticks.len() <= 14, "{values:?}: {}", ruler.ticks.len());
                for value in values.iter().copied().chain(ruler.ticks.iter().map(|tick| tick.0)) {
                    assert!(ruler.place(value).is_none_or(f64::is_finite), "{scale:?} {values:?} {value}");
                }
            }
            assert!(Ruler::fit(&axis, std::iter::empty(), true, true, 6).is_none());
        }
    }
}
