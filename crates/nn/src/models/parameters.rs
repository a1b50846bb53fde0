//! Parameters and buffers of a model by name, in a fixed order, to and from the host.
//!
//! Names are those of Hugging Face files: fields joined by dots, `layers.0.attention.w_q`.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{FloatDType, Tensor, TensorData};
use regard_kernels::{Error, Storage};

use crate::ops;

/// A parameter or buffer on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedParameter {
    /// Dotted name.
    pub name: String,
    /// Sizes of its axes.
    pub shape: Vec<usize>,
    /// Elements in row-major order.
    pub values: Vec<f32>,
    /// Whether it is a buffer: see [`is_buffer`].
    pub buffer: bool,
}

/// Shapes and elements of parameters and buffers by name.
pub type ParameterMap = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// What can be wrong with a set of parameters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParameterError {
    /// The model has parameters that the set lacks.
    #[error("parameters are missing: {}", names(.0))]
    Missing(Vec<String>),
    /// The set has parameters that the model lacks.
    #[error("parameters are not part of this model: {}", names(.0))]
    Unexpected(Vec<String>),
    /// A parameter has another shape than the model's.
    #[error("parameter '{name}' has shape {seen:?}, expected {expected:?}")]
    Shape {
        /// Its name.
        name: String,
        /// Its shape in the set.
        seen: Vec<usize>,
        /// Its shape in the model.
        expected: Vec<usize>,
    },
}

fn names(list: &[String]) -> String {
    // A wrong model gives hundreds of names: the first few say enough.
    const SHOWN: usize = 8;
    let mut text = list.iter().take(SHOWN).map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    if list.len() > SHOWN {
        text.push_str(&format!(" and {} more", list.len() - SHOWN));
    }
    text
}

/// Fields whose parts count as parts of what holds them.
const TRANSPARENT: [&str; 5] = ["body", "output", "stack", "embeddings", "projections"];

/// The dotted name of where a [`ModuleVisitor`] or [`ModuleMapper`] stands.
///
/// Variants of an enum and the parts that models and layers share add nothing to a name.
#[derive(Clone, Debug, Default)]
pub struct ParameterPath(Vec<Option<String>>);

impl ParameterPath {
    /// Call it from `enter_module`.
    pub fn enter(&mut self, name: &str, container: &str) {
        let transparent = container.starts_with("Enum:") || TRANSPARENT.contains(&name);
        self.0.push((!transparent).then(|| name.to_string()));
    }

    /// Call it from `exit_module`.
    pub fn exit(&mut self) {
        self.0.pop();
    }

    /// The name.
    pub fn name(&self) -> String {
        self.0.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(".")
    }
}

/// All parameters and buffers, in the order of the model's fields.
pub fn named_parameters<M: Module>(model: &M) -> Vec<NamedParameter> {
    struct Collect(ParameterPath, Vec<NamedParameter>);
    impl ModuleVisitor for Collect {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            let name = self.0.name();
            self.1.push(NamedParameter {
                shape: value.dims().to_vec(),
                buffer: is_buffer(&name),
                name,
                values: value.into_data_as::<f32>().try_to_vec().expect("f32, as asked"),
            });
        }
    }
    let mut collect = Collect(ParameterPath::default(), Vec::new());
    model.visit(&mut collect);
    collect.1
}

/// Number of elements of all parameters that are trained; buffers do not count.
pub fn parameter_count<M: Module>(model: &M) -> usize {
    model.num_params() - buffer_count(model)
}

fn buffer_count<M: Module>(model: &M) -> usize {
    struct Count(ParameterPath, usize);
    impl ModuleVisitor for Count {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if is_buffer(&self.0.name()) {
                self.1 += param.lazy_shape().num_elements();
            }
        }
    }
    let mut count = Count(ParameterPath::default(), 0);
    model.visit(&mut count);
    count.1
}

/// Whether `name` is a buffer: state that follows the data or is drawn, and is no target of the optimizer.
pub fn is_buffer(name: &str) -> bool {
    ["prior", "projection", "directions", "rotations"].contains(&name.rsplit('.').next().unwrap_or(name))
}

