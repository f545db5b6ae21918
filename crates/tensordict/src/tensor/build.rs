//! Making tensors that own their memory.

use std::ops::Range;
use std::sync::Arc;

use super::Tensor;
use crate::buffer::HeapBuffer;
use crate::byte_strings::Strings;
use crate::shape::{checked_numel, no_memory, row_major};
use crate::{DType, Element, Result, Shape, TensorError};

impl Tensor {
    /// Row-major tensor of `values`; dtype of `T`, shape `shape`.
    ///
    /// # Errors
    /// [`TensorError::Count`] when the shape holds another number of elements,
    /// [`TensorError::TooLarge`], [`TensorError::NoMemory`].
    #[allow(clippy::needless_pass_by_value)] // taking the vector matches `to_vec` and spares callers a borrow
    pub fn from_vec<T: Element>(values: Vec<T>, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        Self::from_slice(&values, shape)
    }

    /// Row-major tensor with a copy of `values`; dtype of `T`, shape `shape`.
    ///
    /// # Errors
    /// [`TensorError::Count`] when the shape holds another number of elements,
    /// [`TensorError::TooLarge`], [`TensorError::NoMemory`].
    pub fn from_slice<T: Element>(values: &[T], shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let shape = shape.as_ref();
        let expected = checked_numel(shape, T::DTYPE)?;
        if values.len() != expected {
            return Err(TensorError::Count {
                shape: shape.to_vec(),
                expected,
                got: values.len(),
            });
        }
        let buffer = HeapBuffer::of(shape, T::DTYPE)?;
        // SAFETY: both blocks hold `size_of_val(values)` bytes, and the new one overlaps nothing.
        unsafe {
            std::ptr::copy_nonoverlapping(
                values.as_ptr().cast::<u8>(),
                buffer.ptr().as_ptr(),
                size_of_val(values),
            );
        }
        // SAFETY: all bytes were just written from valid `T`, and the shape was checked against
        // their number.
        Ok(unsafe { Self::from_buffer(buffer, T::DTYPE, Shape::from_slice(shape)) })
    }

    /// Row-major tensor with a copy of raw memory, whatever its alignment; native byte order. A
    /// tensor of [`Bytes`](DType::Bytes) is given as it is [encoded](Self::encoded).
    ///
    /// # Errors
    /// [`TensorError::Count`] when `bytes` is not as long as the shape needs (counted in bytes),
    /// [`TensorError::BoolByte`] when a bool is neither 0 nor 1, [`TensorError::TooLarge`],
    /// [`TensorError::NoMemory`].
    pub fn from_bytes(dtype: DType, shape: impl AsRef<[usize]>, bytes: &[u8]) -> Result<Tensor> {
        let shape = shape.as_ref();
        if dtype == DType::Bytes {
            return Self::from_encoded(shape, bytes);
        }
        let expected = checked_numel(shape, dtype)? * dtype.size();
        if bytes.len() != expected {
            return Err(TensorError::Count {
                shape: shape.to_vec(),
                expected,
                got: bytes.len(),
            });
        }
        dtype.check(bytes)?;
        let buffer = HeapBuffer::of(shape, dtype)?;
        // SAFETY: both blocks hold `expected` bytes, and the new one overlaps nothing.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.ptr().as_ptr(), expected) };
        // SAFETY: all bytes were just written, their number was checked, and every bit pattern is a
        // number; bools were checked.
        Ok(unsafe { Self::from_buffer(buffer, dtype, Shape::from_slice(shape)) })
    }

    /// Tensor of shape `[]` that holds `value`.
    pub fn scalar<T: Element>(value: T) -> Tensor {
        let buffer = HeapBuffer::uninit(size_of::<T>());
        // SAFETY: the block has the size of one `T` and a larger alignment.
        unsafe { buffer.ptr().cast::<T>().write(value) };
        // SAFETY: the one element of shape [] was just written.
        unsafe { Self::from_buffer(buffer, T::DTYPE, Shape::new()) }
    }

    /// Tensor of zeros (`false` for bool).
    ///
    /// # Errors
    /// [`TensorError::TooLarge`], [`TensorError::NoMemory`].
    pub fn zeros(dtype: DType, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let shape = shape.as_ref();
        let bytes = checked_numel(shape, dtype)? * dtype.size();
        let buffer = HeapBuffer::zeroed(bytes).ok_or_else(|| no_memory(shape, dtype))?;
        // SAFETY: zero bytes are a valid element of every dtype.
        Ok(unsafe { Self::from_buffer(buffer, dtype, Shape::from_slice(shape)) })
    }

    /// Row-major tensor of unspecified content, to be filled through
    /// [`data_ptr`](Tensor::data_ptr).
    ///
    /// # Errors
    /// [`TensorError::TooLarge`], [`TensorError::NoMemory`].
    ///
    /// # Safety
    /// Every element is written, bools with 0 or 1, before anything reads or views the tensor.
    pub unsafe fn uninit(dtype: DType, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let shape = shape.as_ref();
        checked_numel(shape, dtype)?;
        let buffer = HeapBuffer::of(shape, dtype)?;
        // SAFETY: the caller initialises the elements before they are read.
        Ok(unsafe { Self::from_buffer(buffer, dtype, Shape::from_slice(shape)) })
    }

