//! Where a collector of Python's writes.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tensordict::TensorDict;
use windrow::CollectError;
use windrow::replay::{ReplayBuffer, ReplayError};
use windrow::slab::{Sink, SinkError, WriterId};

use crate::gil;

/// For how long calls on a collector wait until its replay buffer takes a write.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a collector's batches are written to, if they are.
#[derive(Debug, Clone)]
pub(super) enum Target {
    None,
    Buffer(Arc<BufferSink>),
    Tray(Arc<Tray>),
}

/// A replay buffer of windrow's. Its limiter is waited for in pieces, so that signals are seen meanwhile.
#[derive(Debug)]
pub(super) struct BufferSink {
    buffer: ReplayBuffer,
    /// How long a write waits that somebody waits for.
    timeout: Duration,
    /// Whether nobody does.
    patient: AtomicBool,
    /// Whether writes wait no more.
    given_up: AtomicBool,
    /// Since when a write waits.
    waiting: Mutex<Option<Instant>>,
}

impl BufferSink {
    pub(super) fn new(buffer: ReplayBuffer, timeout: Duration) -> Self {
        Self {
            buffer,
            timeout,
            patient: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            waiting: Mutex::default(),
        }
    }

    /// Lets writes wait as long as it takes, or no longer than the buffer's samples do.
    pub(super) fn set_patient(&self, patient: bool) {
        self.patient.store(patient, Ordering::Relaxed);
    }

    /// Ends the wait of a write, which fails, and of those to come.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// For how long a write has been waiting, if one is.
    pub(super) fn waits(&self) -> Option<Duration> {
        self.waiting().map(|since| since.elapsed())
    }

    /// Whether a write waits that did not get in at once.
    pub(super) fn waits_for_samples(&self) -> bool {
        self.waits().is_some_and(|waited| waited > gil::SLICE)
    }

    /// What to tell who has waited since `asked` for a write to be done.
    ///
    /// # Errors
    /// [`CollectError::SinkWaits`] when the write has been waiting for long, too.
    pub(super) fn check(&self, asked: Instant) -> Result<(), CollectError> {
        match self.waits() {
            Some(waited) if waited.min(asked.elapsed()) > PATIENCE => {
                Err(CollectError::SinkWaits {
                    seconds: waited.as_secs_f64(),
                })
            }
            _ => Ok(()),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Option<Instant>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, writer: WriterId, batch: &TensorDict, begin: Instant) -> Result<(), SinkError> {
        loop {
            let left = match self.patient.load(Ordering::Relaxed) {
                true => gil::SLICE,
                false => self.timeout.saturating_sub(begin.elapsed()),
            };
            let written = self
                .buffer
                .write_within(writer, batch, left.min(gil::SLICE));
            let Err(SinkError::Failed(error)) = &written else {
                return written;
            };
            let Some(refused) = waited_in_vain(&**error, begin.elapsed()) else {
                return written;
            };
            if self.given_up.load(Ordering::Relaxed) {
                // Before the collector tells readers that it has failed: it was asked to end.
                self.buffer.detach(writer, None);
                return Err(SinkError::Detached);
            }
            if left < gil::SLICE {
                return Err(SinkError::failed(refused));
            }
            gil::attach(|py| py.check_signals()).map_err(SinkError::failed)?;
        }
    }
}

/// The error of a write that the limiter did not let in, which has waited for so long in all.
fn waited_in_vain(error: &(dyn Error + 'static), waited: Duration) -> Option<ReplayError> {
    match error.downcast_ref()? {
        ReplayError::NotTaken { frames, why, .. } => Some(ReplayError::NotTaken {
            frames: *frames,
            why: why.clone(),
            waited,
        }),
        _ => None,
    }
}

impl Sink for BufferSink {
    fn attach(&self) -> WriterId {
        self.buffer.attach()
    }

    fn attach_again(&self, first: WriterId) -> WriterId {
        self.buffer.attach_again(first)
    }

    fn extend(&self, writer: WriterId, batch: &TensorDict) -> Result<(), SinkError> {
        let begin = Instant::now();
        *self.waiting() = Some(begin);
        let written = self.write(writer, batch, begin);
        *self.waiting() = None;
        written
    }

    fn detach(&self, writer: WriterId, _: Option<SinkError>) {
        // Python tells of errors itself, with the exception and once: who iterates, or who asks next after `start`.
        self.buffer.detach(writer, None);
    }
}

/// Holds what is to be written until Python takes it, for buffers and transforms of Python's.
#[derive(Debug, Default)]
pub(super) struct Tray(Mutex<Vec<TensorDict>>);

impl Tray {
    /// What was written since this was last asked, the oldest first.
    pub(super) fn take(&self) -> Vec<TensorDict> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Sink for Tray {
    fn attach(&self) -> WriterId {
        WriterId(0)
    }

    fn extend(&self, _: WriterId, batch: &TensorDict) -> Result<(), SinkError> {
        let mut batches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        batches.push(batch.clone());
        Ok(())
    }

    fn detach(&self, _: WriterId, _: Option<SinkError>) {}
}
