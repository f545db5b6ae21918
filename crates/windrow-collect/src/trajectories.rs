//! Batches of whole trajectories, assembled from batches of frames.

mod column;
mod frames;
mod gather;
mod runs;
mod scratch;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) use column::rearranged;
pub(crate) use frames::rebuilt;
pub(crate) use gather::Move;
pub(crate) use runs::{BatchRows, IDS, MASK, Marks, PADDING_ID, done_of, mask_of, one_each};
use serde::{Deserialize, Serialize};
use tensordict::{DType, Tensor, TensorDict, TensorError};

use crate::error::ArgumentError;
use frames::{CopiedFrames, Span};
use runs::TrajectoryRun;

/// The batcher compacts its memory once it holds this many times the frames that it needs, so that
/// it moves few frames.
const SLACK: usize = 4;

/// The layout of whole trajectories in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TrajFormat {
    /// One row each, `[trajectories, longest]`: zeros after the end, where ids are -1, and
    /// `("collector", "mask")`, `bool`, which is true before it. The second dimension is named
    /// `"time"`.
    #[default]
    Padded,
    /// One after another, `[frames]`: each ends where `("next", "done")` is true. The dimension is
    /// named `"time"`.
    Cat,
}

/// Assembles whole trajectories from batches of frames.
///
/// Frames with equal `("collector", "traj_ids")`, `int64`, belong together; no two workers or
/// environments share an id. A trajectory is complete with the first frame whose `("next", "done")`
/// is true; a piece that was cut by `set_truncated` is complete too, and later frames with its id
/// make another one. Frames are copied, so a batch can be dropped once it was pushed.
///
/// The batcher keeps the frames of a trajectory that never ends, such as one that a reset has cut
/// off, until [`clear`](Self::clear); a collector that assembles trajectories itself knows of
/// resets, and drops them. The memory of a batch is used again after its last tensor was dropped.
/// To write to a batch, copy it with [`TensorDict::detach`].
///
/// ```
/// use windrow_collect::{Collector, TrajFormat, TrajectoryBatcher};
///
/// let mut collector = Collector::builder("CartPole-v1").num_envs(4).frames_per_batch(64).build()?;
/// let mut batcher = TrajectoryBatcher::new(8, TrajFormat::Padded)?;
/// let batch = loop {
///     if let Some(batch) = batcher.pop()? {
///         break batch;
///     }
///     batcher.push(&collector.next().unwrap()?)?;
/// };
/// let mask = batch.get(("collector", "mask"))?;
/// assert_eq!(batch.batch_size()[0], 8);
/// assert_eq!(mask.shape(), batch.batch_size());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TrajectoryBatcher {
    trajs_per_batch: usize,
    format: TrajFormat,
    /// All frames that are still needed, and some that are not.
    frames: Option<CopiedFrames>,
    /// Number of environments that share one count of ids: the ids of an environment differ by
    /// multiples of it. `None` when nothing is known of ids.
    envs: Option<i64>,
    /// Unfinished trajectories, each by its environment, or by its id where `envs` is `None`.
    open: HashMap<i64, Trajectory, BuildHasherDefault<IdHasher>>,
    /// Complete trajectories, in the order in which they ended.
    queue: VecDeque<Trajectory>,
    /// Frames of all trajectories above.
    pending: usize,
    /// Batches pushed so far.
    pushed: usize,
    /// Ids of trajectories whose beginning was dropped, with the keys of `open`: their later frames
    /// are left out.
    severed: HashMap<i64, i64, BuildHasherDefault<IdHasher>>,
    /// Frames that were left out.
    unwanted: usize,
}

/// The trajectories of a batcher, as they are saved.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct SavedTrajectories {
    /// Lengths of those that are complete, in the order in which they ended.
    complete: Vec<usize>,
    #[serde(with = "serde_bytes")]
    complete_frames: Vec<u8>,
    /// Lengths of the others.
    open: Vec<usize>,
    #[serde(with = "serde_bytes")]
    open_frames: Vec<u8>,
    severed: Vec<(i64, i64)>,
    unwanted: usize,
}

/// The stored frames that make up a trajectory, in the order of time.
#[derive(Debug)]
struct Trajectory {
    id: i64,
    len: usize,
    /// Most trajectories lie within one batch, and so need no list.
    first: Piece,
    rest: Vec<Piece>,
}

/// Stored frames that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    start: usize,
    len: usize,
}

