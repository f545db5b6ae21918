//! Frames beside the leaves of a store.

use tensordict::{Entry, NestedKey, Tensor, TensorDict};

use super::StoreError;
use crate::LeafSpec;

/// One entry of the frames that are written: where its first row lies, and the bytes from one row to the next.
pub(super) type Source = (*const u8, isize);

/// Checks that there is one batch dimension.
pub(super) fn flat(frames: &TensorDict) -> Result<(), StoreError> {
    match frames.batch_size() {
        [_] => Ok(()),
        other => Err(StoreError::NotFlat {
            batch_size: other.to_vec(),
        }),
    }
}

/// Whether the tensors of `frames` are those of the leaves, all of them; `each` is called with one after the other.
pub(super) fn fit(
    leaves: &[LeafSpec],
    frames: &TensorDict,
    each: &mut impl FnMut(&Tensor),
) -> bool {
    let mut leaves = leaves.iter();
    matching(frames, None, &mut leaves, each) && leaves.next().is_none()
}

/// Where the rows of each leaf lie; rows that are not in one piece are copied into `copies` first. None when the frames
/// do not fit.
pub(super) fn sources(
    leaves: &[LeafSpec],
    frames: &TensorDict,
    copies: &mut Vec<Tensor>,
) -> Option<Vec<Source>> {
    let mut sources = Vec::with_capacity(leaves.len());
    let fits = fit(leaves, frames, &mut |tensor| {
        if has_whole_rows(tensor) {
            sources.push(source(tensor));
        } else {
            let copy = tensor.contiguous();
            sources.push(source(&copy));
            copies.push(copy);
        }
    });
    fits.then_some(sources)
}

/// A name and those around it.
struct Name<'a> {
    name: &'a str,
    outer: Option<&'a Name<'a>>,
}

impl Name<'_> {
    fn is(&self, key: &NestedKey) -> bool {
        let mut at = Some(self);
        let mut names = key.components().iter().rev();
        while let Some(path) = at {
            if names.next().is_none_or(|name| **name != *path.name) {
                return false;
            }
            at = path.outer;
        }
        names.next().is_none()
    }
}

/// As [`fit`], for a dict within others. Leaves and tensors are in the order of their names, so that one pass does.
fn matching(
    frames: &TensorDict,
    outer: Option<&Name<'_>>,
    leaves: &mut std::slice::Iter<'_, LeafSpec>,
    each: &mut impl FnMut(&Tensor),
) -> bool {
    frames.entries().all(|(name, entry)| {
        let path = Name { name, outer };
        let tensor = match entry {
            Entry::Dict(dict) => return matching(dict, Some(&path), leaves, each),
            Entry::Tensor(tensor) => tensor,
        };
        let fits = leaves.next().is_some_and(|leaf| {
            let alike = leaf.dtype == tensor.dtype() && leaf.shape[..] == tensor.shape()[1..];
            alike && path.is(&leaf.key)
        });
        if fits {
            each(tensor);
        }
        fits
    })
}

/// How `frames` differ from `leaves`, when [`matching`] has found that they do.
#[cold]
pub(super) fn misfit(leaves: &[LeafSpec], frames: &TensorDict) -> StoreError {
    for leaf in leaves {
        let Ok(tensor) = frames.get(&leaf.key) else {
            let key = leaf.key.clone();
            return StoreError::Missing { key };
        };
        let got = &tensor.shape()[1..];
        if leaf.dtype != tensor.dtype() || leaf.shape[..] != *got {
            return StoreError::Entry {
                key: leaf.key.clone(),
                expected_dtype: leaf.dtype,
                expected: leaf.shape[..].into(),
                got_dtype: tensor.dtype(),
                got: got.into(),
            };
        }
    }
    let extra = frames
        .leaves()
        .find(|(key, _)| leaves.iter().all(|leaf| leaf.key != *key));
    extra.map_or(StoreError::NoEntries, |(key, _)| StoreError::Extra { key })
}

/// Whether each row of the tensor lies in one piece.
fn has_whole_rows(tensor: &Tensor) -> bool {
    let dims = tensor.shape().iter().zip(tensor.strides()).skip(1).rev();
    let mut step = 1;
    for (&size, &stride) in dims {
        if size != 1 && stride != step {
            return false;
        }
        step *= size as isize;
    }
    true
}

fn source(tensor: &Tensor) -> Source {
    let step = tensor.strides()[0] * tensor.dtype().size() as isize;
    (tensor.data_ptr().as_ptr().cast_const(), step)
}
