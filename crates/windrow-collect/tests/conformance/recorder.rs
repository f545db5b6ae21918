//! A sink that keeps what it is given, and can wait or fail.
#![allow(dead_code, reason = "each test target uses some of it")]

use std::collections::BTreeSet;
use std::sync::Arc;
#[cfg(not(shuttle))]
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

#[cfg(shuttle)]
use shuttle::sync::{Condvar, Mutex, MutexGuard};
use tensordict::TensorDict;
use windrow_slab::{Sink, SinkError, WriterId};
use windrow_sync::error_chain;

use super::frames::{Frame, frames};

/// What no wait may last.
const BOUND: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Recorder {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    batches: Vec<TensorDict>,
    writers: BTreeSet<WriterId>,
    next: u64,
    detached: usize,
    errors: Vec<String>,
    block_after: Option<usize>,
    fail_after: Option<usize>,
    blocked: bool,
}

impl Recorder {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Waits in every write after the first `writes`.
    pub(crate) fn blocking_after(writes: usize) -> Arc<Self> {
        let recorder = Self::new();
        recorder.lock().block_after = Some(writes);
        recorder
    }

    /// Fails in every write after the first `writes`.
    pub(crate) fn failing_after(writes: usize) -> Arc<Self> {
        let recorder = Self::new();
        recorder.lock().fail_after = Some(writes);
        recorder
    }

    pub(crate) fn batches(&self) -> Vec<TensorDict> {
        self.lock().batches.clone()
    }

    /// What writers were detached with.
    pub(crate) fn errors(&self) -> Vec<String> {
        self.lock().errors.clone()
    }

    pub(crate) fn is_attached(&self) -> bool {
        !self.lock().writers.is_empty()
    }

    pub(crate) fn unblock(&self) {
        self.lock().block_after = None;
        self.changed.notify_all();
    }

    /// Waits until a writer was detached.
    pub(crate) fn await_detached(&self) {
        self.wait(|state| state.detached > 0);
    }

    pub(crate) fn await_blocked(&self) {
        self.wait(|state| state.blocked);
    }

    /// Waits until there are two more batches than now, or there will be none.
    pub(crate) fn await_more(&self) {
        let wanted = self.lock().batches.len() + 2;
        self.wait(|state| state.batches.len() >= wanted || state.writers.is_empty());
    }

    /// Waits for such a frame.
    pub(crate) fn await_frame(&self, is_it: impl Fn(&Frame) -> bool) {
        self.wait(|state| {
            let last = state.batches.last();
            last.is_some_and(|batch| frames(batch).iter().any(&is_it))
        });
    }

    fn wait(&self, until: impl Fn(&State) -> bool) {
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), BOUND, |state| !until(state))
            .unwrap();
        assert!(!waited.1.timed_out(), "nothing has come");
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Sink for Recorder {
    fn attach(&self) -> WriterId {
        let mut state = self.lock();
        let writer = WriterId(state.next);
        state.next += 1;
        state.writers.insert(writer);
        writer
    }

    fn extend(&self, writer: WriterId, batch: &TensorDict) -> Result<(), SinkError> {
        let mut state = self.lock();
        let written = state.batches.len();
        if state.fail_after.is_some_and(|after| written >= after) {
            return Err(SinkError::failed("the disk is full"));
        }
        while state.block_after.is_some_and(|after| written >= after)
            && state.writers.contains(&writer)
        {
            state.blocked = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap();
        }
        if !state.writers.contains(&writer) {
            return Err(SinkError::Detached);
        }
        state.batches.push(batch.detach());
        self.changed.notify_all();
        Ok(())
    }

    fn detach(&self, writer: WriterId, error: Option<SinkError>) {
        let mut state = self.lock();
        if state.writers.remove(&writer) {
            state.detached += 1;
            state.errors.extend(error.map(|error| error_chain(&error)));
        }
        self.changed.notify_all();
    }
}
