use super::*;
use regard_kernels::{Reference, Saved, View};

/// `out = x^2 w`, elementwise; saves `x^2`.
#[derive(Debug)]
struct Weighted;

impl Operator for Weighted {
    fn inputs(&self) -> Vec<&'static str> {
        vec!["x", "w"]
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        Error::check_shape("w", shapes[1], shapes[0])?;
        Ok(shapes[0].to_vec())
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        let squares: Vec<f32> = inputs[0].data.iter().map(|x| x * x).collect();
        for ((out, square), w) in out.iter_mut().zip(&squares).zip(inputs[1].data) {
            *out = square * w;
        }
        vec![squares].into()
    }

    fn backward(
        &self,
        inputs: &[View<f32>],
        out: &[f32],
        saved: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        let [x, w] = [inputs[0].data, inputs[1].data];
        for i in 0..out.len() {
            assert_eq!(out[i], x[i] * x[i] * w[i], "the output reaches the backward pass");
        }
        let x_grad = || (0..out.len()).map(|i| 2.0 * x[i] * w[i] * grad_out[i]).collect();
        let w_grad = || (0..out.len()).map(|i| saved[0][i] * grad_out[i]).collect();
        vec![wanted[0].then(x_grad), wanted[1].then(w_grad)]
    }

    fn reference(&self, _: &[View<f64>], _: Option<&[f64]>) -> Reference {
        unreachable!("never asked for here")
    }
}

/// The sum of `count` inputs weighted 1, 2, 3 ..; no input has a gradient of its own kind.
#[derive(Debug)]
struct Ladder(usize);

impl Operator for Ladder {
    fn inputs(&self) -> Vec<&'static str> {
        vec!["x"; self.0]
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        Ok(shapes[0].to_vec())
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        out.fill(0.0);
        for (i, input) in inputs.iter().enumerate() {
            out.iter_mut().zip(input.data).for_each(|(out, x)| *out += (i + 1) as f32 * x);
        }
        Saved::new()
    }

    fn backward(
        &self,
        _: &[View<f32>],
        _: &[f32],
        _: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        let scaled = |i: usize| grad_out.iter().map(|g| (i + 1) as f32 * g).collect();
        wanted.iter().enumerate().map(|(i, wanted)| wanted.then(|| scaled(i))).collect()
    }

    fn reference(&self, _: &[View<f64>], _: Option<&[f64]>) -> Reference {
        unreachable!("never asked for here")
    }
}

