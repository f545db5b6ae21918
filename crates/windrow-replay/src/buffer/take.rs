//! Reading frames.

use std::time::{Duration, Instant};

use tensordict::{Tensor, TensorDict};
use windrow_sync::unpoisoned;

use super::slice_ends::{BURN_IN, MASK};
use super::{BufferInner, ReplayBuffer};
use crate::error::Waited;
use crate::sampler::NoDraw;
use crate::state::Drawn;
use crate::{ReplayError, StorageRead, check_room};

impl ReplayBuffer {
    /// A batch of `batch_size` frames, by default that of the builder: flat, in fresh memory.
    ///
    /// `"index"` holds the row of every frame, as `int64`. A prioritized sampler adds
    /// `"priority_weight"`, `float32`, and `"index_generation"`, `int64`, which distinguishes a
    /// frame from others that its row holds before or after. Slices have `("next", "truncated")`
    /// and `("next", "done")` set at their last frame, and `"is_init"`, where it is recorded, at
    /// their first. Padded slices have `("collector", "mask")`, and slices with a burn-in
    /// `("collector", "burn_in")`.
    ///
    /// Waits while collectors are attached that may bring what is missing, up to the builder's
    /// `timeout`.
    ///
    /// # Errors
    /// [`ReplayError::NoBatchSize`]; [`ReplayError::BatchSize`] when it is not a multiple of
    /// slices; [`ReplayError::NoMemory`] if the system has no memory for `batch_size` frames;
    /// [`ReplayError::Writer`] once when a collector has failed; [`ReplayError::NotEnough`], at
    /// once when no collector is attached.
    pub fn sample(&self, batch_size: impl Into<Option<usize>>) -> Result<TensorDict, ReplayError> {
        self.sample_within(batch_size, self.shared.timeout)
    }

    /// As [`sample`](Self::sample), waiting no longer than `timeout`.
    ///
    /// # Errors
    /// The errors of [`sample`](Self::sample).
    pub fn sample_within(
        &self,
        batch_size: impl Into<Option<usize>>,
        timeout: Duration,
    ) -> Result<TensorDict, ReplayError> {
        let (mut batch, info) = self.sample_apart(batch_size, timeout)?;
        batch.update(&info)?;
        Ok(batch)
    }

    /// As [`sample_within`](Self::sample_within), but in two parts: the frames as they were
    /// written, with the mask and the burn-in of slices; and, under the same keys, all entries that
    /// [`sample`](Self::sample) adds or changes.
    ///
    /// # Errors
    /// The errors of [`sample_within`](Self::sample_within).
    #[doc(hidden)]
    pub fn sample_apart(
        &self,
        batch_size: impl Into<Option<usize>>,
        timeout: Duration,
    ) -> Result<(TensorDict, TensorDict), ReplayError> {
        self.sample_parts(batch_size.into(), timeout, false)
    }

    /// As [`sample_apart`](Self::sample_apart), without waiting. The frames count as drawn, for
    /// [`update_priority`](Self::update_priority), once they are [handed out](Self::hand_out).
    ///
    /// # Errors
    /// The errors of [`sample`](Self::sample).
    #[doc(hidden)]
    pub fn sample_ahead(
        &self,
        batch_size: impl Into<Option<usize>>,
    ) -> Result<(TensorDict, TensorDict), ReplayError> {
        self.sample_parts(batch_size.into(), Duration::ZERO, true)
    }

    /// Notes that a sample that was drawn ahead is passed to a caller: `rows` is its `"index"`, and
    /// `generations` its `"index_generation"`.
    #[doc(hidden)]
    pub fn hand_out(&self, rows: &[i64], generations: &[i64]) {
        self.shared.lock().hand_out(rows, generations);
    }

