//! A dict of tensors and dicts that share leading batch dimensions.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::{NestedKey, Result, Shape, Tensor, TensorError};

mod combine;
mod display;
mod groups;
mod keys;
mod lookup;
mod map;
mod views;

#[cfg(test)]
mod tests;

pub use groups::Group;

/// Names of the batch dimensions, `None` where a dimension has none.
pub(crate) type Names = SmallVec<[Option<Arc<str>>; 2]>;

/// Batch size of a dict with the names of its dimensions; both have one item for each batch
/// dimension.
#[derive(Debug, PartialEq)]
pub(crate) struct Batch {
    pub(crate) size: Shape,
    pub(crate) names: Names,
}

impl Clone for Batch {
    fn clone(&self) -> Self {
        // Copies the inline words at once; the derived clone goes item by item.
        Batch {
            size: Shape::from_slice(&self.size),
            names: self.names.clone(),
        }
    }
}

impl Batch {
    /// Batch of `size` whose dimensions have no names.
    pub(crate) fn unnamed(size: Shape) -> Self {
        let names = smallvec![None; size.len()];
        Self { size, names }
    }
}

/// The value of a [`TensorDict`] under one name.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// A tensor whose shape starts with the dict's batch size.
    Tensor(Tensor),
    /// A dict whose batch size starts with the outer dict's batch size.
    Dict(TensorDict),
}

impl Entry {
    /// Shape of the tensor, or batch size of the dict.
    pub fn shape(&self) -> &[usize] {
        match self {
            Entry::Tensor(tensor) => tensor.shape(),
            Entry::Dict(dict) => dict.batch_size(),
        }
    }

    /// The tensor, when this is one.
    pub fn as_tensor(&self) -> Option<&Tensor> {
        match self {
            Entry::Tensor(tensor) => Some(tensor),
            Entry::Dict(_) => None,
        }
    }

    /// The dict, when this is one.
    pub fn as_dict(&self) -> Option<&TensorDict> {
        match self {
            Entry::Tensor(_) => None,
            Entry::Dict(dict) => Some(dict),
        }
    }
}

impl From<Tensor> for Entry {
    fn from(tensor: Tensor) -> Self {
        Entry::Tensor(tensor)
    }
}

impl From<&Tensor> for Entry {
    fn from(tensor: &Tensor) -> Self {
        Entry::Tensor(tensor.clone())
    }
}

impl From<TensorDict> for Entry {
    fn from(dict: TensorDict) -> Self {
        Entry::Dict(dict)
    }
}

/// Named tensors and nested dicts that share their leading dimensions, the batch size.
///
/// Entries are kept sorted by name. Cloning and the operations that return views copy no elements.
///
/// ```
/// use tensordict::{Tensor, TensorDict};
///
/// # fn main() -> tensordict::Result<()> {
/// let mut batch = TensorDict::new([4]).with_names(&[Some("time")])?;
/// batch.set("action", Tensor::arange(0..4)?)?;
/// batch.set(("next", "reward"), Tensor::full([4, 1], 1.0f32)?)?;
///
/// let last = batch.index(3)?;
/// assert_eq!(last.get("action")?.item::<i64>()?, 3);
/// assert_eq!(last.get(("next", "reward"))?.shape(), [1]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TensorDict {
    /// Sorted by name, each name once; shapes start with `batch.size`.
    entries: Vec<(Arc<str>, Entry)>,
    batch: Batch,
}

impl TensorDict {
    /// Empty dict of `batch_size`, without dimension names.
    pub fn new(batch_size: impl AsRef<[usize]>) -> TensorDict {
        Self::with_batch(Batch::unnamed(Shape::from_slice(batch_size.as_ref())))
    }

    pub(crate) fn with_batch(batch: Batch) -> TensorDict {
        TensorDict {
            entries: Vec::new(),
            batch,
        }
    }

    /// This dict with its batch dimensions named, outermost first.
    ///
    /// # Errors
    /// [`TensorError::Names`] when there is not one name (or `None`) for each batch dimension.
    pub fn with_names(mut self, names: &[Option<&str>]) -> Result<TensorDict> {
        self.set_names(names)?;
        Ok(self)
    }

    /// Names the batch dimensions, outermost first; nested dicts take the names for the dimensions
    /// they share.
    ///
    /// # Errors
    /// [`TensorError::Names`] when there is not one name (or `None`) for each batch dimension.
    pub fn set_names(&mut self, names: &[Option<&str>]) -> Result<&mut Self> {
        if names.len() != self.ndim() {
            return Err(TensorError::Names {
                expected: self.ndim(),
                got: names.len(),
            });
        }
        let names: Names = names.iter().map(|name| name.map(Arc::from)).collect();
        self.lead_names(&names);
        Ok(self)
    }