impl Trajectory {
    fn new(id: i64, first: Piece) -> Self {
        Self {
            id,
            len: first.len,
            first,
            rest: Vec::new(),
        }
    }

    fn push(&mut self, piece: Piece) {
        self.len += piece.len;
        let last = self.rest.last_mut().unwrap_or(&mut self.first);
        if last.start + last.len == piece.start {
            last.len += piece.len;
        } else {
            self.rest.push(piece);
        }
    }

    fn pieces(&self) -> impl Iterator<Item = &Piece> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    fn pieces_mut(&mut self) -> impl Iterator<Item = &mut Piece> {
        std::iter::once(&mut self.first).chain(&mut self.rest)
    }
}

impl TrajectoryBatcher {
    /// A batcher without frames, for batches of exactly `trajs_per_batch` trajectories in `format`.
    ///
    /// # Errors
    /// [`ArgumentError::NotPositive`] when `trajs_per_batch` is 0.
    pub fn new(trajs_per_batch: usize, format: TrajFormat) -> Result<Self, ArgumentError> {
        ArgumentError::check_positive("trajs_per_batch", trajs_per_batch)?;
        Ok(Self {
            trajs_per_batch,
            format,
            frames: None,
            envs: None,
            open: HashMap::default(),
            queue: VecDeque::new(),
            pending: 0,
            pushed: 0,
            severed: HashMap::default(),
            unwanted: 0,
        })
    }

    /// For the frames of a collector of `envs` environments. Each has one unfinished trajectory at
    /// a time: when it begins another, as after a reset or a restart of its worker, the unfinished
    /// one is left out.
    pub(crate) fn of_envs(self, envs: usize) -> Self {
        Self {
            envs: i64::try_from(envs).ok(),
            ..self
        }
    }

    /// Adds a copy of the frames of `batch`, `[…, time]`. The dimensions before time are
    /// environments, each with frames in order. Frames that `("collector", "mask")` excludes are
    /// left out.
    ///
    /// Complete trajectories queue in the order of their last steps; those that end in the same
    /// step, in the order of environments.
    ///
    /// # Errors
    /// [`TensorError::Missing`] naming `("collector", "traj_ids")` or `("next", "done")`;
    /// [`TensorError::Keys`], [`TensorError::Shape`] and [`TensorError::DType`] when entries are
    /// not those of the first batch; [`TensorError::Dim`] when the batch has no dimension. No frame
    /// is added then.
    pub fn push(&mut self, batch: &TensorDict) -> Result<(), TensorError> {
        let rows = BatchRows::of(batch)?;
        let ids = one_each::<i64>(batch, IDS)?;
        let done = done_of(batch)?;
        let mask = mask_of(batch, MASK)?;
        let marks = Marks::of(&ids, &done, mask.as_ref())?;
        self.compact();
        let frames = match &mut self.frames {
            Some(frames) => frames,
            none => none.insert(CopiedFrames::like(batch)?),
        };
        let start = frames.len();
        frames.append(batch, self.pushed)?;
        self.pushed += 1;
        marks.runs(rows, |run| self.attach(start, run));
        Ok(())
    }

    /// Adds a run of a batch whose frames are stored from index `start` on to its trajectory.
    fn attach(&mut self, start: usize, run: TrajectoryRun) {
        let piece = Piece {
            start: start + run.start,
            len: run.len,
        };
        let owner = self.envs.map_or(run.id, |envs| run.id.rem_euclid(envs));
        if self.severed.get(&owner) == Some(&run.id) {
            self.unwanted += run.len;
            return;
        }
        self.severed.remove(&owner);
        self.pending += run.len;
        let open = match self.open.entry(owner) {
            Entry::Occupied(open) if open.get().id != run.id => {
                let abandoned = open.remove().len;
                self.pending -= abandoned;
                self.unwanted += abandoned;
                self.open.entry(owner)
            }
            open => open,
        };
        let trajectory = match (open, run.done) {
            (Entry::Occupied(mut begun), false) => return begun.get_mut().push(piece),
            (Entry::Occupied(begun), true) => {
                let mut ended = begun.remove();
                ended.push(piece);
                ended
            }
            (Entry::Vacant(none), false) => {
                none.insert(Trajectory::new(run.id, piece));
                return;
            }
            (Entry::Vacant(_), true) => Trajectory::new(run.id, piece),
        };
        self.queue.push_back(trajectory);
    }

