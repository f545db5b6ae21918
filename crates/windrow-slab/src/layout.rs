//! Which column of a record lies where in a slab.

use tensordict::{DType, Group, HeapBuffer, LeafSpec, NestedKey};

use crate::SlabError;
use crate::rows::{Block, Column, place};

/// The columns of one record (one frame), by who writes them.
///
/// To these the layout adds what every record has: the flags `done`, `terminated` and `truncated` at the root and
/// under `"next"`, and `("next", "reward")`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecordSpec {
    /// Written by the environment; delivered at the root and, for the observation that followed, under `"next"`.
    pub observation: Vec<LeafSpec>,
    /// Written by the policy: the action, then its extra columns. What it writes in place of an observation or a flag at the
    /// root is delivered there; an observation that it writes under `"next"` as well is state of its own, to which the
    /// environment gives the first value, and the policy's column is delivered there too.
    pub policy: Vec<LeafSpec>,
    /// Observations that are delivered under `"next"` alone, such as rewards. One called `"reward"` is delivered in place of the
    /// engine's.
    pub next_only: Vec<NestedKey>,
    /// Nested observations that share dimensions of their own, which batches give to the dict in which they are, at the root
    /// and under `"next"`.
    pub groups: Vec<Group>,
    /// Whether frames carry `("collector", "traj_ids")`.
    pub traj_ids: bool,
    /// Whether frames carry `"policy_version"`, at the root and under `"next"` in the same memory.
    pub policy_version: bool,
}

/// How the frames of one slab are shared out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shares {
    /// Steps of each part; one part is one worker's share.
    pub steps: Vec<usize>,
    /// Environments in each part.
    pub envs: usize,
    /// Whether batches have a dimension for the environments; false only where there is one.
    pub batched: bool,
}

/// Where every column of every part lies in a slab.
///
/// Physical order `[column][part][time][env][element]`, columns 64-byte aligned: workers write lines of their own,
/// what a policy reads at one step is one contiguous block, and the parts of one column follow each other, so that
/// batches of one environment a worker are flat without a copy.
#[derive(Debug)]
pub struct Layout {
    pub(crate) shares: Shares,
    pub(crate) bytes: usize,
    pub(crate) places: Vec<Place>,
    pub(crate) parts: Vec<PartLayout>,
    groups: Vec<Group>,
}

/// One delivered column: its name, and its rows of the whole slab.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) leaf: LeafSpec,
    pub(crate) column: Column,
    /// Whether batches show it.
    pub(crate) delivered: bool,
}

/// The columns of one part, by writer.
#[derive(Debug)]
pub(crate) struct PartLayout {
    pub(crate) steps: usize,
    pub(crate) obs: Box<[Column]>,
    pub(crate) policy: Box<[Column]>,
    pub(crate) next_obs: Box<[Column]>,
    /// `done`, `terminated`, `truncated` at the root: always false, since an ended episode is reset at once.
    pub(crate) root_flags: [Column; 3],
    pub(crate) reward: Column,
    pub(crate) done: Column,
    pub(crate) terminated: Column,
    pub(crate) truncated: Column,
    pub(crate) traj_ids: Option<Column>,
    pub(crate) version: Option<Column>,
}

/// One slab: its memory, and where the rows of each part lie in it.
#[derive(Debug)]
pub(crate) struct Slab {
    pub(crate) memory: HeapBuffer,
    pub(crate) parts: Box<[PartBlocks]>,
    /// Stands for each part's memory where loom looks on: it reports a writer beside anybody else.
    #[cfg(loom)]
    pub(crate) shadow: Box<[Shadow]>,
}

/// See [`Slab::shadow`].
#[cfg(loom)]
#[derive(Debug, Default)]
pub(crate) struct Shadow(loom::cell::UnsafeCell<u64>);

#[cfg(loom)]
// SAFETY: loom checks every access, which is what the cell is for.
unsafe impl Sync for Shadow {}

#[cfg(loom)]
impl Shadow {
    /// The part is being written.
    pub(crate) fn write(&self) {
        // SAFETY: loom fails the test when another thread accesses the cell meanwhile.
        self.0.with_mut(|writes| unsafe { *writes += 1 });
    }

