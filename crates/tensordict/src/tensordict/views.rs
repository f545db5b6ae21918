//! Indexing and reshaping the batch dimensions of all tensors at once.

use std::ops::RangeBounds;
use std::sync::Arc;

use smallvec::smallvec;

use super::{Batch, Entry, Names, TensorDict};
use crate::shape::{check_dim, check_index, check_range, checked_numel, resolve_range};
use crate::tensor::{RowPlaces, chunk_len, split_ranges};
use crate::{DType, Result, Shape, Tensor, TensorError};

impl TensorDict {
    /// View of index `index` along batch dimension `dim`, which is gone from the batch size.
    ///
    /// # Errors
    /// [`TensorError::Dim`] and [`TensorError::Index`].
    pub fn select_index(&self, dim: usize, index: usize) -> Result<TensorDict> {
        check_index(&self.batch.size, dim, index)?;
        self.rebatch(&|batch| Ok(batch.without(dim)), &|tensor| {
            tensor.select(dim, index)
        })
    }

    /// View of item `index` of the first batch dimension.
    ///
    /// # Errors
    /// [`TensorError::Dim`] when the dict has no batch dimensions, and [`TensorError::Index`].
    pub fn index(&self, index: usize) -> Result<TensorDict> {
        self.select_index(0, index)
    }

    /// View of the `len` indices from `start` on along batch dimension `dim`.
    ///
    /// # Errors
    /// [`TensorError::Dim`] and [`TensorError::Range`].
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<TensorDict> {
        check_range(&self.batch.size, dim, start, len)?;
        self.rebatch(&|batch| Ok(batch.resized(dim, len)), &|tensor| {
            tensor.narrow(dim, start, len)
        })
    }

    /// View of the indices in `range` along batch dimension `dim`, for example `batch.slice(0,
    /// ..10)`.
    ///
    /// # Errors
    /// [`TensorError::Dim`] and [`TensorError::Range`].
    pub fn slice(&self, dim: usize, range: impl RangeBounds<usize>) -> Result<TensorDict> {
        let (start, len) = resolve_range(&self.batch.size, dim, &range)?;
        self.narrow(dim, start, len)
    }

    /// Views of `size` indices each along batch dimension `dim`, in order; the last may be shorter.
    ///
    /// # Errors
    /// [`TensorError::Dim`], and [`TensorError::Nothing`] when `size` is zero.
    pub fn split(&self, dim: usize, size: usize) -> Result<Vec<TensorDict>> {
        split_ranges(&self.batch.size, dim, size)?
            .map(|(start, len)| self.narrow(dim, start, len))
            .collect()
    }

    /// At most `chunks` views of equal length along batch dimension `dim`, in order; the last may
    /// be shorter.
    ///
    /// # Errors
    /// [`TensorError::Dim`], and [`TensorError::Nothing`] when `chunks` is zero.
    pub fn chunk(&self, dim: usize, chunks: usize) -> Result<Vec<TensorDict>> {
        self.split(dim, chunk_len(&self.batch.size, dim, chunks)?)
    }

    /// Copy of the given indices along batch dimension `dim`, in their order; indices may repeat.
    ///
    /// # Errors
    /// [`TensorError::Dim`], [`TensorError::Index`], [`TensorError::TooLarge`],
    /// [`TensorError::NoMemory`].
    pub fn index_select(&self, dim: usize, indices: &[usize]) -> Result<TensorDict> {
        check_dim(dim, self.ndim())?;
        for &index in indices {
            check_index(&self.batch.size, dim, index)?;
        }
        let lead = |batch: &Batch| Ok(batch.resized(dim, indices.len()));
        self.rebatch(&lead, &|tensor| tensor.index_select(dim, indices))
    }

