//! A dict as one block of bytes: a header, then every tensor in row-major order.
//!
//! ```text
//! "windrow1" · length of the header, u64 · header, JSON · padding · tensor · padding · tensor · …
//! ```
//!
//! Every tensor starts at a multiple of 64, counted from the start of the block. The header has the
//! dicts as `layout` writes them, and path, dtype, shape and place of each tensor. Unlike a
//! safetensors file, a block can be read without a copy.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::layout::{Layout, corrupt};
use crate::buffer::HeapBuffer;
use crate::shape::{checked_numel, row_major};
use crate::{DType, NestedKey, Result, Shape, Tensor, TensorDict, TensorError};

const MAGIC: &[u8; 8] = b"windrow1";

/// Bytes before the header.
const PREFIX: usize = 16;

const ALIGN: usize = HeapBuffer::ALIGN;

/// The widest element: where a block starts at a multiple of this, its tensors are aligned.
const WIDEST: usize = 8;

#[derive(Serialize, Deserialize)]
struct PackedHeader {
    /// The dicts, as [`Layout`] writes them.
    dicts: String,
    tensors: Vec<PackedTensor>,
}

#[derive(Serialize, Deserialize)]
struct PackedTensor {
    path: NestedKey,
    dtype: DType,
    shape: Vec<usize>,
    /// Where it begins, counted from the end of the padded header.
    start: usize,
    /// Size of the encoded form, where it has values of bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encoded: Option<usize>,
}

/// A dict that is about to be written as one block of bytes, see [`TensorDict::packing`].
#[derive(Debug)]
pub struct Packing<'a> {
    /// Everything before the first tensor.
    head: Vec<u8>,
    /// Tensors, and where each begins.
    tensors: Vec<(Cow<'a, Tensor>, usize)>,
    len: usize,
}

impl TensorDict {
    /// The dict as one block of bytes that [`from_packed`](Self::from_packed) reads without a copy.
    /// Nothing is written yet.
    ///
    /// # Errors
    /// [`TensorError::Corrupt`] when the block would be larger than the address space or dicts are
    /// nested too deep, [`TensorError::NoMemory`].
    pub fn packing(&self) -> Result<Packing<'_>> {
        let layout = Layout {
            tensors: BTreeMap::new(),
            strings: BTreeMap::new(),
            ..Layout::of(self)?
        };
        let mut header = PackedHeader {
            dicts: layout.to_json(),
            tensors: Vec::new(),
        };
        let mut end = 0usize;
        let mut tensors = Vec::new();
        for (path, tensor) in self.leaves() {
            let written = match tensor.dtype() {
                DType::Bytes => {
                    let block = tensor.encoded()?;
                    Cow::Owned(Tensor::from_slice(&block, [block.len()])?)
                }
                _ => Cow::Borrowed(tensor),
            };
            let size = written.byte_len();
            header.tensors.push(PackedTensor {
                path,
                dtype: tensor.dtype(),
                shape: tensor.shape().to_vec(),
                start: end,
                encoded: (tensor.dtype() == DType::Bytes).then_some(size),
            });
            tensors.push((written, end));
            let next = end.checked_add(size);
            let next = next.and_then(|next| next.checked_next_multiple_of(ALIGN));
            end = next.ok_or_else(|| corrupt("the dict is larger than the address space"))?;
        }
        let header = serde_json::to_vec(&header).map_err(|error| corrupt(error.to_string()))?;
        let mut head = [
            MAGIC.as_slice(),
            &(header.len() as u64).to_le_bytes(),
            &header,
        ]
        .concat();
        head.resize(head.len().next_multiple_of(ALIGN), 0);
        let first = head.len();
        tensors.iter_mut().for_each(|(_, start)| *start += first);
        let len = first.saturating_add(end);
        Ok(Packing { head, tensors, len })
    }

    /// Reads a block that [`Packing::write`] has written. Tensors of numbers are views of `bytes`,
    /// one dimension of bytes without gaps; where these do not start at a multiple of 8, of one
    /// copy of them.
    ///
    /// # Errors
    /// [`TensorError::DType`] and [`TensorError::NotContiguous`] for another tensor,
    /// [`TensorError::Corrupt`] and [`TensorError::BoolByte`] where the bytes are no such block.
    pub fn from_packed(bytes: &Tensor) -> Result<TensorDict> {
        let is_aligned = bytes.data_ptr().addr().get().is_multiple_of(WIDEST);
        let bytes = if is_aligned {
            bytes.clone()
        } else {
            bytes.try_detach()?
        };
        let block = bytes.as_slice::<u8>()?;
        let (prefix, rest) = block
            .split_at_checked(PREFIX)
            .filter(|(prefix, _)| prefix.starts_with(MAGIC))
            .ok_or_else(|| corrupt("expected a packed dict, which begins with windrow1"))?;
        let len = prefix[MAGIC.len()..]
            .try_into()
            .map_or(u64::MAX, u64::from_le_bytes);
        let header = usize::try_from(len).ok().and_then(|len| rest.get(..len));
        let header = header.ok_or_else(|| corrupt("the header is longer than the packed dict"))?;
        let first = (PREFIX + header.len()).next_multiple_of(ALIGN);
        let header: PackedHeader = serde_json::from_slice(header)
            .map_err(|error| corrupt(format!("the header of a packed dict: {error}")))?;
        let mut out = Layout::from_json(&header.dicts)?.skeleton()?;
        for column in header.tensors {
            let names: Vec<&str> = column
                .path
                .components()
                .iter()
                .map(|name| &**name)
                .collect();
            let parent = &names[..names.len() - 1];
            let known = parent.is_empty() || out.get_dict(NestedKey::from(parent)).is_ok();
            if !known || out.contains_key(&column.path) {
                let key = column.path;
                return Err(corrupt(format!(
                    "tensor {key:?} comes twice, or is in no dict"
                )));
            }
            let tensor =
                view(&bytes, first, &column).map_err(|error| error.at(column.path.clone()))?;
            out.set(&column.path, tensor)?;
        }
        Ok(out)
    }
}

