//! The replay buffer: storage, writer, sampler and limiter behind one handle.

use std::sync::Arc;
use std::sync::TryLockError::WouldBlock;
use std::time::{Duration, Instant};

use tensordict::TensorDict;
use windrow_sync::{Condvar, Mutex, MutexGuard, lock};

use crate::sampler::Sampler;
use crate::state::BufferState;
use crate::{
    ListStorage, RandomSampler, RateLimiter, ReplayError, RoundRobinWriter, RowOrder, SampleRng,
    Storage, Writer, check_room,
};

mod change;
mod put;
mod recover;
mod saved;
mod sink;
mod slice_ends;
mod take;
mod values;

pub(crate) use saved::KnownRuns;
pub use values::ValuesOf;
pub(crate) use values::alike;

/// Stores the frames of collectors, and returns samples of them to learners.
///
/// A handle: clones share one buffer, and all methods may be called from several threads at once. A
/// frame is visible when all frames of its batch are there, and no frame is sampled while it is
/// overwritten: samples do not wait for writers, and writers only wait for samples that began
/// before.
///
/// Each row holds one frame, independently of the shape of its batch: `capacity` counts frames, and
/// `[envs, time]` is written environment by environment, so that the frames of an episode follow
/// each other. A buffer of another kind whose storage has `ndim=2` keeps rows of time instead;
/// slices of this one are the same.
///
/// ```
/// use tensordict::{Tensor, TensorDict};
/// use windrow_replay::{ListStorage, ReplayBuffer, SliceSampler};
///
/// let buffer = ReplayBuffer::builder()
///     .storage(ListStorage::new(100))
///     .sampler(SliceSampler::slice_len(2))
///     .batch_size(6)
///     .seed(0)
///     .build()?;
///
/// let mut frames = TensorDict::new([4]);
/// frames.set("observation", Tensor::arange(0..4)?)?;
/// frames.set(("next", "done"), Tensor::from_vec(vec![false, true, false, false], [4, 1])?)?;
/// buffer.extend(&frames)?;
///
/// // Three slices of two frames each, from the two trajectories.
/// let batch = buffer.sample(None)?;
/// assert_eq!(batch.batch_size(), [6]);
/// for slice in batch.as_slice::<i64>("observation")?.chunks(2) {
///     assert!(slice == [0, 1] || slice == [2, 3]);
/// }
/// # Ok::<(), windrow_replay::ReplayError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ReplayBuffer {
    shared: Arc<BufferInner>,
}

#[derive(Debug)]
struct BufferInner {
    storage: Box<dyn Storage>,
    capacity: usize,
    batch_size: Option<usize>,
    timeout: Duration,
    values_of: Option<ValuesOf>,
    /// Held while frames are written, from dropping the old rows to publishing the new ones.
    turn: Mutex<()>,
    state: Mutex<BufferState>,
    /// Notified when there may be more to sample.
    readable: Condvar,
    /// Notified when there may be room to write.
    writable: Condvar,
}

impl BufferInner {
    fn lock(&self) -> MutexGuard<'_, BufferState> {
        lock(&self.state)
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.turn)
    }

    /// As [`turn`](Self::turn), while no checkpoint is being written.
    fn turn_after_saving(&self) -> MutexGuard<'_, ()> {
        loop {
            let turn = self.turn();
            let state = self.lock();
            if state.saving.is_none() {
                return turn;
            }
            drop(turn);
            drop(self.writable.wait(state));
        }
    }
}

impl ReplayBuffer {
    /// A builder of a buffer: by default a list of 1000 frames, written round robin and sampled at
    /// random.
    pub fn builder() -> ReplayBufferBuilder {
        ReplayBufferBuilder {
            storage: Box::new(ListStorage::new(1000)),
            writer: Box::new(RoundRobinWriter::new()),
            sampler: Box::new(RandomSampler::new()),
            limiter: None,
            batch_size: None,
            seed: None,
            timeout: Duration::from_secs(60),
            values_of: None,
        }
    }