    /// Copy of the items `rows`, counted in row-major order over all batch dimensions, as batch
    /// `[rows]`; rows may repeat. It is written to the memory of those tensors of `spare` that have
    /// the same key at the same position and enough room, and that no other tensor shares.
    /// Dimension names are lost.
    ///
    /// ```
    /// use tensordict::{Tensor, TensorDict};
    ///
    /// let mut batch = TensorDict::new([2, 3]);
    /// batch.set("reward", Tensor::arange(0..6)?.view([2, 3])?)?;
    /// let first = batch.rows_into(&[5, 0], TensorDict::new([0]))?;
    /// let second = batch.rows_into(&[1, 4], first)?; // in the memory of the first
    /// assert_eq!(second.get("reward")?.to_vec::<i64>()?, [1, 4]);
    /// # Ok::<(), tensordict::TensorError>(())
    /// ```
    ///
    /// # Errors
    /// [`TensorError::Index`], [`TensorError::TooLarge`], [`TensorError::NoMemory`].
    pub fn rows_into(&self, rows: &[usize], spare: TensorDict) -> Result<TensorDict> {
        for &row in rows {
            check_index(&[self.numel()], 0, row)?;
        }
        self.copy_rows(&RowPlaces::new(rows, &self.batch.size), rows.len(), spare)
    }

    /// As [`rows_into`](TensorDict::rows_into), of `count` rows at places that were checked.
    fn copy_rows(
        &self,
        places: &RowPlaces<'_>,
        count: usize,
        spare: TensorDict,
    ) -> Result<TensorDict> {
        let mut out = TensorDict::with_batch(self.batch.releading(places.lead(), &[count]));
        out.entries.reserve_exact(self.entries.len());
        let mut spares = spare.entries.into_iter();
        for (name, entry) in &self.entries {
            let spare = spares.next().filter(|(spare, _)| spare == name);
            let made = match (entry, spare.map(|(_, entry)| entry)) {
                (Entry::Tensor(tensor), Some(Entry::Tensor(spare))) => {
                    tensor.rows_into(places, Some(spare)).map(Entry::Tensor)
                }
                (Entry::Tensor(tensor), _) => tensor.rows_into(places, None).map(Entry::Tensor),
                (Entry::Dict(dict), Some(Entry::Dict(spare))) => {
                    dict.copy_rows(places, count, spare).map(Entry::Dict)
                }
                (Entry::Dict(dict), _) => {
                    let none = TensorDict::new([0]);
                    dict.copy_rows(places, count, none).map(Entry::Dict)
                }
            };
            let made = made.map_err(|error| error.in_dict(name))?;
            out.entries.push((Arc::clone(name), made));
        }
        Ok(out)
    }

    /// Copy of the items where `mask` is true, in row-major order of the mask.
    ///
    /// `mask`: bool, its shape equal to the leading batch dimensions, which become one of the items
    /// picked.
    ///
    /// # Errors
    /// [`TensorError::DType`] when the mask is not bool, [`TensorError::Shape`] when it does not
    /// fit, [`TensorError::TooLarge`], [`TensorError::NoMemory`].
    pub fn masked_select(&self, mask: &Tensor) -> Result<TensorDict> {
        mask.expect_dtype::<bool>()?;
        let covered = mask.ndim();
        if !self.batch.size.starts_with(mask.shape()) {
            let expected = self.batch.size[..covered.min(self.ndim())].to_vec();
            return Err(TensorError::Shape {
                op: "masked_select",
                expected,
                got: mask.shape().to_vec(),
            });
        }
        let picked = mask.true_places()?;
        let lead = |batch: &Batch| {
            let mut out = batch.releading(covered, &[picked.len()]);
            if covered == 1 {
                out.names[0].clone_from(&batch.names[0]);
            }
            Ok(out)
        };
        self.rebatch(&lead, &|tensor| {
            tensor
                .reshape(releading(tensor.shape(), covered, &[mask.len()]))?
                .index_select(0, &picked)
        })
    }

    /// The same items, in row-major order, in batch size `shape`; tensors are views where possible,
    /// else copies.
    ///
    /// Dimension names are lost unless the size stays the same.
    ///
    /// # Errors
    /// [`TensorError::Shape`] when the number of items differs, [`TensorError::TooLarge`],
    /// [`TensorError::NoMemory`].
    pub fn reshape(&self, shape: impl AsRef<[usize]>) -> Result<TensorDict> {
        let target = shape.as_ref();
        if *target == *self.batch.size {
            return Ok(self.clone());
        }
        if checked_numel(target, DType::U8)? != self.numel() {
            let (expected, got) = (target.to_vec(), self.batch.size.to_vec());
            return Err(TensorError::Shape {
                op: "reshape",
                expected,
                got,
            });
        }
        let covered = self.ndim();
        self.rebatch(&|batch| Ok(batch.releading(covered, target)), &|tensor| {
            tensor.reshape(releading(tensor.shape(), covered, target))
        })
    }

