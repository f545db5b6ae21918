//! Writing frames.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tensordict::TensorDict;
use windrow_slab::{SinkError, WriterId};
use windrow_sync::MutexGuard;

use super::{BufferInner, ReplayBuffer, flat};
use crate::episode_ends::EpisodeMarks;
use crate::runs::Author;
use crate::state::{BufferState, Keys};
use crate::{ReplayError, RowOrder, RowSpan, RunMarks, Storage};

/// Where a batch comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrameOrigin {
    /// A user.
    User,
    /// An attached collector.
    Writer(WriterId),
    /// A collector that is not attached, by its number: samples do not wait for it.
    Collector(WriterId),
}

impl ReplayBuffer {
    /// Copies the frames of `batch`, `[time]` or `[…, time]`, into the buffer; returns the rows of
    /// those that were kept, in their order.
    ///
    /// All of them become visible together. Of more frames than the buffer has rows, the last are
    /// kept. The first batch determines the keys, dtypes and shapes of frames, unless the storage
    /// is a list.
    ///
    /// A trajectory ends with its episode, another id or the end of a row of the batch. It
    /// continues in the next batch if both have one row and the next begins with the same id;
    /// frames without ids, which must be `[time]`, continue if the same thread writes both. Frames
    /// of users never continue those of a collector, nor frames that were loaded or found on disk:
    /// there, the same id means another trajectory. If you write frames of several collectors, or
    /// pieces of several episodes without ids, separate them by ids of your own or by
    /// `("next", "truncated")` and `("next", "done")`.
    ///
    /// # Errors
    /// [`ReplayError::Argument`] for a batch without frames, errors of the storage if they do not
    /// fit, [`ReplayError::NoRuns`] when the sampler needs to know where trajectories end and
    /// cannot, [`ReplayError::NotTaken`] and [`ReplayError::NeverThrough`] if the limiter does not
    /// admit them, [`ReplayError::Writer`] once when a collector has failed. No frame of the batch
    /// is visible then.
    pub fn extend(&self, batch: &TensorDict) -> Result<Vec<i64>, ReplayError> {
        self.extend_within(batch, self.shared.timeout)
    }

    /// As [`extend`](Self::extend), waiting for the limiter no longer than `timeout`.
    ///
    /// # Errors
    /// The errors of [`extend`](Self::extend).
    pub fn extend_within(
        &self,
        batch: &TensorDict,
        timeout: Duration,
    ) -> Result<Vec<i64>, ReplayError> {
        self.put_for_user(batch, FrameOrigin::User, timeout)
    }

    /// As [`extend_within`](Self::extend_within), of a collector's batch: `collector` is what
    /// [`attach`](windrow_slab::Sink::attach) has given it first. It need not be attached now. Its
    /// trajectories go on in its own batches only.
    ///
    /// # Errors
    /// The errors of [`extend_within`](Self::extend_within).
    #[doc(hidden)]
    pub fn extend_for(
        &self,
        collector: WriterId,
        batch: &TensorDict,
        timeout: Duration,
    ) -> Result<Vec<i64>, ReplayError> {
        self.put_for_user(batch, FrameOrigin::Collector(collector), timeout)
    }

    /// Copies a collector's batch into the buffer, as [`Sink::extend`](windrow_slab::Sink::extend)
    /// does, but waits for the limiter no longer than `timeout`.
    ///
    /// # Errors
    /// [`SinkError::Detached`] when the writer was detached, also while it waited; otherwise those
    /// of [`extend`](Self::extend), within [`SinkError::Failed`].
    #[doc(hidden)]
    pub fn write_within(
        &self,
        writer: WriterId,
        batch: &TensorDict,
        timeout: Duration,
    ) -> Result<(), SinkError> {
        self.put_for_writer(batch, writer, Some(timeout))
    }

    /// Copies one frame, a dict of batch size `[]`, into the buffer; returns its row, if it was
    /// kept. It continues the frames before like a batch `[1]`.
    ///
    /// # Errors
    /// As [`extend`](Self::extend), and [`ReplayError::Tensor`] when the batch size is another.
    pub fn add(&self, frame: &TensorDict) -> Result<Option<i64>, ReplayError> {
        self.add_within(frame, self.shared.timeout)
    }