    /// The next `trajs_per_batch` complete trajectories, in the order in which they ended; `None`
    /// while there are fewer.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`] when padding makes the batch larger than the address space; the
    /// trajectories then stay queued.
    pub fn pop(&mut self) -> Result<Option<TensorDict>, TensorError> {
        if self.queue.len() < self.trajs_per_batch {
            return Ok(None);
        }
        self.pop_first(self.trajs_per_batch, self.format)
    }

    /// At most `most` complete trajectories, one after another as in [`TrajFormat::Cat`]; `None`
    /// when there is none.
    pub(crate) fn pop_up_to(&mut self, most: usize) -> Result<Option<TensorDict>, TensorError> {
        match self.queue.len().min(most) {
            0 => Ok(None),
            count => self.pop_first(count, TrajFormat::Cat),
        }
    }

    fn pop_first(
        &mut self,
        count: usize,
        format: TrajFormat,
    ) -> Result<Option<TensorDict>, TensorError> {
        let next = self.queue.iter().take(count);
        let lens: Vec<usize> = next.map(|trajectory| trajectory.len).collect();
        let taken: usize = lens.iter().sum();
        let longest = lens.iter().copied().max().unwrap_or(0);
        let first = self.queue.iter().take(count);
        let (size, (moves, spans)) = match format {
            TrajFormat::Cat => (vec![taken], places(first, |span| span.to + span.len)),
            TrajFormat::Padded => (
                vec![lens.len(), longest],
                places(first, |span| span.to + longest),
            ),
        };
        let Some(frames) = &mut self.frames else {
            return Ok(None);
        };
        let mut batch = frames.build(&size, &moves, &spans)?;
        match format {
            TrajFormat::Cat => batch.set_names(&[Some("time")])?,
            TrajFormat::Padded => batch
                .set(MASK, padding_mask(&lens, longest)?)?
                .set_names(&[None, Some("time")])?,
        };
        self.queue.drain(..lens.len());
        self.pending -= taken;
        Ok(Some(batch))
    }

    /// All trajectories, from which [`loaded`](Self::loaded) makes a batcher.
    ///
    /// # Errors
    /// [`TensorError`] where the frames cannot be copied.
    pub(crate) fn saved(&mut self) -> Result<SavedTrajectories, TensorError> {
        let open: Vec<Trajectory> = self.open.drain().map(|(_, begun)| begun).collect();
        let complete = std::mem::take(&mut self.queue);
        let lens = |all: &mut dyn Iterator<Item = &Trajectory>| all.map(|one| one.len).collect();
        let mut saved = SavedTrajectories {
            complete: lens(&mut complete.iter()),
            open: lens(&mut open.iter()),
            severed: self.severed.iter().map(|(a, b)| (*a, *b)).collect(),
            unwanted: self.unwanted,
            ..SavedTrajectories::default()
        };
        let copied = self
            .copied(complete.iter(), true)
            .and_then(|complete| Ok((complete, self.copied(open.iter(), false)?)));
        self.queue = complete;
        for begun in open {
            let owner = self.envs.map_or(begun.id, |envs| begun.id.rem_euclid(envs));
            self.open.insert(owner, begun);
        }
        (saved.complete_frames, saved.open_frames) = copied?;
        Ok(saved)
    }

