//! Tensors for any mechanism, by name and shape.

use std::{collections::BTreeMap, sync::Arc};

use regard_kernels::{
    AttentionOptions, Error, InputSizes, InputSpec, Layout, Operator, View,
    random::{bits, substream},
};

use super::Sizes;

/// Input specifications of the operator of `options`, token first, at these sizes; heads are those of the options.
pub(super) fn specs(options: &AttentionOptions, operator: &dyn Operator, sizes: Sizes) -> Vec<InputSpec> {
    let Sizes { batch, length, head_width, .. } = sizes;
    options.inputs(operator, &InputSizes::new(Layout::TokenFirst, batch, length, options.heads, head_width))
}

/// One tensor, shared by the mechanisms that use it.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub data: Arc<[f32]>,
    pub shape: Vec<usize>,
}

impl Tensor {
    /// As an operator input.
    pub fn view(&self) -> View<'_, f32> {
        View::new(&self.data, &self.shape)
    }
}

/// The tensors of one length. Two mechanisms that take a tensor of the same name and shape get the same one.
pub(super) struct Tensors {
    seed: u64,
    drawn: BTreeMap<(&'static str, Vec<usize>), Arc<[f32]>>,
}

/// Names in the order of their random streams; any other name has a separate stream.
const NAMES: [&str; 14] =
    ["q", "k", "v", "grad_out", "shift", "w_q", "w_k", "w_t", "x", "w_gate", "w_query", "w_key", "w_value", "w_out"];

impl Tensors {
    pub fn new(seed: u64) -> Self {
        Self { seed, drawn: BTreeMap::new() }
    }

    /// An input: its default if there is one, otherwise random values of a realistic magnitude.
    ///
    /// # Errors
    /// A size that cannot be made, options that do not fit each other.
    pub fn input(&mut self, spec: &InputSpec) -> Result<Tensor, Error> {
        let InputSpec { name, ref shape, .. } = *spec;
        if let Some(numbers) = spec.numbers_under(self.seed)? {
            return Ok(Tensor { data: numbers.into_iter().map(|x| x as f32).collect(), shape: shape.clone() });
        }
        let share = |width: usize| (width as f32).sqrt().recip();
        let deviation = match name {
            "shift" => 0.1,
            "w_gate" | "w_key" | "w_value" | "w_t" => share(shape[0]),
            "w_query" => share(shape[1]),
            "w_out" => share(shape[2]),
            _ => 1.0,
        };
        Ok(self.uniform(name, shape.clone(), deviation))
    }

    /// The gradient of an output of this shape.
    pub fn gradient(&mut self, shape: Vec<usize>) -> Tensor {
        self.uniform("grad_out", shape, 1.0)
    }

    /// Tokens `[B,N,d]`.
    pub fn tokens(&mut self, shape: Vec<usize>) -> Tensor {
        self.uniform("x", shape, 1.0)
    }

    /// Uniform random values with mean 0 and this standard deviation.
    fn uniform(&mut self, name: &'static str, shape: Vec<usize>, deviation: f32) -> Tensor {
        let known = NAMES.iter().position(|known| *known == name);
        let of_letters = || name.bytes().fold(NAMES.len() as u64, |key, letter| substream(key, letter.into()));
        let key = substream(self.seed, known.map_or_else(of_letters, |stream| stream as u64));
        // Uniform numbers in [-1, 1) have standard deviation 1/sqrt(3).
        let scale = deviation * 3f32.sqrt() / 2f32.powi(31);
        let count: usize = shape.iter().product();
        let drawn = self.drawn.entry((name, shape.clone()));
        let data = drawn.or_insert_with(|| (0..count).map(|i| scale * (bits(key, i as u32) as i32) as f32).collect());
        Tensor { data: data.clone(), shape }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::operator::call, *};

    #[test]
    fn numbers_have_the_deviation_asked_for_and_are_shared() {
        let mut tensors = Tensors::new(3);
        let options = AttentionOptions::default();
        let sizes = Sizes { batch: 2, length: 100, head_width: 16, heads: 4, threads: 1 };
        let operator = options.operator(call(&options)).unwrap();
        let specs = specs(&options, &*operator, sizes);
        let mut input = |at: usize| tensors.input(&specs[at]).unwrap();
        let q = input(0);
        assert_eq!(q.shape, [2, 100, 4, 16]);
        let mean = |power: i32| q.data.iter().map(|x| f64::from(*x).powi(power)).sum::<f64>() / q.data.len() as f64;
        assert!(mean(1).abs() < 0.05 && (mean(2) - 1.0).abs() < 0.05, "{} {}", mean(1), mean(2));
        assert!(Arc::ptr_eq(&q.data, &input(0).data));
        assert_ne!(input(1).data, q.data);
    }
}
