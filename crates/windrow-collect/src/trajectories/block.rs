//! Memory of batches, used again.

use tensordict::{Element, Tensor, TensorError};

/// Memory for one entry of batches that are made one after another: as long as the last of them is held, there is new
/// memory for the next.
#[derive(Debug)]
pub(super) struct Block {
    /// One dimension, of which the last tensor that was made shows the beginning.
    last: Option<Tensor>,
}

impl Block {
    pub(super) fn new() -> Self {
        Self { last: None }
    }

    /// A tensor of shape `shape` whose elements `write` sets, all of them: what is in them before is arbitrary.
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

/// The memory `last`, when it is long enough and no one else sees it any more, or else as much anew.
fn reused<T: Element>(mut last: Tensor, len: usize) -> Result<Tensor, TensorError> {
    if last.len() >= len && last.as_mut_slice::<T>().is_ok() {
        return Ok(last);
    }
    Tensor::zeros(T::DTYPE, [with_slack(len, last.len())])
}

/// Elements to allocate for `len`, when those of the last time were `before`: sizes vary, and should be enough soon.
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
/// [`TensorError::TooLarge`] when there cannot be so many.
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
