//! Frames of a strided tensor, one environment after another.
//!
//! In a slab, the environments of one step are contiguous; in a trajectory, the steps of one
//! environment are. This module transposes one into the other.

use tensordict::{Element, Tensor, TensorError};

/// Copies `len` frames from index `from` to index `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) len: usize,
}

/// Environments that are transposed together, so that each cache line that is read is used whole.
const BLOCK: usize = 8;

/// Writes the frames of `tensor` to `out`, row-major. The first `lead` dimensions are environments
/// and, last of these, time; `out` has as many elements as the tensor.
///
/// # Errors
/// [`TensorError::DType`] when the elements are not `T`.
pub(super) fn gather<T: Element>(
    tensor: &Tensor,
    lead: usize,
    out: &mut [T],
) -> Result<(), TensorError> {
    if tensor.is_contiguous() {
        out.copy_from_slice(tensor.as_slice()?);
        return Ok(());
    }
    let memory = as_it_lies(tensor)?;
    if memory.is_contiguous() && frames_are_contiguous(tensor, lead)? {
        let place = FrameLayout::of(tensor, lead);
        match place.width {
            1 => place.chunks::<T, 1>(memory.as_slice()?, out),
            2 => place.chunks::<T, 2>(memory.as_slice()?, out),
            3 => place.chunks::<T, 3>(memory.as_slice()?, out),
            4 => place.chunks::<T, 4>(memory.as_slice()?, out),
            _ => place.frames(memory.as_slice()?, out),
        }
        return Ok(());
    }
    if lead > 1 {
        // There are gaps between environments or workers: the block between two gaps is written by
        // itself.
        let each = tensor.len() / tensor.shape()[0];
        for (i, out) in out.chunks_mut(each).enumerate() {
            gather(&tensor.select(0, i)?, lead - 1, out)?;
        }
        return Ok(());
    }
    out.copy_from_slice(tensor.detach().as_slice()?);
    Ok(())
}

/// The tensor with its dimensions in the order of memory.
pub(super) fn as_it_lies(tensor: &Tensor) -> Result<Tensor, TensorError> {
    let mut axes: Vec<usize> = (0..tensor.ndim()).collect();
    axes.sort_by_key(|&axis| std::cmp::Reverse(tensor.strides()[axis]));
    tensor.permute(axes)
}

/// Whether the elements of one frame are contiguous. The tensor must have a frame.
fn frames_are_contiguous(tensor: &Tensor, lead: usize) -> Result<bool, TensorError> {
    let mut frame = tensor.clone();
    for _ in 0..lead {
        frame = frame.select(0, 0)?;
    }
    Ok(frame.is_contiguous())
}

/// The layout of frames in memory without gaps, in elements.
struct FrameLayout {
    /// Elements of a frame, at least one.
    width: usize,
    /// Index of the first element of every environment, row-major.
    rows: Vec<usize>,
    steps: usize,
    /// Distance from one step to the next.
    stride: usize,
}

impl FrameLayout {
    /// The layout of `tensor`, whose strides are positive in dimensions of two elements or more.
    fn of(tensor: &Tensor, lead: usize) -> Self {
        let (shape, strides) = (tensor.shape(), tensor.strides());
        let time = lead - 1;
        let mut rows = vec![0];
        for dim in 0..time {
            let inner = |row: &usize| {
                let (row, stride) = (*row, strides[dim].unsigned_abs());
                (0..shape[dim]).map(move |i| row + i * stride)
            };
            rows = rows.iter().flat_map(inner).collect();
        }
        Self {
            width: shape[lead..].iter().product(),
            rows,
            steps: shape[time],
            stride: strides[time].unsigned_abs(),
        }
    }

    /// Writes frames of `W` elements each.
    fn chunks<T: Element, const W: usize>(&self, memory: &[T], out: &mut [T]) {
        let (memory, _) = memory.as_chunks::<W>();
        let (out, _) = out.as_chunks_mut::<W>();
        let (steps, stride) = (self.steps, self.stride / W);
        for (rows, out) in self.rows.chunks(BLOCK).zip(out.chunks_mut(BLOCK * steps)) {
            match rows {
                &[first, .., last] if rows.len() == BLOCK && last == first + (BLOCK - 1) * W => {
                    side_by_side(memory, first / W, stride, out);
                }
                _ => {
                    for (row, out) in rows.iter().zip(out.chunks_mut(steps)) {
                        let line = memory[row / W..].iter().step_by(stride.max(1));
                        for (to, from) in out.iter_mut().zip(line) {
                            *to = *from;
                        }
                    }
                }
            }
        }
    }

    /// Writes frames of any size.
    fn frames<T: Element>(&self, memory: &[T], out: &mut [T]) {
        let mut out = out.chunks_exact_mut(self.width);
        for row in &self.rows {
            for (step, out) in out.by_ref().take(self.steps).enumerate() {
                let from = row + step * self.stride;
                out.copy_from_slice(&memory[from..from + self.width]);
            }
        }
    }
}

/// Transposes a block of environments that are adjacent in memory, from index `first` on.
fn side_by_side<F: Copy>(memory: &[F], first: usize, stride: usize, out: &mut [F]) {
    let steps = out.len() / BLOCK;
    for step in 0..steps {
        let line = &memory[first + step * stride..][..BLOCK];
        for (i, frame) in line.iter().enumerate() {
            out[i * steps + step] = *frame;
        }
    }
}