    /// Tensor of `value` everywhere; dtype of `T`.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`], [`TensorError::NoMemory`].
    pub fn full<T: Element>(shape: impl AsRef<[usize]>, value: T) -> Result<Tensor> {
        let shape = shape.as_ref();
        let count = checked_numel(shape, T::DTYPE)?;
        Self::from_iter_exact(count, shape, std::iter::repeat_n(value, count))
    }

    /// The int64 numbers of `range`, in one dimension; empty when the range is.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`], [`TensorError::NoMemory`].
    pub fn arange(range: Range<i64>) -> Result<Tensor> {
        let span = range.end.saturating_sub(range.start).max(0);
        let count = usize::try_from(span).unwrap_or(usize::MAX);
        checked_numel(&[count], DType::I64)?;
        Self::from_iter_exact(count, &[count], range)
    }

    /// Tensor of the first `count` values of `values`, written straight into its memory.
    ///
    /// `shape` must have been checked to hold `count` elements.
    ///
    /// # Errors
    /// [`TensorError::NoMemory`].
    ///
    /// # Panics
    /// When there are fewer than `count` values.
    pub(crate) fn from_iter_exact<T: Element>(
        count: usize,
        shape: &[usize],
        values: impl Iterator<Item = T>,
    ) -> Result<Tensor> {
        let buffer = HeapBuffer::of(shape, T::DTYPE)?;
        let base = buffer.ptr().cast::<T>();
        let mut written = 0;
        for value in values.take(count) {
            // SAFETY: `take` keeps `written` below `count`, and the block is aligned for any
            // element.
            unsafe { base.add(written).write(value) };
            written += 1;
        }
        assert_eq!(
            written, count,
            "fewer values than the shape {shape:?} holds"
        );
        // SAFETY: `count` elements were written, which is what the shape holds.
        Ok(unsafe { Self::from_buffer(buffer, T::DTYPE, Shape::from_slice(shape)) })
    }

    /// As [`from_buffer`](Self::from_buffer), for what [`copy_to`](Self::copy_to) has written with
    /// this `heap`.
    ///
    /// # Safety
    /// As for `from_buffer`; cells name bytes of `heap`.
    pub(crate) unsafe fn from_copies(
        buffer: HeapBuffer,
        dtype: DType,
        shape: Shape,
        heap: Vec<u8>,
    ) -> Tensor {
        if dtype != DType::Bytes {
            // SAFETY: passed on to the caller.
            return unsafe { Self::from_buffer(buffer, dtype, shape) };
        }
        let (strides, ptr) = (row_major(&shape), buffer.ptr());
        let owner = Arc::new(Strings::of_heap(buffer, heap));
        // SAFETY: as in `from_buffer`; the owner has the bytes of the cells.
        unsafe { Self::from_raw(ptr, dtype, shape, strides, owner) }
    }

