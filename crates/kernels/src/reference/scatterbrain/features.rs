//! Positive features (Choromanski et al. 2021; `elu + 1` from Katharopoulos et al. 2020), one vector at a time.

use super::super::row::{add_scaled, dot};
use crate::features::FeatureKind;

/// `ln phi_a(x)` for `m` features `a`.
///
/// With rows `w_a` of `projection [R,D]` and `x~ = sqrt(tau) x`: plain `w_a.x~ - |x~|^2 / 2 - ln(m) / 2` for `m = R`,
/// hyperbolic the same for the rows `[W; -W]`, `m = 2R`. Elu: `phi(x) = elu(x) + 1`, channel by channel, of `x` itself.
pub fn log_features(kind: FeatureKind, projection: &[f64], scale: f64, x: &[f64]) -> Vec<f64> {
    if kind == FeatureKind::Elu {
        return x.iter().map(|&x| if x < 0.0 { x } else { x.ln_1p() }).collect();
    }
    let m = kind.count(projection.len() / x.len(), x.len());
    let lowered = scale * dot(x, x) / 2.0 + (m as f64).ln() / 2.0;
    rows(kind, projection, x.len()).map(|(sign, w)| sign * scale.sqrt() * dot(w, x) - lowered).collect()
}

/// Propagates gradients `slopes [m]` of [`log_features`] to `grad` (added).
pub(super) fn pull(kind: FeatureKind, projection: &[f64], scale: f64, x: &[f64], slopes: &[f64], grad: &mut [f64]) {
    if kind == FeatureKind::Elu {
        for ((grad, slope), &x) in grad.iter_mut().zip(slopes).zip(x) {
            *grad += if x < 0.0 { *slope } else { slope / (1.0 + x) };
        }
        return;
    }
    for ((sign, w), slope) in rows(kind, projection, x.len()).zip(slopes) {
        add_scaled(grad, sign * scale.sqrt() * slope, w);
        add_scaled(grad, -scale * slope, x);
    }
}

/// The rows of the map as a sign and a row of the projection.
fn rows(kind: FeatureKind, projection: &[f64], width: usize) -> impl Iterator<Item = (f64, &[f64])> {
    let mirrored = if kind == FeatureKind::Hyperbolic { projection } else { &[] };
    let up = projection.chunks_exact(width).map(|w| (1.0, w));
    up.chain(mirrored.chunks_exact(width).map(|w| (-1.0, w)))
}
