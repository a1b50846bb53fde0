//! Human-readable numbers: a fixed number of significant digits, groups of three, prefixes.

use super::table::{Cell, Format};

/// Shown for a missing or non-finite value.
pub const DASH: &str = "–";

/// With `digits` significant digits; very large and very small values in scientific notation.
pub fn significant(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return DASH.into();
    }
    if value == 0.0 {
        return "0".into();
    }
    let digits = digits.clamp(1, 17);
    // Through the exponent form, so that 9.9996 rounds up to the next decade.
    let scientific = format!("{value:.*e}", digits - 1);
    let exponent: i32 = scientific.rsplit_once('e').and_then(|(_, power)| power.parse().ok()).unwrap_or(0);
    if !(-4..9).contains(&exponent) {
        return scientific;
    }
    fixed(value, (digits as i32 - 1 - exponent).max(0) as usize)
}

/// With `digits` digits after the point, in groups of three.
pub fn fixed(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return DASH.into();
    }
    let text = format!("{value:.*}", digits.min(17));
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let (sign, whole) = if let Some(whole) = whole.strip_prefix('-') { ("-", whole) } else { ("", whole) };
    // A value that rounds to zero has no sign.
    let sign = if text.bytes().any(|byte| byte.is_ascii_digit() && byte != b'0') { sign } else { "" };
    format!("{sign}{}{rest}", grouped(whole))
}

/// An integer in groups of three.
pub fn whole(value: u128) -> String {
    grouped(&value.to_string())
}