    /// Copies of the frames of `trajectories`, one after the other; empty for none.
    fn copied<'a>(
        &mut self,
        trajectories: impl Iterator<Item = &'a Trajectory>,
        are_complete: bool,
    ) -> Result<Vec<u8>, TensorError> {
        let (moves, spans) = places(trajectories, |span| span.to + span.len);
        let taken = spans.last().map_or(0, |span| span.to + span.len);
        let Some(frames) = self.frames.as_mut().filter(|_| taken > 0) else {
            return Ok(Vec::new());
        };
        let mut batch = frames.build(&[taken], &moves, &spans)?;
        let done = batch.get(runs::DONE)?;
        if !are_complete && done.len() == taken {
            let zeros = Tensor::zeros(DType::Bool, done.shape())?;
            batch.set(runs::DONE, zeros)?;
        }
        batch.to_bytes()
    }

    /// An empty batcher of the same kind with what was [saved](Self::saved). `like` is a batch with
    /// the entries of those that are pushed.
    ///
    /// # Errors
    /// [`TensorError`] where other frames were saved.
    pub(crate) fn loaded(
        &self,
        saved: &SavedTrajectories,
        like: &TensorDict,
    ) -> Result<Self, TensorError> {
        let mut loaded = Self {
            frames: None,
            open: HashMap::default(),
            queue: VecDeque::new(),
            pending: 0,
            pushed: 0,
            severed: HashMap::default(),
            unwanted: 0,
            ..*self
        };
        loaded.push_all(&saved.complete_frames, &saved.complete, like)?;
        loaded.push_all(&saved.open_frames, &saved.open, like)?;
        loaded.severed.extend(saved.severed.iter().copied());
        loaded.unwanted = saved.unwanted;
        Ok(loaded)
    }

    fn push_all(
        &mut self,
        frames: &[u8],
        lens: &[usize],
        like: &TensorDict,
    ) -> Result<(), TensorError> {
        if lens.is_empty() {
            return Ok(());
        }
        let saved = TensorDict::from_bytes(frames)?;
        let mut all = TensorDict::new([lens.iter().sum()]);
        // In the order of the batches that follow.
        for (key, _) in like.exclude(&[MASK]).leaves() {
            all.set(&key, saved.get(&key)?.clone())?;
        }
        all.set_names(&[Some("time")])?;
        let mut start = 0;
        for &len in lens {
            self.push(&all.narrow(0, start, len)?)?;
            start += len;
        }
        Ok(())
    }

    /// Complete trajectories that wait to be popped.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Frames of the trajectories that are unfinished or wait to be popped.
    #[must_use]
    pub fn pending_frames(&self) -> usize {
        self.pending
    }

    /// Drops all frames, and returns how many there were. Later batches may have other entries.
    pub fn clear(&mut self) -> usize {
        self.frames = None;
        self.open.clear();
        self.queue.clear();
        self.severed.clear();
        self.pushed = 0;
        std::mem::take(&mut self.pending)
    }

    /// Drops the trajectories that have frames in `batch`, which the caller does not
    /// [push](Self::push). Trajectories that go on after `batch`, under the next ids of their
    /// environments, are left out too.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub(crate) fn leave_out(&mut self, batch: &TensorDict) -> Result<(), TensorError> {
        let rows = BatchRows::of(batch)?;
        let (ids, done) = (one_each::<i64>(batch, IDS)?, done_of(batch)?);
        let envs = self.envs.unwrap_or(0);
        Marks::of(&ids, &done, None)?.runs(rows, |run| {
            let owner = self.envs.map_or(run.id, |envs| run.id.rem_euclid(envs));
            if let Some(open) = self.open.remove(&owner) {
                self.pending -= open.len;
                self.unwanted += open.len;
            }
            match run.done {
                true => self.severed.remove(&owner),
                false => self.severed.insert(owner, run.id + envs),
            };
        });
        Ok(())
    }

    /// Drops all frames, and returns how many there were. Later frames of unfinished trajectories
    /// are left out, since they would make no whole ones.
    pub(crate) fn sever(&mut self) -> usize {
        let open = self.open.drain();
        self.severed
            .extend(open.map(|(owner, trajectory)| (owner, trajectory.id)));
        self.queue.clear();
        std::mem::take(&mut self.pending)
    }

    /// Frames that were left out since the last call.
    pub(crate) fn take_unwanted(&mut self) -> usize {
        std::mem::take(&mut self.unwanted)
    }

    /// Frees the memory of frames that are no longer needed for new ones, once that is most of it.
    fn compact(&mut self) {
        let Some(frames) = &mut self.frames else {
            return;
        };
        if frames.len() <= SLACK * self.pending {
            return;
        }
        let trajectories = self.open.values_mut().chain(&mut self.queue);
        let mut pieces: Vec<&mut Piece> = trajectories.flat_map(Trajectory::pieces_mut).collect();
        pieces.sort_unstable_by_key(|piece| piece.start);
        let mut to = 0;
        let moves: Vec<Move> = pieces
            .into_iter()
            .map(|piece| {
                let (from, len) = (piece.start, piece.len);
                piece.start = to;
                to += len;
                Move {
                    from,
                    to: piece.start,
                    len,
                }
            })
            .collect();
        frames.keep(&moves);
    }
}

/// Where the frames of `trajectories` go: those of the first to the beginning, those of each other
/// one where `after` says, given the trajectory before.
fn places<'a>(
    trajectories: impl Iterator<Item = &'a Trajectory>,
    after: impl Fn(&Span) -> usize,
) -> (Vec<Move>, Vec<Span>) {
    let (mut moves, mut spans) = (Vec::new(), Vec::new());
    for trajectory in trajectories {
        let span = Span {
            id: trajectory.id,
            to: spans.last().map_or(0, &after),
            len: trajectory.len,
        };
        let mut to = span.to;
        for &Piece { start: from, len } in trajectory.pieces() {
            moves.push(Move { from, to, len });
            to += len;
        }
        spans.push(span);
    }
    (moves, spans)
}

