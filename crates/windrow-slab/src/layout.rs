//! The places of a record's columns in a slab (ADR 0001).

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};
use tensordict::{DType, Group, HeapBuffer, LeafSpec, NestedKey};

use crate::SlabError;
use crate::rows::{Column, place};

/// The columns of one record (one frame), by writer.
///
/// To these the layout adds what every record has: the flags `done`, `terminated` and `truncated`
/// at the root and under `"next"`, and `("next", "reward")`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordSpec {
    /// Written by the environment; delivered at the root and, for the observation that followed,
    /// under `"next"`.
    pub observation: Vec<LeafSpec>,
    /// Written by the policy: the action, then its extra columns. One with the name of an
    /// observation, or of a flag at the root, is delivered there in its place. One with the name of
    /// an observation under `"next"` as well is state of the policy, to which the environment gives
    /// the first value, and is delivered in both places.
    pub policy: Vec<LeafSpec>,
    /// Observations that are delivered under `"next"` alone, such as rewards. One called `"reward"`
    /// is delivered in place of the engine's.
    pub next_only: Vec<NestedKey>,
    /// Nested observations that share dimensions of their own, which batches give to the dict in
    /// which they are, at the root and under `"next"`.
    pub groups: Vec<Group>,
    /// Whether frames carry `("collector", "traj_ids")`.
    pub traj_ids: bool,
    /// Whether frames carry `"policy_version"`, at the root and under `"next"` in the same memory.
    pub policy_version: bool,
    /// Numbers beside the frames of each part, by which its owner and its worker tell each other
    /// more. Batches do not show them.
    pub notes: usize,
}

/// How the frames of one slab are shared out.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shares {
    /// Steps of each part; one part is one worker's share.
    pub steps: Vec<usize>,
    /// Environments in each part.
    pub envs: usize,
    /// Whether batches have a dimension for the environments; false only for a single environment.
    pub batched: bool,
    /// How the parts of a column follow each other.
    pub order: PartOrder,
}

/// How the parts of a column follow each other in memory, which decides what batches of several
/// parts are views.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartOrder {
    /// One after the other, `[part][time][env]`: batches along time are views, and parts share no
    /// cache lines but at their ends.
    #[default]
    Sequential,
    /// Side by side at each step, `[time][part][env]`: batches along the environments are views.
    /// Parts have equally many steps.
    Interleaved,
}

/// The place of every column of every part in a slab.
///
/// Physical order `[column][part][time][env][element]`, or `[column][time][part][env][element]`
/// where parts are [interleaved](PartOrder::Interleaved); columns are 64-byte aligned. What a
/// policy reads at one step is one contiguous block, and batches are flat without a copy: along
/// time in the first order, along the environments in the second.
#[derive(Debug, Hash)]
pub struct Layout {
    pub(crate) shares: Shares,
    pub(crate) bytes: usize,
    /// The columns of batches, in physical order.
    pub(crate) delivered: Vec<Delivered>,
    pub(crate) parts: Vec<PartLayout>,
    groups: Vec<Group>,
    /// A row for each part.
    notes: Column,
    /// Words about the values of variable size of each part, where there are such.
    arenas: Option<Column>,
}

/// One entry of a batch: its name, and the rows of the whole slab.
#[derive(Debug, Hash)]
pub(crate) struct Delivered {
    pub(crate) leaf: LeafSpec,
    pub(crate) column: Column,
}

/// The rows of one part.
#[derive(Debug, Hash)]
pub(crate) struct PartLayout {
    pub(crate) steps: usize,
    pub(crate) columns: Columns<Column>,
}

/// One value for each column of a record, under the column's role. The order of the fields is that
/// of the columns in memory.
#[derive(Debug, Hash)]
pub(crate) struct Columns<T> {
    /// The columns that the policy reads.
    pub(crate) obs: Box<[T]>,
    /// The action, then the policy's extra columns.
    pub(crate) policy: Box<[T]>,
    /// The observations that followed.
    pub(crate) next_obs: Box<[T]>,
    /// `done`, `terminated`, `truncated` at the root: always false, since an ended episode is reset
    /// at once.
    pub(crate) root_flags: [T; 3],
    /// The flags under `"next"`.
    pub(crate) done: T,
    pub(crate) terminated: T,
    pub(crate) truncated: T,
    pub(crate) reward: T,
    pub(crate) traj_ids: Option<T>,
    /// Delivered at the root and under `"next"`: the weights that acted are those that led to what
    /// followed.
    pub(crate) version: Option<T>,
}

