//! The locks and counters of rings, or loom's and shuttle's models of them.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(any(loom, shuttle)))]
use std::time::{Duration, Instant};

/// Looks for `changed` a short while before the caller goes to sleep.
///
/// A thread that sleeps costs a futex round trip (about 15 µs) to wake, one that is still looking well under one.
/// Looks for some microseconds, however long the processor takes for one, and then a few yields: where workers
/// outnumber cores, long spinning keeps the very thread from running that one waits for.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn spin_until(mut changed: impl FnMut() -> bool) -> bool {
    const LOOKING: Duration = Duration::from_micros(5);
    let start = Instant::now();
    while start.elapsed() < LOOKING {
        for _ in 0..16 {
            if changed() {
                return true;
            }
            std::hint::spin_loop();
        }
    }
    for _ in 0..30 {
        if changed() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

/// Spinning adds states to the model and nothing that it could find.
#[cfg(any(loom, shuttle))]
pub(crate) fn spin_until(_: impl FnMut() -> bool) -> bool {
    false
}

/// How long one had to wait last time: whoever has to wait long goes to sleep without looking, and leaves the core to
/// those that it waits for.
#[derive(Debug)]
pub(crate) struct Habit {
    #[cfg(not(any(loom, shuttle)))]
    last_micros: AtomicU32,
}

/// A wait that has begun.
pub(crate) struct Waiting {
    #[cfg(not(any(loom, shuttle)))]
    since: Instant,
    is_short: bool,
}

#[cfg(not(any(loom, shuttle)))]
impl Habit {
    /// Some futex round trips: that one had to be woken makes no wait a long one.
    const LONG_MICROS: u32 = 100;

    pub(crate) fn new() -> Self {
        Self {
            last_micros: AtomicU32::new(0),
        }
    }

    pub(crate) fn begin(&self) -> Waiting {
        Waiting {
            since: Instant::now(),
            is_short: self.last_micros.load(Ordering::Relaxed) < Self::LONG_MICROS,
        }
    }

    pub(crate) fn end(&self, waiting: &Waiting) {
        let micros = waiting.since.elapsed().as_micros();
        self.last_micros
            .store(micros.min(u128::from(u32::MAX)) as u32, Ordering::Relaxed);
    }
}

#[cfg(any(loom, shuttle))]
impl Habit {
    pub(crate) fn new() -> Self {
        Self {}
    }

    pub(crate) fn begin(&self) -> Waiting {
        Waiting { is_short: false }
    }

    pub(crate) fn end(&self, _: &Waiting) {}
}

impl Waiting {
    pub(crate) fn is_short(&self) -> bool {
        self.is_short
    }
}