    /// Number of frames that can be sampled.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.lock().contents.rows.len()
    }

    /// Whether the buffer is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Capacity in frames.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.capacity
    }

    /// Frames written since the buffer was last empty, those included that were overwritten.
    #[must_use]
    pub fn write_count(&self) -> u64 {
        self.shared.lock().write_count
    }

    /// Batch size of a sample that does not name one.
    #[must_use]
    pub fn batch_size(&self) -> Option<usize> {
        self.shared.batch_size
    }

    /// Counts of frames, samples and writers.
    #[must_use]
    pub fn stats(&self) -> ReplayStats {
        let state = self.shared.lock();
        let held = state.held();
        ReplayStats {
            frames: held.frames,
            capacity: self.shared.capacity,
            write_count: state.write_count,
            sampled: state.sampled,
            overwritten: state.overwritten,
            trajectories: held.trajectories.map(|(all, _)| all),
            complete_trajectories: held.trajectories.map(|(_, ended)| ended),
            writers: state.writers.len(),
        }
    }

    /// Whether the last sample was the last of a pass over the frames: where a sampler without
    /// replacement has drawn each of them, or all that make a batch. Always false with other
    /// samplers.
    #[must_use]
    pub fn ran_out(&self) -> bool {
        self.shared.lock().ran_out
    }

    /// Whether the lock that readers need, or with `whole` also that of writers, could not be taken
    /// for all of `patience`. In a child of fork that is so forever if a thread of its parent held
    /// a lock at the time of the fork. Looks at the locks every millisecond: a lock whose thread is
    /// gone wakes no one.
    #[doc(hidden)]
    #[must_use]
    pub fn is_stuck(&self, whole: bool, patience: Duration) -> bool {
        let begin = Instant::now();
        let is_free = || {
            let turn = !whole || !matches!(self.shared.turn.try_lock(), Err(WouldBlock));
            turn && !matches!(self.shared.state.try_lock(), Err(WouldBlock))
        };
        while !is_free() {
            if begin.elapsed() > patience {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    /// Drops all frames, and counts from 0 again. New frames may have other keys and shapes.
    pub fn empty(&self) {
        let turn = self.shared.turn_after_saving();
        self.shared.lock().clear();
        self.shared.storage.clear();
        drop(turn);
        self.shared.readable.notify_all();
        self.shared.writable.notify_all();
    }

    /// Sets the priorities of rows, as `"index"` of a sample names them; `priorities` has one for
    /// each, not negative. Returns the number of priorities set.
    ///
    /// A row stands for the frame that was drawn from it last, or for its present frame if none was
    /// drawn. A row that no longer holds that frame is skipped, so that no other frame gets the
    /// priority. Where several samples are in use at once,
    /// [`update_priority_of`](Self::update_priority_of) tells their frames apart.
    ///
    /// # Errors
    /// [`ReplayError::NoPriorities`] when the sampler has none, [`ReplayError::Priorities`] when
    /// they are not as many as rows, or one is negative or not finite; nothing is changed then.
    pub fn update_priority(&self, rows: &[i64], priorities: &[f32]) -> Result<usize, ReplayError> {
        let mut state = self.shared.lock();
        state.update_priority(rows, None, priorities)
    }

    /// As [`update_priority`](Self::update_priority), for exactly the frames of one sample: `rows`
    /// is its `"index"`, and `generations` its `"index_generation"`. Skips rows that no longer hold
    /// these frames. Returns the number of priorities set.
    ///
    /// # Errors
    /// Those of [`update_priority`](Self::update_priority).
    pub fn update_priority_of(
        &self,
        rows: &[i64],
        generations: &[i64],
        priorities: &[f32],
    ) -> Result<usize, ReplayError> {
        let mut state = self.shared.lock();
        state.update_priority(rows, Some(generations), priorities)
    }

    /// The exponent of importance weights; `None` when the sampler has no priorities.
    #[must_use]
    pub fn beta(&self) -> Option<f64> {
        let mut state = self.shared.lock();
        state.sampler.priorities().map(|it| it.beta())
    }

    /// Changes the exponent of importance weights, from the next sample on.
    ///
    /// # Errors
    /// [`ReplayError::NoPriorities`] when the sampler has none, [`ReplayError::Argument`] when it
    /// is negative or not finite.
    pub fn set_beta(&self, beta: f64) -> Result<(), ReplayError> {
        let mut state = self.shared.lock();
        let priorities = state.sampler.priorities();
        priorities.ok_or(ReplayError::NoPriorities)?.set_beta(beta)
    }

    /// Changes the exponent of priorities, of those that are set or written from now on.
    ///
    /// # Errors
    /// [`ReplayError::NoPriorities`] when the sampler has none, [`ReplayError::Argument`] when it
    /// is negative or not finite.
    pub fn set_alpha(&self, alpha: f64) -> Result<(), ReplayError> {
        let mut state = self.shared.lock();
        let priorities = state.sampler.priorities();
        priorities
            .ok_or(ReplayError::NoPriorities)?
            .set_alpha(alpha)
    }
}

/// Counts of a [`ReplayBuffer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayStats {
    /// Frames that can be sampled.
    pub frames: usize,
    /// Capacity in frames.
    pub capacity: usize,
    /// Frames written since the buffer was last empty.
    pub write_count: u64,
    /// Frames sampled since then.
    pub sampled: u64,
    /// Frames overwritten since the last sample, where they are written one after another. When
    /// these reach the capacity, most of the frames are never sampled: see [`RateLimiter`].
    pub overwritten: u64,
    /// Number of trajectories, pieces included; `None` if the writer does not keep frames in order.
    pub trajectories: Option<usize>,
    /// Number of trajectories that reach the end of their episode.
    pub complete_trajectories: Option<usize>,
    /// Collectors that are attached.
    pub writers: usize,
}

/// Builds a [`ReplayBuffer`].
#[derive(Debug)]
#[must_use = "a builder does nothing until build() is called"]
pub struct ReplayBufferBuilder {
    storage: Box<dyn Storage>,
    writer: Box<dyn Writer>,
    sampler: Box<dyn Sampler>,
    limiter: Option<RateLimiter>,
    batch_size: Option<usize>,
    seed: Option<u64>,
    timeout: Duration,
    values_of: Option<ValuesOf>,
}

impl ReplayBufferBuilder {
    /// The storage that keeps the frames.
    pub fn storage(mut self, storage: impl Storage + 'static) -> Self {
        self.storage = Box::new(storage);
        self
    }

    /// The writer that decides which rows frames are written to.
    pub fn writer(mut self, writer: impl Into<Box<dyn Writer>>) -> Self {
        self.writer = writer.into();
        self
    }

    /// The sampler that chooses frames.
    pub fn sampler(mut self, sampler: impl Into<Box<dyn Sampler>>) -> Self {
        self.sampler = sampler.into();
        self
    }

    /// The limiter that makes samples and insertions wait for each other. By default they do not: a
    /// started collector then collects as fast as it can, even if the learner is slow.
    pub fn limiter(mut self, limiter: RateLimiter) -> Self {
        self.limiter = Some(limiter);
        self
    }

    /// Frames of a sample for which none is given.
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.batch_size = Some(batch_size);
        self
    }

    /// The seed of all random choices; by default from the operating system.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// How long a sample waits for writers that are attached, and an insertion for a limiter: 60 s
    /// when not given. A collector's insertion waits until the collector is shut down.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Takes frames that have numbers in an entry together with frames that have values of bytes
    /// there: the numbers become values, by this function. By default they are refused.
    #[doc(hidden)]
    pub fn values_of(mut self, values_of: ValuesOf) -> Self {
        self.values_of = Some(values_of);
        self
    }

    /// Builds the buffer, which continues with the frames that a storage on disk holds already.
    ///
    /// # Errors
    /// [`ReplayError::Argument`] when an argument is invalid or parts do not fit each other;
    /// [`ReplayError::NoMemory`] if there is none for the state of sampler and writer; errors of
    /// the storage.
    pub fn build(mut self) -> Result<ReplayBuffer, ReplayError> {
        let capacity = self.storage.capacity();
        let argument = |name, expected: String, got: String| {
            Err(ReplayError::Argument {
                name,
                expected,
                got,
            })
        };
        if capacity == 0 || u32::try_from(capacity).is_err() {
            let expected = format!("a capacity of 1 to {} frames", u32::MAX);
            return argument("storage", expected, capacity.to_string());
        }
        if self.batch_size == Some(0) {
            return argument("batch_size", "at least 1".to_owned(), "0".to_owned());
        }
        check_writer(&*self.sampler, &*self.writer)?;
        self.writer.begin(capacity)?;
        self.sampler.begin(capacity)?;
        if self.sampler.priorities().is_some() {
            check_room::<[i64; 2]>("the numbers of frames", capacity)?;
        }
        if let Some(limiter) = &self.limiter {
            limiter.check(capacity)?;
        }
        let rng = self
            .seed
            .map_or_else(SampleRng::from_entropy, SampleRng::new);
        let mut state = BufferState::new(capacity, self.writer, self.sampler, self.limiter, rng);
        recover::recover(&mut state, &*self.storage)?;
        Ok(ReplayBuffer {
            shared: Arc::new(BufferInner {
                storage: self.storage,
                capacity,
                batch_size: self.batch_size,
                timeout: self.timeout,
                values_of: self.values_of,
                turn: Mutex::new(()),
                state: Mutex::new(state),
                readable: Condvar::new(),
                writable: Condvar::new(),
            }),
        })
    }
}