/// The model with every parameter and buffer replaced. Clones of a model share its buffers, so that those of a clone
/// change too; [`Module::valid`] and [`Module::train`] give copies that do not.
///
/// # Errors
/// Names that are missing, that the model does not have, or shapes that are not the model's; nothing is replaced then.
pub fn load_parameters<M: Module>(model: M, mut parameters: ParameterMap) -> Result<M, ParameterError> {
    check(&model, &parameters)?;
    struct Replace<'a>(ParameterPath, &'a mut ParameterMap);
    impl ModuleMapper for Replace<'_> {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }

        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (shape, values) = self.1.remove(&self.0.name()).expect("checked before");
            let (id, old, mapper) = param.consume();
            let new = Tensor::from_data(TensorData::new(values, shape), &old.device());
            Param::from_mapped_value(id, new.set_require_grad(old.is_require_grad()), mapper)
        }
    }
    Ok(model.map(&mut Replace(ParameterPath::default(), &mut parameters)))
}

/// The model with its matrices in the layout that is fastest for decoding token by token, stored as `storage` says: for
/// inference on the CPU. Half the bytes are read in half the time; weights that came as f16 or bf16 lose nothing.
///
/// Vectors and tables of positions stay f32, and so do all sums.
///
/// # Errors
/// Integer storage, which would need scales; anything but f32 on a device other than the CPU or with autodiff.
pub fn compact_weights<M: Module>(model: M, storage: Storage) -> Result<M, Error> {
    struct Compact(ParameterPath, FloatDType);
    impl ModuleMapper for Compact {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }

        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let name = self.0.name();
            let part = name.rsplit('.').next().unwrap_or(&name);
            let kind = self.1;
            if D != 2 {
                return param;
            }
            if part == "token_embedding" {
                // Its rows are the columns of a head that is tied to it.
                return param.map(|weight| weight.cast(kind));
            }
            if part == "w" || part == "head" || part.starts_with("w_") {
                // To the host and back: a tensor transposed twice would be the same view of the same buffer.
                return param.map(|weight| {
                    let (device, turned) = (weight.device(), weight.transpose());
                    Tensor::<D>::from_data(turned.into_data(), &device).cast(kind).transpose()
                });
            }
            param
        }
    }
    if !model.devices().iter().all(ops::runs_unrecorded) {
        // The order of elements matters to kernels only.
        return match storage {
            Storage::F32 => Ok(model),
            _ => Err(Error::option("storage of weights", storage.name(), "f32, which every device has, or the CPU")),
        };
    }
    let kind = match storage {
        Storage::F32 => FloatDType::F32,
        Storage::F16 => FloatDType::F16,
        Storage::Bf16 => FloatDType::BF16,
        _ => return Err(Error::option("storage of weights", storage.name(), "f32, bf16 or f16")),
    };
    Ok(model.map(&mut Compact(ParameterPath::default(), kind)))
}

fn check<M: Module>(model: &M, given: &ParameterMap) -> Result<(), ParameterError> {
    struct Shapes(ParameterPath, BTreeMap<String, Vec<usize>>);
    impl ModuleVisitor for Shapes {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.insert(self.0.name(), param.lazy_shape().to_vec());
        }
    }
    let mut shapes = Shapes(ParameterPath::default(), BTreeMap::new());
    model.visit(&mut shapes);
    let wanted: BTreeSet<_> = shapes.1.keys().cloned().collect();
    let seen: BTreeSet<_> = given.keys().cloned().collect();
    let missing: Vec<_> = wanted.difference(&seen).cloned().collect();
    if !missing.is_empty() {
        return Err(ParameterError::Missing(missing));
    }
    let unexpected: Vec<_> = seen.difference(&wanted).cloned().collect();
    if !unexpected.is_empty() {
        return Err(ParameterError::Unexpected(unexpected));
    }
    for (name, expected) in shapes.1 {
        let (seen, values) = &given[&name];
        if *seen != expected || values.len() != expected.iter().product::<usize>() {
            return Err(ParameterError::Shape { name, seen: seen.clone(), expected });
        }
    }
    Ok(())
}
