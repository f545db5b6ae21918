//! Finding, setting and removing entries by key.

use std::sync::Arc;

use super::{Entry, TensorDict};
use crate::{AsKey, Element, NestedKey, Result, Tensor, TensorError};

/// Up to this many entries are searched one by one, which is faster than halving.
const SCAN: usize = 16;

impl TensorDict {
    /// Sets the entry `key`, replacing an existing one.
    ///
    /// Dicts on the way that do not exist are made, with the batch size and names of the dict
    /// around them. A nested dict takes this dict's dimension names, when it has any, for the
    /// dimensions that they share.
    ///
    /// # Errors
    /// [`TensorError::Batch`] when the shape does not start with the batch size,
    /// [`TensorError::NotADict`] when the key leads through a tensor, [`TensorError::EmptyKey`].
    /// Nothing is changed then.
    pub fn set(&mut self, key: impl AsKey, entry: impl Into<Entry>) -> Result<&mut Self> {
        if key.depth() == 0 {
            return Err(TensorError::EmptyKey);
        }
        self.place(&key, 0, entry.into())?;
        Ok(self)
    }

    fn place(&mut self, key: &impl AsKey, level: usize, mut entry: Entry) -> Result<()> {
        let found = self.position(key.part(level));
        if level + 1 < key.depth() {
            return self.place_inside(key, level, found, entry);
        }
        if !entry.shape().starts_with(&self.batch.size) {
            return Err(TensorError::Batch {
                key: key.to_key(),
                shape: entry.shape().to_vec(),
                batch_size: self.batch.size.to_vec(),
            });
        }
        if let Entry::Dict(dict) = &mut entry
            && self.batch.names.iter().any(Option::is_some)
        {
            dict.lead_names(&self.batch.names);
        }
        match found {
            Ok(at) => self.entries[at].1 = entry,
            Err(at) => self.insert(at, key.shared_part(level), entry),
        }
        Ok(())
    }

    fn place_inside(
        &mut self,
        key: &impl AsKey,
        level: usize,
        found: Result<usize, usize>,
        entry: Entry,
    ) -> Result<()> {
        match found {
            Ok(at) => match &mut self.entries[at].1 {
                Entry::Dict(dict) => dict.place(key, level + 1, entry),
                Entry::Tensor(_) => Err(TensorError::NotADict {
                    key: prefix(key, level),
                }),
            },
            Err(at) => {
                // Filled before it is inserted, so that a refused entry leaves no empty dict
                // behind.
                let mut dict = TensorDict::with_batch(self.batch.clone());
                dict.place(key, level + 1, entry)?;
                self.insert(at, key.shared_part(level), Entry::Dict(dict));
                Ok(())
            }
        }
    }

    pub(super) fn insert(&mut self, at: usize, name: Arc<str>, entry: Entry) {
        if self.entries.capacity() == 0 {
            // A batch has about this many entries a level; growing from one would copy them three
            // times.
            self.entries.reserve_exact(8);
        }
        self.entries.insert(at, (name, entry));
    }

    /// Place of `name`, or the place where it belongs.
    pub(super) fn position(&self, name: &str) -> Result<usize, usize> {
        match self.entries.last() {
            // Entries set in order, as a layout sets them, cost one comparison each.
            Some((last, _)) if **last < *name => Err(self.entries.len()),
            _ => self
                .entries
                .binary_search_by(|(other, _)| (**other).cmp(name)),
        }
    }

    /// Place of `name`, when there is such an entry.
    fn place_of(&self, name: &str) -> Option<usize> {
        if self.entries.len() <= SCAN {
            // Most names differ in length already, so this reads hardly any text.
            return self.entries.iter().position(|(other, _)| **other == *name);
        }
        self.position(name).ok()
    }

