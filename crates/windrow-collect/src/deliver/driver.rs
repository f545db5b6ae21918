//! Lets batches pass the last stage, in the consumer's thread or in the collector's own.

use std::sync::Arc;

use tensordict::TensorDict;
use windrow_policy::PolicyError;
use windrow_sync::Interrupt;
use windrow_sync::atomic::Ordering;

use crate::deliver::batches::Batches;
use crate::deliver::core::Core;
use crate::deliver::stage::LastStage;
use crate::error::{ControlError, NextError};
use crate::placement::Workers;

/// Prepares each request, takes its batches, and has the last stage finish and write them.
pub(crate) struct Driver<S: LastStage> {
    pub(crate) core: Arc<Core>,
    pub(crate) batches: Batches,
    pub(crate) stage: S,
    update_at_each_batch: bool,
    /// Batches of the present request that have passed the last stage.
    passed: Vec<S::Out>,
}

impl<S: LastStage> Driver<S> {
    pub(crate) fn new(
        core: Arc<Core>,
        batches: Batches,
        stage: S,
        update_at_each_batch: bool,
    ) -> Self {
        Self {
            core,
            batches,
            stage,
            update_at_each_batch,
            passed: Vec::new(),
        }
    }

    pub(crate) fn workers(&mut self) -> &mut Workers {
        &mut self.batches.slabs.workers
    }

    /// The next batch, or the frames of it that were written; `None` when no frames are left.
    /// `interrupt` ends waits for workers.
    ///
    /// # Errors
    /// [`NextError::WaitInterrupted`]. The next call goes on where this one stopped, also after an
    /// interruption of a stage that [tries again](LastStage::TRIES_AGAIN).
    pub(crate) fn next(&mut self, interrupt: &Interrupt) -> Result<Option<S::Out>, NextError> {
        if !self.pass_all(interrupt)? {
            return Ok(None);
        }
        let mut passed = std::mem::take(&mut self.passed);
        if self.core.writer.is_none() && passed.len() == 1 {
            return Ok(passed.pop());
        }
        self.stage.join(passed).map(Some)
    }

    /// Collects and writes one batch; whether frames were left.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub(crate) fn write_next(&mut self, interrupt: &Interrupt) -> Result<bool, NextError> {
        let more = self.pass_all(interrupt)?;
        self.passed.clear();
        Ok(more)
    }

    /// Lets all batches of one request pass the last stage; whether frames were left.
    fn pass_all(&mut self, interrupt: &Interrupt) -> Result<bool, NextError> {
        if self.batches.ready.is_empty() && !self.take(interrupt)? {
            return Ok(false);
        }
        while let Some(batch) = self.batches.ready.pop_front() {
            let kept = S::TRIES_AGAIN.then(|| batch.clone());
            match self.pass(batch) {
                Ok(passed) => self.passed.push(passed),
                Err(error) => {
                    if let Some(batch) = kept {
                        self.batches.ready.push_front(batch);
                    }
                    return Err(error);
                }
            }
        }
        self.core.counters().batches += 1;
        Ok(true)
    }

    fn pass(&mut self, batch: TensorDict) -> Result<S::Out, NextError> {
        let number = self.core.counters().batches;
        let finished = self.stage.finish(batch, number)?;
        match &self.core.writer {
            Some(writer) => writer.timed(|| self.stage.write(finished, writer)),
            None => Ok(finished),
        }
    }

    /// Collects until the batches of one request are ready; whether frames were left.
    fn take(&mut self, interrupt: &Interrupt) -> Result<bool, NextError> {
        while !self.batches.complete()? {
            if !self.prepare()? {
                return Ok(false);
            }
            let taken = self.batches.take(interrupt);
            self.stage.collected();
            if taken? {
                break;
            }
            // A trajectory may go on for ever, and each wait for a slab be a short one.
            interrupt.check()?;
        }
        Ok(true)
    }

    /// Prepares for the slabs of one batch; whether frames are left.
    fn prepare(&mut self) -> Result<bool, NextError> {
        if self.core.forget.swap(false, Ordering::Relaxed) {
            self.batches.drop_trajectories();
        }
        if self.batches.slabs.are_over() {
            self.batches.drop_frames();
            return Ok(false);
        }
        let again = self.batches.are_begun();
        if self.update_at_each_batch && !again {
            let published = self.core.publisher.publish_from_source();
            published.map_err(|error| match error {
                ControlError::Weights(error) => NextError::Weights(error),
                ControlError::WaitInterrupted(error) => error.into(),
                other => NextError::Weights(PolicyError::failed(other)),
            })?;
        }
        self.stage.prepare(again)?;
        self.core.counters().throughput.begin();
        Ok(true)
    }

    /// A batch outside the count, which nothing interrupts.
    pub(crate) fn rollout(&mut self) -> Result<TensorDict, NextError> {
        self.settle()?;
        self.batches.rollout()
    }

    /// Collects the batch for which a wait was interrupted: workers have begun it.
    pub(crate) fn settle(&mut self) -> Result<(), NextError> {
        if self.batches.slabs.asked && self.batches.ready.is_empty() {
            self.take(&Interrupt::never())?;
        }
        Ok(())
    }

    /// Whether workers fill a slab that was asked for, and the wait for it was interrupted.
    pub(crate) fn has_asked(&self) -> bool {
        self.batches.slabs.asked
    }

    /// Zeros in the shape of a batch.
    pub(crate) fn fake_batch(&mut self) -> Result<S::Out, NextError> {
        let number = self.core.counters().batches;
        self.stage.preview(self.batches.zeros()?, number)
    }

    /// Drops all frames that were collected and not delivered.
    pub(crate) fn clear(&mut self) {
        self.batches.clear();
        self.passed.clear();
    }
}

impl<S: LastStage> std::fmt::Debug for Driver<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("workers", &self.batches.slabs.workers)
            .finish_non_exhaustive()
    }
}
