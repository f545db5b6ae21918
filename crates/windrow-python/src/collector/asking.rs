//! How a collector is asked, by a thread that it must neither keep from signals nor lock up.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::Instant;

use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use tensordict::TensorDict;
use windrow::{CollectError, Collector, Handle};

use super::sink::{BufferSink, Target};
use super::{Inner, of};
use crate::gil;

impl Inner {
    /// The next batch; `None` after the last, and an error where there is none because something went wrong before.
    pub(super) fn answer(&self, py: Python<'_>) -> PyResult<Option<TensorDict>> {
        let answer = self.asked(py);
        let interrupted = |raised: &PyErr| !raised.is_instance_of::<PyException>(py);
        let interrupted = answer.as_ref().is_err_and(interrupted);
        self.interrupted.store(interrupted, Ordering::Relaxed);
        answer
    }

    fn asked(&self, py: Python<'_>) -> PyResult<Option<TensorDict>> {
        self.check_outside()?;
        let answer = match &self.courier {
            None => py.detach(|| self.lock().next()),
            Some(courier) => gil::wait(py, |patience| {
                let mut courier = courier.lock().unwrap_or_else(PoisonError::into_inner);
                courier.next_within(patience)
            })?,
        };
        let failed = match &answer {
            Some(Ok(_)) => None,
            Some(Err(CollectError::ShutDown)) => Some(CollectError::ShutDown.to_string()),
            Some(Err(error)) => Some(format!(
                "the collector was ended by an error: {error}; build a new one to go on"
            )),
            None => {
                let failure = self.failure().clone();
                return failure.map_or(Ok(None), |failure| Err(PyRuntimeError::new_err(failure)));
            }
        };
        *self.failure() = failed;
        answer.map(|batch| of(py, batch)).transpose()
    }

    /// Refuses to wait for the collector in a thread that it waits for.
    pub(super) fn check_outside(&self) -> PyResult<()> {
        match self.handle.is_within() {
            true => Err(PyRuntimeError::new_err(
                "the collector cannot be asked for this from within its own environment or policy: it would wait for itself",
            )),
            false => Ok(()),
        }
    }

    /// What went wrong with the last batch that was asked for, where it did.
    pub(super) fn failure(&self) -> MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Collector> {
        self.collector
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// `f` of the collector, without the interpreter's lock, once nobody else has it. An error where its replay buffer keeps
    /// whoever has it waiting.
    pub(super) fn with<R: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut Collector) -> R + Send,
    ) -> PyResult<R> {
        let asked = Instant::now();
        let answered = self.locked(py, f, |buffer| buffer.check(asked).err())?;
        of(py, answered)
    }

    /// As [`with`](Self::with), but where the replay buffer keeps a write waiting, `meanwhile` of the handle.
    pub(super) fn with_or<R: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut Collector) -> R + Send,
        meanwhile: impl FnOnce(&Handle) -> R + Send,
    ) -> PyResult<R> {
        let answered = self.locked(py, f, |buffer| buffer.waits_for_samples().then_some(()))?;
        Ok(answered.unwrap_or_else(|()| py.detach(|| meanwhile(&self.handle))))
    }

    /// `f` of the collector once nobody else has it, or what `give_up` says of a buffer that whoever has it writes to.
    fn locked<R: Send, E: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut Collector) -> R + Send,
        give_up: impl Fn(&BufferSink) -> Option<E> + Sync,
    ) -> PyResult<Result<R, E>> {
        self.check_outside()?;
        let mut f = Some(f);
        gil::wait(py, |patience| {
            let mut collector = match self.collector.try_lock() {
                Ok(collector) => collector,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    if let Target::Buffer(buffer) = &self.target
                        && let Some(why) = give_up(buffer)
                    {
                        return Some(Err(why));
                    }
                    thread::sleep(patience / 100);
                    return None;
                }
            };
            f.take().map(|f| Ok(f(&mut collector)))
        })
    }
}