/// `bool` `[lens.len(), longest]`: the first `lens[i]` elements of row `i` are true.
pub(crate) fn padding_mask(lens: &[usize], longest: usize) -> Result<Tensor, TensorError> {
    let mut mask = Tensor::zeros(DType::Bool, [lens.len(), longest])?;
    if longest > 0 {
        let rows = mask.as_mut_slice::<bool>()?.chunks_exact_mut(longest);
        for (row, &len) in rows.zip(lens) {
            row[..len].fill(true);
        }
    }
    Ok(mask)
}

/// Hashes ids, which are consecutive numbers: one multiplication spreads them well enough.
#[derive(Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_i64(i64::from(byte));
        }
    }

    fn write_i64(&mut self, id: i64) {
        // The golden ratio in 64 bits, which puts neighbours far apart. A hash table uses the
        // highest and the lowest bits.
        let product = (self.0 ^ id.cast_unsigned()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::runs::DONE;
    use super::*;

    /// Frames of one environment whose trajectory `id` ends with the last of them or not.
    fn frames(id: i64, len: usize, ends: bool) -> TensorDict {
        let mut batch = TensorDict::new([len]);
        let mut done = vec![false; len];
        done[len - 1] = ends;
        let ids = Tensor::full([len], id).unwrap();
        batch.set(IDS, ids).unwrap();
        batch
            .set(DONE, Tensor::from_vec(done, [len]).unwrap())
            .unwrap();
        batch.set("x", Tensor::full([len], id).unwrap()).unwrap();
        batch
    }

    fn held(batcher: &TrajectoryBatcher) -> usize {
        batcher.frames.as_ref().map_or(0, CopiedFrames::len)
    }

    #[test]
    fn memory_is_bounded_by_what_may_still_be_delivered() {
        let new = || TrajectoryBatcher::new(1, TrajFormat::Cat).unwrap();
        // One after the other ends and is taken, beside one that goes on.
        let mut batcher = new();
        batcher.push(&frames(-1, 3, false)).unwrap();
        for id in 0..200 {
            batcher.push(&frames(id, 10, true)).unwrap();
            assert!(batcher.pop().unwrap().is_some());
            assert!(held(&batcher) <= SLACK * 3 + 2 * 10);
        }
        // One after the other is left for the next.
        let mut batcher = new().of_envs(1);
        for id in 0..200 {
            batcher.push(&frames(id, 10, false)).unwrap();
            assert_eq!(batcher.pending_frames(), 10);
            assert_eq!(batcher.take_unwanted(), if id == 0 { 0 } else { 10 });
            assert!(held(&batcher) <= SLACK * 10 + 2 * 10);
        }
    }

    #[test]
    fn ids_keep_a_dimension_of_their_own() {
        let mut batch = frames(3, 4, true);
        batch.set(IDS, Tensor::full([4, 1], 3i64).unwrap()).unwrap();
        for (format, shape) in [
            (TrajFormat::Cat, vec![4, 1]),
            (TrajFormat::Padded, vec![1, 4, 1]),
        ] {
            let mut batcher = TrajectoryBatcher::new(1, format).unwrap();
            batcher.push(&batch).unwrap();
            let popped = batcher.pop().unwrap().unwrap();
            assert_eq!(popped.get(IDS).unwrap().shape(), shape);
            assert_eq!(popped.as_slice::<i64>(IDS).unwrap(), [3; 4]);
        }
    }

    #[test]
    fn the_beginning_of_a_trajectory_is_no_whole_one_nor_is_what_comes_of_a_forgotten_one() {
        let mut batcher = TrajectoryBatcher::new(1, TrajFormat::Cat)
            .unwrap()
            .of_envs(2);
        batcher.push(&frames(0, 4, false)).unwrap();
        batcher.push(&frames(1, 3, false)).unwrap();
        assert_eq!(batcher.sever(), 7);
        // What workers had collected already still comes, and then the next episodes.
        batcher.push(&frames(0, 2, true)).unwrap();
        batcher.push(&frames(3, 2, true)).unwrap();
        batcher.push(&frames(2, 5, true)).unwrap();
        assert_eq!(batcher.take_unwanted(), 2);
        let mut popped = || batcher.pop().unwrap().map(|batch| batch.numel());
        assert_eq!([popped(), popped(), popped()], [Some(2), Some(5), None]);
    }
}
