//! The non-linear functions of activations and gates, and their derivatives.

/// A scalar function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// `x Phi(x)`, exact (Hendrycks and Gimpel 2016).
    Gelu,
    /// `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`, the approximation of the same paper.
    GeluTanh,
    /// `max(x, 0)`, with derivative 0 at 0.
    Relu,
    /// `x / (1 + e^-x)` (Elfwing, Uchibe and Doya 2018), also called swish.
    Silu,
    /// `tanh x`.
    Tanh,
}

/// Evaluates an expression with the value and the derivative of a curve in scope as two functions on `f32`. It is
/// compiled separately for each curve, so that its loops vectorise.
macro_rules! with_curve {
    ($curve:expr, |$value:pat_param, $slope:pat_param| $body:expr) => {{
        use $crate::{elementwise::Curve, simd};
        match $curve {
            Curve::Gelu => with_curve!(simd::gelu, simd::gelu_slope, $value, $slope, $body),
            Curve::GeluTanh => with_curve!(simd::gelu_tanh, simd::gelu_tanh_slope, $value, $slope, $body),
            Curve::Relu => with_curve!(simd::relu, simd::relu_slope, $value, $slope, $body),
            Curve::Silu => with_curve!(simd::silu, simd::silu_slope, $value, $slope, $body),
            Curve::Tanh => with_curve!(simd::tanh, simd::tanh_slope, $value, $slope, $body),
        }
    }};
    ($f:expr, $df:expr, $value:pat_param, $slope:pat_param, $body:expr) => {{
        let ($value, $slope) = ($f, $df);
        $body
    }};
}
pub(super) use with_curve;

impl Curve {
    /// All variants.
    pub const ALL: &[Self] = &[Self::Gelu, Self::GeluTanh, Self::Relu, Self::Silu, Self::Tanh];

    /// The function, for the twins.
    pub(super) fn value(self, x: f64) -> f64 {
        match self {
            Self::Gelu => x * normal_cdf(x),
            Self::GeluTanh => 0.5 * x * (1.0 + tanh_argument(x).tanh()),
            Self::Relu => x.max(0.0),
            Self::Silu => x / (1.0 + (-x).exp()),
            Self::Tanh => x.tanh(),
        }
    }

    /// Its derivative.
    pub(super) fn slope(self, x: f64) -> f64 {
        match self {
            Self::Gelu => normal_cdf(x) + x * (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt(),
            Self::GeluTanh => {
                let t = tanh_argument(x).tanh();
                let inner = std::f64::consts::FRAC_2_PI.sqrt() * (1.0 + 3.0 * 0.044715 * x * x);
                0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner
            }
            Self::Relu => f64::from(u8::from(x > 0.0)),
            Self::Silu => {
                let s = 1.0 / (1.0 + (-x).exp());
                s + x * s * (1.0 - s)
            }
            Self::Tanh => 1.0 - x.tanh().powi(2),
        }
    }
}

fn tanh_argument(x: f64) -> f64 {
    std::f64::consts::FRAC_2_PI.sqrt() * (x + 0.044715 * x.powi(3))
}

/// Distribution function of the standard normal, by `erf z = 2 / sqrt(pi) e^{-z^2} sum_n 2^n z^{2n+1} / (2n+1)!!`, whose
/// terms are all of one sign.
fn normal_cdf(x: f64) -> f64 {
    let z = x * std::f64::consts::FRAC_1_SQRT_2;
    if z.abs() > 6.0 {
        return if z > 0.0 { 1.0 } else { 0.0 };
    }
    let (mut term, mut sum, mut odd) = (z, z, 1.0);
    while term.abs() > 1e-17 * sum.abs() {
        odd += 2.0;
        term *= 2.0 * z * z / odd;
        sum += term;
    }
    0.5 * (1.0 + std::f64::consts::FRAC_2_SQRT_PI * (-z * z).exp() * sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_twin_knows_the_normal_distribution() {
        for (x, want) in [(0.0, 0.5), (1.0, 0.841_344_746_068_542_9), (-2.0, 0.022_750_131_948_179_21), (9.0, 1.0)] {
            assert!((normal_cdf(x) - want).abs() < 1e-15, "Phi({x})");
        }
    }

    #[test]
    fn values_and_slopes_stay_finite_far_out() {
        for &curve in Curve::ALL {
            for x in [-3e38f32, -1e20, -1e4, -90.0, 90.0, 1e4, 1e20, 3e38] {
                let (value, slope) = with_curve!(curve, |value, slope| (value(x), slope(x)));
                let want = (curve.value(f64::from(x)), curve.slope(f64::from(x)));
                let off = (f64::from(value) - want.0).abs() / want.0.abs().max(1.0);
                assert!(off < 1e-6 && (f64::from(slope) - want.1).abs() < 1e-6, "{curve:?}({x}) is {value}, {slope}");
            }
        }
    }
}