    /// The part is being read.
    pub(crate) fn read(&self) {
        // SAFETY: as above.
        self.0.with(|writes| assert!(unsafe { *writes } > 0));
    }
}

/// The columns of one part of one slab that are handed out as rows.
#[derive(Debug)]
pub(crate) struct PartBlocks {
    pub(crate) obs: Block,
    pub(crate) policy: Block,
    pub(crate) next_obs: Block,
}

impl Slab {
    /// A zeroed slab; `None` when the system does not give the memory.
    pub(crate) fn new(layout: &Layout) -> Option<Self> {
        let memory = HeapBuffer::zeroed(layout.bytes)?;
        // SAFETY: the offsets of a layout lie within its size.
        let block =
            |columns: &[Column]| unsafe { Block::new(memory.ptr(), layout.shares.envs, columns) };
        let parts = layout
            .parts
            .iter()
            .map(|part| PartBlocks {
                obs: block(&part.obs),
                policy: block(&part.policy),
                next_obs: block(&part.next_obs),
            })
            .collect();
        Some(Self {
            memory,
            parts,
            #[cfg(loom)]
            shadow: layout.parts.iter().map(|_| Shadow::default()).collect(),
        })
    }
}

const VERSION: &str = "policy_version";
const FLAGS: [&str; 3] = ["done", "terminated", "truncated"];

impl Layout {
    /// Lays out slabs of `record` frames.
    ///
    /// # Errors
    /// [`SlabError::Empty`] when there is nothing to hold, [`SlabError::DuplicateColumn`] when two columns have one
    /// name, [`SlabError::TooLarge`] when the size overflows.
    pub fn new(record: &RecordSpec, shares: Shares) -> Result<Self, SlabError> {
        let shortest = shares.steps.iter().copied().min().unwrap_or(0);
        if shortest == 0 || shares.envs == 0 {
            return Err(SlabError::Empty {
                parts: shares.steps.len(),
                steps: shortest,
                envs: shares.envs,
            });
        }
        let mut leaves = all_leaves(record);
        for (i, (leaf, _)) in leaves.iter().enumerate().filter(|(_, leaf)| leaf.1) {
            let mut before = leaves[..i].iter().filter(|(_, delivered)| *delivered);
            if before.any(|(other, _)| other.key.overlaps(&leaf.key)) {
                return Err(SlabError::DuplicateColumn {
                    key: leaf.key.clone(),
                });
            }
        }
        let followed = leaves.pop_if(|_| record.policy_version);
        // Saturated, they are too many for a column of any width.
        let rows = shares
            .steps
            .iter()
            .fold(0, |rows: usize, steps| rows.saturating_add(*steps));
        let mut bytes = 0;
        let mut places = leaves
            .into_iter()
            .map(|(leaf, delivered)| {
                let column = place(&leaf, &mut bytes, rows, shares.envs)?;
                Some(Place {
                    leaf,
                    column,
                    delivered,
                })
            })
            .collect::<Option<Vec<_>>>()
            .filter(|_| isize::try_from(bytes).is_ok())
            .ok_or(SlabError::TooLarge {
                frames: rows.saturating_mul(shares.envs),
            })?;
        if let (Some((leaf, delivered)), Some(version)) = (followed, places.last()) {
            let column = version.column;
            places.push(Place {
                leaf,
                column,
                delivered,
            });
        }
        let mut first_row = 0;
        let parts = shares
            .steps
            .iter()
            .map(|&steps| {
                let part = PartLayout::new(record, &places, steps, first_row);
                first_row += steps;
                part
            })
            .collect();
        Ok(Self {
            shares,
            bytes,
            groups: groups(&record.groups, &places),
            places,
            parts,
        })
    }

    /// Size of one slab in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Frames that one slab holds.
    pub(crate) fn frames(&self) -> usize {
        self.shares.steps.iter().sum::<usize>() * self.shares.envs
    }

