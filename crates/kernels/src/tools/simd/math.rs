//! Branch-free elementary functions, so that loops over them vectorise.

use super::MultiplyAdd;

/// `e^x` to about 1e-7 relative; 0 below -87.3, infinity above 88.7, NaN stays NaN.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; `e^r` by its Taylor polynomial of degree 6 with the last coefficients
/// balanced over the interval, `2^n` by the exponent bits.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts: the first has 9 trailing zero bits, so n times it is exact for every n in range.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x < -87.3 { -87.3 } else { x };
    let clamped = if clamped > 88.7 { 88.7 } else { clamped };
    let shifted = clamped.multiply_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.multiply_add(-LN2_LOW, n.multiply_add(-LN2_HIGH, clamped));
    let mut p = 1.388_4e-3f32;
    p = p.multiply_add(r, 8.333_7e-3);
    p = p.multiply_add(r, 4.166_664_6e-2);
    p = p.multiply_add(r, 1.666_666_6e-1);
    p = p.multiply_add(r, 0.5);
    p = p.multiply_add(r, 1.0);
    p = p.multiply_add(r, 1.0);
    // n reaches 128 only where the result overflows; two half steps keep the exponent bits in range.
    let bits = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let half = bits >> 1;
    let scale = |e: i32| f32::from_bits((e.wrapping_add(127) as u32) << 23);
    let y = p * scale(half) * scale(bits.wrapping_sub(half));
    let y = if x < -87.3 { 0.0 } else { y };
    if x > 88.7 { f32::INFINITY } else { y }
}

/// `2^x` to about 1.6e-7 relative for `x < 128`; exactly 0 below -126, negative infinity included. NaN stays NaN.
///
/// `x = n + r` with `|r| <= 1/2`; `2^r` by the degree-5 minimax polynomial (relative error 1e-7) among those with the
/// value and derivative of `2^r` at 0; `2^n` by adding to the exponent bits. Eleven instructions, no branches.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    let shifted = x + ROUND;
    let r = x - (shifted - ROUND);
    let mut p = 1.330_026_4e-3f32;
    p = p.multiply_add(r, 9.669_708e-3);
    p = p.multiply_add(r, 5.550_56e-2);
    p = p.multiply_add(r, 2.402_228_1e-1);
    p = p.multiply_add(r, std::f32::consts::LN_2);
    p = p.multiply_add(r, 1.0);
    // Low bits of `shifted` hold n; the bits of ROUND itself leave at the top.
    let y = p.to_bits().wrapping_add(shifted.to_bits() << 23);
    f32::from_bits(if x < -126.0 { 0 } else { y })
}

/// `log2 x` of a positive normal number, to about 1e-7 of the larger of 1 and its magnitude.
///
/// `x = 2^n (1 + f)` with `1 + f` between `sqrt(1/2)` and `sqrt(2)`; `ln(1 + f)` by the polynomial of Moshier's Cephes
/// library (`logf`).
#[inline(always)]
pub fn log2(x: f32) -> f32 {
    const ROOT_HALF: u32 = 0x3f35_04f3;
    let bits = x.to_bits();
    let n = (bits.wrapping_sub(ROOT_HALF) as i32) >> 23;
    let f = f32::from_bits(bits.wrapping_sub((n << 23) as u32)) - 1.0;
    let mut p = 7.037_683_6e-2f32;
    p = p.multiply_add(f, -1.151_461e-1);
    p = p.multiply_add(f, 1.167_699_9e-1);
    p = p.multiply_add(f, -1.242_014_1e-1);
    p = p.multiply_add(f, 1.424_932_3e-1);
    p = p.multiply_add(f, -1.666_805_8e-1);
    p = p.multiply_add(f, 2.000_071_5e-1);
    p = p.multiply_add(f, -2.499_999_4e-1);
    p = p.multiply_add(f, 0.333_333_3);
    let square = f * f;
    let ln = p.multiply_add(square * f, square.multiply_add(-0.5, f));
    ln.multiply_add(std::f32::consts::LOG2_E, n as f32)
}

/// `tanh x`, by `1 - 2 / (e^{2x} + 1)`: absolute error about 1e-7.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

/// Derivative of [`tanh`].
#[inline(always)]
pub fn tanh_slope(x: f32) -> f32 {
    let t = tanh(x);
    1.0 - t * t
}

