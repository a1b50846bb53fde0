//! Position schemes: how a model knows the order of its tokens.

use burn::tensor::{Device, Int, Tensor, TensorData};

/// Base of the wavelengths of sinusoidal positions (Vaswani et al. 2017, section 3.5).
const BASE: f64 = 10_000.0;

/// Where the tokens of a tensor stand in their sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions<'a> {
    /// One after another, from this one on.
    From(usize),
    /// Each at its own: the tokens of one rank of several.
    At(&'a [usize]),
}

impl<'a> Positions<'a> {
    /// A whole sequence.
    pub const START: Self = Self::From(0);

    /// Those of `count` tokens.
    ///
    /// # Panics
    /// If other than `count` are named.
    pub fn iter(self, count: usize) -> impl Iterator<Item = usize> + 'a {
        let (from, named) = match self {
            Self::From(from) => (from..from + count, &[][..]),
            Self::At(named) => (0..0, named),
        };
        assert_eq!(from.len() + named.len(), count, "a position for each token");
        from.chain(named.iter().copied())
    }

    /// Those entries along `axis` of a tensor that has one for each position.
    pub(crate) fn of<const D: usize>(self, tensor: Tensor<D>, axis: usize, count: usize) -> Tensor<D> {
        match self {
            Self::From(from) => tensor.narrow(axis, from, count),
            Self::At(places) => {
                let places: Vec<i32> = places.iter().map(|place| *place as i32).collect();
                let places = Tensor::<1, Int>::from_data(TensorData::new(places, [count]), &tensor.device());
                tensor.select(axis, places)
            }
        }
    }
}

/// Sines in the even channels, cosines in the odd ones, `[positions, width]` (Vaswani et al. 2017, section 3.5).
pub fn sinusoidal(positions: impl Iterator<Item = usize>, width: usize, device: &Device) -> Tensor<2> {
    let values: Vec<f32> = positions
        .flat_map(|position| {
            (0..width).map(move |channel| {
                let angle = position as f64 * frequency(channel / 2, width);
                (if channel % 2 == 0 { angle.sin() } else { angle.cos() }) as f32
            })
        })
        .collect();
    let count = values.len() / width;
    Tensor::from_data(TensorData::new(values, [count, width]), device)
}

/// Angle per position, of pair `pair` of `width` channels.
fn frequency(pair: usize, width: usize) -> f64 {
    BASE.powf(-((2 * pair) as f64) / width as f64)
}

/// Slopes of ALiBi for `heads` heads: `2^(-8 h / H)` for `h = 1 ..= H` where `H` is a power of two, else those of the
/// power below, filled up with every second one of the power above (Press, Smith and Lewis 2022, section 3 and code).
pub fn alibi_slopes(heads: usize) -> Vec<f32> {
    let series = |count: usize| (1..=count).map(move |h| (-8.0 * h as f64 / count as f64).exp2() as f32);
    let power = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    series(power).chain(series(2 * power).step_by(2)).take(heads).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_to_vec().unwrap()
    }

    #[test]
    fn sinusoids_start_at_zero_angle_and_have_the_papers_wavelengths() {
        let device = Device::flex();
        let table = values(sinusoidal(0..3, 4, &device));
        assert_eq!(table[..4], [0.0, 1.0, 0.0, 1.0]);
        assert_eq!(table[8..], [2f32.sin(), 2f32.cos(), 0.02f32.sin(), 0.02f32.cos()]);
        assert_eq!(values(sinusoidal(Positions::At(&[2]).iter(1), 4, &device)), table[8..]);
    }

    #[test]
    fn slopes_are_the_published_ones() {
        assert_eq!(alibi_slopes(8), (1..=8).map(|h| 0.5f32.powi(h)).collect::<Vec<_>>());
        assert_eq!(alibi_slopes(6), [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]);
    }
}