    /// Parts of a slab, their steps and environments.
    #[must_use]
    pub fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Names of the columns that are delivered, in physical order.
    pub fn columns(&self) -> impl Iterator<Item = &LeafSpec> {
        let delivered = self.places.iter().filter(|place| place.delivered);
        delivered.map(|place| &place.leaf)
    }

    /// Nested dicts of a batch that have dimensions of their own.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }
}

/// All columns of a record in physical order, and whether each is delivered. `PartLayout::new` takes them apart in the same
/// order.
fn all_leaves(record: &RecordSpec) -> Vec<(LeafSpec, bool)> {
    let next = NestedKey::from("next");
    let written = |key: &NestedKey| record.policy.iter().any(|leaf| leaf.key == *key);
    let flag = |key: NestedKey| LeafSpec::new(key, DType::Bool, [1]);
    let at_root = |leaf: &LeafSpec| !written(&leaf.key) && !record.next_only.contains(&leaf.key);
    let under_next = |leaf: &LeafSpec| !(written(&leaf.key) && written(&next.join(&leaf.key)));
    let root = record.observation.iter();
    let mut leaves: Vec<_> = root.map(|leaf| (leaf.clone(), at_root(leaf))).collect();
    leaves.extend(record.policy.iter().map(|leaf| (leaf.clone(), true)));
    leaves.extend(record.observation.iter().map(|leaf| {
        let key = next.join(&leaf.key);
        (
            LeafSpec {
                key,
                ..leaf.clone()
            },
            under_next(leaf),
        )
    }));
    let root_flags = FLAGS.map(|name| flag(name.into()));
    leaves.extend(root_flags.map(|leaf| {
        let delivered = !record.policy.contains(&leaf);
        (leaf, delivered)
    }));
    leaves.extend(FLAGS.map(|name| (flag(("next", name).into()), true)));
    let reward = LeafSpec::new(("next", "reward"), DType::F32, [1]);
    leaves.push((reward, !record.next_only.contains(&"reward".into())));
    if record.traj_ids {
        let ids = LeafSpec::new(("collector", "traj_ids"), DType::I64, []);
        leaves.push((ids, true));
    }
    if record.policy_version {
        // The last one has the column of the one before: the weights that acted are those that led to what followed.
        let root = NestedKey::from(VERSION);
        for key in [root.clone(), next.join(&root)] {
            leaves.push((LeafSpec::new(key, DType::I64, []), true));
        }
    }
    leaves
}

/// Those of `groups` whose delivered columns begin with their dimensions, at the root and under `"next"`.
fn groups(groups: &[Group], places: &[Place]) -> Vec<Group> {
    let next = NestedKey::from("next");
    let below = groups
        .iter()
        .map(|(key, own)| (next.join(key), own.clone()));
    let delivered: Vec<_> = places.iter().filter(|place| place.delivered).collect();
    let fits = |(key, own): &Group| {
        let mut columns = delivered.iter().map(|place| &place.leaf);
        columns.all(|leaf| !leaf.key.overlaps(key) || leaf.shape.starts_with(own))
    };
    groups.iter().cloned().chain(below).filter(fits).collect()
}

impl PartLayout {
    fn new(record: &RecordSpec, places: &[Place], steps: usize, first_row: usize) -> Self {
        let mut columns = places.iter().map(|place| Column {
            offset: place.column.offset + first_row * place.column.stride,
            ..place.column
        });
        let mut take = |n: usize| columns.by_ref().take(n).collect::<Box<[Column]>>();
        let obs = take(record.observation.len());
        let policy = take(record.policy.len());
        let next_obs = take(record.observation.len());
        let flags = take(7);
        let traj_ids = record.traj_ids.then(|| take(1)[0]);
        let version = record.policy_version.then(|| take(1)[0]);
        Self {
            steps,
            obs,
            policy,
            next_obs,
            root_flags: [flags[0], flags[1], flags[2]],
            done: flags[3],
            terminated: flags[4],
            truncated: flags[5],
            reward: flags[6],
            traj_ids,
            version,
        }
    }
}

#[cfg(test)]
mod tests;