fn weighted(x: &Tensor<2>, w: &Tensor<2>) -> Tensor<2> {
    apply(Arc::new(Weighted), &[x.into(), w.into()])
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

const X: [[f32; 2]; 2] = [[1.0, -2.0], [3.0, 0.5]];
const W: [[f32; 2]; 2] = [[0.5, 1.0], [-1.0, 4.0]];

/// Autodiff alone and with gradient checkpointing.
fn tracking_devices() -> [Device; 2] {
    [Device::flex().autodiff(), Device::flex().autodiff().gradient_checkpointing()]
}

#[test]
fn plain_tensors_give_the_value_whatever_their_layout() {
    let device = Device::flex();
    assert!(runs_kernels(&device));
    let (x, w) = (Tensor::from_data(X, &device), Tensor::from_data(W, &device));
    assert_eq!(values(weighted(&x, &w)), [0.5, 4.0, -9.0, 1.0]);
    let turned = weighted(&x.clone().transpose(), &w.clone().transpose());
    assert_eq!(values(turned), [0.5, -9.0, 4.0, 1.0]);
    // One element seen everywhere.
    let same = Tensor::<2>::from_data([[3.0]], &device).expand([2, 2]);
    assert_eq!(values(weighted(&same, &w)), [4.5, 9.0, -9.0, 36.0]);
    // A view into the middle of a buffer.
    let row = x.narrow(0, 1, 1);
    assert_eq!(values(weighted(&row, &row)), [27.0, 0.125]);
}

#[test]
fn every_tracked_input_gets_its_gradient_and_the_others_none() {
    for device in tracking_devices() {
        assert!(runs_kernels(&device));
        for (x_tracked, w_tracked) in [(true, true), (true, false), (false, true)] {
            let track = |tensor: Tensor<2>, yes| if yes { tensor.require_grad() } else { tensor };
            let x = track(Tensor::from_data(X, &device), x_tracked);
            let w = track(Tensor::from_data(W, &device), w_tracked);
            let grads = weighted(&x, &w).sum().backward();
            assert_eq!(x.grad(&grads).map(values), x_tracked.then(|| vec![1.0, -4.0, -6.0, 4.0]));
            assert_eq!(w.grad(&grads).map(values), w_tracked.then(|| vec![1.0, 4.0, 9.0, 0.25]));
        }
        let untracked = weighted(&Tensor::from_data(X, &device), &Tensor::from_data(W, &device));
        assert!(!untracked.is_require_grad());
    }
}

#[test]
fn an_output_used_twice_sends_back_both_gradients() {
    for device in tracking_devices() {
        let x = Tensor::<2>::from_data(X, &device).require_grad();
        let w = Tensor::<2>::from_data(W, &device).require_grad();
        let out = weighted(&x, &w);
        // d(3 out + out^2) = (3 + 2 out) d out, through an operator whose input is an operator's output.
        let loss = out.clone().mul_scalar(3.0).sum() + (out.clone() * out.clone()).sum();
        let grads = loss.backward();
        let factor = values(out.inner()).into_iter().map(|out| 3.0 + 2.0 * out);
        let want: Vec<f32> = factor.zip([1.0, -4.0, -6.0, 4.0]).map(|(factor, slope)| factor * slope).collect();
        assert_eq!(x.grad(&grads).map(values), Some(want));
    }
}

#[test]
fn operators_chain_through_other_operations_and_views() {
    for device in tracking_devices() {
        let x = Tensor::<2>::from_data(X, &device).require_grad();
        // Memory-bound operations before the operator, which checkpointing recomputes; a view after it.
        let y = x.clone().mul_scalar(2.0).transpose().abs();
        let out = weighted(&y, &y);
        let grads = weighted(&out.clone().transpose(), &Tensor::ones([2, 2], &device)).sum().backward();
        // out = y^3, loss = y^6, y = |2 x|.
        for (got, x) in values(x.grad(&grads).unwrap()).into_iter().zip([1.0f32, -2.0, 3.0, 0.5]) {
            assert_eq!(got, 6.0 * (2.0 * x.abs()).powi(5) * 2.0 * x.signum());
        }
    }
}

#[test]
fn constants_of_the_plain_device_mix_with_tracked_tensors() {
    let device = Device::flex().autodiff();
    let x = Tensor::<2>::from_data(X, &device).require_grad();
    let w = Tensor::<2>::from_data(W, &Device::flex());
    for out in [weighted(&x, &w), apply(Arc::new(Ladder(2)), &[(&w).into(), (&x).into()])] {
        assert!(x.grad(&out.sum().backward()).is_some());
    }
}

#[test]
fn any_number_of_inputs_keeps_its_order() {
    let device = Device::flex().autodiff();
    for count in 1..=MOST_OPERANDS {
        let inputs: Vec<Tensor<1>> =
            (0..count).map(|i| Tensor::from_data([1.0, 10f32.powi(i as i32)], &device).require_grad()).collect();
        let operands: Vec<Operand> = inputs.iter().map(Operand::from).collect();
        let out = apply::<1>(Arc::new(Ladder(count)), &operands);
        let want: f32 = (0..count).map(|i| (i + 1) as f32 * 10f32.powi(i as i32)).sum();
        assert_eq!(values(out.clone().inner())[1], want);
        let grads = out.sum().backward();
        for (i, input) in inputs.iter().enumerate() {
            assert_eq!(values(input.grad(&grads).unwrap()), [(i + 1) as f32; 2]);
        }
    }
}

#[test]
fn inputs_that_do_not_fit_are_errors() {
    let device = Device::flex();
    let x = Tensor::<2>::from_data(X, &device);
    let long = Tensor::<2>::zeros([2, 3], &device);
    let call = |inputs: &[Operand]| try_apply::<2>(Arc::new(Weighted), inputs).unwrap_err().to_string();
    assert!(call(&[(&x).into(), long.into()]).contains("tensor 'w' has shape [2, 3]"));
    assert!(call(&[(&x).into()]).contains("number of inputs is 1, expected 2 (x, w)"));
    assert!(call(&[(&x).into(), x.clone().cast(DType::F64).into()]).contains("element type of 'w' is F64"));
    let flat = try_apply::<1>(Arc::new(Weighted), &[(&x).into(), (&x).into()]).unwrap_err();
    assert!(flat.to_string().contains("expected 1 axes"));
}

/// `out = x w`, elementwise, of which `w` is drawn.
#[derive(Debug)]
struct Drawn;

impl Operator for Drawn {
    fn inputs(&self) -> Vec<&'static str> {
        vec!["x", "w"]
    }

    fn constants(&self) -> &'static [&'static str] {
        &["w"]
    }

    fn out_shape(&self, shapes: &[&[usize]]) -> Result<Vec<usize>, Error> {
        Ok(shapes[0].to_vec())
    }

    fn forward(&self, inputs: &[View<f32>], out: &mut [f32]) -> Saved {
        out.iter_mut().zip(inputs[0].data).zip(inputs[1].data).for_each(|((out, x), w)| *out = x * w);
        Saved::new()
    }

    fn backward(
        &self,
        inputs: &[View<f32>],
        _: &[f32],
        _: &Saved,
        grad_out: &[f32],
        wanted: &[bool],
    ) -> Vec<Option<Vec<f32>>> {
        let grad = || grad_out.iter().zip(inputs[1].data).map(|(g, w)| g * w).collect();
        vec![wanted[0].then(grad), None]
    }

    fn reference(&self, _: &[View<f64>], _: Option<&[f64]>) -> Reference {
        unreachable!("never asked for here")
    }
}

#[test]
fn what_is_drawn_gets_no_gradient_though_it_is_tracked() {
    let device = Device::flex().autodiff();
    let tensor = |values: [f32; 3]| Tensor::<1>::from_floats(values, &device).require_grad();
    let (x, w) = (tensor([1.0, 2.0, 3.0]), tensor([4.0, 5.0, 6.0]));
    let out: Tensor<1> = apply(Arc::new(Drawn), &[x.clone().into(), w.clone().into()]);
    let grads = out.sum().backward();
    let grad: Vec<f32> = x.grad(&grads).expect("x is learned").into_data().try_to_vec().expect("f32");
    assert_eq!(grad, [4.0, 5.0, 6.0]);
    assert!(w.grad(&grads).is_none());
}
