//! What learns: parameters in full, or low-rank updates of matrices (LoRA, Hu et al. 2022).

use std::collections::BTreeMap;

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Gradients, Tensor, TensorData},
};
use regard_kernels::random::{substream, unit};
use regard_nn::models::{ParameterPath, named_parameters};
use regard_tasks::train::{AdamW, HostTensor, HostTensors};
use serde::{Deserialize, Serialize};

/// How parameters learn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Training {
    /// The projections of attention learn a matrix `a b` of this rank that is added to them, times `alpha / rank`. What a mechanism
    /// has beside projections learns in full.
    Lora {
        /// Columns of `a` and rows of `b`.
        rank: usize,
        /// Times `1 / rank`, how much of the product is added.
        alpha: f64,
    },
    /// Everything learns: attention while layers are matched, the whole model on its loss.
    Full,
}

const PROJECTIONS: [&str; 4] = ["w_q", "w_k", "w_v", "w_o"];
/// What mixtures of keys have beside projections.
const OWN: [&str; 4] = ["log_prior", "position_log_prior", "shift", "log_variance"];
const A: &str = ".lora_a";
const B: &str = ".lora_b";

/// Gradients on the host by name.
pub(super) type HostGradients = BTreeMap<String, Vec<f32>>;

/// The parameters of a model that learn, on the host.
#[derive(Clone, Debug)]
pub(super) struct Learned {
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug)]
enum Entry {
    Full(HostTensor),
    LowRank(Box<LowRank>),
}

/// `base + scale a b`, of one matrix or of several of one shape.
#[derive(Clone, Debug)]
struct LowRank {
    /// Of the parameter.
    shape: Vec<usize>,
    /// `[M,in,out]`
    base: Tensor<3>,
    /// `[M,in,rank]`
    a: HostTensor,
    /// `[M,rank,out]`
    b: HostTensor,
    scale: f32,
}

/// Stream of a seed: the first weights of products. Others are in `data`.
const LOW_RANK: u64 = 3;

impl Learned {
    /// Of `model`, as it is: products begin at 0.
    pub fn new<M: Module>(model: &M, training: Training, seed: u64) -> Self {
        let key = substream(seed, LOW_RANK);
        let mut entries = BTreeMap::new();
        for (number, parameter) in named_parameters(model).into_iter().enumerate().filter(|(_, own)| !own.buffer) {
            let (above, part) = parameter.name.rsplit_once('.').unwrap_or(("", &parameter.name));
            let attention = above.ends_with("attention");
            let full = HostTensor { shape: parameter.shape, data: parameter.values };
            let entry = match training {
                Training::Lora { rank, alpha } if attention && PROJECTIONS.contains(&part) => {
                    Entry::LowRank(Box::new(LowRank::new(full, rank, alpha, substream(key, number as u64))))
                }
                Training::Lora { .. } if !(attention && OWN.contains(&part)) => continue,
                _ => Entry::Full(full),
            };
            entries.insert(parameter.name, entry);
        }
        Self { entries }
    }

    /// Numbers that learn.
    pub fn count(&self) -> usize {
        self.tensors().values().map(|tensor| tensor.data.len()).sum()
    }

    /// What learns, by name.
    pub fn tensors(&self) -> HostTensors {
        let mut all = HostTensors::new();
        for (name, entry) in &self.entries {
            match entry {
                Entry::Full(tensor) => drop(all.insert(name.clone(), tensor.clone())),
                Entry::LowRank(low) => {
                    all.insert(format!("{name}{A}"), low.a.clone());
                    all.insert(format!("{name}{B}"), low.b.clone());
                }
            }
        }
        all
    }

    /// Takes over what [`Learned::tensors`] gave.
    ///
    /// # Errors
    /// Other names or shapes, as a sentence.
    pub fn restore(&mut self, mut tensors: HostTensors) -> Result<(), String> {
        let mut take = |name: String, place: &mut HostTensor| match tensors.remove(&name) {
            Some(tensor) if tensor.shape == place.shape => {
                *place = tensor;
                Ok(())
            }
            Some(tensor) => Err(format!("tensor '{name}' has shape {:?}, expected {:?}", tensor.shape, place.shape)),
            None => Err(format!("tensor '{name}' is missing")),
        };
        for (name, entry) in &mut self.entries {
            match entry {
                Entry::Full(tensor) => take(name.clone(), tensor)?,
                Entry::LowRank(low) => {
                    take(format!("{name}{A}"), &mut low.a)?;
                    take(format!("{name}{B}"), &mut low.b)?;
                }
            }
        }
        match tensors.keys().next() {
            Some(name) => Err(format!("tensor '{name}' is none that learns here")),
            None => Ok(()),
        }
    }

