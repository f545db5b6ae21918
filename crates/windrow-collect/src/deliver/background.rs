//! A started collector: its driver runs in a thread of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use windrow_sync::atomic::Ordering;
use windrow_sync::mpsc::channel;
use windrow_sync::thread::{Builder, JoinHandle, ThreadId, current as current_thread};
use windrow_sync::{Condvar, Mutex, MutexGuard, catch_panic, error_chain, lock, unpoisoned};

use crate::deliver::core::Core;
use crate::deliver::driver::Driver;
use crate::deliver::stage::LastStage;
use crate::shared::lifecycle::Lifecycle;
use crate::{ControlError, NextError};

/// The thread of a started collector.
#[derive(Debug)]
pub(crate) struct Background<S: LastStage> {
    thread: Option<JoinHandle<Driver<S>>>,
    gate: Arc<Gate<S>>,
}

/// A request of another thread, which the background thread carries out between two batches.
type Job<S> = Box<dyn FnOnce(&mut Driver<S>) + Send>;

/// Holds the thread between two batches while there is a pause.
struct Gate<S: LastStage> {
    state: Mutex<GateState<S>>,
    changed: Condvar,
    lifecycle: Arc<Lifecycle>,
}

struct GateState<S: LastStage> {
    phase: ThreadPhase,
    thread: Option<ThreadId>,
    /// The thread waits before the next batch.
    closed: bool,
    job: Option<Job<S>>,
}

/// What the thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThreadPhase {
    Collecting,
    AtGate,
    Ended,
}

impl<S: LastStage> Background<S> {
    /// Lets `driver`, whose writer is attached, collect and write until no frames are left.
    ///
    /// # Errors
    /// [`ControlError::Start`] when the operating system refuses a thread.
    pub(crate) fn start(driver: Driver<S>) -> Result<Self, ControlError> {
        let gate = Arc::new(Gate {
            state: Mutex::new(GateState {
                phase: ThreadPhase::Collecting,
                thread: None,
                closed: false,
                job: None,
            }),
            changed: Condvar::new(),
            lifecycle: Arc::clone(&driver.core.lifecycle),
        });
        let seen = Arc::clone(&gate);
        let core = Arc::clone(&driver.core);
        core.running.store(true, Ordering::Relaxed);
        let thread = Builder::new()
            .name("windrow-collector".to_owned())
            .spawn(move || run(driver, &seen))
            .map_err(|error| {
                let error = ControlError::Start(error);
                core.running.store(false, Ordering::Relaxed);
                if let Some(writer) = &core.writer {
                    writer.detach(Some(error_chain(&error)));
                }
                error
            })?;
        Ok(Self {
            thread: Some(thread),
            gate,
        })
    }

    pub(crate) fn is_running(&self) -> bool {
        self.gate.lock().phase != ThreadPhase::Ended
    }

    /// Whether the calling thread is this thread, which cannot wait for itself.
    pub(crate) fn is_here(&self) -> bool {
        self.gate.lock().thread == Some(current_thread().id())
    }

    /// Keeps the thread from starting another batch, and waits up to `timeout` until it has
    /// finished the present one: whether it has.
    pub(crate) fn hold_within(&self, timeout: Duration) -> bool {
        self.gate.lock().closed = true;
        self.gate
            .wait_until(timeout, |state| state.phase != ThreadPhase::Collecting)
    }

