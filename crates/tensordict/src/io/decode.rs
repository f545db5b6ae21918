//! Reading a dict from safetensors.

use std::ptr::NonNull;
use std::sync::Arc;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};

use super::encode::PREFIX;
use super::layout::{Layout, METADATA_KEY, corrupt, key_of};
use crate::shape::{checked_numel, row_major};
use crate::{DType, NestedKey, Owner, Result, Shape, Tensor, TensorDict, TensorError};

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
        decode(bytes, None)
    }

    /// As [`from_bytes`](Self::from_bytes), of `bytes` in one dimension without gaps. Tensors of
    /// numbers are views of it where they are aligned, as all are that
    /// [`encoding`](Self::encoding) has written to a multiple of 8.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes), and [`TensorError::DType`] and
    /// [`TensorError::NotContiguous`] for other tensors than one of bytes (`uint8`).
    pub fn views_of_bytes(bytes: &Tensor) -> Result<TensorDict> {
        decode(bytes.as_slice::<u8>()?, Some(bytes.owner()))
    }
}

/// Reads the file `bytes`, whose numbers may be viewed where `owner` keeps them.
fn decode(bytes: &[u8], owner: Option<&Owner>) -> Result<TensorDict> {
    let invalid = |error: SafeTensorError| corrupt(error.to_string());
    let (header, metadata) = SafeTensors::read_metadata(bytes).map_err(invalid)?;
    let data = &bytes[PREFIX + header..];
    let views = metadata.tensors().into_iter().map(|(name, info)| {
        let (start, end) = info.data_offsets;
        let view = TensorView::new(info.dtype, info.shape.clone(), &data[start..end]);
        Ok((
            name,
            Stored {
                view: view.map_err(invalid)?,
                owner,
            },
        ))
    });
    let mut tensors = views.collect::<Result<Vec<_>>>()?;
    // The header's own order is that of a hash map; by name, the first error is always the same
    // one.
    tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
    let item = metadata.metadata().as_ref();
    match item.and_then(|item| item.get(METADATA_KEY)) {
        Some(text) => read_nested(&Layout::from_json(text)?, &tensors),
        None => read_flat(&tensors),
    }
}

/// A tensor of a file.
struct Stored<'a> {
    view: TensorView<'a>,
    /// Keeps its numbers, where they may be viewed.
    owner: Option<&'a Owner>,
}

fn read_flat(tensors: &[(String, Stored<'_>)]) -> Result<TensorDict> {
    let mut out = TensorDict::new([]);
    for (name, stored) in tensors {
        out.set(name, stored.read().map_err(|error| error.at(name))?)?;
    }
    Ok(out)
}

fn read_nested(layout: &Layout, tensors: &[(String, Stored<'_>)]) -> Result<TensorDict> {
    if layout.tensors.len() != tensors.len() {
        let (named, held) = (layout.tensors.len(), tensors.len());
        return Err(corrupt(format!(
            "{METADATA_KEY} names {named} tensors, the file holds {held}"
        )));
    }
    let mut out = layout.skeleton()?;
    for (name, stored) in tensors {
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
            Some(shape) => Tensor::from_bytes(DType::Bytes, shape, stored.view.data()),
            None => stored.read(),
        };
        let tensor = tensor.map_err(|error| error.at(NestedKey::from(&key)))?;
        out.set(&key, tensor)?;
    }
    Ok(out)
}

impl Stored<'_> {
    /// The tensor of numbers.
    fn read(&self) -> Result<Tensor> {
        let view = &self.view;
        let dtype = match view.dtype() {
            Dtype::BF16 => return widened(view, from_bf16),
            Dtype::F16 => return widened(view, from_f16),
            dtype => dtype_of(dtype)?,
        };
        let start = NonNull::from(view.data()).cast::<u8>();
        match self.owner {
            Some(owner) if start.addr().get().is_multiple_of(dtype.size()) => {
                dtype.check(view.data())?;
                let shape = Shape::from_slice(view.shape());
                let strides = row_major(&shape);
                // SAFETY: the header was found to give just the bytes of this shape, which `owner`
                // keeps and nobody writes. Every bit pattern is a number, and bools were checked.
                // They are aligned.
                Ok(unsafe { Tensor::from_raw(start, dtype, shape, strides, Arc::clone(owner)) })
            }
            _ => Tensor::from_bytes(dtype, view.shape(), view.data()),
        }
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
