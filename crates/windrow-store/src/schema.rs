//! Compares frames with the leaves of a store, and finds where their rows lie.

use tensordict::{Entry, LeafSpec, NestedKey, Tensor, TensorDict, TensorError};

use crate::StoreError;

/// One entry of the frames that are written: where its first row lies, and the bytes from one row
/// to the next.
pub(crate) type RowPointer = (*const u8, isize);

/// Number of frames, after checking that there is one batch dimension.
pub(crate) fn flat(frames: &TensorDict) -> Result<usize, StoreError> {
    match frames.batch_size() {
        [n] => Ok(*n),
        other => Err(StoreError::NotFlat {
            batch_size: other.to_vec(),
        }),
    }
}

/// Whether `frames` have exactly the leaves, with `n` rows each. Calls `each` with the tensors, one
/// after the other.
pub(crate) fn fit(
    leaves: &[LeafSpec],
    frames: &TensorDict,
    n: usize,
    each: &mut impl FnMut(&Tensor),
) -> bool {
    let mut leaves = leaves.iter();
    matching(frames, n, None, &mut leaves, each) && leaves.next().is_none()
}

/// Where the `n` rows of each leaf lie. Copies rows that are not contiguous into `copies` first.
///
/// # Errors
/// The errors of [`misfit`] if the frames do not fit; [`StoreError::Tensor`] if there is no memory
/// for a copy.
pub(crate) fn sources(
    leaves: &[LeafSpec],
    frames: &TensorDict,
    n: usize,
    copies: &mut Vec<Tensor>,
) -> Result<Vec<RowPointer>, StoreError> {
    let mut sources = Vec::with_capacity(leaves.len());
    let mut failed = None;
    let fits = fit(leaves, frames, n, &mut |tensor| {
        if has_whole_rows(tensor) {
            sources.push(source(tensor));
            return;
        }
        match tensor.try_detach() {
            Ok(copy) => {
                sources.push(source(&copy));
                copies.push(copy);
            }
            Err(error) => failed = Some(error),
        }
    });
    match failed {
        _ if !fits => Err(misfit(leaves, frames, n)),
        Some(error) => Err(error.into()),
        None => Ok(sources),
    }
}

/// A name, and the names of the dicts around it.
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

/// As [`fit`], for a dict within others. Leaves and tensors are in the order of their names, so one
/// pass is enough.
fn matching(
    frames: &TensorDict,
    n: usize,
    outer: Option<&Name<'_>>,
    leaves: &mut std::slice::Iter<'_, LeafSpec>,
    each: &mut impl FnMut(&Tensor),
) -> bool {
    frames.entries().all(|(name, entry)| {
        let path = Name { name, outer };
        let tensor = match entry {
            Entry::Dict(dict) => return matching(dict, n, Some(&path), leaves, each),
            Entry::Tensor(tensor) => tensor,
        };
        let fits = leaves.next().is_some_and(|leaf| {
            // Compares the first size too: that many rows are read from the tensor's memory.
            let alike = tensor.shape().split_first() == Some((&n, &leaf.shape[..]));
            alike && leaf.dtype == tensor.dtype() && path.is(&leaf.key)
        });
        if fits {
            each(tensor);
        }
        fits
    })
}

/// The first difference between `frames` and `leaves`, which [`matching`] has found to exist.
#[cold]
pub(crate) fn misfit(leaves: &[LeafSpec], frames: &TensorDict, n: usize) -> StoreError {
    for leaf in leaves {
        let Ok(tensor) = frames.get(&leaf.key) else {
            let key = leaf.key.clone();
            return StoreError::Missing { key };
        };
        let (rows, got) = match tensor.shape() {
            [rows, got @ ..] => (*rows, got),
            [] => (0, &[][..]),
        };
        if rows != n {
            let (key, shape, batch_size) = (leaf.key.clone(), tensor.shape().to_vec(), vec![n]);
            return StoreError::Tensor(TensorError::Batch {
                key,
                shape,
                batch_size,
            });
        }
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

/// Whether each row of the tensor is contiguous.
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

fn source(tensor: &Tensor) -> RowPointer {
    let step = tensor.strides()[0] * tensor.dtype().size() as isize;
    (tensor.data_ptr().as_ptr().cast_const(), step)
}

#[cfg(test)]
mod tests {
    use tensordict::DType;

    use super::*;

    #[test]
    fn an_entry_of_another_length_than_the_frames_does_not_fit() {
        let mut frames = TensorDict::new([3]);
        frames
            .set(("next", "x"), Tensor::zeros(DType::F32, [3, 2]).unwrap())
            .unwrap();
        let leaves = [LeafSpec::new(("next", "x"), DType::F32, [2])];
        let fits = |n| sources(&leaves, &frames, n, &mut Vec::new()).map(|sources| sources.len());
        assert_eq!(fits(3).unwrap(), 1);
        for n in [0, 2, 4] {
            assert_eq!(
                fits(n).unwrap_err().to_string(),
                format!(
                    r#"entry ("next", "x"): shape [3, 2] does not start with batch size [{n}]"#
                )
            );
        }
    }
}