    /// The same items in one batch dimension; tensors are views where possible, else copies.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`] for a batch size without entries that is larger than the address
    /// space, [`TensorError::NoMemory`].
    pub fn flatten(&self) -> Result<TensorDict> {
        self.reshape([self.numel()])
    }

    /// View with batch dimensions `a` and `b` exchanged.
    ///
    /// # Errors
    /// [`TensorError::Dim`].
    pub fn transpose(&self, a: usize, b: usize) -> Result<TensorDict> {
        check_dim(a, self.ndim())?;
        check_dim(b, self.ndim())?;
        let lead = |batch: &Batch| {
            let mut out = batch.clone();
            out.size.swap(a, b);
            out.names.swap(a, b);
            Ok(out)
        };
        self.rebatch(&lead, &|tensor| tensor.transpose(a, b))
    }

    /// View with a batch dimension of size one put before dimension `dim`; `dim == ndim()` puts it
    /// last.
    ///
    /// # Errors
    /// [`TensorError::Dim`].
    pub fn unsqueeze(&self, dim: usize) -> Result<TensorDict> {
        check_dim(dim, self.ndim() + 1)?;
        self.rebatch(&|batch| Ok(batch.with(dim, 1)), &|tensor| {
            tensor.unsqueeze(dim)
        })
    }

    /// View without batch dimension `dim` when its size is one; the same view otherwise.
    ///
    /// # Errors
    /// [`TensorError::Dim`].
    pub fn squeeze(&self, dim: usize) -> Result<TensorDict> {
        check_dim(dim, self.ndim())?;
        if self.batch.size[dim] == 1 {
            self.select_index(dim, 0)
        } else {
            Ok(self.clone())
        }
    }

    /// View of batch size `shape` that repeats batch dimensions of size one, and adds dimensions in
    /// front.
    ///
    /// # Errors
    /// [`TensorError::Shape`] when a dimension other than one would have to change,
    /// [`TensorError::TooLarge`].
    pub fn expand(&self, shape: impl AsRef<[usize]>) -> Result<TensorDict> {
        let target = shape.as_ref();
        let covered = self.ndim();
        let added = target.len().saturating_sub(covered);
        let fits = covered <= target.len()
            && self
                .batch
                .size
                .iter()
                .zip(&target[added..])
                .all(|(&old, &new)| old == new || old == 1);
        if !fits {
            let (expected, got) = (target.to_vec(), self.batch.size.to_vec());
            return Err(TensorError::Shape {
                op: "expand",
                expected,
                got,
            });
        }
        let lead = |batch: &Batch| {
            let mut names: Names = smallvec![None; added];
            names.extend(batch.names.iter().cloned());
            Ok(Batch {
                size: releading(&batch.size, covered, target),
                names,
            })
        };
        self.rebatch(&lead, &|tensor| {
            tensor.expand(releading(tensor.shape(), covered, target))
        })
    }
}

/// `shape` with its first `covered` dimensions replaced by `lead`.
fn releading(shape: &[usize], covered: usize, lead: &[usize]) -> Shape {
    let mut out = Shape::from_slice(lead);
    out.extend_from_slice(shape.get(covered..).unwrap_or_default());
    out
}

impl Batch {
    fn without(&self, dim: usize) -> Batch {
        let mut out = self.clone();
        out.size.remove(dim);
        out.names.remove(dim);
        out
    }

    /// This batch with an unnamed dimension of `size` before dimension `dim`.
    pub(super) fn with(&self, dim: usize, size: usize) -> Batch {
        let mut out = self.clone();
        out.size.insert(dim, size);
        out.names.insert(dim, None);
        out
    }

    /// This batch with dimension `dim` of another size.
    pub(super) fn resized(&self, dim: usize, size: usize) -> Batch {
        let mut out = self.clone();
        out.size[dim] = size;
        out
    }

    /// This batch with its first `covered` dimensions replaced by unnamed ones of sizes `lead`.
    fn releading(&self, covered: usize, lead: &[usize]) -> Batch {
        let mut names: Names = smallvec![None; lead.len()];
        names.extend(self.names[covered..].iter().cloned());
        Batch {
            size: releading(&self.size, covered, lead),
            names,
        }
    }
}
