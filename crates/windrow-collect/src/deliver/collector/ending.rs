//! The end of a collector.

use std::time::{Duration, Instant};

use windrow_sync::Interrupt;

use super::Collector;
use crate::deliver::stage::LastStage;
use crate::error::{ControlError, NextError, Stuck, WorkerError};

impl<S: LastStage> Collector<S> {
    /// As [`shutdown`](Self::shutdown), under the name that goes with [`start`](Self::start).
    ///
    /// # Errors
    /// Those of [`shutdown`](Self::shutdown).
    pub fn async_shutdown(&mut self) -> Result<(), ControlError> {
        self.shutdown()
    }

    /// Ends collection, also in the background, waits up to five seconds for the workers, and drops
    /// their environments and policies. Batches stay valid; the next call returns
    /// [`NextError::ShutDown`]. Another shutdown does nothing.
    ///
    /// # Errors
    /// [`ControlError::Stuck`] when some threads did not return from their environment, policy or
    /// hook in time. Errors of the background or of workers that no call has delivered:
    /// [`ControlError::Next`], or [`ControlError::SeveralWorkers`] for several workers. The death
    /// of a process that was about to end is one of them, unless
    /// [`on_loss`](crate::CollectorBuilder::on_loss) makes it a loss; what is killed since it has
    /// not ended in time is none. [`ControlError::Profile`] when a trace could not be written.
    /// [`ControlError::WaitInterrupted`]: worker processes that had not ended were killed, and another shutdown waits for the rest.
    pub fn shutdown(&mut self) -> Result<(), ControlError> {
        self.shutdown_within(Self::PATIENCE)
    }

    /// As [`shutdown`](Self::shutdown), but waits for threads up to `timeout`.
    ///
    /// # Errors
    /// As [`shutdown`](Self::shutdown).
    pub fn shutdown_within(&mut self, timeout: Duration) -> Result<(), ControlError> {
        let interrupt = self.core.interrupt.clone();
        self.end_within(timeout, &interrupt)
    }

    /// Finishes as [`finish_within`](Self::finish_within) does and shuts down, both within
    /// `timeout`, and is not interrupted: for a program that cannot take an interruption any more.
    ///
    /// # Errors
    /// As [`shutdown`](Self::shutdown).
    pub fn leave_within(&mut self, timeout: Duration) -> Result<(), ControlError> {
        let begin = Instant::now();
        let never = Interrupt::never();
        self.finish(timeout, &never)?;
        // Even when the time is used up, threads that end at once have the chance to.
        let left = timeout.saturating_sub(begin.elapsed());
        self.end_within(left.max(Interrupt::SLICE), &never)
    }

    fn end_within(&mut self, timeout: Duration, interrupt: &Interrupt) -> Result<(), ControlError> {
        self.core.shut_down();
        let begin = Instant::now();
        let mut stuck = 0;
        let waited = interrupt.wait_within(timeout, |slice| {
            stuck = self.join(slice);
            (stuck == 0).then_some(())
        });
        if stuck > 0
            && self
                .background
                .as_ref()
                .is_none_or(|background| background.ends_within(Duration::ZERO))
        {
            stuck = self
                .driver
                .as_mut()
                .map_or(stuck, |driver| driver.workers().kill(stuck));
        }
        self.waited = true;
        self.core.shared.profile.end();
        waited?;
        if stuck > 0 {
            let stuck = Stuck {
                stuck,
                threads: self.core.workers() + usize::from(self.background.is_some()),
                waited: begin.elapsed(),
            };
            return Err(stuck.into());
        }
        if let Some(driver) = &mut self.driver {
            driver.batches.drop_frames();
        }
        self.failures()?;
        Ok(self.core.shared.profile.check()?)
    }

    /// Ends what [`start`](Self::start) began: cuts the present batch short at its next step, and
    /// writes it unless the write would have to wait. Waits up to `timeout`: whether the thread has
    /// ended. Call [`shutdown`](Self::shutdown) afterwards.
    ///
    /// # Errors
    /// [`ControlError::WaitInterrupted`].
    pub fn finish_within(&mut self, timeout: Duration) -> Result<bool, ControlError> {
        self.finish(timeout, &self.core.interrupt)
    }

    fn finish(&self, timeout: Duration, interrupt: &Interrupt) -> Result<bool, ControlError> {
        let Some(background) = &self.background else {
            return Ok(true);
        };
        background.end();
        if background.is_running() {
            self.core.ring.cut_all(true);
        }
        let ended = interrupt.wait_within(timeout, |slice| {
            let has_ended = background.ends_within(slice);
            (has_ended || background.is_here()).then_some(has_ended)
        })?;
        Ok(ended == Some(true))
    }

    /// Waits up to `timeout` until no thread runs any more; how many still do.
    fn join(&mut self, timeout: Duration) -> usize {
        let deadline = Instant::now() + timeout;
        if let Some(background) = &mut self.background {
            background.end();
            if !background.ends_within(timeout) {
                return 1;
            }
            if let Some(driver) = background.take_driver() {
                self.driver = Some(driver);
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        self.driver
            .as_mut()
            .map_or(0, |driver| driver.workers().join(left))
    }

    /// All errors that no call has delivered.
    fn failures(&mut self) -> Result<(), ControlError> {
        let background = self.core.lifecycle.take_failure();
        let mut workers: Vec<WorkerError> = match background {
            Some(NextError::Worker(first)) => vec![first],
            Some(other) => return Err(other.into()),
            None => Vec::new(),
        };
        workers.extend(std::iter::from_fn(|| {
            self.core.shared.reports.take_failure()
        }));
        match (workers.pop(), workers.is_empty()) {
            (None, _) => Ok(()),
            (Some(only), true) => Err(NextError::from(only).into()),
            (Some(last), false) => {
                workers.push(last);
                Err(ControlError::SeveralWorkers(workers))
            }
        }
    }
}

impl<S: LastStage> Drop for Collector<S> {
    fn drop(&mut self) {
        let patience = match self.waited {
            true => Duration::ZERO,
            false => Self::PATIENCE,
        };
        // Nothing can take an error any more.
        let _ = self.end_within(patience, &Interrupt::never());
    }
}