fn grouped(digits: &str) -> String {
    if digits.len() < 4 {
        return digits.to_owned();
    }
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three significant digits and a prefix: `12.3 M` (`step` 1000), `1.50 Mi` (`step` 1024).
fn prefixed(value: f64, step: f64, prefixes: &[&str]) -> String {
    if !value.is_finite() {
        return DASH.into();
    }
    let mut scaled = value;
    let mut prefix = "";
    for larger in prefixes {
        // Otherwise 999.6 would print as 1000.
        if scaled.abs() < step - 0.5 {
            break;
        }
        scaled /= step;
        prefix = larger;
    }
    let number = if prefix.is_empty() && scaled.fract() == 0.0 { fixed(scaled, 0) } else { significant(scaled, 3) };
    if prefix.is_empty() { number } else { format!("{number} {prefix}") }
}

/// A count with an SI prefix: `950`, `12.3 k`, `4.56 G`.
pub fn count(value: f64) -> String {
    prefixed(value, 1e3, &["k", "M", "G", "T", "P", "E"])
}

/// Bytes with an IEC prefix: `512 B`, `1.50 MiB`.
pub fn bytes(value: f64) -> String {
    let text = prefixed(value, 1024.0, &["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]);
    match text.chars().last() {
        Some('i') => text + "B",
        Some(last) if last.is_ascii_digit() => text + " B",
        _ => text,
    }
}

impl Format {
    /// The number without its deviation.
    fn number(self, value: f64) -> String {
        if !value.is_finite() {
            return DASH.into();
        }
        match self {
            Self::Plain if value.fract() == 0.0 && value.abs() < 1e15 => fixed(value, 0),
            Self::Plain => significant(value, 4),
            Self::Fixed(digits) => fixed(value, digits),
            Self::Significant(digits) => significant(value, digits),
            Self::Percent(digits) => format!("{} %", fixed(100.0 * value, digits)),
            Self::Count => count(value),
            Self::Bytes => bytes(value),
            Self::Ratio => format!("{}×", significant(value, 3)),
        }
    }

    /// The value of a cell as this format writes it, without its deviation.
    pub(super) fn mean(self, cell: &Cell) -> String {
        match cell {
            Cell::Estimate { mean, .. } => self.number(*mean),
            Cell::Marked { cell, .. } => self.mean(cell),
            _ => self.cell(cell),
        }
    }

    /// A cell as this format writes it.
    pub fn cell(self, cell: &Cell) -> String {
        match cell {
            Cell::Empty => DASH.into(),
            Cell::Text(text) => text.clone(),
            Cell::Whole(value) if self == Self::Plain => whole(*value),
            Cell::Whole(value) => self.number(*value as f64),
            Cell::Number(value) => self.number(*value),
            Cell::Estimate { mean, deviation } => match deviation.filter(|_| mean.is_finite()) {
                None => self.number(*mean),
                Some(deviation) => self.with_deviation(*mean, deviation),
            },
            Cell::Marked { cell, mark, .. } if mark.is_empty() => self.cell(cell),
            Cell::Marked { cell, mark, .. } => format!("{} {mark}", self.cell(cell)),
        }
    }

    /// `mean ± deviation`, both to the same decimal place.
    fn with_deviation(self, mean: f64, deviation: f64) -> String {
        if let Self::Percent(digits) = self {
            return format!("{} ± {} %", fixed(100.0 * mean, digits), fixed(100.0 * deviation, digits));
        }
        let number = self.number(mean);
        // The place of the last printed digit of the mean; prefixes and powers of ten print the deviation on their own.
        let plain = number.bytes().all(|byte| byte.is_ascii_digit() || b"-.,".contains(&byte));
        if !plain {
            return format!("{number} ± {}", self.number(deviation));
        }
        let digits = number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        format!("{number} ± {}", fixed(deviation, digits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits() {
        for (value, digits, text) in [
            (0.0, 3, "0"),
            (9.9996, 3, "10.0"),
            (0.012_345, 3, "0.0123"),
            (123_456.0, 3, "123,456"),
            (-0.5, 2, "-0.50"),
            (1.5e-7, 3, "1.50e-7"),
            (2.5e12, 2, "2.5e12"),
            (f64::NAN, 3, DASH),
            (f64::INFINITY, 3, DASH),
        ] {
            assert_eq!(significant(value, digits), text, "{value}");
        }
        assert_eq!(fixed(-0.001, 2), "0.00");
        assert_eq!(fixed(-12_345.678, 1), "-12,345.7");
        assert_eq!(whole(999), "999");
        assert_eq!(whole(1_000), "1,000");
        assert_eq!(whole(u128::MAX).len(), 39 + 12);
    }

    #[test]
    fn prefixes() {
        assert_eq!(count(0.0), "0");
        assert_eq!(count(999.0), "999");
        assert_eq!(count(999.7), "1.00 k");
        assert_eq!(count(12_345.0), "12.3 k");
        assert_eq!(count(-4.56e9), "-4.56 G");
        assert_eq!(bytes(512.0), "512 B");
        assert_eq!(bytes(1536.0), "1.50 KiB");
        assert_eq!(bytes(1023.0 * 1024.0), "1,023 KiB");
        assert_eq!(bytes(f64::NAN), DASH);
        assert_eq!(bytes(3.0 * 1024f64.powi(3)), "3.00 GiB");
    }

    #[test]
    fn deviations() {
        let estimate = |mean, deviation| Cell::Estimate { mean, deviation: Some(deviation) };
        assert_eq!(Format::Percent(1).cell(&estimate(0.4567, 0.0123)), "45.7 ± 1.2 %");
        assert_eq!(Format::Significant(3).cell(&estimate(12.345, 0.678)), "12.3 ± 0.7");
        assert_eq!(Format::Bytes.cell(&estimate(2048.0, 1024.0)), "2.00 KiB ± 1.00 KiB");
        assert_eq!(Format::Fixed(2).cell(&Cell::Estimate { mean: 1.0, deviation: None }), "1.00");
        assert_eq!(Format::Fixed(2).cell(&estimate(f64::NAN, 1.0)), DASH);
        assert_eq!(Cell::estimate(&[1.0, 3.0, f64::NAN]), estimate(2.0, 2f64.sqrt()));
        assert_eq!(Cell::estimate(&[f64::INFINITY]), Cell::Empty);
    }
}
