//! One dict out of several, and comparing two.

use std::borrow::Borrow;
use std::sync::Arc;

use super::map::{Row, check_same_keys, row};
use super::{Batch, Entry, TensorDict};
use crate::shape::check_dim;
use crate::{Result, Tensor, TensorError};

/// How to combine the batches of dicts, and the tensors, that lie at the same place.
struct Plan<'a> {
    op: &'static str,
    lead: &'a dyn Fn(&[&TensorDict]) -> Result<Batch>,
    leaf: &'a dyn Fn(&[&Tensor]) -> Result<Tensor>,
}

impl TensorDict {
    /// Copy of all `dicts` side by side along a new batch dimension `dim`, whose size is their
    /// number.
    ///
    /// Dimension names are those of the first; the new dimension has none.
    ///
    /// # Errors
    /// [`TensorError::Nothing`] for an empty list, [`TensorError::Keys`], [`TensorError::Shape`]
    /// and [`TensorError::DType`] when they are not alike, [`TensorError::Dim`],
    /// [`TensorError::TooLarge`], [`TensorError::NoMemory`].
    pub fn stack<D: Borrow<TensorDict>>(dicts: &[D], dim: usize) -> Result<TensorDict> {
        let dicts: Vec<&TensorDict> = dicts.iter().map(D::borrow).collect();
        let first = first_of("stack", &dicts)?;
        check_dim(dim, first.ndim() + 1)?;
        let lead = |row: &[&TensorDict]| {
            for dict in row {
                check_size("stack", &row[0].batch, &dict.batch)?;
            }
            Ok(row[0].batch.with(dim, row.len()))
        };
        combine(
            &dicts,
            &Plan {
                op: "stack",
                lead: &lead,
                leaf: &|row| Tensor::stack(row, dim),
            },
        )
    }

    /// Copy of all `dicts` one after another along batch dimension `dim`; other batch dimensions
    /// must be equal.
    ///
    /// Dimension names are those of the first.
    ///
    /// # Errors
    /// [`TensorError::Nothing`] for an empty list, [`TensorError::Keys`], [`TensorError::Shape`]
    /// and [`TensorError::DType`] when they are not alike, [`TensorError::Dim`],
    /// [`TensorError::TooLarge`], [`TensorError::NoMemory`].
    pub fn cat<D: Borrow<TensorDict>>(dicts: &[D], dim: usize) -> Result<TensorDict> {
        let dicts: Vec<&TensorDict> = dicts.iter().map(D::borrow).collect();
        let first = first_of("cat", &dicts)?;
        check_dim(dim, first.ndim())?;
        let lead = |row: &[&TensorDict]| {
            let mut total = 0usize;
            for dict in row {
                check_dim(dim, dict.ndim())?;
                check_size(
                    "cat",
                    &row[0].batch,
                    &dict.batch.resized(dim, row[0].batch.size[dim]),
                )?;
                total = total.saturating_add(dict.batch.size[dim]);
            }
            Ok(row[0].batch.resized(dim, total))
        };
        combine(
            &dicts,
            &Plan {
                op: "cat",
                lead: &lead,
                leaf: &|row| Tensor::cat(row, dim),
            },
        )
    }

    /// Whether all tensors are close to those of `other`, as [`Tensor::allclose`] defines it.
    ///
    /// # Errors
    /// [`TensorError::Keys`], [`TensorError::Shape`] and [`TensorError::DType`] when those differ.
    pub fn allclose(&self, other: &TensorDict, rtol: f64, atol: f64) -> Result<bool> {
        check_size("allclose", &self.batch, &other.batch)?;
        let pair = [self, other];
        check_same_keys("allclose", &pair)?;
        for (at, (name, _)) in self.entries.iter().enumerate() {
            let close = match row(&pair, at)? {
                Row::Tensors(row) => row[0].allclose(row[1], rtol, atol),
                Row::Dicts(row) => row[0].allclose(row[1], rtol, atol),
            };
            if !close.map_err(|error| error.in_dict(name))? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn combine(dicts: &[&TensorDict], plan: &Plan<'_>) -> Result<TensorDict> {
    let first = first_of(plan.op, dicts)?;
    check_same_keys(plan.op, dicts)?;
    let mut out = TensorDict::with_batch((plan.lead)(dicts)?);
    for (at, (name, _)) in first.entries.iter().enumerate() {
        let made = match row(dicts, at)? {
            Row::Tensors(row) => (plan.leaf)(&row).map(Entry::Tensor),
            Row::Dicts(row) => combine(&row, plan).map(Entry::Dict),
        };
        out.push_sorted(Arc::clone(name), made.map_err(|error| error.in_dict(name))?);
    }
    Ok(out)
}

fn first_of<'a>(op: &'static str, dicts: &[&'a TensorDict]) -> Result<&'a TensorDict> {
    dicts
        .first()
        .copied()
        .ok_or(TensorError::Nothing { op, what: "dict" })
}

fn check_size(op: &'static str, expected: &Batch, got: &Batch) -> Result<()> {
    if expected.size == got.size {
        return Ok(());
    }
    Err(TensorError::Shape {
        op,
        expected: expected.size.to_vec(),
        got: got.size.to_vec(),
    })
}
