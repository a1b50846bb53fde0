//! One operator in one layout, run on head-first tensors.

use std::sync::Arc;

use super::Array;
use regard_kernels::{Decode, Layout, Operator, View};

/// An operator and the axis order it was made for.
#[derive(Clone, Debug)]
pub struct Subject {
    pub operator: Arc<dyn Operator>,
    pub layout: Layout,
}

/// Everything one pass forward and backward yields, head first.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub out: Array,
    /// Log of the softmax denominator `[B,H,N]`, where the operator keeps one.
    pub lse: Option<Vec<f64>>,
    /// One gradient an input, without elements for what is drawn.
    pub grads: Vec<Array>,
}

impl Subject {
    pub fn names(&self) -> Vec<&'static str> {
        self.operator.inputs()
    }

    /// Whether input `name` is drawn and has no gradient.
    pub fn is_constant(&self, name: &str) -> bool {
        self.operator.constants().contains(&name)
    }

    /// Inputs in the operator's layout.
    pub fn arrange(&self, inputs: &[Array]) -> Vec<Array> {
        inputs.iter().zip(self.names()).map(|(input, name)| input.swapped(name, self.layout)).collect()
    }

    pub fn out_shape(&self, inputs: &[Array]) -> Vec<usize> {
        let arranged = self.arrange(inputs);
        let shapes: Vec<&[usize]> = arranged.iter().map(|a| &a.shape[..]).collect();
        self.operator.out_shape(&shapes).unwrap_or_else(|e| panic!("{:?}: {e}", self.operator))
    }

    /// Shape of the output, head first.
    pub fn head_first_out_shape(&self, inputs: &[Array]) -> Vec<usize> {
        let shape = self.out_shape(inputs);
        let count = shape.iter().product();
        Array::new(&shape, vec![0.0; count]).swapped("out", self.layout).shape
    }

    /// The float32 kernel. Its output starts as NaN, so that an element it forgets shows.
    pub fn kernel(&self, inputs: &[Array], grad_out: &Array) -> Outcome {
        let (out, lse, grads) = self.kernel_where(inputs, grad_out, &vec![true; inputs.len()]);
        let grads = grads
            .into_iter()
            .zip(self.names())
            .map(|(grad, name)| match (grad, self.is_constant(name)) {
                (None, true) => Array::new(&[0], Vec::new()),
                (Some(grad), false) => grad,
                (grad, _) => panic!("the gradient of '{name}' is {}", if grad.is_some() { "there" } else { "missing" }),
            })
            .collect();
        Outcome { out, lse, grads }
    }

    /// The float32 kernel, asked for some gradients only.
    pub fn kernel_where(
        &self,
        inputs: &[Array],
        grad_out: &Array,
        wanted: &[bool],
    ) -> (Array, Option<Vec<f64>>, Vec<Option<Array>>) {
        super::keep_to_vectors();
        let arranged = self.arrange(inputs);
        let data: Vec<Vec<f32>> = arranged.iter().map(Array::f32).collect();
        let views: Vec<View<f32>> = data.iter().zip(&arranged).map(|(d, a)| View::new(d, &a.shape)).collect();
        let out_shape = self.out_shape(inputs);
        let mut out = vec![f32::NAN; out_shape.iter().product()];
        let saved = self.operator.forward(&views, &mut out);
        let grad_out = grad_out.swapped("out", self.layout).f32();
        let grads = self.operator.backward(&views, &out, &saved, &grad_out, wanted);
        assert_eq!(grads.len(), inputs.len(), "one gradient or none an input");
        let grads = grads
            .into_iter()
            .zip(&arranged)
            .zip(self.names())
            .map(|((grad, input), name)| grad.map(|g| wide(&input.shape, &g).swapped(name, self.layout)))
            .collect();
        let lse = saved.lse().map(|lse| lse.iter().map(|&x| f64::from(x)).collect());
        (wide(&out_shape, &out).swapped("out", self.layout), lse, grads)
    }

    /// One token through `decoder`: fills `out`, of the output's shape with one token, head first.
    pub fn step(&self, decoder: &mut dyn Decode, inputs: &[Array], out_shape: &[usize]) -> Array {
        let arranged = self.arrange(inputs);
        let data: Vec<Vec<f32>> = arranged.iter().map(Array::f32).collect();
        let views: Vec<View<f32>> = data.iter().zip(&arranged).map(|(d, a)| View::new(d, &a.shape)).collect();
        let mut out = vec![f32::NAN; out_shape.iter().product()];
        decoder.step(&views, &mut out);
        // With one token both layouts of the output are the same memory.
        wide(out_shape, &out)
    }

    /// The float64 twin.
    pub fn twin(&self, inputs: &[Array], grad_out: &Array) -> Outcome {
        let arranged = self.arrange(inputs);
        let views: Vec<View<f64>> = arranged.iter().map(Array::view).collect();
        let grad_out = grad_out.swapped("out", self.layout);
        let reference = self.operator.reference(&views, Some(&grad_out.data));
        assert_eq!(reference.grads.len(), inputs.len(), "one gradient an input");
        let grads = reference
            .grads
            .into_iter()
            .zip(&arranged)
            .zip(self.names())
            .map(|((grad, input), name)| match self.is_constant(name) {
                true => Array::new(&[0], grad),
                false => Array::new(&input.shape, grad).swapped(name, self.layout),
            })
            .collect();
        let out = Array::new(&self.out_shape(inputs), reference.out).swapped("out", self.layout);
        Outcome { out, lse: reference.lse, grads }
    }

    /// Output of the float64 twin alone.
    pub fn twin_out(&self, inputs: &[Array]) -> Array {
        let arranged = self.arrange(inputs);
        let views: Vec<View<f64>> = arranged.iter().map(Array::view).collect();
        let reference = self.operator.reference(&views, None);
        assert!(reference.grads.is_empty(), "gradients without an output gradient");
        Array::new(&self.out_shape(inputs), reference.out).swapped("out", self.layout)
    }
}

fn wide(shape: &[usize], data: &[f32]) -> Array {
    Array::new(shape, data.iter().map(|&x| f64::from(x)).collect())
}
