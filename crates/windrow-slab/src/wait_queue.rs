//! Waiting for a change of the value in a mutex.

// Only spinning threads look at it, and models leave spinning out.
use std::sync::atomic::AtomicU32 as WakeCount;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use windrow_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use windrow_sync::{Condvar, Mutex, lock, unpoisoned};

use crate::spin::AdaptiveSpin;

/// The threads that wait for a change of the value in a mutex. Waking spinning threads costs one
/// atomic addition, waking sleeping ones a system call.
///
/// The lock is `std`'s, or that of loom or shuttle in a build for them.
#[derive(Debug)]
pub struct WaitQueue {
    /// Calls of [`wake_all`](Self::wake_all), so that spinning threads need not take the lock.
    wakes: CachePadded<WakeCount>,
    /// Threads asleep; written under the lock only.
    asleep: AtomicU32,
    /// Whether the next thread that comes out of its sleep is to wake the others.
    wakes_others: AtomicBool,
    condvar: Condvar,
    spin: AdaptiveSpin,
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl WaitQueue {
    /// A queue in which no thread waits.
    #[must_use]
    pub fn new() -> Self {
        Self {
            wakes: CachePadded::new(WakeCount::new(0)),
            asleep: AtomicU32::new(0),
            wakes_others: AtomicBool::new(false),
            condvar: Condvar::new(),
            spin: AdaptiveSpin::new(),
        }
    }

    /// Wakes all threads that wait. Call it after the lock was released, so that they find it free.
    /// No thread misses the change: one that has not seen it took the lock before the change, and
    /// was counted as asleep before it released the lock.
    ///
    /// Of several that sleep, the first wakes the others. Linux puts a thread back on the core that
    /// it last ran on if that is idle, and looks for no other where all have been busy. The
    /// caller's core becomes idle when the caller sleeps, as it mostly does next: if the caller
    /// woke all, the last of as many threads as cores would come to share a core with another, for
    /// 8 ms each time. That holds where one sleeps, too: another may fall asleep meanwhile, and be
    /// woken in its place.
    pub fn wake_all(&self) {
        self.wakes.fetch_add(1, Ordering::Release);
        if self.asleep.load(Ordering::Relaxed) > 0 {
            self.wakes_others.store(true, Ordering::Relaxed);
            self.condvar.notify_one();
        }
    }

    /// Waits until `attempt` returns something: spins at first, then sleeps. Every change that
    /// could make it succeed must [wake](Self::wake_all).
    pub fn wait<T, R>(&self, mutex: &Mutex<T>, mut attempt: impl FnMut(&mut T) -> Option<R>) -> R {
        loop {
            if let Some(out) = self.wait_within(mutex, None, &mut attempt) {
                return out;
            }
        }
    }

    /// As [`wait`](Self::wait), but no longer than `timeout`: `None` if `attempt` has returned
    /// nothing by then.
    pub fn wait_within<T, R>(
        &self,
        mutex: &Mutex<T>,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&mut T) -> Option<R>,
    ) -> Option<R> {
        let mut seen = self.wakes.load(Ordering::Acquire);
        let mut guard = lock(mutex);
        if let Some(out) = attempt(&mut guard) {
            return Some(out);
        }
        let waiting = self.spin.begin();
        if waiting.spins() {
            drop(guard);
            while waiting.spin_until(|| self.wakes.load(Ordering::Acquire) != seen) {
                seen = self.wakes.load(Ordering::Acquire);
                if let Some(out) = attempt(&mut lock(mutex)) {
                    self.spin.end(&waiting);
                    return Some(out);
                }
            }
            guard = lock(mutex);
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        // A thread that has spun looked last before it took the lock, and must look again under it.
        let mut out = waiting.spins().then(|| attempt(&mut guard)).flatten();
        while out.is_none() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            self.asleep.fetch_add(1, Ordering::Relaxed);
            guard = match left {
                None => unpoisoned(self.condvar.wait(guard)),
                Some(left) => {
                    let waited = self.condvar.wait_timeout(guard, left);
                    unpoisoned(waited).0
                }
            };
            let others = self.asleep.fetch_sub(1, Ordering::Relaxed) - 1;
            if self.wakes_others.swap(false, Ordering::Relaxed) && others > 0 {
                self.condvar.notify_all();
            }
            out = attempt(&mut guard);
        }
        drop(guard);
        self.spin.end(&waiting);
        out
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_timeout_may_be_longer_than_clocks_go() {
        let (queue, is_set) = (WaitQueue::new(), Mutex::new(false));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                queue.wait_within(&is_set, Some(Duration::MAX), |is_set| is_set.then_some(()))
            });
            while queue.asleep.load(Ordering::Relaxed) == 0 && !waiting.is_finished() {
                thread::yield_now();
            }
            *lock(&is_set) = true;
            queue.wake_all();
            assert_eq!(waiting.join().unwrap(), Some(()));
        });
    }
}
