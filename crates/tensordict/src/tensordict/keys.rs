//! Choosing, flattening and merging by name.

use std::sync::Arc;

use super::{Entry, TensorDict};
use crate::{AsKey, NestedKey, Result, TensorError};

impl TensorDict {
    /// The dict with only the entries `keys`, which may be nested; dicts on the way keep their
    /// batch size and names.
    ///
    /// # Errors
    /// [`TensorError::Missing`], [`TensorError::NotADict`] when a key leads through a tensor,
    /// [`TensorError::EmptyKey`].
    pub fn select<K: AsKey>(&self, keys: &[K]) -> Result<TensorDict> {
        let mut out = TensorDict::with_batch(self.batch.clone());
        for key in keys {
            if key.depth() == 0 {
                return Err(TensorError::EmptyKey);
            }
            self.pick(&mut out, key, 0)?;
        }
        Ok(out)
    }

    /// Copies the entry `key` to `out`, which is the chosen part of this dict.
    fn pick(&self, out: &mut TensorDict, key: &impl AsKey, level: usize) -> Result<()> {
        let (name, entry) = &self.entries[self.locate(key, level)?];
        let place = out.position(name);
        if level + 1 == key.depth() {
            match place {
                Ok(at) => out.entries[at].1 = entry.clone(),
                Err(at) => out.insert(at, Arc::clone(name), entry.clone()),
            }
            return Ok(());
        }
        let Entry::Dict(dict) = entry else {
            return Err(TensorError::NotADict {
                key: NestedKey::from_name(Arc::clone(name)),
            });
        };
        let at = place.unwrap_or_else(|at| {
            out.insert(
                at,
                Arc::clone(name),
                Entry::Dict(TensorDict::with_batch(dict.batch.clone())),
            );
            at
        });
        match &mut out.entries[at].1 {
            Entry::Dict(inner) => dict
                .pick(inner, key, level + 1)
                .map_err(|error| match error {
                    // The key in `Missing` is whole already; this one grows on the way out.
                    TensorError::NotADict { .. } => error.in_dict(name),
                    other => other,
                }),
            Entry::Tensor(_) => Err(TensorError::NotADict {
                key: NestedKey::from_name(Arc::clone(name)),
            }),
        }
    }

    /// The dict without the entries `keys`, which may be nested; missing keys do not
    /// matter.
    #[must_use]
    pub fn exclude<K: AsKey>(&self, keys: &[K]) -> TensorDict {
        let mut out = self.clone();
        for key in keys {
            if let Ok((dict, at)) = out.descend_mut(key) {
                dict.entries.remove(at);
            }
        }
        out
    }

    /// The dict with every tensor at the top level, named by its names joined with `separator`.
    ///
    /// Nested dicts disappear, empty ones without a trace; the batch size is that of this dict.
    ///
    /// # Errors
    /// [`TensorError::Exists`] when two tensors get the same name.
    pub fn flatten_keys(&self, separator: &str) -> Result<TensorDict> {
        let mut out = TensorDict::with_batch(self.batch.clone());
        for (key, tensor) in self.leaves() {
            let name = key.components().join(separator);
            if out.contains_key(&name) {
                return Err(TensorError::Exists {
                    key: NestedKey::from(name),
                });
            }
            out.set(&name, tensor)?;
        }
        Ok(out)
    }

    /// The dict with every name at the top level split at `separator` into nested names.
    ///
    /// New dicts have this dict's batch size and dimension names.
    ///
    /// # Errors
    /// [`TensorError::Exists`] and [`TensorError::NotADict`] when a split name is taken or leads
    /// through a tensor, [`TensorError::Nothing`] when the separator is empty.
    pub fn unflatten_keys(&self, separator: &str) -> Result<TensorDict> {
        if separator.is_empty() {
            return Err(TensorError::Nothing {
                op: "unflatten_keys",
                what: "character in the separator",
            });
        }
        let mut out = TensorDict::with_batch(self.batch.clone());
        for (name, entry) in &self.entries {
            let parts: Vec<&str> = name.split(separator).collect();
            if out.contains_key(&parts[..]) {
                return Err(TensorError::Exists {
                    key: NestedKey::from(&parts[..]),
                });
            }
            out.set(&parts[..], entry.clone())?;
        }
        Ok(out)
    }

    /// Sets every entry of `other` here; dicts that both have are merged, everything else is
    /// replaced.
    ///
    /// # Errors
    /// The errors of [`set`](TensorDict::set); nothing is changed then.
    pub fn update(&mut self, other: &TensorDict) -> Result<&mut Self> {
        // Entries share their memory, so working on a copy is cheap and leaves this dict whole on
        // an error.
        let mut merged = self.clone();
        merged.merge(other)?;
        *self = merged;
        Ok(self)
    }

    fn merge(&mut self, other: &TensorDict) -> Result<()> {
        for (name, entry) in &other.entries {
            match (self.position(name), entry) {
                (Ok(at), Entry::Dict(theirs)) if self.entries[at].1.as_dict().is_some() => {
                    if let Entry::Dict(mine) = &mut self.entries[at].1 {
                        mine.merge(theirs).map_err(|error| error.in_dict(name))?;
                    }
                }
                _ => {
                    self.set(name, entry.clone())?;
                }
            }
        }
        Ok(())
    }
}