    /// `module`, the part of the model whose names begin with `prefix`, with its parameters as they are now; those that learn are
    /// tracked where `tracked`.
    pub fn apply<M: Module>(&self, module: M, prefix: &str, tracked: bool) -> M {
        struct Apply<'a>(ParameterPath, &'a Learned, &'a str, bool);
        impl ModuleMapper for Apply<'_> {
            fn enter_module(&mut self, name: &str, container: &str) {
                self.0.enter(name, container);
            }

            fn exit_module(&mut self, _: &str, _: &str) {
                self.0.exit();
            }

            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let Some(entry) = self.1.entries.get(&format!("{}{}", self.2, self.0.name())) else { return param };
                let (id, old, mapper) = param.consume();
                let new = Tensor::from_data(entry.value(), &old.device());
                Param::from_mapped_value(id, new.set_require_grad(self.3), mapper)
            }
        }
        module.map(&mut Apply(ParameterPath::default(), self, prefix, tracked))
    }

    /// Gradients of what learns by those of the parameters.
    pub fn gradients(&self, parameters: HostGradients) -> HostGradients {
        let mut all = HostGradients::new();
        for (name, gradient) in parameters {
            match self.entries.get(&name) {
                Some(Entry::LowRank(low)) => {
                    let [a, b] = low.gradients(gradient);
                    all.insert(format!("{name}{A}"), a);
                    all.insert(format!("{name}{B}"), b);
                }
                Some(Entry::Full(_)) => drop(all.insert(name, gradient)),
                None => {}
            }
        }
        all
    }

    /// Update `t` (from 1) by gradients times `scale`.
    pub fn update(&mut self, gradients: &HostGradients, optimizer: &mut AdamW, t: usize, rate: f64, scale: f32) {
        let mut step = |name: &str, tensor: &mut HostTensor| {
            if let Some(gradient) = gradients.get(name) {
                let size = [gradient.len()];
                let flat =
                    |data: Vec<f32>| Tensor::<1>::from_data(TensorData::new(data, size), &regard_nn::device::chosen());
                let parameter = flat(std::mem::take(&mut tensor.data));
                let parameter = optimizer.update(name, t, rate, scale, parameter, &flat(gradient.clone()));
                tensor.data = parameter.into_data_as::<f32>().try_into_vec().expect("f32, as asked");
            }
        };
        for (name, entry) in &mut self.entries {
            match entry {
                Entry::Full(tensor) => step(name, tensor),
                Entry::LowRank(low) => {
                    step(&format!("{name}{A}"), &mut low.a);
                    step(&format!("{name}{B}"), &mut low.b);
                }
            }
        }
    }
}

impl Entry {
    fn value(&self) -> TensorData {
        match self {
            Self::Full(tensor) => data(tensor),
            Self::LowRank(low) => {
                let [a, b] = low.factors();
                let value = low.base.clone() + a.matmul(b).mul_scalar(low.scale);
                let values = value.into_data_as::<f32>().try_into_vec::<f32>().expect("f32, as asked");
                TensorData::new(values, low.shape.clone())
            }
        }
    }
}

impl LowRank {
    fn new(base: HostTensor, rank: usize, alpha: f64, key: u64) -> Self {
        let [inputs, outputs] = [2, 1].map(|at| base.shape[base.shape.len() - at]);
        let count = base.data.len() / (inputs * outputs);
        // As in the released code: uniform with the bound of a linear layer, and zeros.
        let bound = (inputs as f64).sqrt().recip();
        let draw = |i: usize| (bound * (2.0 * unit(substream(key, i as u64)) - 1.0)) as f32;
        Self {
            a: HostTensor { shape: vec![count, inputs, rank], data: (0..count * inputs * rank).map(draw).collect() },
            b: HostTensor { shape: vec![count, rank, outputs], data: vec![0.0; count * rank * outputs] },
            base: Tensor::from_data(TensorData::new(base.data, [count, inputs, outputs]), &regard_nn::device::chosen()),
            shape: base.shape,
            scale: (alpha / rank as f64) as f32,
        }
    }