impl<T> Columns<T> {
    /// All of them, in physical order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let named = [&self.done, &self.terminated, &self.truncated, &self.reward];
        let by_env_and_policy = self.obs.iter().chain(&self.policy).chain(&self.next_obs);
        let by_engine = self.root_flags.iter().chain(named);
        let optional = self.traj_ids.iter().chain(&self.version);
        by_env_and_policy.chain(by_engine).chain(optional)
    }

    /// All but the flags at the root, which nobody writes.
    pub(crate) fn written(&self) -> impl Iterator<Item = &T> {
        let named = [&self.done, &self.terminated, &self.truncated, &self.reward];
        let by_env_and_policy = self.obs.iter().chain(&self.policy).chain(&self.next_obs);
        let optional = self.traj_ids.iter().chain(&self.version);
        by_env_and_policy.chain(named).chain(optional)
    }

    /// Maps each column, in physical order; `None` as soon as `to` returns none.
    fn try_map<U>(&self, mut to: impl FnMut(&T) -> Option<U>) -> Option<Columns<U>> {
        let mut each = |columns: &[T]| columns.iter().map(&mut to).collect::<Option<Box<[U]>>>();
        let (obs, policy, next_obs) =
            (each(&self.obs)?, each(&self.policy)?, each(&self.next_obs)?);
        let [done, terminated, truncated] = &self.root_flags;
        Some(Columns {
            obs,
            policy,
            next_obs,
            root_flags: [to(done)?, to(terminated)?, to(truncated)?],
            done: to(&self.done)?,
            terminated: to(&self.terminated)?,
            truncated: to(&self.truncated)?,
            reward: to(&self.reward)?,
            traj_ids: match &self.traj_ids {
                Some(ids) => Some(to(ids)?),
                None => None,
            },
            version: match &self.version {
                Some(version) => Some(to(version)?),
                None => None,
            },
        })
    }
}

impl Layout {
    /// Lays out slabs of `record` frames.
    ///
    /// # Errors
    /// [`SlabError::Empty`] when there is nothing to hold, [`SlabError::DuplicateColumn`] when two
    /// columns have one name, [`SlabError::Unequal`] when interleaved parts differ in length,
    /// [`SlabError::TooLarge`] when the size overflows.
    pub fn new(record: &RecordSpec, shares: Shares) -> Result<Self, SlabError> {
        let shortest = shares.steps.iter().copied().min().unwrap_or(0);
        if shortest == 0 || shares.envs == 0 {
            return Err(SlabError::Empty {
                parts: shares.steps.len(),
                steps: shortest,
                envs: shares.envs,
            });
        }
        if let Some(&other) = shares.steps.iter().find(|&&steps| steps != shortest)
            && shares.order == PartOrder::Interleaved
        {
            return Err(SlabError::Unequal { shortest, other });
        }
        // Saturated, they are too many for a column of any width.
        let (rows, envs) = match shares.order {
            PartOrder::Sequential => {
                let all = shares.steps.iter();
                let rows = all.fold(0, |rows: usize, steps| rows.saturating_add(*steps));
                (rows, shares.envs)
            }
            PartOrder::Interleaved => (shortest, shares.envs.saturating_mul(shares.steps.len())),
        };
        let too_large = SlabError::TooLarge {
            frames: rows.saturating_mul(envs),
        };
        let leaves = leaves(record);
        let mut bytes = 0;
        let columns = leaves.try_map(|(leaf, _)| place(leaf, &mut bytes, rows, envs));
        // Whole cache lines, of which none has notes of two parts.
        let notes = record.notes.next_multiple_of(HeapBuffer::ALIGN / 8);
        let notes = LeafSpec::new("notes", DType::F64, [notes]);
        let notes = place(&notes, &mut bytes, shares.steps.len(), 1);
        let has_bytes = leaves.iter().any(|(leaf, _)| leaf.dtype == DType::Bytes);
        let arenas = LeafSpec::new("arenas", DType::I64, [HeapBuffer::ALIGN / 8]);
        let arenas = has_bytes.then(|| place(&arenas, &mut bytes, shares.steps.len(), 1));
        if arenas == Some(None) {
            return Err(too_large);
        }
        let (Some(columns), Some(notes), Ok(_)) = (columns, notes, isize::try_from(bytes)) else {
            return Err(too_large);
        };
        let delivered = delivered(&leaves, &columns)?;
        let mut first_row = 0;
        let part = |(part, &steps): (usize, &usize)| {
            let columns = columns.try_map(|column| match shares.order {
                PartOrder::Sequential => column.skip_rows(first_row),
                PartOrder::Interleaved => Some(column.share(part, shares.steps.len())),
            })?;
            first_row += steps;
            Some(PartLayout { steps, columns })
        };
        let parts = shares.steps.iter().enumerate().map(part);
        let parts = parts.collect::<Option<_>>();
        Ok(Self {
            bytes,
            groups: groups(&record.groups, &delivered),
            delivered,
            parts: parts.ok_or(too_large)?,
            shares,
            notes,
            arenas: arenas.flatten(),
        })
    }

    /// Size of one slab in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A hash of the places of all columns: two layouts with different ones do not fit the same
    /// memory. It is equal within one build of a program; do not store it.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// Frames that one slab holds.
    pub(crate) fn frames(&self) -> usize {
        self.shares.steps.iter().sum::<usize>() * self.shares.envs
    }

    /// Environments of one row of a column: those of one part, or of all where these are side by
    /// side.
    pub(crate) fn row_envs(&self) -> usize {
        match self.shares.order {
            PartOrder::Sequential => self.shares.envs,
            PartOrder::Interleaved => self.shares.envs * self.shares.steps.len(),
        }
    }

