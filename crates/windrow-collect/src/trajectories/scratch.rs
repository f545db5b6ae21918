//! Memory that successive batches use.

use tensordict::{Element, Tensor, TensorError};

/// Memory for one entry of successive batches. While the last batch is held, the next one gets new
/// memory.
#[derive(Debug)]
pub(super) struct Scratch {
    /// It has one dimension; the last tensor is a view of its beginning.
    last: Option<Tensor>,
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self { last: None }
    }

    /// A tensor of shape `shape`, whose elements `write` sets. It has to set all of them: they are
    /// arbitrary before.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`].
    pub(super) fn written<T: Element>(
        &mut self,
        shape: &[usize],
        write: impl FnOnce(&mut [T]),
    ) -> Result<Tensor, TensorError> {
        let len = len_of::<T>(shape)?;
        let mut memory = match self.last.take() {
            None => Tensor::zeros(T::DTYPE, [len])?,
            Some(last) => reused::<T>(last, len)?,
        };
        write(&mut memory.as_mut_slice::<T>()?[..len]);
        let made = memory.narrow(0, 0, len)?.view(shape)?;
        self.last = Some(memory);
        Ok(made)
    }
}

/// The memory `last` if it is long enough and no other tensor shares it, otherwise new memory.
fn reused<T: Element>(mut last: Tensor, len: usize) -> Result<Tensor, TensorError> {
    if last.len() >= len && last.as_mut_slice::<T>().is_ok() {
        return Ok(last);
    }
    Tensor::zeros(T::DTYPE, [with_slack(len, last.len())])
}

/// Elements to allocate for `len`, after an allocation of `before`: some more than needed, so that
/// batches of varying sizes soon fit.
fn with_slack(len: usize, before: usize) -> usize {
    if len > before {
        len.saturating_add(len / 4)
    } else {
        before
    }
}

/// Elements in `shape`.
///
/// # Errors
/// [`TensorError::TooLarge`] if the number overflows.
fn len_of<T: Element>(shape: &[usize]) -> Result<usize, TensorError> {
    let too_large = || TensorError::TooLarge {
        shape: shape.to_vec(),
        dtype: T::DTYPE,
    };
    let mut sizes = shape.iter();
    sizes
        .try_fold(1usize, |len, &size| len.checked_mul(size))
        .ok_or_else(too_large)
}