    /// Row-major tensor over the start of `buffer`.
    ///
    /// # Safety
    /// `buffer` begins with as many valid elements of `dtype` as `shape` holds, and `shape` passed
    /// [`checked_numel`].
    pub(crate) unsafe fn from_buffer(buffer: HeapBuffer, dtype: DType, shape: Shape) -> Tensor {
        let strides = row_major(&shape);
        let ptr = buffer.ptr();
        // SAFETY: the buffer is moved into the owner, so no one else can write or free it; the
        // caller vouches for its elements.
        unsafe { Self::from_raw(ptr, dtype, shape, strides, Arc::new(buffer)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_come_in_many_spellings() {
        let owned: Shape = Shape::from_slice(&[2, 3]);
        for tensor in [
            Tensor::from_vec(vec![0i64; 6], [2, 3]),
            Tensor::from_vec(vec![0i64; 6], &[2, 3][..]),
            Tensor::from_vec(vec![0i64; 6], vec![2, 3]),
            Tensor::from_vec(vec![0i64; 6], &owned),
            Tensor::from_slice(&[0i64; 6], owned.clone()),
            Tensor::zeros(DType::I64, [2, 3]),
        ] {
            let tensor = tensor.unwrap();
            assert_eq!(tensor.shape(), [2, 3]);
            assert_eq!(tensor.strides(), [3, 1]);
            assert!(tensor.is_contiguous());
            assert_eq!(tensor.data_ptr().addr().get() % 64, 0);
        }
    }

    #[test]
    fn wrong_counts_and_huge_shapes_are_errors() {
        let error = Tensor::from_vec(vec![1u8, 2], [3]).unwrap_err();
        assert_eq!(error.to_string(), "shape [3] needs 3 values, got 2");
        assert!(matches!(
            Tensor::zeros(DType::F64, [usize::MAX, usize::MAX]),
            Err(TensorError::TooLarge { .. })
        ));
        assert!(matches!(
            Tensor::arange(i64::MIN..i64::MAX),
            Err(TensorError::TooLarge { .. })
        ));
    }

    #[test]
    #[cfg_attr(miri, ignore = "its allocator ends the process")]
    fn more_than_the_memory_there_is_is_an_error() {
        // More than any machine has, and less than an address can name.
        let elements = 1 << 56;
        let error = Tensor::zeros(DType::F32, [elements]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no memory for shape [72057594037927936] of float32: the system does not give 288230376151711744 bytes"
        );
        // SAFETY: there is no element to be written.
        let uninit = unsafe { Tensor::uninit(DType::U8, [elements]) };
        assert!(matches!(uninit, Err(TensorError::NoMemory { .. })));
    }

    /// One element that a view repeats more often than any memory could.
    fn repeated(shape: &[usize]) -> Tensor {
        Tensor::scalar(1.0f32).expand(shape).unwrap()
    }

    fn row(tensor: &Tensor) -> crate::TensorDict {
        let mut dict = crate::TensorDict::new([1]);
        dict.set("x", tensor.unsqueeze(0).unwrap()).unwrap();
        dict
    }

    #[test]
    #[cfg_attr(miri, ignore = "its allocator ends the process")]
    fn copies_of_views_larger_than_memory_are_errors() {
        let (long, wide) = (repeated(&[1 << 54]), repeated(&[1 << 27, 1 << 27]));
        // Turned, it is no view of any other shape.
        let turned = Tensor::arange(0..2).unwrap().unsqueeze(1).unwrap();
        let turned = turned.expand([2, 1 << 54]).unwrap();
        let lists = ndarray::arr0(1.0f32);
        let lists = lists.broadcast([1 << 54]).unwrap();
        let dict = row(&long);
        let copies: [(&str, Result<Tensor>); 13] = [
            ("full", Tensor::full([1 << 54], 0.5f32)),
            ("arange", Tensor::arange(0..1 << 54)),
            ("from_array", Tensor::from_array(&lists)),
            ("try_detach", long.try_detach()),
            ("reshape", turned.reshape([1 << 55])),
            ("cast", long.cast(DType::F64)),
            ("cast of a turned one", turned.cast(DType::F32)),
            ("stack", Tensor::stack(&[&long, &long], 0)),
            ("cat", Tensor::cat(&[&wide, &wide], 0)),
            (
                "index_select",
                long.unsqueeze(0).unwrap().index_select(0, &[0, 0]),
            ),
            ("to_vec", long.to_vec::<f32>().map(|_| Tensor::scalar(0u8))),
            (
                "to_vec of a turned one",
                turned.to_vec::<i64>().map(|_| Tensor::scalar(0u8)),
            ),
            (
                "index_select of a dict",
                dict.index_select(0, &[0]).map(|_| Tensor::scalar(0u8)),
            ),
        ];
        for (what, copy) in copies {
            let error = copy.map(|_| ()).unwrap_err();
            let refused = matches!(error.root(), TensorError::NoMemory { .. });
            assert!(refused, "{what}: {error}");
        }
        assert!(matches!(dict.to_bytes(), Err(TensorError::Io { .. })));
    }

    #[test]
    fn raw_bytes_are_checked_and_copied_from_any_alignment() {
        let bytes: Vec<u8> = std::iter::once(0)
            .chain((0..3i64).flat_map(i64::to_ne_bytes))
            .collect();
        let x = Tensor::from_bytes(DType::I64, [3], &bytes[1..]).unwrap();
        assert_eq!(x, Tensor::arange(0..3).unwrap());
        assert_eq!(x.as_bytes().unwrap(), &bytes[1..]);
        assert!(matches!(
            Tensor::from_bytes(DType::I64, [3], &bytes),
            Err(TensorError::Count { .. })
        ));
        assert!(matches!(
            Tensor::from_bytes(DType::Bool, [2], &[1, 2]),
            Err(TensorError::BoolByte { byte: 2, index: 1 })
        ));
    }

    #[test]
    fn scalars_fills_and_ranges() {
        let scalar = Tensor::scalar(2.5f64);
        assert_eq!((scalar.ndim(), scalar.len()), (0, 1));
        assert_eq!(scalar.item::<f64>().unwrap(), 2.5);
        let full = Tensor::full([2, 2], true).unwrap();
        assert_eq!(full.to_vec::<bool>().unwrap(), [true; 4]);
        assert_eq!(
            Tensor::arange(-1..2).unwrap().to_vec::<i64>().unwrap(),
            [-1, 0, 1]
        );
        assert!(
            Tensor::arange(Range { start: 3, end: 1 })
                .unwrap()
                .is_empty()
        );
        assert!(
            Tensor::full([0, 4], 1i8)
                .unwrap()
                .to_vec::<i8>()
                .unwrap()
                .is_empty()
        );
    }
}
