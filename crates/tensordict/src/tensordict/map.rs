//! Walking over all tensors of a dict, or of several alike dicts in step.

use std::sync::Arc;

use super::{Batch, Entry, TensorDict, batch_error};
use crate::{NestedKey, Result, Tensor, TensorError};

impl TensorDict {
    /// A dict with `leaf(key, tensor)` instead of every tensor.
    ///
    /// # Errors
    /// The errors of `leaf`, wrapped in [`TensorError::At`], and [`TensorError::Batch`] when a
    /// result does not start with the batch size of its dict.
    pub fn map(
        &self,
        mut leaf: impl FnMut(&NestedKey, &Tensor) -> Result<Tensor>,
    ) -> Result<TensorDict> {
        self.map_below(None, &mut leaf)
    }

    fn map_below(
        &self,
        path: Option<&NestedKey>,
        leaf: &mut dyn FnMut(&NestedKey, &Tensor) -> Result<Tensor>,
    ) -> Result<TensorDict> {
        let mut out = TensorDict::with_batch(self.batch.clone());
        for (name, entry) in &self.entries {
            let key = match path {
                Some(path) => path.child(Arc::clone(name)),
                None => NestedKey::from_name(Arc::clone(name)),
            };
            let made = match entry {
                Entry::Tensor(tensor) => {
                    Entry::Tensor(leaf(&key, tensor).map_err(|error| error.at(&key))?)
                }
                Entry::Dict(dict) => Entry::Dict(dict.map_below(Some(&key), leaf)?),
            };
            if !made.shape().starts_with(&self.batch.size) {
                let batch_size = self.batch.size.to_vec();
                return Err(TensorError::Batch {
                    key,
                    shape: made.shape().to_vec(),
                    batch_size,
                });
            }
            out.push_sorted(Arc::clone(name), made);
        }
        Ok(out)
    }

    /// A row-major copy of every tensor in heap memory of its own, taken as [`Tensor::detach`]
    /// does; the result keeps no other memory alive.
    #[must_use]
    pub fn detach(&self) -> TensorDict {
        self.map_all(&Tensor::detach)
    }

    /// As [`detach`](TensorDict::detach), in the memory of those tensors of `spare` that have the
    /// same key at the same position, dtype and shape, and that no other tensor shares.
    #[must_use]
    pub fn detach_into(&self, spare: TensorDict) -> TensorDict {
        let mut spares = spare.entries.into_iter();
        let entries = self.entries.iter().map(|(name, entry)| {
            let spare = spares.next().filter(|(spare, _)| spare == name);
            let made = match (entry, spare.map(|(_, entry)| entry)) {
                (Entry::Tensor(tensor), Some(Entry::Tensor(spare))) => {
                    Entry::Tensor(tensor.detach_into(spare))
                }
                (Entry::Dict(dict), Some(Entry::Dict(spare))) => {
                    Entry::Dict(dict.detach_into(spare))
                }
                (Entry::Tensor(tensor), _) => Entry::Tensor(tensor.detach()),
                (Entry::Dict(dict), _) => Entry::Dict(dict.detach()),
            };
            (Arc::clone(name), made)
        });
        TensorDict {
            entries: entries.collect(),
            batch: self.batch.clone(),
        }
    }

    /// Every tensor in row-major order without gaps; only those that are not are copied.
    #[must_use]
    pub fn contiguous(&self) -> TensorDict {
        self.map_all(&Tensor::contiguous)
    }

    /// The dict with `leaf` applied to every tensor; `leaf` must keep the shape.
    fn map_all(&self, leaf: &dyn Fn(&Tensor) -> Tensor) -> TensorDict {
        let entries = self.entries.iter().map(|(name, entry)| {
            let made = match entry {
                Entry::Tensor(tensor) => Entry::Tensor(leaf(tensor)),
                Entry::Dict(dict) => Entry::Dict(dict.map_all(leaf)),
            };
            (Arc::clone(name), made)
        });
        TensorDict {
            entries: entries.collect(),
            batch: self.batch.clone(),
        }
    }

    /// The dict with the leading dimensions changed: `lead` gives each dict's new batch, `leaf`
    /// each new tensor.
    ///
    /// `lead` is asked for this dict first, so it can refuse arguments that do not fit the batch.
    pub(super) fn rebatch(
        &self,
        lead: &dyn Fn(&Batch) -> Result<Batch>,
        leaf: &dyn Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<TensorDict> {
        let mut out = TensorDict::with_batch(lead(&self.batch)?);
        out.entries.reserve_exact(self.entries.len());
        for (name, entry) in &self.entries {
            let made = match entry {
                Entry::Tensor(tensor) => leaf(tensor).map(Entry::Tensor),
                Entry::Dict(dict) => dict.rebatch(lead, leaf).map(Entry::Dict),
            };
            let made = made.map_err(|error| error.in_dict(name))?;
            if !made.shape().starts_with(&out.batch.size) {
                return Err(batch_error(name, made.shape(), &out.batch.size));
            }
            out.push_sorted(Arc::clone(name), made);
        }
        Ok(out)
    }
}

/// Checks that all dicts hold the same names as the first.
pub(super) fn check_same_keys(op: &'static str, dicts: &[&TensorDict]) -> Result<()> {
    let Some((first, rest)) = dicts.split_first() else {
        return Ok(());
    };
    for (i, dict) in rest.iter().enumerate() {
        if dict.keys().eq(first.keys()) {
            continue;
        }
        let only = |a: &TensorDict, b: &TensorDict| -> Vec<String> {
            a.keys()
                .filter(|&name| !b.contains_key(name))
                .map(str::to_owned)
                .collect()
        };
        return Err(TensorError::Keys {
            op,
            index: i + 1,
            missing: only(first, dict),
            extra: only(dict, first),
        });
    }
    Ok(())
}

/// The entries at one place of several dicts: all tensors or all dicts.
pub(super) enum Row<'a> {
    Tensors(Vec<&'a Tensor>),
    Dicts(Vec<&'a TensorDict>),
}

/// The entries at place `at` of `dicts`, which hold the same names.
///
/// # Errors
/// [`TensorError::NotATensor`] and [`TensorError::NotADict`] when they are not all of the kind of
/// the first.
pub(super) fn row<'a>(dicts: &[&'a TensorDict], at: usize) -> Result<Row<'a>> {
    let entries = dicts.iter().map(|dict| &dict.entries[at]);
    let key = |name: &Arc<str>| NestedKey::from_name(Arc::clone(name));
    match dicts.first().map(|dict| &dict.entries[at].1) {
        Some(Entry::Dict(_)) => entries
            .map(|(name, entry)| {
                entry
                    .as_dict()
                    .ok_or_else(|| TensorError::NotADict { key: key(name) })
            })
            .collect::<Result<_>>()
            .map(Row::Dicts),
        _ => entries
            .map(|(name, entry)| {
                entry
                    .as_tensor()
                    .ok_or_else(|| TensorError::NotATensor { key: key(name) })
            })
            .collect::<Result<_>>()
            .map(Row::Tensors),
    }
}
