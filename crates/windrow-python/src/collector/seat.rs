//! A value that threads use in turn.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// Holds a value that one thread at a time uses, for any time. Unlike a mutex, it lets other threads wait with a timeout, and
/// knows which thread uses the value.
#[derive(Debug)]
pub(super) struct Seat<T> {
    state: Mutex<State<T>>,
    given_back: Condvar,
}

#[derive(Debug)]
struct State<T> {
    value: Option<Box<T>>,
    taken_by: Option<ThreadId>,
}

/// Puts the value back when dropped, also by a panic.
struct Taken<'a, T> {
    seat: &'a Seat<T>,
    value: Option<Box<T>>,
}

impl<T> Seat<T> {
    pub(super) fn new(value: T) -> Self {
        Self {
            state: Mutex::new(State {
                value: Some(Box::new(value)),
                taken_by: None,
            }),
            given_back: Condvar::new(),
        }
    }

    /// Calls `f` with the value, once no other thread uses it; returns `f` as `Err` where that takes longer than `timeout`.
    pub(super) fn with_within<R, F: FnOnce(&mut T) -> R>(
        &self,
        timeout: Duration,
        f: F,
    ) -> Result<R, F> {
        let mut state = self.lock();
        if state.value.is_none() && !timeout.is_zero() {
            let is_taken = |state: &mut State<T>| state.value.is_none();
            let waited = self.given_back.wait_timeout_while(state, timeout, is_taken);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
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

    /// Takes the value out, unless a thread uses it.
    pub(super) fn take(&self) -> Option<Box<T>> {
        self.lock().value.take()
    }

    /// Whether the calling thread uses the value already, and would wait for itself.
    pub(super) fn is_taken_here(&self) -> bool {
        self.lock().taken_by == Some(thread::current().id())
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // User code never runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
