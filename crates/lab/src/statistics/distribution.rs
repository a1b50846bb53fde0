//! Distribution functions from which intervals are made.

/// Logarithm of the gamma function, by Stirling's series after a shift to at least 10.
fn ln_gamma(mut x: f64) -> f64 {
    let mut product = 1.0;
    while x < 10.0 {
        product *= x;
        x += 1.0;
    }
    let inverse = x.recip();
    let square = inverse * inverse;
    let series = inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0)));
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - product.ln()
}

/// The regularised incomplete beta function `I_x(a, b)`, by its continued fraction (Lentz's algorithm).
pub fn beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    // The fraction converges fast on this side of the mean only.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - beta(b, a, 1.0 - x);
    }
    let front = (a * x.ln() + b * (-x).ln_1p() + ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b)).exp() / a;
    let away = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let (mut c, mut d) = (1.0, away(1.0 - (a + b) * x / (a + 1.0)).recip());
    let mut fraction = d;
    for step in 1..10_000 {
        let m = f64::from(step);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut last = 1.0;
        for term in [even, odd] {
            d = away(1.0 + term * d).recip();
            c = away(1.0 + term / c);
            last = c * d;
            fraction *= last;
        }
        if (last - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front * fraction
}

/// The `x` at which `I_x(a, b)` is `share`, by bisection.
pub fn beta_quantile(a: f64, b: f64, share: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if beta(a, b, middle) < share { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// Quantile of Student's t, for shares from 0.5.
pub fn student(share: f64, degrees: f64) -> f64 {
    let x = beta_quantile(degrees / 2.0, 0.5, 2.0 * (1.0 - share));
    (degrees * (1.0 - x) / x).sqrt()
}

/// The noncentrality at which a t statistic exceeds `quantile` with probability `power`: the effect, in standard errors, that a
/// test would see so often. With few degrees of freedom it is well above the sum of the two quantiles.
pub fn noncentrality(quantile: f64, degrees: f64, power: f64) -> f64 {
    // The error is told as well as it will be.
    if degrees > 1000.0 {
        return quantile + student(power, degrees);
    }
    let (mut low, mut high) = (0.0, 4.0 * quantile + 4.0);
    for _ in 0..40 {
        let middle = 0.5 * (low + high);
        if exceeded(quantile, degrees, middle) < power { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// Probability that `(z + noncentrality) / (u / sqrt(degrees))` exceeds `quantile`, for a normal `z` and `u` by the chi
/// distribution: the integral of `P(z > quantile u / sqrt(degrees) - noncentrality)` over `u`, by Simpson's rule.
fn exceeded(quantile: f64, degrees: f64, noncentrality: f64) -> f64 {
    const STEPS: usize = 400;
    let (least, most) = ((degrees.sqrt() - 8.0).max(0.0), degrees.sqrt() + 8.0);
    let step = (most - least) / STEPS as f64;
    let constant = (1.0 - degrees / 2.0) * std::f64::consts::LN_2 - ln_gamma(degrees / 2.0);
    let at = |place: usize| {
        let u = least + place as f64 * step;
        let density = ((degrees - 1.0) * u.ln() - 0.5 * u * u + constant).exp();
        // At 0 with one degree of freedom: 0 ln 0.
        let density = if density.is_nan() { constant.exp() } else { density };
        density * normal_above(quantile * u / degrees.sqrt() - noncentrality)
    };
    let weight = |place: usize| match place {
        0 | STEPS => 1.0,
        _ if place % 2 == 1 => 4.0,
        _ => 2.0,
    };
    (0..=STEPS).map(|place| weight(place) * at(place)).sum::<f64>() * step / 3.0
}

/// Probability that a normal value exceeds `x`, as that of Student's t with a million degrees of freedom.
fn normal_above(x: f64) -> f64 {
    let tail = 0.5 * beta(5e5, 0.5, 1e6 / (1e6 + x * x));
    if x < 0.0 { 1.0 - tail } else { tail }
}

/// Probability of at most `most` heads among `count` throws of a fair coin.
pub fn heads_at_most(most: usize, count: usize) -> f64 {
    if most >= count { 1.0 } else { beta((count - most) as f64, most as f64 + 1.0, 0.5) }
}

/// Interval of a probability after `hits` of `count` trials (Clopper and Pearson 1934).
pub fn probability(hits: usize, count: usize, confidence: f64) -> [f64; 2] {
    let (hit, missed, tail) = (hits as f64, (count - hits) as f64, (1.0 - confidence) / 2.0);
    let low = if hits == 0 { 0.0 } else { beta_quantile(hit, missed + 1.0, tail) };
    let high = if hits == count { 1.0 } else { beta_quantile(hit + 1.0, missed, 1.0 - tail) };
    [low, high]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(seen: f64, expected: f64, relative: f64) {
        assert!((seen - expected).abs() <= relative * expected.abs(), "{seen}, expected {expected}");
    }

    /// Expected values: SciPy 1.17.1 (`gammaln`, `betainc`, `betaincinv`, `t.ppf`, `binom.cdf`, `binomtest`).
    #[test]
    fn functions_agree_with_an_independent_library() {
        for (x, expected) in [(0.5, 0.572_364_942_924_7), (3.7, 1.428_072_33), (100.25, 360.284_559_64)] {
            near(ln_gamma(x), expected, 1e-8);
        }
        near(beta(2.5, 0.5, 0.3), 0.018_927_124_071_945_658, 1e-12);
        near(beta(20.0, 31.0, 0.45), 0.802_632_061_853_508_4, 1e-12);
        near(beta(25_000.0, 24_800.0, 0.501), 0.326_386_026_512_899_6, 1e-9);
        near(beta_quantile(11.0, 30.0, 0.025), 0.146_008_991_963_865_7, 1e-10);
        near(beta_quantile(2.0, 0.5, 0.05), 0.341_627_846_135_651_1, 1e-10);
        let quantiles = [
            (0.975, 1.0, 12.706_204_736_174_694),
            (0.975, 4.0, 2.776_445_105_197_793),
            (0.975, 20_000.0, 1.960_082_605_158_134_8),
            (0.8, 2.0, 1.060_660_171_779_821_4),
            (0.99375, 2.0, 8.860_200_034_654_316),
            (0.99375, 30.0, 2.657_355_255_406_109),
        ];
        quantiles.into_iter().for_each(|(share, degrees, expected)| near(student(share, degrees), expected, 1e-8));
        near(1.0 - 2.0 * heads_at_most(3, 15), 0.964_843_75, 1e-12);
        near(1.0 - 2.0 * heads_at_most(13, 40), 0.961_522_691_715_799_7, 1e-9);
        let [low, high] = probability(30, 42, 0.95);
        near(low, 0.554_161_196_692_031_1, 1e-9);
        near(high, 0.842_808_533_234_261_5, 1e-9);
        assert_eq!((probability(0, 5, 0.95)[0], probability(5, 5, 0.95)[1]), (0.0, 1.0));
    }

    /// Expected values: SciPy 1.17.1, the root of `nct.sf(quantile, degrees, x) = 0.8`.
    #[test]
    fn a_test_of_few_values_needs_a_large_effect() {
        for (share, degrees, expected) in [
            (0.975, 1.0, 16.334_008_869_920_947),
            (0.975, 2.0, 5.653_489_266_405_569),
            (0.991_666_666_666_666_7, 2.0, 9.816_356_491_598_624),
            (0.995, 15.0, 3.850_819_303_182_593),
            (0.975, 400.0, 2.808_333_915_625_617),
        ] {
            near(noncentrality(student(share, degrees), degrees, 0.8), expected, 1e-4);
        }
        near(noncentrality(1.96, 1e6, 0.8), 1.96 + 0.841_621, 1e-5);
    }
}
