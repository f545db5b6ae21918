//! Nested dicts with batch dimensions of their own.

use std::sync::Arc;

use super::{Entry, TensorDict, batch_error};
use crate::{NestedKey, Result, Shape};

/// Key of a nested dict, and the batch dimensions that it has after those of the outermost dict.
pub type Group = (NestedKey, Shape);

impl TensorDict {
    /// Nested dicts with more batch dimensions than this one, such as those of agents, outer ones
    /// first.
    #[must_use]
    pub fn groups(&self) -> Vec<Group> {
        let mut groups = Vec::new();
        self.collect_groups(None, self.ndim(), &mut groups);
        groups
    }

    fn collect_groups(&self, path: Option<&NestedKey>, dims: usize, groups: &mut Vec<Group>) {
        for (name, entry) in self.entries() {
            let Entry::Dict(dict) = entry else { continue };
            let key = match path {
                Some(path) => path.child(Arc::clone(name)),
                None => NestedKey::from_name(Arc::clone(name)),
            };
            let own = dict.batch_size().get(dims..).unwrap_or_default();
            if !own.is_empty() {
                groups.push((key.clone(), Shape::from_slice(own)));
            }
            dict.collect_groups(Some(&key), dims, groups);
        }
    }

    /// Gives each nested dict that `groups` names its own batch dimensions, after those of this
    /// dict; skips missing ones.
    ///
    /// # Errors
    /// [`TensorError::Batch`](crate::TensorError::Batch) when an entry does not have these
    /// dimensions, or the dict around a group has others; groups before it have theirs then.
    pub fn set_groups(&mut self, groups: &[Group]) -> Result<&mut Self> {
        for (key, own) in groups {
            if !self.contains_key(key) {
                continue;
            }
            let mut size = Shape::from_slice(self.batch_size());
            size.extend_from_slice(own);
            let (dict, at) = self.descend_mut(key)?;
            if let (name, Entry::Dict(group)) = &mut dict.entries[at] {
                if !size.starts_with(&dict.batch.size) {
                    return Err(batch_error(name, &size, &dict.batch.size));
                }
                group
                    .set_batch_size(&size)
                    .map_err(|error| error.in_dict(name))?;
            }
        }
        Ok(self)
    }
}
