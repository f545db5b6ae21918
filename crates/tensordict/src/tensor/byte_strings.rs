//! Tensors of values of variable size.

use std::ptr::NonNull;
use std::sync::Arc;

use super::{Owner, Tensor};
use crate::buffer::HeapBuffer;
use crate::byte_strings::{Cell, Extent, Strings, append};
use crate::shape::{check_index, checked_numel};
use crate::{DType, Result, Shape, Strides, TensorError};

/// Bytes of a length in the encoded form.
const LENGTH: usize = 4;

impl Tensor {
    /// Row-major tensor of [`Bytes`](DType::Bytes) with copies of `values`.
    ///
    /// ```
    /// use tensordict::Tensor;
    ///
    /// let words = Tensor::from_strings(&["a", "", "long"], [3])?;
    /// assert_eq!(words.index_select(0, &[2, 0])?.strings().collect::<Vec<_>>(), [&b"long"[..], b"a"]);
    /// # Ok::<(), tensordict::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// [`TensorError::Count`] when the shape holds another number of values,
    /// [`TensorError::LongValue`], [`TensorError::TooLarge`], [`TensorError::NoMemory`].
    pub fn from_strings<B: AsRef<[u8]>>(
        values: &[B],
        shape: impl AsRef<[usize]>,
    ) -> Result<Tensor> {
        let shape = shape.as_ref();
        let expected = checked_numel(shape, DType::Bytes)?;
        if values.len() != expected {
            return Err(TensorError::Count {
                shape: shape.to_vec(),
                expected,
                got: values.len(),
            });
        }
        let buffer = HeapBuffer::of(shape, DType::Bytes)?;
        let (cells, mut heap) = (buffer.ptr().cast::<Cell>(), Vec::new());
        for (place, value) in values.iter().enumerate() {
            let cell = append(&mut heap, value.as_ref())?;
            // SAFETY: the block has room for as many cells as the shape holds, and is aligned.
            unsafe { cells.add(place).write(cell) };
        }
        // SAFETY: every cell was written and names bytes of `heap`.
        Ok(unsafe { Self::from_copies(buffer, DType::Bytes, Shape::from_slice(shape), heap) })
    }

    /// Wraps cells that `owner` keeps alive, together with the bytes that they name in `extents`.
    /// Copies nothing.
    ///
    /// # Safety
    /// As for [`from_raw`](Self::from_raw), for cells; and as long, every byte of `extents`, which
    /// are sorted by arena and place, is initialised and not written, and every cell that is not
    /// empty names bytes of one of them.
    pub unsafe fn from_cells(
        ptr: NonNull<Cell>,
        shape: Shape,
        strides: Strides,
        extents: Arc<[Extent]>,
        owner: Owner,
    ) -> Tensor {
        let owner = Arc::new(Strings::new(extents, owner));
        // SAFETY: passed on to the caller.
        unsafe { Self::from_raw(ptr.cast(), DType::Bytes, shape, strides, owner) }
    }

    /// The values of a tensor of [`Bytes`](DType::Bytes) in row-major order, any strides; none
    /// where it holds numbers.
    pub fn strings(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let extents = self.extents();
        let mut cells = self.elements::<Cell>();
        let len = match self.dtype {
            DType::Bytes => self.len(),
            _ => 0,
        };
        (0..len).map(move |_| {
            let cell = cells.next();
            // SAFETY: there are as many cells as elements; the owner keeps their bytes as they are.
            unsafe { found(extents, cell.unwrap_or_default()) }
        })
    }

    /// The value at `index`, one index for each dimension.
    ///
    /// # Errors
    /// [`TensorError::DType`] when the tensor holds numbers, [`TensorError::IndexCount`] and
    /// [`TensorError::Index`].
    pub fn string_at(&self, index: &[usize]) -> Result<&[u8]> {
        self.expect_strings()?;
        if index.len() != self.ndim() {
            return Err(TensorError::IndexCount {
                expected: self.ndim(),
                got: index.len(),
            });
        }
        let mut offset = 0isize;
        for (dim, &i) in index.iter().enumerate() {
            check_index(&self.shape, dim, i)?;
            offset += i as isize * self.strides[dim];
        }
        // SAFETY: every index is within its dimension, so this is one of the tensor's cells, whose
        // bytes the owner keeps.
        Ok(unsafe {
            let cell = self.ptr.cast::<Cell>().offset(offset).read();
            found(self.extents(), cell)
        })
    }