/// The tensor of `column` in `bytes`, which start at a multiple of [`WIDEST`].
fn view(bytes: &Tensor, first: usize, column: &PackedTensor) -> Result<Tensor> {
    let dtype = column.dtype;
    let block = bytes.as_slice::<u8>()?;
    let numbers = checked_numel(&column.shape, dtype)? * dtype.size();
    let size = column.encoded.unwrap_or(numbers);
    let start = first
        .checked_add(column.start)
        .filter(|start| start.is_multiple_of(WIDEST));
    let range = start.and_then(|start| Some(start..start.checked_add(size)?));
    let own = range.and_then(|range| block.get(range));
    let own = own.ok_or_else(|| corrupt("its place is beyond the packed dict, or not aligned"))?;
    if dtype == DType::Bytes {
        return Tensor::from_bytes(dtype, &column.shape, own);
    }
    if column.encoded.is_some() {
        return Err(corrupt("numbers have no encoded form"));
    }
    if dtype == DType::Bool
        && let Some(index) = own.iter().position(|&byte| byte > 1)
    {
        let byte = own[index];
        return Err(TensorError::BoolByte { byte, index });
    }
    let start = NonNull::from(own).cast::<u8>();
    let shape = Shape::from_slice(&column.shape);
    let strides = row_major(&shape);
    // SAFETY: `own` has just the bytes of this shape, in memory that the owner of `bytes` keeps
    // alive and that nobody writes. Every bit pattern is a number, and bools were checked. The
    // block starts at a multiple of 8 and `start` is one.
    Ok(unsafe { Tensor::from_raw(start, dtype, shape, strides, Arc::clone(bytes.owner())) })
}