/// `max(x, 0)`; NaN stays NaN.
#[inline(always)]
pub fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// Derivative of [`relu`], 0 at 0.
#[inline(always)]
pub fn relu_slope(x: f32) -> f32 {
    if x > 0.0 { 1.0 } else { 0.0 }
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// Derivative of [`silu`]: `s + x s (1 - s)` with `s = 1 / (1 + e^-x)`.
#[inline(always)]
pub fn silu_slope(x: f32) -> f32 {
    let s = 1.0 / (1.0 + exp(-x));
    s + x * s * (1.0 - s)
}

/// Twice the argument of tanh in [`gelu_tanh`], of which only the exponential is needed:
/// `(1 + tanh u) / 2 = 1 / (1 + e^-2u)`.
#[inline(always)]
fn gelu_tanh_argument(x: f32) -> f32 {
    2.0 * ROOT_2_OVER_PI * x * CUBIC.multiply_add(x * x, 1.0)
}

const ROOT_2_OVER_PI: f32 = 0.797_884_6;
const CUBIC: f32 = 0.044_715;

/// `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`.
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    x / (1.0 + exp(-gelu_tanh_argument(x)))
}

/// Derivative of [`gelu_tanh`].
#[inline(always)]
pub fn gelu_tanh_slope(x: f32) -> f32 {
    // Beyond 10 the second term is 0; this keeps it 0 where the square overflows.
    let near = if x.abs() > 10.0 { 0.0 } else { x };
    let s = 1.0 / (1.0 + exp(-gelu_tanh_argument(x)));
    let inner = 2.0 * ROOT_2_OVER_PI * (3.0 * CUBIC).multiply_add(near * near, 1.0);
    s + near * s * (1.0 - s) * inner
}

/// Error function to about 3e-7 absolute.
///
/// Formula 7.1.28's relative 7.1.26 of Abramowitz and Stegun: `1 - (a1 t + .. + a5 t^5) e^{-x^2}`, `t = 1/(1 + p|x|)`.
#[inline(always)]
fn erf(x: f32, exp_minus_square: f32) -> f32 {
    let a = x.abs();
    let t = 1.0 / 0.327_591_1f32.multiply_add(a, 1.0);
    let mut p = 1.061_405_4f32;
    p = p.multiply_add(t, -1.453_152_1);
    p = p.multiply_add(t, 1.421_413_8);
    p = p.multiply_add(t, -0.284_496_74);
    p = p.multiply_add(t, 0.254_829_6);
    let y = 1.0 - p * t * exp_minus_square;
    y.copysign(x)
}

/// `gelu(x) = x Phi(x)`, the exact form with the error function.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    let density = exp(-0.5 * x * x);
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2, density))
}

/// Derivative of [`gelu`]: `Phi(x) + x phi(x)`.
#[inline(always)]
pub fn gelu_slope(x: f32) -> f32 {
    const INVERSE_SQRT_TAU: f32 = 0.398_942_3;
    let density = exp(-0.5 * x * x);
    0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2, density)) + x * density * INVERSE_SQRT_TAU
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_over_its_whole_range() {
        let mut worst = 0.0f64;
        let mut x = -87.0f32;
        while x < 88.5 {
            let want = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - want).abs() / want);
            x += 0.003_7;
        }
        assert!(worst < 2.5e-7, "worst relative error {worst:e}");
        assert_eq!(exp(-100.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(100.0), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn exp2_is_accurate_and_exact_where_it_matters() {
        let mut worst = 0.0f64;
        let mut x = -126.0f32;
        while x < 127.0 {
            let want = f64::from(x).exp2();
            worst = worst.max((f64::from(exp2(x)) - want).abs() / want);
            x += 0.003_7;
        }
        assert!(worst < 2.0e-7, "worst relative error {worst:e}");
        assert_eq!(exp2(0.0), 1.0);
        assert_eq!(exp2(-200.0), 0.0);
        assert_eq!(exp2(f32::NEG_INFINITY), 0.0);
        assert!(exp2(f32::NAN).is_nan());
    }

    #[test]
    fn log2_is_accurate() {
        let mut x = 1e-30f32;
        while x < 1e30 {
            let want = f64::from(x).log2();
            let bound = 2e-7 * want.abs().max(1.0);
            assert!((f64::from(log2(x)) - want).abs() < bound, "log2({x})");
            x *= 1.003_7;
        }
        assert_eq!(log2(1.0), 0.0);
        assert_eq!(log2(8.0), 3.0);
    }

    #[test]
    fn gelu_and_its_slope_are_accurate() {
        // Phi by the trapezoid rule, fine enough for 1e-10.
        let phi = |x: f64| {
            let steps = 20_000;
            let h = x / f64::from(steps);
            let density = |t: f64| (-0.5 * t * t).exp() / std::f64::consts::TAU.sqrt();
            let inner: f64 = (1..steps).map(|i| density(h * f64::from(i))).sum();
            0.5 + h * (inner + 0.5 * (density(0.0) + density(x)))
        };
        for i in -60..=60 {
            let x = f64::from(i) * 0.1;
            let density = (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
            assert!((f64::from(gelu(x as f32)) - x * phi(x)).abs() < 1e-6, "gelu({x})");
            assert!((f64::from(gelu_slope(x as f32)) - phi(x) - x * density).abs() < 1e-6, "gelu'({x})");
        }
    }
}
