//! A collector that was started: its driver in a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::CollectError;
use crate::deliver::driver::Driver;
use crate::error::said;
use crate::sync::{Builder, Condvar, JoinHandle, Mutex, MutexGuard};

/// The thread, and what is known of it.
#[derive(Debug)]
pub(crate) struct Background {
    thread: Option<JoinHandle<Driver>>,
    gate: Arc<Gate>,
}

/// Where the thread may be held up between two batches.
#[derive(Debug)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    place: Place,
    /// Whether the thread is to wait before the next batch.
    closed: bool,
    /// Why it ended, until somebody was told.
    failure: Option<CollectError>,
    failed: bool,
}

/// Where the thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Collecting,
    /// Since when.
    Writing(Instant),
    AtGate,
    Ended,
}

impl Background {
    /// Lets `driver`, whose outlet is attached, collect and write until there is nothing left.
    ///
    /// # Errors
    /// The operating system's, when there is no thread to be had.
    pub(crate) fn start(driver: Driver) -> Result<Self, CollectError> {
        let gate = Arc::new(Gate {
            state: Mutex::new(State {
                place: Place::Collecting,
                closed: false,
                failure: None,
                failed: false,
            }),
            changed: Condvar::new(),
        });
        let seen = Arc::clone(&gate);
        let outlet = driver.core.outlet.clone();
        let thread = Builder::new()
            .name("windrow-collector".to_owned())
            .spawn(move || run(driver, &seen))
            .map_err(|error| {
                let error = CollectError::Start(error);
                if let Some(outlet) = outlet {
                    outlet.detach(Some(error.to_string()));
                }
                error
            })?;
        Ok(Self {
            thread: Some(thread),
            gate,
        })
    }

    pub(crate) fn is_running(&self) -> bool {
        self.gate.lock().place != Place::Ended
    }

    /// What the thread failed with, once; after that, that there will be no more.
    pub(crate) fn check(&self) -> Result<(), CollectError> {
        let mut state = self.gate.lock();
        match state.failure.take() {
            Some(failure) => Err(failure),
            None if state.failed => Err(CollectError::ShutDown),
            None => Ok(()),
        }
    }

    /// What the thread failed with, unless somebody was told.
    pub(crate) fn take_failure(&self) -> Option<CollectError> {
        self.gate.lock().failure.take()
    }

    /// Keeps the thread from the batch after the one that it is at; whether it stands between two already.
    ///
    /// # Errors
    /// [`CollectError::SinkWaits`] when a write takes longer than `patience`.
    pub(crate) fn hold(&self, patience: Duration) -> Result<bool, CollectError> {
        let mut state = self.gate.lock();
        state.closed = true;
        match state.place {
            Place::AtGate | Place::Ended => Ok(true),
            Place::Writing(since) if since.elapsed() > patience => Err(CollectError::SinkWaits {
                seconds: patience.as_secs_f64(),
            }),
            Place::Collecting | Place::Writing(_) => Ok(false),
        }
    }

    /// Lets the thread go on.
    pub(crate) fn release(&self) {
        self.gate.change(|state| state.closed = false);
    }

    /// Waits until the thread has ended, `deadline` at most: its driver. `None` when it has not, or was taken before.
    pub(crate) fn join(&mut self, deadline: Instant) -> Option<Driver> {
        let mut state = self.gate.lock();
        while state.place != Place::Ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.gate.wait_for(state, left);
        }
        drop(state);
        // Nothing of it panics but the drop of what is broken.
        self.thread.take()?.join().ok()
    }
}

impl Gate {
    /// Waits while the gate is closed.
    fn pass(&self) {
        let mut state = self.lock();
        while state.closed {
            state.place = Place::AtGate;
            self.changed.notify_all();
            state = self.wait(state);
        }
        state.place = Place::Collecting;
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code of users runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for<'a>(
        &self,
        state: MutexGuard<'a, State>,
        timeout: Duration,
    ) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, timeout);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Tells that the thread has ended, however it does.
struct End<'a>(&'a Gate);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.change(|state| state.place = Place::Ended);
    }
}

fn run(mut driver: Driver, gate: &Gate) -> Driver {
    let _end = End(gate);
    // Hooks, postprocessing and the sink are the user's.
    let ended = catch_unwind(AssertUnwindSafe(|| drive(&mut driver, gate)))
        .unwrap_or_else(|panic| Err(CollectError::Panic(said(panic.as_ref()))));
    let failure = ended
        .err()
        .filter(|error| !matches!(error, CollectError::ShutDown));
    if failure.is_some() {
        driver.core.ring.stop();
    }
    let told = failure.as_ref().map(ToString::to_string);
    gate.change(|state| {
        state.failed = failure.is_some();
        state.failure = failure;
    });
    // Who sees it asks why, so the reason is there before.
    if told.is_some() {
        driver.core.fail();
    }
    if let Some(outlet) = &driver.core.outlet {
        outlet.detach(told);
    }
    driver
}

fn drive(driver: &mut Driver, gate: &Gate) -> Result<(), CollectError> {
    loop {
        gate.pass();
        let Some(batches) = driver.next_writes()? else {
            return Ok(());
        };
        gate.change(|state| state.place = Place::Writing(Instant::now()));
        driver.write(&batches)?;
    }
}
