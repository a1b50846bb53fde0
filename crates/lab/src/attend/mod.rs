//! One mechanism applied to the tensors of a safetensors file: a black box for interoperability and tests.

mod fit;
mod inputs;
mod plan;
mod ranks;

use std::collections::BTreeMap;

use regard_cluster::ClusterError;
use regard_kernels::{AttentionOptions, Error};
use regard_sequence::SequenceError;
use regard_tasks::{Class, Classed};
use safetensors::{Dtype, tensor::TensorView};

use inputs::{Inputs, Tensor, place};
use plan::Plan;
pub use ranks::Ranks;

/// What to apply, and how.
#[derive(Clone)]
pub struct Request<'a> {
    /// Mechanism, mask and options. Sizes (heads, components, rows, rounds, experts) are inferred from the tensors.
    pub options: AttentionOptions,
    /// Whether an option, by key, was set explicitly: it then overrides the tensor shapes, or contradicts them, an error.
    pub chosen: &'a dyn Fn(&str) -> bool,
    /// Score scale instead of `1 / sqrt(D)`.
    pub scale: Option<f64>,
    /// Runs the float64 twin instead of the kernel.
    pub reference: bool,
    /// Seed for shifts, projections, directions and rotations missing from the file.
    pub seed: u64,
    /// Who computes.
    pub ranks: Ranks,
}

/// Why a mechanism could not be applied to a file.
#[derive(Debug, thiserror::Error)]
pub enum AttendError {
    /// Not a valid safetensors file, or an unusable tensor in it.
    #[error("{0}")]
    Data(String),
    /// A result that is not a number.
    #[error("{0}")]
    Numeric(String),
    /// Tensors or options that do not fit together.
    #[error(transparent)]
    Call(#[from] Error),
    /// Another rank of the job that is gone.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl From<SequenceError> for AttendError {
    fn from(error: SequenceError) -> Self {
        match error {
            SequenceError::Call(error) => Self::Call(error),
            SequenceError::Cluster(error) => Self::Cluster(error),
        }
    }
}

impl Classed for AttendError {
    fn class(&self) -> Class {
        match self {
            Self::Data(_) | Self::Cluster(_) => Class::Data,
            Self::Numeric(_) => Class::Numeric,
            Self::Call(error) => error.class(),
        }
    }
}

/// Applies the mechanism to the tensors of `file`; returns the bytes of a file with `out`, `lse` if it exists,
/// `prior_after` for soft-EM, `balance_loss` and `z_loss` if there is a router, and, if the file has `grad_out`,
/// `grad.NAME` for each input that is not random, and `grad_balance.NAME` and `grad_z.NAME` for those of a router. Tensors have the type of `q` or `x` (or of the first tensor if there
/// is neither).
///
/// # Errors
/// A truncated file, non-finite numbers, tensors that are missing or do not fit, results beyond the type of numbers.
pub fn attend(file: &[u8], request: &Request) -> Result<Vec<u8>, AttendError> {
    let mut inputs = Inputs::read(file)?;
    let plan = Plan::new(&mut inputs, request)?;
    let outputs = plan.run(&inputs, request)?;
    outputs.iter().try_for_each(|(name, tensor)| check_result(name, tensor, &plan, &inputs, request))?;
    Ok(write(&outputs, inputs.dtype))
}

/// Fails if a result overflowed. The logarithm of a sum over no key is minus infinity, and meant.
fn check_result(
    name: &str,
    tensor: &Tensor,
    plan: &Plan,
    inputs: &Inputs,
    request: &Request,
) -> Result<(), AttendError> {
    let written = |x: f64| if inputs.dtype == Dtype::F64 { x } else { f64::from(x as f32) };
    let fine = |x: f64| x.is_finite() || (name == "lse" && x == f64::NEG_INFINITY);
    let Some(at) = tensor.data.iter().position(|x| !fine(written(*x))) else { return Ok(()) };
    let largest = |tensor: &Tensor| tensor.data.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    let used = plan.names.iter().chain(&["grad_out"]).filter_map(|name| Some((*name, inputs.real.get(*name)?)));
    let sizes = used.map(|(name, tensor)| (name, largest(tensor)));
    let (blamed, most) = sizes.max_by(|a, b| a.1.total_cmp(&b.1)).expect("a call has inputs");
    let blamed = match request.scale {
        Some(scale) if scale > most => format!("'{blamed}', and of scores {scale:e} times as large,"),
        _ => format!("'{blamed}'"),
    };
    let remedy = if request.reference { "" } else { ", or --reference, which computes in float64" };
    Err(AttendError::Numeric(format!(
        "result '{name}' is {} at {:?}: sums of numbers as large as {most:e} in {blamed} overflow; expected smaller \
         ones{remedy}",
        written(tensor.data[at]),
        place(at, &tensor.shape),
    )))
}

fn write(tensors: &BTreeMap<String, Tensor>, dtype: Dtype) -> Vec<u8> {
    let bytes: Vec<Vec<u8>> = tensors
        .values()
        .map(|tensor| match dtype {
            Dtype::F64 => tensor.data.iter().flat_map(|x| x.to_le_bytes()).collect(),
            _ => tensor.data.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect(),
        })
        .collect();
    let views = tensors.iter().zip(&bytes).map(|((name, tensor), bytes)| {
        (name.clone(), TensorView::new(dtype, tensor.shape.clone(), bytes).expect("as many bytes as the shape says"))
    });
    safetensors::serialize(views.collect::<Vec<_>>(), None).expect("views are whole")
}