impl Packing<'_> {
    /// Bytes of the block.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.len
    }

    /// Writes the block.
    ///
    /// # Safety
    /// `out` may be written for [`byte_len`](Self::byte_len) bytes, and none of them belongs to the
    /// dict.
    pub unsafe fn write(&self, out: NonNull<u8>) {
        let out = out.as_ptr();
        // SAFETY: the head is the first part of the block, apart from all tensors' places.
        unsafe { out.copy_from_nonoverlapping(self.head.as_ptr(), self.head.len()) };
        for (tensor, start) in &self.tensors {
            let len = tensor.byte_len();
            // SAFETY: `packing` has reserved these bytes for this tensor, and those up to the next
            // multiple of 64 as padding.
            unsafe {
                let strides = row_major(tensor.shape());
                tensor.copy_to(out.add(*start), &strides, &mut Vec::new());
                out.add(start + len)
                    .write_bytes(0, len.next_multiple_of(ALIGN) - len);
            }
        }
    }

    /// The block in memory of its own, as a tensor of bytes.
    ///
    /// # Errors
    /// [`TensorError::NoMemory`].
    pub fn to_tensor(&self) -> Result<Tensor> {
        // SAFETY: `write` writes each of the bytes.
        unsafe {
            let bytes = Tensor::uninit(DType::U8, [self.len])?;
            self.write(bytes.data_ptr());
            Ok(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> TensorDict {
        let mut batch = TensorDict::new([2, 3])
            .with_names(&[None, Some("time")])
            .unwrap();
        let values = Tensor::arange(0..24).unwrap().view([2, 3, 4]).unwrap();
        batch
            .set("observation", values.cast(DType::F32).unwrap())
            .unwrap();
        batch.set("0.dotted", values.select(2, 1).unwrap()).unwrap();
        let done = Tensor::from_slice(&[true, false, true], [3, 1]).unwrap();
        batch
            .set(("next", "done"), done.expand([2, 3, 1]).unwrap())
            .unwrap();
        batch
            .set("empty", Tensor::zeros(DType::I16, [2, 3, 0]).unwrap())
            .unwrap();
        batch.set("nothing", TensorDict::new([2, 3, 1])).unwrap();
        batch
    }

    #[test]
    fn a_packed_dict_is_read_as_views_of_the_block() {
        let batch = batch();
        let block = batch.packing().unwrap().to_tensor().unwrap();
        let read = TensorDict::from_packed(&block).unwrap();
        assert!(read.same_bits(&batch), "{read}");
        assert_eq!(read.names(), batch.names());
        assert_eq!(read.get_dict("nothing").unwrap().batch_size(), [2, 3, 1]);
        let (start, end) = (block.data_ptr(), block.byte_len());
        for (key, tensor) in read.leaves() {
            let place = tensor.data_ptr().addr().get() - start.addr().get();
            assert!(
                place.is_multiple_of(ALIGN) && place <= end,
                "{key} at {place}"
            );
        }
    }

    #[test]
    fn a_block_at_an_odd_address_is_copied_once() {
        let batch = batch();
        let block = batch.packing().unwrap().to_tensor().unwrap();
        let zero = Tensor::zeros(DType::U8, [1]).unwrap();
        let moved = Tensor::cat(&[zero, block], 0)
            .unwrap()
            .slice(0, 1..)
            .unwrap();
        assert!(TensorDict::from_packed(&moved).unwrap().same_bits(&batch));
    }

    #[test]
    fn bytes_that_are_no_block_are_errors() {
        let block = batch().packing().unwrap().to_tensor().unwrap();
        let bytes = block.as_slice::<u8>().unwrap();
        let read = |bytes: &[u8]| {
            TensorDict::from_packed(&Tensor::from_slice(bytes, [bytes.len()]).unwrap())
        };
        for len in 0..bytes.len() - ALIGN {
            assert!(read(&bytes[..len]).is_err(), "cut at {len}");
        }
        // Each byte of the header changed: an error, or another dict within the block.
        let head = bytes.windows(2).position(|two| two == [b'}', 0]).unwrap();
        for at in 0..=head {
            let mut changed = bytes.to_vec();
            changed[at] ^= 1;
            if let Ok(dict) = read(&changed) {
                dict.leaves().for_each(|(_, tensor)| drop(tensor.detach()));
            }
        }
        let done = TensorDict::from_packed(&block).unwrap();
        let done = done.get(("next", "done")).unwrap().data_ptr().addr().get();
        let mut changed = bytes.to_vec();
        changed[done - block.data_ptr().addr().get()] = 2;
        let error = read(&changed).unwrap_err();
        assert!(
            matches!(error.root(), TensorError::BoolByte { byte: 2, index: 0 }),
            "{error}"
        );
    }
}
