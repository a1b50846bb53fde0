//! What goes in and out as safetensors.

use std::{collections::HashMap, path::Path};

use regard_files::write_whole;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use super::{Embeddings, MaskedTokens};
use crate::{Element, Patch, PretrainedError};

impl Embeddings {
    /// Writes `embeddings [texts,width]` in f32.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), PretrainedError> {
        let bytes: Vec<u8> = self.values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let shape = vec![self.values.len() / self.width.max(1), self.width];
        let view = TensorView::new(Dtype::F32, shape, &bytes).expect("as many bytes as the shape says");
        let tensors = HashMap::from([("embeddings", view)]);
        let file = safetensors::serialize(tensors, None).expect("a tensor");
        write_whole(path, &file).map_err(PretrainedError::WriteWhole)
    }
}

/// Images of a file for a model with these patches: `pixel_values [count,channels,image,image]` in f32, f16 or bf16.
///
/// # Errors
/// A file that cannot be read or has no such tensor.
pub fn read_pixels(path: &Path, patch: Patch) -> Result<Vec<f32>, PretrainedError> {
    with_file(path, |file| {
        let tensor = tensor(file, path, "pixel_values")?;
        let (seen, Patch { channels, image, .. }) = (tensor.shape(), patch);
        if seen.len() != 4 || seen[1..] != [channels, image, image] {
            return Err(PretrainedError::content(
                path,
                format!("'pixel_values' has shape {seen:?}, expected [images, {channels}, {image}, {image}]"),
            ));
        }
        let element = Element::of(tensor.dtype()).ok_or_else(|| {
            PretrainedError::content(
                path,
                format!("'pixel_values' holds {:?}, expected F32, F16 or BF16", tensor.dtype()),
            )
        })?;
        let size = tensor.data().len() / element.bytes();
        Ok((0..size).map(|i| element.get(tensor.data(), i)).collect())
    })
}

/// Texts with hidden tokens of a file: whole numbers `input_ids [texts,tokens]`, `labels` of the same shape, below 0 where no token
/// is hidden, and where there are any `attention_mask`, 0 for padding at the end of a text, and `token_type_ids`.
///
/// # Errors
/// A file that cannot be read or has no such tensors.
pub fn read_masked(path: &Path) -> Result<Vec<MaskedTokens>, PretrainedError> {
    with_file(path, |file| {
        let (shape, ids) = whole(file, path, "input_ids")?;
        let &[rows, width] = &shape[..] else {
            return Err(PretrainedError::content(path, format!("'input_ids' has shape {shape:?}, expected 2 axes")));
        };
        let like = |name: &str| {
            let (seen, values) = whole(file, path, name)?;
            if seen == shape {
                return Ok(values);
            }
            Err(PretrainedError::content(path, format!("'{name}' has shape {seen:?}, expected {shape:?}")))
        };
        let optional = |name: &str, missing: i64| {
            if file.tensor(name).is_ok() { like(name) } else { Ok(vec![missing; rows * width]) }
        };
        let labels = like("labels")?;
        let (real, types) = (optional("attention_mask", 1)?, optional("token_type_ids", 0)?);
        let mut texts = Vec::with_capacity(rows);
        for row in 0..rows {
            let places = row * width..(row + 1) * width;
            let length = real[places.clone()].iter().take_while(|real| **real != 0).count();
            if real[places.clone()][length..].iter().any(|real| *real != 0) {
                let problem = format!(
                    "'attention_mask' of text {} has a 1 after a 0, expected padding at the end alone",
                    row + 1
                );
                return Err(PretrainedError::content(path, problem));
            }
            let places = places.start..places.start + length;
            let number = |value: &i64| {
                let problem =
                    || PretrainedError::content(path, format!("token {value} of text {}, expected from 0", row + 1));
                u32::try_from(*value).map_err(|_| problem())
            };
            let mut text = MaskedTokens::default();
            text.seen.ids = ids[places.clone()].iter().map(number).collect::<Result<_, _>>()?;
            text.seen.types = types[places.clone()].iter().map(number).collect::<Result<_, _>>()?;
            let hidden = labels[places].iter().enumerate().filter(|(_, label)| **label >= 0);
            text.hidden = hidden.map(|(at, label)| number(label).map(|label| (at, label))).collect::<Result<_, _>>()?;
            texts.push(text);
        }
        Ok(texts)
    })
}

fn with_file<R>(
    path: &Path,
    read: impl FnOnce(&SafeTensors) -> Result<R, PretrainedError>,
) -> Result<R, PretrainedError> {
    let bytes = std::fs::read(path).map_err(PretrainedError::reading(path))?;
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|error| PretrainedError::content(path, format!("not safetensors: {error}; give another file")))?;
    read(&file)
}

fn tensor<'a>(file: &SafeTensors<'a>, path: &Path, name: &str) -> Result<TensorView<'a>, PretrainedError> {
    file.tensor(name).map_err(|_| PretrainedError::content(path, format!("no tensor '{name}', expected one")))
}

/// Shape and elements of a tensor of whole numbers.
fn whole(file: &SafeTensors, path: &Path, name: &str) -> Result<(Vec<usize>, Vec<i64>), PretrainedError> {
    let tensor = tensor(file, path, name)?;
    let (kind, data) = (tensor.dtype(), tensor.data());
    let values = match kind {
        Dtype::I64 => data.chunks_exact(8).map(|x| i64::from_le_bytes(x.try_into().expect("8 bytes"))).collect(),
        Dtype::I32 => data.chunks_exact(4).map(|x| i32::from_le_bytes(x.try_into().expect("4 bytes")).into()).collect(),
        Dtype::U8 | Dtype::BOOL => data.iter().map(|x| i64::from(*x)).collect(),
        _ => return Err(PretrainedError::content(path, format!("'{name}' holds {kind:?}, expected I64, I32 or U8"))),
    };
    Ok((tensor.shape().to_vec(), values))
}
