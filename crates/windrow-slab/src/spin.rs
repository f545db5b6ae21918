//! Spinning briefly before a thread sleeps.

#[cfg(not(any(loom, shuttle)))]
use std::time::{Duration, Instant};

#[cfg(not(any(loom, shuttle)))]
use windrow_sync::atomic::{AtomicU32, Ordering};

/// Decides by the length of the last wait whether the next one spins before it sleeps: a thread
/// that waits long leaves its core to the threads that it waits for.
///
/// Waking a sleeping thread costs a futex round trip (about 15 µs), reaching a spinning one far
/// less. Models leave spinning out: it adds states and no new behaviour.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct AdaptiveSpin {
    #[cfg(not(any(loom, shuttle)))]
    last_micros: AtomicU32,
}

/// A wait that has begun.
pub(crate) struct Waiting {
    #[cfg(not(any(loom, shuttle)))]
    since: Instant,
    spins: bool,
}

#[cfg(not(any(loom, shuttle)))]
impl AdaptiveSpin {
    /// The length of a long wait: some futex round trips, so that a short wait does not count as
    /// long because the thread slept.
    const LONG_MICROS: u32 = 100;

    pub(crate) fn new() -> Self {
        Self {
            last_micros: AtomicU32::new(0),
        }
    }

    pub(crate) fn begin(&self) -> Waiting {
        Waiting {
            since: Instant::now(),
            spins: self.last_micros.load(Ordering::Relaxed) < Self::LONG_MICROS,
        }
    }

    pub(crate) fn end(&self, waiting: &Waiting) {
        let micros = waiting.since.elapsed().as_micros();
        self.last_micros
            .store(micros.min(u128::from(u32::MAX)) as u32, Ordering::Relaxed);
    }
}

#[cfg(any(loom, shuttle))]
impl AdaptiveSpin {
    pub(crate) fn new() -> Self {
        Self {}
    }

    pub(crate) fn begin(&self) -> Waiting {
        Waiting { spins: false }
    }

    pub(crate) fn end(&self, _: &Waiting) {}
}

impl Waiting {
    /// Whether it spins before it sleeps.
    pub(crate) fn spins(&self) -> bool {
        self.spins
    }

    /// Spins until `changed`, for some microseconds at most; returns whether it has. Returns at
    /// once after a long wait.
    ///
    /// The limit is a time, since one round takes some processors far longer than others. A few
    /// yields follow: if workers outnumber cores, a spinning thread may occupy the core that the
    /// awaited thread needs.
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn spin_until(&self, mut changed: impl FnMut() -> bool) -> bool {
        const SPINNING: Duration = Duration::from_micros(5);
        if !self.spins {
            return false;
        }
        let start = Instant::now();
        while start.elapsed() < SPINNING {
            for _ in 0..16 {
                if changed() {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        yield_until(30, changed)
    }

    /// As [`spin_until`](Self::spin_until), but yields instead of spinning: for waits between
    /// processes, which often outnumber cores, so that a spinning one delays the next (ADR 0014).
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) fn yield_until(&self, changed: impl FnMut() -> bool) -> bool {
        self.spins && yield_until(50, changed)
    }

    #[cfg(any(loom, shuttle))]
    pub(crate) fn spin_until(&self, _: impl FnMut() -> bool) -> bool {
        self.spins
    }

    #[cfg(any(loom, shuttle))]
    pub(crate) fn yield_until(&self, _: impl FnMut() -> bool) -> bool {
        self.spins
    }
}

/// Checks `times` times, and yields after each check.
#[cfg(not(any(loom, shuttle)))]
fn yield_until(times: usize, mut changed: impl FnMut() -> bool) -> bool {
    for _ in 0..times {
        if changed() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}