    fn sample_parts(
        &self,
        batch_size: Option<usize>,
        timeout: Duration,
        ahead: bool,
    ) -> Result<(TensorDict, TensorDict), ReplayError> {
        let batch_size = batch_size.or(self.shared.batch_size);
        let batch_size = batch_size.ok_or(ReplayError::NoBatchSize)?;
        if batch_size == 0 {
            return Err(ReplayError::Argument {
                name: "batch_size",
                expected: "at least 1".to_owned(),
                got: "0".to_owned(),
            });
        }
        check_room::<i64>("a sample", batch_size)?;
        let (drawn, reader) = self.shared.draw(batch_size, timeout, ahead)?;
        let mut batch = reader.gather(&drawn.draw.rows)?;
        drop(reader);
        let info = info(&batch, drawn)?;
        // A learner needs both to tell padding and burn-in from frames to learn from.
        for key in [MASK, BURN_IN]
            .into_iter()
            .filter(|&key| info.contains_key(key))
        {
            batch.set(key, info.get(key)?.clone())?;
        }
        Ok((batch, info))
    }

    /// Copies the frames in `rows`, in that order; rows may repeat. Result: `[rows.len()]`.
    ///
    /// # Errors
    /// [`ReplayError::NoFrame`] for a row that holds none, or whose frame is being overwritten.
    pub fn get(&self, rows: &[i64]) -> Result<TensorDict, ReplayError> {
        let state = self.shared.lock();
        let checked = state.contents.rows.checked(rows)?;
        let reader = self.shared.storage.read();
        drop(state);
        reader.gather(&checked)
    }

    /// Copies all frames in the order of their rows, as soon as no thread is writing. Result:
    /// `[len()]`.
    ///
    /// # Errors
    /// Errors of the storage, if the frames cannot be put into one batch.
    pub fn all(&self) -> Result<TensorDict, ReplayError> {
        let turn = self.shared.turn();
        let state = self.shared.lock();
        let rows = state.contents.rows.sorted();
        let reader = self.shared.storage.read();
        drop(state);
        drop(turn);
        reader.gather(&rows)
    }
}

impl BufferInner {
    /// Chooses rows, and makes sure that they stay as they are until the reader is dropped. Waits
    /// for collectors.
    fn draw(
        &self,
        batch_size: usize,
        timeout: Duration,
        ahead: bool,
    ) -> Result<(Drawn, Box<dyn StorageRead + '_>), ReplayError> {
        let mut begin = None;
        let mut state = self.lock();
        loop {
            if let Some(failure) = state.writers.news() {
                return Err(failure);
            }
            let why = match state.draw(batch_size, ahead) {
                Ok(drawn) => {
                    // Under the lock: no thread has begun to overwrite these rows, and the next one
                    // waits for this reader.
                    let reader = self.storage.read();
                    let limited = state.limiter.is_some();
                    drop(state);
                    if limited {
                        self.writable.notify_all();
                    }
                    return Ok((drawn, reader));
                }
                Err(NoDraw::Error(error)) => return Err(error),
                Err(NoDraw::Shortage(why)) => why,
            };
            let writers = state.writers.len();
            let time = begin.get_or_insert_with(Instant::now).elapsed();
            let left = timeout.saturating_sub(time);
            if (writers == 0 && !state.writing) || left.is_zero() {
                let waited = match writers {
                    0 => Waited::NoWriter,
                    writers => Waited::For { writers, time },
                };
                let held = state.held();
                return Err(state.writers.failure().filter(|_| writers == 0).unwrap_or(
                    ReplayError::NotEnough {
                        asked: batch_size,
                        why,
                        held,
                        waited,
                    },
                ));
            }
            state.waiting_readers += 1;
            state = unpoisoned(self.readable.wait_timeout(state, left)).0;
            state.waiting_readers -= 1;
        }
    }
}

/// The entries that the sampler adds to a batch.
fn info(batch: &TensorDict, drawn: Drawn) -> Result<TensorDict, ReplayError> {
    let Drawn { draw, numbers } = drawn;
    let len = draw.rows.len();
    let mut info = match &draw.slices {
        Some(slices) => super::slice_ends::slices(batch, slices)?,
        None => TensorDict::new([len]),
    };
    let rows: Vec<i64> = draw.rows.iter().map(|&row| i64::from(row)).collect();
    info.set("index", Tensor::from_vec(rows, [len])?)?;
    if let Some(numbers) = numbers {
        info.set("index_generation", Tensor::from_vec(numbers, [len])?)?;
    }
    if let Some(weights) = draw.weights {
        info.set("priority_weight", Tensor::from_vec(weights, [len])?)?;
    }
    Ok(info)
}