    /// The values of a tensor of [`Bytes`](DType::Bytes) as one block, which
    /// [`from_bytes`](Self::from_bytes) reads: the length of each in row-major order, 4 bytes,
    /// little-endian; then all of them, one after another.
    ///
    /// # Errors
    /// [`TensorError::DType`] when the tensor holds numbers.
    pub fn encoded(&self) -> Result<Vec<u8>> {
        self.expect_strings()?;
        let mut block = Vec::with_capacity(self.encoded_len());
        for value in self.strings() {
            // A cell has its length in as many bytes.
            block.extend_from_slice(&(value.len() as u32).to_le_bytes());
        }
        self.strings()
            .for_each(|value| block.extend_from_slice(value));
        Ok(block)
    }

    /// Size of the [encoded](Self::encoded) form; 0 where the tensor holds numbers.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let sizes = self.strings().map(|value| LENGTH + value.len());
        sizes.sum()
    }

    /// Reads the [encoded](Self::encoded) form.
    pub(super) fn from_encoded(shape: &[usize], block: &[u8]) -> Result<Tensor> {
        let count = checked_numel(shape, DType::Bytes)?;
        let misfit = |expected| TensorError::Count {
            shape: shape.to_vec(),
            expected,
            got: block.len(),
        };
        let lengths = count.checked_mul(LENGTH);
        let lengths = lengths.and_then(|lengths| block.split_at_checked(lengths));
        let Some((lengths, mut rest)) = lengths else {
            return Err(misfit(count.saturating_mul(LENGTH)));
        };
        let (lengths, _) = lengths.as_chunks::<LENGTH>();
        let mut values = Vec::with_capacity(count);
        for &len in lengths {
            let len = u32::from_le_bytes(len) as usize;
            let Some((value, after)) = rest.split_at_checked(len) else {
                return Err(misfit(block.len() - rest.len() + len));
            };
            values.push(value);
            rest = after;
        }
        match rest {
            [] => Self::from_strings(&values, shape),
            rest => Err(misfit(block.len() - rest.len())),
        }
    }

    /// As [`copy_to`](Self::copy_to), of cells.
    ///
    /// # Safety
    /// As for `copy_to`; the tensor has an element.
    pub(super) unsafe fn copy_strings_to(
        &self,
        dst: *mut Cell,
        dst_strides: &[isize],
        heap: &mut Vec<u8>,
    ) {
        let mut index: Shape = smallvec::smallvec![0; self.ndim()];
        let mut to = 0isize;
        for value in self.strings() {
            let cell = append(heap, value).expect("A cell has named as many bytes.");
            // SAFETY: `to` is the place of an element that the caller vouches for.
            unsafe { dst.offset(to).write(cell) };
            for dim in (0..index.len()).rev() {
                index[dim] += 1;
                to += dst_strides[dim];
                if index[dim] < self.shape[dim] {
                    break;
                }
                to -= index[dim] as isize * dst_strides[dim];
                index[dim] = 0;
            }
        }
    }

    /// Where the bytes of cells lie; nowhere, where all are empty.
    fn extents(&self) -> &[Extent] {
        let owner = self.owner.downcast_ref::<Strings>();
        owner.map_or(&[], |strings| &strings.extents)
    }

    fn expect_strings(&self) -> Result<()> {
        match self.dtype {
            DType::Bytes => Ok(()),
            got => Err(TensorError::DType {
                expected: DType::Bytes,
                got,
            }),
        }
    }
}

