//! Writing a dict as safetensors.

use std::cmp::Reverse;
use std::io::{self, Write};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::layout::{Layout, METADATA_KEY, corrupt, key_of};
use crate::{DType, Result, Tensor, TensorDict, TensorError};

/// Every tensor starts at a multiple of this, counted from the start of the file, so that it can be
/// mapped.
const ALIGN: usize = 8;

impl TensorDict {
    /// The dict as the bytes of a safetensors file.
    ///
    /// Nested keys, batch sizes and dimension names come back from
    /// [`from_bytes`](TensorDict::from_bytes) exactly.
    ///
    /// # Errors
    /// [`TensorError::Corrupt`] when the format cannot hold the dict (its header and its depth are
    /// limited), [`TensorError::NoMemory`] and [`TensorError::Io`] when there is no memory for the
    /// bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let sizes = self.leaves().map(|(_, tensor)| match tensor.dtype() {
            DType::Bytes => tensor.encoded_len(),
            _ => tensor.byte_len(),
        });
        let size = sizes.fold(0usize, usize::saturating_add);
        let mut bytes = Vec::new();
        let reserved = bytes.try_reserve(size);
        reserved.map_err(|error| TensorError::Io {
            op: "write",
            error: error.into(),
        })?;
        encode(self, &mut bytes)?;
        Ok(bytes)
    }
}

/// Writes `dict` to `out`, one tensor after the other.
pub(super) fn encode(dict: &TensorDict, out: &mut impl Write) -> Result<()> {
    let layout = Layout::of(dict)?;
    let mut tensors = Vec::with_capacity(layout.tensors.len());
    for (name, path) in &layout.tensors {
        let tensor = dict.get(key_of(path))?;
        let tensor = match tensor.dtype() {
            DType::Bytes => {
                let block = tensor.encoded()?;
                Tensor::from_slice(&block, [block.len()])?
            }
            _ => tensor.clone(),
        };
        tensors.push((name, tensor));
    }
    // Widest first keeps every tensor aligned to its element; the order by name is kept within one
    // width.
    tensors.sort_by_key(|(_, tensor)| Reverse(tensor.dtype().size()));

    let mut header = header(&layout, &tensors)?.into_bytes();
    header.resize(header.len().next_multiple_of(ALIGN), b' ');
    let failed = |error: io::Error| TensorError::Io { op: "write", error };
    out.write_all(&(header.len() as u64).to_le_bytes())
        .map_err(failed)?;
    out.write_all(&header).map_err(failed)?;
    for (_, tensor) in tensors {
        let written = match tensor.as_bytes() {
            Ok(bytes) => out.write_all(bytes),
            Err(_) => out.write_all(tensor.try_detach()?.as_bytes()?),
        };
        written.map_err(failed)?;
    }
    Ok(())
}

fn header(layout: &Layout, tensors: &[(&String, Tensor)]) -> Result<String> {
    let mut end = 0usize;
    let infos = tensors.iter().map(|(name, tensor)| {
        let start = end;
        end = end.saturating_add(tensor.byte_len());
        let info = TensorInfo {
            dtype: file_dtype(tensor.dtype()),
            shape: tensor.shape().to_vec(),
            data_offsets: (start, end),
        };
        ((*name).clone(), info)
    });
    let infos = infos.collect();
    let item = std::iter::once((METADATA_KEY.to_owned(), layout.to_json())).collect();
    let metadata = Metadata::new(Some(item), infos).map_err(|error| corrupt(error.to_string()))?;
    serde_json::to_string(&metadata).map_err(|error| corrupt(error.to_string()))
}

fn file_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        // Bytes are written in their encoded form.
        DType::U8 | DType::Bytes => Dtype::U8,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
    }
}