    /// The tensor `key`.
    ///
    /// # Errors
    /// [`TensorError::Missing`], which lists the existing names, [`TensorError::NotATensor`], and
    /// [`TensorError::NotADict`] when the key leads through a tensor.
    pub fn get(&self, key: impl AsKey) -> Result<&Tensor> {
        match self.find(&key)? {
            Entry::Tensor(tensor) => Ok(tensor),
            Entry::Dict(_) => Err(TensorError::NotATensor { key: key.to_key() }),
        }
    }

    /// The nested dict `key`.
    ///
    /// # Errors
    /// [`TensorError::Missing`], and [`TensorError::NotADict`] when a tensor is found there or on
    /// the way.
    pub fn get_dict(&self, key: impl AsKey) -> Result<&TensorDict> {
        match self.find(&key)? {
            Entry::Dict(dict) => Ok(dict),
            Entry::Tensor(_) => Err(TensorError::NotADict { key: key.to_key() }),
        }
    }

    /// The tensor or dict `key`.
    ///
    /// # Errors
    /// [`TensorError::Missing`], and [`TensorError::NotADict`] when the key leads through a tensor.
    pub fn get_entry(&self, key: impl AsKey) -> Result<&Entry> {
        self.find(&key)
    }

    /// The elements of the tensor `key` in row-major order, without copying.
    ///
    /// # Errors
    /// The errors of [`get`](TensorDict::get), and those of [`Tensor::as_slice`] wrapped in
    /// [`TensorError::At`].
    pub fn as_slice<T: Element>(&self, key: impl AsKey) -> Result<&[T]> {
        self.get(&key)?
            .as_slice()
            .map_err(|error| error.at(key.to_key()))
    }

    /// The elements of the tensor `key` in row-major order, for writing.
    ///
    /// Works only while no one else shares the memory. Lends elements and never the tensor itself:
    /// a tensor of another batch size can come in only through [`set`](TensorDict::set), which
    /// refuses it.
    ///
    /// # Errors
    /// The errors of [`get`](TensorDict::get), and those of [`Tensor::as_mut_slice`] wrapped in
    /// [`TensorError::At`].
    pub fn as_mut_slice<T: Element>(&mut self, key: impl AsKey) -> Result<&mut [T]> {
        let (dict, at) = self.descend_mut(&key)?;
        match &mut dict.entries[at].1 {
            Entry::Tensor(tensor) => tensor
                .as_mut_slice()
                .map_err(|error| error.at(key.to_key())),
            Entry::Dict(_) => Err(TensorError::NotATensor { key: key.to_key() }),
        }
    }

    /// Whether there is a tensor or dict `key`.
    pub fn contains_key(&self, key: impl AsKey) -> bool {
        // Makes no error, which would search for a similar name.
        let Some(last) = key.depth().checked_sub(1) else {
            return false;
        };
        let mut dict = self;
        for level in 0..last {
            match dict.place_of(key.part(level)) {
                Some(at) => match &dict.entries[at].1 {
                    Entry::Dict(inner) => dict = inner,
                    Entry::Tensor(_) => return false,
                },
                None => return false,
            }
        }
        dict.place_of(key.part(last)).is_some()
    }

    /// Takes the entry `key` out.
    ///
    /// # Errors
    /// As [`get_entry`](TensorDict::get_entry).
    pub fn remove(&mut self, key: impl AsKey) -> Result<Entry> {
        let (dict, at) = self.descend_mut(&key)?;
        Ok(dict.entries.remove(at).1)
    }

    /// Moves the entry `from` to `to`; both may be nested.
    ///
    /// # Errors
    /// [`TensorError::Missing`] for `from`, [`TensorError::Exists`] when `to` is taken, and those
    /// of [`set`](TensorDict::set). Nothing is changed then.
    pub fn rename_key(&mut self, from: impl AsKey, to: impl AsKey) -> Result<&mut Self> {
        let entry = self.find(&from)?.clone();
        if self.contains_key(&to) {
            return Err(TensorError::Exists { key: to.to_key() });
        }
        if to.depth() > from.depth()
            && (0..from.depth()).all(|level| from.part(level) == to.part(level))
        {
            // Moving a dict into itself would lose it.
            return Err(TensorError::Exists { key: from.to_key() });
        }
        self.set(&to, entry)?;
        self.remove(&from)?;
        Ok(self)
    }