/// Checks that the writer fits the sampler.
fn check_writer(sampler: &dyn Sampler, writer: &dyn Writer) -> Result<(), ReplayError> {
    match sampler.order() {
        Some(RowOrder::Ring) => check_order(writer, "which the sampler needs"),
        Some(RowOrder::Any) if writer.order() == RowOrder::Ring => Err(ReplayError::Argument {
            name: "writer",
            expected: "one that fills rows in any order, which the sampler needs".to_owned(),
            got: writer.name().to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Checks that the writer keeps frames in order; `why` ends the sentence of the error.
fn check_order(writer: &dyn Writer, why: &str) -> Result<(), ReplayError> {
    if writer.order() == RowOrder::Ring {
        return Ok(());
    }
    Err(ReplayError::Argument {
        name: "writer",
        expected: format!("one that keeps frames in order, {why}"),
        got: writer.name().to_owned(),
    })
}

/// Frames one after another, and how many of them one row of `batch` has.
fn flat(batch: &TensorDict) -> Result<(std::borrow::Cow<'_, TensorDict>, usize), ReplayError> {
    let expected = "a batch size of [time] or [..., time], of at least one frame";
    let Some(&row) = batch.batch_size().last().filter(|_| batch.numel() > 0) else {
        return Err(ReplayError::Argument {
            name: "batch",
            expected: expected.to_owned(),
            got: format!("{:?}", batch.batch_size()),
        });
    };
    let frames = match batch.ndim() {
        1 => std::borrow::Cow::Borrowed(batch),
        _ => std::borrow::Cow::Owned(batch.flatten()?),
    };
    Ok((frames, row))
}
