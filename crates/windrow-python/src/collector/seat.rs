//! A value that threads use in turn: the engine of a collector.
//!
//! A mutex would do, but for three things. Threads wait here with a timeout, so that they can
//! handle signals. The seat knows which thread has the value, so that a call from within it raises
//! an error and does not wait for itself. And the lock inside is free while the value is in use, so
//! that looking at the seat never waits.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::{self, ThreadId};
use std::time::Duration;

use windrow_sync::unpoisoned;

/// Holds a value that one thread at a time uses, for as long as it needs.
#[derive(Debug)]
pub(super) struct Seat<T> {
    state: Mutex<State<T>>,
    /// Signals that the value is back.
    given_back: Condvar,
}

/// The value, and the thread that has it.
#[derive(Debug)]
struct State<T> {
    /// None while a thread uses it, and after `take`. Boxed, so that taking it moves a pointer.
    value: Option<Box<T>>,
    taken_by: Option<ThreadId>,
}

/// Puts the value back when dropped, also by a panic.
struct Taken<'a, T> {
    seat: &'a Seat<T>,
    value: Option<Box<T>>,
}

impl<T> Seat<T> {
    /// A seat that nothing uses yet.
    pub(super) fn new(value: T) -> Self {
        Self {
            state: Mutex::new(State {
                value: Some(Box::new(value)),
                taken_by: None,
            }),
            given_back: Condvar::new(),
        }
    }

    /// Calls `f` with the value, once no other thread uses it. Returns `f` as `Err` where that
    /// takes longer than `timeout`, for another attempt. Called without the interpreter's lock.
    pub(super) fn with_within<R, F: FnOnce(&mut T) -> R>(
        &self,
        timeout: Duration,
        f: F,
    ) -> Result<R, F> {
        let mut state = self.lock();
        if state.value.is_none() && !timeout.is_zero() {
            let is_taken = |state: &mut State<T>| state.value.is_none();
            let waited = self.given_back.wait_timeout_while(state, timeout, is_taken);
            state = unpoisoned(waited).0;
        }
        let Some(value) = state.value.take() else {
            return Err(f);
        };
        state.taken_by = Some(thread::current().id());
        drop(state);
        let mut taken = Taken {
            seat: self,
            value: Some(value),
        };
        match &mut taken.value {
            Some(value) => Ok(f(value)),
            None => Err(f),
        }
    }

    /// Takes the value out for good, unless a thread uses it.
    pub(super) fn take(&self) -> Option<Box<T>> {
        self.lock().value.take()
    }

    /// Whether the calling thread uses the value already, and would wait for itself.
    pub(super) fn is_taken_here(&self) -> bool {
        self.lock().taken_by == Some(thread::current().id())
    }

    /// The state. Locked for moments only: user code never runs under this lock.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        unpoisoned(self.state.lock())
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        let mut state = self.seat.lock();
        (state.value, state.taken_by) = (self.value.take(), None);
        drop(state);
        self.seat.given_back.notify_one();
    }
}
