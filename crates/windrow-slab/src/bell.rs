//! Where threads wait for something to change under a lock.

use std::sync::PoisonError;
// Only who spins looks at it, and models leave spinning out.
use std::sync::atomic::AtomicU32 as RingCount;
use std::time::{Duration, Instant};

use crate::sync::{AtomicU32, Condvar, Habit, Mutex, MutexGuard, Ordering, spin_until};

/// Wakes the threads that wait for a change of what a lock guards: those that still look for one at the cost of a
/// counter, those that sleep by a system call.
#[derive(Debug)]
pub(crate) struct Bell {
    /// Counts the rings, so that waiting threads can look for one without taking the lock.
    rings: Apart<RingCount>,
    /// Threads asleep; written under the lock only.
    asleep: AtomicU32,
    condvar: Condvar,
    habit: Habit,
}

impl Bell {
    pub(crate) fn new() -> Self {
        Self {
            rings: Apart(RingCount::new(0)),
            asleep: AtomicU32::new(0),
            condvar: Condvar::new(),
            habit: Habit::new(),
        }
    }

    /// Wakes all who wait; to be called after the lock was released, so that they find it free. Whoever went to sleep
    /// without having seen the change did so under the lock, before it was made.
    pub(crate) fn ring(&self) {
        self.rings.0.fetch_add(1, Ordering::Release);
        if self.asleep.load(Ordering::Relaxed) > 0 {
            self.condvar.notify_all();
        }
    }

    /// Waits until `attempt` gives something: looking for a ring at first, then asleep. Every change that could make it
    /// succeed must ring.
    pub(crate) fn wait<T, R>(
        &self,
        lock: &Mutex<T>,
        mut attempt: impl FnMut(&mut T) -> Option<R>,
    ) -> R {
        loop {
            if let Some(out) = self.wait_within(lock, None, &mut attempt) {
                return out;
            }
        }
    }

    /// As [`wait`](Self::wait), but sleeps no longer than `timeout`, if there is one: `None` when nothing came of it.
    pub(crate) fn wait_within<T, R>(
        &self,
        lock: &Mutex<T>,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&mut T) -> Option<R>,
    ) -> Option<R> {
        let mut seen = self.rings.0.load(Ordering::Acquire);
        if let Some(out) = attempt(&mut locked(lock)) {
            return Some(out);
        }
        let waiting = self.habit.begin();
        while waiting.is_short() && spin_until(|| self.rings.0.load(Ordering::Acquire) != seen) {
            seen = self.rings.0.load(Ordering::Acquire);
            if let Some(out) = attempt(&mut locked(lock)) {
                self.habit.end(&waiting);
                return Some(out);
            }
        }
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut guard = locked(lock);
        let out = loop {
            if let Some(out) = attempt(&mut guard) {
                break Some(out);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break None;
            }
            self.asleep.fetch_add(1, Ordering::Relaxed);
            guard = match left {
                None => self
                    .condvar
                    .wait(guard)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    let waited = self.condvar.wait_timeout(guard, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            self.asleep.fetch_sub(1, Ordering::Relaxed);
        };
        drop(guard);
        self.habit.end(&waiting);
        out
    }
}

/// No code of users runs under these locks, so a panic cannot leave what they guard half changed.
pub(crate) fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// On cache lines of its own: who looks at one word again and again does not slow down who writes its neighbours.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);
