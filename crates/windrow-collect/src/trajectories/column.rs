//! The frames of one entry, copied out of batches.

use std::fmt::Debug;

use tensordict::{DType, Element, Tensor, TensorError, for_dtype};

use super::gather::{Move, as_it_lies, gather};
use super::scratch::Scratch;

/// The frames of one leaf, one after another.
pub(super) trait Column: Debug + Send + Sync {
    /// Appends the frames of `tensor`, row-major over its first `lead` dimensions.
    fn append(&mut self, tensor: &Tensor, lead: usize) -> Result<(), TensorError>;

    /// Drops all but the first `frames`.
    fn truncate(&mut self, frames: usize);

    /// Keeps only the frames of `moves`, and moves them to the front, in order and without gaps.
    fn keep(&mut self, moves: &[Move]);

    /// A copy of the frames of `moves`, whose targets ascend, in a tensor whose shape begins with
    /// `lead`; zeros elsewhere.
    fn copy(&mut self, moves: &[Move], lead: &[usize]) -> Result<Tensor, TensorError>;
}

/// A column without frames, for frames of `shape`.
pub(super) fn column(dtype: DType, shape: &[usize]) -> Box<dyn Column> {
    match dtype {
        DType::Bytes => Box::new(Strings::of_shape(shape)),
        dtype => for_dtype!(dtype, T => Typed::<T>::boxed(shape)),
    }
}

/// A [`Column`] of elements of one type.
#[derive(Debug)]
struct Typed<T> {
    /// Shape of a frame.
    shape: Vec<usize>,
    /// Elements of a frame.
    width: usize,
    frames: usize,
    /// Whether all elements of all frames are zero; `values` is not read then. Most flags are never
    /// set.
    blank: bool,
    /// The elements of all frames. Elements behind them are left from dropped frames, so that
    /// memory is not cleared each time.
    values: Vec<T>,
    /// The memory of copies.
    block: Scratch,
}

impl<T: Element> Typed<T> {
    fn boxed(shape: &[usize]) -> Box<dyn Column> {
        Box::new(Self {
            shape: shape.to_vec(),
            width: shape.iter().product(),
            frames: 0,
            blank: may_be_blank::<T>(),
            values: Vec::new(),
            block: Scratch::new(),
        })
    }
}

impl<T: Element> Column for Typed<T> {
    fn append(&mut self, tensor: &Tensor, lead: usize) -> Result<(), TensorError> {
        let added: usize = tensor.shape()[..lead].iter().product();
        let (held, frames) = (self.frames, self.frames + added);
        if !(self.blank && is_blank::<T>(tensor)?) {
            let elements = frames * self.width;
            if self.values.len() < elements {
                self.values.resize(elements, T::default());
            }
            let (before, after) = self.values.split_at_mut(held * self.width);
            gather(tensor, lead, &mut after[..added * self.width])?;
            if self.blank {
                before.fill(T::default());
                self.blank = false;
            }
        }
        self.frames = frames;
        Ok(())
    }

    fn truncate(&mut self, frames: usize) {
        self.frames = self.frames.min(frames);
    }

    fn keep(&mut self, moves: &[Move]) {
        self.frames = moves.last().map_or(0, |last| last.to + last.len);
        if self.blank {
            return;
        }
        for &Move { from, to, len } in moves {
            let from = from * self.width..(from + len) * self.width;
            self.values.copy_within(from, to * self.width);
        }
        self.blank = may_be_blank::<T>() && all_zero(&self.values[..self.frames * self.width]);
    }

    fn copy(&mut self, moves: &[Move], lead: &[usize]) -> Result<Tensor, TensorError> {
        let shape = [lead, &self.shape].concat();
        if self.blank {
            // The user of an earlier batch may have written to this memory.
            return self
                .block
                .written::<T>(&shape, |out| out.fill(T::default()));
        }
        let (width, values) = (self.width, &self.values);
        self.block.written(&shape, |out| {
            let mut end = 0;
            for &Move { from, to, len } in moves {
                let (from, to, len) = (from * width, to * width, len * width);
                if end < to {
                    out[end..to].fill(T::default());
                }
                end = to + len;
                out[to..end].copy_from_slice(&values[from..from + len]);
            }
            out[end..].fill(T::default());
        })
    }
}

/// A [`Column`] of values of variable size.
#[derive(Debug)]
struct Strings {
    /// Shape of a frame.
    shape: Vec<usize>,
    /// Values of a frame.
    width: usize,
    /// The values of all frames.
    values: Vec<Vec<u8>>,
}

impl Strings {
    fn of_shape(shape: &[usize]) -> Self {
        Self {
            shape: shape.to_vec(),
            width: shape.iter().product(),
            values: Vec::new(),
        }
    }
}

impl Column for Strings {
    fn append(&mut self, tensor: &Tensor, _: usize) -> Result<(), TensorError> {
        self.values.extend(tensor.strings().map(<[u8]>::to_vec));
        Ok(())
    }

    fn truncate(&mut self, frames: usize) {
        self.values.truncate(frames * self.width);
    }

    fn keep(&mut self, moves: &[Move]) {
        let width = self.width;
        for &Move { from, to, len } in moves {
            for place in 0..len * width {
                self.values.swap(to * width + place, from * width + place);
            }
        }
        self.truncate(moves.last().map_or(0, |last| last.to + last.len));
    }

    fn copy(&mut self, moves: &[Move], lead: &[usize]) -> Result<Tensor, TensorError> {
        let shape = [lead, &self.shape].concat();
        let mut values: Vec<&[u8]> = vec![&[]; shape.iter().product()];
        for &Move { from, to, len } in moves {
            let (from, to, len) = (from * self.width, to * self.width, len * self.width);
            for (value, own) in values[to..].iter_mut().zip(&self.values[from..from + len]) {
                *value = own;
            }
        }
        Tensor::from_strings(&values, shape)
    }
}

/// Whether zero has one form: a float may be -0, and must keep its sign.
fn may_be_blank<T: Element>() -> bool {
    !T::DTYPE.is_float()
}

/// Whether all elements are zero; false where that cannot be checked fast.
fn is_blank<T: Element>(tensor: &Tensor) -> Result<bool, TensorError> {
    let memory = as_it_lies(tensor)?;
    Ok(memory.is_contiguous() && all_zero(memory.as_slice::<T>()?))
}

fn all_zero<T: Element>(values: &[T]) -> bool {
    // Without an early exit, many elements are checked at once.
    let zero = |all: bool, value: &T| all & (*value == T::default());
    values
        .chunks(64)
        .all(|values| values.iter().fold(true, zero))
}

/// A copy of the frames of `tensor` that `moves` names, counted row-major over its first `dims`
/// dimensions. The targets of `moves` ascend, the shape of the result begins with `lead`, and all
/// other elements are zero.
///
/// # Errors
/// [`TensorError::TooLarge`].
pub(crate) fn rearranged(
    tensor: &Tensor,
    dims: usize,
    moves: &[Move],
    lead: &[usize],
) -> Result<Tensor, TensorError> {
    let mut frames = column(tensor.dtype(), &tensor.shape()[dims..]);
    frames.append(tensor, dims)?;
    frames.copy(moves, lead)
}
