//! Observations under other names, or fewer of them.

use std::convert::Infallible;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tensordict::NestedKey;

use super::dimensions::rename_action;
use super::keys::Keys;
use super::relayout::{ObservationLayout, Relayout};
use crate::{Attach, EnvError, Transform, serde_form};

/// Renames observations. Renaming a nested entry renames all leaves below it.
///
/// ```
/// use windrow_env::{Keys, Pendulum, RenameTransform, Serial, VecEnv};
///
/// let rename = RenameTransform::new(Keys::pairs([("observation", ("body", "state"))]));
/// let envs = Serial::from_fn(2, Pendulum::v1)?.transformed(rename)?;
/// envs.spec().observation_key::<f32>(("body", "state"))?;
/// # Ok::<(), windrow_env::EnvError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenameTransform {
    /// The observations and their new names.
    #[serde(default)]
    pub keys: Keys,
    /// Whether the observations stay under their old names, too.
    #[serde(default)]
    pub create_copy: bool,
    /// Actions: names in the environments, and outside.
    #[serde(default)]
    pub keys_inv: Keys,
}

impl RenameTransform {
    /// Renames the observations `keys`.
    #[must_use]
    pub fn new(keys: Keys) -> Self {
        Self {
            keys,
            create_copy: false,
            keys_inv: Keys::default(),
        }
    }

    /// The observations stay under their old names, too.
    #[must_use]
    pub fn with_copy(mut self) -> Self {
        self.create_copy = true;
        self
    }
}

impl Transform for RenameTransform {
    type Bound = Relayout<Infallible>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        let mut layout = ObservationLayout::of(&envs.spec.observation, "observation");
        for (old, new) in self.keys.iter() {
            let leaves = layout.keys().into_iter();
            let leaves: Vec<_> = leaves.filter(|key| is_below(old, key)).collect();
            if leaves.is_empty() {
                envs.inner().find_observation(old)?;
            }
            for leaf in leaves {
                let to = leaf.components()[old.depth()..].iter();
                let to = to.fold(new.clone(), |key, name| key.child(Arc::clone(name)));
                if self.create_copy {
                    let (from, _) = envs.inner().find_observation(&leaf)?;
                    let spec = layout.spec(&leaf).cloned();
                    spec.into_iter()
                        .for_each(|spec| layout.put(&to, spec, Some(from)));
                } else {
                    layout.rename(&leaf, &to);
                }
                rename_lists(envs, &leaf, &to, self.create_copy);
            }
        }
        for (from, to) in self.keys_inv.iter() {
            rename_action(envs, from, to, Clone::clone)?;
        }
        layout.lay(envs, Vec::new(), |_, _| ())
    }
}

/// Whether `leaf` is `key` or lies below it.
fn is_below(key: &NestedKey, leaf: &NestedKey) -> bool {
    leaf.components().starts_with(key.components())
}

/// Renames `old` in the other parts of the spec; if the old name stays, rewards, flags and examples
/// have both. Differences keep the old name: as in TorchRL, there are none of an observation that
/// is renamed outside of a [`NextObservationDelta`](crate::NextObservationDelta).
fn rename_lists(envs: &mut Attach<'_>, old: &NestedKey, new: &NestedKey, stays: bool) {
    let spec = &mut envs.spec;
    let lists = [
        &mut spec.rewards,
        &mut spec.flags,
        &mut spec.states,
        &mut spec.info,
    ];
    for list in lists {
        let Some(at) = list.iter().position(|key| key == old) else {
            continue;
        };
        match stays {
            true => list.push(new.clone()),
            false => list[at] = new.clone(),
        }
    }
    if let Some(at) = spec.examples.iter().position(|(key, _)| key == old) {
        match stays {
            true => spec
                .examples
                .push((new.clone(), spec.examples[at].1.clone())),
            false => spec.examples[at].0 = new.clone(),
        }
    }
    let masks = spec.masks.iter_mut().filter(|(_, mask)| mask == old);
    for (_, mask) in masks.filter(|_| !stays) {
        *mask = new.clone();
    }
}

/// Observes the entries that are named, and no others. Rewards and flags of groups stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SelectTransform {
    /// The observations; missing ones are no error.
    #[serde(with = "serde_form::key::several")]
    pub selected_keys: Vec<NestedKey>,
}

impl SelectTransform {
    /// Observes `keys` only.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = impl Into<NestedKey>>) -> Self {
        Self {
            selected_keys: keys.into_iter().map(Into::into).collect(),
        }
    }
}

impl Transform for SelectTransform {
    type Bound = Relayout<Infallible>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        let mut layout = ObservationLayout::of(&envs.spec.observation, "observation");
        let spec = &envs.spec;
        layout.retain(|key| {
            let is_kept = |list: &[NestedKey]| list.contains(key);
            let mut selected = self.selected_keys.iter();
            selected.any(|one| is_below(one, key)) || is_kept(&spec.rewards) || is_kept(&spec.flags)
        });
        layout.lay(envs, Vec::new(), |_, _| ())
    }
}

/// Observes all entries but those that are named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExcludeTransform {
    /// The observations that are left out.
    #[serde(with = "serde_form::key::several")]
    pub excluded_keys: Vec<NestedKey>,
}

impl ExcludeTransform {
    /// Observes all but `keys`.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = impl Into<NestedKey>>) -> Self {
        Self {
            excluded_keys: keys.into_iter().map(Into::into).collect(),
        }
    }
}

impl Transform for ExcludeTransform {
    type Bound = Relayout<Infallible>;

    fn attach(&self, envs: &mut Attach<'_>) -> Result<Self::Bound, EnvError> {
        let mut layout = ObservationLayout::of(&envs.spec.observation, "observation");
        for excluded in &self.excluded_keys {
            if !layout.keys().iter().any(|key| is_below(excluded, key)) {
                envs.inner().find_observation(excluded)?;
            }
            layout.retain(|key| !is_below(excluded, key));
        }
        layout.lay(envs, Vec::new(), |_, _| ())
    }
}
