//! Derivatives without calculus, to hold gradients against.

/// Step of [`derivative`], for arguments of size 1: its error of order `step^4` then lies at the rounding of float64.
const STEP: f64 = 1e-3;

/// Derivative of `function` in each coordinate at `point`, by central differences of fourth order:
/// `(8 (f(x+h) - f(x-h)) - (f(x+2h) - f(x-2h))) / (12 h)`.
///
/// Correct to about 1e-10 where the function is smooth within `2 h`.
pub fn derivative(point: &[f64], mut function: impl FnMut(&[f64]) -> f64) -> Vec<f64> {
    let mut moved = point.to_vec();
    (0..point.len())
        .map(|i| {
            let mut at = |offset: f64| {
                moved[i] = point[i] + offset * STEP;
                function(&moved)
            };
            let near = at(1.0) - at(-1.0);
            let far = at(2.0) - at(-2.0);
            moved[i] = point[i];
            (8.0 * near - far) / (12.0 * STEP)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_find_the_derivative_of_a_smooth_function() {
        let found = derivative(&[0.3, -1.2], |x| x[0].sin() * x[1].exp());
        let exact = [0.3f64.cos() * (-1.2f64).exp(), 0.3f64.sin() * (-1.2f64).exp()];
        assert!(crate::error(&found, &exact) < 1e-11, "{found:?}, not {exact:?}");
    }
}