    /// The result of `job` with the driver of the thread, which is [held](Self::hold_within);
    /// `None` where it ends instead.
    pub(crate) fn run<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Driver<S>) -> R + Send + 'static,
    ) -> Option<R> {
        let (result, received) = channel();
        let job: Job<S> = Box::new(move |driver| {
            // Whoever has asked waits.
            let _ = result.send(job(driver));
        });
        self.gate.change(|state| {
            // Nobody would take it from a thread that has ended meanwhile.
            state.job = (state.phase != ThreadPhase::Ended).then_some(job);
        });
        received.recv().ok()
    }

    /// Lets the thread go on.
    pub(crate) fn release(&self) {
        self.gate.change(|state| state.closed = false);
    }

    /// Lets the thread end after the present batch.
    pub(crate) fn end(&self) {
        self.gate.lifecycle.end();
        // It may wait at the gate.
        self.gate.change(|_| ());
    }

    /// Waits up to `timeout` until the thread has ended: whether it has. The thread itself does not
    /// wait.
    pub(crate) fn ends_within(&self, timeout: Duration) -> bool {
        let timeout = match self.is_here() {
            true => Duration::ZERO,
            false => timeout,
        };
        self.gate
            .wait_until(timeout, |state| state.phase == ThreadPhase::Ended)
    }

    /// The driver of a thread that has ended, once.
    pub(crate) fn take_driver(&mut self) -> Option<Driver<S>> {
        if self.is_running() {
            return None;
        }
        // Only dropping something broken can panic there.
        self.thread.take()?.join().ok()
    }
}

impl<S: LastStage> Gate<S> {
    /// Waits while the gate is closed; whether the thread collects another batch.
    fn pass(&self, driver: &mut Driver<S>) -> bool {
        let mut state = self.lock();
        while state.closed && !self.lifecycle.is_ending() {
            state.phase = ThreadPhase::AtGate;
            if let Some(job) = state.job.take() {
                drop(state);
                job(driver);
                state = self.lock();
                continue;
            }
            self.changed.notify_all();
            state = unpoisoned(self.changed.wait(state));
        }
        state.phase = ThreadPhase::Collecting;
        // Nobody does it any more: whoever waits for it learns of that.
        state.job = None;
        !self.lifecycle.is_ending()
    }

    /// Waits up to `timeout` until `is_so`: whether it is.
    fn wait_until(&self, timeout: Duration, is_so: impl Fn(&GateState<S>) -> bool) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if is_so(&state) || left.is_zero() {
                return is_so(&state);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = unpoisoned(waited).0;
        }
    }

    fn change(&self, change: impl FnOnce(&mut GateState<S>)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, GateState<S>> {
        // User code never runs under the lock.
        lock(&self.state)
    }
}

impl<S: LastStage> std::fmt::Debug for Gate<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

/// Notes the end of the thread, also after a panic.
struct End<'a, S: LastStage>(&'a Gate<S>, Arc<Core>);

impl<S: LastStage> Drop for End<'_, S> {
    fn drop(&mut self) {
        self.1.running.store(false, Ordering::Relaxed);
        self.0
            .change(|state| (state.phase, state.job) = (ThreadPhase::Ended, None));
    }
}

fn run<S: LastStage>(mut driver: Driver<S>, gate: &Gate<S>) -> Driver<S> {
    let _end = End(gate, Arc::clone(&driver.core));
    gate.lock().thread = Some(current_thread().id());
    // The last stage and the sink call user code, which may panic.
    let ended = catch_panic(|| drive(&mut driver, gate))
        .unwrap_or_else(|message| Err(NextError::Panic(message)));
    let failure = ended
        .err()
        .filter(|error| !matches!(error, NextError::ShutDown));
    let mut told = None;
    if let Some(failure) = failure {
        driver.core.ring.stop();
        driver.workers().dismiss();
        let failure = driver.stage.fail(failure);
        told = failure.as_ref().map(|failure| error_chain(failure));
        driver.core.lifecycle.fail(failure);
    }
    // Only now: a sample that waits for frames wakes up and finds the error.
    if let Some(writer) = &driver.core.writer {
        writer.detach(told);
    }
    driver.stage.leave();
    driver
}

fn drive<S: LastStage>(driver: &mut Driver<S>, gate: &Gate<S>) -> Result<(), NextError> {
    // Signals interrupt calls, which are of other threads.
    let interrupt = driver.core.interrupt.only_reports();
    while gate.pass(driver) && driver.write_next(&interrupt)? {}
    Ok(())
}