    /// As [`add`](Self::add), waiting for the limiter no longer than `timeout`.
    ///
    /// # Errors
    /// The errors of [`add`](Self::add).
    pub fn add_within(
        &self,
        frame: &TensorDict,
        timeout: Duration,
    ) -> Result<Option<i64>, ReplayError> {
        let batch = frame.unsqueeze(0)?;
        let rows = self.put_for_user(&batch, FrameOrigin::User, timeout)?;
        Ok(rows.first().copied())
    }

    fn put_for_user(
        &self,
        batch: &TensorDict,
        source: FrameOrigin,
        timeout: Duration,
    ) -> Result<Vec<i64>, ReplayError> {
        self.check_writers()?;
        self.put(batch, source, Some(timeout))
    }

    pub(super) fn put_for_writer(
        &self,
        batch: &TensorDict,
        writer: WriterId,
        timeout: Option<Duration>,
    ) -> Result<(), SinkError> {
        match self.put(batch, FrameOrigin::Writer(writer), timeout) {
            Ok(_) => Ok(()),
            Err(ReplayError::Detached) => Err(SinkError::Detached),
            Err(error) => Err(SinkError::failed(error)),
        }
    }

    /// Waits for the limiter no longer than `timeout`, if there is one.
    fn put(
        &self,
        batch: &TensorDict,
        source: FrameOrigin,
        timeout: Option<Duration>,
    ) -> Result<Vec<i64>, ReplayError> {
        let (frames, row) = flat(batch)?;
        let mut frames = self.shared.fitted(frames)?;
        let keys = Arc::clone(&self.shared.lock().keys);
        let mut entries = Entries::read(&frames, row, &keys)?;
        let (turn, state) = loop {
            let turn = self.shared.turn_for(frames.numel(), source, timeout)?;
            if !self.shared.has_changed(&frames) {
                break turn;
            }
            drop(turn);
            frames = self.shared.fitted(frames)?;
        };
        if !Arc::ptr_eq(&keys, &state.keys) {
            entries = Entries::read(&frames, row, &state.keys)?;
        }
        let author = match source {
            FrameOrigin::User => Author::User((batch.ndim() == 1).then(|| thread::current().id())),
            FrameOrigin::Writer(WriterId(id)) => {
                Author::Collector(state.writers.first(id).unwrap_or(id))
            }
            FrameOrigin::Collector(WriterId(id)) => Author::Collector(id),
        };
        entries.marks = entries.marks.by(author);
        let written = match state.writer.order() {
            RowOrder::Ring => self.shared.write_ring(state, &frames, entries),
            RowOrder::Any => self.shared.write_placed(state, &frames, &entries),
        };
        drop(turn);
        // A call of the system costs as much as writing 50 frames, and threads wait rarely.
        if self.shared.lock().waiting_readers > 0 {
            self.shared.readable.notify_all();
        }
        written
    }
}

/// The entries of frames that the sampler needs.
struct Entries {
    marks: EpisodeMarks,
    priorities: Option<Vec<f32>>,
}

impl Entries {
    /// As [`EpisodeMarks::read`].
    fn read(frames: &TensorDict, row: usize, keys: &Keys) -> Result<Self, ReplayError> {
        Ok(Self {
            marks: EpisodeMarks::read(frames, row, &keys.runs, keys.needed)?,
            priorities: keys.priorities(frames)?,
        })
    }
}

/// The right to write, and the state at its beginning.
type WriteTurn<'a> = (MutexGuard<'a, ()>, MutexGuard<'a, BufferState>);

