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

/// Where elements have gaps, larger rows (in bytes) are written one after the other, since each may
/// have none.
const ROW: usize = 1 << 12;

/// Smaller rows are copied together, up to this many bytes, which stay in the cache.
const PART: usize = 1 << 16;

/// Bytes before the header: its length.
pub(super) const PREFIX: usize = size_of::<u64>();

/// A dict that is about to be written as safetensors, see [`TensorDict::encoding`].
#[derive(Debug)]
pub struct Encoding {
    /// Everything before the first tensor.
    head: Vec<u8>,
    /// In the order of the file.
    tensors: Vec<Tensor>,
}

impl TensorDict {
    /// The dict as a safetensors file that is to be written into memory of the caller's.
    ///
    /// # Errors
    /// [`TensorError::Corrupt`] when the format cannot hold the dict (its header and its depth are
    /// limited), [`TensorError::NoMemory`].
    pub fn encoding(&self) -> Result<Encoding> {
        let layout = Layout::of(self)?;
        let mut tensors = Vec::with_capacity(layout.tensors.len());
        for (name, path) in &layout.tensors {
            let tensor = self.get(key_of(path))?;
            let tensor = match tensor.dtype() {
                DType::Bytes => {
                    let block = tensor.encoded()?;
                    Tensor::from_slice(&block, [block.len()])?
                }
                _ => tensor.clone(),
            };
            tensors.push((name, tensor));
        }
        // Widest first keeps every tensor aligned to its element; the order by name is kept within
        // one width.
        tensors.sort_by_key(|(_, tensor)| Reverse(tensor.dtype().size()));

        let header = header(&layout, &tensors)?.into_bytes();
        let padded = header.len().next_multiple_of(ALIGN);
        let mut head = Vec::with_capacity(PREFIX + padded);
        head.extend((padded as u64).to_le_bytes());
        head.extend(header);
        head.resize(PREFIX + padded, b' ');
        let tensors = tensors.into_iter().map(|(_, tensor)| tensor).collect();
        Ok(Encoding { head, tensors })
    }

    /// The dict as the bytes of a safetensors file.
    ///
    /// Nested keys, batch sizes and dimension names come back from
    /// [`from_bytes`](TensorDict::from_bytes) exactly.
    ///
    /// # Errors
    /// As [`encoding`](Self::encoding), and [`TensorError::Io`] when there is no memory for the
    /// bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let encoding = self.encoding()?;
        let mut bytes = Vec::new();
        let reserved = bytes.try_reserve_exact(encoding.byte_len());
        reserved.map_err(|error| failed(error.into()))?;
        encoding.write(&mut bytes)?;
        Ok(bytes)
    }
}

impl Encoding {
    /// Bytes of the file.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        let sizes = self.tensors.iter().map(Tensor::byte_len);
        sizes.fold(self.head.len(), usize::saturating_add)
    }

    /// Writes the file, one tensor after the other.
    ///
    /// # Errors
    /// [`TensorError::Io`] when `out` takes no more, [`TensorError::NoMemory`].
    pub fn write(&self, out: &mut impl Write) -> Result<()> {
        out.write_all(&self.head).map_err(failed)?;
        self.tensors
            .iter()
            .try_for_each(|tensor| write_elements(tensor, out))
    }
}

/// Writes the elements of `tensor` in row-major order, and copies it in parts where they have gaps.
fn write_elements(tensor: &Tensor, out: &mut impl Write) -> Result<()> {
    if let Ok(bytes) = tensor.as_bytes() {
        return out.write_all(bytes).map_err(failed);
    }
    let rows = tensor.shape()[0];
    let row = tensor.byte_len() / rows;
    if row > ROW {
        return (0..rows).try_for_each(|i| write_elements(&tensor.select(0, i)?, out));
    }
    let most = PART / row;
    for start in (0..rows).step_by(most) {
        let part = tensor.slice(0, start..rows.min(start + most))?;
        out.write_all(part.try_detach()?.as_bytes()?)
            .map_err(failed)?;
    }
    Ok(())
}

fn failed(error: io::Error) -> TensorError {
    TensorError::Io { op: "write", error }
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
