//! The mean of models.

use regard_nn::models::is_buffer;

use super::{HostTensor, HostTensors};

/// Running mean of models. Buffers are those of the last one: random draws have no mean.
#[derive(Debug, Default)]
pub(super) struct Mean {
    sums: Vec<(String, Vec<f64>)>,
    last: HostTensors,
    count: usize,
}

impl Mean {
    /// # Errors
    /// A model with other tensors than the previous ones, as a sentence.
    pub fn add(&mut self, model: HostTensors) -> Result<(), String> {
        let parameters = || model.iter().filter(|(name, _)| !is_buffer(name));
        if self.count == 0 {
            self.sums = parameters().map(|(name, tensor)| (name.clone(), vec![0.0; tensor.data.len()])).collect();
        }
        let same = parameters().map(|(name, tensor)| (name, tensor.data.len()));
        if !same.eq(self.sums.iter().map(|(name, sum)| (name, sum.len()))) {
            return Err("its parameters are not those of the checkpoints before it".into());
        }
        for ((_, sums), (_, tensor)) in self.sums.iter_mut().zip(parameters()) {
            sums.iter_mut().zip(&tensor.data).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        self.last = model;
        self.count += 1;
        Ok(())
    }

    /// The mean; empty without models.
    pub fn finish(mut self) -> HostTensors {
        for (name, sums) in self.sums {
            let data = sums.iter().map(|sum| (sum / self.count as f64) as f32).collect();
            if let Some(HostTensor { data: place, .. }) = self.last.get_mut(&name) {
                *place = data;
            }
        }
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(weight: &[f32], prior: f32) -> HostTensors {
        let tensor = |data: &[f32]| HostTensor { shape: vec![data.len()], data: data.to_vec() };
        HostTensors::from([("a.w_q".into(), tensor(weight)), ("a.prior".into(), tensor(&[prior]))])
    }

    #[test]
    fn parameters_are_averaged_and_buffers_are_the_last() {
        assert!(is_buffer("a.prior"));
        let mut mean = Mean::default();
        for (i, prior) in [(1.0, 3.0), (2.0, 4.0), (6.0, 5.0)] {
            mean.add(model(&[i, -i], prior)).unwrap();
        }
        assert!(mean.add(model(&[1.0], 0.0)).is_err());
        assert_eq!(mean.finish(), model(&[3.0, -3.0], 5.0));
        assert_eq!(Mean::default().finish(), HostTensors::new());
    }
}
