//! Waking threads of other processes (ADR 0014).

use std::time::Duration;

use windrow_sync::atomic::{AtomicU32, Ordering, fence};

use futex::Futex;

use crate::spin::AdaptiveSpin;

/// Wakes threads of this and other processes after a change. Ringing it costs one atomic addition,
/// and a system call while a thread sleeps.
///
/// A waiting thread reads the [count](Self::count), looks for the change, and [waits](Self::wait)
/// if there is none. In this order it misses no change that was made before the bell was rung:
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// use windrow_slab::Bell;
///
/// let (bell, there) = (Bell::new(), AtomicBool::new(false));
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         there.store(true, Ordering::Relaxed);
///         bell.ring();
///     });
///     loop {
///         let seen = bell.count();
///         if there.load(Ordering::Relaxed) {
///             break;
///         }
///         bell.wait(seen, None);
///     }
/// });
/// ```
///
/// It may lie in shared memory, where zeroed bytes are a new bell. If a process dies while it
/// waits, the bell still works; `asleep` then stays above 0, and each ring costs a system call. In
/// models of concurrency a bell is made of the model's types, which cannot lie in shared memory.
#[derive(Debug)]
#[repr(C)]
pub struct Bell {
    /// How often it was rung.
    rings: Futex,
    /// Threads that sleep or are about to.
    asleep: AtomicU32,
    spin: AdaptiveSpin,
}

impl Default for Bell {
    fn default() -> Self {
        Self::new()
    }
}

impl Bell {
    /// A bell that was not rung yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            rings: Futex::new(),
            asleep: AtomicU32::new(0),
            spin: AdaptiveSpin::new(),
        }
    }

    /// How often it was rung, for [`wait`](Self::wait). What was written before the last ring is
    /// visible after this call.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.rings.value().load(Ordering::Acquire)
    }

    /// Wakes all threads that wait; a thread that is about to wait returns at once.
    pub fn ring(&self) {
        self.rings.value().fetch_add(1, Ordering::AcqRel);
        // The fence pairs with that of `sleep`. Fences have one total order, so that either this
        // thread sees `asleep` of the other, or the other sees the new count in the system call.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) > 0 {
            self.rings.wake_all();
        }
    }

    /// Waits until the bell has been rung since [`count`](Self::count) returned `seen`, or for
    /// `timeout`. It may return earlier: look again in any case. Yields to other threads a few
    /// times before it sleeps, unless the wait before was long.
    pub fn wait(&self, seen: u32, timeout: Option<Duration>) {
        let waiting = self.spin.begin();
        if !waiting.yield_until(|| self.count() != seen) {
            self.sleep(seen, timeout);
        }
        self.spin.end(&waiting);
    }

    /// As [`wait`](Self::wait), but sleeps at once.
    pub(crate) fn sleep(&self, seen: u32, timeout: Option<Duration>) {
        self.asleep.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        self.rings.wait(seen, timeout);
        self.asleep.fetch_sub(1, Ordering::Release);
    }
}

/// A word on which the system lets threads sleep.
#[cfg(not(any(loom, shuttle)))]
mod futex {
    use std::time::Duration;

    use rustix::thread::futex::{Flags, Timespec, wait, wake};

    use windrow_sync::atomic::AtomicU32;

    #[derive(Debug)]
    #[repr(transparent)]
    pub(super) struct Futex(AtomicU32);

    impl Futex {
        pub(super) fn new() -> Self {
            Self(AtomicU32::new(0))
        }

        pub(super) fn value(&self) -> &AtomicU32 {
            &self.0
        }

        /// Sleeps while the value is `expected`, for `timeout` at most, or less.
        pub(super) fn wait(&self, expected: u32, timeout: Option<Duration>) {
            // A duration that the system cannot represent is no limit.
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            // Without the flag for private futexes, since other processes share the word. An
            // interrupted or spurious wait is no error: the caller looks again.
            let _ = wait(&self.0, Flags::empty(), expected, timeout.as_ref());
        }

        pub(super) fn wake_all(&self) {
            let _ = wake(&self.0, Flags::empty(), i32::MAX as u32);
        }
    }
}

/// A model of the system's futex: a lock around the comparison, and a queue of sleeping threads.
#[cfg(any(loom, shuttle))]
mod futex {
    use std::time::Duration;

    use windrow_sync::{
        Condvar, Mutex,
        atomic::{AtomicU32, Ordering},
        lock,
    };

    #[derive(Debug)]
    pub(super) struct Futex {
        value: AtomicU32,
        queue: Mutex<()>,
        woken: Condvar,
    }

    impl Futex {
        pub(super) fn new() -> Self {
            Self {
                value: AtomicU32::new(0),
                queue: Mutex::new(()),
                woken: Condvar::new(),
            }
        }

        pub(super) fn value(&self) -> &AtomicU32 {
            &self.value
        }

        /// A model has no clock.
        pub(super) fn wait(&self, expected: u32, _: Option<Duration>) {
            let queue = lock(&self.queue);
            if self.value.load(Ordering::Relaxed) == expected {
                drop(self.woken.wait(queue));
            }
        }

        pub(super) fn wake_all(&self) {
            drop(lock(&self.queue));
            self.woken.notify_all();
        }
    }
}