    /// Bytes from the beginning of `column` to the rows of `part`.
    pub(crate) fn part_offset(&self, column: &Column, part: usize) -> usize {
        let steps = &self.shares.steps;
        match self.shares.order {
            PartOrder::Sequential => steps[..part].iter().sum::<usize>() * column.stride,
            PartOrder::Interleaved => part * (column.bytes / steps.len()),
        }
    }

    /// Where the notes of part `part` lie: their offset and number.
    pub(crate) fn notes(&self, part: usize) -> (usize, usize) {
        let notes = &self.notes;
        (notes.offset + part * notes.stride, notes.elements)
    }

    /// Whether frames have values of variable size.
    pub(crate) fn has_bytes(&self) -> bool {
        self.arenas.is_some()
    }

    /// Where the words about the values of part `part` lie.
    #[cfg(all(target_os = "linux", not(any(loom, shuttle))))]
    pub(crate) fn arena_words(&self, part: usize) -> Option<usize> {
        let column = self.arenas.as_ref()?;
        Some(column.offset + part * column.stride)
    }

    /// Parts of a slab, their steps and environments.
    #[must_use]
    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Names of the columns that batches show, in physical order.
    pub fn columns(&self) -> impl Iterator<Item = &LeafSpec> {
        self.delivered.iter().map(|entry| &entry.leaf)
    }

    /// Nested dicts of a batch that have dimensions of their own.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }
}

/// The columns of a record, and whether batches show each.
fn leaves(record: &RecordSpec) -> Columns<(LeafSpec, bool)> {
    let next = NestedKey::from("next");
    let written = |key: &NestedKey| record.policy.iter().any(|leaf| leaf.key == *key);
    let flag = |key: NestedKey| LeafSpec::new(key, DType::Bool, [1]);
    let next_flag = |name: &str| (flag(("next", name).into()), true);
    let counter = |key: NestedKey| (LeafSpec::new(key, DType::I64, []), true);
    let at_root = |leaf: &LeafSpec| {
        let hidden = written(&leaf.key) || record.next_only.contains(&leaf.key);
        (leaf.clone(), !hidden)
    };
    let under_next = |leaf: &LeafSpec| {
        let key = next.join(&leaf.key);
        let hidden = written(&leaf.key) && written(&key);
        (LeafSpec::new(key, leaf.dtype, &leaf.shape), !hidden)
    };
    let reward = LeafSpec::new(("next", "reward"), DType::F32, [1]);
    Columns {
        obs: record.observation.iter().map(at_root).collect(),
        policy: record
            .policy
            .iter()
            .map(|leaf| (leaf.clone(), true))
            .collect(),
        next_obs: record.observation.iter().map(under_next).collect(),
        root_flags: ["done", "terminated", "truncated"].map(|name| {
            let leaf = flag(name.into());
            let hidden = record.policy.contains(&leaf);
            (leaf, !hidden)
        }),
        done: next_flag("done"),
        terminated: next_flag("terminated"),
        truncated: next_flag("truncated"),
        reward: (reward, !record.next_only.contains(&"reward".into())),
        traj_ids: record
            .traj_ids
            .then(|| counter(("collector", "traj_ids").into())),
        version: record
            .policy_version
            .then(|| counter("policy_version".into())),
    }
}

/// The columns of batches: all that are not hidden, and the policy version a second time under
/// `"next"`.
fn delivered(
    leaves: &Columns<(LeafSpec, bool)>,
    columns: &Columns<Column>,
) -> Result<Vec<Delivered>, SlabError> {
    let next_version = leaves.version.iter().map(|(leaf, _)| {
        let key = NestedKey::from("next").join(&leaf.key);
        LeafSpec::new(key, leaf.dtype, &leaf.shape)
    });
    let shown = leaves.iter().zip(columns.iter());
    let shown = shown.filter(|((_, delivered), _)| *delivered);
    let entries = shown
        .map(|((leaf, _), column)| (leaf.clone(), column))
        .chain(next_version.zip(&columns.version));
    let mut delivered: Vec<Delivered> = Vec::new();
    for (leaf, &column) in entries {
        if delivered
            .iter()
            .any(|other| other.leaf.key.overlaps(&leaf.key))
        {
            return Err(SlabError::DuplicateColumn { key: leaf.key });
        }
        delivered.push(Delivered { leaf, column });
    }
    Ok(delivered)
}

/// Those of `groups` whose delivered columns begin with their dimensions, at the root and under
/// `"next"`.
fn groups(groups: &[Group], delivered: &[Delivered]) -> Vec<Group> {
    let next = NestedKey::from("next");
    let below = groups
        .iter()
        .map(|(key, own)| (next.join(key), own.clone()));
    let fits = |(key, own): &Group| {
        let mut leaves = delivered.iter().map(|entry| &entry.leaf);
        leaves.all(|leaf| !leaf.key.overlaps(key) || leaf.shape.starts_with(own))
    };
    groups.iter().cloned().chain(below).filter(fits).collect()
}

#[cfg(test)]
mod tests;