    fn factors(&self) -> [Tensor<3>; 2] {
        [&self.a, &self.b].map(|factor| Tensor::from_data(data(factor), &regard_nn::device::chosen()))
    }

    /// Of both factors by that of their sum with the base.
    fn gradients(&self, gradient: Vec<f32>) -> [Vec<f32>; 2] {
        let [a, b] = self.factors();
        let whole = TensorData::new(gradient, self.base.dims());
        let whole = Tensor::<3>::from_data(whole, &regard_nn::device::chosen()).mul_scalar(self.scale);
        [whole.clone().matmul(b.transpose()), a.transpose().matmul(whole)]
            .map(|gradient| gradient.into_data_as::<f32>().try_into_vec().expect("f32, as asked"))
    }
}

fn data(tensor: &HostTensor) -> TensorData {
    TensorData::new(tensor.data.clone(), tensor.shape.clone())
}

/// Adds the gradients of the parameters of `module`, the part of a model whose names begin with `prefix`.
pub(super) fn collect<M: Module>(module: &M, prefix: &str, gradients: Gradients, into: &mut HostGradients) {
    struct Collect<'a>(ParameterPath, &'a str, Gradients, &'a mut HostGradients);
    impl ModuleVisitor for Collect<'_> {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            if !value.is_require_grad() {
                return;
            }
            let Some(gradient) = value.grad_remove(&mut self.2) else { return };
            let gradient: Vec<f32> = gradient.into_data_as::<f32>().try_into_vec().expect("f32, as asked");
            match self.3.get_mut(&format!("{}{}", self.1, self.0.name())) {
                Some(total) => total.iter_mut().zip(&gradient).for_each(|(total, gradient)| *total += gradient),
                None => drop(self.3.insert(format!("{}{}", self.1, self.0.name()), gradient)),
            }
        }
    }
    module.visit(&mut Collect(ParameterPath::default(), prefix, gradients, into));
}

/// Euclidean norm of all gradients together.
pub(super) fn norm(gradients: &HostGradients) -> f64 {
    let squares = |gradient: &Vec<f32>| gradient.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
    gradients.values().map(squares).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_of_factors_are_those_of_their_product() {
        let (shape, size) = (vec![2, 3, 4], 24);
        let base = HostTensor { shape, data: (0..size).map(|i| (i as f32 * 0.7).sin()).collect() };
        let mut low = LowRank::new(base.clone(), 2, 3.0, 5);
        let start = Entry::LowRank(Box::new(low.clone())).value().try_into_vec::<f32>().unwrap();
        assert_eq!(start, base.data, "a product of 0 changes nothing");
        low.b.data.iter_mut().enumerate().for_each(|(i, b)| *b = (i as f32 * 1.3).cos());
        // Of the sum of all elements times these.
        let weights: Vec<f32> = (0..size).map(|i| (i as f32 * 0.4).cos()).collect();
        let objective = |low: &LowRank| -> f32 {
            let values = Entry::LowRank(Box::new(low.clone())).value().try_into_vec::<f32>().unwrap();
            values.iter().zip(&weights).map(|(value, weight)| value * weight).sum()
        };
        let [a, b] = low.gradients(weights.clone());
        for i in 0..a.len().max(b.len()) {
            let moved = |in_a: bool, by: f32| {
                let mut low = low.clone();
                let factor = if in_a { &mut low.a } else { &mut low.b };
                factor.data[i] += by;
                objective(&low)
            };
            for (in_a, gradient) in [(true, &a), (false, &b)] {
                let Some(gradient) = gradient.get(i) else { continue };
                let seen = moved(in_a, 0.5) - moved(in_a, -0.5);
                assert!((seen - gradient).abs() < 1e-4, "{in_a} {i}: {seen} {gradient}");
            }
        }
    }
}