/// The bytes that a cell of a tensor names.
///
/// # Safety
/// As for [`Extent::find`].
unsafe fn found<'a>(extents: &[Extent], cell: Cell) -> &'a [u8] {
    // SAFETY: passed on to the caller.
    let value = unsafe { Extent::find(extents, cell) };
    value.expect("Whoever made the tensor promised that its cells name bytes of its extents.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TensorDict;

    fn words() -> Tensor {
        let words = ["a", "", "long word", "\u{e9}", "b", "0123456789"];
        Tensor::from_strings(&words, [2, 3]).unwrap()
    }

    fn texts(tensor: &Tensor) -> Vec<&str> {
        let texts = tensor.strings().map(std::str::from_utf8);
        texts.collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn views_show_the_values_of_their_elements() {
        let x = words();
        let turned = x.transpose(0, 1).unwrap().flip(0).unwrap();
        let expected = ["long word", "0123456789", "", "b", "a", "\u{e9}"];
        assert_eq!(texts(&turned), expected);
        assert_eq!(turned.string_at(&[0, 1]).unwrap(), b"0123456789");
        assert!(turned.string_at(&[0, 2]).is_err());
        assert!(Tensor::scalar(1u8).string_at(&[]).is_err());
        assert_eq!(Tensor::scalar(1u8).strings().len(), 0);
    }

    #[test]
    fn copies_have_the_bytes_that_they_name_and_no_others() {
        let x = words();
        let turned = x.transpose(0, 1).unwrap();
        let picked = x.index_select(1, &[2, 2, 0]).unwrap();
        let stacked = Tensor::stack(&[&x, &turned.view_as_rows()], 0).unwrap();
        let joined = Tensor::cat(&[&x, &picked], 0).unwrap();
        let detached = turned.detach();
        drop((x, turned));
        assert_eq!(
            texts(&detached),
            ["a", "\u{e9}", "", "b", "long word", "0123456789"]
        );
        assert_eq!(texts(&picked)[..3], ["long word", "long word", "a"]);
        assert_eq!(texts(&stacked)[6..9], ["a", "\u{e9}", ""]);
        assert_eq!(
            texts(&joined)[6..],
            [
                "long word",
                "long word",
                "a",
                "0123456789",
                "0123456789",
                "\u{e9}"
            ]
        );
        let owner = picked.owner().downcast_ref::<Strings>().unwrap();
        assert_eq!(owner.extents[0].len, 9 + 9 + 1 + 10 + 10 + 2);
    }

    impl Tensor {
        fn view_as_rows(&self) -> Tensor {
            self.reshape([2, 3]).unwrap()
        }
    }

    #[test]
    fn tensors_are_equal_whose_values_are() {
        let x = words();
        let copy = x.transpose(0, 1).unwrap().detach().transpose(0, 1).unwrap();
        assert_eq!(x, copy);
        assert!(x.same_bits(&copy) && x.allclose(&copy, 0.0, 0.0).unwrap());
        assert_ne!(x, x.flip(0).unwrap());
        assert_eq!(
            Tensor::zeros(DType::Bytes, [2]).unwrap(),
            Tensor::from_strings(&["", ""], [2]).unwrap()
        );
    }

    #[test]
    fn bytes_are_no_numbers() {
        let x = words();
        assert!(matches!(x.cast(DType::F32), Err(TensorError::DType { .. })));
        assert!(matches!(
            Tensor::scalar(0u8).cast(DType::Bytes),
            Err(TensorError::DType { .. })
        ));
        assert!(x.as_slice::<u8>().is_err() && x.to_vec::<i64>().is_err() && x.as_bytes().is_err());
        assert!(matches!(
            Tensor::from_strings(&["a"], [2]),
            Err(TensorError::Count { .. })
        ));
    }

    #[test]
    fn values_print_as_byte_strings() {
        let x = Tensor::from_strings(&[&b"a\"\n"[..], &[0xff; 41]], [2]).unwrap();
        let long = "\\xff".repeat(40);
        let expected =
            format!("Tensor(shape=[2], dtype=bytes, data=[b\"a\\\"\\n\", b\"{long}\"...])");
        assert_eq!(x.to_string(), expected);
    }

    #[test]
    fn damaged_blocks_are_refused() {
        let x = words();
        let block = x.encoded().unwrap();
        assert_eq!(Tensor::from_bytes(DType::Bytes, [2, 3], &block).unwrap(), x);
        for broken in [
            &block[..3],
            &block[..block.len() - 1],
            &[&block[..], &[0]].concat(),
        ] {
            let read = Tensor::from_bytes(DType::Bytes, [2, 3], broken);
            assert!(matches!(read, Err(TensorError::Count { .. })));
        }
    }

    #[test]
    fn files_and_blocks_keep_values_beside_numbers() {
        let mut dict = TensorDict::new([2]);
        dict.set("text", words()).unwrap();
        dict.set(("next", "text"), words().flip(1).unwrap())
            .unwrap();
        dict.set("reward", Tensor::arange(0..2).unwrap()).unwrap();
        dict.set("none", Tensor::zeros(DType::Bytes, [2, 0]).unwrap())
            .unwrap();
        let bytes = dict.to_bytes().unwrap();
        assert_eq!(TensorDict::from_bytes(&bytes).unwrap(), dict);
        let block = Tensor::from_slice(&bytes, [bytes.len()]).unwrap();
        assert_eq!(TensorDict::views_of_bytes(&block).unwrap(), dict);
    }
}
