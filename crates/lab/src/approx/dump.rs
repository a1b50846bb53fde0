//! Attention matrices of queries, keys and values in a safetensors file.

use safetensors::{Dtype, SafeTensors};

use super::{SourceError, dense::Dense, head::Head};
use crate::tensors::tensors;

/// A tensor of four axes.
struct Tensor {
    shape: [usize; 4],
    data: Vec<f64>,
}

/// Every head of every batch row of `q [B,H,N,D]`, `k [B,Hk,S,D]`, `v [B,Hk,S,Dv]`, F32 or F64; all in one group.
/// `scale` is the score scale, default `1/sqrt(D)`. Padding is not supported: remove it first.
///
/// # Errors
/// A truncated file, tensors that are missing, not finite or do not fit together.
pub fn dump(file: &[u8], scale: Option<f64>, causal: bool) -> Result<Vec<Head>, SourceError> {
    let tensors = tensors(file).map_err(SourceError::Data)?;
    if tensors.names().contains(&"valid") {
        let seen = "tensor 'valid': padded tokens have no attention to approximate";
        return Err(SourceError::Data(format!("{seen}; give sequences without padding, and no 'valid'")));
    }
    let [q, k, v] = ["q", "k", "v"].map(|name| read(&tensors, name));
    let (q, k, v) = (q?, k?, v?);
    let ([batch, heads, _, d], [_, key_heads, s, _]) = (q.shape, k.shape);
    let fits = |name: &str, seen: [usize; 4], expected: [usize; 4]| {
        if seen == expected {
            return Ok(());
        }
        Err(SourceError::Data(format!("tensor '{name}' has shape {seen:?}, expected {expected:?} to fit the others")))
    };
    fits("k", k.shape, [batch, key_heads, s, d])?;
    fits("v", v.shape, [batch, key_heads, s, v.shape[3]])?;
    if key_heads == 0 || heads % key_heads != 0 {
        return Err(SourceError::Data(format!(
            "tensor 'k' has {key_heads} heads, expected a divisor of the {heads} of 'q'"
        )));
    }
    let scale = scale.unwrap_or_else(|| (d as f64).sqrt().recip());
    let pairs = (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h)));
    Ok(pairs
        .map(|(b, h)| {
            let key_head = h / (heads / key_heads);
            let (queries, keys, values) = (q.matrix(b, h), k.matrix(b, key_head), v.matrix(b, key_head));
            Head { group: "input".into(), queries, keys, values, scale, causal }
        })
        .collect())
}

fn read(tensors: &SafeTensors, name: &str) -> Result<Tensor, SourceError> {
    let refuse =
        |seen: String, expected: &str| Err(SourceError::Data(format!("tensor '{name}' {seen}, expected {expected}")));
    let Ok(view) = tensors.tensor(name) else { return refuse("is missing".into(), "q, k and v") };
    let shape: [usize; 4] = match view.shape().try_into() {
        Ok(shape) => shape,
        Err(_) => return refuse(format!("has shape {:?}", view.shape()), "[batch, heads, tokens, width]"),
    };
    if shape.contains(&0) {
        return refuse(format!("has shape {shape:?}"), "no axis of length 0");
    }
    let bytes = view.data();
    let data: Vec<f64> = match view.dtype() {
        Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
        Dtype::F64 => bytes.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
        other => return refuse(format!("holds {other:?} numbers"), "F32 or F64"),
    };
    if let Some(x) = data.iter().find(|x| !(**x as f32).is_finite()) {
        return refuse(format!("holds {x}"), "finite float32 numbers");
    }
    Ok(Tensor { shape, data })
}

impl Tensor {
    fn matrix(&self, b: usize, h: usize) -> Dense {
        let [_, heads, rows, columns] = self.shape;
        let size = rows * columns;
        Dense::new(rows, columns, self.data[(b * heads + h) * size..][..size].to_vec())
    }
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;

    use super::*;

    fn file(tensors: &[(&str, &[usize])]) -> Vec<u8> {
        let data: Vec<Vec<u8>> = tensors
            .iter()
            .map(|(_, shape)| (0..shape.iter().product::<usize>()).flat_map(|i| (i as f32).to_le_bytes()).collect())
            .collect();
        let views = tensors.iter().zip(&data).map(|((name, shape), data)| {
            (name.to_string(), TensorView::new(Dtype::F32, shape.to_vec(), data).unwrap())
        });
        safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap()
    }

    #[test]
    fn every_head_has_the_keys_of_its_group() {
        let file = file(&[("q", &[2, 4, 3, 2]), ("k", &[2, 2, 5, 2]), ("v", &[2, 2, 5, 1])]);
        let heads = dump(&file, None, true).unwrap();
        assert_eq!(heads.len(), 8);
        let last = &heads[7];
        assert_eq!((last.queries.rows, last.keys.rows, last.values.columns), (3, 5, 1));
        assert_eq!((last.queries.data[0], last.keys.data[0], last.values.data[4]), (42.0, 30.0, 19.0));
        assert_eq!((last.scale, heads[4].keys == heads[5].keys), (2f64.sqrt().recip(), true));
        // Bottom-right: the last query sees all, the first three.
        assert!(last.sees(2, 4) && last.sees(0, 2) && !last.sees(0, 3));
    }

    #[test]
    fn unusable_files_are_refused() {
        let refused = |tensors: &[(&str, &[usize])], part: &str| {
            let error = dump(&file(tensors), None, false).unwrap_err().to_string();
            assert!(error.contains(part), "{part} in {error}");
        };
        refused(&[("q", &[1, 1, 2, 2]), ("k", &[1, 1, 2, 2])], "'v' is missing");
        refused(&[("q", &[1, 1, 2, 2]), ("k", &[1, 1, 2, 3]), ("v", &[1, 1, 2, 2])], "'k' has shape [1, 1, 2, 3]");
        refused(&[("q", &[1, 3, 2, 2]), ("k", &[1, 2, 2, 2]), ("v", &[1, 2, 2, 2])], "divisor");
        refused(&[("q", &[1, 2, 2]), ("k", &[1, 1, 2, 2]), ("v", &[1, 1, 2, 2])], "[batch, heads, tokens, width]");
        refused(&[("q", &[1, 1, 2, 2]), ("k", &[1, 1, 2, 2]), ("v", &[1, 1, 2, 2]), ("valid", &[1, 2])], "padding");
        assert!(dump(b"no", None, false).is_err());
    }
}