impl BufferInner {
    /// Waits until no other thread writes, a checkpoint that is being written has copied the frames
    /// to be overwritten, and the limiter admits `frames` frames.
    fn turn_for(
        &self,
        frames: usize,
        source: FrameOrigin,
        timeout: Option<Duration>,
    ) -> Result<WriteTurn<'_>, ReplayError> {
        let begin = Instant::now();
        loop {
            let turn = self.turn();
            let state = self.lock();
            if let FrameOrigin::Writer(WriterId(id)) = source
                && state.writers.first(id).is_none()
            {
                return Err(ReplayError::Detached);
            }
            if state.waits_for_checkpoint(frames) {
                // Without a time limit, since copying these frames ends soon.
                drop(turn);
                drop(self.writable.wait(state));
                continue;
            }
            let Some(why) = state.blocks_insert(frames)? else {
                return Ok((turn, state));
            };
            // Others may write while this waits, such as smaller batches.
            drop(turn);
            let waited = begin.elapsed();
            match timeout.map(|timeout| timeout.saturating_sub(waited)) {
                None => drop(self.writable.wait(state)),
                Some(left) if !left.is_zero() => {
                    drop(self.writable.wait_timeout(state, left));
                }
                Some(_) => {
                    return Err(ReplayError::NotTaken {
                        frames,
                        why,
                        waited,
                    });
                }
            }
        }
    }

    /// Writes frames behind the newest ones, over the oldest.
    fn write_ring(
        &self,
        mut state: MutexGuard<'_, BufferState>,
        frames: &TensorDict,
        entries: Entries,
    ) -> Result<Vec<i64>, ReplayError> {
        let count = frames.numel();
        let skipped = count.saturating_sub(self.capacity);
        let kept = count - skipped;
        let marks = entries.marks.skip(skipped)?;
        let frames = match skipped {
            0 => Cow::Borrowed(frames),
            _ => Cow::Owned(frames.narrow(0, skipped, kept)?),
        };
        let rows = RowSpan::new(
            (state.contents.rows.next() + skipped) % self.capacity,
            kept,
            self.capacity,
        );
        let oldest = state.contents.rows.oldest_for(count);
        state.evict(oldest);
        state.overwritten += oldest.len() as u64;
        state.overwritten += skipped as u64;
        let first = rows.rows().next();
        let first = first.expect("A batch has a frame at least, and a buffer has a row.");
        let new = state.contents.of_next(&marks, skipped);
        let new = new.expect("A ring has runs.");
        let keys = state.keys.fingerprint;
        let (mut state, done) = self.write(state, |storage| {
            let boundaries = &new.boundaries;
            storage.write_runs(first, &frames, &RunMarks { boundaries, keys })
        });
        done.unwrap_or_else(|panic| resume_unwind(panic))?;
        state.admit(rows, Some(&new), skipped);
        state.count(count);
        let mut written = Vec::with_capacity(rows.len());
        for range in rows.ranges() {
            written.extend(range.start as i64..range.end as i64);
        }
        if let Some(priorities) = entries.priorities {
            state.prioritize(&written, &priorities[skipped..])?;
        }
        Ok(written)
    }

    /// Writes frames into the rows that the writer chooses.
    fn write_placed(
        &self,
        mut state: MutexGuard<'_, BufferState>,
        frames: &TensorDict,
        entries: &Entries,
    ) -> Result<Vec<i64>, ReplayError> {
        let BufferState {
            writer, contents, ..
        } = &mut *state;
        let placed = writer.place(frames, &contents.rows)?;
        let one = |row: u32| RowSpan::new(row as usize, 1, self.capacity);
        for &row in placed.keys() {
            if state.contents.rows.contains(row as usize) {
                state.evict(one(row));
            }
        }
        let (mut state, written) = self.write(state, |storage| {
            for (&row, &frame) in &placed {
                storage.write(row as usize, &frames.narrow(0, frame, 1)?)?;
            }
            Ok(())
        });
        if !matches!(written, Ok(Ok(()))) {
            state.writer.lost(&placed.into_keys().collect::<Vec<u32>>());
            return written
                .unwrap_or_else(|panic| resume_unwind(panic))
                .map(|()| Vec::new());
        }
        for &row in placed.keys() {
            state.admit(one(row), None, 0);
        }
        state.count(frames.numel());
        let mut rows: Vec<(usize, u32)> = placed.into_iter().map(|(row, at)| (at, row)).collect();
        rows.sort_unstable();
        let (frames, rows): (Vec<usize>, Vec<i64>) = rows
            .into_iter()
            .map(|(frame, row)| (frame, i64::from(row)))
            .unzip();
        if let Some(priorities) = &entries.priorities {
            let kept: Vec<f32> = frames.into_iter().map(|frame| priorities[frame]).collect();
            state.prioritize(&rows, &kept)?;
        }
        Ok(rows)
    }

    /// Writes without the lock, so that samples continue meanwhile. A panic of the storage is
    /// caught until the state says that no thread is writing: others would wait forever.
    fn write(
        &self,
        mut state: MutexGuard<'_, BufferState>,
        work: impl FnOnce(&dyn Storage) -> Result<(), ReplayError>,
    ) -> (
        MutexGuard<'_, BufferState>,
        thread::Result<Result<(), ReplayError>>,
    ) {
        state.writing = true;
        drop(state);
        let written = catch_unwind(AssertUnwindSafe(|| work(&*self.storage)));
        let mut state = self.lock();
        state.writing = false;
        if written.is_err() {
            self.readable.notify_all();
        }
        (state, written)
    }
}
