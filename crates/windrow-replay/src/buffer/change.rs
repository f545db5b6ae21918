//! Changes of a buffer that holds frames already.

use std::borrow::Cow;

use tensordict::TensorDict;

use super::recover::marks_of;
use super::saved::write;
use super::{ReplayBuffer, check_order, check_writer};
use crate::sampler::Sampler;
use crate::state::BufferState;
use crate::{ReplayError, Storage};

impl ReplayBuffer {
    /// Replaces the sampler. The new one begins with all frames of the buffer: none was drawn in
    /// this pass, and each has the highest priority.
    ///
    /// # Errors
    /// [`ReplayError::Argument`] when an argument of the sampler is invalid, or the writer does not
    /// fit it; [`ReplayError::NoRuns`] when it needs to know where trajectories end and cannot.
    /// Nothing is changed then.
    pub fn set_sampler(&self, sampler: impl Into<Box<dyn Sampler>>) -> Result<(), ReplayError> {
        let mut sampler = sampler.into();
        let turn = self.shared.turn();
        let mut state = self.shared.lock();
        check_writer(&*sampler, &*state.writer)?;
        sampler.begin(self.shared.capacity)?;
        if let Some(keys) = sampler.run_keys()
            && !state.contents.rows.is_empty()
        {
            let rows = state.contents.rows.in_order();
            let reader = self.shared.storage.read();
            let marks = marks_of(&*reader, &rows, keys, true)?;
            let open = (*keys == state.keys.runs).then(|| state.contents.open());
            state.contents.mark(&marks);
            if let Some(open) = open.flatten() {
                state.contents.reopen(open);
            }
        }
        state.replace_sampler(sampler);
        drop(state);
        drop(turn);
        self.shared.readable.notify_all();
        Ok(())
    }

    /// Replaces the frames in `rows` by frames `[rows.len()]`, which keep the order and priorities
    /// of the old ones.
    ///
    /// # Errors
    /// [`ReplayError::NoFrame`] for a row that holds none, [`ReplayError::Argument`] when frames
    /// are not as many as rows, when a sampler that cuts trajectories would find them to end
    /// elsewhere, or when the writer compares frames; those of the storage when they do not fit.
    /// Nothing is written then.
    pub fn set(&self, rows: &[i64], frames: &TensorDict) -> Result<(), ReplayError> {
        if frames.batch_size() != [rows.len()] {
            return Err(ReplayError::Argument {
                name: "frames",
                expected: format!("a batch size of [{}], as there are rows", rows.len()),
                got: format!("{:?}", frames.batch_size()),
            });
        }
        let frames = &*self.shared.fitted(Cow::Borrowed(frames))?;
        let turn = self.shared.turn_after_saving();
        let state = self.shared.lock();
        let rows = state.contents.rows.checked(rows)?;
        self.shared.storage.prepare(frames)?;
        check_places(&state, &*self.shared.storage, &rows, frames)?;
        // The lock is held, so that no sample chooses these rows meanwhile.
        let written = write(&*self.shared.storage, &rows, frames, None);
        drop(state);
        drop(turn);
        written
    }
}

/// Checks that `frames` may replace those in `rows`.
fn check_places(
    state: &BufferState,
    storage: &dyn Storage,
    rows: &[u32],
    frames: &TensorDict,
) -> Result<(), ReplayError> {
    check_order(&*state.writer, "where rows are set")?;
    if !state.keys.needed {
        return Ok(());
    }
    let before = storage
        .read()
        .gather_keys(rows, &state.keys.runs.present(frames))?;
    for (key, tensor) in before.leaves() {
        if frames.get(&key)? != tensor {
            return Err(ReplayError::EndsElsewhere { key });
        }
    }
    Ok(())
}
