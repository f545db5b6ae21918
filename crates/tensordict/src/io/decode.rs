//! Reading a dict from safetensors.

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::layout::{Layout, METADATA_KEY, corrupt, key_of};
use crate::shape::checked_numel;
use crate::{DType, NestedKey, Result, Tensor, TensorDict, TensorError};

impl TensorDict {
    /// Reads the bytes of a safetensors file; every tensor is a copy, aligned whatever its place in
    /// `bytes`.
    ///
    /// A file that another library wrote gives a flat dict of batch size `[]`: names are kept as
    /// they are, so `"0.weight"` is one name. Tensors of `bfloat16` and `float16` are read as
    /// `float32`, with the same values.
    ///
    /// # Errors
    /// [`TensorError::Corrupt`] when the bytes are not a complete, valid file,
    /// [`TensorError::UnsupportedDType`] and [`TensorError::BoolByte`] at the tensor concerned.
    pub fn from_bytes(bytes: &[u8]) -> Result<TensorDict> {
        let invalid = |error: safetensors::SafeTensorError| corrupt(error.to_string());
        let file = SafeTensors::deserialize(bytes).map_err(invalid)?;
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(invalid)?;
        let item = header
            .metadata()
            .as_ref()
            .and_then(|metadata| metadata.get(METADATA_KEY));
        // The file's own order is that of a hash map; by name, the first error is always the same
        // one.
        let mut tensors = file.tensors();
        tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
        match item {
            Some(text) => read_nested(&Layout::from_json(text)?, &tensors),
            None => read_flat(&tensors),
        }
    }
}

fn read_flat(tensors: &[(String, TensorView<'_>)]) -> Result<TensorDict> {
    let mut out = TensorDict::new([]);
    for (name, view) in tensors {
        out.set(name, read_tensor(view).map_err(|error| error.at(name))?)?;
    }
    Ok(out)
}

fn read_nested(layout: &Layout, tensors: &[(String, TensorView<'_>)]) -> Result<TensorDict> {
    if layout.tensors.len() != tensors.len() {
        let (named, held) = (layout.tensors.len(), tensors.len());
        return Err(corrupt(format!(
            "{METADATA_KEY} names {named} tensors, the file holds {held}"
        )));
    }
    let mut out = layout.skeleton()?;
    for (name, view) in tensors {
        let path = layout.tensors.get(name).filter(|path| !path.is_empty());
        let path =
            path.ok_or_else(|| corrupt(format!("{METADATA_KEY} has no path for tensor {name:?}")))?;
        let key = key_of(path);
        let (_, parent) = path.split_last().unwrap_or((name, &[]));
        let known = parent.is_empty() || out.get_dict(key_of(parent)).is_ok();
        if !known || out.contains_key(&key) {
            return Err(corrupt(format!(
                "tensor {key:?} comes twice, or is in no dict"
            )));
        }
        let tensor = match layout.strings.get(name) {
            Some(shape) => Tensor::from_bytes(DType::Bytes, shape, view.data()),
            None => read_tensor(view),
        };
        let tensor = tensor.map_err(|error| error.at(NestedKey::from(&key)))?;
        out.set(&key, tensor)?;
    }
    Ok(out)
}

fn read_tensor(view: &TensorView<'_>) -> Result<Tensor> {
    match view.dtype() {
        Dtype::BF16 => widened(view, from_bf16),
        Dtype::F16 => widened(view, from_f16),
        dtype => Tensor::from_bytes(dtype_of(dtype)?, view.shape(), view.data()),
    }
}

/// The floats of two bytes in `view` as `float32`, which holds each of them exactly.
fn widened(view: &TensorView<'_>, widen: fn(u16) -> f32) -> Result<Tensor> {
    let count = checked_numel(view.shape(), DType::F32)?;
    // The file was found to hold as many bytes as each shape needs.
    let (halves, _) = view.data().as_chunks();
    let values = halves.iter().map(|&half| widen(u16::from_le_bytes(half)));
    Tensor::from_iter_exact(count, view.shape(), values)
}

/// The upper half of a `float32`.
fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// One bit of sign, five of the exponent with a bias of 15 (127 in a `float32`), ten of the
/// fraction.
fn from_f16(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = u32::from((bits >> 10) & 0x1f);
    let fraction = u32::from(bits & 0x3ff);
    let magnitude = match exponent {
        // A multiple of the smallest number, 2^-24.
        0 => (fraction as f32 / 16_777_216.0).to_bits(),
        // Infinite, or not a number.
        0x1f => (0xff << 23) | (fraction << 13),
        _ => ((exponent + 127 - 15) << 23) | (fraction << 13),
    };
    f32::from_bits(sign | magnitude)
}

fn dtype_of(dtype: Dtype) -> Result<DType> {
    Ok(match dtype {
        Dtype::BOOL => DType::Bool,
        Dtype::U8 => DType::U8,
        Dtype::I8 => DType::I8,
        Dtype::I16 => DType::I16,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        other => {
            return Err(TensorError::UnsupportedDType {
                dtype: other.to_string(),
            });
        }
    })
}