    /// Names at the top level, sorted.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        self.entries.iter().map(|(name, _)| &**name)
    }

    /// Every tensor with its full key, depth first, sorted by name at each level.
    pub fn leaves(&self) -> impl Iterator<Item = (NestedKey, &Tensor)> {
        let mut open = vec![(None::<NestedKey>, self.entries.iter())];
        std::iter::from_fn(move || {
            loop {
                let (path, rest) = open.last_mut()?;
                let Some((name, entry)) = rest.next() else {
                    open.pop();
                    continue;
                };
                let key = match path {
                    Some(path) => path.child(Arc::clone(name)),
                    None => NestedKey::from_name(Arc::clone(name)),
                };
                match entry {
                    Entry::Tensor(tensor) => return Some((key, tensor)),
                    Entry::Dict(dict) => open.push((Some(key), dict.entries.iter())),
                }
            }
        })
    }

    fn find(&self, key: &impl AsKey) -> Result<&Entry> {
        let Some(last) = key.depth().checked_sub(1) else {
            return Err(TensorError::EmptyKey);
        };
        let mut dict = self;
        for level in 0..last {
            dict = match &dict.entries[dict.locate(key, level)?].1 {
                Entry::Dict(inner) => inner,
                Entry::Tensor(_) => {
                    return Err(TensorError::NotADict {
                        key: prefix(key, level),
                    });
                }
            };
        }
        Ok(&dict.entries[dict.locate(key, last)?].1)
    }

    /// The dict that directly holds `key`, and the place of the entry in it.
    pub(crate) fn descend_mut(&mut self, key: &impl AsKey) -> Result<(&mut TensorDict, usize)> {
        let Some(last) = key.depth().checked_sub(1) else {
            return Err(TensorError::EmptyKey);
        };
        let mut dict = self;
        for level in 0..last {
            let at = dict.locate(key, level)?;
            dict = match &mut dict.entries[at].1 {
                Entry::Dict(inner) => inner,
                Entry::Tensor(_) => {
                    return Err(TensorError::NotADict {
                        key: prefix(key, level),
                    });
                }
            };
        }
        let at = dict.locate(key, last)?;
        Ok((dict, at))
    }

    /// Place of the name that `key` has at `level` in this dict.
    pub(super) fn locate(&self, key: &impl AsKey, level: usize) -> Result<usize> {
        self.place_of(key.part(level))
            .ok_or_else(|| self.missing(key, level))
    }

    /// The error for a `key` whose name at `level` is not in this dict.
    #[cold]
    fn missing(&self, key: &impl AsKey, level: usize) -> TensorError {
        let name = key.part(level);
        let alike = self
            .keys()
            .map(|other| (strsim::jaro_winkler(name, other), other))
            .filter(|&(score, _)| score > 0.8)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, other)| NestedKey::from(other));
        // A name looked for one level too high is the other common mistake: "reward" for ("next",
        // "reward").
        let deeper = || {
            self.leaves()
                .map(|(leaf, _)| leaf)
                .find(|leaf| leaf.last() == name)
        };
        let near = alike.or_else(deeper).map(|found| match level {
            0 => found,
            _ => prefix(key, level - 1).join(&found),
        });
        TensorError::Missing {
            key: key.to_key(),
            near,
            available: self.keys().map(str::to_owned).collect(),
        }
    }
}

/// The first `level + 1` names of `key`.
fn prefix(key: &impl AsKey, level: usize) -> NestedKey {
    let names: Vec<&str> = (0..=level).map(|part| key.part(part)).collect();
    NestedKey::from(names.as_slice())
}