    /// Renames the leading dimensions here and in every nested dict.
    fn lead_names(&mut self, names: &[Option<Arc<str>>]) {
        for (mine, name) in self.batch.names.iter_mut().zip(names) {
            mine.clone_from(name);
        }
        for (_, entry) in &mut self.entries {
            if let Entry::Dict(dict) = entry {
                dict.lead_names(names);
            }
        }
    }

    /// Sizes of the leading dimensions that all entries share.
    pub fn batch_size(&self) -> &[usize] {
        &self.batch.size
    }

    /// Changes the batch size; elements stay as they are.
    ///
    /// Dimensions that remain keep their names, new ones have none. Nested dicts with fewer batch
    /// dimensions than the new size take the new size too.
    ///
    /// # Errors
    /// [`TensorError::Batch`] when an entry does not start with the new size; nothing is changed
    /// then.
    pub fn set_batch_size(&mut self, batch_size: impl AsRef<[usize]>) -> Result<&mut Self> {
        let size = batch_size.as_ref();
        self.check_batch(size)?;
        self.apply_batch(size, &[]);
        Ok(self)
    }

    fn check_batch(&self, size: &[usize]) -> Result<()> {
        for (name, entry) in &self.entries {
            let shape = entry.shape();
            match entry {
                Entry::Dict(dict) if shape.len() < size.len() => {
                    dict.check_batch(size)
                        .map_err(|error| error.in_dict(name))?;
                }
                _ if shape.starts_with(size) => {}
                _ => return Err(batch_error(name, shape, size)),
            }
        }
        Ok(())
    }

    /// Sets a batch size that `check_batch` accepted; dimensions new to this dict take their names
    /// from `outer`.
    fn apply_batch(&mut self, size: &[usize], outer: &[Option<Arc<str>>]) {
        let kept = self
            .batch
            .size
            .iter()
            .zip(size)
            .take_while(|(old, new)| old == new)
            .count();
        self.batch.names.truncate(kept);
        self.batch.names.extend(outer.iter().skip(kept).cloned());
        self.batch.names.resize(size.len(), None);
        self.batch.size = Shape::from_slice(size);
        for (_, entry) in &mut self.entries {
            if let Entry::Dict(dict) = entry
                && dict.ndim() < size.len()
            {
                dict.apply_batch(size, &self.batch.names);
            }
        }
    }

    /// Names of the batch dimensions, outermost first; `None` for one without a name.
    pub fn names(&self) -> &[Option<Arc<str>>] {
        &self.batch.names
    }

    /// Number of batch dimensions.
    pub fn ndim(&self) -> usize {
        self.batch.size.len()
    }

    /// Number of items in the batch: the product of the batch size, 1 when it is `[]`.
    ///
    /// A batch size without entries may be larger than memory; the product then stops at
    /// `usize::MAX`.
    pub fn numel(&self) -> usize {
        if self.batch.size.contains(&0) {
            return 0;
        }
        self.batch
            .size
            .iter()
            .fold(1, |count, &size| count.saturating_mul(size))
    }

    /// Number of entries at the top level.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the top level has no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Gives the nested dict `key` exactly the names of `batch`, whose size it has already.
    pub(crate) fn restore_batch(&mut self, key: &NestedKey, batch: &Batch) -> Result<()> {
        let (dict, at) = self.descend_mut(key)?;
        match &mut dict.entries[at].1 {
            Entry::Dict(inner) => inner.batch = batch.clone(),
            Entry::Tensor(_) => return Err(TensorError::NotADict { key: key.clone() }),
        }
        Ok(())
    }

    /// Names and entries at the top level, sorted by name.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, &Entry)> {
        self.entries.iter().map(|(name, entry)| (name, entry))
    }

    /// Whether `other` has the same names, and tensors with [the same bits](Tensor::same_bits)
    /// under each.
    #[must_use]
    pub fn same_bits(&self, other: &TensorDict) -> bool {
        let same = |own: &Entry, other: &Entry| match (own, other) {
            (Entry::Tensor(own), Entry::Tensor(other)) => own.same_bits(other),
            (Entry::Dict(own), Entry::Dict(other)) => own.same_bits(other),
            _ => false,
        };
        let mut pairs = self.entries().zip(other.entries());
        self.entries.len() == other.entries.len()
            && pairs.all(|((name, own), (named, other))| name == named && same(own, other))
    }

    /// Adds an entry after all others; `name` must sort last and `entry` start with the batch size.
    pub(crate) fn push_sorted(&mut self, name: Arc<str>, entry: Entry) {
        debug_assert!(
            self.entries.last().is_none_or(|(last, _)| **last < *name),
            "{name:?} sorts last"
        );
        self.entries.push((name, entry));
    }
}

/// The error for an entry `name` of `shape` that does not start with `batch_size`.
pub(crate) fn batch_error(name: &Arc<str>, shape: &[usize], batch_size: &[usize]) -> TensorError {
    TensorError::Batch {
        key: NestedKey::from_name(Arc::clone(name)),
        shape: shape.to_vec(),
        batch_size: batch_size.to_vec(),
    }
}
