//! Observations of a spec: found by name, added, changed.

use tensordict::{Element, NestedKey};
use windrow_slab::{Key, LeafSpec};

use super::{EnvSpec, Spec};
use crate::{EnvError, SpecError};

/// Names that frames have beside those of observations and actions.
const TAKEN: [&str; 6] = [
    "done",
    "terminated",
    "truncated",
    "reward",
    "next",
    "collector",
];

impl EnvSpec {
    /// The observation leaf called `name`, as `T`.
    ///
    /// # Errors
    /// [`SpecError::NoObservation`], or [`SpecError::Leaf`] when it holds another element type.
    pub fn observation_key<T: Element>(
        &self,
        name: impl Into<NestedKey>,
    ) -> Result<Key<T>, EnvError> {
        let (i, leaf) = self.find_observation(&name.into())?;
        if leaf.dtype != T::DTYPE {
            return Err(self.unfit(&leaf.key, T::DTYPE.name(), leaf.dtype.name()));
        }
        Ok(Key::new(i))
    }

    /// Place and description of the observation leaf called `key`.
    ///
    /// # Errors
    /// [`SpecError::NoObservation`].
    pub fn find_observation(&self, key: &NestedKey) -> Result<(usize, LeafSpec), EnvError> {
        let leaves = self.observation_leaves();
        match leaves.iter().position(|leaf| leaf.key == *key) {
            Some(i) => Ok((i, leaves[i].clone())),
            None => Err(SpecError::NoObservation {
                env: self.id.clone(),
                key: key.clone(),
                known: leaves.into_iter().map(|leaf| leaf.key).collect(),
            }
            .into()),
        }
    }

    /// Adds the observation `leaf` behind all others, and returns its place among them. A bare
    /// observation becomes the named one it is delivered as.
    ///
    /// # Errors
    /// [`SpecError::NameTaken`] when something else in a frame is called `key`.
    pub fn append_observation(&mut self, key: &NestedKey, leaf: Spec) -> Result<usize, EnvError> {
        self.check_free(key)?;
        self.push_observation(key, leaf)
    }

    /// Adds the reward of the step in another element type, as an observation `"reward"`, and
    /// returns its place among observations.
    ///
    /// # Errors
    /// [`SpecError::NameTaken`] when there is one already.
    pub(crate) fn append_reward(&mut self, leaf: Spec) -> Result<usize, EnvError> {
        let key = NestedKey::from("reward");
        let index = self.push_observation(&key, leaf)?;
        self.rewards.push(key);
        Ok(index)
    }

    fn push_observation(&mut self, key: &NestedKey, leaf: Spec) -> Result<usize, EnvError> {
        let leaves = self.observation_leaves();
        if leaves.iter().any(|other| other.key.overlaps(key)) {
            return Err(self.name_taken(key));
        }
        let mut entries = match self.observation.clone() {
            Spec::Composite(entries) => entries,
            bare => vec![("observation".to_owned(), bare)],
        };
        push_leaf(&mut entries, key.components(), leaf);
        self.observation = Spec::Composite(entries);
        Ok(leaves.len())
    }

    /// Whether nothing but an observation in a frame is called `key`.
    pub(crate) fn check_free(&self, key: &NestedKey) -> Result<(), EnvError> {
        let mut actions = self.action.leaves("action").into_iter();
        let is_action = actions.any(|(action, _)| action.overlaps(key));
        match TAKEN.contains(&key.first()) || is_action {
            true => Err(self.name_taken(key)),
            false => Ok(()),
        }
    }

    /// The error for an observation whose name something else has.
    pub(crate) fn name_taken(&self, key: &NestedKey) -> EnvError {
        let error = SpecError::NameTaken {
            env: self.id.clone(),
            key: key.clone(),
        };
        error.into()
    }

    /// The error for an observation or action that is not `expected`.
    pub(crate) fn unfit(
        &self,
        leaf: &NestedKey,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> EnvError {
        let error = SpecError::Leaf {
            env: self.id.clone(),
            leaf: leaf.clone(),
            expected: expected.into(),
            got: got.into(),
        };
        error.into()
    }
}

impl Spec {
    /// The `index`-th leaf, depth first; `None` when there are fewer.
    #[must_use]
    pub fn leaf_mut(&mut self, index: usize) -> Option<&mut Spec> {
        find(self, &mut { index })
    }
}

/// The leaf before which `before` others come, depth first.
fn find<'a>(spec: &'a mut Spec, before: &mut usize) -> Option<&'a mut Spec> {
    match spec {
        Spec::Composite(entries) => {
            let mut entries = entries.iter_mut();
            entries.find_map(|(_, entry)| find(entry, before))
        }
        leaf if *before == 0 => Some(leaf),
        _ => {
            *before -= 1;
            None
        }
    }
}

/// Adds `leaf` behind all others: where its group is not the last, a further entry has the group's
/// name.
fn push_leaf<N: AsRef<str>>(entries: &mut Vec<(String, Spec)>, names: &[N], leaf: Spec) {
    let [name, below @ ..] = names else {
        unreachable!("A key has one name at least.");
    };
    let name = name.as_ref();
    match entries.last_mut() {
        Some((last, Spec::Composite(inner))) if last == name && !below.is_empty() => {
            push_leaf(inner, below, leaf);
        }
        _ => {
            let nested = below.iter().rev().fold(leaf, |inner, name| {
                Spec::composite([(name.as_ref(), inner)])
            });
            entries.push((name.to_owned(), nested));
        }
    }
}
