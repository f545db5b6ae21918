//! What was published, for readers in the publisher's process.

#[cfg(not(loom))]
use std::sync::Arc;

#[cfg(not(loom))]
use tensordict::{DType, Owner, Shape, Tensor, row_major};
#[cfg(not(loom))]
use windrow_slab::Mapping;

#[cfg(not(loom))]
use super::buffers::HEAD;
#[cfg(not(loom))]
use crate::ProcessError;

/// Weights as [`Exchange::publish`](super::Exchange::publish) wrote them, in the memory that
/// workers read. Nobody writes this memory as long as the snapshot or a tensor over it lives.
#[derive(Debug)]
pub struct Snapshot {
    #[cfg(not(loom))]
    pub(super) mapping: Arc<Mapping>,
    /// Bytes of weights, behind the head.
    #[cfg(not(loom))]
    pub(super) bytes: usize,
}

#[cfg(not(loom))]
impl Snapshot {
    /// A row-major tensor over the bytes from `at` on, which is a multiple of 64. Nothing is
    /// copied.
    ///
    /// # Errors
    /// [`ProcessError::NoTensor`] when the weights end before the tensor, or when a bool of it is
    /// neither 0 nor 1.
    pub fn tensor(&self, at: usize, dtype: DType, shape: &[usize]) -> Result<Tensor, ProcessError> {
        let room = self.bytes.checked_sub(at);
        let none = || ProcessError::NoTensor {
            at,
            shape: shape.to_vec(),
            dtype: dtype.to_string(),
            bytes: room.unwrap_or(0),
        };
        // Strides have to be in range also when there are no elements.
        let mut sizes = shape.iter().map(|count| (*count).max(1));
        let spanned = sizes.try_fold(dtype.size(), usize::checked_mul);
        let spanned = spanned.filter(|bytes| *bytes <= isize::MAX as usize - 63);
        let len = spanned.map(|bytes| if shape.contains(&0) { 0 } else { bytes });
        let fits = |len: &usize| room.is_some_and(|room| *len <= room) && at.is_multiple_of(64);
        let len = len.filter(fits).ok_or_else(none)?;
        // SAFETY: behind the head, so many bytes are mapped.
        let first = unsafe { self.mapping.ptr().add(HEAD + at) };
        if dtype == DType::Bool {
            // SAFETY: these bytes are mapped, and nobody writes them as long as `self` keeps the
            // mapping, as below.
            let bytes = unsafe { std::slice::from_raw_parts(first.as_ptr(), len) };
            if bytes.iter().any(|byte| *byte > 1) {
                return Err(none());
            }
        }
        let owner: Owner = Arc::<Mapping>::clone(&self.mapping);
        let (shape, strides) = (Shape::from_slice(shape), row_major(shape));
        // SAFETY: the elements lie within the mapping, which the owner is; they are row-major in
        // `len` bytes. The publisher, who alone writes, fills a buffer only while nobody else has
        // its mapping (`Buffers::is_held`). The mapping begins a page, and `HEAD` and `at` are
        // multiples of 64. Any bytes are numbers, and bools were checked.
        Ok(unsafe { Tensor::from_raw(first, dtype, shape, strides, owner) })
    }
}
